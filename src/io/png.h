/*
 * png.h: reading and writing PNG images. Only png.c uses libpng.
 *
 * Pixels are rows from the top, without gaps: [height][width][channels], one byte or one native
 * uint16_t per element. An image that cannot be read is PL_USAGE. The message names the file
 * only if the function took a path.
 */
#pragma once

#include "base/base.h"

enum { PNG_MAX_PIXELS = 1 << 28 }; /* the limit when the caller sets none */

/* The contents of the file's header. */
struct png_header {
    uint32_t width, height;
    uint32_t depth;    /* bits of a sample as stored: 1, 2, 4, 8, 16 */
    uint32_t channels; /* as stored, without the palette: 1 grey or index, 2 grey and alpha, 3, 4 */
    bool palette;
    bool alpha;        /* some pixels may be transparent: an alpha channel, or a tRNS chunk */
};
int png_peek(const void *bytes, size_t n, struct png_header *h, struct error *e);

/* The layout of the decoded pixels:
 *   PNG_AS_STORED  every channel, 8 or 16 bits. Palettes stay indices; grey of 1, 2 or 4
 *                  bits keeps its values (a 1-bit mask gives 0 and 1).
 *   PNG_AS_LABELS  one channel of values, 8 or 16 bits: as above. Colour is accepted when its
 *                  three channels are equal everywhere. Alpha is dropped, unless it is all that
 *                  differs: then it is the values. A palette of greys that does not begin with
 *                  black is looked up.
 *   PNG_AS_RGB     8-bit RGB for every stored format: palette looked up, grey repeated, alpha
 *                  dropped, 16 bits rounded.
 *   PNG_AS_SAMPLES as stored, without alpha: one channel or three, 8 or 16 bits.
 *   PNG_AS_RGBA    as PNG_AS_RGB, with alpha: 255 where the file has none. */
enum png_as { PNG_AS_STORED, PNG_AS_LABELS, PNG_AS_RGB, PNG_AS_SAMPLES, PNG_AS_RGBA };

struct png_pixels {
    uint32_t width, height, channels;
    uint32_t depth; /* 8 or 16 */
    size_t bytes;
    void *at;
};

/* Returns the bytes that png_decode needs at `to` for this header; 0 when the layout is not
 * available for it. Reading labels needs room for all channels. */
size_t png_bytes(const struct png_header *h, enum png_as as);

/* Decodes a whole file in memory. The header is checked first: an image of more than max_pixels
 * (0: PNG_MAX_PIXELS) is an error before anything is allocated. `to` has `room` bytes; NULL:
 * png_decode allocates, and the caller frees with mem_free. Damage anywhere is an error. */
int png_decode(const void *bytes, size_t n, enum png_as as, uint64_t max_pixels, void *to, size_t room,
               struct png_pixels *out, struct error *e);
/* Decodes a file; the message names it. */
int png_read(const char *path, enum png_as as, uint64_t max_pixels, void *to, size_t room, struct png_pixels *out,
             struct error *e);

/* PNG_BITS takes one byte per pixel (0 is black, other values white) and stores one bit.
 * PNG_INDEXED takes one byte per pixel, the index of a colour as PASCAL VOC and DAVIS have them. */
enum png_kind { PNG_BITS, PNG_GREY, PNG_RGB, PNG_RGBA, PNG_INDEXED };
/* Fills that colour: bits 0, 3 and 6 are the highest of red, the next ones of green, then blue. */
void png_index_colour(uint8_t value, uint8_t rgb[3]);

/* Appends the file to `out`; `stride` is the distance of rows in bytes, 0: no gaps. */
int png_encode(struct text *out, enum png_kind kind, uint32_t width, uint32_t height, const void *pixels, size_t stride,
               struct error *e);
/* Writes the image to a path, atomically. */
int png_write(const char *path, enum png_kind kind, uint32_t width, uint32_t height, const void *pixels, size_t stride,
              struct error *e);
/* Refuses an option's path, which may be NULL, that has the name of another image format. */
int png_check_name(const char *option, const char *path, struct error *e);
