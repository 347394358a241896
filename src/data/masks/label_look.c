/*
 * label_look.c: what a mask image looks like, from the neighbours of its pixels (see label.h).
 *
 * A pixel is inside if its four neighbours have its value. It is on a slope if, along a row, a
 * column or a diagonal, one neighbour is darker and the opposite one brighter.
 *
 *     an area of one value      0 0 3 3 3 3        inside, or beside its own value
 *     a soft edge               0 0 40 160 255     on a slope, at every value between the ends
 *     a photograph              slopes everywhere
 *
 * A value is thin if most of its pixels are on slopes and nearly none is inside: soft edges are
 * made of such values. Thin objects (vessels, contours) are not: beside them is the background on
 * both sides. Smoothing needs values to put between two others, so an image whose largest value is
 * small has classes or instances.
 */
#include <string.h>

#include "data/masks/label.h"

enum {
    SMOOTHED = 32,    /* the least largest value of a smoothed mask */
    THIN = 3,         /* the least number of thin values of a smoothed mask */
    MANY = 32,        /* the least number of different values of a photograph */
    WHITE = 240,      /* the least largest value of a compressed mask */
};

struct tally {
    uint32_t count, inside, slope;
};

static bool between(uint32_t a, uint32_t v, uint32_t b) { return (a < v && v < b) || (b < v && v < a); }

/* A row of values. */
static void copy_row(const struct label_image *m, uint32_t y, uint16_t *to)
{
    const uint8_t *narrow = (const uint8_t *)m->pixels + (size_t)y * m->w;
    if (m->bytes == 2) memcpy(to, (const uint16_t *)m->pixels + (size_t)y * m->w, m->w * sizeof *to);
    else for (uint32_t x = 0; x < m->w; x++) to[x] = narrow[x];
}

/* Tallies a row, given the rows above and below it. Beyond the image's edge is the value of the
 * edge. */
static void tally_row(const uint16_t *up, const uint16_t *row, const uint16_t *down, uint32_t w, struct tally *t)
{
    for (uint32_t x = 0; x < w; x++) {
        const uint32_t v = row[x], l = x ? x - 1 : x, r = x + 1 < w ? x + 1 : x;
        t[v].count++;
        if (!v) continue;
        if (row[l] == v && row[r] == v && up[x] == v && down[x] == v) t[v].inside++;
        else if (between(row[l], v, row[r]) || between(up[x], v, down[x]) || between(up[l], v, down[r]) ||
                 between(up[r], v, down[l]))
            t[v].slope++;
    }
}

static void tally_image(const struct label_image *m, struct tally *t)
{
    uint16_t *rows = mem_alloc(3 * (size_t)m->w * sizeof *rows), *up = rows, *row = rows, *down = rows + m->w;
    copy_row(m, 0, row);
    for (uint32_t y = 0; y < m->h; y++) {
        if (y + 1 < m->h) copy_row(m, y + 1, down);
        tally_row(up, row, y + 1 < m->h ? down : row, m->w, t);
        uint16_t *next = y ? up : rows + 2 * (size_t)m->w;
        up = row, row = down, down = next;
    }
    mem_free(rows);
}

/* Sums over the values above 0. */
struct sums {
    uint64_t pixels, inside, slope;
    uint64_t dark, dark_inside; /* up to an eighth of the largest value */
    uint64_t grey;   /* between dark and white */
    uint64_t middle; /* between dark and three quarters of the largest value, of values that are not thin */
    uint32_t thin;   /* number of thin values */
    uint32_t white;  /* number of values within a sixteenth of the largest */
};

static bool is_dark(uint32_t v, uint32_t largest) { return 8 * (uint64_t)v <= largest; }
static bool is_bright(uint32_t v, uint32_t largest) { return 4 * (uint64_t)v >= 3 * (uint64_t)largest; }
static bool is_white(uint32_t v, uint32_t largest) { return 16 * (uint64_t)v >= 15 * (uint64_t)largest; }

static struct sums add_up(const struct tally *t, uint32_t ignore, struct label_facts *f)
{
    struct sums s = {0};
    for (uint32_t v = 1; v < 65536; v++)
        if (t[v].count && v != ignore) f->values++, f->largest = v;
    f->two_ends = true;
    for (uint32_t v = 0; v < 65536; v++) {
        f->seen[v] = t[v].count;
        if (!v || !t[v].count || v == ignore) continue;
        const bool thin = 2 * (uint64_t)t[v].slope >= t[v].count && 20 * (uint64_t)t[v].inside < t[v].count;
        s.pixels += t[v].count;
        s.inside += t[v].inside;
        s.slope += t[v].slope;
        s.thin += thin;
        if (is_dark(v, f->largest)) {
            s.dark += t[v].count;
            s.dark_inside += t[v].inside;
            continue;
        }
        if (is_white(v, f->largest)) s.white++;
        else s.grey += t[v].count;
        if (is_bright(v, f->largest)) continue;
        f->two_ends = false;
        if (!thin) s.middle += t[v].count;
    }
    return s;
}

/* Shades of white, and dark pixels without areas: what compression leaves of black and white. */
static bool is_noisy_white(const struct label_image *m, const struct label_facts *f, const struct sums *s)
{
    return m->bytes == 1 && f->largest >= WHITE && s->white >= 2 && !s->grey && 4 * s->dark_inside <= s->dark;
}

static enum label_look decide(const struct label_image *m, const struct label_facts *f, const struct sums *s)
{
    if (!f->values) return LOOK_EMPTY;
    if (f->values >= MANY && 20 * s->grey >= 9 * s->pixels && 2 * s->inside < s->pixels &&
        10 * s->slope >= 3 * s->pixels)
        return LOOK_IMAGE;
    if (m->lossy) return LOOK_SOFT;
    if (f->values == 1) return LOOK_ONE;
    if (is_noisy_white(m, f, s)) return LOOK_SOFT;
    if (f->largest < SMOOTHED || s->thin < THIN) return LOOK_VALUES;
    if (20 * s->middle <= s->pixels) return LOOK_SOFT;
    return 3 * s->thin >= f->values ? LOOK_SOFT_VALUES : LOOK_VALUES; /* a few of many instances may be thin */
}

void label_look(const struct label_image *m, int ignore, struct label_facts *out)
{
    struct tally *t = mem_alloc(65536 * sizeof *t);
    memset(out, 0, sizeof *out);
    tally_image(m, t);
    const struct sums s = add_up(t, ignore > 0 ? (uint32_t)ignore : 0, out);
    out->look = decide(m, out, &s);
    if (m->lossy) out->largest = 255; /* an empty mask has dark noise */
    mem_free(t);
}
