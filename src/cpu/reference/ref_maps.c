/*
 * ref_maps.c: reference kernels of the ops that move elements and of the ops on maps [B,H,W,C],
 * convolutions among them (see ref.h).
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

/* Returns the element of channel c of pixel (h, w) of image b. */
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

/* Returns the weight of pixel `i` in a result pixel. */
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

/* --- convolutions -----------------------------------------------------------------------------
 *
 * All three compute the same sum (src/graph/vjp.c); they differ in which index is fixed. */

/* One convolution, from the operands that are given. */
struct ref_shape {
    int64_t B, H, W, C, H2, W2, O, kh, kw; // x [B,H,W,C], y [B,H2,W2,O]
    int64_t stride, pad, depth;            // depth: channels of x that a result sees, C / groups
};

static struct ref_shape ref_shape(const struct launch *l, const struct operand *x, const struct operand *y,
                                  const struct operand *w)
{
    return (struct ref_shape){.B = x->dim[0], .H = x->dim[1], .W = x->dim[2], .C = x->dim[3], .H2 = y->dim[1],
                              .W2 = y->dim[2], .O = y->dim[3], .kh = w->dim[2], .kw = w->dim[3],
                              .stride = l->attr->conv.stride, .pad = l->attr->conv.pad, .depth = w->dim[1]};
}

/* Returns channel c of a result's kernel as a channel of x: all channels, or (depthwise) only its
 * own. */
static int64_t ref_channel(const struct ref_shape *n, int64_t o, int64_t c) { return n->depth == n->C ? c : o + c; }

/* Returns the element of x that result (i,j) multiplies with (u,v); -1: outside. */
static int64_t conv_pixel(const struct ref_shape *n, int64_t b, int64_t i, int64_t j, int64_t u, int64_t v)
{
    int64_t y = i * n->stride + u - n->pad, x = j * n->stride + v - n->pad;
    return y < 0 || y >= n->H || x < 0 || x >= n->W ? -1 : ((b * n->H + y) * n->W + x) * n->C;
}

static void ref_conv(const struct launch *l)
{
    const struct operand *x = &l->in[0], *w = &l->in[1], *y = &l->out[0];
    const struct ref_shape n = ref_shape(l, x, y, w);
    for (int64_t at = 0; at < operand_elements(y); at++) {
        const int64_t o = at % n.O, j = at / n.O % n.W2, i = at / n.O / n.W2 % n.H2, b = at / n.O / n.W2 / n.H2;
        double sum = ref_get_acc(l, 2, o); // bias
        for (int64_t u = 0; u < n.kh; u++)
            for (int64_t v = 0; v < n.kw; v++) {
                int64_t pixel = conv_pixel(&n, b, i, j, u, v);
                for (int64_t c = 0; c < n.depth && pixel >= 0; c++)
                    sum += ref_get(x, pixel + ref_channel(&n, o, c)) *
                           ref_get(w, ((o * n.depth + c) * n.kh + u) * n.kw + v);
            }
        ref_put(y, at, sum);
    }
}

/* Returns result (h,k) of dx: it sums over the (i,j) of dy that used it: i stride + u - pad = h. */
static double ref_dx(const struct launch *l, const struct ref_shape *n, int64_t b, int64_t h, int64_t k, int64_t c)
{
    const struct operand *dy = &l->in[0], *w = &l->in[1];
    const bool own = n->depth != n->C; // depthwise: only result c saw channel c
    double sum = 0;
    for (int64_t u = 0; u < n->kh; u++)
        for (int64_t v = 0; v < n->kw; v++) {
            int64_t i = h + n->pad - u, j = k + n->pad - v;
            if (i < 0 || j < 0 || i % n->stride || j % n->stride) continue;
            i /= n->stride, j /= n->stride;
            if (i >= n->H2 || j >= n->W2) continue;
            for (int64_t o = own ? c : 0; o < (own ? c + 1 : n->O); o++)
                sum += ref_get(dy, ((b * n->H2 + i) * n->W2 + j) * n->O + o) *
                       ref_get(w, ((o * n->depth + (own ? 0 : c)) * n->kh + u) * n->kw + v);
        }
    return sum;
}

static void ref_conv_dx(const struct launch *l)
{
    const struct operand *dx = &l->out[0];
    const struct ref_shape n = ref_shape(l, dx, &l->in[0], &l->in[1]);
    for (int64_t at = 0; at < operand_elements(dx); at++) {
        const int64_t c = at % n.C, k = at / n.C % n.W, h = at / n.C / n.W % n.H, b = at / n.C / n.W / n.H;
        ref_put(dx, at, ref_get_acc(l, 2, c) + ref_dx(l, &n, b, h, k, c));
    }
}

static void ref_conv_dw(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1], *dw = &l->out[0];
    const struct ref_shape n = ref_shape(l, x, dy, dw);
    for (int64_t at = 0; at < operand_elements(dw); at++) {
        const int64_t v = at % n.kw, u = at / n.kw % n.kh, c = at / n.kw / n.kh % n.depth,
                      o = at / n.kw / n.kh / n.depth;
        double sum = ref_get_acc(l, 2, at);
        for (int64_t b = 0; b < n.B; b++)
            for (int64_t i = 0; i < n.H2; i++)
                for (int64_t j = 0; j < n.W2; j++) {
                    int64_t pixel = conv_pixel(&n, b, i, j, u, v);
                    if (pixel < 0) continue;
                    sum +=
                        ref_get(dy, ((b * n.H2 + i) * n.W2 + j) * n.O + o) * ref_get(x, pixel + ref_channel(&n, o, c));
                }
        ref_put(dw, at, sum);
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
REF_KERNEL(CONV, conv);
REF_KERNEL(CONV_DX, conv_dx);
REF_KERNEL(CONV_DW, conv_dw);
