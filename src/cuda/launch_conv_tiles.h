/*
 * launch_conv_tiles.h: the launchers of conv_tiles.cu: convolutions by 2 x 2 with stride 2, as SAM's decoder has
 * them, without a matrix of patches. Weights are by tap, [O,K] with K = 4 C; elements are bf16 or f16.
 */
#ifndef LAUNCH_CONV_TILES_H
#define LAUNCH_CONV_TILES_H

#include <stdbool.h>

#include "cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The fine map has P tiles of two runs, each of K / 2 elements; W2 tiles stand side by side. */
struct conv_tiles {
    int64_t P;
    int O, K, W2;
};

/* Whether there are kernels for a map of that form, and room for them on the GPU at hand. */
bool cuda_conv_tiles_fit(const struct conv_tiles *n);

/* coarse [P,O] = fine [P,K] weights^T, plus bias [O] where it is not NULL. */
cudaError_t cuda_conv_tiles(void *coarse, const void *fine, const void *weights, const void *bias, const struct conv_tiles *n,
                            enum store type, cudaStream_t stream);
/* fine [P,K] = coarse [P,O] weights, plus bias [K]. */
cudaError_t cuda_conv_tiles_dx(void *fine, const void *coarse, const void *weights, const void *bias, const struct conv_tiles *n,
                               enum store type, cudaStream_t stream);
/* dw [O,K] = coarse^T fine. Parts of the sum, 0: there is no room for one in so many bytes; each is O K floats. */
int64_t cuda_conv_tiles_parts(const struct conv_tiles *n, uint64_t bytes);
cudaError_t cuda_conv_tiles_dw(float *dw, const void *coarse, const void *fine, float *partial, int64_t parts, const struct conv_tiles *n,
                               enum store type, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
