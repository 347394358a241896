/*
 * text_words.h: text cut into words, in the ways of the programs that scores are compared with.
 * Each function appends the words of a UTF-8 text to `out`, with blanks between them.
 */
#ifndef TEXT_WORDS_H
#define TEXT_WORDS_H

#include "base/base.h"

/* SQuAD's normalization: lower case, without ASCII punctuation and without a, an, the. Lower case
 * is that of ASCII, Latin-1, Latin Extended-A, Greek and Cyrillic letters. */
void words_squad(const char *s, struct text *out);
/* rouge-score: lower case; letters a to z and digits are words, everything else is between them. */
void words_rouge(const char *s, struct text *out);
/* sacrebleu's tokenizer 13a. */
void words_13a(const char *s, struct text *out);

#endif
