/*
 * launch_filters.h: the launchers of filters.cu (see launch.h).
 */
#ifndef LAUNCH_FILTERS_H
#define LAUNCH_FILTERS_H

#include "cuda/filters.h"
#include "cuda/typed.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cuda_filters(struct typed y, struct typed a, struct typed z, struct filters n, cudaStream_t stream);
/* dz may lie where z does. */
cudaError_t cuda_filters_bwd(struct typed da, struct typed dz, struct typed dy, struct typed a, struct typed z, struct filters n,
                             cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
