/*
 * image_reader.h: from the reference to an image to the pixels that a vision tower takes, as bytes,
 * in memory that is planned: the part of a loader's thread that reads images.
 *
 *     reference ─ file (image_files.h) ─ RGB (image.h; video.h) ─ pixels (image_processor.h; patches.h)
 *
 * Per image only libjpeg, libpng and libwebp allocate; per video also FFmpeg, and the list of its
 * frames is on the heap while they are read.
 */
#pragma once

#include "data/images/image_files.h"
#include "data/images/image_processor.h"
#include "data/masks/mask.h"
#include "data/images/patches.h"
#include "data/images/range.h"
#include "data/images/video.h"

enum { IMAGE_READER_SIDE = 16384 }; /* pixels: larger images are a fault */

struct image_reader_options {
    struct image_processor processor, frame_processor; /* of images, and of the frames of videos */
    const struct patch_rules *patches, *video_patches; /* of a model that takes patches; NULL: the processors */
    struct pixel_range range;  /* of images of 16 bits */
    uint64_t room;             /* bytes for the file of an image, its pixels and what the processor needs */
    double fps;                /* of videos (video.h) */
    uint32_t max_frames;
    const struct modality_list *modalities; /* of volumes; NULL: the model takes none */
    struct volume_options volumes;
};

/* Returns the bytes of the memory of a reader; those of one image for the tower. */
uint64_t image_reader_bytes(const struct image_reader_options *o);
uint64_t image_reader_size(const struct image_reader_options *o);

struct image_reader;
/* Makes a reader at `at`, which has image_reader_bytes, aligned to 64. Only this uses the heap. */
struct image_reader *image_reader_new(const struct image_reader_options *o, char *at);
void image_reader_free(struct image_reader *r);

/* Reads an image that has `count` images for the tower, into to[count * image_reader_size].
 * Another number is a fault: the image was replaced after its text was tokenized. */
enum data_fault image_reader_read(struct image_reader *r, struct image_files *files, const char *reference,
                                  uint32_t count, uint8_t *to, struct error *e);

/* Receives the bytes of `count` images or patches for the tower; or a volume, whose values are
 * f32. */
typedef int image_take(void *user, const void *values, uint32_t count, struct error *e);
/* What becomes of a video's frames: they are written one after the other; with `take` each is
 * written to the same place, and given to it. */
struct frames_to {
    uint8_t *pixels;
    image_take *take; /* NULL: none */
    void *user;
};
/* Reads the `count` frames of a video that are used. Another number is a fault. *replaced of them
 * could not be decoded (video.h). */
enum data_fault image_reader_video(struct image_reader *r, struct image_files *files, const char *reference,
                                   uint32_t count, const struct frames_to *to, uint32_t *replaced, struct error *e);

/* Reads a volume of a modality, into to[modality_floats] (volume.h). Its list of files and
 * a path are on the heap while it is read. */
enum data_fault image_reader_volume(struct image_reader *r, struct image_files *files, const char *reference,
                                    float *to, struct error *e);

/* Read an image or a video of a model that takes patches, and which becomes `tokens` tokens, into
 * to[patch_grid_patches][patch_bytes]. Another number is a fault: the file was replaced after its
 * text was tokenized. So are frames of several sizes. Which frames are used, options.video_patches
 * decides, and not fps and max_frames. */
struct patches_read {
    uint8_t *to;
    uint64_t tokens;        /* 0: as many for any grid, of at most... */
    uint64_t most;          /* ...this many patches */
    struct patch_grid grid; /* what was read */
    double seconds;         /* of a video, that one of grid.t lasts (patch_seconds_per_grid) */
    uint32_t replaced;      /* its frames that could not be decoded */
};
enum data_fault image_reader_patches(struct image_reader *r, struct image_files *files, const char *reference,
                                     struct patches_read *x, struct error *e);
enum data_fault image_reader_video_patches(struct image_reader *r, struct image_files *files, const char *reference,
                                           struct patches_read *x, struct error *e);
