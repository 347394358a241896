/*
 * launch_attention.h: the seam between attention.c and the attention's .cu files (launch.h).
 */
#ifndef LAUNCH_ATTENTION_H
#define LAUNCH_ATTENTION_H

#include "cuda/attention_work.h"
#include "cuda/launch.h"

/* [B,T,H,D], the last dense: the element (b,t,h,d) lies at b * sample + t * token + h * head + d. */
struct head_rows {
    void *data;
    int64_t sample, token, head;
};

/* Queries to a block of attention_fast_dq.cu: a bias' gradient is left in partial sums of so many. */
enum { ATTENTION_FAST_TILE = 64 };
/* Columns of a grid whose rows are tiles. */
enum { ATTENTION_GRID64_WIDTH = 64 };

/* [rows,columns] of any type and strides. */
struct head_table {
    const void *data;
    enum store type;
    int64_t row, column;
};

/* One attention: its operands, its shape, its workspace. As ops.def names them. */
struct attention {
    struct head_rows q, k, v, o, dout, dq, dk, dv;
    float *lse;                  /* forward writes it, backward reads it */
    int64_t lse_sample, lse_head, lse_token;
    const float *mask;           /* [B,S], or NULL */
    int64_t mask_sample, mask_key;
    enum store type;
    enum attention_mode mode;
    int B, T, S, H, G, D;
    int causal, window;          /* no window: INT32_MAX */
    int height, width;           /* of the grid; 1 where there is none */
    float scale;
    float unit;                  /* rel and bias come times this: log2(e) for kernels that count in powers of two */
    struct head_table table[2];  /* height's and width's, or the bias */
    float *dtable[2];            /* dense */
    float *delta, *lse2, *tables, *rel, *drel, *bias, *partial; /* attention_work.h */
};

#ifdef __cplusplus
extern "C" {
#endif

/* The passes around the kernels (attention_grid.cu): tables to f32, rel before, and delta for kernels that do not follow
 * cuda_attention_row_stats; sums of the partial gradients after. `tile` is the queries to a block of the kernel that wrote
 * the partial sums of a bias. */
cudaError_t cuda_attention_before(const struct attention *a, int with_delta, cudaStream_t stream);
cudaError_t cuda_attention_after(const struct attention *a, int tile, cudaStream_t stream);
/* The first and the last of these alone: tables to f32; the tables' gradients out of the groups' sums. */
cudaError_t cuda_attention_tables(const struct attention *a, cudaStream_t stream);
cudaError_t cuda_attention_sum_tables(const struct attention *a, cudaStream_t stream);

/* Without tensor cores (attention_plain.cu). */
cudaError_t cuda_attention_plain(const struct attention *a, cudaStream_t stream);
cudaError_t cuda_attention_plain_bwd(const struct attention *a, cudaStream_t stream);

/* With them (attention_fast.cu, attention_fast_dq.cu, attention_fast_dkv.cu): bf16 or f16, D of 32, 64,
 * 80, 96 or 128, rows at multiples of 16 bytes, a GPU of compute capability 8.0 or more, or 7.5 in f16 where it has the room; unit is log2(e).
 * The gradients' kernels follow cuda_attention_row_stats. The gradient of a bias leaves partial sums of ATTENTION_FAST_TILE queries. */
cudaError_t cuda_attention_fast(const struct attention *a, int grid64, cudaStream_t stream);
cudaError_t cuda_attention_fast_dq(const struct attention *a, cudaStream_t stream);
cudaError_t cuda_attention_fast_dkv(const struct attention *a, cudaStream_t stream);
/* Bytes of shared memory that a block of each takes. */
size_t cuda_attention_fast_shared_bytes(const struct attention *a);
size_t cuda_attention_fast_dq_shared_bytes(const struct attention *a);
size_t cuda_attention_fast_dkv_shared_bytes(const struct attention *a);

/* Over a grid of 64 columns, up to 64 rows, tables of the heads' type: rel, times `unit`, and drel lie sideways,
 * [B,H,height+width,T]. rel before, the tables' partial gradients after (attention_grid64.cu); of the kernels above the first
 * one knows by `level`, the others have their own (attention_grid64_dq.cu, attention_grid64_dkv.cu). */
static inline bool attention_is_grid64(const struct attention *a)
{
    return a->mode == ATTENTION_BY_TABLES && a->width == ATTENTION_GRID64_WIDTH && a->height <= ATTENTION_GRID64_WIDTH && a->table[0].type == a->type &&
           a->table[1].type == a->type;
}
cudaError_t cuda_grid64_rel(const struct attention *a, float unit, cudaStream_t stream);
cudaError_t cuda_grid64_dtables(const struct attention *a, cudaStream_t stream);
cudaError_t cuda_attention_grid64_dq(const struct attention *a, cudaStream_t stream);
cudaError_t cuda_attention_grid64_dkv(const struct attention *a, cudaStream_t stream);

/* The same where nothing is added to the scores and the scale is positive: no mask, no grid (attention_dense.cu,
 * attention_dense_dq.cu, attention_dense_dkv.cu). */
cudaError_t cuda_attention_dense(const struct attention *a, cudaStream_t stream);
cudaError_t cuda_attention_dense_dq(const struct attention *a, cudaStream_t stream);
cudaError_t cuda_attention_dense_dkv(const struct attention *a, cudaStream_t stream);
/* delta = rowsum(do * o) and lse in powers of two, [B,H,T rounded up to 64] (attention_row_stats.cu). */
cudaError_t cuda_attention_row_stats(const struct attention *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
