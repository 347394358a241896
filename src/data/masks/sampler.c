/*
 * sampler.c: filters, then one function per strategy over the remaining candidates (see
 * mask.h). Random decisions use ranks: each candidate has a random number, drawn from the
 * sample's stream by the mask's index in the file, and the lowest numbers win. So a filter that
 * drops some masks does not reshuffle the others.
 */
#include "data/masks/mask.h"

#include <math.h>

#include "base/random.h"

enum { FEATURES = 4, ROUNDS = 10, BINS = 4 };

struct candidate {
    uint64_t rank;  /* uniform */
    double score;   /* the highest score wins; ties are decided by rank */
    uint32_t index; /* into masks */
    uint32_t group;
    float at[FEATURES];
};

struct choice {
    const struct sampler_options *o;
    const struct mask *masks;
    uint32_t h, w;
    struct candidate *c;
    uint32_t n;
    float (*centre)[FEATURES]; /* of the groups of `diverse` */
    uint32_t *size;
    uint32_t *chosen, taken;
};

size_t sampler_bytes(uint32_t max_records, uint32_t max_masks)
{
    return max_records * sizeof(struct candidate) + max_masks * (FEATURES * sizeof(float) + sizeof(uint32_t));
}

/* --- filters ------------------------------------------------------------------------------ */

/* Returns the area from the file, or else that of the box. */
static double area_of(const struct mask *m)
{
    return m->area >= 0 ? m->area : (double)m->box[2] * m->box[3];
}

/* Returns an unknown area passes: a mask that turns out to be empty is dropped when it is
 * rasterised. */
static bool area_passes(const struct sampler_options *o, const struct mask *m, double pixels)
{
    const double share = area_of(m) / pixels, most = o->max_area > 0 ? o->max_area : 1;
    const bool unknown = m->area < 0 && !(m->box[2] > 0 && m->box[3] > 0);
    return unknown || (share > 0 && share >= o->min_area && share <= most);
}

static bool passes(const struct sampler_options *o, const struct mask *m, double pixels)
{
    if (m->crowd && !o->crowds) return false;
    return m->predicted_iou >= o->min_iou && m->stability >= o->min_stability && area_passes(o, m, pixels);
}

/* --- order ------------------------------------------------------------------------------ */

static bool before(const struct candidate *a, const struct candidate *b)
{
    if (a->score != b->score) return a->score > b->score;
    return a->rank != b->rank ? a->rank < b->rank : a->index < b->index;
}

/* Moves the k best to the front, unordered, with a heap of the k best so far, worst on top. */
static void sift(struct candidate *c, uint32_t i, uint32_t n)
{
    struct candidate x = c[i];
    for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&c[child], &c[child + 1])) child++;
        if (!before(&x, &c[child])) break;
        c[i] = c[child];
    }
    c[i] = x;
}

static void select_best(struct candidate *c, uint32_t n, uint32_t k)
{
    if (!k || k >= n) return;
    for (uint32_t i = k / 2; i-- > 0;) sift(c, i, k);
    for (uint32_t i = k; i < n; i++)
        if (before(&c[i], &c[0])) {
            struct candidate out = c[0];
            c[0] = c[i];
            c[i] = out;
            sift(c, 0, k);
        }
}

/* Chooses the k best of the first n candidates and moves the others to the front. */
static void choose_best(struct choice *s, uint32_t n, uint32_t k)
{
    select_best(s->c, n, k);
    for (uint32_t i = 0; i < k; i++) s->chosen[s->taken++] = s->c[i].index;
    memmove(s->c, s->c + k, (s->n - k) * sizeof *s->c);
    s->n -= k;
}

static void choose_rest(struct choice *s)
{
    uint32_t left = s->o->max_masks - s->taken;
    for (uint32_t i = 0; i < s->n; i++) s->c[i].score = 0;
    choose_best(s, s->n, left < s->n ? left : s->n);
}

/* Moves the candidates of one group to the front; returns their number. */
static uint32_t gather(struct choice *s, uint32_t group)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->c[i].group == group) {
            struct candidate x = s->c[n];
            s->c[n++] = s->c[i];
            s->c[i] = x;
        }
    return n;
}

/* --- size_balanced ---------------------------------------------------------------------- */

/* Chooses from four bins between the smallest and the largest logarithm of the area. The largest
 * mask belongs to the last bin; if all areas are equal there is only one bin. Masks that a bin
 * lacks are chosen from all bins. */
static void choose_balanced(struct choice *s)
{
    double low = INFINITY, high = -INFINITY;
    for (uint32_t i = 0; i < s->n; i++) {
        double x = log(area_of(&s->masks[s->c[i].index]) + 1);
        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        double x = log(area_of(&s->masks[s->c[i].index]) + 1);
        double bin = high > low ? floor((x - low) / (high - low) * BINS) : 0;
        s->c[i].group = bin < BINS - 1 ? (uint32_t)bin : BINS - 1;
        s->c[i].score = 0;
    }
    for (uint32_t b = 0; b < BINS; b++) {
        uint32_t n = gather(s, b), k = s->o->max_masks / BINS;
        choose_best(s, n, k < n ? k : n);
    }
    choose_rest(s);
}

/* --- diverse ------------------------------------------------------------------------------ */

static void features(struct choice *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        const struct mask *m = &s->masks[s->c[i].index];
        float *f = s->c[i].at;
        f[0] = (m->box[0] + m->box[2] / 2) / (float)s->w;
        f[1] = (m->box[1] + m->box[3] / 2) / (float)s->h;
        f[2] = (float)(log(area_of(m) + 1) / 15);
        f[3] = m->box[3] > 0 ? m->box[2] / m->box[3] : 1;
    }
}

static float distance(const float *a, const float *b)
{
    float d = 0;
    for (int k = 0; k < FEATURES; k++) d += (a[k] - b[k]) * (a[k] - b[k]);
    return d;
}

/* Chooses the first centres: the candidate of the lowest rank, then each time the candidate
 * farthest from all centres so far. They are well separated, and the same for the same ranks. */
static void first_centres(struct choice *s, uint32_t groups)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < s->n; i++)
        if (s->c[i].rank < s->c[best].rank) best = i;
    for (uint32_t i = 0; i < s->n; i++) s->c[i].score = INFINITY;
    for (uint32_t g = 0; g < groups; g++) {
        memcpy(s->centre[g], s->c[best].at, sizeof s->centre[g]);
        for (uint32_t i = 0; i < s->n; i++) {
            float d = distance(s->c[i].at, s->centre[g]);
            if (d < s->c[i].score) s->c[i].score = d, s->c[i].group = g;
        }
        for (uint32_t i = best = 0; i < s->n; i++)
            if (s->c[i].score > s->c[best].score) best = i;
    }
}

static void assign(struct choice *s, uint32_t groups)
{
    for (uint32_t i = 0; i < s->n; i++) {
        float nearest = INFINITY;
        for (uint32_t g = 0; g < groups; g++) {
            float d = distance(s->c[i].at, s->centre[g]);
            if (d < nearest) nearest = d, s->c[i].group = g;
        }
    }
}

/* Moves the centres. An empty group keeps its centre. */
static void move_centres(struct choice *s, uint32_t groups)
{
    memset(s->size, 0, groups * sizeof *s->size);
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t g = s->c[i].group;
        for (int k = 0; k < FEATURES; k++)
            s->centre[g][k] = s->size[g] ? s->centre[g][k] + s->c[i].at[k] : s->c[i].at[k];
        s->size[g]++;
    }
    for (uint32_t g = 0; g < groups; g++)
        for (int k = 0; k < FEATURES && s->size[g]; k++) s->centre[g][k] /= (float)s->size[g];
}

static void choose_diverse(struct choice *s)
{
    uint32_t groups = s->o->max_masks;
    features(s);
    first_centres(s, groups);
    for (int round = 0; round < ROUNDS; round++) {
        move_centres(s, groups);
        assign(s, groups);
    }
    for (uint32_t i = 0; i < s->n; i++) s->c[i].score = s->masks[s->c[i].index].predicted_iou;
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t n = gather(s, g);
        if (n) choose_best(s, n, 1);
    }
    choose_rest(s);
}

/* --- choosing ------------------------------------------------------------------------------ */

static void sort_indices(uint32_t *a, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) { /* only a few dozen */
        uint32_t x = a[i], k = i;
        for (; k && a[k - 1] > x; k--) a[k] = a[k - 1];
        a[k] = x;
    }
}

uint32_t sampler_choose(const struct sampler_options *o, const struct mask *masks, uint32_t n, uint32_t h, uint32_t w,
                        uint64_t seed, uint64_t epoch, uint64_t position, void *scratch, uint32_t *chosen)
{
    struct choice s = {.o = o, .masks = masks, .h = h, .w = w, .c = scratch, .chosen = chosen};
    uint64_t key = random_bits(random_bits(random_key(seed, "masks"), epoch), position);
    if (!o->max_masks) return 0;
    for (uint32_t i = 0; i < n; i++)
        if (passes(o, &masks[i], (double)h * w))
            s.c[s.n++] = (struct candidate){.rank = random_bits(key, i), .index = i};
    s.centre = (float(*)[FEATURES])(s.c + s.n);
    s.size = (uint32_t *)(s.centre + o->max_masks);
    if (s.n <= o->max_masks || o->strategy == SAMPLE_ALL) {
        for (uint32_t i = 0; i < s.n && i < o->max_masks; i++) chosen[s.taken++] = s.c[i].index;
        return s.taken;
    }
    switch (o->strategy) {
    case SAMPLE_DIVERSE: choose_diverse(&s); break;
    case SAMPLE_SIZE_BALANCED: choose_balanced(&s); break;
    case SAMPLE_QUALITY:
        for (uint32_t i = 0; i < s.n; i++) s.c[i].score = masks[s.c[i].index].predicted_iou;
        choose_best(&s, s.n, o->max_masks);
        break;
    default: choose_rest(&s);
    }
    sort_indices(chosen, s.taken);
    return s.taken;
}
