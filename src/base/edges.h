/*
 * edges.h: how near a pixel is to the edge of a mask of bits: the distance of its own value from
 * the mask's mean over the window around it. The mean's sum is a count of bits, so that it has no
 * order, and host and GPU get the same value.
 *
 *     row       0 0 1 1 1 0 0 1     bits, the lowest first, in 64-bit words
 *     x = 3, radius 2: 3 of 5
 */
#ifndef EDGES_H
#define EDGES_H

#include "base/shared.h"

/* Word i of a row of bits. */
SHARED uint64_t edge_word(const uint8_t *row, int64_t i)
{
#ifdef __CUDA_ARCH__
    return ((const uint64_t *)row)[i];
#else
    uint64_t word;
    memcpy(&word, row + 8 * i, sizeof word);
    return word;
#endif
}

SHARED int edge_ones(uint64_t word)
{
#ifdef __CUDA_ARCH__
    return __popcll(word);
#else
    return __builtin_popcountll(word);
#endif
}

/* How many bits are set from column x - radius to x + radius, of those before `columns`. The radius
 * is at most 31. */
SHARED int edge_count(const uint8_t *row, int64_t x, int64_t columns, int radius)
{
    const int64_t first = x > radius ? x - radius : 0, end = x + radius + 1 < columns ? x + radius + 1 : columns;
    const int shift = (int)(first % 64), n = (int)(end - first);
    uint64_t bits = edge_word(row, first / 64) >> shift;
    if (shift + n > 64) bits |= edge_word(row, first / 64 + 1) << (64 - shift);
    return edge_ones(bits & (((uint64_t)1 << n) - 1));
}

/* |mean - g|, where `count` of size * size pixels are set and g is 0 or 1. */
SHARED float edge_distance(int count, int size, float g)
{
    const float d = shared_sub(shared_div((float)count, (float)(size * size)), g);
    return d < 0.0f ? -d : d;
}

#endif
