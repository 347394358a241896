/*
 * text_source.h: the tokenizer, the chat template, the images and the token store of a
 * configuration's conversations.
 */
#pragma once

#include "batch/feed.h"
#include "config/config.h"
#include "data/text/conversations.h"
#include "data/text/records.h"
#include "data/text/tokenize.h"
#include "io/file.h"

/* Opens the chat template of data.template, or of the folder of a tokenizer (`path`: the folder, or
 * a file in it), with data.chat_template_kwargs. Without data.template its lack is no error yet: *t
 * is NULL then, and *no_template says why. */
int text_template_open(struct template **t, struct error *no_template, const struct config *c, const char *path,
                       struct error *e);

/* Returns the role whose files are read: with data.holdout, what is evaluated on is a part of
 * data.train. */
enum feed_role text_files_of(const struct config *c, enum feed_role role);

struct text_source {
    struct tokenizer *tokenizer;
    struct template *template;     /* NULL: none; then no_template says why */
    struct error no_template;
    struct image_source images;    /* of a model that takes images */
    struct tokenize_options options;
};

/* Opens tokenizer and template, and checks that the files of the role exist. `m` is the model that
 * reads the text; NULL: any that takes only text. Points into `c`. Must not be moved while it is
 * open. */
int text_source_open(struct text_source *s, const struct config *c, enum feed_role role, const struct model *m,
                     struct error *e);
/* Opens the model of a folder for its images: *out is `m`, or NULL where the folder is that of a
 * tokenizer, or of a model that takes only text or is not known. `folder` NULL: there is none. */
int text_image_model(struct model *m, const char *folder, const struct model_choices *c, const struct model **out,
                     struct error *e);
/* Returns what a configuration chooses for it. */
struct model_choices text_choices(const struct config *c);
/* Opens the images and videos of a user's own prompts, where the configuration's model takes some:
 * *has. `t` and `template` may be NULL. */
int text_images_open(struct image_source *s, bool *has, const struct config *c, const struct tokenizer *t,
                     const struct template *template, const struct image_scope *scope, struct error *e);
/* Lets the images' source take videos, if data.max_frames is set: those frames that training
 * takes. */
int text_take_videos(struct image_source *s, const struct config *c, const struct model *m, struct error *e);
/* Frees it. A zeroed struct is allowed. */
void text_source_close(struct text_source *s);

/* Where the images of a role's conversations are: in data.images or data.validation_images, else in
 * the folder of the first data file; with data.outside_images anywhere. text_scope_close may follow
 * a failure. */
struct text_scope {
    struct image_scope scope;
    struct text where;   /* scope.where */
    struct names tables; /* scope.tables: the data files */
};
int text_scope_open(struct text_scope *s, const struct config *c, enum feed_role role, struct error *e);
void text_scope_close(struct text_scope *s);

/* Returns how rows of a store are made for a role. `vocabulary` 0: any id is accepted. */
struct conversations_options text_rows(const struct config *c, const struct text_source *s, enum feed_role role,
                                       int64_t vocabulary);

/* Prints a sentence with the remedy if none of the conversations ends with a special token: the
 * model would not learn to stop. Nothing if one does. */
void text_print_endless(const struct tokenizer *t, uint64_t chats, uint64_t endless, struct text *out);
/* Warns in the same words about the first conversations of data.train, for commands that read no
 * data; files that cannot be read are left alone. */
void text_warn_endless(const struct config *c, const struct model *m);

/* Prints the path of a store: FOLDER/train.tokenized; `folder` NULL: beside the first file,
 * FILE.tokenized. */
int text_store_path(const struct text_source *s, const char *folder, enum feed_role role, struct text *out,
                    struct error *e);
/* Finds the store that is up to date: that of data.store, where another one is an error; in
 * `folder`, the run's; beside the data. If there is none, it is made in `folder`. *path is its
 * path. */
int text_store_find(const struct text_source *s, const struct config *c, const char *folder, enum feed_role role,
                    struct text *path, struct error *e);

/* --- text facts ------------------------------------------------------------------------------ */

/* Statistics of a configuration's conversations or texts, for inspection.
 *
 * Lengths come from a token store, which is made in a temporary file with the code that training
 * uses. Without a tokenizer the files are read as far as that is possible.
 */
struct text_facts {
    struct sample_report report;
    /* of samples that can be read; turns are messages */
    uint64_t counted, turns, most_turns, with_system, with_tools, with_media;
    const char *format;        /* of the first sample */
};
/* Reads all files of data.train. */
int text_count(struct text_facts *f, const struct config *c, struct error *e);

struct text_measures {
    bool tokens;               /* the members below are filled */
    uint64_t samples, median, p95, longest, total, labels; /* samples: those with tokens; labels: of the rows */
    struct conversations set;
    bool rows;                 /* `set` is open */
    char no_rows[1024];        /* why it is not */
    uint64_t missing;          /* samples with an image that is not there, or that may not be read; the first one: */
    char first_missing[400];
};
/* Tokenizes all files of data.train and measures them; *report says what cannot be used. The caller
 * closes m->set if m->rows. */
int text_measure(struct text_measures *m, const struct config *c, const struct text_source *s,
                 struct sample_report *report, struct error *e);

/* Shows the first n samples of data.train as the model reads them, with the tokens that have labels
 * marked. */
int text_show_samples(const struct config *c, const struct text_source *s, uint64_t n, struct text *out,
                      struct error *e);
