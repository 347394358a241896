/*
 * dataset_survey.h: what the files of a dataset hold, decided once for all of them.
 *
 *     mask images    data.labels auto: binary, classes or instances; a value to ignore; a threshold
 *     images         data.range auto for images of 16 bits; whether they are nearly black
 *
 * dataset_open surveys the files before it applies a split, so training and validation images of
 * the same files get the same decision. A large dataset is sampled: images at equal distances, the
 * same ones every time. The decision depends on the files alone.
 *
 * The decision about mask images:
 *
 *     one value in all of them                        binary: the category is 1
 *     values between dark and bright along borders    binary, from half of the largest value on
 *     several values                                  classes: the category is the value
 *     more than 255 values                            instances: each value is an object
 *     a photograph, or areas of several values with
 *     soft edges between them                         refused: data.labels must be set
 *
 * 255 is ignored if it occurs beside small values, as in PASCAL VOC and Cityscapes.
 */
#ifndef DATASET_SURVEY_H
#define DATASET_SURVEY_H

#include "base/base.h"

enum { SURVEY_LABELS = 1000, SURVEY_IMAGES = 32, SURVEY_SHOWN = 8 };

struct dataset_survey {
    /* Mask images; `labels` is 0 if the format has none, or if data.labels was given. */
    uint64_t labels, labels_seen;
    uint32_t values;              /* different values besides 0 and the ignored one */
    uint32_t shown[SURVEY_SHOWN]; /* the smallest of them */
    uint32_t largest;
    bool soft;                    /* soft edges */
    bool void_255;                /* 255 is ignored */
    uint64_t whole;               /* mask images with one value everywhere, which is not 0 */
    /* Images. */
    uint64_t images, images_seen; /* all; decoded */
    uint64_t deep;                /* of the decoded ones: of 16 bits */
    bool range_decided;           /* data.range was auto, and there are images of 16 bits */
    /* of the decoded ones: slices of other types than 8 and 16 bits, if data.range was auto */
    uint64_t volumes;
    /* of the decoded ones: with an EXIF orientation that the size of the masks cannot confirm */
    uint64_t turned;
    int bright;                   /* 99.5 % of the pixels are not brighter than this, of 255; -1: not known */
};

struct dataset;
/* Fills d->survey, and decides d->labels and d->range where they are auto. PL_USAGE: the mask
 * images have no clear meaning, or an image is its own mask. */
int survey_dataset(struct dataset *d, struct error *e);

/* One line each, without a newline: "data.labels auto: classes 1, 2, 5 (in 120 mask images)".
 * False: nothing was decided. */
bool survey_print_labels(const struct dataset *d, struct text *out);
/* "data.range auto: window 12 to 3071, ..." */
bool survey_print_range(const struct dataset *d, struct text *out);
/* The next warning about nearly black images, images with an EXIF orientation, or masks that cover
 * the whole image. *k counts up from 0; false: there are no more. */
bool survey_next_warning(const struct dataset *d, int *k, struct text *out);
/* All of these: notes and warnings in the log. */
void survey_log(const struct dataset *d);

#endif
