/*
 * ref_structure.c: reference kernels of the structure loss (see ref.c for the reference's
 * guarantees, graph/masks.c for the formulas).
 */
#include <math.h>

#include "cpu/reference/ref.h"
#include "graph/sizes.h"

static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double sigmoid(double x) { return exp(-softplus(-x)); }

/* One mask: its valid area, and its operands. */
struct ref_mask {
    const struct launch *l;
    int64_t n, h, w, rows, columns;
};

static struct ref_mask ref_mask_of(const struct launch *l, int64_t n)
{
    const struct operand *logits = &l->in[0], *valid = &l->in[2];
    const int64_t h = logits->dim[2], w = logits->dim[3];
    return (struct ref_mask){l,
                             n,
                             h,
                             w,
                             max_i64(0, min_i64(h, (int64_t)ref_get(valid, 2 * n))),
                             max_i64(0, min_i64(w, (int64_t)ref_get(valid, 2 * n + 1)))};
}

static bool target(const struct ref_mask *m, int64_t y, int64_t x)
{
    const struct operand *bits = &m->l->in[1];
    if (y < 0 || x < 0 || y >= m->rows || x >= m->columns) return false;
    return (int)ref_get(bits, (m->n * m->h + y) * bits->dim[2] + x / 8) >> x % 8 & 1;
}

/* |mean over the window - target|. */
static double distance(const struct ref_mask *m, int64_t y, int64_t x)
{
    const int64_t size = m->l->attr->structure_loss.size, r = size / 2;
    double sum = 0;
    for (int64_t v = y - r; v <= y + r; v++)
        for (int64_t u = x - r; u <= x + r; u++) sum += target(m, v, u);
    return fabs(sum / (double)(size * size) - target(m, y, x));
}

static double logit_at(const struct ref_mask *m, int64_t y, int64_t x)
{
    return ref_get(&m->l->in[0], (m->n * m->h + y) * m->w + x);
}

struct ref_sums {
    double bce, weights, intersection, sum, both, either;
};

static struct ref_sums ref_sums_of(const struct ref_mask *m)
{
    struct ref_sums s = {0};
    for (int64_t y = 0; y < m->rows; y++)
        for (int64_t x = 0; x < m->columns; x++) {
            const bool g = target(m, y, x);
            const double d = distance(m, y, x), logit = logit_at(m, y, x), p = sigmoid(logit);
            const double w = 1 + (double)m->l->attr->structure_loss.bce_edge * d,
                         v = 1 + (double)m->l->attr->structure_loss.edge * d;
            s.bce += w * softplus(g ? -logit : logit);
            s.weights += w;
            s.intersection += g ? v * p : 0;
            s.sum += v * (p + g);
            s.both += g && logit > 0;
            s.either += g || logit > 0;
        }
    return s;
}

static void ref_structure_loss(const struct launch *l)
{
    const double smooth = (double)l->attr->structure_loss.smooth;
    double total = 0;
    for (int64_t n = 0; n < l->in[0].dim[0]; n++) {
        const struct ref_mask m = ref_mask_of(l, n);
        double stats[MASK_STATS] = {-1, 0, 0, 0}, weights = 0;
        if (m.rows && m.columns) {
            const struct ref_sums s = ref_sums_of(&m);
            const double A = s.intersection + smooth, B = s.sum - s.intersection + smooth;
            stats[0] = 0, stats[1] = A, stats[2] = B, stats[3] = s.both / fmax(s.either, 1);
            weights = s.weights;
            total += s.bce / s.weights + 1 - A / B;
        }
        for (int i = 0; i < MASK_STATS; i++) ref_put(&l->out[1], n * MASK_STATS + i, stats[i]);
        ref_put(&l->out[2], n, weights);
    }
    ref_put(&l->out[0], 0, total * ref_get(&l->in[3], 0));
}

/* The derivative at one pixel. */
static double pixel_slope(const struct ref_mask *m, int64_t y, int64_t x)
{
    const struct launch *l = m->l;
    const bool g = target(m, y, x);
    const double d = distance(m, y, x), p = sigmoid(logit_at(m, y, x)), A = ref_get(&l->in[4], m->n * MASK_STATS + 1),
                 B = ref_get(&l->in[4], m->n * MASK_STATS + 2);
    const double bce = (1 + (double)l->attr->structure_loss.bce_edge * d) * (p - g) / ref_get(&l->in[5], m->n);
    return bce + (1 + (double)l->attr->structure_loss.edge * d) * (g ? -1 / B : A / (B * B)) * p * (1 - p);
}

static void ref_structure_loss_bwd(const struct launch *l)
{
    const double factor = ref_get(&l->in[3], 0) * ref_get(&l->in[6], 0);
    for (int64_t n = 0; n < l->in[0].dim[0]; n++) {
        const struct ref_mask m = ref_mask_of(l, n);
        for (int64_t y = 0; y < m.h; y++)
            for (int64_t x = 0; x < m.w; x++)
                ref_put(&l->out[0], (n * m.h + y) * m.w + x,
                        y < m.rows && x < m.columns ? pixel_slope(&m, y, x) * factor : 0);
    }
}

REF_KERNEL(STRUCTURE_LOSS, structure_loss);
REF_KERNEL(STRUCTURE_LOSS_BWD, structure_loss_bwd);
