/*
 * predictor.c: see predictor.h.
 *
 * Coordinates. A prompt is in pixels of the stored image. Scaled by fit / stored it is in pixels of
 * the square, and (x + 1/2) / side in the model's coordinates, 0 to 1. The image is padded to the
 * square, or stretched to it, as the model was trained.
 */
#include "infer/predictor.h"

#include <limits.h>
#include <math.h>

#include "batch/writer.h"
#include "models/model.h"
#include "data/images/resize.h"
#include "batch/feed.h"

/* --- masks at the size of the image ---------------------------------------------------------- */

/* The two of `n` source positions around output position `i` of `out`, and the weight of the second
 * (as align_corners=False in PyTorch). */
struct lerp {
    int64_t at, next;
    float weight;
};
static inline struct lerp lerp_at(int64_t i, int64_t n, int64_t out)
{
    float x = ((float)i + 0.5f) * ((float)n / (float)out) - 0.5f;
    if (x < 0) x = 0;
    int64_t at = min_i64((int64_t)x, n - 1);
    return (struct lerp){at, at + (at < n - 1), x - (float)at};
}

/* Interpolates [rows][columns] floats in rows of `stride`; computes the first w columns of result
 * row y. */
static void lerp_row(const float *from, int64_t rows, int64_t stride, const struct lerp *across, int64_t w, int64_t y,
                       int64_t of, float *to)
{
    const struct lerp down = lerp_at(y, rows, of);
    const float *a = from + down.at * stride, *b = from + down.next * stride;
    for (int64_t x = 0; x < w; x++) {
        const struct lerp u = across[x];
        float above = (1 - u.weight) * a[u.at] + u.weight * a[u.next],
              below = (1 - u.weight) * b[u.at] + u.weight * b[u.next];
        to[x] = (1 - down.weight) * above + down.weight * below;
    }
}

double mask_upsample(const struct mask_view *v, const float *logits, float *fitted, float offset, uint8_t *mask)
{
    const int64_t m = v->logits, side = v->side, fw = v->fit_w, fh = v->fit_h, w = v->w, h = v->h;
    struct lerp *fit = mem_alloc((size_t)fw * sizeof *fit), *whole = mem_alloc((size_t)w * sizeof *whole);
    uint64_t sure = 0, maybe = 0;
    for (int64_t x = 0; x < fw; x++) fit[x] = lerp_at(x, m, side);
    for (int64_t x = 0; x < w; x++) whole[x] = lerp_at(x, fw, w);
#pragma omp parallel for
    for (int64_t y = 0; y < fh; y++) lerp_row(logits, m, m, fit, fw, y, side, fitted + y * fw);
#pragma omp parallel reduction(+ : sure, maybe)
    {
        float *row = mem_alloc((size_t)w * sizeof *row);
#pragma omp for
        for (int64_t y = 0; y < h; y++) {
            lerp_row(fitted, fh, fw, whole, w, y, h, row);
            for (int64_t x = 0; x < w; x++) {
                mask[y * w + x] = row[x] > 0;
                sure += row[x] > offset;
                maybe += row[x] > -offset;
            }
        }
        mem_free(row);
    }
    mem_free(fit);
    mem_free(whole);
    return maybe ? (double)sure / (double)maybe : 0;
}

void logits_upsample(const float *logits, int64_t side, int64_t w, int64_t h, float *to)
{
    struct lerp *across = mem_alloc((size_t)w * sizeof *across);
    for (int64_t x = 0; x < w; x++) across[x] = lerp_at(x, side, w);
#pragma omp parallel for
    for (int64_t y = 0; y < h; y++) lerp_row(logits, side, side, across, w, y, h, to + y * w);
    mem_free(across);
}

/* --- a forward run of encoder or decoder --------------------------------------------------- */

int predictor_start(struct run *r, const struct config *c, const struct contents *holds, struct error *e)
{
    struct run_options o =
        {.forward = true, .B = 1, .T = 1, .holds = holds, .partial = holds->part != PART_ALL || holds->prompts.bank};
    TRY(run_plan(r, c, &o, e));
    return run_start(r, NULL, true, e);
}

int predictor_forward(struct run *r, struct error *e)
{
    struct step_block b = {.inv_count = {1}, .loss_scale = 1, .step = 1, .adam_t = 1};
    TRY(run_put_step(r, &b, e));
    return run_program(r, PROGRAM_STEP, e);
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

/* --- the image ------------------------------------------------------------------------------- */

void predictor_fit(const struct image *p, const struct pixel_norm *n, uint32_t side, bool stretched, float *to,
                   uint32_t *fit_w, uint32_t *fit_h)
{
    resize_canvas(p->width, p->height, side, stretched, fit_w, fit_h);
    uint8_t *small = resize_image(p->rgb, p->width, p->height, *fit_w, *fit_h);
    memset(to, 0, (size_t)3 * side * side * sizeof *to);
    for (uint32_t c = 0; c < 3; c++) {
        float value[256];
        for (int v = 0; v < 256; v++) value[v] = (float)((v * n->scale - n->mean[c]) / n->std[c]);
        for (uint32_t y = 0; y < *fit_h; y++)
            for (uint32_t x = 0; x < *fit_w; x++)
                to[((size_t)c * side + y) * side + x] = value[small[((size_t)y * *fit_w + x) * 3 + c]];
    }
    mem_free(small);
}

void predictor_to_pixels(uint32_t side, bool stretched, uint32_t w, uint32_t h, const float from[2], float to[2])
{
    uint32_t fit_w, fit_h;
    resize_canvas(w, h, side, stretched, &fit_w, &fit_h);
    to[0] = fminf(fmaxf((from[0] * (float)side - 0.5f) * (float)w / (float)fit_w, 0), (float)w);
    to[1] = fminf(fmaxf((from[1] * (float)side - 0.5f) * (float)h / (float)fit_h, 0), (float)h);
}

/* --- opening ------------------------------------------------------------------------------- */

static int check_model(const struct model *m, int64_t side, struct mask_canvas *out, struct error *e)
{
    const struct port *pixels = model_port(m, "pixel_values");
    const bool masks = model_canvas(m, side, out);
    if (m->encoder && !masks)
        return error_set(e, PL_USAGE,
                         "a model of type %s predicts no masks: it answers in text, with `plimsoll generate --model "
                         "DIR --image FILE --prompt TEXT`",
                         m->family->model_type);
    if (!masks || !pixels)
        return error_set(e, PL_USAGE, "a model of type %s predicts no masks; expected a mask model, such as sam",
                         m->family->model_type);
    if (pixels->dim[1] != 3)
        return error_set(e, PL_USAGE, "the model takes images of %lld channels, expected 3: red, green, blue",
                         (long long)pixels->dim[1]);
    return PL_OK;
}

int predictor_open_model(struct model *m, const struct config *c, int64_t side, struct mask_canvas *out,
                         struct error *e)
{
    TRY(config_open_model(c, m, e));
    int rc = check_model(m, side, out, e);
    if (rc) error_prepend(e, "%s", c->model_path ? c->model_path : c->model_preset);
    if (!rc && side % out->patch)
        rc = error_set(e, PL_USAGE,
                       "a side of %lld pixels (--side, or data.image_size of the model's run), expected a multiple of "
                       "the model's patch size %lld",
                       (long long)side, (long long)out->patch);
    if (rc) model_close(m);
    return rc;
}

/* Checks the model before anything is planned; sets the side of the shape. */
static int open_model(struct predictor *a, const struct config *c, struct error *e)
{
    struct model m;
    TRY(predictor_open_model(&m, c, a->shape.side, &a->canvas, e));
    a->shape.side = a->canvas.side;
    model_close(&m);
    return PL_OK;
}

/* Runs the encoder and returns the image's embedding on the heap; the run itself is closed. */
static int encode(struct predictor *a, const struct config *c, const struct image *p, float **out, struct error *e)
{
    struct run r = {0};
    struct contents holds = {.part = PART_IMAGE, .prompts = {.image = a->shape.side, .masks = 1, .points = 1}};
    const size_t side = (size_t)a->shape.side;
    float *pixels = mem_alloc(3 * side * side * sizeof *pixels);
    predictor_fit(p, &a->canvas.norm, (uint32_t)side, a->canvas.stretched, pixels, &a->fit_w, &a->fit_h);
    int rc = predictor_start(&r, c, &holds, e);
    if (!rc) rc = batch_write_once(&r, 0, &(struct batch_record){.is = {[ROW_PIXELS] = {pixels}}}, e);
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

/* Plans and starts the decoder; `fitted` pixels of the square are the most that an image covers. */
static int open_decoder(struct predictor *a, const struct config *c, size_t fitted, struct error *e)
{
    const struct predictor_shape *s = &a->shape;
    const struct contents holds = {.part = PART_REST,
                                   .prompts = {.image = s->side, .masks = s->prompts, .points = s->points,
                                               .boxes = s->box, .single = s->single, .stable = s->single}};
    int rc = predictor_start(&a->run, c, &holds, e);
    if (rc) return rc;
    a->candidates = predictor_output_elements(&a->run, "iou_scores") / s->prompts;
    a->logits = mem_alloc((size_t)predictor_output_elements(&a->run, "pred_masks") * sizeof *a->logits);
    a->scores = mem_alloc((size_t)(s->prompts * a->candidates) * sizeof *a->scores);
    a->fitted = mem_alloc(fitted * sizeof *a->fitted);
    a->decoder_bytes = plan_arena(&a->run.planned.plan);
    return PL_OK;
}

/* Gives the decoder the embedding of an image. */
static int see(struct predictor *a, const float *embedding, struct error *e)
{
    return batch_write_once(&a->run, 0, &(struct batch_record){.is = {[ROW_EMBEDDINGS] = {embedding}}}, e);
}

int predictor_open(struct predictor *a, const struct config *c, const struct image *p,
                   const struct predictor_shape *shape, struct error *e)
{
    float *embedding = NULL;
    CHECK(shape->prompts > 0 && (shape->points > 0 || shape->box), "a prompt without points and box");
    memset(a, 0, sizeof *a);
    a->shape = *shape;
    a->w = p->width, a->h = p->height;
    int rc = open_model(a, c, e);
    if (rc) return rc;
    rc = encode(a, c, p, &embedding, e);
    if (!rc) rc = open_decoder(a, c, (size_t)a->fit_w * a->fit_h, e);
    if (!rc) rc = see(a, embedding, e);
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

void predictor_to_model(const struct mask_canvas *x, const uint32_t fit[2], uint32_t w, uint32_t h, const float from[2],
                        float to[2])
{
    to[0] = (float)((from[0] * ((double)fit[0] / w) + 0.5) / x->extent);
    to[1] = (float)((from[1] * ((double)fit[1] / h) + 0.5) / x->extent);
}

static void to_model_coords(const struct predictor *a, const float from[2], float to[2])
{
    predictor_to_model(&a->canvas, (uint32_t[]){a->fit_w, a->fit_h}, a->w, a->h, from, to);
}

/* Writes the points and boxes. Rows after the last prompt repeat it, because the program computes
 * every row. */
static int put_prompts(struct predictor *a, const struct predictor_prompt *prompts, int64_t n, struct error *e)
{
    const int64_t M = a->shape.prompts, P = a->shape.points;
    float *coords = mem_alloc((size_t)(M * P * 2) * sizeof *coords),
          *corners = mem_alloc((size_t)(M * 4) * sizeof *corners);
    int32_t *kinds = mem_alloc((size_t)(M * P) * sizeof *kinds);
    for (int64_t i = 0; i < M; i++) {
        const struct predictor_prompt *q = &prompts[min_i64(i, n - 1)];
        for (int64_t k = 0; k < P; k++) {
            to_model_coords(a, q->points[k], coords + 2 * (i * P + k));
            kinds[i * P + k] = q->labels[k] ? POINT_FOREGROUND : POINT_BACKGROUND;
        }
        to_model_coords(a, q->box, corners + 4 * i);
        to_model_coords(a, q->box + 2, corners + 4 * i + 2);
    }
    const struct batch_record row = {
        .is = {[ROW_POINTS] = {coords}, [ROW_POINT_KINDS] = {kinds}, [ROW_BOXES] = {corners}}};
    int rc = batch_write_once(&a->run, 0, &row, e);
    mem_free(coords), mem_free(kinds), mem_free(corners);
    return rc;
}

int predictor_run(struct predictor *a, const struct predictor_prompt *prompts, int64_t n, struct error *e)
{
    CHECK(n > 0 && n <= a->shape.prompts, "%lld prompts", (long long)n);
    int rc = put_prompts(a, prompts, n, e);
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

struct mask_view mask_view_of(int64_t logits, int64_t side, bool stretched, uint32_t w, uint32_t h)
{
    uint32_t fit_w, fit_h;
    if (stretched) return (struct mask_view){logits, logits, logits, logits, w, h};
    resize_longest(w, h, (uint32_t)side, &fit_w, &fit_h);
    return (struct mask_view){logits, side, fit_w, fit_h, w, h};
}

double predictor_mask(struct predictor *a, int64_t prompt, int64_t candidate, float offset, uint8_t *mask)
{
    const int64_t m = a->canvas.cells;
    const struct mask_view v = mask_view_of(m, a->canvas.side, a->canvas.stretched, a->w, a->h);
    return mask_upsample(&v, a->logits + (prompt * a->candidates + candidate) * m * m, a->fitted, offset, mask);
}

/* --- many images ------------------------------------------------------------------------------ */

/* The decoders are planned first, because they are small; the encoder has the rest of the
 * budget. */

/* Copies the configuration with what is left of its budget. */
static int rest_of(const struct config *c, uint64_t used, struct config *out, struct error *e)
{
    *out = *c;
    if (c->memory_budget.kind != BUDGET_BYTES) return PL_OK;
    if (c->memory_budget.bytes <= used)
        return error_set(e, PL_NOFIT, "does not fit: the decoders take %llu bytes, the budget is %llu",
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
        rc = open_model(a, c, e);
        if (!rc) rc = rest_of(c, *used, &s->config[i], e);
        if (!rc) rc = open_decoder(a, &s->config[i], (size_t)(a->shape.side * a->shape.side), e);
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
    const struct contents holds = {.part = PART_IMAGE, .prompts = {.image = side, .masks = 1, .points = 1}};
    if (!rc) rc = rest_of(c, used, &s->config[n], e);
    if (!rc) rc = predictor_start(&s->encoder, &s->config[n], &holds, e);
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

int predictors_encode(struct predictors *s, const struct image *p, struct error *e)
{
    const size_t side = (size_t)s->of[0].shape.side;
    uint32_t fit_w, fit_h;
    predictor_fit(p, &s->of[0].canvas.norm, (uint32_t)side, s->of[0].canvas.stretched, s->pixels, &fit_w, &fit_h);
    int rc = batch_write_once(&s->encoder, 0, &(struct batch_record){.is = {[ROW_PIXELS] = {s->pixels}}}, e);
    if (!rc) rc = predictor_forward(&s->encoder, e);
    if (!rc) rc = predictor_output(&s->encoder, "image_embeddings", s->embedding, e);
    for (uint32_t i = 0; i < s->n && !rc; i++) {
        struct predictor *a = &s->of[i];
        a->w = p->width, a->h = p->height, a->fit_w = fit_w, a->fit_h = fit_h;
        rc = see(a, s->embedding, e);
    }
    return rc;
}

/* --- how images are read ---------------------------------------------------------------------- */

/* Removes the last component of a path and returns it; NULL: there is none. */
static const char *split_last(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash || slash == path) return NULL;
    *slash = 0;
    return slash + 1;
}

/* Finds the configuration of the run whose folder holds the model: RUN/config.yaml, RUN/model,
 * RUN/checkpoints/step-N. */
static bool find_run_config(const char *model, struct text *config)
{
    char path[PATH_MAX];
    if (!realpath(model, path)) return false;
    const char *name = split_last(path), *parent;
    if (!name) return false;
    if (strcmp(name, "model") && (!(parent = split_last(path)) || strcmp(parent, "checkpoints"))) return false;
    text_printf(config, "%s/config.yaml", path);
    return file_exists(config->at);
}

/* Takes what was not given from the configuration of the run. */
static void read_trained(struct image_reading *out, const struct config *given, const struct config *run)
{
    const struct slice_options slices = feed_slices(run);
    if (!out->side) out->side = run->data_image_size;
    if (out->range.kind == RANGE_AUTO) out->range = feed_range(run);
    if (!config_given(given, KEY_data_slice_axis)) out->slices.axis = slices.axis;
    if (!config_given(given, KEY_data_neighbours)) out->slices.neighbours = slices.neighbours;
    if (config_given(given, KEY_data_modalities)) return;
    /* those of the run are freed with its configuration */
    for (uint32_t i = 0; i < slices.n_modalities && i < 3; i++) out->modalities[i] = slices.modalities[i];
    out->slices.modalities = out->modalities, out->slices.n_modalities = slices.n_modalities;
}

void image_reading_find(struct image_reading *out, const struct config *c)
{
    const char *model = c->adapter_path ? c->adapter_path : c->model_path;
    struct text path = {0};
    struct config run;
    struct error e;
    out->range = feed_range(c), out->slices = feed_slices(c);
    if (c->model_path && find_run_config(model, &path)) {
        config_init(&run);
        if (config_read(&run, path.at, &e))
            log_warn("the image size that %s was trained at is unknown: %s", model, e.text);
        else read_trained(out, c, &run);
        config_free(&run);
    }
    text_free(&path);
}
