/*
 * ask.c: see ask.h.
 */
#include "infer/ask.h"

#include <math.h>

#include "batch/writer.h"
#include "models/model.h"
#include "data/images/image_processor.h"
#include "infer/sample.h"

/* --- the question ----------------------------------------------------------------------------- */

/* Checks that the model answers with masks, and finds its tokenizer: that of a model that was put
 * together from two folders is in that of LLaVA. */
static int check_model(struct ask *a, const struct config *c, struct error *e)
{
    struct model m;
    const char *name = c->model_path ? c->model_path : c->model_preset;
    int rc = config_open_model(c, &m, e);
    if (rc) return rc;
    if (!model_is(&m, "questions"))
        rc = error_set(
            e, PL_USAGE,
            "%s is a %s, which answers no question with a mask; expected a prs_med, or a prompt of points or a box",
            name, m.family->model_type);
    else if (!c->data_tokenizer && *model_reader(&m).path)
        a->config.data_tokenizer = a->tokenizer = mem_string(model_reader(&m).path);
    a->template = m.template;
    model_close(&m);
    return rc;
}

static int read_ends(struct ask *a, struct error *e)
{
    struct generation_config folder = {0};
    int rc = generation_config_read(&folder, a->config.model_path, e);
    for (uint32_t i = 0; i < folder.eos.n && !rc; i++) vec_push(&a->ends, folder.eos.at[i]);
    if (tokenizer_eos(a->prompts.tokenizer) >= 0) vec_push(&a->ends, tokenizer_eos(a->prompts.tokenizer));
    generation_config_free(&folder);
    return rc;
}

int ask_open(struct ask *a, const struct config *c, const char *path, const char *question, struct error *e)
{
    *a = (struct ask){.config = *c};
    if (check_model(a, c, e)) return e->code;
    const struct image_scope scope = prompts_scope(&a->config, NULL);
    int rc = prompts_open(&a->prompts, &a->config, &scope, e);
    if (!rc && !a->prompts.template) {
        prompts_close(&a->prompts);
        a->config.data_template = (char *)a->template;
        rc = prompts_open(&a->prompts, &a->config, &scope, e);
    }
    if (!rc) rc = ask_again(a, path, question, e);
    return rc ? rc : read_ends(a, e);
}

int ask_again(struct ask *a, const char *path, const char *question, struct error *e)
{
    struct media slots;
    names_free(&a->images);
    token_list_free(&a->tokens);
    a->ids.n = 0;
    vec_push(&a->images, mem_string(path));
    int rc = prompts_ask(&a->prompts, question, &a->images, &a->tokens, &slots, e);
    for (uint32_t i = 0; i < a->tokens.n && !rc; i++) vec_push(&a->ids, a->tokens.at[i].id);
    return rc;
}

void ask_close(struct ask *a)
{
    prompts_close(&a->prompts);
    names_free(&a->images);
    token_list_free(&a->tokens);
    vec_free(&a->ids);
    vec_free(&a->ends);
    mem_free(a->tokenizer);
    *a = (struct ask){0};
}

/* --- the mask --------------------------------------------------------------------------------- */

/* Returns the image on the canvas of TinySAM's encoder, on the heap. */
static uint8_t *make_canvas(const struct image *image, struct predictor *out)
{
    static const struct pixel_norm bytes = {1, {0, 0, 0}, {1, 1, 1}};
    const size_t side = (size_t)out->shape.side, n = side * side;
    float *fitted = mem_alloc(3 * n * sizeof *fitted);
    uint8_t *canvas = mem_alloc(3 * n);
    predictor_fit(image, &bytes, (uint32_t)side, false, fitted, &out->fit_w, &out->fit_h);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < 3; k++) canvas[3 * i + k] = (uint8_t)lroundf(fminf(fmaxf(fitted[k * n + i], 0), 255));
    mem_free(fitted);
    return canvas;
}

/* Returns the image as the language model's tower takes it, on the heap. */
static uint8_t *make_pixels(const struct image_processor *p, const struct image *image)
{
    uint32_t h, w;
    image_processor_size(p, &h, &w);
    const size_t room = image_processor_scratch(p, image->width, image->height);
    void *scratch = mem_alloc(room + 1);
    uint8_t *pixels = mem_alloc(3ull * h * w);
    image_processor_run(p, image->rgb, image->width, image->height, scratch, room, pixels);
    mem_free(scratch);
    return pixels;
}

/* Writes the image and a row of T tokens: those behind the question are not seen. */
static int put_row(struct run *r, const struct ask *a, int64_t T, const struct image *image, struct predictor *out,
                   struct error *e)
{
    const size_t bytes = (size_t)T * sizeof(int32_t);
    int32_t *ids = mem_alloc(bytes), *labels = mem_alloc(bytes);
    uint8_t *canvas = make_canvas(image, out);
    uint8_t *pixels = make_pixels(&a->prompts.images.processor, image);
    const int32_t question[2] = {0, (int32_t)a->ids.n}, size[2] = {(int32_t)out->fit_h, (int32_t)out->fit_w};
    memcpy(ids, a->ids.at, a->ids.n * sizeof *ids);
    for (int64_t i = 0; i < T; i++) labels[i] = -100;
    const struct batch_record row = {.is = {[ROW_IDS] = {ids},
                                            [ROW_LABELS] = {labels},
                                            [ROW_PIXELS] = {pixels},
                                            [ROW_IMAGES] = {canvas},
                                            [ROW_IMAGE_VALID] = {size},
                                            [ROW_QUESTION] = {question}}};
    int rc = batch_write_once(r, 0, &row, e);
    mem_free(ids), mem_free(labels), mem_free(canvas), mem_free(pixels);
    return rc;
}

int ask_masks_open(struct ask_masks *m, const struct ask *a, int64_t T, struct error *e)
{
    struct contents holds = {.media = {.images = 1}};
    const struct run_options o = {.forward = true, .B = 1, .T = T, .holds = &holds};
    *m = (struct ask_masks){.T = T};
    TRY(image_source_table(&holds.pixels, &a->prompts.images, &holds.media, &m->memory, e));
    int rc = run_plan(&m->run, &a->config, &o, e);
    return rc ? rc : run_start(&m->run, NULL, true, e);
}

void ask_masks_close(struct ask_masks *m)
{
    run_close(&m->run);
    bump_free(&m->memory);
    *m = (struct ask_masks){0};
}

int ask_masks_run(struct ask_masks *m, const struct ask *a, const struct image *image, struct predictor *out,
                  struct error *e)
{
    const struct step_block b = {.loss_scale = 1, .step = 1, .adam_t = 1};
    struct run *r = &m->run;
    const id logits = graph_find_output(&r->planned.graph, PROGRAM_STEP, "pred_masks");
    const int64_t side = model_port(&r->planned.model, "images")->dim[1];
    *out = (struct predictor){.w = image->width,
                              .h = image->height,
                              .candidates = 1,
                              .shape = {.side = side},
                              .canvas = {.side = side, .cells = tensor_at(&r->planned.graph, logits)->dim[1]}};
    int rc = put_row(r, a, m->T, image, out, e);
    if (!rc) rc = run_put_step(r, &b, e);
    if (!rc) rc = run_program(r, PROGRAM_STEP, e);
    if (!rc) {
        out->logits = mem_alloc((size_t)predictor_output_elements(r, "pred_masks") * sizeof *out->logits);
        rc = predictor_output(r, "pred_masks", out->logits, e);
    }
    if (!rc) out->fitted = mem_alloc((size_t)out->fit_w * out->fit_h * sizeof *out->fitted);
    if (rc) ask_mask_free(out);
    return rc;
}

int ask_mask(struct ask *a, const struct image *image, struct predictor *out, struct error *e)
{
    struct ask_masks m;
    int rc = ask_masks_open(&m, a, a->ids.n, e);
    if (!rc) rc = ask_masks_run(&m, a, image, out, e);
    if (!rc) a->bytes = plan_arena(&m.run.planned.plan);
    ask_masks_close(&m);
    return rc;
}

void ask_mask_free(struct predictor *out)
{
    mem_free(out->logits);
    mem_free(out->fitted);
    *out = (struct predictor){0};
}

/* --- the answer ------------------------------------------------------------------------------- */

struct generate_options ask_options(const struct ask *a, int64_t most)
{
    return (struct generate_options){.sampling = {.repetition_penalty = 1, .top_p = 1},
                                     .most = most,
                                     .ends = a->ends.at,
                                     .n_ends = a->ends.n,
                                     .images = &a->prompts.images,
                                     .tokenizer = a->prompts.tokenizer};
}

int ask_answer(struct ask *a, int64_t most, struct answer *out, struct error *e)
{
    const struct run_generation o = {.cache = (int64_t)a->ids.n + most, .prompt = a->ids.n, .answer = most};
    struct generator g = {0};
    int rc = generator_plan(&g, &a->config, &o, &a->prompts.images, &(struct media){.images = 1}, e);
    if (!rc) rc = generator_start(&g, e);
    if (!rc) {
        const struct generate_options options = ask_options(a, most);
        struct generate run;
        generate_open(&run, &g, &options);
        rc = generate_answer(&run, &(struct prompt){a->ids.at, a->ids.n, a->images.at, a->images.n}, out, e);
        generate_close(&run);
    }
    generator_close(&g);
    return rc;
}
