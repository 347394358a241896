/*
 * crc32c.h: the Castagnoli checksum, for files that must be known to be whole.
 */
#ifndef CRC32C_H
#define CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of n bytes, after those whose sum is `crc`; 0 to begin with. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t n);

#endif
