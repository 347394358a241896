/*
 * charsmap.h: the table of replacements of a SentencePiece normalizer such as nmt_nfkc:
 * "precompiled_charsmap".
 *
 *     u32 size | a double-array trie of size bytes, u32 units | the replacements, each with a 0
 *     behind it
 *
 * The trie has the strings that are replaced; its values are offsets of the replacements.
 */
#ifndef CHARSMAP_H
#define CHARSMAP_H

#include "base/base.h"

struct charsmap {
    uint32_t *units;
    uint32_t n_units;
    char *strings;       /* ends with a 0 */
    uint32_t n_strings;
};

/* Reads n bytes, which are copied. PL_USAGE: they are not such a table. */
int charsmap_read(struct charsmap *m, const char *bytes, size_t n, struct error *e);
void charsmap_free(struct charsmap *m);

/* The replacement of a string that text[0, n) begins with, and the length of that string: the
 * longest one, or the shortest. NULL: there is none. */
const char *charsmap_find(const struct charsmap *m, const char *text, size_t n, bool longest, uint32_t *length);

#endif
