/*
 * token_request.h: the lines of a file as token ids, or ids as text; or a conversation as the model
 * sees it: text, ids, and labels, which are -100 where nothing is trained.
 *
 * A line ends at \n; \r belongs to the line. Lines are read one at a time, so that a file of any
 * size can be read.
 */
#pragma once

#include "base/base.h"

struct token_request {
    const char *model;             /* a folder, or a tokenizer's file */
    const char *file;              /* "-": the standard input */
    const char *template;          /* another than the folder's; NULL: none */
    bool chat, generation_prompt;  /* a conversation; up to where the model answers */
    bool decode, pieces, no_special, json;
};
/* Prints the tokens, or the text. PL_USAGE names options that do not go together. */
int token_request_run(const struct token_request *r, struct error *e);
