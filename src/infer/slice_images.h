/*
 * slice_images.h: the slices of a volume as images, by their number from 0: of one volume, with its
 * modalities or its neighbouring slices as channels.
 */
#pragma once

#include "infer/predictor.h"

struct slice_images {
    struct volume at[3]; /* a volume for each channel that is a modality */
    struct volume_channels channels;
    char name[256];      /* "case" of DIR/case.nii.gz */
};

/* Opens the volume at `path`, and notes which values become black and white. slice_images_close is
 * called in any case. */
int slice_images_open(struct slice_images *v, const char *path, const struct image_reading *r, struct error *e);
void slice_images_close(struct slice_images *v);
/* Reads a slice; the caller frees out->rgb. */
int slice_images_read(const struct slice_images *v, const struct pixel_range *range, uint32_t slice, struct image *out,
                      struct error *e);
