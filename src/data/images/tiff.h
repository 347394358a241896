/*
 * tiff.h: TIFF images: 8 and 16 bits and floats, grey, RGB and palettes, strips and tiles, one page
 * or many. Only tiff.c uses libtiff.
 *
 * A build without libtiff has tiff_none.c instead, in which every TIFF is an error. While it
 * decodes, libtiff allocates a strip or a tile, and frees it before the call returns. The
 * orientation tag is not applied. Messages do not name the file.
 */
#pragma once

#include "data/images/plane.h"

/* Returns the version of libtiff; NULL: this build has none. */
const char *tiff_version(void);

/* A file in memory, or, with bytes NULL, an open file. */
struct tiff_source {
    const void *bytes;
    uint64_t n;
    int fd;
};

struct tiff_page {
    uint64_t at;       /* offset of the page's directory */
    uint32_t w, h;
    uint32_t channels; /* 1 or 3, without alpha; a palette has 1 */
    enum plane_type type;
    bool palette;
    size_t scratch;    /* bytes of a strip or tile that cannot be decoded in place */
};
enum { TIFF_MAX_PAGES = 65536 };
struct tiff_pages {
    VEC(struct tiff_page) pages;
};
bool is_tiff(const void *bytes, size_t n); /* by the first bytes */
/* Lists the pages. Reduced copies (thumbnails, pyramids) are left out. PL_USAGE: the file cannot be
 * read, or no page of it. */
int tiff_list(struct tiff_pages *t, const struct tiff_source *s, struct error *e);

/* Returns the bytes that tiff_read needs at `to`, aligned to 8. `labels`: a palette gives its
 * numbers, not its colours. */
size_t tiff_room(const struct tiff_page *p, bool labels);
int tiff_read(const struct tiff_source *s, const struct tiff_page *p, bool labels, void *to, size_t room,
              struct plane *out, struct error *e);
