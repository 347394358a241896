/*
 * image.c: see image.h. One row per format: how its header is read, and how its pixels are.
 *
 * An image with alpha is decoded to 4 bytes a pixel and blended over white in place, to 3.
 */
#include "data/images/image.h"

#include "data/images/jpeg.h"
#include "data/images/tiff.h"
#include "io/file.h"

/* What the header says. */
struct head {
    uint32_t width, height;
    struct tiff_page page;
    bool blend;  /* decoded with alpha and then blended */
    size_t room;
};

static bool begins(const void *bytes, size_t n, size_t at, const char *magic, size_t length)
{
    return n >= at + length && !memcmp((const char *)bytes + at, magic, length);
}

enum image_format image_format(const void *bytes, size_t n)
{
    if (begins(bytes, n, 0, "\xff\xd8", 2)) return IMAGE_JPEG;
    if (begins(bytes, n, 0, "\x89PNG", 4)) return IMAGE_PNG;
    if (is_tiff(bytes, n)) return IMAGE_TIFF;
    return begins(bytes, n, 0, "RIFF", 4) && begins(bytes, n, 8, "WEBP", 4) ? IMAGE_WEBP : IMAGE_UNKNOWN;
}

bool image_is_whole(const void *bytes, size_t n)
{
    const enum image_format f = image_format(bytes, n);
    return f == IMAGE_PNG || f == IMAGE_WEBP;
}

const char *image_ending(const void *bytes, size_t n)
{
    const enum image_format f = image_format(bytes, n);
    return f == IMAGE_PNG ? "png" : f == IMAGE_WEBP ? "webp" : "jpg";
}

/* Computes Pillow's alpha_composite over opaque white, in its integers. */
static void blend_over_white(uint8_t *p, size_t pixels)
{
    enum { SHIFT = 7 };
    const uint8_t *from = p;
    for (size_t i = 0; i < pixels; i++, from += 4, p += 3) {
        const uint32_t alpha = from[3];
        for (int c = 0; c < 3; c++) {
            uint32_t sum = ((from[c] * alpha + 255 * (255 - alpha)) << SHIFT) + (128 << SHIFT);
            p[c] = (uint8_t)(((sum >> 8) + sum) >> 8 >> SHIFT);
        }
    }
}

/* --- JPEG ---------------------------------------------------------------------------------- */

static int peek_jpeg(const void *bytes, size_t n, const struct image_options *o, struct head *h, struct error *e)
{
    struct jpg_header head;
    (void)o;
    if (jpg_peek(bytes, n, &head, e)) return e->code;
    h->width = head.width;
    h->height = head.height;
    return PL_OK;
}

static int read_jpeg(struct jpg *j, const void *bytes, size_t n, const struct head *h, uint8_t *to, struct error *e)
{
    uint32_t w, rows;
    if (jpg_start(j, bytes, n, 1, &w, &rows, e) || jpg_rows(j, to, (size_t)h->width * 3, h->height, e)) return e->code;
    return jpg_finish(j, e);
}

static int decode_jpeg(struct image *out, const void *bytes, size_t n, const struct image_options *o,
                       const struct head *h, struct error *e)
{
    struct jpg *own = o->jpg ? NULL : jpg_new(&(struct jpg_limits){.memory = (uint64_t)1 << 30});
    int rc = read_jpeg(o->jpg ? o->jpg : own, bytes, n, h, out->rgb, e);
    jpg_free(own);
    return rc;
}

/* --- PNG ----------------------------------------------------------------------------------- */

static bool mapped(const struct png_header *h, const struct image_options *o)
{
    return h->depth == 16 && o->range.kind != RANGE_FULL;
}

static int peek_png(const void *bytes, size_t n, const struct image_options *o, struct head *h, struct error *e)
{
    struct png_header head;
    if (png_peek(bytes, n, &head, e)) return e->code;
    h->width = head.width;
    h->height = head.height;
    h->blend = o->on_white && head.alpha && !mapped(&head, o);
    h->room = h->blend ? png_bytes(&head, PNG_AS_RGBA) : range_bytes(&head, &o->range);
    return PL_OK;
}

static int decode_png(struct image *out, const void *bytes, size_t n, const struct image_options *o,
                      const struct head *h, struct error *e)
{
    struct png_pixels x;
    if (h->blend) return png_decode(bytes, n, PNG_AS_RGBA, 0, out->rgb, h->room, &x, e);
    return range_decode(bytes, n, &o->range, out->rgb, h->room, &x, out->window, e);
}

/* --- WebP ---------------------------------------------------------------------------------- */

static int peek_webp(const void *bytes, size_t n, const struct image_options *o, struct head *h, struct error *e)
{
    struct webp_header head;
    if (webp_peek(bytes, n, &head, e)) return e->code;
    h->width = head.width;
    h->height = head.height;
    h->blend = o->on_white && head.alpha;
    h->room = (size_t)h->width * h->height * (h->blend ? 4 : 3);
    return PL_OK;
}

static int decode_webp(struct image *out, const void *bytes, size_t n, const struct image_options *o,
                       const struct head *h, struct error *e)
{
    (void)o;
    return webp_decode(bytes, n, h->blend, out->rgb, h->room, e);
}

/* --- TIFF ---------------------------------------------------------------------------------- */

/* Returns the bytes for a TIFF: the plane is decoded behind the pixels, and counts of values are
 * behind the plane. */
static size_t tiff_pixels(const struct head *h) { return (size_t)align_up((uint64_t)h->width * h->height * 3, 8); }
static size_t tiff_plane(const struct head *h) { return (size_t)align_up(tiff_room(&h->page, false), 8); }

static int peek_tiff(const void *bytes, size_t n, const struct image_options *o, struct head *h, struct error *e)
{
    struct tiff_pages l;
    (void)o;
    if (tiff_list(&l, &(struct tiff_source){.bytes = bytes, .n = n}, e)) return e->code;
    h->page = l.pages.at[0];
    vec_free(&l.pages);
    h->width = h->page.w;
    h->height = h->page.h;
    h->room = tiff_pixels(h) + tiff_plane(h) + plane_counts(&(struct plane){.type = h->page.type, .slope = 1});
    return PL_OK;
}

static int decode_tiff(struct image *out, const void *bytes, size_t n, const struct image_options *o,
                       const struct head *h, struct error *e)
{
    struct plane p;
    char *plane = (char *)out->rgb + tiff_pixels(h);
    if (tiff_read(&(struct tiff_source){.bytes = bytes, .n = n}, &h->page, false, plane, tiff_plane(h), &p, e))
        return e->code;
    plane_window(&p, &o->range, (uint64_t *)(void *)(plane + tiff_plane(h)), out->window);
    plane_to_rgb(&p, out->window, -1, out->rgb);
    if (plane_is_pixels(&p)) out->window[0] = out->window[1] = 0;
    return PL_OK;
}

/* --- any ----------------------------------------------------------------------------------- */

static const struct format {
    const char *name;
    uint64_t pixels;
    int (*peek)(const void *bytes, size_t n, const struct image_options *o, struct head *h, struct error *e);
    int (*decode)(struct image *out, const void *bytes, size_t n, const struct image_options *o, const struct head *h,
                  struct error *e);
} formats[] = {
    [IMAGE_JPEG] = {"JPEG", IMAGE_MAX_PIXELS, peek_jpeg, decode_jpeg},
    [IMAGE_PNG] = {"PNG", PNG_MAX_PIXELS, peek_png, decode_png},
    [IMAGE_WEBP] = {"WebP", IMAGE_MAX_PIXELS, peek_webp, decode_webp},
    [IMAGE_TIFF] = {"TIFF", PNG_MAX_PIXELS, peek_tiff, decode_tiff},
};

static int refuse(const void *bytes, size_t n, struct error *e)
{
    const struct unread *u = unread_by_bytes(bytes, n);
    if (!n) return error_set(e, PL_USAGE, "the file is empty: expected a JPEG, PNG, WebP or TIFF image");
    if (u)
        return error_set(e, PL_USAGE, "not a JPEG, PNG, WebP or TIFF image but %s, which is not read: %s", u->name,
                         u->advice);
    return error_set(e, PL_USAGE, "not a JPEG, PNG, WebP or TIFF image; convert it to one of them");
}

static int peek(const void *bytes, size_t n, const struct image_options *o, const struct format **f, struct head *h,
                struct error *e)
{
    const enum image_format format = image_format(bytes, n);
    *h = (struct head){0};
    if (format == IMAGE_UNKNOWN) return refuse(bytes, n, e);
    *f = &formats[format];
    if ((*f)->peek(bytes, n, o, h, e)) return e->code;
    if ((uint64_t)h->width * h->height > (*f)->pixels)
        return error_set(e, PL_USAGE, "the %s has %ux%u pixels; at most %llu pixels are allowed", (*f)->name, h->width,
                         h->height, (unsigned long long)(*f)->pixels);
    if (!h->room) h->room = (size_t)h->width * h->height * 3;
    return PL_OK;
}

int image_peek(const void *bytes, size_t n, const struct image_options *o, uint32_t *width, uint32_t *height,
               size_t *room, struct error *e)
{
    const struct format *f = NULL;
    struct head h;
    if (peek(bytes, n, o, &f, &h, e)) return e->code;
    *width = h.width;
    *height = h.height;
    *room = h.room;
    return PL_OK;
}

int image_decode(struct image *out, const void *bytes, size_t n, const struct image_options *o, void *to, size_t room,
                 struct error *e)
{
    const struct format *f = NULL;
    struct head h;
    *out = (struct image){0};
    if (peek(bytes, n, o, &f, &h, e)) return e->code;
    if (to && room < h.room)
        return error_set(e, PL_NOFIT, "the %s of %ux%u pixels needs %zu bytes; the buffer has %zu", f->name, h.width,
                         h.height, h.room, room);
    *out = (struct image){.width = h.width, .height = h.height, .rgb = to ? to : mem_alloc(h.room)};
    int rc = f->decode(out, bytes, n, o, &h, e);
    if (rc && !to) mem_free(out->rgb);
    if (rc) *out = (struct image){0};
    else if (h.blend) blend_over_white(out->rgb, (size_t)h.width * h.height);
    return rc;
}

int image_read(struct image *out, const char *path, const struct pixel_range *range, struct error *e)
{
    enum { FILE_MOST = 1 << 30 };
    char *bytes;
    size_t n;
    *out = (struct image){0};
    TRY(file_read(path, FILE_MOST, &bytes, &n, e));
    int rc = image_decode(out, bytes, n, &(struct image_options){.range = *range}, NULL, 0, e);
    mem_free(bytes);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}

void image_free(struct image *p)
{
    mem_free(p->rgb);
    *p = (struct image){0};
}
