/*
 * launch_tokens.h: the launchers of tokens.cu, rope.cu and cache.cu.
 */
#pragma once

#include "cuda/device/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Copies rows of the table, selected by ids, to y [rows], each of `bytes` bytes. */
cudaError_t cuda_embedding(void *y, const int32_t *ids, const void *table, int64_t rows, int64_t bytes, int access,
                           cudaStream_t stream);
/* Computes dw f32 [V,C]; it is added to with `accumulate`. Rows of the id `padding` are left out;
 * -1: none. next: scratch, int32 [rows]. */
cudaError_t cuda_embedding_dw(float *dw, int32_t *next, const int32_t *ids, const void *dy, enum store type,
                              int64_t rows, int64_t V, int64_t C, int32_t padding, int accumulate, int access,
                              cudaStream_t stream);

/* y, x [B,T,H,D]; y may alias x. */
struct rope_shape {
    int64_t B, T, H, D;
    float scale, sign;        /* sign -1: the inverse */
    const int32_t *positions; /* [B,T,per]; NULL: 0, 1, 2, ... */
    int64_t per;              /* 1 or 3 */
    int64_t sections[3];      /* of three, the pairs of each */
    bool interleaved;
};
struct launch;
struct rope_shape cuda_rope_shape(const struct launch *l); /* of a launch of ROPE */
cudaError_t cuda_rope(void *y, const void *x, const float *inv_freq, enum store type, struct rope_shape s, int access,
                      cudaStream_t stream);

/* Writes cache[b,positions[b,t]] = x[b,t] for cache [B,S], x [B,T], the first `bytes` bytes of rows
 * that are `stride` bytes apart in the cache; a position outside 0..S-1 writes nothing. */
cudaError_t cuda_cache_write(void *cache, const void *x, const int32_t *positions, int64_t B, int64_t S, int64_t T,
                             int64_t bytes, int64_t stride, int access, cudaStream_t stream);

/* Computes the loss of logits [rows,V]; losses: scratch, f64 [rows]. */
cudaError_t cuda_xent(float *loss, float *lse, double *losses, const void *logits, const int32_t *labels,
                      const float *inv_count, enum store type, int64_t rows, int64_t V, int access,
                      cudaStream_t stream);
/* Computes its gradient d, which may alias logits. */
cudaError_t cuda_xent_bwd(void *d, const void *logits, const int32_t *labels, const float *inv_count, const float *lse,
                          const float *dloss, enum store type, int64_t rows, int64_t V, int access,
                          cudaStream_t stream);

#ifdef __cplusplus
}
#endif
