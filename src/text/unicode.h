/*
 * unicode.h: characters: their classes, lower case and the normal forms NFC, NFD, NFKC and NFKD.
 *
 * utf8proc has the tables; only unicode.c knows it.
 */
#pragma once

#include "base/base.h"

/* The bytes begin, ..., end - 1 of a text. */
struct byte_range {
    uint32_t begin, end;
};

/* Writes a character as UTF-8; returns the number of bytes. */
int utf8_encode(uint32_t code, char out[4]);
/* Does as utf8_decode of io/value.h, for text that is known to be UTF-8. */
static inline int utf8_next(const char *s, uint32_t *code)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) return *code = u[0], 1;
    if (u[0] < 0xe0) return *code = (u[0] & 31u) << 6 | (u[1] & 63u), 2;
    if (u[0] < 0xf0) return *code = (u[0] & 15u) << 12 | (u[1] & 63u) << 6 | (u[2] & 63u), 3;
    return *code = (u[0] & 7u) << 18 | (u[1] & 63u) << 12 | (u[2] & 63u) << 6 | (u[3] & 63u), 4;
}
/* Returns the number of bytes of the character that begins with this byte. */
static inline int utf8_length(char first)
{
    unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}
/* Returns the offset of the first byte that is not UTF-8; n if all are. */
size_t utf8_check(const char *s, size_t n);

bool unicode_is_space(uint32_t code);   /* White_Space */
bool unicode_is_word(uint32_t code);    /* \w: letters, marks, decimal digits, connectors, joiners */
bool unicode_is_numeric(uint32_t code); /* categories Nd, Nl, No */
bool unicode_is_mark(uint32_t code, bool nonspacing);  /* categories Mn, Mc, Me; or only Mn */
bool unicode_is_other(uint32_t code);                  /* categories Cc, Cf, Co: controls, formats, private use */
bool unicode_is_punctuation(uint32_t code);            /* punctuation and symbols of ASCII; categories P* */
/* Returns the bytes of the grapheme cluster at the beginning of n bytes of UTF-8, n > 0. */
size_t unicode_grapheme(const char *text, size_t n);
/* Returns the lower case of one character, without its neighbours: one or two characters. */
int unicode_lower(uint32_t code, uint32_t out[2]);

/* Characters as Python's str sees them: isspace, a border of splitlines, isprintable (repr writes
 * it as it is), and whether it has another case. */
bool python_is_space(uint32_t code);
bool python_is_line_end(uint32_t code);
bool python_is_printable(uint32_t code);
bool python_is_cased(uint32_t code);
/* Write the upper and the title case, at most UNICODE_CASE characters; return their number, or 0:
 * the title case is not known. The lower case is that of unicode_lower. */
enum { UNICODE_CASE = 3 };
int python_upper(uint32_t code, uint32_t out[UNICODE_CASE]);
int python_title(uint32_t code, uint32_t out[UNICODE_CASE]);

enum unicode_form { FORM_NFC, FORM_NFD, FORM_NFKC, FORM_NFKD, FORMS };

/* Reports whether the character can change, move or join another one in this form. Text without
 * such characters is in this form already. */
bool unicode_may_change(enum unicode_form form, uint32_t code);
/* Reports whether what it becomes depends on what stands before it, or changes that. */
bool unicode_joins(enum unicode_form form, uint32_t code);

/* A list of characters. */
struct code_points {
    uint32_t *at;
    uint32_t n, cap;
};
/* Brings n bytes of UTF-8 into a form, as characters in `out`, whose old content is lost. */
void unicode_normalize(enum unicode_form form, const char *text, size_t n, struct code_points *out);
