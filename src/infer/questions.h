/*
 * questions.h: held-out conversations as prompts with reference answers.
 *
 *     messages   system  user  assistant  user | assistant
 *                prompt, with the generation prompt | reference: the content of the last turn
 *
 * Of {prompt, completion} texts the prompt is the first and the reference the second.
 */
#pragma once

#include "data/text/token_store.h"
#include "infer/generate.h"
#include "infer/sample.h"
#include "infer/prompts.h"
#include "infer/text_scores.h"
#include "io/file.h"
#include "io/json.h"

struct question {
    struct prompt prompt;
    const char *reference;
};

struct asked {
    struct value *prompt;      /* a list of messages, or a string */
    uint64_t line;             /* in its file */
};

struct question_file {
    uint32_t first, n;         /* its questions */
};

struct questions {
    struct names files;
    struct question_file *file; /* of each */
    VEC(struct question) at;
    VEC(struct asked) asked;   /* of each question */
    int64_t longest, tokens;   /* tokens of the longest prompt, and of all */
    struct media images; /* of a prompt that the vision tower gets, at most */
    uint64_t image_bytes;      /* of memory that reading the images of a prompt takes, at most */
    struct sample_report report; /* what was read, and what could not be used */
    uint64_t too_long, too_many; /* prompts of more tokens, or more images or frames, than are allowed */
    uint64_t unasked;          /* samples without a prompt, or whose answer is no text but a call of a tool */
    struct bump memory;
};

struct question_limits {
    uint64_t questions;        /* of each file, from its beginning; 0: all */
    int64_t tokens;            /* longer prompts are left out; 0: none is */
    const struct media *media; /* prompts with more are left out; NULL: none is */
};
/* Returns the file that question i is of. */
uint32_t questions_file(const struct questions *q, uint32_t i);

/* --- answers and their scores ---------------------------------------------------------------- */

struct held_out {
    struct prompts prompts;
    struct generation_config folder; /* of the model; its eos has the tokens that end an answer */
    struct questions questions;
};

/* Reads the files of data.validation, or with data.holdout the samples of data.train that are held
 * out. PL_USAGE: there are none, or more samples than data.max_bad could not be used. answers_close
 * is called in any case. */
int answers_open(struct held_out *h, const struct config *c, const struct question_limits *most, struct error *e);
void answers_close(struct held_out *h);
/* Returns the options of greedy answers; they point into `h`. */
struct generate_options answers_options(const struct held_out *h, int64_t tokens);

/* Puts exact_match, token_f1, bleu and rouge_l, as members of a map. */
void answers_put_scores(struct json_writer *w, const struct text_scores *s);
/* Puts a line of JSON: question `i` of a file, its answer, and the scores `one` of that answer. */
void answers_put_line(struct text *out, const struct held_out *h, uint32_t file, uint32_t i, const struct answer *a,
                      const struct text_scores *one);
