/*
 * launch_elementwise.h: functions of elements, and launchers of strided.cu (see launch.h).
 */
#pragma once

#include "cuda/rows/loop_nest.h"
#include "cuda/device/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every dtype, for kernels that branch on it at run time. */
enum any { ANY_F64, ANY_F32, ANY_BF16, ANY_F16, ANY_I64, ANY_I32, ANY_U8 };

/* The function of the elements: y = f(a) or f(a, b). The ACT functions are in the order of enum
 * act_kind. */
enum function {
    FUNCTION_CAST, FUNCTION_SCALE, FUNCTION_ADD, FUNCTION_MUL, FUNCTION_SILU_GATE,
    FUNCTION_ACT,                   /* + kind */
    FUNCTION_SLOPE = FUNCTION_ACT + 8, /* + kind: a times the derivative at b */
};

/* Computes ADD and MUL of one type and any strides; cuda_any is a slower kernel for everything. */
cudaError_t cuda_pair_strided(enum function f, void *y, const void *a, const void *b, enum store type,
                              struct loop_nest nest, int access, enum pair_form form, cudaStream_t stream);
struct any_types {
    enum any y, a, b;
};
cudaError_t cuda_any(enum function f, void *y, const void *a, const void *b, struct any_types types,
                     struct loop_nest nest, float value, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
