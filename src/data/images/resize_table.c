/*
 * resize_table.c: the weights of an axis (see resize.h). One row per filter.
 *
 * A filter that shrinks is widened by the scale, which is the antialiasing. The triangle's weights
 * are 14-bit integers with a sum of exactly 1.0, so no result leaves 0..255 and equal pixels stay
 * equal. The other filters' are rounded one by one: to 22 bits, as Pillow rounds them, which gives
 * Pillow's bytes; or to the most bits, up to 22, with which the largest weight of the axis fits
 * into 16 bits with its sign, as PyTorch rounds them.
 *
 * The weights of a position are computed twice: once for the largest number of them, and once to
 * store them with that number. Where the first weight of a position is 0 and is left out, the next
 * position may begin before it; rows arrive in order and are dropped in order, so no position
 * begins behind the next one.
 */
#include "data/images/resize.h"

#include <math.h>

static double triangle(double x) { return x < 1 ? 1 - x : 0; }

/* Returns Keys' cubic convolution with a = -0.5. */
static double cubic(double x)
{
    const double a = -0.5;
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double sinc(double x)
{
    if (x == 0) return 1;
    x *= M_PI;
    return sin(x) / x;
}

static double lanczos(double x) { return x < 3 ? sinc(x) * sinc(x / 3) : 0; }

static const struct filter {
    double support;             /* half its width, at scale 1 */
    double (*kernel)(double x); /* of the distance */
    int bits;                   /* of a weight; 0: those of an axis, PyTorch's */
} filters[] = {
    [RESIZE_BILINEAR] = {1, triangle, RESIZE_BITS},
    [RESIZE_BICUBIC] = {2, cubic, RESIZE_FINE_BITS},
    [RESIZE_LANCZOS] = {3, lanczos, RESIZE_FINE_BITS},
    [RESIZE_TORCH_BICUBIC] = {2, cubic, 0},
};

/* Returns by how much the filter is widened. */
static double widening(const struct resize_window *w)
{
    double scale = w->length / w->to;
    return scale < 1 ? 1 : scale;
}

static double half_width(const struct resize_window *w) { return filters[w->filter].support * widening(w); }

uint32_t resize_table_taps(const struct resize_window *w) { return (uint32_t)ceil(half_width(w)) * 2 + 1; }

/* Returns the source positions [*a, *b) under the filter at output position i, and its centre. */
static double span(const struct resize_window *w, uint32_t i, int64_t *a, int64_t *b)
{
    double centre = w->from + (i + 0.5) * (w->length / w->to), support = half_width(w);
    *a = max_i64((int64_t)(centre - support + 0.5), 0);
    *b = min_i64((int64_t)(centre + support + 0.5), w->source);
    if (*b <= *a) *a = min_i64(max_i64((int64_t)centre, 0), w->source - 1), *b = *a + 1;
    return centre;
}

/* Rounds n weights to whole numbers that sum to 2^14; the rounding error is added to the
 * largest. */
static void round_to_sum(double *weight, double total, int64_t n)
{
    const double one = 1 << RESIZE_BITS;
    double sum = 0;
    int64_t largest = 0;
    for (int64_t k = 0; k < n; k++) {
        sum += weight[k] = rint(weight[k] / total * one);
        if (weight[k] > weight[largest]) largest = k;
    }
    weight[largest] += one - sum;
}

static void round_each(double *weight, double total, int64_t n, int bits)
{
    const double one = 1 << bits;
    for (int64_t k = 0; k < n; k++) {
        double x = weight[k] / total * one;
        weight[k] = trunc(x < 0 ? x - 0.5 : x + 0.5);
    }
}

/* Computes the weights of output position i, from source position *a to before *b; returns their
 * sum. */
static double evaluate(const struct resize_window *w, uint32_t i, double *weight, int64_t *a, int64_t *b)
{
    const double centre = span(w, i, a, b), narrow = 1 / widening(w);
    double total = 0;
    for (int64_t k = *a; k < *b; k++) {
        weight[k - *a] = filters[w->filter].kernel(fabs((k - centre + 0.5) * narrow));
        total += weight[k - *a];
    }
    if (total <= 0) weight[0] = total = 1;
    return total;
}

/* Returns the bits of PyTorch's weights, of which the largest of the whole axis decides. */
static int torch_bits(const struct resize_window *w, double *weight)
{
    double largest = 0;
    int bits = 0;
    for (uint32_t i = 0; i < w->to; i++) {
        int64_t a, b;
        const double total = evaluate(w, i, weight, &a, &b);
        for (int64_t k = 0; k < b - a; k++) largest = fmax(largest, weight[k] / total);
    }
    while (bits < RESIZE_FINE_BITS && (int)(0.5 + largest * (1 << (bits + 1))) <= INT16_MAX) bits++;
    return bits;
}

/* Computes the weights of output position i, as whole numbers without zeros at the ends; returns
 * their number. */
static uint32_t weigh(const struct resize_window *w, uint32_t i, int bits, double *weight, uint32_t *first)
{
    int64_t a, b;
    const double total = evaluate(w, i, weight, &a, &b);
    if (w->filter == RESIZE_BILINEAR) round_to_sum(weight, total, b - a);
    else round_each(weight, total, b - a, bits);
    uint32_t lead = 0, end = (uint32_t)(b - a);
    while (lead + 1 < end && weight[lead] == 0) lead++;
    while (end > lead + 1 && weight[end - 1] == 0) end--;
    memmove(weight, weight + lead, (end - lead) * sizeof *weight);
    *first = (uint32_t)a + lead;
    return end - lead;
}

static uint32_t position(const struct resize_window *w, uint32_t i)
{
    return w->mirror ? w->to - 1 - (w->out + i) : w->out + i;
}

static size_t weight_size(const struct resize_window *w)
{
    return w->filter == RESIZE_BILINEAR ? sizeof(int16_t) : sizeof(int32_t);
}

size_t resize_table_bytes(const struct resize_window *w)
{
    const uint32_t taps = resize_table_taps(w);
    return align_up(w->n * sizeof(uint32_t), 64) + align_up((size_t)w->n * taps * weight_size(w), 64) +
           align_up(taps * sizeof(double), 64);
}

void *resize_carve(uint8_t **at, size_t bytes)
{
    void *p = *at;
    *at += align_up(bytes, 64);
    return p;
}

/* Stores the n weights of row i, of which the first is for source position `from`. The row may
 * begin earlier, with zeros: at first[i], or so that it does not end behind the source. */
static void store(struct resize_axis *x, const struct resize_window *w, uint32_t i, const double *weight, uint32_t from,
                  uint32_t n)
{
    x->first[i] = (uint32_t)min_u64(x->first[i], w->source - x->taps);
    const uint32_t lead = from - x->first[i];
    const size_t row = (size_t)i * x->taps;
    for (uint32_t k = 0; k < x->taps; k++) {
        double v = k < lead || k - lead >= n ? 0 : weight[k - lead];
        if (x->fine) x->fine[row + k] = (int32_t)v;
        else x->weight[row + k] = (int16_t)v;
    }
}

void resize_table_fill(struct resize_axis *x, const struct resize_window *w, uint8_t **at)
{
    const uint32_t taps = resize_table_taps(w);
    x->first = resize_carve(at, w->n * sizeof *x->first);
    void *weights = resize_carve(at, (size_t)w->n * taps * weight_size(w));
    double *row = resize_carve(at, taps * sizeof *row);
    if (w->filter == RESIZE_BILINEAR) x->weight = weights;
    else x->fine = weights;
    x->bits = filters[w->filter].bits ? filters[w->filter].bits : torch_bits(w, row);
    x->taps = 1;
    uint32_t from;
    for (uint32_t i = w->n; i-- > 0;) {
        uint32_t n = weigh(w, position(w, i), x->bits, row, &from);
        x->first[i] = w->mirror || i + 1 == w->n || from < x->first[i + 1] ? from : x->first[i + 1];
        if (from + n - x->first[i] > x->taps) x->taps = from + n - x->first[i];
    }
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t n = weigh(w, position(w, i), x->bits, row, &from);
        store(x, w, i, row, from, n);
    }
}
