/*
 * sweep.c: the sweeps of convolutions (sweep.h).
 */
#include "base/base.h"
#include "graph/sweep.h"

bool conv_is_depthwise(const struct conv *n) { return n->depth != n->C; }

struct sweep sweep_forward(const struct conv *n)
{
    return (struct sweep){.B = n->B, .H = n->H, .W = n->W, .ny = n->H2, .nx = n->W2, .step = n->stride,
                          .y0 = -n->pad, .x0 = -n->pad, .ky = n->kh, .kx = n->kw, .tap_step = 1,
                          .out_H = n->H2, .out_W = n->W2, .out_step = 1};
}

/* Computes one axis of a phase: its first pixel, the number of pixels, its taps, and the row of dy
 * that the first pixel's first tap reads. Taps are in descending order, so that rows of dy are
 * ascending. */
static void phase_axis(int64_t size, int64_t k, int64_t stride, int64_t pad, int64_t r, int64_t *first, int64_t *count,
                       int64_t *taps, int64_t *tap, int64_t *row)
{
    *first = ((r - pad) % stride + stride) % stride;
    *count = *first < size ? ceil_div(size - *first, stride) : 0;
    *taps = r < k ? ceil_div(k - r, stride) : 0;
    *tap = r + stride * (*taps - 1);
    *row = (*first + pad - r) / stride - (*taps - 1);
}

struct sweep sweep_backward(const struct conv *n, int64_t ry, int64_t rx)
{
    struct sweep s = {.B = n->B, .H = n->H2, .W = n->W2, .step = 1, .tap_step = -n->stride,
                      .out_H = n->H, .out_W = n->W, .out_step = n->stride};
    phase_axis(n->H, n->kh, n->stride, n->pad, ry, &s.oy, &s.ny, &s.ky, &s.tap_y, &s.y0);
    phase_axis(n->W, n->kw, n->stride, n->pad, rx, &s.ox, &s.nx, &s.kx, &s.tap_x, &s.x0);
    return s;
}
