/*
 * image.h: an image file of any format that is read, JPEG, PNG, WebP or TIFF (its first page), to
 * RGB.
 *
 * The first bytes tell the format, whatever the file's name is. Rows are from the top, without
 * gaps: [height][width][3]. The EXIF orientation is never applied. Messages do not name the file.
 */
#ifndef DATA_IMAGE_H
#define DATA_IMAGE_H

#include "data/images/range.h"

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

#endif
