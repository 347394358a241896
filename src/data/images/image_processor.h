/*
 * image_processor.h: from an image of any size to the pixels that a vision tower takes, as bytes,
 * and the value of each byte.
 *
 *   CLIP      [pad to a square] ─ shorter edge to S ─ centre crop S x S ─┐
 *   SigLIP, Gemma 3
 *             resize to S x S ───────────────────────────────────────────┼─ / 255 ─ (x - mean) /
 *             std
 *   Idefics3  longer edge to L ─ sides to multiples of S ─ tiles S x S ──┘
 *                                and the whole image resized to S x S
 *   LLaVA-NeXT  the whole image resized to S x S, and within a size of image_grid_pinpoints, with black
 *             around it: tiles S x S
 *   LLaVA-OneVision  the same; an image beside others in a conversation has no tiles, and is first
 *             set into a square of the mean colour; a frame of a video has no tiles
 *   InternVL  columns x rows of tiles S x S, whose shape is nearest to the image's,
 *             and the whole image resized to S x S
 *
 * What it does is what transformers' processors do with Pillow, read from the same files; for
 * LLaVA-OneVision it is what they do with torchvision, which AutoProcessor chooses where that is
 * installed. The bytes are Pillow's, or PyTorch's, where the filter is bicubic or Lanczos
 * (resize.h).
 *
 * After reading nothing is allocated, and any number of threads may process images.
 */
#pragma once

#include "data/images/resize.h"
#include "data/images/video.h"
#include "text/template/anyres.h"

enum image_family {
    IMAGES_CLIP, IMAGES_SIGLIP, IMAGES_IDEFICS3, IMAGES_INTERNVL, IMAGES_GEMMA3, IMAGES_ANYRES, IMAGES_ONEVISION
};

/* Sizes are in pixels; 0: not set. */
struct image_processor {
    bool pad_square;              /* first set into a square of the mean colour: LLaVA's image_aspect_ratio: pad */
    bool resize;
    enum resize_filter filter;
    uint32_t shortest_edge;       /* the shorter edge becomes this long; or */
    uint32_t longest_edge;        /* the longer edge; or */
    uint32_t height, width;       /* exactly this size */
    bool crop;
    uint32_t crop_height, crop_width;
    uint32_t tile;                /* side of tiles (max_image_size.longest_edge); 0: a model without tiles */
    bool split;                   /* into tiles and the whole; false: only the whole */
    uint32_t min_tiles, max_tiles; /* InternVL: how many tiles; 0: as many as the resized image has */
    struct anyres anyres;         /* IMAGES_ANYRES, IMAGES_ONEVISION: tiles of S x S; n 0: another family */
    bool torchvision;             /* values are rescaled and normalised at once; IMAGES_ONEVISION */
    struct video_sampling frames; /* of a video, the frames that are taken; IMAGES_ONEVISION */
    bool rescale, normalize;
    double factor;                /* of rescale */
    double mean[3], std[3];
};

/* Sets the processor of a family without a file, for a tower that takes images of side x side; 0:
 * the class's own default. */
void image_processor_default(struct image_processor *p, enum image_family family, uint32_t side);
/* Reads processor_config.json (its image_processor) or preprocessor_config.json of a model folder;
 * without them the family's default. A folder in LLaVA's original layout has image_aspect_ratio in
 * config.json. PL_USAGE names the file: a processor of another class, or images that are not side x
 * side (0: any side). */
int image_processor_read(struct image_processor *p, const char *folder, enum image_family family, uint32_t side,
                         struct error *e);
/* Reads the processor of a video's frames: the same, but for SmolVLM's. Its frames have no tiles,
 * and the folder may state other values for them: video_processor of processor_config.json, or
 * video_preprocessor_config.json. */
int image_processor_read_frames(struct image_processor *p, const char *folder, enum image_family family, uint32_t side,
                                struct error *e);
/* Reads the same from the text of a file, whose path is for messages. */
int image_processor_parse(struct image_processor *p, const char *json, size_t n, const char *path,
                          enum image_family family, uint32_t side, struct error *e);

/* Returns the processor of an image that is not the only one of its conversation. */
struct image_processor image_processor_beside(const struct image_processor *p);

/* Gives the size of the tower's images. */
void image_processor_size(const struct image_processor *p, uint32_t *height, uint32_t *width);
/* Returns how many images the tower gets for one of this size. With tiles: rows * columns of them,
 * row by row, then the whole; rows and columns are 0 where the whole is all. */
uint32_t image_processor_count(const struct image_processor *p, uint32_t width, uint32_t height, uint32_t *rows,
                               uint32_t *columns);
/* Returns the bytes of scratch for an image of this size. */
size_t image_processor_scratch(const struct image_processor *p, uint32_t width, uint32_t height);
/* Writes the bytes [count][3][H][W] to `to`, of which the pixel values are computed. Rows of the
 * image are 3 * width bytes apart. */
void image_processor_run(const struct image_processor *p, const uint8_t *rgb, uint32_t width, uint32_t height,
                         void *scratch, size_t room, uint8_t *to);
/* Computes the pixel value of each byte, by channel. */
void image_processor_values(const struct image_processor *p, float value[3][256]);
