/*
 * launch_thin.h: the launcher of thin.cu (see launch.h).
 */
#ifndef LAUNCH_THIN_H
#define LAUNCH_THIN_H

#include "cuda/products/thin.h"
#include "cuda/device/typed_ptr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the operand that t.mode selects as the result. x is at a multiple of 16 bytes. partial,
 * for THIN_ACROSS: batches x blocks x m x K floats. z, if t.gelu and the mode is THIN_UP: the
 * argument of the GELU, of x's type and alignment; it may alias x. */
cudaError_t cuda_thin(struct typed_ptr s, struct typed_ptr x, struct typed_ptr y, const void *z, float *partial,
                      struct thin t, enum thin_form form, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
