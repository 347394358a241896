/*
 * keyed.cuh: the random streams of base/random.h by name, and the stochastic rounding of
 * cpu/update/update.h that uses them, on the GPU.
 */
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

#include "base/keyed.h"
#include "graph/step.h"

constexpr uint64_t NAME_ROUND = 0x646e756f72ull;        /* "round" */
constexpr uint64_t NAME_PROMPTS = 0x7374706d6f7270ull;  /* "prompts" */
constexpr uint64_t NAME_DROPOUT = 0x74756f706f7264ull;  /* "dropout" */

/* Returns the random stream of a parameter in a step, as round_key. */
static __device__ inline uint64_t keyed_round(const step_block *step, uint64_t parameter)
{
    return keyed_bits(keyed_bits(keyed_name(step->seed, NAME_ROUND, 5), step->rng_step), parameter);
}

/* Rounds as the CPU's function of this name; `bits` has 16 random bits. */
static __device__ inline __nv_bfloat16 round_at_random(float x, uint32_t bits)
{
    return shared_is_finite(x) ? __ushort_as_bfloat16(shared_round_at_random(x, bits)) : __float2bfloat16_rn(x);
}
