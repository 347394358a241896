/*
 * launch_elementwise.h: launchers of elementwise.cu, act_sums.cu, strided.cu and sums.cu (see
 * launch.h).
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

/* Dense operands of n elements each, 16-byte aligned, of the given types. */
cudaError_t cuda_pair(enum function f, void *y, const void *a, const void *b, enum store type, int64_t n,
                      cudaStream_t stream);
cudaError_t cuda_map(enum function f, void *y, const void *a, enum store type, int64_t n, float value,
                     cudaStream_t stream);
cudaError_t cuda_cast(void *y, const void *a, enum store to, enum store from, int64_t n, cudaStream_t stream);
/* Computes dx [rows,C] = dy times the derivative of `kind` at x; y, its value, unless NULL; and
 * sums [C], the column sums of dx. Requires act_sums_fit. partial: [blocks,C]. */
cudaError_t cuda_act_sums(int kind, void *dx, void *y, float *sums, float *partial, const void *dy, const void *x,
                          enum store type, struct act_sums s, cudaStream_t stream);
/* Computes acc += x, in acc's type. */
cudaError_t cuda_accumulate(void *acc, const void *x, enum store to, enum store from, int64_t n, cudaStream_t stream);

/* Many short f32 vectors of n elements each: y += x, or, without x, y = value. */
enum { VECTORS_MOST = 64, VECTOR_LONGEST = 1 << 14 };
struct vectors {
    int count;
    float value;
    float *y[VECTORS_MOST];
    const float *x[VECTORS_MOST];
    int32_t n[VECTORS_MOST];
};
cudaError_t cuda_vectors(struct vectors v, cudaStream_t stream);

/* Dense operands of any alignment. The gate's y is not computed if it is NULL. */
cudaError_t cuda_act_both(int kind, void *dx, void *y, const void *dy, const void *x, enum store type, int64_t n,
                          cudaStream_t stream);
cudaError_t cuda_silu_gate_bwd(void *dgate, void *dup, void *y, const void *dy, const void *gate, const void *up,
                               enum store type, int64_t n, int access, cudaStream_t stream);
cudaError_t cuda_spread(void *y, const void *ds, enum any from, enum store type, int64_t n, int access,
                        cudaStream_t stream);
/* Drops elements of x [B,each]; see cpu/rows/elementwise.c. */
cudaError_t cuda_dropout(void *y, const void *x, const struct step_block *step, const int32_t *samples, enum store type,
                         int64_t B, int64_t each, uint32_t key, uint32_t threshold, float scale, int per_sample,
                         int access, cudaStream_t stream);

/* Computes ADD and MUL of one type and any strides; cuda_any is a slower kernel for everything. */
cudaError_t cuda_pair_strided(enum function f, void *y, const void *a, const void *b, enum store type,
                              struct loop_nest nest, int access, enum pair_form form, cudaStream_t stream);
struct any_types {
    enum any y, a, b;
};
cudaError_t cuda_any(enum function f, void *y, const void *a, const void *b, struct any_types types,
                     struct loop_nest nest, float value, cudaStream_t stream);

/* Sums all elements. partial: sum_blocks floats. */
cudaError_t cuda_sum(float *y, float *partial, const void *x, enum store type, struct loop_nest nest, int access,
                     enum sum_form form, cudaStream_t stream);
/* Sums to a shape. partial: s.blocks * N floats; not used with one block. */
cudaError_t cuda_sum_to(struct typed_ptr y, float *partial, const void *x, enum store type, struct summing s, int64_t N,
                        int accumulate, int access, enum sum_to_form form, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
