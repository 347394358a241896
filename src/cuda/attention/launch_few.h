/*
 * launch_few.h: the launchers of few.cu and few_mma.cu, for
 * few.c (see launch.h).
 */
#ifndef LAUNCH_ATTENTION_FEW_H
#define LAUNCH_ATTENTION_FEW_H

#include "cuda/attention/few.h"
#include "cuda/device/launch.h"

/* [B,tokens,H,D] with a dense last dimension: element (b,t,h,d) is at b * sample + t * token + h *
 * head + d. */
struct few_rows {
    void *data;
    int64_t sample, token, head;
};

/* One attention: its operands as ops.def names them, its shape, its split into blocks, its
 * workspace. */
struct few_attention {
    struct few_rows q, k, v, o, dout, dq, dk, dv;
    float *lse;                     /* the forward writes it, the backward of FEW_QUERIES reads it */
    int64_t lse_sample, lse_head, lse_token;
    const float *mask;              /* [B,S], or NULL */
    int64_t mask_sample, mask_key;
    enum store type;
    int B, T, S, H, D;
    float scale;
    struct few_cut cut;
    float *partial, *other;         /* few.h */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Rows begin at multiples of 16 bytes; D is a multiple of 8, up to 128. If there are several
 * splits, sums over rows are partial afterwards and cuda_attention_few_join adds them. */
cudaError_t cuda_attention_few(const struct few_attention *a, int backward, cudaStream_t stream);
/* The same on tensor cores: bf16 or f16, D of FEW_MMA_WIDTH, compute capability 8.0 or later. */
cudaError_t cuda_attention_few_mma(const struct few_attention *a, int backward, cudaStream_t stream);
/* Runs after either kernel. */
cudaError_t cuda_attention_few_join(const struct few_attention *a, int backward, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
