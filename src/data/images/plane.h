/*
 * plane.h: a two-dimensional array of values of any type: a page of a TIFF, a slice of a volume.
 *
 * The value of a voxel is slope * stored + inter. A range (range.h) names the values that become
 * black and white.
 */
#pragma once

#include "data/images/range.h"

enum plane_type {
    PLANE_U8,
    PLANE_I8,
    PLANE_U16,
    PLANE_I16,
    PLANE_U32,
    PLANE_I32,
    PLANE_U64,
    PLANE_I64,
    PLANE_F16,
    PLANE_F32,
    PLANE_F64,
    PLANE_TYPES
};
size_t plane_type_bytes(enum plane_type t);
const char *plane_type_name(enum plane_type t); /* "int16" */

struct plane {
    uint32_t h, w;
    uint32_t channels;     /* 1, or 3 interleaved: RGB */
    enum plane_type type;
    double slope, inter;
    void *at;              /* rows without gaps, in native byte order */
};
static inline size_t plane_bytes(const struct plane *p)
{
    return (size_t)p->h * p->w * p->channels * plane_type_bytes(p->type);
}

/* Returns one stored value, scaled. */
double plane_value(const struct plane *p, size_t i);
/* Reverses the bytes of each value. */
void plane_swap_bytes(struct plane *p);

/* Reports whether the values are pixels of 8 bits already, which no range changes. */
static inline bool plane_is_pixels(const struct plane *p)
{
    return p->type == PLANE_U8 && p->slope == 1 && p->inter == 0;
}
/* Finds the window of an image by its range: percentiles are those of the values above 0, or, where
 * there are negative ones, of those above the smallest. `counts` is scratch of plane_counts bytes;
 * nothing is sorted and nothing allocated. */
size_t plane_counts(const struct plane *p);
void plane_window(const struct plane *p, const struct pixel_range *r, uint64_t *counts, double window[2]);
/* Converts the values through a window to RGB: grey is repeated. channel 0 to 2: only that channel
 * of the pixels is written, from a plane of one channel; -1: all. */
void plane_to_rgb(const struct plane *p, const double window[2], int channel, uint8_t *rgb);
/* Converts the values to labels of 8 or 16 bits, in place; *bytes is 1 or 2. PL_USAGE: some value
 * is no whole number from 0 to 65535. */
int plane_to_labels(struct plane *p, int *bytes, struct error *e);

/* Copies at most `room` values of a plane, at equal distances, and returns how many. Those that are
 * not finite are left out. */
size_t plane_take(const struct plane *p, size_t room, double *to);
