/*
 * tracker.c: see tracker.h.
 *
 * The bank. A ring holds the last memories and another the last pointers, by the number of their
 * frame; those of prompted frames are kept. Tracking backwards begins with what the first frames
 * after the beginning left: as in the reference, a frame sees the tracked frames on its other side.
 */
#include "infer/tracker.h"

#include <math.h>

#include "base/progress.h"
#include "batch/writer.h"
#include "models/masks.h"

/* What is kept of a prompted frame. */
struct kept {
    const struct tracker_prompt *prompt;
    uint16_t *memory; /* [values] bf16 */
    float *pointer;   /* [width] */
    float *logits;    /* [side][side] */
    float shown;
};

/* What the last frames left: of frame f at slot f % slots. */
struct ring {
    int64_t slots, values; /* values of an object on a frame */
    uint32_t element;      /* bytes of one */
    struct {
        int64_t *frame;    /* [slots][objects]; below 0: none */
        char *at;          /* [slots][objects][values] */
    } now, early;          /* early: after the first `slots` frames, with which backwards begins */
    bool has_early;
};

struct tracker {
    const struct tracker_options *o;
    const struct tracker_video *video;
    tracker_take *take;
    void *user;
    struct tracker_result *out;
    struct progress progress;
    struct run run;            /* the program that runs */
    struct mask_canvas canvas;
    float *pixels;             /* [3][side][side] */
    struct kept *kept;         /* [o->n] */
    int64_t most;              /* prompts of an object */
    /* of the model and the video */
    int64_t memories, pointers, values, width;
    /* the bank as the program reads it, of each object */
    float *memory_in, *pointer_in;        /* [objects][slots][values or width] */
    int32_t *memory_rows, *pointer_rows;
    float (*pointer_times)[2];
    struct ring memory, pointer;
    bool backwards;
    uint32_t start;            /* the first prompted frame */
    /* results of a frame */
    float *logits, *shown, *memory_out, *pointer_out;
    /* prompts of a frame */
    float *points, *boxes, *masks;
    int32_t *kinds;
    const uint32_t *chosen;    /* the frames that are being read */
    uint32_t *list;            /* a prompt's index for each row of the prompted program */
    int64_t rows;              /* of the prompted program */
    struct image *chunk;       /* frames that are read ahead, to go backwards */
};

/* --- shapes of prompts ---------------------------------------------------------------------- */

static uint32_t points_of(const struct tracker_prompt *p) { return p->at ? p->at->n : 0; }
static bool box_of(const struct tracker_prompt *p) { return p->at && p->at->box; }
static bool same_shape(const struct tracker_prompt *a, const struct tracker_prompt *b)
{
    return points_of(a) == points_of(b) && box_of(a) == box_of(b) && !a->at == !b->at;
}

/* Returns how many prompts a frame has, of all or of the shape of one. */
static uint32_t prompts_on(const struct tracker *t, uint32_t frame, const struct tracker_prompt *shape)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->o->n; i++)
        n += t->o->prompts[i].frame == frame && (!shape || same_shape(shape, &t->o->prompts[i]));
    return n;
}

/* --- a program ------------------------------------------------------------------------------ */

static int read_results(struct tracker *t, struct error *e)
{
    const struct {
        const char *name;
        float *to;
    } outputs[] = {{"pred_masks", t->logits}, {"object_score_logits", t->shown}, {"object_pointers", t->pointer_out},
                   {"object_memories", t->memory_out}};
    TRY(predictor_forward(&t->run, e));
    for (size_t i = 0; i < COUNT(outputs); i++) TRY(predictor_output(&t->run, outputs[i].name, outputs[i].to, e));
    const int64_t n = predictor_output_elements(&t->run, "object_score_logits");
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(t->shown[i]))
            return error_set(e, PL_FAIL, "the model's logit of an object is %g; its weights are not usable",
                             (double)t->shown[i]);
    return PL_OK;
}

/* Starts a program and makes room for its results, of `rows` objects. */
static int start_program(struct tracker *t, const struct prompting *p, uint64_t *bytes, struct error *e)
{
    TRY(predictor_start(&t->run, t->o->config, &(struct contents){.prompts = *p}, e));
    const struct run *r = &t->run;
    t->logits = mem_alloc((size_t)predictor_output_elements(r, "pred_masks") * sizeof *t->logits);
    t->shown = mem_alloc((size_t)predictor_output_elements(r, "object_score_logits") * sizeof *t->shown);
    t->pointer_out = mem_alloc((size_t)predictor_output_elements(r, "object_pointers") * sizeof *t->pointer_out);
    t->memory_out = mem_alloc((size_t)predictor_output_elements(r, "object_memories") * sizeof *t->memory_out);
    t->values = predictor_output_elements(r, "object_memories") / p->masks;
    t->width = predictor_output_elements(r, "object_pointers") / p->masks;
    const uint64_t planned = plan_arena(&r->planned.plan);
    if (*bytes < planned) *bytes = planned;
    return PL_OK;
}

static void end_program(struct tracker *t)
{
    float **const rooms[] = {&t->logits, &t->shown, &t->pointer_out, &t->memory_out};
    run_close(&t->run);
    t->run = (struct run){0};
    for (size_t i = 0; i < COUNT(rooms); i++) mem_free(*rooms[i]), *rooms[i] = NULL;
}

/* Checks the size of a frame, and makes its pixels the program's. */
static int write_pixels(struct tracker *t, uint32_t frame, const struct image *image, struct batch_record *x,
                        struct error *e)
{
    uint32_t fit_w, fit_h;
    if (image->width != t->video->width || image->height != t->video->height)
        return error_set(e, PL_USAGE, "frame %u has %u x %u pixels, expected the %u x %u of the others", frame,
                         image->width, image->height, t->video->width, t->video->height);
    predictor_fit(image, &t->canvas.norm, (uint32_t)t->canvas.side, true, t->pixels, &fit_w, &fit_h);
    x->is[ROW_CLIP].at = t->pixels;
    return PL_OK;
}

/* --- prompted frames ------------------------------------------------------------------------- */

/* Resizes a mask to the square as the reference does: bilinear over all pixels that it shrinks, and
 * set from a half on. */
static void fit_mask(const uint8_t *mask, uint32_t w, uint32_t h, int64_t side, float *to)
{
    const double across = (double)w / (double)side, down = (double)h / (double)side;
    float *rows = mem_alloc((size_t)h * (size_t)side * sizeof *rows);
    for (int pass = 0; pass < 2; pass++) {
        const double ratio = pass ? down : across, reach = fmax(ratio, 1);
        const int64_t from = pass ? h : w, lines = pass ? side : h;
#pragma omp parallel for
        for (int64_t y = 0; y < lines; y++)
            for (int64_t x = 0; x < side; x++) {
                const int64_t at = pass ? y : x;
                const double centre = ((double)at + 0.5) * ratio;
                const int64_t first = max_i64(0, (int64_t)(centre - reach + 0.5)),
                              end = min_i64(from, (int64_t)(centre + reach + 0.5));
                double sum = 0, weights = 0;
                for (int64_t k = first; k < end; k++) {
                    const double weight = fmax(0, 1 - fabs((double)k + 0.5 - centre) / reach);
                    sum += weight * (pass ? (double)rows[k * side + x] : mask[y * w + k] != 0);
                    weights += weight;
                }
                *(pass ? &to[y * side + x] : &rows[y * side + x]) = (float)(sum / weights);
            }
    }
    for (int64_t i = 0; i < side * side; i++) to[i] = to[i] >= 0.5f;
    mem_free(rows);
}

static void put_prompt(struct tracker *t, int64_t row, const struct tracker_prompt *p)
{
    const uint32_t w = t->video->width, h = t->video->height, n = points_of(p),
                   fit[2] = {(uint32_t)t->canvas.side, (uint32_t)t->canvas.side};
    if (p->mask) fit_mask(p->mask, w, h, t->canvas.side, t->masks + row * t->canvas.side * t->canvas.side);
    for (uint32_t k = 0; k < n; k++) {
        predictor_to_model(&t->canvas, fit, w, h, p->at->points[k], t->points + 2 * (row * n + k));
        t->kinds[row * n + k] = p->at->labels[k] ? POINT_FOREGROUND : POINT_BACKGROUND;
    }
    for (int k = 0; k < 2 && box_of(p); k++)
        predictor_to_model(&t->canvas, fit, w, h, p->at->corners + 2 * k, t->boxes + 4 * row + 2 * k);
}

static void keep(struct tracker *t, struct kept *k, int64_t row)
{
    const size_t logits = (size_t)(t->canvas.cells * t->canvas.cells);
    k->memory = mem_alloc((size_t)t->values * sizeof *k->memory);
    k->pointer = mem_copy(t->pointer_out + row * t->width, (size_t)t->width * sizeof *k->pointer);
    k->logits = mem_copy(t->logits + (size_t)row * logits, logits * sizeof *k->logits);
    k->shown = t->shown[row];
    dtype_convert(k->memory, DT_BF16, t->memory_out + row * t->values, DT_F32, t->values);
    t->out->bank_bytes += (uint64_t)t->values * sizeof *k->memory + (uint64_t)t->width * sizeof *k->pointer +
                          logits * sizeof *k->logits;
}

/* Runs the prompts of a frame that are listed; rows after the last one repeat it. */
static int prompt_rows(struct tracker *t, const struct batch_record *x, int64_t n, struct error *e)
{
    struct batch_record row = *x;
    for (int64_t i = 0; i < t->rows; i++) put_prompt(t, i, &t->o->prompts[t->list[min_i64(i, n - 1)]]);
    row.is[ROW_POINTS].at = t->points, row.is[ROW_POINT_KINDS].at = t->kinds;
    row.is[ROW_BOXES].at = t->boxes, row.is[ROW_GIVEN_MASKS].at = t->masks;
    TRY(batch_write_once(&t->run, 0, &row, e));
    TRY(read_results(t, e));
    for (int64_t i = 0; i < n; i++) keep(t, &t->kept[t->list[i]], i);
    return PL_OK;
}

/* Takes a frame with prompts of the shape of the first prompt that has no result yet. */
static int take_prompted(void *user, uint32_t i, const struct image *image, struct error *e)
{
    struct tracker *t = user;
    const uint32_t frame = t->chosen[i];
    const struct tracker_prompt *shape = &t->o->prompts[t->list[t->rows]];
    struct batch_record x = {0};
    TRY(write_pixels(t, frame, image, &x, e));
    int64_t n = 0;
    for (uint32_t k = 0; k < t->o->n; k++) {
        const struct tracker_prompt *p = &t->o->prompts[k];
        if (p->frame == frame && same_shape(p, shape)) t->list[n++] = k;
        if (n < t->rows && (k + 1 < t->o->n || !n)) continue;
        TRY(prompt_rows(t, &x, n, e));
        n = 0;
    }
    return PL_OK;
}

/* Runs the prompts of the shape of prompt `first`. */
static int run_shape(struct tracker *t, uint32_t first, struct error *e)
{
    enum { MOST_ROWS = 16 };
    const struct tracker_prompt *shape = &t->o->prompts[first];
    const int64_t P = points_of(shape), pixels = t->canvas.side * t->canvas.side;
    uint32_t *frames = mem_alloc((t->o->n + 1) * sizeof *frames), n = 0;
    t->rows = 0;
    for (uint32_t f = 0; f < t->video->frames; f++) {
        const uint32_t on = prompts_on(t, f, shape);
        if (on) frames[n++] = f;
        t->rows = max_i64(t->rows, min_i64(on, MOST_ROWS));
    }
    const size_t rows = (size_t)t->rows;
    const struct prompting p = {.image = t->canvas.side, .masks = t->rows, .points = P, .boxes = box_of(shape),
                                .mask_prompts = shape->mask, .single = true, .stable = true, .frames = 1,
                                .prompted = 1, .bank = t->most};
    t->points = mem_alloc(rows * (size_t)P * 2 * sizeof *t->points + 1);
    t->kinds = mem_alloc(rows * (size_t)P * sizeof *t->kinds + 1);
    t->boxes = mem_alloc(rows * 4 * sizeof *t->boxes);
    if (shape->mask) t->masks = mem_alloc(rows * (size_t)pixels * sizeof *t->masks);
    t->list = mem_alloc((rows + 1) * sizeof *t->list);
    t->list[rows] = first;
    t->chosen = frames;
    int rc = start_program(t, &p, &t->out->prompted_bytes, e);
    if (!rc) rc = t->video->read(t->video->of, frames, n, take_prompted, t, e);
    end_program(t);
    void *const rooms[] = {frames, t->points, t->kinds, t->boxes, t->masks, t->list};
    for (size_t i = 0; i < COUNT(rooms); i++) mem_free(rooms[i]);
    t->points = t->boxes = t->masks = NULL, t->kinds = NULL, t->list = NULL;
    return rc;
}

/* --- the bank -------------------------------------------------------------------------------- */

static void ring_open(struct tracker *t, struct ring *r, int64_t slots, int64_t values, uint32_t element)
{
    const size_t n = (size_t)slots * t->o->objects, bytes = n * (size_t)values * element;
    *r = (struct ring){slots, values, element, {mem_alloc(n * sizeof *r->now.frame), mem_alloc(bytes)},
                       {mem_alloc(n * sizeof *r->now.frame), mem_alloc(bytes)}, false};
    memset(r->now.frame, -1, n * sizeof *r->now.frame);
    t->out->bank_bytes += 2 * bytes;
}

static void ring_free(struct ring *r)
{
    void *const rooms[] = {r->now.frame, r->now.at, r->early.frame, r->early.at};
    for (size_t i = 0; i < COUNT(rooms); i++) mem_free(rooms[i]);
}

/* Copies what the first frames left; or, to go backwards, makes it what the last ones left. */
static void ring_copy(const struct tracker *t, struct ring *r)
{
    const size_t n = (size_t)r->slots * t->o->objects, bytes = n * (size_t)r->values * r->element;
    memcpy(t->backwards ? r->now.frame : r->early.frame, t->backwards ? r->early.frame : r->now.frame,
           n * sizeof *r->now.frame);
    memcpy(t->backwards ? r->now.at : r->early.at, t->backwards ? r->early.at : r->now.at, bytes);
}

/* Ends a frame. */
static void ring_end(const struct tracker *t, struct ring *r, uint32_t frame)
{
    if (t->backwards || r->has_early) return;
    if (frame - t->start + 1 < r->slots && frame + 1 < t->video->frames) return;
    r->has_early = true;
    ring_copy(t, r);
}

/* Stores what an object left on a frame; from NULL: nothing. */
static void ring_put(const struct tracker *t, struct ring *r, uint32_t frame, uint32_t object, const float *from)
{
    const size_t k = (size_t)(frame % (uint64_t)r->slots) * t->o->objects + object;
    r->now.frame[k] = from ? (int64_t)frame : -1;
    if (from)
        dtype_convert(r->now.at + k * (size_t)r->values * r->element, r->element == 2 ? DT_BF16 : DT_F32, from, DT_F32,
                      r->values);
}

/* Returns what an object left on a frame; NULL: nothing. */
static const void *ring_get(const struct tracker *t, const struct ring *r, int64_t frame, uint32_t object)
{
    if (frame < 0) return NULL;
    const size_t k = (size_t)(frame % r->slots) * t->o->objects + object;
    return r->now.frame[k] == frame ? r->now.at + k * (size_t)r->values * r->element : NULL;
}

/* Reports whether a frame sees the memory of prompted frame k of an object as such: of more than
 * the model takes, the closest on each side, then the closest. */
static bool is_chosen(const struct tracker *t, uint32_t k, uint32_t frame)
{
    const struct tracker_prompt *p = t->o->prompts, *own = &p[k];
    const int64_t most = clip_prompted(&t->run.planned.model);
    uint32_t all = 0, closer = 0, before = UINT32_MAX, after = UINT32_MAX;
    for (uint32_t i = 0; i < t->o->n; i++) {
        if (p[i].object != own->object) continue;
        all++;
        if (p[i].frame < frame && (before == UINT32_MAX || p[i].frame > p[before].frame)) before = i;
        if (p[i].frame >= frame && (after == UINT32_MAX || p[i].frame < p[after].frame)) after = i;
    }
    if (most < 0 || all <= most || k == before || k == after) return true;
    for (uint32_t i = 0; i < t->o->n; i++) {
        if (p[i].object != own->object || i == k || i == before || i == after) continue;
        const int64_t a = llabs((int64_t)p[i].frame - frame), b = llabs((int64_t)own->frame - frame);
        closer += a < b || (a == b && p[i].frame < own->frame);
    }
    return closer + (before != UINT32_MAX) + (after != UINT32_MAX) < most;
}

/* Writes what a slot of an object's bank holds. */
struct slot {
    int64_t memory, pointer; /* slots; below 0: it has none */
};
static void see(struct tracker *t, uint32_t object, struct slot at, const struct clip_sight *s, const void *memory,
                const float *pointer)
{
    const int64_t n = t->most + t->memories - 1, P = t->most + t->pointers - 1;
    if (memory && at.memory >= 0) {
        const int64_t k = object * n + at.memory;
        t->memory_rows[k] = s->memory;
        if (s->memory < t->memories)
            dtype_convert(t->memory_in + k * t->values, DT_F32, memory, DT_BF16, t->values);
    }
    if (pointer && at.pointer >= 0) {
        const int64_t k = object * P + at.pointer;
        t->pointer_rows[k] = s->pointer;
        t->pointer_times[k][0] = s->time;
        memcpy(t->pointer_in + k * t->width, pointer, (size_t)t->width * sizeof *pointer);
    }
}

/* Fills the bank with what an object's mask on a frame depends on. */
static void fill_bank(struct tracker *t, uint32_t object, uint32_t frame)
{
    const struct model *m = &t->run.planned.model;
    const int64_t pointers = min_i64(t->video->frames, t->pointers), sign = t->backwards ? -1 : 1;
    int64_t at = 0;
    for (uint32_t k = 0; k < t->o->n; k++) {
        const struct kept *q = &t->kept[k];
        if (q->prompt->object != object) continue;
        const int64_t apart = ((int64_t)frame - q->prompt->frame) * sign;
        struct clip_sight s = clip_see(m, apart, true, false, pointers);
        if (!is_chosen(t, k, frame)) s.memory = clip_see(m, apart, false, false, pointers).memory;
        see(t, object, (struct slot){at, at}, &s, q->memory, q->pointer);
        at++;
    }
    for (int64_t apart = 1; apart < max_i64(t->memories, t->pointers); apart++) {
        const int64_t f = (int64_t)frame - apart * sign;
        const struct clip_sight s = clip_see(m, apart, false, false, pointers);
        const int64_t at_ring = t->most + apart - 1;
        see(t, object, (struct slot){apart < t->memories ? at_ring : -1, apart < t->pointers ? at_ring : -1}, &s,
            ring_get(t, &t->memory, f, object), ring_get(t, &t->pointer, f, object));
    }
}

/* --- tracked frames -------------------------------------------------------------------------- */

/* Returns the prompt of an object on a frame; NULL: none. */
static const struct kept *kept_on(const struct tracker *t, uint32_t object, uint32_t frame)
{
    for (uint32_t k = 0; k < t->o->n; k++)
        if (t->o->prompts[k].object == object && t->o->prompts[k].frame == frame) return &t->kept[k];
    return NULL;
}

/* Tracks all objects on a frame. */
static int track(struct tracker *t, uint32_t frame, const struct image *image, struct error *e)
{
    const size_t M = t->o->objects, n = M * (size_t)(t->most + t->memories - 1),
                 P = M * (size_t)(t->most + t->pointers - 1);
    struct batch_record x = {0};
    for (size_t k = 0; k < n; k++) t->memory_rows[k] = (int32_t)t->memories;
    for (size_t k = 0; k < P; k++) t->pointer_rows[k] = 1, t->pointer_times[k][0] = t->pointer_times[k][1] = 0.5f;
    for (uint32_t m = 0; m < M; m++) fill_bank(t, m, frame);
    TRY(write_pixels(t, frame, image, &x, e));
    x.is[ROW_BANK_MEMORIES].at = t->memory_in, x.is[ROW_BANK_POINTERS].at = t->pointer_in;
    x.is[ROW_MEMORY_ROWS].at = t->memory_rows, x.is[ROW_POINTER_ROWS].at = t->pointer_rows;
    x.is[ROW_POINTER_TIMES].at = t->pointer_times;
    TRY(batch_write_once(&t->run, 0, &x, e));
    return read_results(t, e);
}

/* Takes the next frame in the direction of tracking. */
static int take_frame(struct tracker *t, uint32_t frame, const struct image *image, struct error *e)
{
    const uint32_t M = t->o->objects;
    const size_t logits = (size_t)(t->canvas.cells * t->canvas.cells);
    if (prompts_on(t, frame, NULL) < M) TRY(track(t, frame, image, e));
    for (uint32_t m = 0; m < M; m++) {
        const struct kept *q = kept_on(t, m, frame);
        ring_put(t, &t->memory, frame, m, q ? NULL : t->memory_out + m * t->values);
        ring_put(t, &t->pointer, frame, m, q ? NULL : t->pointer_out + m * t->width);
        if (q) memcpy(t->logits + m * logits, q->logits, logits * sizeof *t->logits), t->shown[m] = q->shown;
    }
    ring_end(t, &t->memory, frame);
    ring_end(t, &t->pointer, frame);
    progress_add(&t->progress, 1);
    const struct tracker_masks masks = {frame, M, t->canvas.cells, t->logits, t->shown};
    return t->take(t->user, &masks, image, e);
}

static int take_next(void *user, uint32_t i, const struct image *image, struct error *e)
{
    struct tracker *t = user;
    return take_frame(t, t->chosen[i], image, e);
}

static int take_chunk(void *user, uint32_t i, const struct image *image, struct error *e)
{
    struct tracker *t = user;
    t->chunk[i] = *image;
    t->chunk[i].rgb = mem_copy(image->rgb, (size_t)image->width * image->height * 3);
    (void)e;
    return PL_OK;
}

/* Tracks backwards from a frame to the first one. Frames are read some at a time. */
static int run_backwards(struct tracker *t, uint32_t from, uint32_t *list, struct error *e)
{
    enum { CHUNK = 16 };
    struct image chunk[CHUNK] = {{0}};
    int rc = PL_OK;
    t->backwards = true;
    ring_copy(t, &t->memory);
    ring_copy(t, &t->pointer);
    t->chosen = list, t->chunk = chunk;
    for (uint32_t end = from + 1, n; end && !rc; end -= n) {
        n = end < CHUNK ? end : CHUNK;
        for (uint32_t i = 0; i < n; i++) list[i] = end - n + i;
        rc = t->video->read(t->video->of, list, n, take_chunk, t, e);
        for (uint32_t i = n; i-- && !rc;) rc = take_frame(t, list[i], &chunk[i], e);
        for (uint32_t i = 0; i < n; i++) mem_free(chunk[i].rgb), chunk[i].rgb = NULL;
    }
    return rc;
}

static int run_tracking(struct tracker *t, struct error *e)
{
    const uint32_t frames = t->video->frames, M = t->o->objects;
    const bool all = prompts_on(t, t->start, NULL) == M;
    const struct prompting p = {.image = t->canvas.side, .masks = M, .stable = true, .frames = 1, .bank = t->most};
    uint32_t *list = mem_alloc(frames * sizeof *list), n = frames - t->start;
    int rc = start_program(t, &p, &t->out->tracked_bytes, e);
    const size_t slots = (size_t)M * (size_t)(t->most + t->memories - 1),
                 seen = (size_t)M * (size_t)(t->most + t->pointers - 1);
    if (!rc) {
        t->memory_in = mem_alloc(slots * (size_t)t->values * sizeof *t->memory_in);
        t->pointer_in = mem_alloc(seen * (size_t)t->width * sizeof *t->pointer_in);
        t->memory_rows = mem_alloc(slots * sizeof *t->memory_rows);
        t->pointer_rows = mem_alloc(seen * sizeof *t->pointer_rows);
        t->pointer_times = mem_alloc(seen * sizeof *t->pointer_times);
        ring_open(t, &t->memory, t->memories, t->values, 2);
        ring_open(t, &t->pointer, t->pointers, t->width, 4);
        t->out->bank_bytes += slots * (size_t)t->values * sizeof *t->memory_in;
        for (uint32_t i = 0; i < n; i++) list[i] = t->start + i;
        t->chosen = list;
        rc = t->video->read(t->video->of, list, n, take_next, t, e);
    }
    /* an object that has no prompt on the first prompted frame is tracked there backwards too */
    if (!rc && t->start) rc = run_backwards(t, all ? t->start - 1 : t->start, list, e);
    end_program(t);
    mem_free(list);
    return rc;
}

/* --- all of it -------------------------------------------------------------------------------- */

static int open_model(struct tracker *t, struct error *e)
{
    struct model m;
    TRY(predictor_open_model(&m, t->o->config, t->o->side, &t->canvas, e));
    t->memories = clip_memories(&m);
    t->pointers = clip_pointers(&m);
    model_close(&m);
    return PL_OK;
}

int tracker_check(const struct config *c, int64_t side, struct error *e)
{
    struct model m;
    struct mask_canvas canvas;
    TRY(predictor_open_model(&m, c, side, &canvas, e));
    int rc = PL_OK;
    if (!model_is(&m, "clips"))
        rc = error_set(e, PL_USAGE, "%s is a %s, which takes no videos; expected a sam2_video",
                       c->model_path ? c->model_path : c->model_preset, m.family->model_type);
    model_close(&m);
    return rc;
}

static void tracker_free(struct tracker *t)
{
    for (uint32_t k = 0; k < t->o->n; k++) {
        mem_free(t->kept[k].memory);
        mem_free(t->kept[k].pointer);
        mem_free(t->kept[k].logits);
    }
    ring_free(&t->memory);
    ring_free(&t->pointer);
    void *const rooms[] = {t->kept, t->pixels, t->memory_in, t->pointer_in, t->memory_rows, t->pointer_rows,
                           t->pointer_times};
    for (size_t i = 0; i < COUNT(rooms); i++) mem_free(rooms[i]);
}

int tracker_run(const struct tracker_options *o, const struct tracker_video *v, tracker_take *take, void *user,
                struct tracker_result *out, struct error *e)
{
    struct tracker t = {.o = o, .video = v, .take = take, .user = user, .out = out, .start = UINT32_MAX};
    *out = (struct tracker_result){0};
    TRY(open_model(&t, e));
    t.pixels = mem_alloc((size_t)(3 * t.canvas.side * t.canvas.side) * sizeof *t.pixels);
    t.kept = mem_alloc(o->n * sizeof *t.kept);
    for (uint32_t k = 0; k < o->n; k++) {
        int64_t own = 0;
        for (uint32_t i = 0; i < o->n; i++) own += o->prompts[i].object == o->prompts[k].object;
        CHECK(o->prompts[k].frame < v->frames && o->prompts[k].object < o->objects, "prompt %u", k);
        t.kept[k].prompt = &o->prompts[k];
        t.most = max_i64(t.most, own);
        if (o->prompts[k].frame < t.start) t.start = o->prompts[k].frame;
    }
    int rc = PL_OK;
    progress_begin(&t.progress, "tracking", "frames", v->frames);
    for (uint32_t k = 0; k < o->n && !rc; k++)
        if (!t.kept[k].memory) rc = run_shape(&t, k, e);
    if (!rc) rc = run_tracking(&t, e);
    progress_clear();
    tracker_free(&t);
    return rc;
}

void tracker_labels(const struct tracker_masks *m, uint32_t w, uint32_t h, float *scratch, uint16_t *labels)
{
    const size_t n = (size_t)w * h;
    float *best = scratch, *own = scratch + n;
    memset(labels, 0, n * sizeof *labels);
    memset(best, 0, n * sizeof *best);
    for (uint32_t k = 0; k < m->objects; k++) {
        logits_upsample(m->logits + (size_t)k * (size_t)(m->side * m->side), m->side, w, h, own);
        for (size_t i = 0; i < n; i++)
            if (own[i] > best[i]) best[i] = own[i], labels[i] = (uint16_t)(k + 1);
    }
}
