/*
 * unicode.h: code points as Python's str sees them: blanks, line ends, printability, letter case.
 */
#ifndef TEMPLATE_UNICODE_H
#define TEMPLATE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool code_is_space(uint32_t c);     /* str.isspace */
bool code_is_line_end(uint32_t c);  /* a border of str.splitlines */
bool code_is_printable(uint32_t c); /* str.isprintable: repr writes it as it is */
bool code_is_cased(uint32_t c);     /* has an upper, lower or title form of its own */

/* UTF-8 of a code point, at most 4 bytes; returns their number. */
int code_encode(uint32_t c, char out[4]);
/* The code point in another case, as UTF-8, at most CASE_BYTES; returns the number of bytes. */
enum { CASE_BYTES = 12 };
int code_upper(uint32_t c, char out[CASE_BYTES]);
int code_lower(uint32_t c, char out[CASE_BYTES]);
int code_title(uint32_t c, char out[CASE_BYTES]);

/* The code point at s[0] of a valid UTF-8 text; *n gets its bytes. */
uint32_t code_at(const char *s, int *n);

#endif
