/*
 * ref_conv.c: reference kernels of convolutions (see ref.c for the reference's guarantees). All
 * three compute the same sum (src/graph/conv.c); they differ in which index is fixed.
 */
#include "cpu/reference/ref.h"

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

/* Channel c of a result's kernel as a channel of x: all channels, or (depthwise) only its own. */
static int64_t ref_channel(const struct ref_shape *n, int64_t o, int64_t c) { return n->depth == n->C ? c : o + c; }

/* The element of x that result (i,j) multiplies with (u,v); -1: outside. */
static int64_t ref_pixel(const struct ref_shape *n, int64_t b, int64_t i, int64_t j, int64_t u, int64_t v)
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
                int64_t pixel = ref_pixel(&n, b, i, j, u, v);
                for (int64_t c = 0; c < n.depth && pixel >= 0; c++)
                    sum += ref_get(x, pixel + ref_channel(&n, o, c)) *
                           ref_get(w, ((o * n.depth + c) * n.kh + u) * n.kw + v);
            }
        ref_put(y, at, sum);
    }
}

/* Result (h,k) of dx sums over the (i,j) of dy that used it: i stride + u - pad = h. */
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
                    int64_t pixel = ref_pixel(&n, b, i, j, u, v);
                    if (pixel < 0) continue;
                    sum +=
                        ref_get(dy, ((b * n.H2 + i) * n.W2 + j) * n.O + o) * ref_get(x, pixel + ref_channel(&n, o, c));
                }
        ref_put(dw, at, sum);
    }
}

REF_KERNEL(CONV, conv);
REF_KERNEL(CONV_DX, conv_dx);
REF_KERNEL(CONV_DW, conv_dw);
