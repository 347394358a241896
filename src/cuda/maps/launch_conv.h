/*
 * launch_conv.h: the launchers of conv.cu, conv_tiles.cu and depthwise.cu (see launch.h). Launchers
 * that only move elements take the element size in bytes, 2 or 4, instead of the type, and move
 * `access` bytes at a time.
 */
#pragma once

#include <stdbool.h>

#include "cuda/device/launch.h"
#include "cuda/maps/conv_shapes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies rows first .. first+rows of the matrix of patches [B ny nx, ky kx C]; zeros outside the
 * map. */
cudaError_t cuda_conv_patches(void *to, const void *map, const struct conv_patches *g, int64_t first, int64_t rows,
                              int size, int access, enum patch_form form, cudaStream_t stream);

/* Taps of weights [O,depth,kh,kw]: tap t = (a,b) of element (o,c) is copied to to[o o_step + t
 * t_step + c]. */
struct tap_grid {
    int64_t O, depth, kh, kw, ky, kx, tap_y, tap_x, tap_step, o_step, t_step;
};
cudaError_t cuda_conv_weights(void *to, const void *w, const struct tap_grid *g, int size, cudaStream_t stream);
/* Computes dw [O,depth,taps] = from [O,taps,depth], or += it. */
cudaError_t cuda_conv_weights_back(float *dw, const float *from, int64_t O, int64_t depth, int64_t taps, bool add,
                                   cudaStream_t stream);

/* The results of a phase [B ny nx, C] and their pixels (oy + i step, ox + j step) in [B,H,W,C]. */
struct pixel_grid {
    int64_t H, W, C, ny, nx, step, oy, ox;
};
/* Copies results first .. first+rows, [rows,C], to their pixels. `same`: one vector [C] for all
 * results; it may be NULL for zeros. */
cudaError_t cuda_conv_scatter(void *to, const void *from, const struct pixel_grid *g, int64_t first, int64_t rows,
                              bool same, int size, int access, cudaStream_t stream);
/* Copies patches first .. first+rows, [rows, side side C], to their pixels in [B, H2 side, W2 side,
 * C]. */
cudaError_t cuda_conv_untile(void *to, const void *from, int64_t W2, int64_t side, int64_t C, int64_t first,
                             int64_t rows, int size, int access, cudaStream_t stream);
/* Repeats x [C] in to [times,C]. */
cudaError_t cuda_conv_repeat(void *to, const void *x, int64_t times, int64_t C, int size, cudaStream_t stream);

/* x [B,H,W,C], y [B,H2,W2,C], w [C,kh,kw]. */
struct depthwise {
    int64_t B, H, W, C, H2, W2, kh, kw, stride, pad;
};
/* y from x, or x from y; bias [C] may be NULL; scratch: kh kw C floats. */
cudaError_t cuda_depthwise(void *y, const void *x, const void *w, const void *bias, float *scratch,
                           const struct depthwise *n, enum store type, int access, cudaStream_t stream);
cudaError_t cuda_depthwise_dx(void *x, const void *y, const void *w, const void *bias, float *scratch,
                              const struct depthwise *n, enum store type, int access, cudaStream_t stream);
/* Writes dw [C,kh,kw] or adds to it; scratch: kh kw C floats per (started) group of `pixels` pixels
 * of dy. nine: a 3x3 filter over a multiple of 4 channels, both maps aligned to 16 bytes. */
cudaError_t cuda_depthwise_dw(float *dw, const void *dy, const void *x, float *scratch, const struct depthwise *n,
                              int64_t pixels, bool add, bool nine, enum store type, cudaStream_t stream);

/* 2 x 2 convolutions with stride 2, as in SAM's decoder, without a matrix of patches
 * (conv_tiles.cu). Weights are stored by tap, [O,K] with K = 4 C; elements are bf16 or f16. */

/* Computes coarse [P,O] = fine [P,K] weights^T, plus bias [O] where it is not NULL. */
cudaError_t cuda_conv_tiles(void *coarse, const void *fine, const void *weights, const void *bias,
                            const struct conv_tiles *n, enum store type, enum conv_tiles_form form,
                            cudaStream_t stream);
/* Computes fine [P,K] = coarse [P,O] weights, plus bias [K]. */
cudaError_t cuda_conv_tiles_dx(void *fine, const void *coarse, const void *weights, const void *bias,
                               const struct conv_tiles *n, enum store type, enum conv_tiles_form form,
                               cudaStream_t stream);
/* Computes dw [O,K] = coarse^T fine, from `parts` partial sums of O K floats each
 * (conv_tiles_parts). */
cudaError_t cuda_conv_tiles_dw(float *dw, const void *coarse, const void *fine, float *partial, int64_t parts,
                               const struct conv_tiles *n, enum store type, enum conv_tiles_form form,
                               cudaStream_t stream);

#ifdef __cplusplus
}
#endif
