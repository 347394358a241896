/*
 * answers.h: held-out prompts with all that is needed to answer them, and answers with their scores
 * as JSON.
 *
 *     answers_open(&h, &config, &limits, &error)           tokenizer, template, prompts, tokens that end an answer
 *     answers_options(&h, tokens)                          greedy answers of at most so many tokens
 *     answers_close(&h)
 */
#ifndef ANSWERS_H
#define ANSWERS_H

#include "infer/generation_config.h"
#include "infer/questions.h"
#include "infer/text_scores.h"
#include "io/json.h"

struct held_out {
    struct prompts prompts;
    struct generation_config folder; /* of the model; its eos has the tokens that end an answer */
    struct questions questions;
};

/* `most` as in questions_read. answers_close is called in any case. */
int answers_open(struct held_out *h, const struct config *c, const struct question_limits *most, struct error *e);
void answers_close(struct held_out *h);
/* Points into `h`. */
struct generate_options answers_options(const struct held_out *h, int64_t tokens);

/* exact_match, token_f1, bleu and rouge_l, as members of a map. */
void answers_put_scores(struct json_writer *w, const struct text_scores *s);
/* A line of JSON: question `i` of a file, its answer, and the scores `one` of that answer. */
void answers_put_line(struct text *out, const struct held_out *h, uint32_t file, uint32_t i, const struct answer *a,
                      const struct text_scores *one);

#endif
