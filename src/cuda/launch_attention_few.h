/*
 * launch_attention_few.h: the seam between attention_few.c and attention_few.cu (launch.h).
 */
#ifndef LAUNCH_ATTENTION_FEW_H
#define LAUNCH_ATTENTION_FEW_H

#include "cuda/attention_few.h"
#include "cuda/launch.h"

/* [B,tokens,H,D], the last dense: the element (b,t,h,d) lies at b * sample + t * token + h * head + d. */
struct few_rows {
    void *data;
    int64_t sample, token, head;
};

/* One attention: its operands as ops.def names them, its shape, how it is cut, its workspace. */
struct few_attention {
    struct few_rows q, k, v, o, dout, dq, dk, dv;
    float *lse;                     /* forward writes it, backward of FEW_QUERIES reads it */
    int64_t lse_sample, lse_head, lse_token;
    const float *mask;              /* [B,S], or NULL */
    int64_t mask_sample, mask_key;
    enum store type;
    int B, T, S, H, D;
    float scale;
    struct few_cut cut;
    float *partial, *other;         /* attention_few.h */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Rows begin at multiples of 16 bytes; D is a multiple of 8, up to 128. What is a sum over rows is left to join,
 * where there are splits to be joined. */
cudaError_t cuda_attention_few(const struct few_attention *a, int backward, cudaStream_t stream);
/* The same on tensor cores: bf16 or f16, D of FEW_MMA_WIDTH, a GPU of compute capability 8.0 or more. */
cudaError_t cuda_attention_few_mma(const struct few_attention *a, int backward, cudaStream_t stream);
/* Behind either. */
cudaError_t cuda_attention_few_join(const struct few_attention *a, int backward, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
