/*
 * jpeg.c: libjpeg(-turbo) behind a row reader.
 *
 * libjpeg reports errors through a function that must not return. Ours stores the message and
 * jumps back to the public function that was called. Each of these calls setjmp itself, and all
 * state is in struct jpg, so nothing is lost by the jump. libjpeg issues a warning when data is
 * truncated or damaged and it invents the rest: that is an error here, unless the caller is
 * tolerant.
 *
 * Invariant: between jpg_start and jpg_finish the decompressor holds image memory; outside of
 * them it holds none. Every failed call returns through abandon().
 */
#include "data/images/jpeg.h"

#include <setjmp.h>

#include <jerror.h>
#include <jpeglib.h>

#include "data/images/image.h"

struct jpg {
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    struct jpg_limits limits;
    jmp_buf back;
    bool started;
    uint8_t *inks; /* a row of CMYK, in libjpeg's image memory; NULL: rows are RGB */
    char message[JMSG_LENGTH_MAX];
};

/* ---- callbacks of libjpeg ---- */

static _Noreturn void jump(j_common_ptr c)
{
    struct jpg *j = c->client_data;
    c->err->format_message(c, j->message);
    longjmp(j->back, 1);
}

static void on_message(j_common_ptr c, int level)
{
    struct jpg *j = c->client_data;
    if (level >= 0) return;
    c->err->num_warnings++;
    if (!j->limits.tolerant) jump(c);
}

static void on_progress(j_common_ptr c)
{
    struct jpg *j = c->client_data;
    if (j->d.input_scan_number <= (int)j->limits.scans) return;
    snprintf(j->message, sizeof j->message, "more than %u scans", j->limits.scans);
    longjmp(j->back, 1);
}

static int bad(const char *what, struct error *e)
{
    return error_set(e, PL_USAGE, "the JPEG cannot be read: %s", what);
}

static int abandon(struct jpg *j, struct error *e)
{
    jpeg_abort_decompress(&j->d);
    j->started = false;
    return bad(j->message, e);
}

/* ---- the header, without libjpeg ---- */

/* Returns the frame headers: C0 to CF except tables (C4, CC) and JPG (C8). */
static bool is_frame(uint8_t marker)
{
    return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

static uint32_t number(const uint8_t *p, int bytes, bool big)
{
    uint32_t v = 0;
    for (int i = 0; i < bytes; i++) v = v << 8 | p[big ? i : bytes - 1 - i];
    return v;
}

/* Returns the orientation that an EXIF block states: the entry 0x0112 of its first table; else
 * 1. */
static uint32_t exif_orientation(const uint8_t *p, size_t n)
{
    if (n < 16 || memcmp(p, "Exif\0", 6) != 0) return 1;
    p += 6, n -= 6;
    const bool big = p[0] == 'M';
    const size_t table = number(p + 4, 4, big);
    if (table > n - 2) return 1;
    const size_t entries = number(p + table, 2, big);
    for (size_t i = 0; i < entries && table + 14 + 12 * i <= n; i++) {
        const uint8_t *entry = p + table + 2 + 12 * i;
        uint32_t v = number(entry + 8, 2, big);
        if (number(entry, 2, big) == 0x0112) return v >= 1 && v <= 8 ? v : 1;
    }
    return 1;
}

int jpg_peek(const void *bytes, size_t n, struct jpg_header *h, struct error *e)
{
    const uint8_t *p = bytes;
    h->orientation = 1;
    if (n < 4 || p[0] != 0xff || p[1] != 0xd8) {
        const struct unread *u = unread_by_bytes(bytes, n);
        if (u) return error_set(e, PL_USAGE, "not a JPEG but %s, which is not read: %s", u->name, u->advice);
        return error_set(e, PL_USAGE, "not a JPEG: it does not begin with the JPEG marker");
    }
    for (size_t at = 2; n - at >= 4;) {
        if (p[at] != 0xff) return bad("a marker is missing", e);
        uint8_t marker = p[at + 1];
        if (marker == 0xff) { /* fill bytes before a marker */
            at++;
            continue;
        }
        if (marker == 0x01 || (marker >= 0xd0 && marker <= 0xd7)) { /* markers without a length */
            at += 2;
            continue;
        }
        size_t length = (size_t)p[at + 2] << 8 | p[at + 3];
        if (marker == 0xda || marker == 0xd9) return bad("the pixels come before the size", e);
        if (length < 2 || length > n - at - 2) return bad("its header is truncated", e);
        if (marker == 0xe1 && h->orientation == 1) h->orientation = exif_orientation(p + at + 4, length - 2);
        if (is_frame(marker)) {
            if (length < 8) return bad("its frame header is too short", e);
            h->height = (uint32_t)p[at + 5] << 8 | p[at + 6];
            h->width = (uint32_t)p[at + 7] << 8 | p[at + 8];
            h->components = p[at + 9];
            h->progressive = marker == 0xc2 || marker == 0xc6 || marker == 0xca || marker == 0xce;
            return h->width && h->height && h->components ? PL_OK : bad("the width, height or component count is 0", e);
        }
        at += 2 + length;
    }
    return bad("its header is truncated", e);
}

uint32_t jpg_divisor(uint32_t width, uint32_t height, double target)
{
    double side = width > height ? width : height;
    return side >= 4 * 0.97 * target ? 4 : side >= 2 * 0.97 * target ? 2 : 1;
}

/* ---- reading ---- */

size_t jpg_bytes(void) { return sizeof(struct jpg); }

struct jpg *jpg_open(void *memory, const struct jpg_limits *limits)
{
    struct jpg *j = memory;
    memset(j, 0, sizeof *j);
    if (limits) j->limits = *limits;
    if (!j->limits.pixels) j->limits.pixels = 100000000;
    if (!j->limits.memory) j->limits.memory = 64 << 20;
    if (!j->limits.scans) j->limits.scans = 64;
    j->d.err = jpeg_std_error(&j->errors);
    j->errors.error_exit = jump;
    j->errors.emit_message = on_message;
    j->d.client_data = j;
    if (setjmp(j->back)) mem_exhausted("libjpeg: %s", j->message);
    jpeg_create_decompress(&j->d);
    j->d.client_data = j; /* creation clears the struct */
    j->d.mem->max_memory_to_use = (long)j->limits.memory;
    j->progress.progress_monitor = on_progress;
    j->d.progress = &j->progress;
    return j;
}

void jpg_close(struct jpg *j) { jpeg_destroy_decompress(&j->d); }

struct jpg *jpg_new(const struct jpg_limits *limits) { return jpg_open(mem_alloc(sizeof(struct jpg)), limits); }

void jpg_free(struct jpg *j)
{
    if (!j) return;
    jpg_close(j);
    mem_free(j);
}

uint32_t jpg_warnings(const struct jpg *j) { return (uint32_t)j->errors.num_warnings; }

/* Refuses another size than jpg_peek's, with which the caller planned: libjpeg skips garbage
 * between markers and may then find another frame header. */
static int check_peek(struct jpg *j, const void *bytes, size_t n, struct error *e)
{
    struct jpg_header h = {0};
    struct error unused;
    if (jpg_peek(bytes, n, &h, &unused) || (h.width == j->d.image_width && h.height == j->d.image_height)) return PL_OK;
    return bad("its markers are garbled", e);
}

/* Checks the sizes before anything of the image's size is allocated. libjpeg keeps all
 * coefficients of a file with several scans. */
static int check_sizes(struct jpg *j, struct error *e)
{
    uint64_t pixels = (uint64_t)j->d.image_width * j->d.image_height, coefficients = 0;
    if (pixels > j->limits.pixels)
        return error_set(e, PL_USAGE, "the JPEG has %ux%u pixels; at most %llu pixels are allowed", j->d.image_width,
                         j->d.image_height, (unsigned long long)j->limits.pixels);
    for (int c = 0; c < j->d.num_components && jpeg_has_multiple_scans(&j->d); c++)
        coefficients +=
            (uint64_t)j->d.comp_info[c].width_in_blocks * j->d.comp_info[c].height_in_blocks * sizeof(JBLOCK);
    if (coefficients > j->limits.memory)
        return error_set(e, PL_USAGE,
                         "the progressive JPEG of %ux%u pixels needs %llu bytes to decode; at most %llu are allowed",
                         j->d.image_width, j->d.image_height, (unsigned long long)coefficients,
                         (unsigned long long)j->limits.memory);
    return PL_OK;
}

static int choose_colours(struct jpg *j, struct error *e)
{
    if (j->limits.rgb && j->d.num_components == 3 && !j->d.saw_Adobe_marker && !j->d.saw_JFIF_marker)
        j->d.jpeg_color_space = JCS_RGB;
    J_COLOR_SPACE stored = j->d.jpeg_color_space;
    bool inks = stored == JCS_CMYK || stored == JCS_YCCK;
    if (!inks && stored != JCS_GRAYSCALE && stored != JCS_RGB && stored != JCS_YCbCr)
        return error_set(e, PL_USAGE,
            "the JPEG has %d components in an unknown colour space; expected grey, YCbCr, RGB, CMYK or YCCK",
            j->d.num_components);
    j->d.out_color_space = inks ? JCS_CMYK : JCS_RGB;
    return PL_OK;
}

int jpg_start(struct jpg *j, const void *bytes, size_t n, uint32_t divisor, uint32_t *width, uint32_t *height,
              struct error *e)
{
    CHECK(!j->started && (divisor == 1 || divisor == 2 || divisor == 4), "jpg_start with divisor %u", divisor);
    j->message[0] = 0;
    j->inks = NULL;
    j->errors.num_warnings = 0;
    if (setjmp(j->back)) return abandon(j, e);
    jpeg_mem_src(&j->d, bytes, n);
    jpeg_read_header(&j->d, TRUE);
    if (check_peek(j, bytes, n, e) || check_sizes(j, e) || choose_colours(j, e)) {
        jpeg_abort_decompress(&j->d);
        return e->code;
    }
    j->d.scale_num = 1;
    j->d.scale_denom = divisor;
    jpeg_start_decompress(&j->d);
    if (j->d.out_color_space == JCS_CMYK)
        j->inks = j->d.mem->alloc_large((j_common_ptr)&j->d, JPOOL_IMAGE, 4 * (size_t)j->d.output_width);
    j->started = true;
    *width = j->d.output_width;
    *height = j->d.output_height;
    return PL_OK;
}

/* Converts inks to colours. Adobe's programs store inks inverted and write their marker. The
 * arithmetic is Pillow's: the part that is not black, minus the share of it that the ink
 * absorbs. */
static void from_inks(uint8_t *to, const uint8_t *inks, uint32_t n, bool inverted)
{
    int flip = inverted ? 255 : 0;
    for (uint32_t x = 0; x < n; x++)
        for (int c = 0; c < 3; c++) {
            int paper = 255 - (inks[4 * x + 3] ^ flip);
            int taken = (inks[4 * x + c] ^ flip) * paper + 128;
            to[3 * x + c] = (uint8_t)(paper - (((taken >> 8) + taken) >> 8));
        }
}

int jpg_rows(struct jpg *j, uint8_t *to, size_t stride, uint32_t rows, struct error *e)
{
    CHECK(j->started && rows <= j->d.output_height - j->d.output_scanline, "more rows than the image has");
    if (setjmp(j->back)) return abandon(j, e);
    uint8_t *volatile at = to;
    volatile uint32_t left = rows;
    while (left) {
        JSAMPROW lines[8];
        uint32_t want = j->inks ? 1 : left < COUNT(lines) ? left : COUNT(lines);
        for (uint32_t i = 0; i < want; i++) lines[i] = j->inks ? j->inks : at + i * stride;
        uint32_t got = jpeg_read_scanlines(&j->d, lines, want);
        if (j->inks && got) from_inks(at, j->inks, j->d.output_width, j->d.saw_Adobe_marker);
        at += got * stride;
        left -= got;
    }
    return PL_OK;
}

int jpg_finish(struct jpg *j, struct error *e)
{
    CHECK(j->started);
    if (setjmp(j->back)) return abandon(j, e);
    if (j->d.output_scanline == j->d.output_height) jpeg_finish_decompress(&j->d); /* reads up to the end marker */
    else jpeg_abort_decompress(&j->d);
    j->started = false;
    return PL_OK;
}

int jpg_decode(struct jpg *j, const void *bytes, size_t n, uint32_t divisor, uint32_t *width, uint32_t *height,
               uint8_t **pixels, struct error *e)
{
    *pixels = NULL;
    if (jpg_start(j, bytes, n, divisor, width, height, e)) return e->code;
    *pixels = mem_alloc((size_t)*width * *height * 3);
    int rc = jpg_rows(j, *pixels, (size_t)*width * 3, *height, e);
    if (!rc) rc = jpg_finish(j, e);
    if (rc) mem_free(*pixels), *pixels = NULL;
    return rc;
}

/* ---- writing ---- */

enum { CHUNK = 16 << 10 };

struct writer {
    struct jpeg_destination_mgr dest;
    struct jpg error; /* only its message, limits and jump buffer are used */
    struct text *out;
    uint8_t chunk[CHUNK];
};

static void out_start(j_compress_ptr c)
{
    struct writer *w = (struct writer *)c->dest;
    w->dest.next_output_byte = w->chunk;
    w->dest.free_in_buffer = CHUNK;
}

static boolean out_full(j_compress_ptr c)
{
    struct writer *w = (struct writer *)c->dest;
    text_append(w->out, (char *)w->chunk, CHUNK);
    out_start(c);
    return TRUE;
}

static void out_end(j_compress_ptr c)
{
    struct writer *w = (struct writer *)c->dest;
    text_append(w->out, (char *)w->chunk, CHUNK - w->dest.free_in_buffer);
}

static bool compress(struct jpeg_compress_struct *c, struct writer *w, const uint8_t *pixels, size_t stride,
                     int quality)
{
    if (setjmp(w->error.back)) return false;
    jpeg_set_defaults(c); /* YCbCr, chroma halved in both directions */
    jpeg_set_quality(c, quality, TRUE);
    jpeg_start_compress(c, TRUE);
    while (c->next_scanline < c->image_height) {
        JSAMPROW row = (JSAMPROW)(pixels + c->next_scanline * stride);
        jpeg_write_scanlines(c, &row, 1);
    }
    jpeg_finish_compress(c);
    return true;
}

int jpg_encode(struct text *out, uint32_t width, uint32_t height, const uint8_t *pixels, size_t stride, int quality,
               struct error *e)
{
    if (!width || !height || width > JPEG_MAX_DIMENSION || height > JPEG_MAX_DIMENSION)
        return error_set(e, PL_USAGE, "a JPEG has 1 to %ld pixels per side; this image has %ux%u",
                         (long)JPEG_MAX_DIMENSION, width, height);
    struct writer *w = mem_alloc(sizeof *w);
    struct jpeg_compress_struct c = {0};
    w->dest = (struct jpeg_destination_mgr){.init_destination = out_start, .empty_output_buffer = out_full,
                                            .term_destination = out_end};
    w->out = out;
    c.err = jpeg_std_error(&w->error.errors);
    w->error.errors.error_exit = jump;
    c.client_data = &w->error;
    if (setjmp(w->error.back)) mem_exhausted("libjpeg: %s", w->error.message);
    jpeg_create_compress(&c);
    c.client_data = &w->error;
    c.dest = &w->dest;
    c.image_width = width;
    c.image_height = height;
    c.input_components = 3;
    c.in_color_space = JCS_RGB;
    int rc = PL_OK;
    if (!compress(&c, w, pixels, stride ? stride : (size_t)width * 3, quality))
        rc = error_set(e, PL_FAIL, "the JPEG cannot be written: %s", w->error.message);
    jpeg_destroy_compress(&c);
    mem_free(w);
    return rc;
}
