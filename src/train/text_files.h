/*
 * text_files.h: the tokenizer and the chat template that a run was trained with, in the model
 * folders that it saves.
 *
 * A model folder is saved with the other files of model.path. With data.tokenizer or data.template
 * the run used other ones, and a preset has none: then these are saved in their place, so that
 * `generate` and transformers read the tokens that the model was trained on.
 */
#ifndef TRAIN_TEXT_FILES_H
#define TRAIN_TEXT_FILES_H

#include "config/config.h"

struct text_files {
    const char *folder, *file; /* data.tokenizer, a folder or one file; both NULL: the files of model.path are right */
    const char *as;            /* the name under which `file` is saved */
    char *template;            /* saved as chat_template.jinja; NULL: that of `folder` */
    uint64_t bytes;            /* of all that is saved */
};

/* Reads what saving needs; nothing for data that are no conversations. Strings of `c` are kept. */
int text_files_open(struct text_files *t, const struct config *c, struct error *e);
/* Replaces the files of a tokenizer in the folder. */
int text_files_save(const struct text_files *t, const char *dir, struct error *e);
/* A zeroed struct is allowed. */
void text_files_close(struct text_files *t);

#endif
