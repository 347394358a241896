/*
 * layout.h: where a folder has its images and its masks.
 *
 *     images/ masks/                      Kvasir-SEG and many others
 *     X_Training_Input/ X_Training_GroundTruth/     ISIC
 *     imagesTr/ labelsTr/                 nnU-Net
 *     JPEGImages/ SegmentationClass/ ImageSets/     Pascal VOC
 *     leftImg8bit/train/ gtFine/train/    Cityscapes
 *     train/images/ train/masks/ val/...; images/train/ masks/train/ ...
 *     a.jpg a_mask.png                    one folder
 *
 * None of these is a case of its own: all folders with images are listed, their names say whether
 * they hold images or masks and which part of the dataset, and the names of the files say which
 * folders belong together (match.h).
 */
#pragma once

#include "data/detect/match.h"

/* A pair of folders. */
struct layout_part {
    const char *images, *masks; /* relative to `root`: "." is the root itself */
    struct affixes affixes;
    uint64_t pairs;             /* 0: there is no such part */
};

struct layout {
    const char *root;                      /* of the part to train on, and of the lists below */
    struct layout_part train, validation;  /* the folders of `validation` are relative to validation_root */
    const char *validation_root;           /* the same text as `root` when both parts have one root */
    const char *train_list, *validation_list; /* Pascal VOC: its lists of names; else NULL */
    bool voc;                              /* label images of classes, in which 255 is ignored */
};

/* Finds the layout of a folder; its texts are in `memory`. `given` are prefixes and suffixes that
 * the user has set, NULL: they are found, too. PL_USAGE when the folder has no images with masks:
 * the message says what it has instead (files of a format that is not read, YOLO's text files), or
 * why images and masks do not belong together. */
int layout_find(struct layout *l, const char *folder, const struct affixes *given, struct bump *memory,
                struct error *e);
