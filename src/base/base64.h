/*
 * base64.h: bytes as text and back (RFC 4648).
 */
#ifndef BASE64_H
#define BASE64_H

#include "base/base.h"

void base64_encode(struct text *out, const void *bytes, size_t n);
/* Decodes n characters into `to`, which has room for n / 4 * 3 + 3 bytes; returns the number of
 * bytes, or -1 with the position of a character that is not base64 in *bad. White space is skipped,
 * padding may be missing, and - and _ of the alphabet for URLs are accepted. */
int64_t base64_decode(void *to, const char *text, size_t n, size_t *bad);

#endif
