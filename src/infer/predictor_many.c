/*
 * predictor_many.c: mask prediction for many images with one load of the model: see predictor.h.
 *
 * The decoders are planned first, because they are small; the encoder has the rest of the budget.
 */
#include <string.h>

#include "infer/predictor.h"

/* The configuration with what is left of its budget. */
static int rest_of(const struct config *c, uint64_t used, struct config *out, struct error *e)
{
    *out = *c;
    if (c->memory_budget.kind != BUDGET_BYTES) return PL_OK;
    if (c->memory_budget.bytes <= used)
        return error_set(e, PL_NOFIT, "does not fit: the decoders alone take %llu bytes, the budget is %llu",
                         (unsigned long long)used, (unsigned long long)c->memory_budget.bytes);
    out->memory_budget.bytes -= used;
    return PL_OK;
}

static int open_decoders(struct predictors *s, const struct config *c, const struct predictor_shape *shapes, uint32_t n,
                         uint64_t *used, struct error *e)
{
    int rc = PL_OK;
    for (uint32_t i = 0; i < n && !rc; i++) {
        struct predictor *a = &s->of[i];
        a->shape = shapes[i];
        rc = predictor_model(a, c, &s->norm, e);
        if (!rc) rc = rest_of(c, *used, &s->config[i], e);
        if (!rc) rc = predictor_decoder(a, &s->config[i], (size_t)(a->shape.side * a->shape.side), e);
        *used += a->decoder_bytes;
        s->n = i + 1;
    }
    return rc;
}

int predictors_open(struct predictors *s, const struct config *c, const struct predictor_shape *shapes, uint32_t n,
                    struct error *e)
{
    CHECK(n && n <= PREDICTORS_MOST, "%u shapes of prompts", n);
    uint64_t used = 0;
    memset(s, 0, sizeof *s);
    s->config = mem_alloc((n + 1) * sizeof *s->config);
    int rc = open_decoders(s, c, shapes, n, &used, e);
    const int64_t side = s->of[0].shape.side;
    const struct prompting prompting = {.image = side, .masks = 1, .points = 1, .part = PART_IMAGE};
    if (!rc) rc = rest_of(c, used, &s->config[n], e);
    if (!rc) rc = predictor_start(&s->encoder, &s->config[n], &prompting, e);
    if (!rc) {
        s->pixels = mem_alloc((size_t)(3 * side * side) * sizeof *s->pixels);
        s->embedding =
            mem_alloc((size_t)predictor_output_elements(&s->encoder, "image_embeddings") * sizeof *s->embedding);
    } else predictors_close(s);
    return rc;
}

void predictors_close(struct predictors *s)
{
    for (uint32_t i = 0; i < s->n; i++) predictor_close(&s->of[i]);
    run_close(&s->encoder);
    mem_free(s->pixels);
    mem_free(s->embedding);
    mem_free(s->config);
    memset(s, 0, sizeof *s);
}

int predictors_encode(struct predictors *s, const struct predictor_image *p, struct error *e)
{
    const size_t side = (size_t)s->of[0].shape.side;
    uint32_t fit_w, fit_h;
    predictor_fit(p, &s->norm, (uint32_t)side, s->pixels, &fit_w, &fit_h);
    int rc = run_write_input(&s->encoder, "pixel_values", 0, s->pixels, 3 * side * side * sizeof *s->pixels, e);
    if (!rc) rc = predictor_forward(&s->encoder, e);
    if (!rc) rc = predictor_output(&s->encoder, "image_embeddings", s->embedding, e);
    for (uint32_t i = 0; i < s->n && !rc; i++) {
        struct predictor *a = &s->of[i];
        a->w = p->w, a->h = p->h, a->fit_w = fit_w, a->fit_h = fit_h;
        rc = predictor_see(a, s->embedding, e);
    }
    return rc;
}
