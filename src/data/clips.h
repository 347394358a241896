/*
 * clips.h: clips of videos with the masks of their objects: consecutive samples of a dataset whose
 * images are files in one folder, or slices of one volume.
 *
 *     frames VIDEO/00000.jpg, 00001.jpg, ... ─ threads (fill.h) ─ T frames, bits of the objects
 *     label images VIDEO/00000.png, ...          that the first frame has
 *
 * A clip that cannot be read is replaced by another one; in an evaluation it has no objects.
 *
 * An object is a value of the label images. One that a later frame does not have has no bits there.
 * The layout of DAVIS, MOSE and YouTube-VOS is such a dataset, of data.format pairs, and so are
 * volumes with label volumes.
 */
#pragma once

#include "data/loader.h"

struct clip_options {
    struct loader_options image; /* of each frame; image.masks: objects of a clip, at most */
    uint32_t frames;
};

/* The samples at which clips may begin. */
struct clip_starts {
    VEC(uint32_t) at;
    uint64_t videos, short_videos; /* and those with fewer frames than a clip */
};
/* Finds the clips of a dataset, of which each begins `apart` frames after the one before it.
 * PL_USAGE: it has none, or its images are no files. */
int clips_find(struct clip_starts *out, const struct dataset *d, uint32_t frames, uint32_t apart, struct error *e);

/* A video of a dataset: the samples of one folder, or the slices of one volume. */
struct clip_video {
    uint64_t first, n;
    const struct volume *volume; /* NULL: a folder */
    char name[256];
};
/* Finds the video that begins with sample `first`. PL_USAGE: its images are neither files nor
 * slices. */
int clips_video(const struct dataset *d, uint64_t first, struct clip_video *out, struct error *e);
/* Decodes the label image of a sample into the scratch. */
struct label_image;
enum data_fault clips_labels(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct label_image *out,
                             struct error *e);

struct clip_source {
    struct sample_order order;
    const struct dataset *set;
    const struct clip_starts *starts;
};

struct clip_sample {
    struct loader_sample first;  /* the first frame and its objects; its position is the clip's */
    const uint8_t *images;       /* [frames][side][side][3] */
    const uint8_t *bits;         /* [frames][objects][cells][stride] */
};

/* Readers of clips: of struct clip_options and clip_source; a slot begins with a struct
 * clip_sample. */
extern const struct reader_kind clips_kind;
