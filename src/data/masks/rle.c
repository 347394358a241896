/*
 * rle.c: the checked reader of run lengths, and operations on runs (see rle.h).
 *
 * The compressed string has one signed number per run, in little-endian groups of 5 bits in
 * characters '0' (48) to 'o' (111): bit 5 means that more groups follow, bit 4 of the last group
 * is the sign. From the fourth on, a number is the difference to the run before the last, which
 * is the previous run of the same colour.
 *
 * The invariant of the reader: 0 <= run <= h * w - sum. A run that it returns can be used as a
 * length without another check.
 */
#include "data/masks/rle.h"

const char *rle_status_text(enum rle_status s)
{
    switch (s) {
    case RLE_OK:
    case RLE_END: return "it is valid";
    case RLE_BAD_SIZE: return "its size is 0, too large or not the expected one";
    case RLE_BAD_CHAR: return "it has a character that is invalid in run lengths";
    case RLE_CUT: return "it ends inside a number";
    case RLE_LONG: return "it has a number of more than 7 characters";
    case RLE_BAD_RUN: return "a run is negative or longer than the image";
    case RLE_BAD_SUM: return "its runs do not add up to height * width";
    case RLE_MANY: return "it has more runs than there is room for";
    }
    return "it has an unknown fault";
}

/* --- the reader -------------------------------------------------------------------- */

enum rle_status rle_open(struct rle_reader *r, const struct rle *m)
{
    if (!m->h || !m->w || (uint64_t)m->h * m->w > RLE_MAX_PIXELS) return RLE_BAD_SIZE;
    const char *at = m->at;
    size_t bytes = m->kind == RLE_RUNS ? (size_t)m->n * sizeof(uint32_t) : m->n;
    *r = (struct rle_reader){.at = at, .end = at + bytes, .kind = m->kind, .pixels = m->h * m->w};
    return RLE_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 32;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Returns the character after a backslash in JSON: `\\`, or \u00XX. -1: another escape. */
static int unescape(struct rle_reader *r)
{
    if (r->at == r->end) return -1;
    char c = *r->at++;
    if (c == '\\') return '\\';
    if (c != 'u' || r->end - r->at < 4) return -1;
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(*r->at++);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Reads one number of the compressed string, without resolving the difference. It has at most 7
 * groups: 35 bits. */
static enum rle_status next_number(struct rle_reader *r, int64_t *number)
{
    int64_t value = 0;
    for (int shift = 0;; shift += 5) {
        if (r->at == r->end) return RLE_CUT;
        if (shift == 35) return RLE_LONG;
        int c = (unsigned char)*r->at++;
        if (c == '\\' && r->kind == RLE_JSON) c = unescape(r);
        unsigned group = (unsigned)(c - 48);
        if (group > 63) return RLE_BAD_CHAR;
        value |= (int64_t)(group & 31) << shift;
        if (group & 32) continue;
        if (group & 16) value -= (int64_t)32 << shift;
        *number = value;
        return RLE_OK;
    }
}

static void skip_blank(struct rle_reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) r->at++;
}

/* Reads an element of a list; RLE_END after its bracket. Only digits are allowed. */
static enum rle_status next_element(struct rle_reader *r, int64_t *number)
{
    skip_blank(r);
    if (r->at == r->end) return RLE_CUT;
    char first = *r->at;
    if (first == ']') { /* also of an empty list, but not after a comma */
        r->at++;
        skip_blank(r);
        return r->at == r->end ? RLE_END : RLE_BAD_CHAR;
    }
    if (first != (r->count ? ',' : '[')) return RLE_BAD_CHAR;
    r->at++;
    skip_blank(r);
    if (r->at == r->end) return RLE_CUT;
    if (*r->at == ']' && !r->count) return next_element(r, number);
    int64_t value = 0;
    int digits = 0;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++, digits++) {
        if (digits == 10) return RLE_BAD_RUN;
        value = value * 10 + (*r->at - '0');
    }
    if (!digits) return RLE_BAD_CHAR;
    *number = value;
    return RLE_OK;
}

static enum rle_status read_run(struct rle_reader *r, int64_t *run)
{
    if (r->kind == RLE_LIST) return next_element(r, run);
    if (r->at == r->end) return RLE_END;
    if (r->kind == RLE_RUNS) {
        uint32_t value;
        memcpy(&value, r->at, sizeof value);
        r->at += sizeof value;
        *run = value;
        return RLE_OK;
    }
    enum rle_status s = next_number(r, run);
    if (r->count > 2) *run += r->last[0];
    return s;
}

enum rle_status rle_next(struct rle_reader *r, uint32_t *run)
{
    int64_t value = 0;
    enum rle_status s = read_run(r, &value);
    if (s == RLE_END) return r->sum == r->pixels ? RLE_END : RLE_BAD_SUM;
    if (s) return s;
    if (value < 0 || value > r->pixels) return RLE_BAD_RUN;
    if (value > r->pixels - r->sum) return RLE_BAD_SUM;
    if (r->count > r->pixels) return RLE_MANY;
    r->count++;
    r->sum += (uint32_t)value;
    r->last[0] = r->last[1];
    r->last[1] = (uint32_t)value;
    *run = (uint32_t)value;
    return RLE_OK;
}

/* --- conversions ------------------------------------------------------------ */

enum rle_status rle_decode(const struct rle *m, uint32_t *runs, uint32_t room, uint32_t *n)
{
    struct rle_reader r;
    uint32_t run;
    *n = 0;
    enum rle_status s = rle_open(&r, m);
    while (!s && !(s = rle_next(&r, &run))) {
        if (*n == room) return RLE_MANY;
        runs[(*n)++] = run;
    }
    return s == RLE_END ? RLE_OK : s;
}

size_t rle_encode(const uint32_t *runs, uint32_t n, char *out, size_t room)
{
    size_t length = 0;
    for (uint32_t i = 0; i < n; i++) {
        int64_t value = i > 2 ? (int64_t)runs[i] - runs[i - 2] : runs[i];
        for (bool more = true; more;) {
            int group = (int)(value & 31);
            value >>= 5; /* an arithmetic shift in gcc and clang */
            more = group & 16 ? value != -1 : value != 0;
            if (length == room) return 0;
            out[length++] = (char)(48 + group + (more ? 32 : 0));
        }
    }
    return length;
}

enum rle_status rle_from_pixels(const uint8_t *pixels, uint32_t h, uint32_t w, size_t row, size_t column,
                                uint32_t *runs, uint32_t room, uint32_t *n)
{
    *n = 0;
    if (!h || !w || (uint64_t)h * w > RLE_MAX_PIXELS) return RLE_BAD_SIZE;
    bool colour = false;
    uint32_t run = 0;
    for (uint32_t x = 0; x < w; x++)
        for (uint32_t y = 0; y < h; y++) {
            bool set = pixels[y * row + x * column] != 0;
            if (set != colour) {
                if (*n == room) return RLE_MANY;
                runs[(*n)++] = run;
                run = 0;
                colour = set;
            }
            run++;
        }
    if (*n == room) return RLE_MANY;
    runs[(*n)++] = run;
    return RLE_OK;
}

enum rle_status rle_to_pixels(const struct rle *m, uint8_t *to)
{
    struct rle_reader r;
    uint32_t run;
    enum rle_status s = rle_open(&r, m);
    while (!s && !(s = rle_next(&r, &run))) memset(to + r.sum - run, !(r.count & 1), run);
    return s == RLE_END ? RLE_OK : s;
}

/* --- measurements ---------------------------------------------------------------------- */

/* Measures a run. One that continues in the next column has pixels in a bottom and in a top row,
 * so its box has full height. */
enum rle_status rle_measure(const struct rle *m, struct rle_facts *f)
{
    struct rle_reader r;
    uint32_t run, area = 0, x0 = UINT32_MAX, y0 = UINT32_MAX, x1 = 0, y1 = 0;
    enum rle_status s = rle_open(&r, m);
    while (!s && !(s = rle_next(&r, &run))) {
        if (r.count & 1 || !run) continue;
        uint32_t begin = r.sum - run, last = r.sum - 1;
        uint32_t left = begin / m->h, right = last / m->h;
        uint32_t top = left == right ? begin - left * m->h : 0;
        uint32_t bottom = left == right ? last - right * m->h : m->h - 1;
        area += run;
        if (left < x0) x0 = left;
        if (right > x1) x1 = right;
        if (top < y0) y0 = top;
        if (bottom > y1) y1 = bottom;
    }
    if (s != RLE_END) return s;
    *f = (struct rle_facts){.area = area, .runs = r.count};
    if (area) f->x = x0, f->y = y0, f->w = x1 - x0 + 1, f->h = y1 - y0 + 1;
    return RLE_OK;
}

void rle_measure_pixels(struct rle_facts *f, uint32_t h, uint32_t w,
                        bool (*is_on)(const void *of, uint32_t y, uint32_t x), const void *of)
{
    uint32_t x1 = 0, y1 = 0;
    *f = (struct rle_facts){.x = w, .y = h};
    for (uint32_t x = 0; x < w; x++)
        for (uint32_t y = 0, before = 0; y < h; y++) {
            const uint32_t on = is_on(of, y, x);
            f->runs += on != before;
            before = on;
            if (!on) continue;
            f->area++;
            if (x < f->x) f->x = x;
            if (y < f->y) f->y = y;
            if (x > x1) x1 = x;
            if (y > y1) y1 = y;
        }
    if (f->area) f->w = x1 - f->x + 1, f->h = y1 - f->y + 1;
    else f->x = f->y = 0;
}

/* Walks two masks at once, in segments that have one colour in each of them. */
struct pair_reader {
    struct rle_reader r[2];
    uint32_t left[2];
};

static enum rle_status pair_open(struct pair_reader *p, const struct rle *a, const struct rle *b)
{
    *p = (struct pair_reader){0};
    if (a->h != b->h || a->w != b->w) return RLE_BAD_SIZE;
    enum rle_status s = rle_open(&p->r[0], a);
    return s ? s : rle_open(&p->r[1], b);
}

/* Returns RLE_OK with a segment and the two colours; RLE_END when both have ended. The sums are
 * equal, so when the first ends, the second has only runs of 0 and faults left. */
static enum rle_status pair_next(struct pair_reader *p, uint32_t *piece, bool set[2])
{
    for (int i = 0; i < 2; i++) {
        enum rle_status s = RLE_OK;
        while (!p->left[i] && !(s = rle_next(&p->r[i], &p->left[i]))) {}
        if (s == RLE_END && i == 0) continue;
        if (s) return s;
    }
    *piece = p->left[0] < p->left[1] ? p->left[0] : p->left[1];
    for (int i = 0; i < 2; i++) {
        set[i] = !(p->r[i].count & 1);
        p->left[i] -= *piece;
    }
    return RLE_OK;
}

enum rle_status rle_merge(const struct rle *a, const struct rle *b, bool both, uint32_t *runs, uint32_t room,
                          uint32_t *n)
{
    struct pair_reader p;
    uint32_t piece, run = 0;
    bool set[2], colour = false;
    *n = 0;
    enum rle_status s = pair_open(&p, a, b);
    while (!s && !(s = pair_next(&p, &piece, set))) {
        bool now = both ? set[0] && set[1] : set[0] || set[1];
        if (now != colour) {
            if (*n == room) return RLE_MANY;
            runs[(*n)++] = run;
            run = 0;
            colour = now;
        }
        run += piece;
    }
    if (s != RLE_END) return s;
    if (*n == room) return RLE_MANY;
    runs[(*n)++] = run;
    return RLE_OK;
}

/* ---- Parts ----
 *
 * counts the connected parts of a mask of run lengths.
 *
 * A run is cut at the ends of columns into segments. A segment belongs to the same part as each
 * segment of the column before it that it touches, by a side or a corner of a pixel. Parts are
 * trees of segments: `up` leads to the root.
 */

struct segment {
    uint32_t x, from, to; /* column; rows from .. to - 1 */
    uint32_t up;          /* index of a segment of the same part; its own: the root */
};

typedef VEC(struct segment) segments;

/* Shortens the way to the root as it goes. */
static uint32_t root(segments *s, uint32_t i)
{
    while (s->at[i].up != i) i = s->at[i].up = s->at[s->at[i].up].up;
    return i;
}

/* Adds a segment, with *before at the first segment of the column before that may touch it. The
 * number of parts grows by one less the parts that it joins. */
static void add(segments *s, uint32_t *before, uint32_t x, uint32_t from, uint32_t to, uint32_t *parts)
{
    const uint32_t n = s->n;
    struct segment fresh = {x, from, to, n};
    vec_push(s, fresh);
    ++*parts;
    while (*before < n && (s->at[*before].x + 1 < x || (s->at[*before].x + 1 == x && s->at[*before].to < from)))
        ++*before;
    for (uint32_t k = *before; k < n && s->at[k].x + 1 == x && s->at[k].from <= to; k++) {
        uint32_t a = root(s, k), b = root(s, n);
        if (a == b) continue;
        s->at[b].up = a;
        --*parts;
    }
}

enum rle_status rle_parts(const struct rle *m, uint32_t *parts)
{
    struct rle_reader r;
    segments s = {0};
    uint32_t at = 0, run, before = 0;
    bool on = false;
    *parts = 0;
    enum rle_status status = rle_open(&r, m);
    for (; !status && !(status = rle_next(&r, &run)); on = !on)
        for (uint32_t end = at + run; at < end;) {
            uint32_t x = at / m->h, stop = (x + 1) * m->h < end ? (x + 1) * m->h : end;
            if (on) add(&s, &before, x, at - x * m->h, stop - x * m->h, parts);
            at = stop;
        }
    vec_free(&s);
    return status == RLE_END ? RLE_OK : status;
}
