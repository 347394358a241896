/*
 * everything.c: see everything.h.
 */
#include "infer/everything.h"

#include "base/progress.h"

void everything_free(struct everything *g)
{
    for (uint32_t i = 0; i < g->masks.n; i++) trace_free(&g->masks.at[i].shape);
    vec_free(&g->masks);
}

static void add_candidates(const struct everything_options *o, struct predictor *a, int64_t i, const float point[2],
                           uint8_t *mask, struct everything *g)
{
    for (int64_t k = 0; k < a->candidates; k++) {
        double iou = a->scores[i * a->candidates + k];
        g->tested++;
        if (iou < o->min_iou) continue;
        g->confident++;
        struct everything_mask f = {.iou = iou, .stability = predictor_mask(a, i, k, 1, mask),
                                    .point = {point[0], point[1]},
                                    .order = g->masks.n};
        if (f.stability < o->min_stability) continue;
        g->stable++;
        trace_bytes(&f.shape, mask, a->w, a->h);
        if (f.shape.area) vec_push(&g->masks, f);
        else trace_free(&f.shape);
    }
    g->filled = g->masks.n;
}

static int prompt_grid(const struct everything_options *o, struct predictor *a, struct everything *g, struct error *e)
{
    const int64_t N = o->points, M = a->shape.prompts;
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
        for (int64_t i = 0; i < n && !rc; i++) add_candidates(o, a, i, points[i], mask, g);
        progress_add(&progress, (uint64_t)n);
    }
    progress_clear();
    mem_free(points);
    mem_free(prompts);
    mem_free(mask);
    return rc;
}

static int best_first(const void *a, const void *b)
{
    const struct everything_mask *x = a, *y = b;
    if (x->iou != y->iou) return x->iou < y->iou ? 1 : -1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Returns the IoU of two boxes. */
static double box_iou(const struct traced *a, const struct traced *b)
{
    double w = (double)min_i64(a->x1, b->x1) - (double)max_i64(a->x0, b->x0) + 1;
    double h = (double)min_i64(a->y1, b->y1) - (double)max_i64(a->y0, b->y0) + 1;
    double meet = w > 0 && h > 0 ? w * h : 0;
    double of_a = (a->x1 - a->x0 + 1.0) * (a->y1 - a->y0 + 1.0), of_b = (b->x1 - b->x0 + 1.0) * (b->y1 - b->y0 + 1.0);
    return meet / (of_a + of_b - meet);
}

/* Suppresses non-maxima: of overlapping boxes keeps the mask with the best predicted IoU. */
static void suppress_overlaps(struct everything *g, double most)
{
    uint32_t kept = 0;
    if (g->masks.n) qsort(g->masks.at, g->masks.n, sizeof *g->masks.at, best_first);
    for (uint32_t i = 0; i < g->masks.n; i++) {
        struct everything_mask *f = &g->masks.at[i];
        bool hidden = false;
        for (uint32_t k = 0; k < kept && !hidden; k++) hidden = box_iou(&g->masks.at[k].shape, &f->shape) > most;
        if (hidden) trace_free(&f->shape);
        else g->masks.at[kept++] = *f;
    }
    g->masks.n = kept;
}

int everything_find(struct everything *g, const struct config *c, const struct image *image,
                    const struct everything_options *o, struct error *e)
{
    const struct predictor_shape shape = {.prompts = min_i64(o->batch, o->points * o->points), .points = 1,
                                          .side = o->side};
    struct predictor a;
    *g = (struct everything){0};
    TRY(predictor_open(&a, c, image, &shape, e));
    int rc = prompt_grid(o, &a, g, e);
    predictor_close(&a);
    if (!rc) suppress_overlaps(g, o->nms);
    return rc;
}
