/*
 * pixel_values.h: the values of pixels that are bytes, as image processors and patch rules compute
 * them, for tests that compare them.
 */
#pragma once

#include "base/base.h"

/* Returns the values of n bytes, in planes of a channel each, on the heap. */
static inline float *pixel_values(const uint8_t *bytes, size_t n, size_t plane, float value[3][256])
{
    float *to = mem_alloc(n * sizeof *to);
    for (size_t i = 0; i < n; i++) to[i] = value[i / plane % 3][bytes[i]];
    return to;
}
