/*
 * tokenize.h: files of conversations to a token store (token_store.h).
 *
 * Files are read as a stream. Samples are tokenized in parallel, in batches, and stored in the
 * order of the files: the store has the same bytes for any number of threads.
 *
 * A conversation's images become their tokens (text/template/chat_images.h). How many these are
 * depends on the model, and with tiles on the sizes of the images, whose files are then read.
 */
#pragma once

#include "data/images/image_source.h"
#include "data/text/token_store.h"
#include "text/template/chat.h"

struct tokenize_options {
    bool text;                         /* data.format is text: the files are plain text */
    char *const *paths;                /* paths or globs; each glob's files are sorted */
    uint32_t n_paths;
    const struct tokenizer *tokenizer;
    const struct template *template;   /* NULL: there is none, which is an error for the first conversation: */
    const struct error *no_template;   /* this one */
    const char *system;                /* data.system; NULL: none */
    const struct image_source *images; /* of a model that takes images; NULL: it takes only text */
    bool (*interrupted)(void);         /* whether to stop with PL_FAIL; NULL: never */
    uint64_t most;                     /* bytes of the files to read at most; 0: read all */
    uint64_t room;                     /* bytes of memory for an object of a file: data.sample_memory */
    const double *max_bad; /* stop when a larger share of the rows of tables cannot be used; NULL: read all */
};

/* The paths of the files. PL_USAGE when there is none. */
struct names;
int tokenize_files(char *const *paths, uint32_t n_paths, struct names *out, struct error *e);
/* Fingerprints of all that decides the store. Reads the files once. */
int tokenize_key(const struct tokenize_options *o, struct token_store_key *out, struct error *e);
/* Writes the store. */
int tokenize_build(const struct tokenize_options *o, const struct token_store_key *key, const char *path,
                   struct error *e);

/* Reads the images and videos of a conversation, which are put into their order; `s` NULL: the
 * model takes only text. `b` owns them. */
enum conversation_fault tokenize_images(const struct image_source *s, struct conversation *c, struct bump *b,
                                        struct text_images *out, struct error *e);

/* One sample, for `inspect`: parses, reads and tokenizes the text of an object. `b` owns the
 * values. */
struct tokenized {
    struct conversation conversation;
    struct chat_tokens tokens;
    struct text text;     /* a conversation as the template renders it */
    uint64_t group;       /* of conversation_group; 0: none, or the sample is no conversation */
};
enum conversation_fault tokenize_sample(const struct tokenize_options *o, const char *json, size_t n, struct bump *b,
                                        struct tokenized *out, struct error *e);
void tokenized_free(struct tokenized *t);
