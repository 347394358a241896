/*
 * baseline.c: see baseline.h.
 *
 *   file ──unstuff──► window ──codes──► 64 coefficients ──transform──► bands ──colour──► row
 *                     no escapes         of one block                 2 rows of MCUs
 *
 * An MCU is 16 x 16 pixels: four blocks of Y, one of Cb and one of Cr. Halved, Y's blocks
 * become 4 x 4 and chroma's stay 8 x 8, so all three have one size. At full size
 * chroma is doubled by a triangle filter, 3 parts near and 1 part far, which needs the row
 * above and the row below: the bands are rings of two rows of MCUs, and a row is given when the one below
 * its chroma is there.
 *
 * No read leaves the window: an MCU takes at most 6 * 64 codes of 16 + 11 bits, less than
 * MARGIN bytes, and before each one there are MARGIN bytes ahead, zeros behind the end. What was read
 * beyond the end is noticed after the MCU.
 */
#include "data/baseline.h"

#include <string.h>

#include "data/colour.h"
#include "data/idct.h"

enum {
    LOOK = 11,          /* bits that one look sees */
    WINDOW = 32 << 10,
    MARGIN = 2 << 10,
    END = 128,          /* a step that leads out of every block */
    LOST = END + 63,    /* one that leads where END does not, from anywhere in a block */
    DC_MOST = 11, AC_MOST = 10, /* bits of a difference and of a coefficient, 8-bit samples */
    NOWHERE = 64        /* the place of what belongs to no block */
};

/* The codes of a table, and what LOOK bits say. */
struct codes {
    uint64_t look[1 << LOOK];
    uint32_t one[1 << LOOK]; /* the first code alone */
    int32_t last[17];   /* the largest code of each length, -1 where there is none */
    int32_t base[17];   /* add a code to get its place in values */
    uint8_t bits[17], values[256]; /* what they were made of */
    bool ac, known;
};

struct baseline {
    uint32_t width, height;        /* of what is given */
    uint32_t columns, rows;        /* of MCUs */
    bool half;
    uint32_t decoded, given;       /* rows of MCUs, rows of pixels */
    uint32_t chroma_w, chroma_h;   /* samples that the image has, without padding */
    int16_t quant[3][64];
    int32_t dc[3];                 /* the last block's, in each part */
    /* the window: bytes [at, end) are still to be read, `left` bits of the 8 before are in `bits` */
    const uint8_t *from, *stop;    /* of the file */
    bool ended, marked;            /* the file's data is all in the window; by the end mark */
    uint64_t bits;
    uint32_t left;
    const uint8_t *at, *end;
    struct bands {                 /* rings of rows */
        uint8_t *at[3];
        size_t stride[3];
        uint32_t rows[3];          /* of each ring, a power of two */
        uint8_t *wide[2];          /* a row of chroma, doubled */
    } band;
    struct codes codes[2][2];      /* Y, chroma; DC, AC: kept, as most files have the same ones */
    uint8_t window[WINDOW + MARGIN + 16];
};

static const uint8_t zigzag[256] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                   35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
                                    [64 ... 255] = NOWHERE};

/* ---- codes ---- */

/*
 * One code: how many bits it has together with its number, how many without, how many the number has, and
 * the step to its coefficient. Two codes that share a look: the first one's number is known from the
 * look, the second's need not be, and the fields above are those of the second but
 * for the step, which is that of both. A look with one code has the first one nowhere.
 */
enum { F_LENGTH = 0, F_SHIFT = 8, F_SIZE = 16, F_STEP = 24, F_FIRST = 32, F_NUMBER = 48 };
#define FIELD(look, f) ((uint32_t)((look) >> (f)) & 255)

/* What a code's value says: 0 where an encoder of 8-bit images would not write it. */
static uint32_t meaning(uint32_t value, uint32_t length, bool ac)
{
    uint32_t size = ac ? value & 15 : value, step = ac ? (value >> 4) + 1 : 1;
    if (size > (ac ? AC_MOST : DC_MOST)) return 0;
    if (ac && !size && step != 16) step = END;
    return step << F_STEP | size << F_SIZE | length << F_SHIFT | (length + size);
}

/* The number behind a code. The first half of each size's range, with a top bit of 0, is negative: less
 * by 2^size - 1. Signs are noise, so this must not be a branch. */
static inline __attribute__((always_inline)) int32_t number(uint64_t bits, uint64_t look)
{
    uint32_t size = FIELD(look, F_SIZE);
    uint64_t t = bits << FIELD(look, F_SHIFT), negative = (t >> 63) - 1;
    return (int32_t)((t >> 1 >> (63 - size)) + (negative & ((negative << size) + 1)));
}

/* The look of codes[i], with a second code where its bits are all there. LOST: none is. */
static uint64_t look_of(const struct codes *c, uint32_t i)
{
    uint64_t first = c->one[i], alone = first | (uint64_t)END << F_FIRST;
    uint32_t length = FIELD(first, F_LENGTH);
    if (!first) return (uint64_t)LOST << F_STEP | (uint64_t)END << F_FIRST;
    if (length >= LOOK || FIELD(first, F_STEP) == END) return alone;
    uint64_t second = c->one[(i << length) & ((1 << LOOK) - 1)];
    if (!second || length + FIELD(second, F_SHIFT) > LOOK) return alone;
    int32_t v = number((uint64_t)i << (64 - LOOK), first);
    return second + length * ((1ull << F_LENGTH) + (1ull << F_SHIFT)) + ((uint64_t)FIELD(first, F_STEP) << F_STEP) +
           ((uint64_t)FIELD(first, F_STEP) << F_FIRST) + ((uint64_t)(uint16_t)v << F_NUMBER);
}

static bool codes_same(const struct codes *c, const uint8_t *bits, const uint8_t *values)
{
    return c->known && !memcmp(c->bits + 1, bits + 1, 16) && !memcmp(c->values, values, sizeof c->values);
}

/* False where libjpeg has something to say: more codes than there are (one of ones alone is none),
 * a difference of more than 15 bits. */
static bool codes_fill(struct codes *c, const uint8_t *bits, const uint8_t *values, bool ac)
{
    uint32_t code = 0, k = 0;
    if (codes_same(c, bits, values)) return true;
    memset(c, 0, sizeof *c);
    memcpy(c->bits, bits, sizeof c->bits);
    memcpy(c->values, values, sizeof c->values);
    c->ac = ac;
    for (uint32_t length = 1; length <= 16; length++, code <<= 1) {
        if (k + bits[length] > 256 || code + bits[length] >= 1u << length) return false;
        c->base[length] = (int32_t)k - (int32_t)code;
        for (uint32_t i = 0; i < bits[length]; i++, k++, code++) {
            if (!ac && values[k] > 15) return false;
            uint32_t shift = length < LOOK ? LOOK - length : 0, means = meaning(values[k], length, ac);
            for (uint32_t j = 0; length <= LOOK && j < 1u << shift; j++) c->one[(code << shift) + j] = means;
        }
        c->last[length] = bits[length] ? (int32_t)code - 1 : -1;
    }
    for (uint32_t i = 0; ac && i < 1 << LOOK; i++) c->look[i] = look_of(c, i);
    return c->known = true;
}

/* The first code of the next 16 bits, whatever its length; 0: there is none, or none that is plain. */
static __attribute__((noinline)) uint32_t one_code(const struct codes *c, uint64_t bits)
{
    for (uint32_t length = 1; length <= 16; length++) {
        int32_t code = (int32_t)(bits >> (64 - length));
        if (code <= c->last[length]) return meaning(c->values[(c->base[length] + code) & 255], length, c->ac);
    }
    return 0;
}

/* ---- bits ---- */

/* What of the reader changes with each code, so that it stays in registers. */
struct reader {
    uint64_t bits;      /* the next ones, from the top; below them more that were seen already */
    uint32_t left;      /* how many count */
    const uint8_t *at;
};

/* At least 56 bits. The bytes at `at` are seen again next time, where they are not counted. */
static inline __attribute__((always_inline)) void refill(struct reader *r)
{
    uint64_t more;
    memcpy(&more, r->at, sizeof more);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    more = __builtin_bswap64(more);
#endif
    r->bits |= more >> r->left;
    r->at += (63 - r->left) >> 3;
    r->left |= 56;
}

static inline __attribute__((always_inline)) void drop(struct reader *r, uint64_t look)
{
    r->bits <<= FIELD(look, F_LENGTH);
    r->left -= FIELD(look, F_LENGTH);
}

static inline bool read_dc(struct reader *r, const struct codes *c, int32_t *dc, int16_t *coef)
{
    refill(r);
    uint32_t look = c->one[r->bits >> (64 - LOOK)];
    if (__builtin_expect(!look, 0) && !(look = one_code(c, r->bits))) return false;
    *dc += number(r->bits, look);
    drop(r, look);
    coef[0] = (int16_t)*dc;
    return *dc == coef[0];
}

/* The coefficients of one look, from the one behind place k; gives the place of its last. LOST: it is
 * not plain. A look will not do for a code of more than LOOK bits, nor for the last one of a block that
 * goes to its end, when it saw the next block's first one, too. */
static inline __attribute__((always_inline)) uint32_t read_look(struct reader *r, const struct codes *c, uint32_t k, int16_t *coef)
{
    uint64_t look = c->look[r->bits >> (64 - LOOK)];
    uint32_t to = k + FIELD(look, F_STEP);
    if (__builtin_expect(to > 63 && to - END > 62, 0)) {
        look = one_code(c, r->bits);
        to = k + FIELD(look, F_STEP);
        if (!look || (to > 63 && to < END)) return LOST;
        look |= (uint64_t)END << F_FIRST;
    }
    coef[zigzag[k + FIELD(look, F_FIRST)]] = (int16_t)(look >> F_NUMBER);
    coef[zigzag[to]] = (int16_t)number(r->bits, look);
    drop(r, look);
    return to;
}

/* One block to coef[64] and a place for what belongs nowhere, which is all 0 before. 0: it is flat,
 * 1: it is not, -1: it is not plain. Two looks take 2 * 26 bits at most and the first code 27, so that two share a refill. */
static inline __attribute__((always_inline)) int read_block(struct reader *io, const struct codes codes[2], int32_t *dc, int16_t *coef)
{
    struct reader r = *io;
    uint32_t k = 0;
    if (!read_dc(&r, &codes[0], dc, coef)) return -1;
    k = read_look(&r, &codes[1], k, coef);
    while (k < 63) {
        refill(&r);
        k = read_look(&r, &codes[1], k, coef);
        if (k < 63) k = read_look(&r, &codes[1], k, coef);
    }
    *io = r;
    return k == LOST ? -1 : k != END;
}

/* Copies without escapes until the window is full or a mark comes. */
static void unstuff(struct baseline *b, uint8_t *to)
{
    uint8_t *full = b->window + WINDOW;
    while (to < full && !b->ended) {
        size_t n = min_u64((uint64_t)(full - to), (uint64_t)(b->stop - b->from));
        const uint8_t *mark = n ? memchr(b->from, 0xff, n) : NULL;
        size_t plain = mark ? (size_t)(mark - b->from) : n;
        memcpy(to, b->from, plain);
        to += plain;
        b->from += plain;
        if (b->stop - b->from < 2 && (mark || b->from == b->stop)) {
            b->ended = true; /* cut off */
        } else if (mark && b->from[1]) {
            b->ended = true;
            b->marked = b->from[1] == 0xd9;
        } else if (mark) {
            *to++ = 0xff;
            b->from += 2;
        }
    }
    b->end = to;
    memset(to, 0, MARGIN);
}

/* Room ahead for an MCU. False: more was read than there is. */
static bool ahead(struct baseline *b, struct reader *r)
{
    size_t kept = r->left / 8; /* bytes that are in r->bits already */
    if (r->at - kept > b->end) return false;
    if (b->ended) return true;
    size_t rest = r->at < b->end ? (size_t)(b->end - r->at) : 0;
    size_t over = (size_t)(r->at - b->window) + rest - (size_t)(b->end - b->window);
    CHECK(!over, "the window ran out while there was more");
    memmove(b->window, r->at, rest);
    r->at = b->window;
    unstuff(b, b->window + rest);
    return true;
}

/* ---- bands ---- */

static uint8_t *band_row(const struct baseline *b, int part, uint32_t y) { return b->band.at[part] + (y & (b->band.rows[part] - 1)) * b->band.stride[part]; }

/* A block's pixels. */
static void transform(const struct baseline *b, int part, int16_t *coef, int last, uint8_t *to)
{
    uint32_t side = part == 0 && b->half ? 4 : 8;
    size_t stride = b->band.stride[part];
    if (!last) {
        uint8_t flat = idct_flat(coef[0], b->quant[part][0]);
        for (uint32_t y = 0; y < side; y++) memset(to + y * stride, flat, side);
        coef[0] = 0;
        return;
    }
    if (side == 4) idct_4x4(coef, b->quant[part], to, stride);
    else idct_8x8(coef, b->quant[part], to, stride);
    memset(coef, 0, 64 * sizeof *coef);
}

static bool read_mcus(struct baseline *b)
{
    struct reader r = {b->bits, b->left, b->at};
    _Alignas(16) int16_t coef[NOWHERE + 8] = {0};
    uint32_t side = b->half ? 4 : 8, line = b->decoded * 2 * side;
    uint8_t *luma = band_row(b, 0, line), *chroma[2] = {band_row(b, 1, b->decoded * 8), band_row(b, 2, b->decoded * 8)};
    for (uint32_t x = 0; x < b->columns; x++) {
        if ((b->end - r.at < MARGIN) && !ahead(b, &r)) return false;
        for (uint32_t k = 0; k < 4; k++) {
            int last = read_block(&r, b->codes[0], &b->dc[0], coef);
            if (last < 0) return false;
            transform(b, 0, coef, last, luma + (k >> 1) * side * b->band.stride[0] + (2 * x + (k & 1)) * side);
        }
        for (int c = 0; c < 2; c++) {
            int last = read_block(&r, b->codes[1], &b->dc[c + 1], coef);
            if (last < 0) return false;
            transform(b, c + 1, coef, last, chroma[c] + 8 * x);
        }
    }
    if (r.at - r.left / 8 > b->end) return false;
    b->bits = r.bits;
    b->left = r.left;
    b->at = r.at;
    b->decoded++;
    return true;
}

/* ---- rows ---- */

/* The chroma rows at a row of pixels: the nearer one, and its neighbour on the other side. */
static void near_and_far(const struct baseline *b, uint32_t y, uint32_t *near, uint32_t *far)
{
    *near = y / 2;
    if (y & 1) *far = *near + 1 < b->chroma_h ? *near + 1 : *near;
    else *far = *near ? *near - 1 : 0;
}

bool baseline_row(struct baseline *b, uint8_t *rgb)
{
    uint32_t y = b->given, near = y, far = y;
    CHECK(y < b->height, "more rows than the image has");
    if (!b->half) near_and_far(b, y, &near, &far);
    uint32_t need = (near > far ? near : far) / 8 + 1;
    while (b->decoded < need)
        if (!read_mcus(b)) return false;
    const uint8_t *chroma[2];
    for (int c = 0; c < 2; c++) {
        chroma[c] = band_row(b, c + 1, near);
        if (b->half) continue;
        colour_widen(b->band.wide[c], chroma[c], band_row(b, c + 1, far), b->chroma_w);
        chroma[c] = b->band.wide[c];
    }
    colour_row(rgb, band_row(b, 0, y), chroma[0], chroma[1], b->width);
    b->given++;
    return true;
}

/* libjpeg warns of whole bytes between the last code and the mark. */
bool baseline_ended(struct baseline *b)
{
    while (b->decoded < b->rows)
        if (!read_mcus(b)) return false;
    struct reader r = {b->bits, b->left, b->at};
    if (!b->ended && !ahead(b, &r)) return false;
    return b->ended && b->marked && b->end - (r.at - r.left / 8) <= 0;
}

/* ---- begin ---- */

static void *lay(char *at, size_t *used, size_t bytes)
{
    void *p = at ? at + *used : NULL;
    *used += align_up(bytes, 64);
    return p;
}

/* Rows are as wide as their MCUs; at full size a ring has a second row of those. */
static size_t lay_out(struct bands *b, const struct baseline_file *f, char *at)
{
    size_t used = 0, columns = (f->width + 15) / 16;
    bool half = f->divisor == 2;
    for (int c = 0; c < 3; c++) {
        b->stride[c] = align_up(columns * (c || half ? 8 : 16), 64);
        b->rows[c] = half ? 8 : c ? 16 : 32;
        b->at[c] = lay(at, &used, b->rows[c] * b->stride[c]);
    }
    for (int c = 0; c < 2; c++) b->wide[c] = lay(at, &used, half ? 0 : 2 * b->stride[1]);
    return used;
}

size_t baseline_bytes(const struct baseline_file *f) { return lay_out(&(struct bands){0}, f, NULL); }

static bool take_tables(struct baseline *b, const struct baseline_file *f)
{
    for (int c = 0; c < 3; c++)
        for (int k = 0; k < 64; k++) {
            if (!f->part[c].quant[k] || f->part[c].quant[k] > 255) return false;
            b->quant[c][k] = (int16_t)f->part[c].quant[k];
        }
    const struct baseline_part *one = &f->part[1], *two = &f->part[2];
    if (one->dc_bits != two->dc_bits || one->ac_bits != two->ac_bits) return false; /* never seen */
    for (int c = 0; c < 2; c++)
        if (!codes_fill(&b->codes[c][0], f->part[c].dc_bits, f->part[c].dc_values, false) ||
            !codes_fill(&b->codes[c][1], f->part[c].ac_bits, f->part[c].ac_values, true))
            return false;
    return true;
}

struct baseline *baseline_new(void) { return mem_alloc(sizeof(struct baseline)); }

void baseline_free(struct baseline *b) { mem_free(b); }

bool baseline_begin(struct baseline *b, const struct baseline_file *f, void *memory)
{
    CHECK(f->divisor == 1 || f->divisor == 2, "a plain JPEG divided by %u", f->divisor);
    memset(b, 0, offsetof(struct baseline, codes));
    lay_out(&b->band, f, memory);
    b->half = f->divisor == 2;
    b->width = (f->width + f->divisor - 1) / f->divisor;
    b->height = (f->height + f->divisor - 1) / f->divisor;
    b->columns = (f->width + 15) / 16;
    b->rows = (f->height + 15) / 16;
    b->chroma_w = (f->width + 1) / 2;
    b->chroma_h = (f->height + 1) / 2;
    b->from = f->data;
    b->stop = f->data + f->n;
    b->at = b->window;
    if (b->chroma_w < 3 || !take_tables(b, f)) return false; /* libjpeg does not smooth so few */
    unstuff(b, b->window);
    return true;
}
