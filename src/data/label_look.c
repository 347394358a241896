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

#include "data/label.h"

enum {
    SMOOTHED = 32,    /* the least largest value of a smoothed mask */
    THIN = 3,         /* the least number of thin values of a smoothed mask */
    MANY = 32,        /* the least number of different values of a photograph */
};

struct tally {
    uint32_t count, inside, slope;
};

static uint32_t value_at(const struct label_image *m, uint32_t x, uint32_t y)
{
    const size_t i = (size_t)y * m->w + x;
    return m->bytes == 1 ? ((const uint8_t *)m->pixels)[i] : ((const uint16_t *)m->pixels)[i];
}

static bool between(uint32_t a, uint32_t v, uint32_t b) { return (a < v && v < b) || (b < v && v < a); }

/* Beyond the image's edge is the value of the edge. */
static void tally_pixel(const struct label_image *m, uint32_t x, uint32_t y, uint32_t v, struct tally *t)
{
    const uint32_t l = x ? x - 1 : x, r = x + 1 < m->w ? x + 1 : x, u = y ? y - 1 : y, d = y + 1 < m->h ? y + 1 : y;
    const uint32_t left = value_at(m, l, y), right = value_at(m, r, y), up = value_at(m, x, u), down = value_at(m, x, d);
    t->count++;
    if (left == v && right == v && up == v && down == v) t->inside++;
    else if (between(left, v, right) || between(up, v, down) || between(value_at(m, l, u), v, value_at(m, r, d)) || between(value_at(m, r, u), v, value_at(m, l, d))) t->slope++;
}

/* Sums over the values above 0. */
struct sums {
    uint64_t pixels, inside, slope;
    uint64_t middle; /* pixels of areas whose value is neither dark nor bright */
    uint32_t thin;   /* number of thin values */
};

static bool dark_or_bright(uint32_t v, uint32_t largest) { return 8 * (uint64_t)v <= largest || 4 * (uint64_t)v >= 3 * (uint64_t)largest; }

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
        if (dark_or_bright(v, f->largest)) continue;
        f->two_ends = false;
        if (!thin) s.middle += t[v].count;
    }
    return s;
}

static enum label_look decide(const struct label_image *m, const struct label_facts *f, const struct sums *s)
{
    const uint64_t all = (uint64_t)m->w * m->h;
    if (!f->values) return LOOK_EMPTY;
    if (f->values >= MANY && 2 * s->inside < s->pixels && 10 * s->slope >= 3 * s->pixels && 4 * s->pixels >= all) return LOOK_IMAGE;
    if (m->jpeg) return LOOK_SOFT;
    if (f->values == 1) return LOOK_ONE;
    if (f->largest < SMOOTHED || s->thin < THIN) return LOOK_VALUES;
    return 20 * s->middle > s->pixels ? LOOK_SOFT_VALUES : LOOK_SOFT;
}

void label_look(const struct label_image *m, int ignore, struct label_facts *out)
{
    struct tally *t = mem_alloc(65536 * sizeof *t);
    memset(out, 0, sizeof *out);
    for (uint32_t y = 0; y < m->h; y++)
        for (uint32_t x = 0; x < m->w; x++) {
            uint32_t v = value_at(m, x, y);
            if (v) tally_pixel(m, x, y, v, &t[v]);
            else t[0].count++;
        }
    const struct sums s = add_up(t, ignore > 0 ? (uint32_t)ignore : 0, out);
    out->look = decide(m, out, &s);
    if (m->jpeg) out->largest = 255; /* an empty mask has dark noise */
    mem_free(t);
}
