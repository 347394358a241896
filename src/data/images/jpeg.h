/*
 * jpeg.h: JPEG images, read row by row and written whole. Only jpeg.c uses libjpeg.
 *
 * A reader is created once per thread and used for any number of files: jpg_start, jpg_rows until
 * done, jpg_finish. Meanwhile libjpeg allocates from its own pools: memory that grows with the
 * image is bounded by jpg_limits.memory and freed by jpg_finish.
 *
 * Rows are RGB for every stored format: grey is repeated, CMYK and YCCK converted. The EXIF
 * orientation is never applied: masks are in the space of the stored pixels.
 * Messages do not name the file.
 */
#pragma once

#include "base/base.h"

struct jpg_header {
    uint32_t width, height, components;
    bool progressive;
    uint32_t orientation; /* of EXIF, 1 to 8; 1: upright, or not stated */
};
/* Reads only the markers, without libjpeg and without allocating. */
int jpg_peek(const void *bytes, size_t n, struct jpg_header *h, struct error *e);

/* Returns 1, 2 or 4: by how much to shrink an image while decoding, when it will be resized to a
 * longer side of `target`. 2 if half the size is at least 0.97 of the target, 4 likewise. Other
 * fractions of eight are slower than full decoding and are never used. */
uint32_t jpg_divisor(uint32_t width, uint32_t height, double target);

/* A member that is 0 gets the default in its comment. */
struct jpg_limits {
    uint64_t pixels; /* 100 million: larger images are rejected from the header */
    uint64_t memory; /* 64 MiB: libjpeg's image memory; progressive files keep every coefficient,
                        2 bytes per sample */
    uint32_t scans;  /* 64: a progressive file with more scans is rejected */
    bool tolerant;   /* false: warnings (truncated, damaged data) are errors; true: they are counted
                        and the rest of the image is grey */
    /* three components are RGB where neither a JFIF nor an Adobe marker says what they are; false:
     * YCbCr */
    bool rgb;
};
struct jpg;
struct jpg *jpg_new(const struct jpg_limits *limits);
void jpg_free(struct jpg *j);
/* Returns the same in memory of the caller, jpg_bytes() aligned to 16. Only libjpeg allocates,
 * until jpg_close. */
size_t jpg_bytes(void);
struct jpg *jpg_open(void *memory, const struct jpg_limits *limits);
void jpg_close(struct jpg *j);

/* Reads the header and prepares for rows of *width x *height, the stored size divided and rounded
 * up. `bytes` must stay valid until jpg_finish. */
int jpg_start(struct jpg *j, const void *bytes, size_t n, uint32_t divisor, uint32_t *width, uint32_t *height,
              struct error *e);
/* Decodes the next `rows` rows, `stride` bytes apart. There must be that many left. */
int jpg_rows(struct jpg *j, uint8_t *to, size_t stride, uint32_t rows, struct error *e);
/* Checks, after the last row, that the file is complete; earlier, abandons the rest. */
int jpg_finish(struct jpg *j, struct error *e);
uint32_t jpg_warnings(const struct jpg *j);

/* Decodes a whole file to rows without gaps; the caller frees *pixels with mem_free. */
int jpg_decode(struct jpg *j, const void *bytes, size_t n, uint32_t divisor, uint32_t *width, uint32_t *height,
               uint8_t **pixels, struct error *e);

/* Appends a baseline JFIF file from RGB rows `stride` bytes apart (0: no gaps), chroma 4:2:0. */
int jpg_encode(struct text *out, uint32_t width, uint32_t height, const uint8_t *pixels, size_t stride, int quality,
               struct error *e);
