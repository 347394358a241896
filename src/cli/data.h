/*
 * data.h: `plimsoll data SUBCOMMAND ...`: one file per subcommand (data_make.c, ...); their table
 * is in data_make.c.
 */
#pragma once

#include "cli/cli.h"
#include "data/samples.h"

/* Each subcommand is a struct command; `usage` begins with "data SUBCOMMAND", `summary` may have
 * several lines and describes every option. */
extern const struct command data_make, data_prepare, data_inspect, data_verify, data_pack, data_tokenize;

/* --- how images and masks are found and read, for `init` too ---------------------------------- */

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
