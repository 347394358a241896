/*
 * sweep.h: convolutions as sweeps, the common structure of forward and backward, for every device.
 *
 * A sweep writes a grid of results, each the sum over some taps (a,b) of the input map times
 * weights:
 *
 *     result (i,j)  =  sum over a < ky, b < kx of
 *                      map(y0 + i step + a, x0 + j step + b) . weight(tap_y + a tap_step, ...)
 *     and is stored at (oy + i out_step, ox + j out_step) of the output map.
 *
 * CONV is one sweep. CONV_DX is stride x stride of them: pixel h of dx depends on the rows i of dy
 * with h = i stride + u - pad, so the pixels with equal r = (h + pad) mod stride use the taps u =
 * r, r + stride, ... and consecutive ones of them use consecutive rows of dy. Each such phase
 * gathers, so no two results share a sum:
 *
 *     stride 2, 3 taps:   h + pad   0   1   2   3   4      phase 0 (even): taps 2, 0
 *                         taps     0,2  1  0,2  1  0,2     phase 1 (odd):  tap 1
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct sweep {
    int64_t B;
    int64_t H, W;                   /* the input map */
    int64_t ny, nx;                 /* results per image */
    int64_t step, y0, x0;
    int64_t ky, kx;                 /* taps; 0 if the phase has none */
    int64_t tap_y, tap_x, tap_step; /* as indices into the kernel */
    int64_t out_H, out_W, out_step, oy, ox;
};

/* The shapes of one convolution: x [B,H,W,C], y [B,H2,W2,O], w [O,depth,kh,kw]. */
struct conv {
    int64_t B, H, W, C, H2, W2, O, depth, kh, kw, stride, pad;
};

bool conv_is_depthwise(const struct conv *n);
struct sweep sweep_forward(const struct conv *n);
/* Returns phase ry, rx < stride of the gradient of x. */
struct sweep sweep_backward(const struct conv *n, int64_t ry, int64_t rx);
