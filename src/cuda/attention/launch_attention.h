/*
 * launch_attention.h: the launchers of the attention kernels, for attention.c and hopper.c (see
 * launch.h).
 */
#pragma once

#include "cuda/attention/work.h"
#include "cuda/device/launch.h"

/* [B,T,H,D] with a dense last dimension: element (b,t,h,d) is at b * sample + t * token + h * head
 * + d. */
struct head_rows {
    void *data;
    int64_t sample, token, head;
    int columns;                 /* D */
};

/* Queries per block of dq.cu with a bias, and so per partial sum of a bias gradient. */
enum { ATTENTION_FAST_TILE = 64 };

/* [rows,columns] of any type and strides. */
struct head_table {
    const void *data;
    enum store type;
    int64_t row, column;
};

/* One attention: its operands, its shape, its workspace. The names are those of ops.def. */
struct attention {
    struct head_rows q, k, v, o, dout, dq, dk, dv;
    float *lse;                  /* the forward writes it, the backward reads it */
    int64_t lse_sample, lse_head, lse_token;
    const float *mask;           /* [B,S], or NULL */
    int64_t mask_sample, mask_key;
    enum store type;
    enum attention_mode mode;
    int B, T, S, H, G, D;
    int causal, window;          /* window: keys that a query sees, INT32_MAX: all; of ATTENTION_WINDOW: its side */
    int height, width;           /* of the grid; 1 if there is none */
    float scale, cap;            /* cap 0: none */
    float unit;                  /* rel and bias are multiplied by this: log2(e) for kernels that use exp2 */
    struct head_table table[2];  /* of the height and the width, or the bias */
    float *dtable[2];            /* dense */
    float *delta, *lse2, *tables, *rel, *drel, *bias, *partial; /* work.h */

    /* ATTENTION_WINDOW: windows of a map in each direction; what lies beyond the grid */
    int across, down;
    const void *pad;             /* NULL: zeros */
    enum store pad_type;
    int access;                  /* window.cu: bytes that a thread reads at a time, 16 or an element */
    int64_t pad_which, pad_head, pad_element;
    float *dpad;                 /* dense */
    float *pads;                 /* work.h */

    /* few queries or keys: the split into blocks, and the second part of its workspace (work.h) */
    struct few_cut cut;
    float *other;

    /* a range of keys for each query: [B,T,2], dense, or NULL; work.h */
    const int32_t *ranges;
    int32_t *seen;
    struct range_bounds *bounds;
    int32_t *order, *key_order, *taken;
};

#ifdef __cplusplus
extern "C" {
#endif

/* Most launchers are one of these; plan_attention.c says which operands each of them takes. */
typedef cudaError_t attention_fn(const struct attention *a, cudaStream_t stream);
typedef cudaError_t plain_fn(const struct attention *a, enum plain_form form, cudaStream_t stream);
typedef cudaError_t few_fn(const struct attention *a, int backward, enum few_form form, cudaStream_t stream);
typedef cudaError_t tiles_fn(const struct attention *a, enum score_terms added, cudaStream_t stream);

/* The passes around the kernels (passes.cu). Before: converts the tables to f32, computes
 * rel, and delta for kernels that do not run after cuda_attention_row_stats. After: sums the
 * partial gradients. `tile` is the number of queries per block of the kernel that wrote the partial
 * sums of a bias. */
cudaError_t cuda_attention_before(const struct attention *a, int with_delta, cudaStream_t stream);
cudaError_t cuda_attention_after(const struct attention *a, int tile, cudaStream_t stream);
/* Parts of these passes: the tables to f32; the tables' gradients from the sums of the groups. */
attention_fn cuda_attention_tables, cuda_attention_sum_tables;
/* delta = rowsum(do * o), and lse in base 2, both [B,H,T rounded up to 64] (passes.cu). */
attention_fn cuda_attention_row_stats;

/* Computes what kernels with ranges read (ranges.cu): seen and bounds; and, unless 0, the tiles
 * of `queries` queries and those of `keys` keys in the order of their work. Both are multiples
 * of 64. */
cudaError_t cuda_attention_ranges(const struct attention *a, int queries, int keys, enum seen_form form,
                                  cudaStream_t stream);

/* Without tensor cores (plain.cu). */
plain_fn cuda_attention_plain, cuda_attention_plain_bwd;

/* With tensor cores (forward.cu, dq.cu, dkv.cu); unit is log2(e). `added` is what they add to the
 * scores. The backward kernels run after cuda_attention_row_stats. The partial sums of a bias
 * gradient are of ATTENTION_FAST_TILE queries. */
tiles_fn cuda_attention_forward, cuda_attention_dq, cuda_attention_dkv;

/* Computes rel of a grid of 64 columns, multiplied by `unit` (grid64.cu); the tables' gradients
 * follow the backward. With ADDS_GRID64 rel and drel are stored transposed,
 * [B,H,height+width,T]. */
cudaError_t cuda_grid64_rel(const struct attention *a, float unit, cudaStream_t stream);
attention_fn cuda_grid64_dtables;

/* Few queries or few keys, without tensor cores (few_queries_or_keys.cu) and with them. If there
 * are several splits, sums over rows are partial afterwards, in `partial` and `other`, and
 * cuda_attention_few_join adds them. */
few_fn cuda_attention_few, cuda_attention_few_mma;
cudaError_t cuda_attention_few_join(const struct attention *a, int backward, cudaStream_t stream);

/* Windows without tensor cores (window.cu): with an access of 16 bytes the rows of k, in the
 * backward also of v, q, dout and tables of their type, begin at multiples of 16 bytes and consist
 * of them. With tensor cores (window_fast.cu, window_bwd.cu), for ATTENTION_SHARED bytes of shared
 * memory a block or, _small, for ATTENTION_SHARED_SM75. On 9.0 (window_hopper*.cu). */
attention_fn cuda_window_plain, cuda_window_fast, cuda_window_small, cuda_window_hopper;
attention_fn cuda_window_plain_bwd, cuda_window_fast_bwd, cuda_window_small_bwd, cuda_window_hopper_bwd;
/* Runs after any backward of windows (passes.cu): sums the workspace over all windows, in order. */
attention_fn cuda_window_sums;

#ifdef __cplusplus
}
#endif
