/*
 * ref_maps.c: reference kernels of the ops that move elements and of the ops on maps [B,H,W,C] (see
 * ref.h).
 */
#include <math.h>

#include "cpu/reference/ref.h"

/* --- moving elements --------------------------------------------------------- */

static void ref_concat(const struct launch *l)
{
    const struct operand *y = &l->out[0];
    int64_t inner = 1, at = 0;
    for (int d = l->attr->concat.axis + 1; d < y->rank; d++) inner *= y->dim[d];
    const int64_t total = y->dim[l->attr->concat.axis] * inner;
    for (int k = 0; k < l->nin; k++) {
        const int64_t part = l->in[k].dim[l->attr->concat.axis] * inner;
        for (int64_t i = 0; i < operand_elements(&l->in[k]); i++)
            ref_put(y, i / part * total + at + i % part, ref_get(&l->in[k], i));
        at += part;
    }
}

static void ref_pad(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    for (int64_t i = 0; i < operand_elements(y); i++) {
        int64_t rest = i, from = 0, scale = 1;
        bool inside = true;
        for (int d = y->rank - 1; d >= 0; d--) {
            int64_t k = rest % y->dim[d] - l->attr->pad.before[d];
            inside &= k >= 0 && k < x->dim[d];
            from += k * scale;
            scale *= x->dim[d];
            rest /= y->dim[d];
        }
        ref_put(y, i, inside ? ref_get(x, from) : 0);
    }
}

static void ref_gather(const struct launch *l)
{
    const int64_t N = l->in[0].dim[1], M = l->out[0].dim[1], C = l->in[0].dim[2];
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) {
        const int64_t row = i / C, n = (int64_t)ref_get(&l->in[1], row);
        ref_put(&l->out[0], i, n >= 0 && n < N ? ref_get(&l->in[0], (row / M * N + n) * C + i % C) : 0);
    }
}

static void ref_scatter_add(const struct launch *l)
{
    const int64_t N = l->out[0].dim[1], M = l->in[1].dim[1], C = l->out[0].dim[2];
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) {
        const int64_t b = i / (N * C), n = i / C % N;
        double sum = ref_get_acc(l, 2, i);
        for (int64_t m = 0; m < M; m++)
            if ((int64_t)ref_get(&l->in[1], b * M + m) == n) sum += ref_get(&l->in[0], (b * M + m) * C + i % C);
        ref_put(&l->out[0], i, sum);
    }
}

/* --- resize ------------------------------------------------------------------- */

/* The two pixels that result pixel `at` lies between, and the second one's weight. */
struct between {
    int64_t low, high;
    double weight;
};

static struct between ref_between(int64_t at, int64_t from, int64_t to, bool align)
{
    double scale = align ? (to > 1 ? (double)(from - 1) / (double)(to - 1) : 0) : (double)from / (double)to;
    double place = align ? scale * (double)at : fmax(0, scale * ((double)at + 0.5) - 0.5);
    int64_t low = min_i64((int64_t)place, from - 1);
    return (struct between){low, min_i64(low + 1, from - 1), fmin(1, place - (double)low)};
}

/* The element of channel c of pixel (h, w) of image b. */
static int64_t ref_pixel(const struct operand *x, int64_t b, int64_t h, int64_t w, int64_t c)
{
    return ((b * x->dim[1] + h) * x->dim[2] + w) * x->dim[3] + c;
}

static void ref_resize(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const bool align = l->attr->resize.align_corners;
    for (int64_t i = 0; i < operand_elements(y); i++) {
        const int64_t C = y->dim[3], c = i % C, w = i / C % y->dim[2], h = i / C / y->dim[2] % y->dim[1];
        const int64_t b = i / C / y->dim[2] / y->dim[1];
        struct between p = ref_between(h, x->dim[1], y->dim[1], align), q = ref_between(w, x->dim[2], y->dim[2], align);
        double low = (1 - q.weight) * ref_get(x, ref_pixel(x, b, p.low, q.low, c)) +
                     q.weight * ref_get(x, ref_pixel(x, b, p.low, q.high, c));
        double high = (1 - q.weight) * ref_get(x, ref_pixel(x, b, p.high, q.low, c)) +
                      q.weight * ref_get(x, ref_pixel(x, b, p.high, q.high, c));
        ref_put(y, i, (1 - p.weight) * low + p.weight * high);
    }
}

/* The weight of pixel `i` in a result pixel. */
static double ref_share(struct between p, int64_t i)
{
    return (i == p.low ? 1 - p.weight : 0) + (i == p.high ? p.weight : 0);
}

static void ref_resize_bwd(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *dx = &l->out[0];
    const bool align = l->attr->resize.align_corners;
    for (int64_t i = 0; i < operand_elements(dx); i++) {
        const int64_t C = dx->dim[3], c = i % C, w = i / C % dx->dim[2], h = i / C / dx->dim[2] % dx->dim[1];
        const int64_t b = i / C / dx->dim[2] / dx->dim[1];
        double sum = 0;
        for (int64_t p = 0; p < dy->dim[1]; p++) {
            double share = ref_share(ref_between(p, dx->dim[1], dy->dim[1], align), h);
            for (int64_t q = 0; q < dy->dim[2] && share != 0; q++)
                sum += share * ref_share(ref_between(q, dx->dim[2], dy->dim[2], align), w) *
                       ref_get(dy, ref_pixel(dy, b, p, q, c));
        }
        ref_put(dx, i, sum);
    }
}

/* --- average pooling ------------------------------------------------------------- */

/* Pixels from .. to of window `at` along an axis, and the count that the mean divides by. */
struct window {
    int64_t from, to, count;
};

static struct window pool_window(const struct attr_avgpool *a, int axis, int64_t at, int64_t n, int64_t windows)
{
    if (a->adaptive) {
        int64_t from = at * n / windows, to = ((at + 1) * n + windows - 1) / windows;
        return (struct window){from, to, to - from};
    }
    int64_t begin = at * a->stride[axis] - a->pad[axis], end = begin + a->k[axis];
    int64_t from = max_i64(0, begin), to = min_i64(n, end);
    return (struct window){from, to, a->count_pad ? end - begin : to - from};
}

static void ref_avgpool(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    for (int64_t i = 0; i < operand_elements(y); i++) {
        const int64_t C = y->dim[3], c = i % C, w = i / C % y->dim[2], h = i / C / y->dim[2] % y->dim[1];
        const int64_t b = i / C / y->dim[2] / y->dim[1];
        struct window p = pool_window(&l->attr->avgpool, 0, h, x->dim[1], y->dim[1]);
        struct window q = pool_window(&l->attr->avgpool, 1, w, x->dim[2], y->dim[2]);
        double sum = 0;
        for (int64_t u = p.from; u < p.to; u++)
            for (int64_t v = q.from; v < q.to; v++) sum += ref_get(x, ref_pixel(x, b, u, v, c));
        ref_put(y, i, sum / (double)(p.count * q.count));
    }
}

static void ref_avgpool_bwd(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *dx = &l->out[0];
    for (int64_t i = 0; i < operand_elements(dx); i++) {
        const int64_t C = dx->dim[3], c = i % C, w = i / C % dx->dim[2], h = i / C / dx->dim[2] % dx->dim[1];
        const int64_t b = i / C / dx->dim[2] / dx->dim[1];
        double sum = 0;
        for (int64_t u = 0; u < dy->dim[1]; u++) {
            struct window p = pool_window(&l->attr->avgpool, 0, u, dx->dim[1], dy->dim[1]);
            for (int64_t v = 0; v < dy->dim[2] && h >= p.from && h < p.to; v++) {
                struct window q = pool_window(&l->attr->avgpool, 1, v, dx->dim[2], dy->dim[2]);
                if (w >= q.from && w < q.to)
                    sum += ref_get(dy, ref_pixel(dy, b, u, v, c)) / (double)(p.count * q.count);
            }
        }
        ref_put(dx, i, sum);
    }
}

REF_KERNEL(CONCAT, concat);
REF_KERNEL(PAD, pad);
REF_KERNEL(GATHER, gather);
REF_KERNEL(SCATTER_ADD, scatter_add);
REF_KERNEL(RESIZE, resize);
REF_KERNEL(RESIZE_BWD, resize_bwd);
REF_KERNEL(AVGPOOL, avgpool);
REF_KERNEL(AVGPOOL_BWD, avgpool_bwd);
