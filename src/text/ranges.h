/*
 * ranges.h: a range of the bytes of a text.
 */
#ifndef RANGES_H
#define RANGES_H

#include <stdint.h>

/* The bytes begin, ..., end - 1. */
struct byte_range {
    uint32_t begin, end;
};

#endif
