/*
 * image.h: an image file of any format that is read, JPEG, PNG, WebP or TIFF (its first page), to
 * RGB.
 *
 * The first bytes tell the format, whatever the file's name is. Rows are from the top, without
 * gaps: [height][width][3]. The EXIF orientation is never applied. Messages do not name the file.
 */
#pragma once

#include "data/images/range.h"
#include "base/base.h"

enum { IMAGE_MAX_PIXELS = 100000000 }; /* of a JPEG or WebP; of others PNG_MAX_PIXELS */

enum image_format { IMAGE_UNKNOWN, IMAGE_JPEG, IMAGE_PNG, IMAGE_WEBP, IMAGE_TIFF };
enum image_format image_format(const void *bytes, size_t n);
/* Reports whether it is decoded as a whole, as PNG and WebP are; a JPEG is read row by row. */
bool image_is_whole(const void *bytes, size_t n);
const char *image_ending(const void *bytes, size_t n); /* of the file's name: "png", "webp", else "jpg" */

struct jpg;
struct image_options {
    struct pixel_range range; /* of a PNG of 16 bits, and of a TIFF of more than 8 */
    bool on_white;            /* what is transparent becomes white, as in transformers 5; else alpha is dropped. A
                                 PNG of 16 bits that `range` maps has its alpha dropped */
    struct jpg *jpg;          /* reads a JPEG; NULL: a reader is made for the call */
};

struct image {
    uint32_t width, height;
    uint8_t *rgb;
    double window[2]; /* of an image of 16 bits: the values that became black and white; else 0 and 0 */
};

/* Reads the header: the size of the image, and the bytes that image_decode needs at `to`. PL_USAGE:
 * not an image that is read, or too many pixels. */
int image_peek(const void *bytes, size_t n, const struct image_options *o, uint32_t *width, uint32_t *height,
               size_t *room, struct error *e);
/* Decodes a whole file. `to` has `room` bytes; NULL: image_decode allocates, and the caller frees
 * out->rgb with mem_free. Damage anywhere is an error, and then nothing needs freeing. */
int image_decode(struct image *out, const void *bytes, size_t n, const struct image_options *o, void *to, size_t room,
                 struct error *e);
/* Reads and decodes a file; messages name it. The caller calls image_free. */
int image_read(struct image *out, const char *path, const struct pixel_range *range, struct error *e);
void image_free(struct image *p);

/* ---- Formats that are not read ----
 *
 * image files that people have and that this program does not read: MetaImage, BMP,
 * files under a wrong name, and others. Messages name the format and a converter.
 */

struct unread {
    const char *name;    /* "BMP" */
    const char *endings; /* of file names, each between blanks: " .mha .mhd " */
    const char *advice;  /* how to convert such files */
};

/* The format by the ending of a file name, or by the first bytes of a file; NULL: none of them. */
const struct unread *unread_by_name(const char *path);
const struct unread *unread_by_bytes(const void *bytes, size_t n);
/* Does as unread_by_name, then by the first bytes of the file: DICOM files often have no ending. */
const struct unread *unread_file(const char *path);
/* Returns PL_USAGE: "20 files in images/ are BMP (such as a.bmp), which is not read: ...". `where`
 * may be NULL. */
int unread_refuse(const struct unread *u, uint64_t n, const char *where, const char *example, struct error *e);

/* ---- WebP ----
 *
 * WebP images, lossy and lossless. Only webp.c uses libwebp.
 *
 * A build without libwebp has webp_none.c instead, in which every WebP is an error. While it
 * decodes, libwebp allocates: about 4 bytes a pixel for a lossless file, some rows for a lossy one;
 * all of it is freed when the call returns. Messages do not name the file.
 */

/* Returns the version of libwebp; NULL: this build has none. */
const char *webp_version(void);

struct webp_header {
    uint32_t width, height;
    bool alpha, lossless;
};
/* Reads the header of a still image. PL_USAGE for an animated one. */
int webp_peek(const void *bytes, size_t n, struct webp_header *h, struct error *e);
/* Decodes to rows without gaps, 3 bytes a pixel or, with alpha, 4. `to` has room for them. Damage
 * anywhere is an error. */
int webp_decode(const void *bytes, size_t n, bool alpha, uint8_t *to, size_t room, struct error *e);
