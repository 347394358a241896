/*
 * dicom_decode.c: the pixels of a DICOM image, in the encodings of dicom.h.
 *
 * Compressed pixels are items: the first is a table of offsets, the others are fragments of one
 * stream, which are joined by moving them together.
 */
#include <string.h>

#include "data/images/jpeg.h"
#include "data/volumes/dicom.h"
#include "data/volumes/dicom_j2k.h"
#include "data/volumes/jpeg_lossless.h"

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

/* PackBits: of one segment into every `step`-th byte. */
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

/* A segment is one byte of one channel: the most significant byte first. */
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

/* 8 bits: rows as RGB, of which grey takes one channel. */
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

/* [channel][row][column] to [row][column][channel], with a copy. */
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

/* Values to entries, from the last one on: 8 bits grow to 16. Values beyond the ends have the first
 * and the last entry. */
static void look_up(const struct dicom_header *h, const uint8_t *lut, void *to)
{
    const bool wide = dicom_lut_bytes(h) > h->lut.n;
    const struct plane stored = {.type = h->allocated == 8 ? h->is_signed ? PLANE_I8 : PLANE_U8
                                         : h->is_signed    ? PLANE_I16
                                                           : PLANE_U16,
                                 .slope = 1,
                                 .at = to};
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
