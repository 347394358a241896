/*
 * volume_patches.h: a NIfTI file or a DICOM series as the patches of a modality
 * (models/modalities.h): volumes among the tokens of a conversation.
 *
 *     volume:T1:subjects/7/T1.nii.gz     a reference: the modality, and a path as an image has it
 *     volume::T1.nii.gz                  of the only modality that the model takes
 *
 * The values of a voxel are those that volumes have elsewhere (data.range): the window of the
 * volume becomes 0 to 1, and what lies outside is clipped. They are not rounded to 8 bits. Then the
 * axes are resampled to the modality's size, each by itself, as pixels are: a triangle filter as
 * wide as a voxel of the result where the result is smaller, else linear interpolation between the
 * centres of voxels. The whole field of view is kept, whatever the size of a voxel is.
 *
 * Axes are those of a view (volume.h): of the axial one depth goes from the feet up, height from
 * the front to the back, width to the left of the patient. A series is not resampled in time: of a
 * longer one the volumes in its middle are used, behind a shorter one there are zeros; its window
 * is that of the volume in the middle of those that are used.
 */
#pragma once

#include "data/volumes/volume.h"
#include "models/modalities.h"

#define VOLUME_REFERENCE "volume:"
bool media_is_volume(const char *reference);
/* Returns the reference, in `b`, to a file that is a volume by its name; with a modality to one
 * that is not an image by its name. NULL: it is an image. `modality` may be NULL. */
const char *media_volume(const char *path, const char *modality, struct bump *b);
/* Returns the path of a reference to a volume. */
const char *media_volume_path(const char *reference);
/* Finds the modality of a reference; below 0: the model does not have it, as `e` says. */
int media_modality(const struct modality_list *l, const char *reference, struct error *e);

/* Returns the bytes that reading a volume takes. */
uint64_t volume_patches_room(const struct volume *v, const struct modality *x);
/* Reads a volume into to[modality_floats]; `memory` has volume_patches_room bytes, aligned to 8.
 * PL_USAGE: it is no such volume, or has values that are not finite. */
int volume_patches(const struct volume *v, const struct modality *x, const struct pixel_range *r, void *memory,
                   float *to, struct error *e);
