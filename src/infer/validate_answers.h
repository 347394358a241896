/*
 * validate_answers.h: a language model answers the held-out questions, greedily, and the answers
 * are scored against the references.
 *
 *     conversations   of data.validation, or held out of data.train; scored by file
 *     questions       of the validation rows of a table, by a PRS-Med model; scored by dataset
 */
#pragma once

#include "infer/questions.h"
#include "infer/validate.h"

struct answer_options {
    uint64_t samples, max_new; /* of each file, tokens of an answer, at most; 0: all; the folder's, else 256 */
    bool lines;                /* also write each answer with its scores, as JSON lines */
    bool loss;                 /* also compute the loss over all conversations */
};

/* --- conversations ---------------------------------------------------------------------------- */

struct answered {
    struct held_out held;
    struct generator generator;
    struct text_scores *scores; /* of each file */
    struct text_scores all;
    struct text lines;
    struct mean_loss loss;
    uint64_t unfinished;        /* answers that are as long as they may be */
    double seconds;
};
/* Answers and scores all of them. answered_close is called in any case. */
int validate_answers(struct answered *v, const struct config *c, const struct answer_options *o, struct error *e);
void answered_close(struct answered *v);

/* --- questions -------------------------------------------------------------------------------- */

enum { ANSWER_DATASETS = 64 }; /* that are scored by themselves; the last has all others */

struct answered_questions {
    struct dataset *set;
    struct text_scores all, by[ANSWER_DATASETS];
};
/* Plans the model once, for prompts of up to data.sequence tokens. answered_questions_close is
 * called in any case. */
int validate_questions(struct answered_questions *v, const struct config *c, const struct answer_options *o,
                       struct error *e);
void answered_questions_close(struct answered_questions *v);
/* Returns the name of a dataset. */
const char *answered_dataset(const struct answered_questions *v, int32_t k);
