/*
 * launch_thin.h: the launcher of thin.cu (see launch.h).
 */
#ifndef LAUNCH_THIN_H
#define LAUNCH_THIN_H

#include "cuda/thin.h"
#include "cuda/typed_ptr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whichever is the result is written. x lies at a multiple of 16 bytes. partial: of THIN_ACROSS,
 * batches x blocks x m x K floats. z, where t.gelu says so and the way is up: the argument, of x's type and at such a
 * multiple; it may be x. */
cudaError_t cuda_thin(struct typed_ptr s, struct typed_ptr x, struct typed_ptr y, const void *z, float *partial, struct thin t, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
