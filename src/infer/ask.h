/*
 * ask.h: PRS-Med: the mask and the answer to a question about an image.
 *
 *     ask_open(&a, &config, path, question, &error)  the question as tokens, with the chat template
 *     ask_mask(&a, &image, &mask, &error)            one forward; predictor_mask gives the mask
 *     ask_answer(&a, most, &answer, &error)          token by token, greedily
 *     ask_close(&a)
 *
 * Masks of several questions, by one run: ask_masks_open, then for each ask_again and
 * ask_masks_run.
 *
 * Mask and answer are two runs, one after the other: the memory is that of the larger one.
 */
#pragma once

#include "infer/generate.h"
#include "infer/predictor.h"
#include "infer/prompts.h"

struct ask {
    struct config config;     /* with the template of the family, if there is no other */
    const char *template;     /* of the family, for folders without one */
    char *tokenizer;          /* folder of the LLaVA model, whose tokenizer is used unless another is given */
    struct prompts prompts;
    struct names images;
    struct token_list tokens;
    VEC(int32_t) ids;
    VEC(int32_t) ends;        /* tokens that end an answer: the folder's EOS, and the tokenizer's */
    uint64_t bytes;           /* planned memory of the mask */
};

/* Opens the model and reads a question; `c` must stay valid. PL_USAGE: the model answers no
 * questions with masks; there is no tokenizer. ask_close is called in any case. */
int ask_open(struct ask *a, const struct config *c, const char *path, const char *question, struct error *e);
/* Reads another question in its place; *a stays open, even on failure. */
int ask_again(struct ask *a, const char *path, const char *question, struct error *e);

/* A run for questions of up to T tokens. */
struct ask_masks {
    struct run run;
    struct bump memory;       /* of the table of its pixels */
    int64_t T;
};
int ask_masks_open(struct ask_masks *m, const struct ask *a, int64_t T, struct error *e);
int ask_masks_run(struct ask_masks *m, const struct ask *a, const struct image *image, struct predictor *out,
                  struct error *e);
void ask_masks_close(struct ask_masks *m);

/* Fills `out` for predictor_mask(out, 0, 0, ...); ask_mask_free frees it. */
int ask_mask(struct ask *a, const struct image *image, struct predictor *out, struct error *e);
void ask_mask_free(struct predictor *out);
/* Returns the options of greedy answers of at most `most` tokens; points into `a`. */
struct generate_options ask_options(const struct ask *a, int64_t most);
/* An answer of at most `most` tokens. */
int ask_answer(struct ask *a, int64_t most, struct answer *out, struct error *e);
void ask_close(struct ask *a);
