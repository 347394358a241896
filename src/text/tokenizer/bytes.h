/*
 * bytes.h: the alphabet of byte-level BPE: each byte as a printable character, as GPT-2 chose them.
 *
 * 33-126, 161-172 and 174-255 are the characters of the same number; the other 68 bytes, in order,
 * are U+0100 and the following: a blank is U+0120, "Ġ".
 */
#ifndef BYTES_H
#define BYTES_H

#include "base/base.h"

uint32_t byte_character(unsigned char byte);
int character_byte(uint32_t code); /* -1: no byte has this character */
/* Translates n bytes of characters to the bytes that they stand for, at most n; returns their
 * number, -1: a character stands for no byte. */
int64_t characters_to_bytes(const char *s, size_t n, char *out);

#endif
