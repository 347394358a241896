/*
 * predictor.c: see predictor.h.
 *
 * Coordinates. A prompt is in pixels of the stored image. Scaled by fit / stored it is in pixels of
 * the padded square, and (x + 1/2) / side in the model's coordinates, 0 to 1.
 */
#include "infer/predictor.h"

#include <math.h>
#include <string.h>

#include "models/model.h"
#include "infer/upsample.h"

/* --- a forward run of encoder or decoder --------------------------------------------------- */

int predictor_start(struct run *r, const struct config *c, const struct prompting *p, struct error *e)
{
    struct run_options o =
        {.forward = true, .B = 1, .T = 1, .own = p, .own_bytes = sizeof *p, .partial = p->part != PART_ALL};
    int rc = run_plan(r, c, &o, e);
    return rc ? rc : run_start(r, NULL, true, e);
}

int predictor_forward(struct run *r, struct error *e)
{
    struct step_block b = {.inv_count = {1}, .loss_scale = 1, .step = 1, .adam_t = 1};
    int rc = run_put_step(r, &b, e);
    return rc ? rc : run_program(r, PROGRAM_STEP, e);
}

int predictor_output(struct run *r, const char *name, float *to, struct error *e)
{
    id x = graph_find_output(&r->planned.graph, PROGRAM_STEP, name);
    const struct tensor *t = tensor_at(&r->planned.graph, x);
    if (t->dtype == DT_F32) return run_read(r, x, to, e);
    void *raw = mem_alloc(tensor_bytes(t));
    int rc = run_read(r, x, raw, e);
    if (!rc) dtype_convert(to, DT_F32, raw, t->dtype, tensor_elements(t));
    mem_free(raw);
    return rc;
}

int64_t predictor_output_elements(const struct run *r, const char *name)
{
    return tensor_elements(tensor_at(&r->planned.graph, graph_find_output(&r->planned.graph, PROGRAM_STEP, name)));
}

/* --- opening ------------------------------------------------------------------------------- */

static int check_model(const struct model *m, struct error *e)
{
    const struct port *pixels = model_port(m, "pixel_values");
    if (m->images && !m->masks)
        return error_set(e, PL_USAGE,
                         "a model of type %s predicts no masks: it answers in text, with `plimsoll generate --model "
                         "DIR --image FILE --prompt TEXT`",
                         m->family->model_type);
    if (!m->masks || !pixels)
        return error_set(e, PL_USAGE, "a model of type %s predicts no masks; expected a mask model, such as sam",
                         m->family->model_type);
    if (pixels->dim[1] != 3)
        return error_set(e, PL_USAGE, "the model takes images of %lld channels, expected 3: red, green, blue",
                         (long long)pixels->dim[1]);
    return PL_OK;
}

int predictor_model(struct predictor *a, const struct config *c, struct pixel_norm *norm, struct error *e)
{
    struct model m;
    int rc = config_open_model(c, &m, e);
    if (rc) return rc;
    rc = check_model(&m, e);
    if (rc) error_prepend(e, "%s", c->model_path ? c->model_path : c->model_preset);
    if (!rc) *norm = m.masks->norm;
    if (!rc && a->shape.side % m.masks->patch)
        rc = error_set(e, PL_USAGE,
                       "a side of %lld pixels (--side, or data.image_size of the model's run), expected a multiple of "
                       "the model's patch size %lld",
                       (long long)a->shape.side, (long long)m.masks->patch);
    if (!rc && !a->shape.side) a->shape.side = m.image;
    if (!rc) a->mask_side = m.masks->side(&m, a->shape.side);
    model_close(&m);
    return rc;
}

/* Runs the encoder and returns the image's embedding on the heap; the run itself is closed. */
static int encode(struct predictor *a, const struct config *c, const struct predictor_image *p,
                  const struct pixel_norm *norm, float **out, struct error *e)
{
    struct run r = {0};
    struct prompting prompting = {.image = a->shape.side, .masks = 1, .points = 1, .part = PART_IMAGE};
    const size_t side = (size_t)a->shape.side, bytes = 3 * side * side * sizeof(float);
    float *pixels = mem_alloc(bytes);
    predictor_fit(p, norm, (uint32_t)side, pixels, &a->fit_w, &a->fit_h);
    int rc = predictor_start(&r, c, &prompting, e);
    if (!rc) rc = run_write_input(&r, "pixel_values", 0, pixels, bytes, e);
    mem_free(pixels);
    if (!rc) rc = predictor_forward(&r, e);
    if (!rc) {
        *out = mem_alloc((size_t)predictor_output_elements(&r, "image_embeddings") * sizeof **out);
        rc = predictor_output(&r, "image_embeddings", *out, e);
        a->encoder_bytes = plan_arena(&r.planned.plan);
    }
    run_close(&r);
    return rc;
}

int predictor_decoder(struct predictor *a, const struct config *c, size_t fitted, struct error *e)
{
    const struct predictor_shape *s = &a->shape;
    struct prompting prompting = {.image = s->side,
                                  .masks = s->prompts,
                                  .points = s->points,
                                  .boxes = s->box,
                                  .single = s->single,
                                  .part = PART_REST};
    int rc = predictor_start(&a->run, c, &prompting, e);
    if (rc) return rc;
    a->candidates = predictor_output_elements(&a->run, "iou_scores") / s->prompts;
    a->logits = mem_alloc((size_t)predictor_output_elements(&a->run, "pred_masks") * sizeof *a->logits);
    a->scores = mem_alloc((size_t)(s->prompts * a->candidates) * sizeof *a->scores);
    a->fitted = mem_alloc(fitted * sizeof *a->fitted);
    a->decoder_bytes = plan_arena(&a->run.planned.plan);
    return PL_OK;
}

int predictor_see(struct predictor *a, const float *embedding, struct error *e)
{
    struct planned_input x;
    CHECK(planned_input(&a->run.planned, "image_embeddings", &x), "a decoder without an image");
    return run_write_input(&a->run, "image_embeddings", 0, embedding, x.sample, e);
}

int predictor_open(struct predictor *a, const struct config *c, const struct predictor_image *p,
                   const struct predictor_shape *shape, struct error *e)
{
    struct pixel_norm norm;
    float *embedding = NULL;
    CHECK(shape->prompts > 0 && (shape->points > 0 || shape->box), "a prompt without points and box");
    memset(a, 0, sizeof *a);
    a->shape = *shape;
    a->w = p->w;
    a->h = p->h;
    int rc = predictor_model(a, c, &norm, e);
    if (rc) return rc;
    rc = encode(a, c, p, &norm, &embedding, e);
    if (!rc) rc = predictor_decoder(a, c, (size_t)a->fit_w * a->fit_h, e);
    if (!rc) rc = predictor_see(a, embedding, e);
    mem_free(embedding);
    if (rc) predictor_close(a);
    return rc;
}

void predictor_close(struct predictor *a)
{
    run_close(&a->run);
    mem_free(a->logits);
    mem_free(a->scores);
    mem_free(a->fitted);
    memset(a, 0, sizeof *a);
}

/* --- prediction ------------------------------------------------------------------------------ */

static void to_model_coords(const struct predictor *a, const float from[2], float to[2])
{
    const struct model *m = &a->run.planned.model;
    const double side = m->masks->extent * (double)a->shape.side / (double)m->image;
    to[0] = (float)((from[0] * ((double)a->fit_w / a->w) + 0.5) / side);
    to[1] = (float)((from[1] * ((double)a->fit_h / a->h) + 0.5) / side);
}

/* Rows after the last prompt repeat it, because the program computes every row. */
static int put_points(struct predictor *a, const struct predictor_prompt *prompts, int64_t n, struct error *e)
{
    const int64_t M = a->shape.prompts, P = a->shape.points;
    float *coords = mem_alloc((size_t)(M * P * 2) * sizeof *coords);
    int32_t *kinds = mem_alloc((size_t)(M * P) * sizeof *kinds);
    for (int64_t i = 0; i < M; i++) {
        const struct predictor_prompt *q = &prompts[min_i64(i, n - 1)];
        for (int64_t k = 0; k < P; k++) {
            to_model_coords(a, q->points[k], coords + 2 * (i * P + k));
            kinds[i * P + k] = q->labels[k] ? POINT_FOREGROUND : POINT_BACKGROUND;
        }
    }
    int rc = run_write_input(&a->run, "input_points", 0, coords, (uint64_t)(M * P * 2) * sizeof *coords, e);
    if (!rc) rc = run_write_input(&a->run, "input_labels", 0, kinds, (uint64_t)(M * P) * sizeof *kinds, e);
    mem_free(coords);
    mem_free(kinds);
    return rc;
}

static int put_boxes(struct predictor *a, const struct predictor_prompt *prompts, int64_t n, struct error *e)
{
    const int64_t M = a->shape.prompts;
    float *corners = mem_alloc((size_t)(M * 4) * sizeof *corners);
    for (int64_t i = 0; i < M; i++) {
        const struct predictor_prompt *q = &prompts[min_i64(i, n - 1)];
        to_model_coords(a, q->box, corners + 4 * i);
        to_model_coords(a, q->box + 2, corners + 4 * i + 2);
    }
    int rc = run_write_input(&a->run, "input_boxes", 0, corners, (uint64_t)(M * 4) * sizeof *corners, e);
    mem_free(corners);
    return rc;
}

int predictor_run(struct predictor *a, const struct predictor_prompt *prompts, int64_t n, struct error *e)
{
    CHECK(n > 0 && n <= a->shape.prompts, "%lld prompts", (long long)n);
    int rc = a->shape.points ? put_points(a, prompts, n, e) : PL_OK;
    if (!rc && a->shape.box) rc = put_boxes(a, prompts, n, e);
    if (!rc) rc = predictor_forward(&a->run, e);
    if (!rc) rc = predictor_output(&a->run, "pred_masks", a->logits, e);
    if (!rc) rc = predictor_output(&a->run, "iou_scores", a->scores, e);
    for (int64_t i = 0; i < n * a->candidates && !rc; i++)
        if (!isfinite(a->scores[i]))
            rc = error_set(e, PL_FAIL, "the model predicts an IoU of %g; its weights are not usable",
                           (double)a->scores[i]);
    return rc;
}

int64_t predictor_best(const struct predictor *a, int64_t prompt)
{
    const float *s = a->scores + prompt * a->candidates;
    int64_t best = 0;
    for (int64_t k = 1; k < a->candidates; k++)
        if (s[k] > s[best]) best = k;
    return best;
}

/* --- masks at the image's size -------------------------------------------------------------- */

double predictor_mask(struct predictor *a, int64_t prompt, int64_t candidate, float offset, uint8_t *mask)
{
    const int64_t m = a->mask_side;
    const struct mask_view v =
        {.logits = m, .side = a->shape.side, .fit_w = a->fit_w, .fit_h = a->fit_h, .w = a->w, .h = a->h};
    return mask_upsample(&v, a->logits + (prompt * a->candidates + candidate) * m * m, a->fitted, offset, mask);
}
