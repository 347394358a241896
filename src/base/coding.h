/*
 * coding.h: a checksum of bytes, and bytes as text.
 */
#pragma once

#include "base/base.h"

/* Extends `crc`, the Castagnoli checksum (CRC-32C) of the preceding bytes (0 at the start), by n
 * bytes. It detects damaged and truncated files. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t n);

/* Appends the bytes as base64 (RFC 4648). */
void base64_encode(struct text *out, const void *bytes, size_t n);
/* Decodes n characters into `to`, which has room for n / 4 * 3 + 3 bytes; returns the number of
 * bytes, or -1 with the position of a character that is not base64 in *bad. White space is skipped,
 * padding may be missing, and - and _ of the alphabet for URLs are accepted. */
int64_t base64_decode(void *to, const char *text, size_t n, size_t *bad);
