/*
 * launch_hopper.h: attention on GPUs of compute capability 9.0 (sm_90), with wgmma operands in
 * shared memory and tiles copied by TMA: hopper.c for attention.c, and the launchers of the
 * hopper*.cu files for hopper.c.
 *
 * A grid must have rows of 64 columns, so that 64 keys are one row of it. rel and drel are stored
 * transposed, [B,H,height+width,T]; rel is divided by the scale.
 */
#pragma once

#include <cuda.h>

#include "cuda/attention/launch_attention.h"

/* Rows per tile: keys that a block of the dk/dv kernel holds, and the tile length by which both
 * backward kernels traverse the other side. */
enum { HOPPER_HELD = 128, HOPPER_WALKED = ATTENTION_HOPPER_LEAST, HOPPER_WIDTH = ATTENTION_GRID64_WIDTH };

/* The forward and the dq kernel: warpgroups of 64 queries per block. Three hide more latency than
 * two, where two thirds of the registers are enough: not on a grid, and not with ranges. */
#define HOPPER_GROUPS(D, MORE) ((D) > 64 || (MORE) ? 2 : 3)
enum { HOPPER_KEYS = 128 };

/* The TMA tensor maps: of the heads; of the row statistics of 64 queries (delta [B,H], followed by
 * lse2); of rel, a box of 32 queries by the grid's columns, and a box of 64 queries for one of
 * its rows. */
struct attention_maps {
    CUtensorMap q, k, v, dout, row_stats, columns, rows;
};

#ifdef __cplusplus
extern "C" {
#endif

/* With ranges, after cuda_attention_ranges for tiles of 64 HOPPER_GROUPS queries and, in the
 * backward, of HOPPER_HELD keys. */
struct error;
int hopper_attention(const struct attention *a, cudaStream_t stream, struct error *e);
int hopper_attention_bwd(const struct attention *a, cudaStream_t stream, struct error *e);

cudaError_t cuda_hopper_forward(const struct attention *a, const struct attention_maps *m, cudaStream_t stream);
cudaError_t cuda_hopper_dq(const struct attention *a, const struct attention_maps *m, cudaStream_t stream);
cudaError_t cuda_hopper_dkv(const struct attention *a, const struct attention_maps *m, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
