/*
 * tokenize.h: the declarations that the files of `plimsoll tokenize` share.
 *
 *     tokenize.c        the command; the lines of a file
 *     tokenize_chat.c   --chat: a conversation
 *     tokenize_print.c  ids and pieces of both
 */
#ifndef CLI_TOKENIZE_H
#define CLI_TOKENIZE_H

#include "text/tokenizer/tokenizer.h"

struct tokenize_request {
    const char *model, *file, *template;
    bool chat, generation_prompt, decode, json, pieces, no_special, help;
};

int tokenize_chat(const struct tokenize_request *r, const struct tokenizer *t, struct error *e);
/* Prints ids and pieces, two lines. */
void tokenize_print(const struct tokenizer *t, const struct token_list *l);

#endif
