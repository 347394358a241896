/*
 * template.h: chat templates: the part of Jinja that they use, over struct value.
 *
 * A template is the text of a model's folder that turns a conversation into what the model reads:
 *
 *   variables  {"messages": [{"role": "user", "content": "Hi <|im_end|>"}], "bos_token": "<s>"}
 *   template   {{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}...
 *   text       <s><|im_start|>user\nHi <|im_end|>...
 *   data                      ^^^^   ^^^^^^^^^^^^^       bytes that came from the variables
 *
 * The result has the bytes of Jinja2 in the environment of transformers: sandboxed, trim_blocks,
 * lstrip_blocks, loop controls, {% generation %}, tojson, raise_exception, strftime_now. A
 * statement, filter, test, method or function that is not known is refused when the template is
 * read. A template reads no file, and its depth, steps and output are bounded.
 */
#pragma once

#include "base/base.h"
#include "io/value.h"
#include "text/unicode.h"

struct template;

/* Parses a template of n bytes; `name` begins the messages ("NAME, line 3: ..."). It is freed with
 * template_close. PL_USAGE when the template is malformed or uses something that is not known. */
int template_read(struct template **out, const char *source, size_t n, const char *name, struct error *e);

/* Reads the template of a model's folder.
 *
 *   file   data.template: a file's path; the name of a template that is built in, "chatml",
 *          "mistral_instruct", "vicuna_v1", "smolvlm" or "paligemma"; a template itself, which has
 *          {{ or {%; or NULL, or "model": the folder's chat_template.jinja, chat_template.json or
 *          tokenizer_config.json, the first that exists and has one
 *   name   the template's name where a folder has several, such as "tool_use"; NULL: "default"
 *
 * PL_USAGE when there is none: no template is ever assumed. `folder` may be NULL when `file` is
 * given. */
int template_open(struct template **out, const char *folder, const char *file, const char *name, struct error *e);
void template_close(struct template *t);

/* Gives the template variables, a map as JSON (data.chat_template_kwargs): conversations have them
 * unless they bring their own. NULL: none. PL_USAGE for one that the template does not read, or
 * that a conversation itself decides. */
int template_set_kwargs(struct template *t, const char *json, struct error *e);
/* Returns these variables, a map; NULL: none. */
const struct value *template_kwargs(const struct template *t);
/* Returns a number that follows from the template's text and these variables. */
uint64_t template_fingerprint(const struct template *t);

/* Returns the template's text. It lives as long as the template. */
const char *template_source(const struct template *t);
/* Reports whether it has {% generation %}, so that rendered.answers is meaningful. */
bool template_marks_answers(const struct template *t);

/* All ranges are ascending, not empty, and do not touch or overlap.
 *
 *   data      bytes that came from strings of the variables, whatever was done to them. The
 *             template's own text instead are strings of the variables whose names end in "_token"
 *             (bos_token, eos_token, ...), and the roles of messages that are identifiers, since
 *             templates write control tokens with them: "<|" + role + "|>".
 *   answers   bytes inside {% generation %} ... {% endgeneration %}
 *   turns     by message: what a loop over the messages wrote for it; these ranges may be empty, and
 *             end where the next begins */
struct rendered {
    struct text text;
    VEC(struct byte_range) data, answers, turns;
};

/* Renders with a map of variables: messages, tools, documents, add_generation_prompt, bos_token,
 * ... They are passed as they are: what transformers adds before a template sees a conversation
 * ("tools": null, reasoning_content under its other names) is the caller's part. strftime_now
 * prints the date of the variable "strftime_now", "2026-01-31" or "2026-01-31 12:00:00", or
 * today's. Fills *out, which the caller frees with rendered_free; after an error it is empty.
 * PL_USAGE when the template fails: raise_exception gives its message. Threads may render one
 * template at the same time. */
int template_render(const struct template *t, const struct value *variables, struct rendered *out, struct error *e);
void rendered_free(struct rendered *r);
