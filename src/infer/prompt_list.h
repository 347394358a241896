/*
 * prompt_list.h: the prompts that are to be answered: one of a command, or those of a file.
 */
#pragma once

#include "infer/prompts.h"

struct listed_prompt {
    struct prompt prompt;
    uint64_t line;             /* in its file (record_line) */
};

struct prompt_list {
    VEC(struct listed_prompt) at;
    int64_t longest, tokens;   /* tokens of the longest prompt, and of all */
    struct image_batch images; /* of a prompt that the vision tower gets, at most */
    struct bump memory;
};

/* A prompt as a command has it: one of the first four. */
struct given_prompt {
    const char *ids, *text, *chat, *file;
    struct names images, videos; /* once the prompt is read, all are in images, in its order */
    struct image_batch slots;    /* of its images: what the vision tower gets */
};
/* Opens the model's prompts and reads what is given. Ids need no tokenizer, and use one where there
 * is one, unless `texts`: it is needed for other texts. PL_USAGE, with file and line: a sample
 * cannot be used; there are none. The caller frees the list and closes `p` in any case. */
int prompt_list_open(struct prompt_list *l, struct prompts *p, const struct config *c, struct given_prompt *g,
                     bool texts, struct error *e);
void prompt_list_free(struct prompt_list *l);
