/*
 * tiff.c: libtiff behind tiff.h.
 *
 * A page of plain strips is decoded in place. What has tiles, separate channels, alpha or single
 * bits is decoded a strip or a tile at a time into scratch behind the plane, and copied from there.
 */
#include "data/images/tiff.h"

#include <pthread.h>
#include <tiffio.h>

#include "io/file.h"

const char *tiff_version(void)
{
    static char version[16];
    return sscanf(TIFFGetVersion(), "LIBTIFF, Version %15[0-9.]", version) == 1 ? version : "unknown";
}

bool is_tiff(const void *bytes, size_t n)
{
    static const char magics[][5] = {"II*\0", "MM\0*", "II+\0", "MM\0+"};
    for (size_t i = 0; i < COUNT(magics); i++)
        if (n >= 4 && !memcmp(bytes, magics[i], 4)) return true;
    return false;
}

/* --- libtiff's view of the source ------------------------------------------------------------- */

struct tiff_reader {
    struct tiff_source s;
    uint64_t at;
    char said[256]; /* libtiff's first complaint */
};

static tmsize_t read_bytes(thandle_t h, void *to, tmsize_t n)
{
    struct tiff_reader *r = (struct tiff_reader *)h;
    struct error ignored;
    uint64_t left = r->at < r->s.n ? r->s.n - r->at : 0, take = n > 0 ? min_u64(left, (uint64_t)n) : 0;
    if (r->s.bytes) memcpy(to, (const char *)r->s.bytes + (take ? r->at : 0), (size_t)take);
    else if (take && fd_read_at(r->s.fd, r->at, to, (size_t)take, &ignored)) return 0;
    r->at += take;
    return (tmsize_t)take;
}
static tmsize_t write_bytes(thandle_t h, void *from, tmsize_t n) { return (void)h, (void)from, (void)n, 0; }
static toff_t seek_to(thandle_t h, toff_t at, int whence)
{
    struct tiff_reader *r = (struct tiff_reader *)h;
    if (whence == SEEK_CUR) at += r->at;
    if (whence == SEEK_END) at += r->s.n;
    return r->at = at;
}
static int close_source(thandle_t h) { return (void)h, 0; }
static toff_t size_of(thandle_t h) { return ((struct tiff_reader *)h)->s.n; }

static void hear(thandle_t h, const char *module, const char *format, va_list args)
{
    struct tiff_reader *r = (struct tiff_reader *)h;
    (void)module;
    if (r && !r->said[0]) vsnprintf(r->said, sizeof r->said, format, args);
}
/* Notes a warning: these codecs only warn of pixels that they had to invent. */
static void hear_warning(thandle_t h, const char *module, const char *format, va_list args)
{
    if (module && (!strncmp(module, "Fax", 3) || !strcmp(module, "JPEGLib"))) hear(h, module, format, args);
}
static void set_handlers(void)
{
    TIFFSetErrorHandler(NULL);
    TIFFSetWarningHandler(NULL);
    TIFFSetErrorHandlerExt(hear);
    TIFFSetWarningHandlerExt(hear_warning);
}

/* Opens a TIFF; "m": no memory map; messages go to the reader. */
static TIFF *open_tiff(struct tiff_reader *r, const struct tiff_source *s)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_handlers);
    *r = (struct tiff_reader){.s = *s};
    return TIFFClientOpen("tiff", "rm", (thandle_t)r, read_bytes, write_bytes, seek_to, close_source, size_of, NULL,
                          NULL);
}

static int bad(const struct tiff_reader *r, struct error *e)
{
    return error_set(e, PL_USAGE, "the TIFF cannot be read: %s",
                     r->said[0] ? r->said : "it is damaged or ends too early");
}

/* --- pages ------------------------------------------------------------------------------------ */

struct form {
    uint16_t bits, samples, format, photometric, planar, compression;
    bool tiled;
};

static struct form form_of(TIFF *t)
{
    struct form f = {.photometric = PHOTOMETRIC_MINISBLACK, .compression = COMPRESSION_NONE};
    TIFFGetFieldDefaulted(t, TIFFTAG_BITSPERSAMPLE, &f.bits);
    TIFFGetFieldDefaulted(t, TIFFTAG_SAMPLESPERPIXEL, &f.samples);
    TIFFGetFieldDefaulted(t, TIFFTAG_SAMPLEFORMAT, &f.format);
    TIFFGetFieldDefaulted(t, TIFFTAG_PLANARCONFIG, &f.planar);
    TIFFGetField(t, TIFFTAG_PHOTOMETRIC, &f.photometric);
    TIFFGetField(t, TIFFTAG_COMPRESSION, &f.compression);
    f.tiled = TIFFIsTiled(t);
    if (f.compression == COMPRESSION_JPEG && f.photometric == PHOTOMETRIC_YCBCR)
        TIFFSetField(t, TIFFTAG_JPEGCOLORMODE, JPEGCOLORMODE_RGB);
    return f;
}

static int find_type(const struct form *f, enum plane_type *to, struct error *e)
{
    static const enum plane_type types[][3] = {{PLANE_U8, PLANE_I8, PLANE_TYPES},
                                               {PLANE_U16, PLANE_I16, PLANE_F16},
                                               {PLANE_U32, PLANE_I32, PLANE_F32},
                                               {PLANE_U64, PLANE_I64, PLANE_F64}};
    const int row = f->bits == 8 ? 0 : f->bits == 16 ? 1 : f->bits == 32 ? 2 : f->bits == 64 ? 3 : -1;
    const bool real = f->format == SAMPLEFORMAT_IEEEFP;
    if (f->format == SAMPLEFORMAT_COMPLEXINT || f->format == SAMPLEFORMAT_COMPLEXIEEEFP)
        return error_set(e, PL_USAGE,
                         "the TIFF has complex numbers of %u bits; expected integers or floats: write their magnitude, "
                         "or one of their parts", f->bits);
    *to = row < 0 ? PLANE_TYPES : types[row][f->format == SAMPLEFORMAT_INT ? 1 : real ? 2 : 0];
    if (f->bits == 1 && f->samples == 1 && !real) *to = PLANE_U8;
    if (*to != PLANE_TYPES && (f->photometric != PHOTOMETRIC_PALETTE || *to == PLANE_U8)) return PL_OK;
    return error_set(e, PL_USAGE,
                     "the TIFF has %s of %u bits; expected integers of 8, 16, 32 or 64, floats of 16, 32 or 64, or a "
                     "palette of 1 or 8", f->photometric == PHOTOMETRIC_PALETTE ? "a palette"
                     : real                                ? "floats"
                                                           : "integers", f->bits);
}

static bool in_place(const struct form *f, uint32_t channels)
{
    return !f->tiled && f->bits >= 8 && f->samples == channels && (f->planar == PLANARCONFIG_CONTIG || channels == 1);
}

static int describe_page(TIFF *t, const struct tiff_reader *r, struct tiff_page *p, struct error *e)
{
    const struct form f = form_of(t);
    const bool colour =
        f.photometric == PHOTOMETRIC_RGB || (f.photometric == PHOTOMETRIC_YCBCR && f.compression == COMPRESSION_JPEG);
    const bool grey = f.photometric == PHOTOMETRIC_MINISBLACK || f.photometric == PHOTOMETRIC_MINISWHITE ||
                      f.photometric == PHOTOMETRIC_PALETTE || f.photometric == PHOTOMETRIC_MASK;
    *p = (struct tiff_page){.at = TIFFCurrentDirOffset(t), .channels = colour ? 3 : 1,
                            .palette = f.photometric == PHOTOMETRIC_PALETTE};
    if (!TIFFGetField(t, TIFFTAG_IMAGEWIDTH, &p->w) || !TIFFGetField(t, TIFFTAG_IMAGELENGTH, &p->h) || !p->w || !p->h)
        return bad(r, e);
    if (!colour && !grey)
        return error_set(e, PL_USAGE, "the TIFF has colours of kind %u; expected grey, RGB or a palette",
                         f.photometric);
    if (f.samples < p->channels)
        return error_set(e, PL_USAGE, "the TIFF has %u samples a pixel; expected %u", f.samples, p->channels);
    if (find_type(&f, &p->type, e)) return e->code;
    if (!TIFFIsCODECConfigured(f.compression))
        return error_set(e, PL_USAGE, "the TIFF is compressed by method %u, which this libtiff does not have",
                         f.compression);
    if ((uint64_t)p->w * p->h > PNG_MAX_PIXELS)
        return error_set(e, PL_USAGE, "the TIFF has %ux%u pixels; at most %d pixels are allowed", p->w, p->h,
                         PNG_MAX_PIXELS);
    const tmsize_t chunk = f.tiled ? TIFFTileSize(t) : TIFFStripSize(t);
    if (chunk <= 0 || (uint64_t)chunk > (uint64_t)1 << 31) return bad(r, e);
    p->scratch = in_place(&f, p->channels) ? 0 : (size_t)align_up((uint64_t)chunk, 8);
    return PL_OK;
}

int tiff_list(struct tiff_pages *l, const struct tiff_source *s, struct error *e)
{
    struct tiff_reader r;
    TIFF *t = open_tiff(&r, s);
    *l = (struct tiff_pages){0};
    if (!t) return bad(&r, e);
    int rc = PL_OK;
    do {
        uint32_t kind = 0;
        struct tiff_page p;
        TIFFGetField(t, TIFFTAG_SUBFILETYPE, &kind);
        if (kind & FILETYPE_REDUCEDIMAGE) continue;
        rc = describe_page(t, &r, &p, e);
        if (!rc) vec_push(&l->pages, p);
        if (l->pages.n == TIFF_MAX_PAGES) break;
    } while (!rc && TIFFReadDirectory(t));
    TIFFClose(t);
    if (!rc && r.said[0]) rc = bad(&r, e); /* the chain of directories is cut */
    if (!rc && !l->pages.n) rc = error_set(e, PL_USAGE, "the TIFF has no page at full resolution");
    if (rc) vec_free(&l->pages);
    return rc;
}

/* --- pixels ----------------------------------------------------------------------------------- */

static size_t plane_room(const struct tiff_page *p, bool labels)
{
    const size_t channels = p->palette && !labels ? 3 : p->channels;
    return (size_t)align_up((uint64_t)p->w * p->h * channels * plane_type_bytes(p->type), 8);
}

size_t tiff_room(const struct tiff_page *p, bool labels) { return plane_room(p, labels) + p->scratch; }

/* Copies `rows` rows of `columns` pixels from a strip or tile into the plane. A sample of one
 * channel goes to channel c. */
struct block {
    const uint8_t *from;
    size_t stride;                        /* bytes of a row of the block */
    uint32_t x, y, columns, rows, samples; /* samples a pixel in the block */
    uint32_t c;                           /* with samples 1: the channel */
};

static void put_block(struct plane *to, const struct form *f, const struct block *b)
{
    const size_t bytes = plane_type_bytes(to->type);
    const uint32_t channels = b->samples == 1 ? 1 : to->channels;
    const uint8_t on = f->photometric == PHOTOMETRIC_PALETTE ? 1 : 255; /* a bit is a number of its palette, or white */
    for (uint32_t y = 0; y < b->rows; y++) {
        const uint8_t *from = b->from + y * b->stride;
        uint8_t *row = (uint8_t *)to->at + (((size_t)b->y + y) * to->w + b->x) * to->channels * bytes;
        for (uint32_t x = 0; x < b->columns; x++) {
            if (f->bits == 1) row[x] = from[x / 8] >> (7 - x % 8) & 1 ? on : 0;
            else
                memcpy(row + (x * (size_t)to->channels + b->c) * bytes, from + x * (size_t)b->samples * bytes,
                       channels * bytes);
        }
    }
}

/* Decodes a strip or a tile. One that the file does not list has the offset 0, where the file's
 * header is. */
static bool decode_block(TIFF *t, bool tiled, uint32_t i, void *to, tmsize_t n)
{
    uint64_t *offsets = NULL;
    if (!TIFFGetField(t, tiled ? TIFFTAG_TILEOFFSETS : TIFFTAG_STRIPOFFSETS, &offsets) || !offsets || !offsets[i]) {
        struct tiff_reader *r = (struct tiff_reader *)TIFFClientdata(t);
        if (!r->said[0]) snprintf(r->said, sizeof r->said, "its %s %u is missing", tiled ? "tile" : "strip", i);
        return false;
    }
    return (tiled ? TIFFReadEncodedTile(t, i, to, n) : TIFFReadEncodedStrip(t, i, to, n)) == n;
}

static bool read_in_place(TIFF *t, struct plane *to)
{
    uint32_t rows = to->h;
    const size_t row = (size_t)to->w * to->channels * plane_type_bytes(to->type);
    TIFFGetFieldDefaulted(t, TIFFTAG_ROWSPERSTRIP, &rows);
    if (!rows || TIFFScanlineSize(t) != (tmsize_t)row) return false;
    for (uint32_t y = 0; y < to->h; y += min_u64(rows, to->h - y)) {
        const tmsize_t want = (tmsize_t)(row * (size_t)min_u64(rows, to->h - y));
        if (!decode_block(t, false, TIFFComputeStrip(t, y, 0), (char *)to->at + y * row, want)) return false;
    }
    return true;
}

static bool read_blocks(TIFF *t, const struct form *f, void *scratch, size_t room, struct plane *to)
{
    uint32_t w = to->w, h = to->h;
    const bool separate = f->planar == PLANARCONFIG_SEPARATE && f->samples > 1;
    const uint32_t samples = separate ? 1 : f->samples;
    if (f->tiled) TIFFGetField(t, TIFFTAG_TILEWIDTH, &w), TIFFGetField(t, TIFFTAG_TILELENGTH, &h);
    else TIFFGetFieldDefaulted(t, TIFFTAG_ROWSPERSTRIP, &h);
    const size_t stride = f->bits == 1 ? ((size_t)w + 7) / 8 : (size_t)w * samples * plane_type_bytes(to->type);
    if (!w || !h) return false;
    if (!f->tiled) h = (uint32_t)min_u64(h, to->h);
    if ((uint64_t)stride * h > room) return false;
    for (uint32_t c = 0; c < (separate ? to->channels : 1); c++)
        for (uint32_t y = 0; y < to->h; y += (uint32_t)min_u64(h, to->h - y))
            for (uint32_t x = 0; x < to->w; x += (uint32_t)min_u64(w, to->w - x)) {
                const struct block b =
                    {scratch, stride, x, y, (uint32_t)min_u64(w, to->w - x), (uint32_t)min_u64(h, to->h - y),
                     samples, c};
                const tmsize_t want = (tmsize_t)(stride * (f->tiled ? h : b.rows));
                const uint32_t i =
                    f->tiled ? TIFFComputeTile(t, x, y, 0, (uint16_t)c) : TIFFComputeStrip(t, y, (uint16_t)c);
                if (!decode_block(t, f->tiled, i, scratch, want)) return false;
                put_block(to, f, &b);
            }
    return true;
}

/* Inverts pixels of 1 and 8 bits where 0 is white, as Pillow reads them. */
static void invert(struct plane *p)
{
    uint8_t *at = p->at;
    for (size_t i = 0; i < plane_bytes(p) && p->type == PLANE_U8; i++) at[i] = (uint8_t)~at[i];
}

/* Replaces numbers by colours, from the last pixel to the first, in place. */
static bool look_up(TIFF *t, struct plane *p)
{
    uint16_t *colours[3];
    uint8_t *at = p->at;
    if (!TIFFGetField(t, TIFFTAG_COLORMAP, &colours[0], &colours[1], &colours[2])) return false;
    for (size_t i = (size_t)p->w * p->h; i-- > 0;) {
        const uint8_t v = at[i];
        for (int c = 0; c < 3; c++) at[3 * i + (size_t)c] = (uint8_t)(colours[c][v] >> 8);
    }
    p->channels = 3;
    return true;
}

int tiff_read(const struct tiff_source *s, const struct tiff_page *p, bool labels, void *to, size_t room,
              struct plane *out, struct error *e)
{
    struct tiff_reader r;
    CHECK(room >= tiff_room(p, labels), "a TIFF of %ux%u pixels in %zu bytes", p->w, p->h, room);
    TIFF *t = open_tiff(&r, s);
    if (!t) return bad(&r, e);
    *out = (struct plane){.h = p->h, .w = p->w, .channels = p->channels, .type = p->type, .slope = 1, .at = to};
    struct tiff_page now;
    bool good = TIFFSetSubDirectory(t, p->at) && !describe_page(t, &r, &now, e) && now.w == p->w && now.h == p->h &&
                now.channels == p->channels && now.type == p->type && now.scratch == p->scratch;
    const struct form f = form_of(t);
    if (good)
        good = in_place(&f, p->channels) ? read_in_place(t, out)
                                         : read_blocks(t, &f, (char *)to + plane_room(p, labels), p->scratch, out);
    if (good && f.photometric == PHOTOMETRIC_MINISWHITE) invert(out);
    if (good && p->palette && !labels) good = look_up(t, out);
    TIFFClose(t);
    return good && !r.said[0] ? PL_OK : bad(&r, e); /* some codecs complain of damage and go on */
}
