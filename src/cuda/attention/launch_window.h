/*
 * launch_window.h: the launchers of window*.cu, for window.c (see
 * launch.h).
 */
#ifndef LAUNCH_ATTENTION_WINDOW_H
#define LAUNCH_ATTENTION_WINDOW_H

#include "cuda/attention/window_work.h"
#include "cuda/attention/launch_attention.h"

/* One ATTENTION_WINDOW: its operands and its shape. The names are those of ops.def. */
struct window_attention {
    struct head_rows q, k, v, o, dout, dq, dk, dv;
    float *lse;                  /* the forward writes it, the backward reads it */
    int64_t lse_sample, lse_head, lse_token;
    enum store type;
    int B, T, H, D, height, width, window;
    int across, down;            /* windows of a map in each direction */
    float scale;
    struct head_table table[2];
    const void *pad;             /* NULL: zeros */
    enum store pad_type;
    int64_t pad_which, pad_head, pad_element;
    float *dtable[2], *dpad;     /* dense */
    float *tables, *pads;        /* workspace */
};

#ifdef __cplusplus
extern "C" {
#endif

/* Without tensor cores. */
cudaError_t cuda_window_plain(const struct window_attention *a, cudaStream_t stream);
cudaError_t cuda_window_plain_bwd(const struct window_attention *a, cudaStream_t stream);
/* Runs after any backward: sums the workspace over all windows, in order. */
cudaError_t cuda_window_sums(const struct window_attention *a, cudaStream_t stream);

/* With tensor cores: bf16 or f16 (the tables and pad too), D of 32, 64 or 80, rows at multiples of
 * 16 bytes, a window up to WINDOW_FAST, compute capability 8.0 or later, where a block may have
 * ATTENTION_SHARED bytes of shared memory. `small`: sm_75, where a block may have
 * ATTENTION_SHARED_SM75 bytes, and f16 only. */
cudaError_t cuda_window_fast(const struct window_attention *a, int small, cudaStream_t stream);
cudaError_t cuda_window_fast_bwd(const struct window_attention *a, int small, cudaStream_t stream);

/* The same on compute capability 9.0 (sm_90) only: D of 64 or 80, and a window of WINDOW_FAST. */
cudaError_t cuda_window_hopper(const struct window_attention *a, cudaStream_t stream);
cudaError_t cuda_window_hopper_bwd(const struct window_attention *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
