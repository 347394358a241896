/*
 * model_images.h: how the images of a model's conversations are read: what its family and the files
 * of its folder say, as an image source (data/images/image_source.h).
 */
#pragma once

#include "data/images/image_source.h"
#include "models/contents.h"

/* Opens the images of a model `m` that takes images, which are where `scope` says. Without a
 * tokenizer (NULL) the images have no text; `template` may be NULL. PL_USAGE: the tokenizer lacks
 * the image token, the folder's image processor does not fit, or there is no such folder or tar. */
int model_images_open(struct image_source *s, const struct model *m, const struct tokenizer *t,
                      const struct template *template, const struct image_scope *scope, struct error *e);
/* Takes videos, too: `tokens` for each frame, 0: as an image (with images of any size the folder's
 * video processor decides). `own`: the template was chosen by
 * the user, and renders videos, too. PL_USAGE: frames cannot have `tokens` tokens, or the model
 * takes no videos. */
int model_images_take_videos(struct image_source *s, const struct model *m, const struct video_options *o,
                             int64_t tokens, bool own, struct error *e);
/* Reads the processor of a model that takes images: of its folder, or its tower's usual one. */
int model_images_processor(struct image_processor *p, const struct model *m, struct error *e);
/* Reads the rules for images of any size, or for videos. `o` may be NULL. */
int model_images_patches(struct patch_rules *p, const struct model *m, bool videos, const struct patch_overrides *o,
                         struct error *e);
/* Reads the processor of the frames of its videos. */
int model_images_frame_processor(struct image_processor *p, const struct model *m, struct error *e);

/* Finds the value of each byte of pixels, in `b`, for rows with room for these images and frames.
 * PL_USAGE: patches of images and of videos have different ones. */
int model_images_table(struct pixel_table *out, const struct image_reader_options *o, const struct media *room,
                       struct bump *b, struct error *e);
/* Does the same for the images that a source reads. */
int image_source_table(struct pixel_table *out, const struct image_source *s, const struct media *room, struct bump *b,
                       struct error *e);
