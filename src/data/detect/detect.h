/*
 * detect.h: detects what a folder or a file of a dataset holds, from the names of files and, where
 * these are ambiguous, from the first bytes. `init`, and the commands that read a dataset without a
 * configuration, decide here.
 *
 *     detect.c   the format, and which files to train and to evaluate on
 *     layout.c   the folders of images and masks
 *     match.c    which image belongs to which mask
 */
#pragma once

#include "data/dataset.h"
#include "io/file.h"

/* Values for the data keys of a run. The texts are constant, in `memory`, or the caller's; NULL:
 * the key is not needed. */
struct detected {
    const char *what;           /* a description of the format: "tar shards" */
    struct names train;         /* paths or patterns */
    struct names validation;
    struct dataset_options set; /* format (a choice of data.format), folders, affixes, columns, labels, ignore */
    const char *validation_images, *validation_masks;
    const char *train_split, *validation_split; /* csv: values of its split column */
    const char *train_list, *validation_list;   /* files with the names of samples */
    struct bump memory;
};

/* Detects the format of a folder, a file or a glob. `bytes`: the format is bytes, whatever the
 * files are. The folders, affixes and columns of `given` replace what would be found. PL_USAGE when
 * nothing is recognised: the message says what the files are, or lists them and the known formats.
 * On failure nothing needs freeing. */
int detect_data(struct detected *f, const char *path, bool bytes, const struct dataset_options *given, struct error *e);
void detected_free(struct detected *f);
/* Reports whether it has a part to evaluate on. */
bool detected_validation(const struct detected *f);
/* Returns the options that open the part to train on, or the one to evaluate on. They point into
 * `f`. */
struct dataset_options detected_options(const struct detected *f, bool validation);

/* Returns the format of a file with images and masks, by its name and, of JSON, by its beginning;
 * NULL: none is known. */
const char *detect_format(const char *path);
/* Returns what a file of conversations holds, by its first objects: "OpenAI messages"; NULL: it is
 * no such file. */
const char *detect_conversations(const char *path);
/* Returns the folder of the images of a file of conversations, in `memory`: the first of the usual
 * ones around the file that has most of the first images. NULL: the file's own folder, or there are
 * no images. Warns when they are in none of them. */
const char *detect_images(const char *path, struct bump *memory);
/* Finds the parts of images in folders of their classes: DIR/train, else DIR itself, and DIR/val or
 * another usual name, "" if there is none. */
void detect_class_folders(const char *folder, char train[4096], char validation[4096]);
