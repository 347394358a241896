/*
 * crc32c.h: the Castagnoli checksum, which detects damaged and truncated files.
 */
#ifndef CRC32C_H
#define CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Extends `crc`, the checksum of the preceding bytes (0 at the start), by n bytes. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t n);

#endif
