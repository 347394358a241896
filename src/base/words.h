/*
 * words.h: the words of a command line: sizes and numbers in them, and words as a shell takes them.
 */
#pragma once

#include "base/base.h"

/* Parses "WxH", two numbers of pixels. */
bool extent_parse(const char *s, uint32_t size[2]);
/* Parses an option's value as an integer within bounds; *out is unchanged when text is NULL. */
int option_count(const char *option, const char *text, int64_t least, int64_t most, int64_t *out, struct error *e);
/* Appends a blank and a word of a command, quoted for a shell where it needs it. */
void text_quote(struct text *out, const char *word);
