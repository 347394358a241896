/*
 * prompts.h: prompts as token ids: text, or a chat that the model's template renders.
 */
#pragma once

#include "config/config.h"
#include "data/images/image_source.h"
#include "data/text/conversation.h"
#include "infer/generate.h"
#include "io/file.h"
#include "text/template/chat.h"

struct prompts {
    struct tokenizer *tokenizer;
    struct template *template; /* NULL: there is none, and no_template says why */
    struct error no_template;
    struct image_source images; /* of a model that takes images (has_images), also without a tokenizer */
    bool has_images;
};

/* Opens data.tokenizer or the model's, and data.template or the tokenizer's own. PL_USAGE: there is
 * no tokenizer. */
int prompts_open(struct prompts *p, const struct config *c, const struct image_scope *scope, struct error *e);
/* Opens prompts of ids: a tokenizer is used where there is one. */
int prompts_open_ids(struct prompts *p, const struct config *c, const struct image_scope *scope, struct error *e);
/* Returns where the images of a user's own prompt are: anywhere, and relative paths begin with
 * `where` (NULL: the current folder). An image may take data.sample_memory, or 1 GiB where that is
 * auto. */
struct image_scope prompts_scope(const struct config *c, const char *where);
/* Frees everything. A zeroed struct is allowed. */
void prompts_close(struct prompts *p);

/* Finds the images and videos of a prompt, which `b` owns, and how many images (tiles and images)
 * and frames the tower gets. PL_USAGE: the model takes none; one of them is missing or broken.
 * `used`, unless NULL: bytes of memory that reading one of them takes, at most. */
int prompts_images(const struct prompts *p, char *const *references, uint32_t n, struct bump *b,
                   struct text_images *out, struct media *slots, uint64_t *used, struct error *e);

/* Renders messages (a list of {role, content}) with the generation prompt: what follows is the
 * assistant's answer. `beside`: as for chat_encode. PL_USAGE: there is no template, or it fails. */
int prompts_chat(const struct prompts *p, struct value *messages, const struct value *beside,
                 const struct text_images *images, struct token_list *out, struct error *e);

/* Tokenizes a prompt with `images`, references to images and videos (image_files.h). <image> and
 * <video> mark positions in the text; without markers, media come first. The images are then in the
 * order of the text. */
int prompts_question(const struct prompts *p, const char *text, struct names *images, struct token_list *out,
                     struct media *slots, struct error *e);
/* Does the same for the only message of a chat. */
int prompts_ask(const struct prompts *p, const char *text, struct names *images, struct token_list *out,
                struct media *slots, struct error *e);
/* Reads a sample of a file of prompts (conversation_read_prompt). `images` becomes those of the
 * prompt, in its order; *chat: a template rendered it. */
int prompts_sample(const struct prompts *p, struct value *sample, struct names *images, struct token_list *out,
                   struct media *slots, bool *chat, struct error *e);
/* Reads a chat in a file: a list of messages, or a map with "messages" and perhaps "tools",
 * "chat_template_kwargs", "images" and "videos". `images` are those that the caller adds, before
 * the last question if it has no <image> for them; then all of the chat. */
int prompts_chat_file(const struct prompts *p, const char *path, struct names *images, struct token_list *out,
                      struct media *slots, struct error *e);
/* Does the same for a chat that is text. */
int prompts_chat_text(const struct prompts *p, const char *json, struct names *images, struct token_list *out,
                      struct media *slots, struct error *e);

/* --- text request ---------------------------------------------------------------------------- */

/* Answers to prompts, one or those of a file, as a command asks for them: read,
 * planned, generated and printed.
 */
/* A prompt as a command has it: one of the first four. */
struct given_prompt {
    const char *ids, *text, *chat, *file;
    struct names images, videos; /* once the prompt is read, all are in images, in its order */
    struct media slots;    /* of its images: what the vision tower gets */
};

struct text_request {
    struct config *config;
    struct given_prompt given;
    uint64_t max_new, context, chunk, batch, seed; /* 0: not given */
    uint64_t top_k;                                /* UINT64_MAX: not given */
    double temperature, top_p, repetition_penalty; /* NaN: not given */
    struct names stops;
    bool json, dry_run, explain;
};
#define TEXT_REQUEST {.temperature = NAN, .top_p = NAN, .repetition_penalty = NAN, .top_k = UINT64_MAX}

/* Refuses options that do not go together. */
int text_request_check(const struct text_request *r, struct error *e);
/* Answers the prompts and prints the answers, or with dry_run the plan. */
int text_request_run(struct text_request *r, struct error *e);
