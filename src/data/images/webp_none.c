/*
 * webp_none.c: a build without libwebp (see image.h). No WebP image is read.
 */
#include "data/images/image.h"

const char *webp_version(void) { return NULL; }

static int refuse(struct error *e)
{
    return error_set(e, PL_USAGE,
        "the image is WebP, and this build has no libwebp: convert it to PNG, or install libwebp-dev and build again");
}

int webp_peek(const void *bytes, size_t n, struct webp_header *h, struct error *e)
{
    (void)bytes, (void)n, (void)h;
    return refuse(e);
}

int webp_decode(const void *bytes, size_t n, bool alpha, uint8_t *to, size_t room, struct error *e)
{
    (void)bytes, (void)n, (void)alpha, (void)to, (void)room;
    return refuse(e);
}
