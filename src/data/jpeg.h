/*
 * jpeg.h: JPEG images, read row by row and written whole. The one door to libjpeg.
 *
 * A reader is made once per thread and used for any number of files: start, rows until
 * done, finish. What libjpeg takes meanwhile comes from its own pools: bounded by
 * jpg_limits.memory for what grows with the image, given back at finish.
 *
 * Rows are RGB, whatever is stored: grey is repeated, CMYK and YCCK converted. The EXIF
 * orientation is never applied: masks are in the space of the stored pixels.
 * Messages do not name the file.
 */
#ifndef DATA_JPEG_H
#define DATA_JPEG_H

#include "base/base.h"

struct jpg_header {
    uint32_t width, height, components;
    bool progressive;
};
/* From the markers alone, without libjpeg and without memory. */
int jpg_peek(const void *bytes, size_t n, struct jpg_header *h, struct error *e);

/* 1, 2 or 4: how much smaller to decode an image that will be resized so that its longer
 * side is `target`. One half when that leaves at least 0.97 of the target, one quarter
 * likewise. Odd eighths are slower than decoding everything and are never used. */
uint32_t jpg_divisor(uint32_t width, uint32_t height, double target);

/* Members that are 0 take the value named. */
struct jpg_limits {
    uint64_t pixels; /* 100 million: larger images are refused from the header */
    uint64_t memory; /* 64 MiB: libjpeg's image memory; progressive files keep every coefficient, 2 bytes a sample */
    uint32_t scans;  /* 64: a progressive file with more is refused */
    bool tolerant;   /* warnings (cut, damaged data) are counted, not errors; the rest of the image is grey */
};
struct jpg;
struct jpg *jpg_new(const struct jpg_limits *limits);
void jpg_free(struct jpg *j);

/* Reads the header and gets ready for rows of *width x *height, the stored size divided and
 * rounded up. `bytes` stays in place until finish. */
int jpg_start(struct jpg *j, const void *bytes, size_t n, uint32_t divisor, uint32_t *width, uint32_t *height, struct error *e);
/* The next `rows` rows, to places `stride` bytes apart. More than are left is our bug. */
int jpg_rows(struct jpg *j, uint8_t *to, size_t stride, uint32_t rows, struct error *e);
/* After the last row: checks that the file ended well. Earlier: gives up the rest. */
int jpg_finish(struct jpg *j, struct error *e);
uint32_t jpg_warnings(const struct jpg *j);

/* All at once, to rows without gaps; *pixels is the caller's to mem_free. */
int jpg_decode(struct jpg *j, const void *bytes, size_t n, uint32_t divisor, uint32_t *width, uint32_t *height, uint8_t **pixels,
               struct error *e);

/* Appends a baseline JFIF file of RGB rows `stride` bytes apart (0: no gaps), chroma 4:2:0. */
int jpg_encode(struct text *out, uint32_t width, uint32_t height, const uint8_t *pixels, size_t stride, int quality, struct error *e);

#endif
