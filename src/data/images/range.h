/*
 * range.h: from the 16 bits of an image to the 8 bits that a model takes.
 *
 * Images of 16 bits rarely use all of them: CT, MR and microscopes give 12 bits, 0 to 4095, and
 * divided by 257 these are 0 to 15 of 255, nearly black. A range names the values that become 0
 * and 255; what lies outside is clipped.
 *
 *   full         0 and 65535
 *   percentiles  the 0.5 and 99.5 percentiles of each image's pixels above 0
 *   window       two values, the same for all images
 *   auto         decided over the dataset (data/dataset_survey.c): full, or the window of its
 *                percentiles.
 *                An image without a dataset is a dataset of one image.
 *
 * Images of 8 bits are used as they are, whatever the range.
 */
#pragma once

#include "io/png.h"

/* In the order of the words of data.range. */
enum range_kind { RANGE_AUTO, RANGE_FULL, RANGE_PERCENTILES, RANGE_WINDOW };

struct pixel_range {
    enum range_kind kind;
    double percentiles[2]; /* in percent; both 0: 0.5 and 99.5 */
    double window[2];      /* the values that become 0 and 255; the first is smaller */
};

enum { RANGE_VALUES = 65536 };

/* Finds the two percentiles of all values above 0 from counts of values. Where both are equal,
 * gives the smallest and the largest value; returns false when there is no value above 0. */
bool range_percentiles(const uint64_t count[RANGE_VALUES], const struct pixel_range *r, double out[2]);
/* Returns what auto takes for these counts: full when the percentiles span at least half of all
 * values, or when nothing is above 0; else their window. */
struct pixel_range range_choose(const uint64_t count[RANGE_VALUES], const struct pixel_range *r);
/* Adds n values of 16 bits. */
void range_count(const uint16_t *at, size_t n, uint64_t count[RANGE_VALUES]);
/* Finds the window of one image of 16 bits. `count` is scratch, unless r is a window. */
void range_window(const uint16_t *at, size_t n, const struct pixel_range *r, uint64_t *count, double window[2]);
/* Returns one value through a window. */
static inline uint8_t range_map(double v, const double window[2])
{
    const double span = window[1] - window[0];
    if (!(v > window[0])) return 0; /* also NaN */
    return v >= window[1] ? 255 : (uint8_t)((510 * (v - window[0]) + span) / (2 * span));
}

/* Returns the bytes that range_decode needs for this header. */
size_t range_bytes(const struct png_header *h, const struct pixel_range *r);
/* Decodes a PNG to 8-bit RGB rows without gaps. to, room and NULL as in png_decode. *used, if not
 * NULL: the window of this image; 0 and 0 for an image of 8 bits. */
int range_decode(const void *bytes, size_t n, const struct pixel_range *r, void *to, size_t room,
                 struct png_pixels *out, double used[2], struct error *e);
/* Prints "window 12 to 3071" or "full (0 to 65535)". */
const char *range_print(const struct pixel_range *r, char out[96]);
