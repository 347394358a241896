/*
 * rle.h: masks as run lengths, in the encodings of COCO and SA-1B.
 *
 * Pixels are counted down the columns, p = x * h + y. Runs alternate between zeros and
 * ones and begin with zeros (a first run of 0 means that pixel 0 is set); they add up
 * to exactly h * w. Four encodings of the same runs:
 *
 *     RLE_TEXT   the compressed string:  62304
 *     RLE_JSON   the same with JSON escapes: a backslash is written twice
 *     RLE_LIST   a JSON list:            [6, 2, 3, 2, 7]
 *     RLE_RUNS   uint32_t numbers in memory
 *
 * Every function reads any of them through one checked reader without a buffer: a mask is never
 * expanded, and no text can cause an access out of bounds.
 */
#pragma once

#include "base/base.h"

/* The largest image, in pixels: every position and run fits 31 bits. */
#define RLE_MAX_PIXELS 0x7fffffffu

enum rle_kind { RLE_TEXT, RLE_JSON, RLE_LIST, RLE_RUNS };

struct rle {
    enum rle_kind kind;
    uint32_t h, w;
    const void *at; /* characters, or uint32_t for RLE_RUNS; not owned */
    uint32_t n;     /* their number */
};

/* The faults of a mask. */
enum rle_status {
    RLE_OK,
    RLE_END,        /* only from rle_next: no more runs, and the sum is right */
    RLE_BAD_SIZE,   /* h or w is 0, or h * w beyond RLE_MAX_PIXELS */
    RLE_BAD_CHAR,   /* a character outside the alphabet, or a malformed list */
    RLE_CUT,        /* the text ends inside a number */
    RLE_LONG,       /* a number of more than 7 characters */
    RLE_BAD_RUN,    /* a run below 0 or beyond h * w */
    RLE_BAD_SUM,    /* the runs do not add up to h * w */
    RLE_MANY,       /* more than h * w + 1 runs, or more than the caller's room */
};
const char *rle_status_text(enum rle_status s);

/* Reads one run after the other. rle_open checks the size; rle_next returns RLE_OK with a run,
 * RLE_END, or a fault. The sum of the returned runs never exceeds h * w. */
struct rle_reader {
    const char *at, *end;
    enum rle_kind kind;
    uint32_t pixels, sum; /* h * w; sum of the runs so far */
    uint32_t count;       /* number of runs */
    uint32_t last[2];     /* the previous two runs: [0] has the same colour */
};
enum rle_status rle_open(struct rle_reader *r, const struct rle *m);
enum rle_status rle_next(struct rle_reader *r, uint32_t *run);

/* Decodes into runs[room]; *n is their number. */
enum rle_status rle_decode(const struct rle *m, uint32_t *runs, uint32_t room, uint32_t *n);
/* Encodes runs as the compressed string (not escaped, not terminated). Returns its length, or 0
 * when `room` is too small; 7 characters per run are always enough. */
size_t rle_encode(const uint32_t *runs, uint32_t n, char *out, size_t room);
/* Encodes the non-zero pixels as runs: pixel (x, y) is pixels[y * row + x * column]. */
enum rle_status rle_from_pixels(const uint8_t *pixels, uint32_t h, uint32_t w, size_t row, size_t column,
                                uint32_t *runs, uint32_t room, uint32_t *n);
/* Decodes to pixels of 0 and 1, column after column: to[h * w]. Not used in training. */
enum rle_status rle_to_pixels(const struct rle *m, uint8_t *to);

/* Computed in one pass over the runs: number of ones, tight box (0 0 0 0 when empty). */
struct rle_facts {
    uint32_t area, runs;
    uint32_t x, y, w, h;
};
enum rle_status rle_measure(const struct rle *m, struct rle_facts *f);
/* Does the same for h x w pixels: is_on(of, y, x). Runs are counted along columns, as in COCO's
 * RLE. */
void rle_measure_pixels(struct rle_facts *f, uint32_t h, uint32_t w,
                        bool (*is_on)(const void *of, uint32_t y, uint32_t x), const void *of);
/* Returns the number of connected parts, by sides and corners of pixels. Uses the heap. */
enum rle_status rle_parts(const struct rle *m, uint32_t *parts);
/* Computes the union, or with `both` the intersection, as runs; only the first run may be 0. The
 * runs must not overlap those of a or b. RLE_BAD_SIZE when the sizes differ. */
enum rle_status rle_merge(const struct rle *a, const struct rle *b, bool both, uint32_t *runs, uint32_t room,
                          uint32_t *n);
