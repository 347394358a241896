/*
 * chat.h: a conversation as token ids, with the tokens that the assistant says.
 *
 *     messages ─ template ─► text, rendered once ─ tokenizer ─► ids, tokenized once
 *                             answers: byte ranges          ─►  answers: token ranges, by offsets
 *
 * A token belongs to an answer if any of its bytes does, as in transformers. Blanks at the
 * beginning of a token count only if it has nothing else, so that " U" of the next "USER:" does not
 * belong to an answer "no ". The answers are what the template has between {% generation %} and {%
 * endgeneration %}. A template without these is rendered once more for each answer i: messages[:i]
 * with the generation prompt must be the beginning of messages[:i+1], and that the beginning of the
 * whole text; the rest of messages[:i+1] is the answer, its end of turn included. A generation
 * prompt that ends in another way than the text goes on, with "<think>", counts as far as they are
 * equal.
 *
 * No special token is added to a rendered chat, because templates write BOS themselves; text in the
 * messages never becomes a control token. For a model that takes images (chat_images.h) the
 * tokenizer's BOS is added where the text does not begin with it, as transformers' processors do;
 * images have no labels.
 */
#pragma once

#include "text/template/chat_images.h"
#include "text/template/template.h"
#include "text/tokenizer/tokenizer.h"

struct chat_tokens {
    struct token_list tokens;
    VEC(struct byte_range) answers; /* of tokens, ascending, not empty */
    struct range_list images;       /* the tokens of each image */
    /* a special token, such as EOS, ends the last answer, and the text; blanks may follow it */
    bool answer_ends, text_ends;
};
void chat_tokens_free(struct chat_tokens *c);

/* Why chat_encode failed. CHAT_ANSWERS: tokens and text are there, but where the answers are is not
 * known. */
enum chat_failure { CHAT_FINE, CHAT_RENDER, CHAT_ANSWERS, CHAT_ENCODE, CHAT_IMAGES };

/* Renders messages (a list of {role, content}) with a template, for an answer: strftime_now is
 * today. `beside`, a map or NULL, has what a sample has beside its messages: `tools`, and
 * `chat_template_kwargs`, further variables of the template such as enable_thinking. */
int chat_render(const struct tokenizer *t, const struct template *template, struct value *messages,
                const struct value *beside, bool generation_prompt, struct rendered *out, struct error *e);
/* Renders and encodes messages for training: strftime_now is a fixed day. `images`: those of the
 * conversation; NULL: the model takes only text. Fills *out, which the caller empties with
 * chat_tokens_free in any case; `text`, unless NULL, gets the rendered text. */
enum chat_failure chat_encode(const struct tokenizer *t, const struct template *template, struct value *messages,
                              const struct value *beside, const struct text_images *images, struct chat_tokens *out,
                              struct text *text, struct error *e);
/* Encodes messages for an answer: the tokens with the generation prompt, none of which has a
 * label. */
enum chat_failure chat_encode_prompt(const struct tokenizer *t, const struct template *template, struct value *messages,
                                     const struct value *beside, const struct text_images *images,
                                     struct chat_tokens *out, struct text *text, struct error *e);
/* Does the same for text that no template renders: prompt and completion, one after the other; the
 * completion is the answer. BOS stands first and EOS last if the tokenizer has them, each once.
 * Control tokens in the text are control tokens. */
enum chat_failure chat_encode_text(const struct tokenizer *t, const char *prompt, const char *completion,
                                   const struct text_images *images, struct chat_tokens *out, struct error *e);
