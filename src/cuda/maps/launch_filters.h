/*
 * launch_filters.h: the launchers of filters.cu (see launch.h).
 */
#ifndef LAUNCH_FILTERS_H
#define LAUNCH_FILTERS_H

#include "cuda/maps/filters.h"
#include "cuda/device/typed_ptr.h"

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cuda_filters(struct typed_ptr y, struct typed_ptr a, struct typed_ptr z, struct filters n,
                         cudaStream_t stream);
/* dz may alias z. */
cudaError_t cuda_filters_bwd(struct typed_ptr da, struct typed_ptr dz, struct typed_ptr dy, struct typed_ptr a,
                             struct typed_ptr z, struct filters n, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
