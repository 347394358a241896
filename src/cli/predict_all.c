/*
 * predict_all.c: `plimsoll predict --everything N`: prompts the model with a grid of N x N points
 * and selects masks from its candidates.
 *
 *     every candidate ─ predicted IoU ─ stability ─ not empty ─ non-maximum suppression of boxes
 *
 * Masks are kept as runs, so that thousands of them take little memory; only one mask at a time
 * exists as pixels. The cheapest test comes first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "cli/predict.h"
#include "data/masks/rle.h"
#include "io/json.h"
#include "io/png.h"

struct candidate {
    struct traced shape;
    double iou, stability;
    float point[2];
    uint32_t order; /* in which it was found: breaks ties */
};

struct candidates {
    VEC(struct candidate) all;
    uint64_t tested, confident, stable; /* number of candidates, and after each test */
};

static void candidates_free(struct candidates *g)
{
    for (uint32_t i = 0; i < g->all.n; i++) trace_free(&g->all.at[i].shape);
    vec_free(&g->all);
}

/* --- prompting --------------------------------------------------------------------------- */

static void add_candidates(const struct predict *p, struct predictor *a, int64_t i, const float point[2], uint8_t *mask,
                           struct candidates *g)
{
    for (int64_t k = 0; k < a->candidates; k++) {
        double iou = a->scores[i * a->candidates + k];
        g->tested++;
        if (iou < p->min_iou) continue;
        g->confident++;
        struct candidate f = {.iou = iou,
                              .stability = predictor_mask(a, i, k, 1, mask),
                              .point = {point[0], point[1]},
                              .order = g->all.n};
        if (f.stability < p->min_stability) continue;
        g->stable++;
        predict_trace(&f.shape, mask, a->w, a->h);
        if (f.shape.area) vec_push(&g->all, f);
        else trace_free(&f.shape);
    }
}

static int prompt_grid(const struct predict *p, struct predictor *a, struct candidates *g, struct error *e)
{
    const int64_t N = (int64_t)p->everything, M = a->shape.prompts;
    static const int on = 1;
    float(*points)[2] = mem_alloc((size_t)M * sizeof *points);
    struct predictor_prompt *prompts = mem_alloc((size_t)M * sizeof *prompts);
    uint8_t *mask = mem_alloc((size_t)a->w * a->h);
    struct progress progress;
    int rc = PL_OK;
    progress_begin(&progress, "predicting", "prompts", (uint64_t)(N * N));
    for (int64_t at = 0; at < N * N && !rc; at += M) {
        int64_t n = min_i64(M, N * N - at);
        for (int64_t i = 0; i < n; i++) {
            points[i][0] = ((float)((at + i) % N) + 0.5f) / (float)N * (float)a->w;
            points[i][1] = ((float)((at + i) / N) + 0.5f) / (float)N * (float)a->h;
            prompts[i] = (struct predictor_prompt){.points = (const float(*)[2]) & points[i], .labels = &on};
        }
        rc = predictor_run(a, prompts, n, e);
        for (int64_t i = 0; i < n && !rc; i++) add_candidates(p, a, i, points[i], mask, g);
        progress_add(&progress, (uint64_t)n);
    }
    progress_clear();
    mem_free(points);
    mem_free(prompts);
    mem_free(mask);
    return rc;
}

/* --- overlap ------------------------------------------------------------------------------ */

static int best_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->iou != y->iou) return x->iou < y->iou ? 1 : -1;
    return (x->order > y->order) - (x->order < y->order);
}

static double box_iou(const struct traced *a, const struct traced *b)
{
    double w = (double)min_i64(a->x1, b->x1) - (double)max_i64(a->x0, b->x0) + 1;
    double h = (double)min_i64(a->y1, b->y1) - (double)max_i64(a->y0, b->y0) + 1;
    double meet = w > 0 && h > 0 ? w * h : 0;
    double of_a = (a->x1 - a->x0 + 1.0) * (a->y1 - a->y0 + 1.0), of_b = (b->x1 - b->x0 + 1.0) * (b->y1 - b->y0 + 1.0);
    return meet / (of_a + of_b - meet);
}

/* Non-maximum suppression: of overlapping boxes keeps the mask with the best predicted IoU. */
static void suppress_overlaps(struct candidates *g, double most)
{
    uint32_t kept = 0;
    if (g->all.n) qsort(g->all.at, g->all.n, sizeof *g->all.at, best_first);
    for (uint32_t i = 0; i < g->all.n; i++) {
        struct candidate *f = &g->all.at[i];
        bool hidden = false;
        for (uint32_t k = 0; k < kept && !hidden; k++) hidden = box_iou(&g->all.at[k].shape, &f->shape) > most;
        if (hidden) trace_free(&f->shape);
        else g->all.at[kept++] = *f;
    }
    g->all.n = kept;
}

/* --- writing --------------------------------------------------------------------------------- */

static int largest_first(const void *a, const void *b)
{
    const struct candidate *const *x = a, *const *y = b;
    if ((*x)->shape.area != (*y)->shape.area) return (*x)->shape.area < (*y)->shape.area ? 1 : -1;
    return (*x > *y) - (*x < *y);
}

static void unpack(const struct traced *t, uint32_t w, uint32_t h, uint8_t *columns, uint8_t *rows)
{
    struct rle runs = {RLE_RUNS, h, w, t->runs.at, t->runs.n};
    enum rle_status s = rle_to_pixels(&runs, columns);
    CHECK(s == RLE_OK, "invalid runs: %s", rle_status_text(s));
    for (uint32_t x = 0; x < w; x++)
        for (uint32_t y = 0; y < h; y++) rows[(size_t)y * w + x] = columns[(size_t)x * h + y];
}

/* Draws the largest masks first, so that small masks on top of them stay visible. */
static int write_image(const struct predict *p, const struct candidates *g, struct error *e)
{
    const uint32_t w = p->image.w, h = p->image.h, n = g->all.n;
    const struct candidate **order = mem_alloc((n + 1) * sizeof *order);
    uint8_t *columns = mem_alloc((size_t)w * h), *rows = mem_alloc((size_t)w * h);
    struct canvas out = {w, h, mem_copy(p->image.rgb, (size_t)w * h * 3)};
    for (uint32_t i = 0; i < n; i++) order[i] = &g->all.at[i];
    if (n) qsort(order, n, sizeof *order, largest_first);
    for (uint32_t i = 0; i < n; i++) {
        unpack(&order[i]->shape, w, h, columns, rows);
        draw_overlay(&out, (struct draw_area){0, 0, w, h}, &(struct draw_mask){.at = rows, .stride = w, .w = w, .h = h},
                     draw_colour(i), 0.5, (int)max_i64(1, (int64_t)(w > h ? w : h) / 600));
    }
    int rc = png_write(p->output, PNG_RGB, w, h, out.rgb, 0, e);
    canvas_free(&out);
    mem_free(columns);
    mem_free(rows);
    mem_free(order);
    return rc;
}

static int write_annotations(const struct predict *p, const struct candidates *g, struct error *e)
{
    const uint32_t w = p->image.w, h = p->image.h;
    struct text out = {0};
    const char *slash = strrchr(p->image_path, '/');
    annotation_write_begin(&out, 0, w, h, slash ? slash + 1 : p->image_path);
    for (uint32_t i = 0; i < g->all.n; i++) {
        const struct candidate *f = &g->all.at[i];
        annotation_write_mask(&out, i, w, h, &(struct annotation_mask){
            .shape = &f->shape, .predicted_iou = f->iou, .stability = f->stability, .point = {f->point[0], f->point[1]},
            .crop_box = {0, 0, w, h}, .id = i});
    }
    annotation_write_end(&out);
    text_printf(&out, "\n");
    int rc = file_write_atomic(p->json, out.at, out.n, e);
    text_free(&out);
    return rc;
}

int predict_everything(struct predict *p, struct error *e)
{
    const int64_t N = (int64_t)p->everything;
    struct predictor_shape shape = {.prompts = min_i64((int64_t)p->batch, N * N),
                                    .points = 1,
                                    .side = (int64_t)p->side};
    struct candidates g = {0};
    struct predictor a;
    int rc = predictor_open(&a, &p->config, &p->image, &shape, e);
    if (rc) return rc;
    rc = prompt_grid(p, &a, &g, e);
    predictor_close(&a);
    uint32_t before = g.all.n;
    if (!rc) suppress_overlaps(&g, p->nms);
    if (!rc) rc = write_image(p, &g, e);
    if (!rc && p->json) rc = write_annotations(p, &g, e);
    if (!rc)
        printf("%s: %u mask%s; of %llu candidates %llu have a predicted IoU of at least %g, %llu of these a stability "
               "of at least %g, %u are not empty\n",
               p->output, g.all.n, g.all.n == 1 ? "" : "s", (unsigned long long)g.tested,
               (unsigned long long)g.confident, p->min_iou, (unsigned long long)g.stable, p->min_stability, before);
    candidates_free(&g);
    return rc;
}
