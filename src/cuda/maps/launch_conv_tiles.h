/*
 * launch_conv_tiles.h: the launchers of conv_tiles.cu: 2 x 2 convolutions with stride 2, as in
 * SAM's decoder, without a matrix of patches. Weights are stored by tap, [O,K] with K = 4 C;
 * elements are bf16 or f16.
 */
#ifndef LAUNCH_CONV_TILES_H
#define LAUNCH_CONV_TILES_H

#include "cuda/device/launch.h"
#include "cuda/maps/conv_tiles.h"

#ifdef __cplusplus
extern "C" {
#endif

/* coarse [P,O] = fine [P,K] weights^T, plus bias [O] where it is not NULL. */
cudaError_t cuda_conv_tiles(void *coarse, const void *fine, const void *weights, const void *bias,
                            const struct conv_tiles *n, enum store type, enum conv_tiles_form form,
                            cudaStream_t stream);
/* fine [P,K] = coarse [P,O] weights, plus bias [K]. */
cudaError_t cuda_conv_tiles_dx(void *fine, const void *coarse, const void *weights, const void *bias,
                               const struct conv_tiles *n, enum store type, enum conv_tiles_form form,
                               cudaStream_t stream);
/* dw [O,K] = coarse^T fine, from `parts` partial sums of O K floats each (conv_tiles_parts). */
cudaError_t cuda_conv_tiles_dw(float *dw, const void *coarse, const void *fine, float *partial, int64_t parts,
                               const struct conv_tiles *n, enum store type, enum conv_tiles_form form,
                               cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
