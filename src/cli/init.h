/*
 * init.h: detects the format of a dataset for `plimsoll init`.
 */
#ifndef CLI_INIT_H
#define CLI_INIT_H

#include "data/dataset.h"
#include "io/file.h"

struct samples_options;

/* Values for the data keys of a run. The texts are on the heap or in `memory`; NULL: the key is not
 * needed. */
struct detected {
    const char *format;     /* a choice of data.format; NULL: not recognised */
    const char *what;       /* a description of the format: "tar shards" */
    struct names train;     /* paths or patterns */
    struct names validation;
    const char *images, *masks, *validation_images, *validation_masks;
    const char *image_prefix, *image_suffix, *mask_prefix, *mask_suffix; /* pairs */
    const char *image_column, *mask_column, *split_column; /* csv */
    const char *train_split, *validation_split; /* csv: values of its split column */
    const char *train_list, *validation_list;   /* files with the names of samples */
    bool voc;               /* mask images of classes, in which 255 is ignored */
    struct bump memory;
};
/* Detects the format of a folder, a file or a glob from file names and first bytes. `bytes`: the
 * format is bytes, whatever the files are. `given` are options that replace what would be found
 * (its labels are not used). PL_USAGE when nothing is recognised: the message says what the files
 * are, or lists them and the known formats. */
int detect_data(const char *path, bool bytes, const struct samples_options *given, struct detected *f, struct error *e);
/* What a file of conversations holds, by its first objects: "OpenAI messages"; NULL: it is no such
 * file. */
const char *detect_conversations(const char *path);
/* Parquet tables, of conversations or of images and masks (init_parquet.c): the format of a file;
 * those of a folder and the folders in it, false: there are none. */
void detect_parquet_file(const char *path, struct detected *f);
bool detect_parquet(const char *folder, struct detected *f);
void detected_free(struct detected *f);
bool detected_validation(const struct detected *f); /* whether it has a part to evaluate on */
/* Opens the part to train on, or the one to evaluate on. Points into `f`. */
struct dataset_options detected_options(const struct detected *f, bool validation);

/* Prints a run file for a vision tower (init_labelled.c); `folder` is train.out. */
int init_labelled(const char *model, bool preset, const char *data, const char *folder, struct error *e);

/* `init --config-from FILE`: whether the arguments ask for it; prints a run file for the
 * configurations of other programs, with the --set options on top (init_from.c). */
bool init_is_from(int argc, char **argv);
int init_from(int argc, char **argv, struct error *e);

#endif
