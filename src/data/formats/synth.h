/*
 * synth.h: synthetic images with exact masks: overlapping textured shapes on a textured ground,
 * and the mask of the visible part of each shape, in SA-1B's format.
 *
 * Image `id` of a seed is a pure function of the options: any thread can draw any image, and the
 * result is always the same.
 */
#pragma once

#include "base/base.h"

struct synth_options {
    uint64_t seed;
    uint32_t width, height;
    uint32_t masks; /* shapes that are drawn; a shape that is hardly visible gets no annotation */
};

struct synth_scene {
    struct synth_options options;
    uint64_t id;
    uint8_t *rgb;    /* [height][width][3] */
    uint16_t *owner; /* [height][width]: 0 is the ground, i + 1 shape i */
    struct synth_shape *shapes;
};

enum { SYNTH_MAX_MASKS = 4096, SYNTH_MAX_SIDE = 16384 };

/* Returns PL_USAGE when the options are invalid. */
int synth_check(const struct synth_options *o, struct error *e);
void synth_draw(struct synth_scene *s, const struct synth_options *o, uint64_t id);
void synth_free(struct synth_scene *s);
/* Returns the annotation file, with SA-1B's keys in SA-1B's order; returns the number of masks.
 * bbox is one pixel short in width and height, as in SA-1B. */
uint32_t synth_json(const struct synth_scene *s, struct text *out);
/* Encodes the image as in SA-1B: JPEG, quality 95, 4:2:0. */
int synth_jpeg(const struct synth_scene *s, struct text *out, struct error *e);
