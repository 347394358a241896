/*
 * png.c: libpng behind a small interface.
 *
 * libpng reports errors by longjmp. Every call into it is made inside one of the three functions
 * that setjmp. Values that must survive the jump live in a struct of the caller, so no local
 * variable changes between setjmp and longjmp. libpng's messages go into that struct and become
 * our messages; nothing is printed and nothing aborts.
 *
 * Invariant: pixels are decoded only after the header passed the limits, and the output is
 * complete or the call fails: a file that ends early or fails a checksum gives no image.
 */
#include "io/png.h"

#include <png.h>
#include <setjmp.h>

#include "io/file.h"

/* Ancillary chunks are not used: one larger than this is an error and is not inflated. */
enum { CHUNK_CAP = 1 << 20, CHUNK_COUNT_CAP = 64, FILE_CAP = 1 << 30, SIDE_CAP = 1 << 20 };

struct stream {
    const uint8_t *at;
    size_t left;
    struct text *out;
    png_structp png;
    png_infop info;
    uint8_t *pixels; /* [h][row bytes] */
    uint8_t *bits;   /* one row of PNG_BITS, as 0 and 1 */
    char message[128];
};

static void on_error(png_structp png, png_const_charp message)
{
    struct stream *s = png_get_error_ptr(png);
    strncpy(s->message, message, sizeof s->message - 1);
    longjmp(png_jmpbuf(png), 1);
}

/* Ignores warnings, which concern unused chunks: colour profiles, text, times. */
static void on_warning(png_structp png, png_const_charp message)
{
    (void)png;
    (void)message;
}

static void read_bytes(png_structp png, png_bytep to, size_t n)
{
    struct stream *s = png_get_io_ptr(png);
    if (n > s->left) png_error(png, "the file ends too early");
    memcpy(to, s->at, n);
    s->at += n;
    s->left -= n;
}

static void write_bytes(png_structp png, png_bytep from, size_t n)
{
    text_append(((struct stream *)png_get_io_ptr(png))->out, (const char *)from, n);
}

static void flush_nothing(png_structp png) { (void)png; }

static int bad(const struct stream *s, const char *doing, struct error *e)
{
    return error_set(e, PL_USAGE, "the PNG cannot be %s: %s", doing, s->message[0] ? s->message : "out of memory");
}

/* ---- reading ---- */

static bool open_read(struct stream *s, const void *bytes, size_t n)
{
    memset(s, 0, sizeof *s);
    s->at = bytes;
    s->left = n;
    s->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, s, on_error, on_warning);
    if (s->png) s->info = png_create_info_struct(s->png);
    return s->info != NULL;
}

static void close_read(struct stream *s)
{
    png_destroy_read_struct(&s->png, s->info ? &s->info : NULL, NULL);
}

/* Reads the chunks before the pixels; false when libpng jumped. */
static bool read_info(struct stream *s, struct png_header *h)
{
    if (setjmp(png_jmpbuf(s->png))) return false;
    png_set_user_limits(s->png, SIDE_CAP, SIDE_CAP);
    png_set_chunk_malloc_max(s->png, CHUNK_CAP);
    png_set_chunk_cache_max(s->png, CHUNK_COUNT_CAP);
    png_set_read_fn(s->png, s, read_bytes);
    png_read_info(s->png, s->info);
    h->width = png_get_image_width(s->png, s->info);
    h->height = png_get_image_height(s->png, s->info);
    h->depth = png_get_bit_depth(s->png, s->info);
    h->channels = png_get_channels(s->png, s->info);
    h->palette = png_get_color_type(s->png, s->info) == PNG_COLOR_TYPE_PALETTE;
    h->alpha = h->channels % 2 == 0 || png_get_valid(s->png, s->info, PNG_INFO_tRNS);
    return true;
}

static bool is_rgb(enum png_as as) { return as == PNG_AS_RGB || as == PNG_AS_RGBA; }

/* Sets libpng's conversions of the stored pixels, and reads all rows. The gamma and
 * significant-bit chunks never change a value: only the conversions set below happen. */
static bool read_pixels(struct stream *s, const struct png_header *h, enum png_as as, size_t row)
{
    if (setjmp(png_jmpbuf(s->png))) return false;
    if (is_rgb(as)) {
        if (h->depth == 16) png_set_scale_16(s->png);
        if (h->palette) png_set_palette_to_rgb(s->png);
        else if (h->depth < 8) png_set_expand_gray_1_2_4_to_8(s->png);
        if (h->channels < 3 && !h->palette) png_set_gray_to_rgb(s->png);
        if (as == PNG_AS_RGB) {
            png_set_strip_alpha(s->png);
        } else {
            if (png_get_valid(s->png, s->info, PNG_INFO_tRNS)) png_set_tRNS_to_alpha(s->png);
            png_set_add_alpha(s->png, 255, PNG_FILLER_AFTER);
        }
    } else {
        if (h->depth < 8) png_set_packing(s->png);
        if (h->depth == 16 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__) png_set_swap(s->png);
        if (as == PNG_AS_SAMPLES && h->channels % 2 == 0) png_set_strip_alpha(s->png);
    }
    int passes = png_set_interlace_handling(s->png);
    png_read_update_info(s->png, s->info);
    if (png_get_rowbytes(s->png, s->info) != row) png_error(s->png, "the rows have an unexpected size");
    for (int pass = 0; pass < passes; pass++)
        for (uint32_t y = 0; y < h->height; y++) png_read_row(s->png, s->pixels + y * row, NULL);
    png_read_end(s->png, NULL); /* the checksum of the last rows, and the end chunk */
    return true;
}

static uint32_t channels_out(const struct png_header *h, enum png_as as)
{
    if (is_rgb(as)) return as == PNG_AS_RGB ? 3 : 4;
    return as == PNG_AS_SAMPLES && h->channels % 2 == 0 ? h->channels - 1 : h->channels;
}

static uint32_t depth_out(const struct png_header *h, enum png_as as) { return !is_rgb(as) && h->depth == 16 ? 16 : 8; }

size_t png_bytes(const struct png_header *h, enum png_as as)
{
    return (size_t)h->width * h->height * channels_out(h, as) * (depth_out(h, as) / 8);
}

static uint32_t sample(const struct png_pixels *p, size_t i)
{
    return p->depth == 8 ? ((const uint8_t *)p->at)[i] : ((const uint16_t *)p->at)[i];
}

/* Reduces the channels of labels to one, in place: grey, or three equal channels. Where the colour
 * is the same everywhere and some pixels are transparent, the alpha is the mask. False: the image
 * is in colour. */
static bool fold_channels(struct png_pixels *p)
{
    const size_t n = (size_t)p->width * p->height, c = p->channels, colours = c < 3 ? 1 : 3;
    const uint32_t opaque = p->depth == 8 ? 255 : 65535;
    bool grey = true, one_colour = true, clear = false;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < colours; k++) {
            grey &= sample(p, i * c + k) == sample(p, i * c);
            one_colour &= sample(p, i * c + k) == sample(p, k);
        }
        clear |= c % 2 == 0 && sample(p, i * c + c - 1) != opaque;
    }
    const size_t from = one_colour && clear ? c - 1 : 0;
    if (!grey && !from) return false;
    for (size_t i = 0; i < n; i++) {
        uint32_t v = sample(p, i * c + from);
        if (p->depth == 8) ((uint8_t *)p->at)[i] = (uint8_t)v;
        else ((uint16_t *)p->at)[i] = (uint16_t)v;
    }
    p->channels = 1;
    p->bytes = n * (p->depth / 8);
    return true;
}

static bool is_grey(const png_color *c) { return c->red == c->green && c->red == c->blue; }
static bool is_black(const png_color *c) { return is_grey(c) && !c->red; }

/* Checks a palette, whose index is the label, and 0 is the background. A program that reduces
 * colours (Pillow's quantize, pngquant) numbers them in any order: a palette of greys that does
 * not begin with black is looked up, and one with colours is refused. Its entries all differ; a
 * palette that is filled up with black belongs to labels. */
static int check_palette(struct stream *s, struct png_pixels *p, struct error *e)
{
    png_color *palette = NULL;
    int n = 0, black = -1;
    bool grey = true, differ = true;
    if (!png_get_PLTE(s->png, s->info, &palette, &n) || !n || is_black(&palette[0])) return PL_OK;
    for (int i = 0; i < n; i++) {
        grey &= is_grey(&palette[i]);
        if (is_black(&palette[i])) black = i;
        for (int k = 0; k < i; k++) differ &= memcmp(&palette[i], &palette[k], sizeof *palette) != 0;
    }
    uint8_t *at = p->at;
    for (size_t i = 0; grey && i < p->bytes; i++) at[i] = at[i] < n ? palette[at[i]].red : 0;
    if (grey || !differ || black < 0) return PL_OK;
    return error_set(e, PL_USAGE,
                     "the PNG has a palette in which black is entry %d and a colour is entry 0: a program chose the "
                     "numbers, and they are not labels. "
                     "Save masks as 8 or 16 bit grey, with 0 as the background", black);
}

/* Turns the decoded channels, or the indices of a palette, into labels. */
static int make_labels(struct stream *s, const struct png_header *h, struct png_pixels *p, struct error *e)
{
    if (h->palette) return check_palette(s, p, e);
    if (p->channels == 1 || fold_channels(p)) return PL_OK;
    return error_set(e, PL_USAGE,
                     "the PNG is in colour, and labels were expected: its red, green and blue differ. Save masks as 8 "
                     "or 16 bit grey, or with a palette; "
                     "annotation programs (CVAT, Label Studio, Supervisely) also export COCO, which is read");
}

static int check_header(const struct png_header *h, uint64_t max_pixels, struct error *e)
{
    if (!max_pixels) max_pixels = PNG_MAX_PIXELS;
    if ((uint64_t)h->width * h->height > max_pixels)
        return error_set(e, PL_USAGE, "the PNG has %ux%u pixels; at most %llu pixels are allowed", h->width, h->height,
                         (unsigned long long)max_pixels);
    return PL_OK;
}

static int decode_open(struct stream *s, const struct png_header *h, enum png_as as, void *to, size_t room,
                       struct png_pixels *out, struct error *e)
{
    *out = (struct png_pixels){h->width, h->height, channels_out(h, as), depth_out(h, as), png_bytes(h, as), NULL};
    if (to && room < out->bytes)
        return error_set(e, PL_USAGE, "a PNG of %ux%u pixels needs %zu bytes; the buffer has %zu", h->width, h->height,
                         out->bytes, room);
    out->at = to ? to : mem_alloc(out->bytes);
    s->pixels = out->at;
    int rc = PL_OK;
    if (!read_pixels(s, h, as, out->bytes / h->height)) rc = bad(s, "read", e);
    else if (as == PNG_AS_LABELS) rc = make_labels(s, h, out, e);
    if (rc && !to) mem_free(out->at);
    if (rc) out->at = NULL;
    return rc;
}

int png_decode(const void *bytes, size_t n, enum png_as as, uint64_t max_pixels, void *to, size_t room,
               struct png_pixels *out, struct error *e)
{
    struct stream s;
    struct png_header h;
    int rc;
    memset(out, 0, sizeof *out);
    if (n < 8 || png_sig_cmp(bytes, 0, 8))
        return error_set(e, PL_USAGE, "not a PNG: it does not begin with the PNG signature");
    if (!open_read(&s, bytes, n) || !read_info(&s, &h)) rc = bad(&s, "read", e);
    else if (!(rc = check_header(&h, max_pixels, e))) rc = decode_open(&s, &h, as, to, room, out, e);
    close_read(&s);
    return rc;
}

int png_peek(const void *bytes, size_t n, struct png_header *h, struct error *e)
{
    struct stream s;
    if (n < 8 || png_sig_cmp(bytes, 0, 8))
        return error_set(e, PL_USAGE, "not a PNG: it does not begin with the PNG signature");
    int rc = open_read(&s, bytes, n) && read_info(&s, h) ? PL_OK : bad(&s, "read", e);
    close_read(&s);
    return rc;
}

int png_read(const char *path, enum png_as as, uint64_t max_pixels, void *to, size_t room, struct png_pixels *out,
             struct error *e)
{
    char *bytes;
    size_t n;
    if (file_read(path, FILE_CAP, &bytes, &n, e)) return e->code;
    int rc = png_decode(bytes, n, as, max_pixels, to, room, out, e);
    if (rc) error_prepend(e, "%s", path);
    mem_free(bytes);
    return rc;
}

/* ---- writing ---- */

void png_index_colour(uint8_t value, uint8_t rgb[3])
{
    memset(rgb, 0, 3);
    for (int i = 0; i < 8; i++) rgb[i % 3] |= (uint8_t)((value >> i & 1) << (7 - i / 3));
}

static void write_colours(struct stream *s)
{
    png_color all[256];
    for (int i = 0; i < 256; i++) {
        uint8_t rgb[3];
        png_index_colour((uint8_t)i, rgb);
        all[i] = (png_color){rgb[0], rgb[1], rgb[2]};
    }
    png_set_PLTE(s->png, s->info, all, 256);
}

static bool write_all(struct stream *s, enum png_kind kind, uint32_t width, uint32_t height, const uint8_t *pixels,
                      size_t stride)
{
    static const int color[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_RGB, PNG_COLOR_TYPE_RGB_ALPHA,
                                PNG_COLOR_TYPE_PALETTE};
    if (setjmp(png_jmpbuf(s->png))) return false;
    png_set_write_fn(s->png, s, write_bytes, flush_nothing);
    png_set_user_limits(s->png, SIDE_CAP, SIDE_CAP);
    png_set_IHDR(s->png, s->info, width, height, kind == PNG_BITS ? 1 : 8, color[kind], PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (kind == PNG_INDEXED) write_colours(s);
    png_write_info(s->png, s->info);
    if (kind == PNG_BITS) png_set_packing(s->png);
    for (uint32_t y = 0; y < height; y++) {
        const uint8_t *row = pixels + y * stride;
        for (uint32_t x = 0; x < width && kind == PNG_BITS; x++) s->bits[x] = row[x] != 0;
        png_write_row(s->png, kind == PNG_BITS ? s->bits : row);
    }
    png_write_end(s->png, NULL);
    return true;
}

int png_encode(struct text *out, enum png_kind kind, uint32_t width, uint32_t height, const void *pixels, size_t stride,
               struct error *e)
{
    static const uint32_t channels[] = {1, 1, 3, 4, 1};
    struct stream s = {.out = out};
    s.png = png_create_write_struct(PNG_LIBPNG_VER_STRING, &s, on_error, on_warning);
    if (s.png) s.info = png_create_info_struct(s.png);
    if (kind == PNG_BITS) s.bits = mem_alloc(width);
    if (!stride) stride = (size_t)width * channels[kind];
    int rc = s.info && write_all(&s, kind, width, height, pixels, stride) ? PL_OK : bad(&s, "written", e);
    png_destroy_write_struct(&s.png, &s.info);
    mem_free(s.bits);
    return rc;
}

int png_write(const char *path, enum png_kind kind, uint32_t width, uint32_t height, const void *pixels, size_t stride,
              struct error *e)
{
    struct text file = {0};
    int rc = png_encode(&file, kind, width, height, pixels, stride, e);
    if (rc) error_prepend(e, "%s", path);
    else rc = file_write_atomic(path, file.at, file.n, e);
    text_free(&file);
    return rc;
}

int png_check_name(const char *option, const char *path, struct error *e)
{
    static const char *const others[] = {".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"};
    for (size_t i = 0; i < COUNT(others) && path; i++)
        if (path_has_ending(path, others[i]))
            return error_set(e, PL_USAGE, "%s %s: images are written as PNG; give a name that ends in .png", option,
                             path);
    return PL_OK;
}
