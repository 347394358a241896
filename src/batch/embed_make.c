/*
 * embed_make.c: runs the encoder of a model on images, one after the other (see embed.h).
 *
 * It is a run like any other, forward only, with the same image bytes as input: its program is
 * training's own program up to the embedding.
 */
#include "batch/embed.h"

#include "batch/model_images.h"
#include "batch/writer.h"
#include "folder/transfer.h"
#include "models/image_grid.h"
#include "models/images.h"
#include "models/masks.h"
#include "models/prs_med.h"

int embed_config(struct config *c, const char *folder, const char *dtype, const struct names *set, struct error *e)
{
    config_init(c);
    int rc = config_assign(c, "model.path", folder, e);
    for (uint32_t i = 0; i < set->n && !rc; i++) rc = config_set(c, set->at[i], e);
    if (!rc && dtype && strcmp(dtype, "f32") && strcmp(dtype, "bf16"))
        rc = error_set(e, PL_USAGE, "--embeddings-dtype %s: expected f32 or bf16", dtype);
    if (!rc && dtype) rc = config_assign(c, "memory.precision", dtype, e);
    /* as in the runs on the store: memory.quantize is for frozen weights */
    if (!rc) rc = config_assign(c, "model.freeze", "*", e);
    return rc ? rc : config_check_read(c, "data pack", "model.* data.* memory.* device.*", e);
}

static int check_model(const struct model *m, const char *folder, int64_t side, struct error *e)
{
    if (!m->encoder)
        return error_set(e, PL_USAGE,
                         "%s: a %s has no image embeddings; expected a mask model, such as sam, or a model of images "
                         "and text, such as llava",
                         folder, m->family->model_type);
    if (prs_model(m) || m->whole == WHOLE_CHOOSES)
        return error_set(e, PL_USAGE,
                         "%s: a %s takes the pixels of its images besides the embeddings of its vision tower: it is "
                         "trained on images",
                         folder, m->family->model_type);
    if (m->masks && side % m->masks->patch)
        return error_set(e, PL_USAGE,
                         "%s: the image size %lld is not divisible by the patch size %lld; give another --size", folder,
                         (long long)side, (long long)m->masks->patch);
    return PL_OK;
}

int embed_model(const struct config *c, const char *folder, int64_t *side, struct model *m, struct error *e)
{
    TRY(config_open_model(c, m, e));
    if (!*side || (m->images && !m->images->grids)) *side = m->image;
    const int rc = check_model(m, folder, *side, e);
    if (rc) model_close(m);
    return rc;
}

/* Finds the table of the pixels that the tower of a language model takes. */
static int find_table(const struct config *c, const struct model *m, struct bump *memory, struct contents *out,
                      struct error *e)
{
    struct patch_rules rules;
    struct image_reader_options o = {0};
    if (m->images->grids) TRY(embed_rules(c, m, &rules, e));
    else TRY(model_images_processor(&o.processor, m, e));
    if (m->images->grids) o.patches = &rules;
    return model_images_table(&out->pixels, &o, &out->media, memory, e);
}

/* Finds what a batch holds that builds only the encoder; side 0: the model's. */
static int find_contents(const struct config *c, const char *folder, int64_t *side, struct bump *memory,
                         struct contents *out, struct error *e)
{
    struct model m;
    TRY(embed_model(c, folder, side, &m, e));
    *out = embed_contents(&m, *side);
    const int rc = m.images ? find_table(c, &m, memory, out, e) : PL_OK;
    model_close(&m);
    return rc;
}

static int start(struct embedder *m, const char *folder, int64_t side, struct error *e)
{
    struct run *r = &m->run;
    struct run_options o = {.forward = true, .B = 1, .T = 1, .partial = true};
    struct step_block b = {.inv_count = {1}, .loss_scale = 1, .step = 1, .adam_t = 1};
    struct contents holds;
    int rc = find_contents(&m->config, folder, &side, &m->memory, &holds, e);
    if (rc) return rc;
    o.holds = &holds;
    rc = run_plan(r, &m->config, &o, e);
    if (!rc) rc = run_start(r, NULL, true, e);
    if (!rc) rc = run_put_step(r, &b, e);
    const bool any_size = !rc && images_grids(&r->planned.model); /* the description is that of one token */
    if (!rc) rc = embed_describe(&m->config, &r->planned.model, any_size ? 0 : side, &m->about, e);
    if (rc) return rc;
    m->side = side;
    m->output = graph_find_output(&r->planned.graph, PROGRAM_STEP, "image_embeddings");
    m->about.type = settings_dtype(&r->planned.plan.settings) == DT_BF16 ? PACKED_BF16 : PACKED_F32;
    m->bytes = packed_embedding_bytes(&m->about);
    snprintf(m->about.model, sizeof m->about.model, "%s", folder);
    CHECK(tensor_elements(tensor_at(&r->planned.graph, m->output)) * dtype_size(packed_dtype(m->about.type)) %
              (int64_t)m->bytes == 0);
    return PL_OK;
}

int embed_open(struct embedder *m, const char *folder, int64_t side, const char *dtype, const struct names *set,
               struct error *e)
{
    memset(m, 0, sizeof *m);
    int rc = embed_config(&m->config, folder, dtype, set, e);
    if (!rc) rc = start(m, folder, side, e);
    if (rc) embed_close(m);
    return rc ? error_prepend(e, "--embeddings") : PL_OK;
}

/* Runs the encoder on what was written, and reads the first n embeddings. */
static int encode(struct embedder *m, uint32_t n, void *to, struct error *e)
{
    struct run *r = &m->run;
    const enum dtype kept = packed_dtype(m->about.type), made = tensor_at(&r->planned.graph, m->output)->dtype;
    const int64_t elements = (int64_t)(n * (m->bytes / dtype_size(kept)));
    int rc = run_program(r, PROGRAM_STEP, e);
    if (rc || made == kept) return rc ? rc : run_read_first(r, m->output, n * m->bytes, to, e);
    void *raw = mem_alloc((size_t)elements * dtype_size(made));
    rc = run_read_first(r, m->output, (uint64_t)elements * dtype_size(made), raw, e);
    if (!rc) dtype_convert(to, kept, raw, made, elements);
    mem_free(raw);
    return rc;
}

int embed_image(struct embedder *m, const uint8_t *image, uint32_t rows, uint32_t columns, void *to, struct error *e)
{
    const int32_t valid[2] = {(int32_t)rows, (int32_t)columns};
    const struct batch_record row = {.is = {[ROW_IMAGES] = {image}, [ROW_IMAGE_VALID] = {valid}}};
    int rc = batch_write_once(&m->run, 0, &row, e);
    return rc ? rc : encode(m, 1, to, e);
}

int embed_pixels(struct embedder *m, const uint8_t *pixels, void *to, struct error *e)
{
    int rc = batch_write_once(&m->run, 0, &(struct batch_record){.is = {[ROW_PIXELS] = {pixels}}}, e);
    return rc ? rc : encode(m, 1, to, e);
}

int embed_patches(struct embedder *m, const uint8_t *patches, struct image_grid grid, void *to, struct error *e)
{
    const struct grid_model *g = images_grids(&m->run.planned.model);
    const int64_t n = grid_patches(&grid), unit = g->merge * g->merge;
    const size_t each = m->bytes / (size_t)unit;
    const struct batch_record row = {.is = {[ROW_PIXELS] = {patches}}, .grids = &grid, .n_grids = 1};
    TRY(batch_write_once(&m->run, 0, &row, e));
    char *outputs = mem_alloc((size_t)n * each);
    int32_t *order = mem_alloc((size_t)n * sizeof *order);
    int rc = encode(m, (uint32_t)(n / unit), outputs, e);
    grid_lay_out(g, &grid, 1, n, &(struct grid_row){.order = order});
    for (int64_t p = 0; p < n && !rc; p++)
        memcpy((char *)to + (size_t)order[p] * each, outputs + (size_t)p * each, each);
    mem_free(order);
    mem_free(outputs);
    return rc;
}

int embed_finite(const struct embedder *m, const void *embedding, const char *name, struct error *e)
{
    const enum dtype t = packed_dtype(m->about.type);
    if (transfer_nonfinite(embedding, t, (int64_t)(m->bytes / dtype_size(t))) < 0) return PL_OK;
    return error_set(e, PL_USAGE, "the embedding of %.200s has NaN or infinite values; check the weights of %s", name,
                     m->about.model);
}

void embed_close(struct embedder *m)
{
    run_close(&m->run);
    config_free(&m->config);
    bump_free(&m->memory);
    memset(m, 0, sizeof *m);
}
