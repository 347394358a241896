/*
 * ref_masks.c: reference kernels of windows, Fourier features, the mask loss and the structure
 * loss (see ref.c for the
 * reference's guarantees, graph/vjp.c for the formulas).
 */
#include <math.h>

#include "cpu/reference/ref.h"
#include "graph/sizes.h"

/* --- windows ---------------------------------------------------------------------------- */

/* Returns the element of the map that a window's element corresponds to; -1: beyond the map. */
static int64_t map_element(const struct operand *map, const struct operand *windows, int64_t i)
{
    const int64_t size = windows->dim[1], C = windows->dim[3], H = map->dim[1], W = map->dim[2];
    const int64_t across = (W + size - 1) / size, down = (H + size - 1) / size;
    int64_t c = i % C, x = i / C % size, y = i / C / size % size, window = i / C / size / size;
    x += window % across * size;
    y += window / across % down * size;
    int64_t b = window / across / down;
    return x < W && y < H ? ((b * H + y) * W + x) * C + c : -1;
}

static void ref_window(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) {
        int64_t from = map_element(&l->in[0], &l->out[0], i);
        ref_put(&l->out[0], i, from < 0 ? 0 : ref_get(&l->in[0], from));
    }
}

static void ref_unwindow(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->in[0]); i++) {
        int64_t to = map_element(&l->out[0], &l->in[0], i);
        if (to >= 0) ref_put(&l->out[0], to, ref_get(&l->in[0], i));
    }
}

/* --- Fourier features of points ----------------------------------------------------------- */

static void ref_fourier(const struct launch *l)
{
    const struct operand *coords = &l->in[0], *gauss = &l->in[1];
    const int64_t F = gauss->dim[1], points = operand_rows(coords);
    for (int64_t i = 0; i < points; i++)
        for (int64_t f = 0; f < F; f++) {
            double x = 2 * ref_get(coords, 2 * i) - 1, y = 2 * ref_get(coords, 2 * i + 1) - 1;
            double angle = 2 * M_PI * (x * ref_get(gauss, f) + y * ref_get(gauss, F + f));
            ref_put(&l->out[0], i * 2 * F + f, sin(angle));
            ref_put(&l->out[0], i * 2 * F + F + f, cos(angle));
        }
}

/* --- the mask loss -------------------------------------------------------------------------- */

static double softplus(double x) { return fmax(x, 0) + log1p(exp(-fabs(x))); }
static double sigmoid(double x) { return exp(-softplus(-x)); }

/* One mask: its valid area, and its operands. */
struct ref_mask {
    const struct launch *l;
    const struct operand *bits;
    int64_t n, K, h, w, rows, columns;
};

/* Describes mask n of a launch. `bits` is the input of the target's bits; the next one has the
 * valid area. */
static struct ref_mask ref_mask_of(const struct launch *l, int bits, int64_t n)
{
    const struct operand *logits = &l->in[0], *valid = &l->in[bits + 1];
    const int64_t h = logits->dim[2], w = logits->dim[3];
    return (struct ref_mask){l, &l->in[bits], n, logits->dim[1], h, w,
                             max_i64(0, min_i64(h, (int64_t)ref_get(valid, 2 * n))),
                             max_i64(0, min_i64(w, (int64_t)ref_get(valid, 2 * n + 1)))};
}

static int64_t logit_at(const struct ref_mask *m, int64_t k, int64_t y, int64_t x)
{
    return ((m->n * m->K + k) * m->h + y) * m->w + x;
}

/* Reports whether a pixel is in the target; none outside of the valid area is. */
static bool target(const struct ref_mask *m, int64_t y, int64_t x)
{
    if (y < 0 || x < 0 || y >= m->rows || x >= m->columns) return false;
    return (int)ref_get(m->bits, (m->n * m->h + y) * m->bits->dim[2] + x / 8) >> x % 8 & 1;
}

static double alpha_of(const struct launch *l, bool g)
{
    double alpha = (double)l->attr->mask_loss.alpha;
    return g || l->attr->mask_loss.alpha_both ? alpha : 1 - alpha;
}

/* The sums of one candidate. */
struct ref_sums {
    double focal, pg, p, g, both, either;
};

static struct ref_sums ref_sums_of(const struct ref_mask *m, int64_t k)
{
    struct ref_sums s = {0};
    for (int64_t y = 0; y < m->rows; y++)
        for (int64_t x = 0; x < m->columns; x++) {
            bool g = target(m, y, x);
            double logit = ref_get(&m->l->in[0], logit_at(m, k, y, x)), z = g ? logit : -logit;
            s.focal += alpha_of(m->l, g) * pow(sigmoid(-z), (double)m->l->attr->mask_loss.gamma) * softplus(-z);
            s.p += sigmoid(logit);
            s.pg += g ? sigmoid(logit) : 0;
            s.g += g;
            s.both += g && logit > 0;
            s.either += g || logit > 0;
        }
    return s;
}

static void ref_mask_loss(const struct launch *l)
{
    const double smooth = (double)l->attr->mask_loss.smooth;
    double total = 0;
    for (int64_t n = 0; n < l->in[0].dim[0]; n++) {
        const struct ref_mask m = ref_mask_of(l, 2, n);
        double best = INFINITY, stats[MASK_STATS] = {-1, 0, 0, 0};
        for (int64_t k = 0; k < m.K && m.rows * m.columns > 0; k++) {
            struct ref_sums s = ref_sums_of(&m, k);
            double A = 2 * s.pg + smooth, B = s.p + s.g + smooth;
            double loss = (double)l->attr->mask_loss.focal * s.focal / (double)(m.rows * m.columns) +
                          (double)l->attr->mask_loss.dice * (1 - A / B);
            if (k && !(loss < best)) continue;
            best = loss;
            stats[0] = (double)k, stats[1] = A, stats[2] = B, stats[3] = s.both / fmax(s.either, 1);
        }
        for (int i = 0; i < MASK_STATS; i++) ref_put(&l->out[1], n * MASK_STATS + i, stats[i]);
        if (stats[0] < 0) continue;
        double off = ref_get(&l->in[1], n * m.K + (int64_t)stats[0]) - stats[3];
        total += best + (double)l->attr->mask_loss.iou * off * off;
    }
    ref_put(&l->out[0], 0, total * ref_get(&l->in[4], 0));
}

/* Returns the derivative of focal / pixels + dice, each times its weight, at one pixel. */
static double pixel_slope(const struct ref_mask *m, double logit, bool g, double A, double B)
{
    const struct launch *l = m->l;
    double z = g ? logit : -logit, q = sigmoid(-z), gamma = (double)l->attr->mask_loss.gamma, p = sigmoid(logit);
    double focal = -alpha_of(l, g) * pow(q, gamma) * (gamma * (1 - q) * softplus(-z) + q) * (g ? 1 : -1);
    double dice = (A - (g ? 2 * B : 0)) / (B * B) * p * (1 - p);
    return (double)l->attr->mask_loss.focal * focal / (double)(m->rows * m->columns) +
           (double)l->attr->mask_loss.dice * dice;
}

static void ref_mask_loss_bwd(const struct launch *l)
{
    const double factor = ref_get(&l->in[4], 0) * ref_get(&l->in[6], 0);
    for (int64_t n = 0; n < l->in[0].dim[0]; n++) {
        const struct ref_mask m = ref_mask_of(l, 2, n);
        double stats[MASK_STATS];
        for (int i = 0; i < MASK_STATS; i++) stats[i] = ref_get(&l->in[5], n * MASK_STATS + i);
        for (int64_t k = 0; k < m.K; k++) {
            bool chosen = (double)k == stats[0];
            double off = chosen ? ref_get(&l->in[1], n * m.K + k) - stats[3] : 0;
            ref_put(&l->out[1], n * m.K + k, 2 * (double)l->attr->mask_loss.iou * off * factor);
            for (int64_t y = 0; y < m.h; y++)
                for (int64_t x = 0; x < m.w; x++) {
                    int64_t at = logit_at(&m, k, y, x);
                    bool counts = chosen && y < m.rows && x < m.columns;
                    ref_put(&l->out[0], at,
                            counts
                                ? pixel_slope(&m, ref_get(&l->in[0], at), target(&m, y, x), stats[1], stats[2]) * factor
                                : 0);
                }
        }
    }
}

REF_KERNEL(WINDOW, window);
REF_KERNEL(UNWINDOW, unwindow);
REF_KERNEL(FOURIER, fourier);
REF_KERNEL(MASK_LOSS, mask_loss);
REF_KERNEL(MASK_LOSS_BWD, mask_loss_bwd);

/* --- the structure loss ----------------------------------------------------------------------- */

/* Returns |mean over the window - target|. */
static double distance(const struct ref_mask *m, int64_t y, int64_t x)
{
    const int64_t size = m->l->attr->structure_loss.size, r = size / 2;
    double sum = 0;
    for (int64_t v = y - r; v <= y + r; v++)
        for (int64_t u = x - r; u <= x + r; u++) sum += target(m, v, u);
    return fabs(sum / (double)(size * size) - target(m, y, x));
}

struct edge_sums {
    double bce, weights, intersection, sum, both, either;
};

static struct edge_sums edge_sums_of(const struct ref_mask *m)
{
    struct edge_sums s = {0};
    for (int64_t y = 0; y < m->rows; y++)
        for (int64_t x = 0; x < m->columns; x++) {
            const bool g = target(m, y, x);
            const double d = distance(m, y, x), logit = ref_get(&m->l->in[0], logit_at(m, 0, y, x)), p = sigmoid(logit);
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
        const struct ref_mask m = ref_mask_of(l, 1, n);
        double stats[MASK_STATS] = {-1, 0, 0, 0}, weights = 0;
        if (m.rows && m.columns) {
            const struct edge_sums s = edge_sums_of(&m);
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

/* Returns the derivative at one pixel. */
static double edge_slope(const struct ref_mask *m, int64_t y, int64_t x)
{
    const struct launch *l = m->l;
    const bool g = target(m, y, x);
    const double d = distance(m, y, x), p = sigmoid(ref_get(&m->l->in[0], logit_at(m, 0, y, x))),
                 A = ref_get(&l->in[4], m->n * MASK_STATS + 1), B = ref_get(&l->in[4], m->n * MASK_STATS + 2);
    const double bce = (1 + (double)l->attr->structure_loss.bce_edge * d) * (p - g) / ref_get(&l->in[5], m->n);
    return bce + (1 + (double)l->attr->structure_loss.edge * d) * (g ? -1 / B : A / (B * B)) * p * (1 - p);
}

static void ref_structure_loss_bwd(const struct launch *l)
{
    const double factor = ref_get(&l->in[3], 0) * ref_get(&l->in[6], 0);
    for (int64_t n = 0; n < l->in[0].dim[0]; n++) {
        const struct ref_mask m = ref_mask_of(l, 1, n);
        for (int64_t y = 0; y < m.h; y++)
            for (int64_t x = 0; x < m.w; x++)
                ref_put(&l->out[0], (n * m.h + y) * m.w + x,
                        y < m.rows && x < m.columns ? edge_slope(&m, y, x) * factor : 0);
    }
}

REF_KERNEL(STRUCTURE_LOSS, structure_loss);
REF_KERNEL(STRUCTURE_LOSS_BWD, structure_loss_bwd);
