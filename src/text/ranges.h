/*
 * ranges.h: a range of bytes in a text.
 */
#ifndef RANGES_H
#define RANGES_H

#include <stdint.h>

struct byte_range { uint32_t begin, end; }; /* half open */

#endif
