/*
 * init_text.h: measures conversations for `plimsoll init`.
 */
#ifndef INIT_TEXT_H
#define INIT_TEXT_H

#include "io/file.h"

struct init_text {
    const char *tokenizer;   /* a model folder */
    bool plain;              /* data.format is text: the samples of the results are rows */
    const char *template;    /* data.template; NULL: the folder's */
    int64_t vocabulary;
    int64_t positions;       /* that the model has */
    int64_t max_frames;      /* data.max_frames; 0: videos are left out */
    const char *images;      /* data.images; NULL: the folder of the first file */
    int64_t sequence;        /* result: tokens in a row */
    int64_t max_images;      /* result: images in a row; 0: the samples have none */
    /* result: the share of the samples to evaluate on; 0: `validation` has its own files, or there
     * are too few */
    double holdout;
    uint64_t samples[2], rows[2], too_long[2]; /* results, of what is trained on and evaluated on */
    /* results, which the caller frees: report_print of both parts' files; NULL: all can be used */
    char *left_out[2];
    struct text endless;     /* result, which the caller frees: text_print_endless; empty: the conversations end */
    bool estimated;          /* result: the numbers are scaled up from the beginning of large files */
};

/* Tokenizes the files, of large ones the beginning, and chooses the length of a row. `validation`
 * may be empty: then a tenth of the samples is held out, at least one. */
int init_measure_text(struct init_text *t, const struct names *train, const struct names *validation, struct error *e);
/* The folder in which the images of a file of conversations are, in `memory`; NULL: that of the
 * file, or there are none. */
const char *init_find_images(const char *path, struct bump *memory);

#endif
