/*
 * keyed.cuh: the counter-based random numbers of base/random.h on the GPU, with the same bits for
 * the same key and index, and the stochastic rounding of cpu/round.h that uses them.
 */
#ifndef KEYED_CUH
#define KEYED_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#include "graph/step.h"

static __device__ inline uint64_t keyed_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* random_bits; `mixed` is keyed_mix(key), precomputed for callers that draw often. */
static __device__ inline uint64_t keyed_bits(uint64_t key, uint64_t mixed, uint64_t index)
{
    return keyed_mix(keyed_mix(index * 0x9e3779b97f4a7c15ull + mixed) ^ key);
}
static __device__ inline uint64_t keyed_bits(uint64_t key, uint64_t index) { return keyed_bits(key, keyed_mix(key), index); }

static __device__ inline uint64_t keyed_absorb(uint64_t h, uint64_t word)
{
    return ((h << 29 | h >> 35) ^ word * 0x9e3779b97f4a7c15ull) * 0xd6e8feb86659fd93ull;
}

/* random_key of a name of n <= 8 bytes, passed as a word of its bytes, lowest first: hash_bytes of
 * base/text.c when only the first lane has bytes. */
static __device__ inline uint64_t keyed_name(uint64_t seed, uint64_t name, uint64_t n)
{
    const uint64_t s = keyed_mix(seed + 0x9e3779b97f4a7c15ull);
    uint64_t h = n ^ s;
    for (int lane = 0; lane < 4; lane++) h = keyed_absorb(h, keyed_absorb(s + (uint64_t)lane, lane ? 0 : name));
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93ull;
    h ^= h >> 29;
    h *= 0x9e3779b97f4a7c15ull;
    return keyed_mix(h ^ h >> 32);
}

constexpr uint64_t NAME_ROUND = 0x646e756f72ull;        /* "round" */
constexpr uint64_t NAME_PROMPTS = 0x7374706d6f7270ull;  /* "prompts" */

/* round_key: the random stream of a parameter in a step. */
static __device__ inline uint64_t keyed_round(const step_block *step, uint64_t parameter)
{
    return keyed_bits(keyed_bits(keyed_name(step->seed, NAME_ROUND, 5), step->rng_step), parameter);
}

/* round_at_random: `bits` has 16 random bits. */
static __device__ inline __nv_bfloat16 round_at_random(float x, uint32_t bits)
{
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000u) == 0x7f800000u) return __float2bfloat16_rn(x);
    return __ushort_as_bfloat16((unsigned short)((u + (bits & 0xffffu)) >> 16));
}

#endif
