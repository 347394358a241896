/*
 * dicom_decode.c: the pixels of a DICOM image, in the encodings of dicom.h.
 *
 * Compressed pixels are items: the first is a table of offsets, the others are fragments of one
 * stream, which are joined by moving them together.
 */
#include "data/images/jpeg.h"
#include "data/volumes/dicom.h"
#include "base/base.h"

/* ---- Lossless JPEG ----
 *
 * ; ITU T.81, annex H.
 *
 * A sample is a prediction from its neighbours a (left), b (above), c (above left) and a
 * difference, whose number of bits is a Huffman symbol. The first sample, and the first after a
 * restart, is predicted as half of the range; the rest of that line from a, the first of each later
 * line from b.
 */

struct huffman {
    bool known;
    /* codes of each length: the first, the last (-1: none), the index of the first symbol */
    int32_t least[17], most[17], first[17];
    uint8_t symbols[256];
};

struct stream {
    const uint8_t *at, *end;
    uint32_t bits, count; /* bits that were read and not used: the low `count` of `bits` */
    bool broken;
};

struct lossless {
    struct huffman tables[4];
    uint32_t w, h, channels, precision, restart;
    uint8_t ids[3], table[3];
    uint32_t predictor, shift;
    struct stream in;
};

static uint32_t big16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }

/* --- bits ------------------------------------------------------------------------------------- */

/* Returns the next bit; 0xff 0x00 is the byte 0xff, and 0xff with another byte is a marker, which
 * ends the stream. */
static uint32_t next_bit(struct stream *s)
{
    if (!s->count) {
        if (s->at >= s->end || (*s->at == 0xff && (s->end - s->at < 2 || s->at[1]))) return s->broken = true, 0;
        s->bits = *s->at;
        s->at += *s->at == 0xff ? 2 : 1;
        s->count = 8;
    }
    return s->bits >> --s->count & 1;
}

static uint32_t next_symbol(struct stream *s, const struct huffman *t)
{
    int32_t code = 0;
    for (int length = 1; length <= 16 && !s->broken; length++) {
        code = code << 1 | (int32_t)next_bit(s);
        if (t->most[length] >= 0 && code >= t->least[length] && code <= t->most[length])
            return t->symbols[t->first[length] + code - t->least[length]];
    }
    return s->broken = true, 0;
}

static int32_t next_difference(struct stream *s, const struct huffman *t)
{
    const uint32_t n = next_symbol(s, t);
    int32_t v = 0;
    if (n == 16) return 32768;
    if (n > 16) return s->broken = true, 0;
    for (uint32_t i = 0; i < n; i++) v = v << 1 | (int32_t)next_bit(s);
    return n && v < 1 << (n - 1) ? v - (1 << n) + 1 : v;
}

/* --- markers ---------------------------------------------------------------------------------- */

static bool read_tables(struct lossless *j, const uint8_t *p, size_t n)
{
    while (n >= 17) {
        uint32_t count = 0, id = *p & 15;
        int32_t code = 0;
        if (id > 3 || *p >> 4) return false;
        struct huffman *t = &j->tables[id];
        for (int length = 1; length <= 16; length++) {
            const int32_t here = p[length];
            t->least[length] = code, t->most[length] = here ? code + here - 1 : -1, t->first[length] = (int32_t)count;
            count += (uint32_t)here;
            code = (code + here) << 1;
        }
        if (count > 256 || count > n - 17) return false;
        memcpy(t->symbols, p + 17, count);
        t->known = true;
        p += 17 + count, n -= 17 + count;
    }
    return !n;
}

static bool read_frame(struct lossless *j, const uint8_t *p, size_t n)
{
    if (n < 6 || n < 6 + 3 * (size_t)p[5] || p[5] > 3) return false;
    j->precision = p[0], j->h = big16(p + 1), j->w = big16(p + 3), j->channels = p[5];
    for (uint32_t c = 0; c < j->channels; c++) {
        j->ids[c] = p[6 + 3 * c];
        if (p[7 + 3 * c] != 0x11) return false;
    }
    return j->precision >= 2 && j->precision <= 16;
}

static bool read_scan(struct lossless *j, const uint8_t *p, size_t n)
{
    if (!j->channels || n < 1 || p[0] != j->channels || n < 4 + 2 * (size_t)p[0]) return false;
    for (uint32_t c = 0; c < j->channels; c++) {
        j->table[c] = p[2 + 2 * c] >> 4;
        if (p[1 + 2 * c] != j->ids[c] || j->table[c] > 3 || !j->tables[j->table[c]].known) return false;
    }
    j->predictor = p[1 + 2 * j->channels];
    j->shift = p[3 + 2 * j->channels] & 15;
    return j->predictor >= 1 && j->predictor <= 7 && j->shift < j->precision;
}

/* Reads the segments up to the scan, whose bits follow. */
static bool read_markers(struct lossless *j, const uint8_t *at, size_t n)
{
    const uint8_t *end = at + n;
    if (n < 4 || at[0] != 0xff || at[1] != 0xd8) return false;
    for (at += 2; end - at >= 4;) {
        if (at[0] != 0xff) return false;
        const uint8_t marker = at[1];
        if (marker == 0xff) {
            at++;
            continue;
        }
        const size_t length = big16(at + 2);
        if (length < 2 || length > (size_t)(end - at) - 2) return false;
        const uint8_t *p = at + 4;
        at += 2 + length;
        if (marker == 0xc4 && !read_tables(j, p, length - 2)) return false;
        if (marker == 0xc3 && !read_frame(j, p, length - 2)) return false;
        /* another process */
        if (marker >= 0xc0 && marker <= 0xcf && marker != 0xc3 && marker != 0xc4 && marker != 0xcc) return false;
        if (marker == 0xdd && length >= 4) j->restart = big16(p);
        if (marker != 0xda) continue;
        j->in = (struct stream){.at = at, .end = end};
        return read_scan(j, p, length - 2);
    }
    return false;
}

/* --- samples ---------------------------------------------------------------------------------- */

static int32_t sample_at(const void *to, size_t i, int bytes)
{
    return bytes == 1 ? ((const uint8_t *)to)[i] : ((const uint16_t *)to)[i];
}

static int32_t predict(uint32_t which, int32_t a, int32_t b, int32_t c)
{
    switch (which) {
    case 1: return a;
    case 2: return b;
    case 3: return c;
    case 4: return a + b - c;
    case 5: return a + ((b - c) >> 1);
    case 6: return b + ((a - c) >> 1);
    default: return (a + b) >> 1;
    }
}

/* Moves behind the restart marker. */
static void restart(struct stream *s)
{
    s->count = 0;
    if (s->end - s->at >= 2 && s->at[0] == 0xff && s->at[1] >= 0xd0 && s->at[1] <= 0xd7) s->at += 2;
    else s->broken = true;
}

/* Decodes a pixel. `first`: the first line since the beginning or a restart. Differences are of
 * samples without the point transform. */
static void decode_pixel(struct lossless *j, uint32_t x, uint32_t y, bool begin, bool first, int bytes, void *to)
{
    const size_t n = j->channels, i = ((size_t)y * j->w + x) * n;
    for (uint32_t k = 0; k < n; k++) {
        const int32_t a = x ? sample_at(to, i + k - n, bytes) >> j->shift : 0,
                      b = first ? 0 : sample_at(to, i + k - n * j->w, bytes) >> j->shift,
                      c = first || !x ? 0 : sample_at(to, i + k - n * j->w - n, bytes) >> j->shift;
        const int32_t guess = begin   ? 1 << (j->precision - j->shift - 1)
                              : first ? a
                              : x     ? predict(j->predictor, a, b, c)
                                      : b;
        const uint32_t v = (uint32_t)(guess + next_difference(&j->in, &j->tables[j->table[k]])) << j->shift;
        if (bytes == 1) ((uint8_t *)to)[i + k] = (uint8_t)v;
        else ((uint16_t *)to)[i + k] = (uint16_t)v;
    }
}

/* Decodes an image of this size, with 1 or 3 channels, to integers of `bytes` (1 or 2):
 * [h][w][channels]. PL_USAGE: another size or process, or damage. */
static int jpeg_lossless(const uint8_t *at, size_t n, uint32_t w, uint32_t h, uint32_t channels, int bytes, void *to,
                  struct error *e)
{
    struct lossless j = {0};
    if (!read_markers(&j, at, n)) return error_set(e, PL_USAGE, "its lossless JPEG is damaged, or of another process");
    if (j.w != w || j.h != h || j.channels != channels || j.precision > 8 * (uint32_t)bytes)
        return error_set(e, PL_USAGE,
                         "its lossless JPEG has %ux%u pixels of %u x %u bits, which its header does not say", j.w, j.h,
                         j.channels, j.precision);
    const uint32_t lines = j.restart ? j.restart / w : h; /* restarts are at the beginnings of lines */
    if (!lines || (j.restart && j.restart % w))
        return error_set(e, PL_USAGE, "its lossless JPEG restarts inside of a line");
    for (uint32_t y = 0; y < h && !j.in.broken; y++) {
        const bool first = y % lines == 0;
        if (first && y) restart(&j.in);
        for (uint32_t x = 0; x < w && !j.in.broken; x++) decode_pixel(&j, x, y, first && !x, first, bytes, to);
    }
    return j.in.broken ? error_set(e, PL_USAGE, "its lossless JPEG is damaged or ends too early") : PL_OK;
}

enum plane_type dicom_type(const struct dicom_header *h)
{
    if (h->lut.n) return PLANE_U16;
    return h->allocated == 8 ? h->is_signed ? PLANE_I8 : PLANE_U8 : h->is_signed ? PLANE_I16 : PLANE_U16;
}

size_t dicom_stored_bytes(const struct dicom_header *h)
{
    return (size_t)h->rows * h->columns * h->samples * (h->allocated / 8);
}
size_t dicom_decoded_bytes(const struct dicom_header *h)
{
    return (size_t)h->rows * h->columns * h->samples * plane_type_bytes(dicom_type(h));
}

static size_t reader_bytes(void) { return (size_t)align_up(jpg_bytes(), 64); }

size_t dicom_scratch(const struct dicom_header *h)
{
    return h->coding == DICOM_JPEG ? reader_bytes() + (size_t)align_up((uint64_t)h->columns * 3, 64) : 0;
}

uint64_t dicom_outside(const struct dicom_header *h)
{
    return h->coding == DICOM_JPEG2000 ? j2k_room(h->columns, h->rows, h->samples, h->pixels_n) : 0;
}

static uint32_t u16(const uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }
static uint32_t u32(const uint8_t *p) { return u16(p) | u16(p + 2) << 16; }

/* Joins the fragments at the front of `file`; returns their bytes, 0: damaged. */
static size_t join_fragments(uint8_t *file, uint64_t n)
{
    size_t used = 0;
    uint64_t at = 0;
    for (bool table = true; n - at >= 8; table = false) {
        const uint32_t tag = u16(file + at) << 16 | u16(file + at + 2), bytes = u32(file + at + 4);
        if (tag == 0xfffee0dd) return used;
        at += 8;
        if (tag != 0xfffee000 || bytes > n - at) return 0;
        if (!table) memmove(file + used, file + at, bytes), used += bytes;
        at += bytes;
    }
    return 0;
}

/* --- RLE -------------------------------------------------------------------------------------- */

/* Unpacks one PackBits segment into every `step`-th byte. */
static bool unpack(const uint8_t *from, size_t n, uint8_t *to, size_t count, size_t step)
{
    size_t at = 0, done = 0;
    while (done < count && at < n) {
        const int8_t c = (int8_t)from[at++];
        if (c == -128) continue;
        const size_t run = c >= 0 ? (size_t)c + 1 : (size_t)(1 - c);
        if (c >= 0 ? run > n - at : at >= n) return false;
        for (size_t i = 0; i < run && done < count; i++, done++) to[done * step] = from[c >= 0 ? at + i : at];
        at += c >= 0 ? run : 1;
    }
    return done == count;
}

/* Decodes RLE. A segment is one byte of one channel: the most significant byte first. */
static bool decode_rle(const struct dicom_header *h, const uint8_t *file, size_t n, uint8_t *to)
{
    const uint32_t bytes = h->allocated / 8, segments = h->samples * bytes;
    if (n < 64 || u32(file) != segments) return false;
    for (uint32_t k = 0; k < segments; k++) {
        const uint32_t from = u32(file + 4 + 4 * k), end = k + 1 < segments ? u32(file + 8 + 4 * k) : (uint32_t)n;
        if (from < 64 || from > end || end > n) return false;
        if (!unpack(file + from, end - from, to + k / bytes * bytes + (bytes - 1 - k % bytes),
                    (size_t)h->rows * h->columns, h->samples * bytes))
            return false;
    }
    return true;
}

/* --- JPEG ------------------------------------------------------------------------------------- */

/* Decodes 8 bits: rows as RGB, of which grey takes one channel. */
static int decode_jpeg(const struct dicom_header *h, const uint8_t *file, size_t n, void *scratch, uint8_t *to,
                       struct error *e)
{
    struct jpg_header head;
    uint32_t w, rows;
    if (h->allocated != 8) return error_set(e, PL_USAGE, "its JPEG has %u bits; expected 8", h->allocated);
    if (jpg_peek(file, n, &head, e)) return e->code;
    if (head.width != h->columns || head.height != h->rows)
        return error_set(e, PL_USAGE, "its JPEG has %ux%u pixels, and its header says %ux%u", head.width, head.height,
                         h->columns, h->rows);
    struct jpg *j = jpg_open(scratch, &(struct jpg_limits){.memory = 32 << 20, .rgb = !strcmp(h->photometric, "RGB")});
    uint8_t *row = (uint8_t *)scratch + reader_bytes();
    int rc = jpg_start(j, file, n, 1, &w, &rows, e);
    for (uint32_t y = 0; y < h->rows && !rc; y++) {
        rc = jpg_rows(j, row, 0, 1, e);
        for (uint32_t x = 0; x < h->columns && !rc; x++)
            memcpy(to + ((size_t)y * h->columns + x) * h->samples, row + 3 * (size_t)x, h->samples);
    }
    if (!rc) rc = jpg_finish(j, e);
    jpg_close(j);
    return rc;
}

/* --- all -------------------------------------------------------------------------------------- */

/* Copies [channel][row][column] to [row][column][channel]. */
static void interleave(const struct dicom_header *h, const uint8_t *file, uint8_t *to)
{
    const size_t n = (size_t)h->rows * h->columns;
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < 3; c++) to[3 * i + c] = file[c * n + i];
}

/* Moves the stored bits to the low end, and extends the sign. */
static void align_bits(const struct dicom_header *h, void *to)
{
    const size_t n = (size_t)h->rows * h->columns * h->samples;
    const uint32_t shift = h->high + 1 - h->stored, mask = h->stored == 16 ? 0xffff : (1u << h->stored) - 1,
                   sign = h->is_signed ? 1u << (h->stored - 1) : 0;
    if (h->stored == h->allocated) return;
    for (size_t i = 0; i < n; i++) {
        uint32_t v = (h->allocated == 8 ? ((uint8_t *)to)[i] : ((uint16_t *)to)[i]) >> shift & mask;
        if (v & sign) v |= ~mask;
        if (h->allocated == 8) ((uint8_t *)to)[i] = (uint8_t)v;
        else ((uint16_t *)to)[i] = (uint16_t)v;
    }
}

size_t dicom_lut_bytes(const struct dicom_header *h) { return h->lut.n * (h->lut.bytes >= 2ull * h->lut.n ? 2 : 1); }

/* Replaces values by entries, from the last one on: 8 bits grow to 16. Values beyond the ends have
 * the first and the last entry. */
static void look_up(const struct dicom_header *h, const uint8_t *lut, void *to)
{
    const bool wide = dicom_lut_bytes(h) > h->lut.n;
    const struct plane stored = {.type = h->allocated == 8 ? h->is_signed ? PLANE_I8 : PLANE_U8
                                         : h->is_signed    ? PLANE_I16
                                                           : PLANE_U16, .slope = 1, .at = to};
    for (size_t i = (size_t)h->rows * h->columns; i-- > 0;) {
        const int64_t v = (int64_t)plane_value(&stored, i) - h->lut.first;
        const size_t k = v < 0 ? 0 : v >= h->lut.n ? h->lut.n - 1 : (size_t)v;
        const uint16_t entry = (uint16_t)(wide ? u16(lut + 2 * k) : lut[k]);
        memcpy((uint8_t *)to + 2 * i, &entry, sizeof entry);
    }
}

int dicom_decode(const struct dicom_header *h, uint8_t *file, const uint8_t *lut, void *scratch, void *to,
                 struct error *e)
{
    const size_t n = h->coding == DICOM_NATIVE ? (size_t)h->pixels_n : join_fragments(file, h->pixels_n);
    if (h->coding == DICOM_NATIVE) {
        if (h->samples == 3 && h->planar) interleave(h, file, to);
        else memcpy(to, file, dicom_stored_bytes(h));
    } else if (!n) {
        return error_set(e, PL_USAGE, "its compressed pixels are damaged or end too early");
    } else if (h->coding == DICOM_RLE) {
        if (!decode_rle(h, file, n, to)) return error_set(e, PL_USAGE, "its RLE pixels are damaged");
    } else if (h->coding == DICOM_JPEG) {
        if (decode_jpeg(h, file, n, scratch, to, e)) return e->code;
    } else if (h->coding == DICOM_LOSSLESS) {
        if (jpeg_lossless(file, n, h->columns, h->rows, h->samples, (int)h->allocated / 8, to, e)) return e->code;
    } else if (dicom_j2k(file, n, h->columns, h->rows, h->samples, (int)h->allocated / 8, to, e)) {
        return e->code;
    }
    align_bits(h, to);
    if (h->lut.n) look_up(h, lut, to);
    return PL_OK;
}
