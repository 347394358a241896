/*
 * patches.h: from an image or a video of any size to the patches that the vision towers of
 * Qwen2-VL, Qwen2.5-VL and Qwen3-VL take.
 *
 *     RGB, any size ─ resized to h * patch x w * patch ─ / 255, (x - mean) / std ─ patches
 *
 * The size keeps the aspect ratio as well as multiples of patch * merge allow, between min_pixels
 * and max_pixels. A patch has `temporal` frames: those of an image are all the same; a video's
 * last frame is repeated where the last patches lack some. merge * merge neighbours, which become
 * one token, follow each other:
 *
 *     pixel values f32 [t * h * w][3][temporal][patch][patch]      w = 4, merge = 2:   0 1 4 5
 *                                                                                      2 3 6 7
 *
 * The values have the bits of transformers 5's default processors (the torchvision backend):
 * RESIZE_TORCH_BICUBIC of resize.h, then (x - mean / factor) / (std / factor) in f32.
 *
 * Planning calls patch_grid_image and patch_grid_video with sizes only. Nothing here allocates
 * after reading, except what patch_rules_read frees itself; any number of threads may use one
 * struct patch_rules.
 */
#pragma once

#include "data/images/resize.h"
#include "data/images/video.h"

/* Qwen2.5-VL's processors are those of Qwen2-VL. The two differ only in what they do to videos. */
enum patch_family { PATCHES_QWEN2_VL, PATCHES_QWEN3_VL };

enum { PATCH_ASPECT = 200 }; /* the longer side of an image is at most this many times the other */

/* What a processor does with images, or with videos. */
struct patch_rules {
    enum patch_family family;
    uint32_t patch, temporal, merge;   /* patch_size, temporal_patch_size, merge_size */
    uint64_t min_pixels, max_pixels;   /* of an image or a frame; of all frames of a Qwen3-VL video together */
    enum resize_filter filter;
    bool rescale, normalize;
    double factor;                     /* of rescale */
    double mean[3], std[3];
    /* Only of videos: */
    bool sample;                       /* do_sample_frames: `fps` frames a second are taken; else every frame */
    double fps;
    double folder_fps;                 /* the rate of frames without times: of a folder of images */
    uint32_t min_frames, max_frames;   /* where it samples */
    uint32_t most_frames;              /* where it takes every frame; 0: any number */
    bool cap;                          /* cap_pixels_per_frame, with */
    uint64_t cap_tokens;               /* max_video_tokens */
};

/* What replaces the values of the folder's files; 0: not set. For videos, min_pixels and max_pixels
 * have the meaning of patch_rules. */
struct patch_overrides {
    uint64_t min_pixels, max_pixels;
    double fps;          /* turns sampling on; and a folder of images has that many frames a second (24 if not set) */
    uint32_t max_frames; /* at most this many frames of a video, also where every frame would be taken */
};

/* Sets the processor of a family without a file: the class's default. */
void patch_rules_default(struct patch_rules *p, enum patch_family family, bool videos);
/* Reads the processor of images, or of videos, of a model folder: processor_config.json (its
 * image_processor or video_processor), else video_preprocessor_config.json (videos), else
 * preprocessor_config.json, else the default; then puts the overrides (may be NULL) over it.
 * PL_USAGE names the file and the key: another class, a switch that is not supported, a value out
 * of range, min_pixels above max_pixels. */
int patch_rules_read(struct patch_rules *p, const char *folder, enum patch_family family, bool videos,
                     const struct patch_overrides *o, struct error *e);
/* Reads the same from the text of one file, whose path is for messages. */
int patch_rules_parse(struct patch_rules *p, const char *json, size_t n, const char *path, enum patch_family family,
                      bool videos, const struct patch_overrides *o, struct error *e);
/* Returns a hash of everything that decides how many tokens an image or a video has. */
uint64_t patch_rules_hash(const struct patch_rules *p);

/* ---- Sizes ---- */

/* The patches of an image or a video; t is 1 for an image. */
struct patch_grid {
    uint32_t t, h, w;
};

/* Finds the grid of an image of this size: it is resized to grid->w * patch by grid->h * patch
 * pixels. PL_USAGE names the size: a side is 0, or one is more than PATCH_ASPECT times the
 * other. */
int patch_grid_image(const struct patch_rules *p, uint32_t width, uint32_t height, struct patch_grid *grid,
                     struct error *e);
/* Finds the grid of `frames` frames of this size, those that were chosen. PL_USAGE also: there are
 * none, or fewer than Qwen3-VL takes. */
int patch_grid_video(const struct patch_rules *p, uint32_t frames, uint32_t width, uint32_t height,
                     struct patch_grid *grid, struct error *e);
/* Return the number of patches, rows of pixel values; and of tokens, which is patches / merge^2. */
uint64_t patch_grid_patches(const struct patch_grid *g);
uint64_t patch_grid_tokens(const struct patch_rules *p, const struct patch_grid *g);
/* Returns the bytes of one patch, each of which is a pixel value: 3 * temporal * patch * patch. */
uint32_t patch_bytes(const struct patch_rules *p);
/* Computes the value of each byte, by channel. */
void patch_values(const struct patch_rules *p, float value[3][256]);

/* ---- Pixels ---- */

/* Returns the bytes of scratch for an image or frame of this size that is resized to the grid;
 * UINT64_MAX where they do not fit into a uint64_t. */
uint64_t patch_scratch(const struct patch_rules *p, const struct patch_grid *g, uint32_t width, uint32_t height);
/* Writes the patches of an image, [patch_grid_patches][patch_bytes], to `to`. Rows of the image
 * are 3 * width bytes apart. */
void patch_image(const struct patch_rules *p, const struct patch_grid *g, const uint8_t *rgb, uint32_t width,
                 uint32_t height, void *scratch, uint64_t room, uint8_t *to);
/* Writes frame i of `frames` to the patches of a video, of which `to` is the first. The frames may
 * come in any order; each writes what is its own, and the last one also what repeats it. All
 * frames have the size from which the grid was found. */
void patch_frame(const struct patch_rules *p, const struct patch_grid *g, uint32_t i, uint32_t frames,
                 const uint8_t *rgb, uint32_t width, uint32_t height, void *scratch, uint64_t room, uint8_t *to);

/* ---- The frames of a video ---- */

/* Chooses frames as transformers' video processor does: a video_chooser (video.h), whose user is a
 * const struct patch_rules. Frames without times are all taken, or max_frames of them evenly.
 * PL_USAGE: the video has too few frames for the model. */
int patch_frames_choose(const void *rules, const struct video_facts *v, uint32_t *chosen, uint32_t *n,
                        struct error *e);
/* Returns the seconds that one grid of n chosen frames lasts: Qwen2.5-VL's second_per_grid_ts. */
double patch_seconds_per_grid(const struct patch_rules *p, const struct video_facts *v, uint32_t n);
/* Writes the time of each grid of the n chosen frames, in seconds, to seconds[grid.t]: the middle
 * of its first and last frame, which Qwen3-VL's text names. */
void patch_grid_seconds(const struct patch_rules *p, const struct video_facts *v, const uint32_t *chosen, uint32_t n,
                        double *seconds);
