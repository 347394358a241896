/*
 * embed_make.c: runs the encoder of a model on images, one after the other (see embed_make.h).
 *
 * It is a run like any other, forward only, with the same image bytes as input: its program is
 * training's own program up to the embedding.
 */
#include <stdio.h>
#include <string.h>

#include "feed/embed.h"
#include "infer/embed_make.h"

#include "models/masks.h"

static int make_config(struct config *c, const char *folder, const char *dtype, const struct names *set, struct error *e)
{
    config_init(c);
    int rc = config_assign(c, "model.path", folder, e);
    for (uint32_t i = 0; i < set->n && !rc; i++) rc = config_set(c, set->at[i], e);
    if (!rc && dtype && strcmp(dtype, "f32") && strcmp(dtype, "bf16")) rc = error_set(e, PL_USAGE, "--embeddings-dtype %s: expected f32 or bf16", dtype);
    if (!rc && dtype) rc = config_assign(c, "memory.precision", dtype, e);
    return rc;
}

static int check_model(const char *folder, int64_t side, struct error *e)
{
    struct model m;
    int rc = model_open(&m, folder, e);
    if (rc) return rc;
    if (!m.masks) rc = error_set(e, PL_USAGE, "%s: a %s has no image embeddings; expected a mask model, such as sam", folder, m.family->model_type);
    if (!rc && side % m.masks->patch)
        rc = error_set(e, PL_USAGE, "%s: the image size %lld is not divisible by the patch size %lld; give another --size", folder, (long long)side, (long long)m.masks->patch);
    model_close(&m);
    return rc;
}

static int start(struct embedder *m, const char *folder, int64_t side, struct error *e)
{
    struct run *r = &m->run;
    const struct prompting image = {.image = side, .masks = 1, .points = 2, .rounds = 1, .slots = true, .part = PART_IMAGE};
    struct run_options o = {.forward = true, .B = 1, .T = 1, .own = &image, .own_bytes = sizeof image, .partial = true};
    struct step_block b = {.inv_count = {1}, .loss_scale = 1, .step = 1, .adam_t = 1};
    int rc = run_plan(r, &m->config, &o, e);
    if (!rc) rc = run_start(r, NULL, true, e);
    if (!rc) rc = run_put_step(r, &b, e);
    if (!rc) rc = embed_describe(&r->model, side, &m->about, e);
    if (rc) return rc;
    m->output = graph_find_output(&r->graph, PROGRAM_STEP, "image_embeddings");
    m->about.type = r->plan.settings.precision == DT_BF16 ? PACKED_BF16 : PACKED_F32;
    m->bytes = packed_embedding_bytes(&m->about);
    snprintf(m->about.model, sizeof m->about.model, "%s", folder);
    CHECK(tensor_elements(tensor_at(&r->graph, m->output)) * dtype_size(packed_dtype(m->about.type)) == (int64_t)m->bytes);
    return PL_OK;
}

int embed_open(struct embedder *m, const char *folder, int64_t side, const char *dtype, const struct names *set, struct error *e)
{
    memset(m, 0, sizeof *m);
    int rc = make_config(&m->config, folder, dtype, set, e);
    if (!rc) rc = check_model(folder, side, e);
    if (!rc) rc = start(m, folder, side, e);
    if (rc) embed_close(m);
    return rc ? error_prepend(e, "--embeddings") : PL_OK;
}

int embed_image(struct embedder *m, const uint8_t *image, uint32_t rows, uint32_t columns, void *to, struct error *e)
{
    struct run *r = &m->run;
    const uint64_t side = (uint64_t)prompting_of(&r->batch)->image;
    const int32_t valid[2] = {(int32_t)rows, (int32_t)columns};
    const enum dtype kept = packed_dtype(m->about.type), made = tensor_at(&r->graph, m->output)->dtype;
    int rc = run_write_input(r, "images", 0, image, side * side * 3, e);
    if (!rc) rc = run_write_input(r, "image_valid", 0, valid, sizeof valid, e);
    if (!rc) rc = run_program(r, PROGRAM_STEP, e);
    if (rc || made == kept) return rc ? rc : run_read(r, m->output, to, e);
    int64_t n = tensor_elements(tensor_at(&r->graph, m->output));
    void *raw = mem_alloc((size_t)n * dtype_size(made));
    rc = run_read(r, m->output, raw, e);
    if (!rc) dtype_convert(to, kept, raw, made, n);
    mem_free(raw);
    return rc;
}

void embed_close(struct embedder *m)
{
    run_close(&m->run);
    config_free(&m->config);
    memset(m, 0, sizeof *m);
}
