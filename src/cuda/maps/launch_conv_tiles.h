/*
 * launch_conv_tiles.h: the launchers of conv_tiles.cu: 2 x 2 convolutions with stride 2, as in
 * SAM's decoder, without a matrix of patches. Weights are stored by tap, [O,K] with K = 4 C;
 * elements are bf16 or f16.
 */
#ifndef LAUNCH_CONV_TILES_H
#define LAUNCH_CONV_TILES_H

#include <stdbool.h>

#include "cuda/device/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The fine map has P tiles of two runs of K / 2 elements each; a row of the map has W2 tiles. */
struct conv_tiles {
    int64_t P;
    int O, K, W2;
};

/* Whether there are kernels for this shape, and the GPU in use has the shared memory for them. */
bool cuda_conv_tiles_fit(const struct conv_tiles *n);

/* coarse [P,O] = fine [P,K] weights^T, plus bias [O] where it is not NULL. */
cudaError_t cuda_conv_tiles(void *coarse, const void *fine, const void *weights, const void *bias, const struct conv_tiles *n,
                            enum store type, cudaStream_t stream);
/* fine [P,K] = coarse [P,O] weights, plus bias [K]. */
cudaError_t cuda_conv_tiles_dx(void *fine, const void *coarse, const void *weights, const void *bias, const struct conv_tiles *n,
                               enum store type, cudaStream_t stream);
/* dw [O,K] = coarse^T fine. The number of partial sums, of O K floats each, that fit `bytes` bytes;
 * 0: none fits. */
int64_t cuda_conv_tiles_parts(const struct conv_tiles *n, uint64_t bytes);
cudaError_t cuda_conv_tiles_dw(float *dw, const void *coarse, const void *fine, float *partial, int64_t parts, const struct conv_tiles *n,
                               enum store type, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
