/*
 * prompts.h: prompts as token ids: text, or a chat that the model's template renders.
 */
#ifndef PROMPTS_H
#define PROMPTS_H

#include "config/config.h"
#include "text/template/template.h"
#include "text/tokenizer/tokenizer.h"

struct prompts {
    struct tokenizer *tokenizer;
    struct template *template; /* NULL: there is none, and no_template says why */
    struct error no_template;
};

/* Opens data.tokenizer or the model's, and data.template or the tokenizer's own. PL_USAGE: there is no tokenizer. */
int prompts_open(struct prompts *p, const struct config *c, struct error *e);
/* A zeroed struct is allowed. */
void prompts_close(struct prompts *p);

/* Both append to `out`. Text gets the special tokens that the tokenizer adds, such as BOS. */
int prompts_text(const struct prompts *p, const char *text, struct token_list *out, struct error *e);
/* Messages (a list of {role, content}) with the generation prompt: what follows is the assistant's answer. `tools`
 * may be NULL. PL_USAGE: there is no template, or it fails. */
int prompts_chat(const struct prompts *p, struct value *messages, struct value *tools, struct token_list *out, struct error *e);
/* The same for a file: a list of messages, or a map with "messages" and perhaps "tools". */
int prompts_chat_file(const struct prompts *p, const char *path, struct token_list *out, struct error *e);

#endif
