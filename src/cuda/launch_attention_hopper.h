/*
 * launch_attention_hopper.h: the seam between attention_hopper.c and the attention_hopper*.cu files: attention on GPUs of
 * compute capability 9.0, whose warpgroups multiply out of shared memory and whose engine copies tiles.
 *
 * On a grid its rows have 64 columns, so that 64 keys are one row of it; positions lie sideways, rel and drel
 * [B,H,height+width,T], rel divided by the scale.
 */
#ifndef LAUNCH_ATTENTION_HOPPER_H
#define LAUNCH_ATTENTION_HOPPER_H

#include <cuda.h>

#include "cuda/launch_attention.h"

/* Rows to a tile: keys that a block of the gradient by keys holds, and what a block of either gradient walks along. */
enum { HOPPER_HELD = 128, HOPPER_WALKED = 64, HOPPER_WIDTH = ATTENTION_GRID64_WIDTH };

/* Of the forward and the gradient by queries: warpgroups of 64 queries to a block. Three hide more of each other's latency, where two thirds of the
 * registers are enough. */
#define HOPPER_GROUPS(D, GRID) ((D) > 64 || (GRID) ? 2 : 3)
enum { HOPPER_KEYS = 128 };

/* How the copy engine finds tiles: of heads; what comes with 64 queries, delta's [B,H] and behind them lse2's; of rel half of them by the
 * columns of the grid, and one of its rows. */
struct attention_maps {
    CUtensorMap q, k, v, dout, row_stats, columns, rows;
};

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cuda_hopper_forward(const struct attention *a, const struct attention_maps *m, cudaStream_t stream);
cudaError_t cuda_hopper_dq(const struct attention *a, const struct attention_maps *m, cudaStream_t stream);
cudaError_t cuda_hopper_dkv(const struct attention *a, const struct attention_maps *m, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
