/*
 * tiff_none.c: a build without libtiff (see tiff.h). No TIFF image is read.
 */
#include "data/images/tiff.h"

const char *tiff_version(void) { return NULL; }

bool is_tiff(const void *bytes, size_t n)
{
    return n >= 4 && (!memcmp(bytes, "II*\0", 4) || !memcmp(bytes, "MM\0*", 4) || !memcmp(bytes, "II+\0", 4) ||
                      !memcmp(bytes, "MM\0+", 4));
}

static int refuse(struct error *e)
{
    return error_set(e, PL_USAGE,
                     "the image is TIFF, and this build has no libtiff: install libtiff-dev and build again, or "
                     "convert it to PNG, such as with ImageMagick: magick mogrify -format png *.tif");
}

int tiff_list(struct tiff_pages *t, const struct tiff_source *s, struct error *e)
{
    (void)s;
    *t = (struct tiff_pages){0};
    return refuse(e);
}

size_t tiff_room(const struct tiff_page *p, bool labels) { return (void)p, (void)labels, 0; }

int tiff_read(const struct tiff_source *s, const struct tiff_page *p, bool labels, void *to, size_t room,
              struct plane *out, struct error *e)
{
    (void)s, (void)p, (void)labels, (void)to, (void)room, (void)out;
    return refuse(e);
}
