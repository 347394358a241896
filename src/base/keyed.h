/*
 * keyed.h: the integer arithmetic of hashes (hash_bytes) and counter-based random numbers
 * (random.h), written once for the host and for GPUs: both get the same bits.
 *
 *     bits(key, i) = mix(mix(i * golden + mix(key)) ^ key)
 *
 * mix is a bijection of 64 bits in which every input bit affects every output bit. The key enters
 * before and after the inner mix, so two streams are never one sequence with two starting points.
 */
#pragma once

#include "base/shared.h"

#define KEYED_GOLDEN 0x9e3779b97f4a7c15ull /* 2^64 / golden ratio, odd */

/* Mixes by shift-multiply rounds; both multipliers are odd, so each step is invertible. */
SHARED uint64_t keyed_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* Computes random_bits; `mixed` is keyed_mix(key), for callers that draw often. */
SHARED uint64_t keyed_bits_mixed(uint64_t key, uint64_t mixed, uint64_t index)
{
    return keyed_mix(keyed_mix(index * KEYED_GOLDEN + mixed) ^ key);
}
SHARED uint64_t keyed_bits(uint64_t key, uint64_t index) { return keyed_bits_mixed(key, keyed_mix(key), index); }

/* Does a step of hash_bytes, invertible for a fixed h and for a fixed word, so that no word can
 * erase another; keyed_finish ends the hash. */
SHARED uint64_t keyed_absorb(uint64_t h, uint64_t word)
{
    return ((h << 29 | h >> 35) ^ word * KEYED_GOLDEN) * 0xd6e8feb86659fd93ull;
}
SHARED uint64_t keyed_finish(uint64_t h)
{
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93ull;
    h ^= h >> 29;
    h *= KEYED_GOLDEN;
    return h ^ h >> 32;
}

/* Returns random_key of a name of n <= 8 bytes, given as a word of its bytes, lowest first: only
 * the first lane of hash_bytes has bytes then. */
SHARED uint64_t keyed_name(uint64_t seed, uint64_t name, uint64_t n)
{
    const uint64_t s = keyed_mix(seed + KEYED_GOLDEN);
    uint64_t h = n ^ s;
    for (uint64_t lane = 0; lane < 4; lane++) h = keyed_absorb(h, keyed_absorb(s + lane, lane ? 0 : name));
    return keyed_mix(keyed_finish(h));
}
