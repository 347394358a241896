/*
 * labelled.h: images with a text each: the name of its class, or a caption.
 *
 *   DIR/cat/1.jpg  DIR/dog/a/2.png  a folder for each class
 *   DIR/metadata.csv or .jsonl      a table in the folder of the images, as Hugging Face's
 *                                   imagefolder has it
 *   FILE.csv, .tsv                  a table with columns for both
 *   FILE.json, .jsonl, .parquet     objects with keys for both; a list of texts is a sample for
 *                                   each
 *
 * Opening finds every sample and may allocate. After that nothing is allocated, and any number of
 * threads may read.
 */
#pragma once

#include "base/base.h"

struct labelled_options {
    char *const *paths;   /* a folder, or files or globs of tables */
    uint32_t n_paths;
    bool captions;        /* texts are captions: a folder needs a table */
    const char *image_column, *text_column; /* of tables; NULL: by their usual names */
    uint64_t room;        /* bytes for an object of a file */
    double max_bad;       /* largest share of rows without an image or a text */
    /* the fraction of samples that is held out (data/order.h), those of one image together; 0:
     * none... */
    double holdout;
    uint64_t split_seed;
    bool held;            /* ...and these are used, instead of the others */
};

struct labelled_sample {
    const char *image;    /* a reference (image_files.h), seen from `where` */
    const char *text;
    const char *file;     /* where it was found... */
    uint64_t line;        /* ...0: it is a file in a folder */
};

struct labelled {
    VEC(struct labelled_sample) samples;
    char *where;          /* the folder of the images, unless the configuration names one */
    bool folders;         /* classes are folders */
    bool one_group;       /* all samples are of one image, which is on both sides of the split */
    uint64_t read, bad;   /* rows, and those that cannot be used */
    char first_bad[240];
    uint64_t fingerprint;
    struct bump memory;   /* owns the texts */
};

/* Returns PL_USAGE: there are no samples, too many cannot be used, or a table has no such columns.
 * labelled_close may follow. */
int labelled_open(struct labelled *l, const struct labelled_options *o, struct error *e);
void labelled_close(struct labelled *l);
/* Prints "cat/1.jpg" or "FILE:LINE", for messages. */
void labelled_name(const struct labelled *l, uint64_t i, char *out, size_t room);
