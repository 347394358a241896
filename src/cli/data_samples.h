/*
 * data_samples.h: the options that say how images and masks are found and read, for `init` and for
 * the commands that read each sample of a dataset.
 */
#pragma once

#include "data/samples.h"

/* The options of the same names; NULL and 0: detected from the paths, or decided over the data. */
struct samples_options {
    struct dataset_options set;
    const char *labels;         /* auto, binary, classes or instances */
    uint64_t ignore, threshold; /* of mask images */
    const char *range;          /* auto, full, percentiles or LOW,HIGH */
    const char *slice_axis, *modalities; /* of volumes: data.slice_axis and data.modalities */
    int64_t numbers[3];                  /* of the modalities */
};
/* The rows of an option table of a state, and their lines of help. FOLDER_OPTIONS: how images and
 * masks are found, in a struct dataset_options. */
#define FOLDER_OPTIONS(state, o)                                                                              \
    OPTION(state, "--images", TEXT, o.images), OPTION(state, "--masks", TEXT, o.masks),                       \
        OPTION(state, "--image-prefix", TEXT, o.image_prefix), OPTION(state, "--image-suffix", TEXT, o.image_suffix), \
        OPTION(state, "--mask-prefix", TEXT, o.mask_prefix), OPTION(state, "--mask-suffix", TEXT, o.mask_suffix), \
        OPTION(state, "--image-column", TEXT, o.image_column), OPTION(state, "--mask-column", TEXT, o.mask_column)
#define FOLDER_HELP                                                                                        \
    "  --images DIR, --masks DIR\n"                                                                        \
    "                  the folders of the images and of the masks, where they are not found\n"             \
    "  --image-prefix, --image-suffix, --mask-prefix, --mask-suffix TEXT\n"                                \
    "                  pairs: what only the names of images, or only those of masks, begin or end with\n"  \
    "  --image-column, --mask-column NAME\n"                                                               \
    "                  csv, parquet: the columns of the images and of the masks"
#define SAMPLES_OPTIONS(state, o)                                                                             \
    OPTION(state, "--format", TEXT, o.set.format), FOLDER_OPTIONS(state, o.set),                              \
        OPTION(state, "--labels", TEXT, o.labels), OPTION(state, "--ignore", POSITIVE, o.ignore),             \
        OPTION(state, "--threshold", POSITIVE, o.threshold), OPTION(state, "--range", TEXT, o.range),         \
        OPTION(state, "--slice-axis", TEXT, o.slice_axis), OPTION(state, "--modalities", TEXT, o.modalities), \
        OPTION(state, "--neighbours", SWITCH, o.set.slices.neighbours)
#define SAMPLES_HELP                                                                              \
    "  --format        sa1b, coco, pairs, csv or packed; default: detected from the paths\n"      \
    FOLDER_HELP "\n"                                                                              \
    "  --labels KIND   data.labels, the meaning of the values of mask images: auto, binary, classes, instances\n" \
    "  --ignore N, --threshold N  data.ignore and data.threshold of mask images\n"                \
    "  --range R       data.range of images of 16 bits and volumes: auto, full, percentiles, or LOW,HIGH " \
    "for a window\n"                                                                              \
    "  --slice-axis A  data.slice_axis of volumes: axial, coronal or sagittal\n"                  \
    "  --modalities N[,N,N]  data.modalities of volumes with several\n"                           \
    "  --neighbours    data.neighbours: the slices beside a slice are channels"

/* Reads the words of the options into `o->set`, which then opens the samples. */
int samples_options_read(struct samples_options *o, struct error *e);
