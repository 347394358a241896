/*
 * text_scores.h: how near answers are to reference texts.
 *
 *     exact match   the share of answers that are the reference, apart from blanks around them
 *     token F1      of the words of both, as in SQuAD's evaluation: without case, punctuation and
 *                   articles; mean
 *     BLEU          of all answers together, as sacrebleu's default: tokenizer 13a, up to 4 words,
 *                   exponential smoothing
 *     ROUGE-L       F-measure of the longest common subsequence of words, as rouge-score without
 *                   stemming; mean
 *
 *     text_scores_add(&s, answer, reference)       any number of times
 *     text_scores_result(&s)
 *     text_scores_free(&s)
 *
 * All are between 0 and 100. A NUL ends a text.
 */
#pragma once

#include "base/base.h"

enum { BLEU_ORDER = 4 };

struct text_scores {
    uint64_t answers;
    double exact, f1, rouge_l;                      /* sums */
    uint64_t matches[BLEU_ORDER], total[BLEU_ORDER]; /* n-grams of the answers: in the reference too; all */
    uint64_t words, reference_words;
    struct text_scores_work *work;                  /* NULL until the first answer */
};
void text_scores_add(struct text_scores *s, const char *answer, const char *reference);
/* Adds the answers of `from`. */
void text_scores_merge(struct text_scores *to, const struct text_scores *from);

struct text_score {
    double exact, f1, bleu, rouge_l; /* of no answers: 0 */
};
struct text_score text_scores_result(const struct text_scores *s);
void text_scores_free(struct text_scores *s);
