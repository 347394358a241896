/*
 * webp.h: WebP images, lossy and lossless. Only webp.c uses libwebp.
 *
 * A build without libwebp has webp_none.c instead, in which every WebP is an error. While it
 * decodes, libwebp allocates: about 4 bytes a pixel for a lossless file, some rows for a lossy one;
 * all of it is freed when the call returns. Messages do not name the file.
 */
#ifndef DATA_WEBP_H
#define DATA_WEBP_H

#include "base/base.h"

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

#endif
