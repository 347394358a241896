/*
 * prompt_list.h: the prompts that a command answers: one that it was given, or those of a file.
 *
 *     JSON lines, a JSON list, Parquet    a sample each: {"prompt": text or messages}, {"messages": [...]} or {"conversations": [...]},
 *                                         perhaps with tools, image(s) and video(s)
 *     .txt                                a text a line; empty lines are no prompts
 */
#ifndef PROMPT_LIST_H
#define PROMPT_LIST_H

#include "infer/generate.h"
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

/* A prompt that was read. */
struct read_prompt {
    const struct token_list *tokens;
    const struct names *images;
    struct image_batch slots;
    /* a template rendered it: the tokenizer's eos_token, which is the end of a turn in many
     * templates, ends its answer too */
    bool chat;
    uint64_t line;
};
/* Appends a copy. */
void prompt_list_add(struct prompt_list *l, const struct prompts *p, const struct read_prompt *x);
/* Appends the prompts of a file. PL_USAGE, with file and line: a sample cannot be used; there are
 * none. */
int prompt_list_read(struct prompt_list *l, const struct prompts *p, const char *path, struct error *e);
void prompt_list_free(struct prompt_list *l);

#endif
