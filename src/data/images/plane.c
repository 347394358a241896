/*
 * plane.c: see plane.h.
 */
#include "data/images/plane.h"

#include <math.h>

#include "base/base.h"
#include "base/dtype.h"

/* One row per type: X(enum, name, C type, to double). */
#define PLANE_TYPES_DO(X)                                                                                              \
    X(PLANE_U8, "uint8", uint8_t, (double)) X(PLANE_I8, "int8", int8_t, (double))                                      \
    X(PLANE_U16, "uint16", uint16_t, (double)) X(PLANE_I16, "int16", int16_t, (double))                                \
    X(PLANE_U32, "uint32", uint32_t, (double)) X(PLANE_I32, "int32", int32_t, (double))                                \
    X(PLANE_U64, "uint64", uint64_t, (double)) X(PLANE_I64, "int64", int64_t, (double))                                \
    X(PLANE_F16, "float16", uint16_t, f16_to_f32) X(PLANE_F32, "float32", float, (double))                             \
    X(PLANE_F64, "float64", double, (double))

size_t plane_type_bytes(enum plane_type t)
{
#define BYTES(type, name, c, to) [type] = sizeof(c),
    static const size_t bytes[] = {PLANE_TYPES_DO(BYTES)};
    return bytes[t];
}

const char *plane_type_name(enum plane_type t)
{
#define NAME(type, name, c, to) [type] = name,
    static const char *const names[] = {PLANE_TYPES_DO(NAME)};
    return names[t];
}

static double stored(const struct plane *p, size_t i)
{
    switch (p->type) {
#define READ(t, name, c, to) case t: return to(((const c *)p->at)[i]);
        PLANE_TYPES_DO(READ)
    case PLANE_TYPES: break;
    }
    return 0;
}

double plane_value(const struct plane *p, size_t i) { return p->slope * stored(p, i) + p->inter; }

void plane_swap_bytes(struct plane *p)
{
    const size_t bytes = plane_type_bytes(p->type), n = plane_bytes(p);
    uint8_t *at = p->at;
    for (size_t i = 0; i < n && bytes > 1; i += bytes)
        for (size_t k = 0; k < bytes / 2; k++) {
            uint8_t x = at[i + k];
            at[i + k] = at[i + bytes - 1 - k];
            at[i + bytes - 1 - k] = x;
        }
}

void plane_to_rgb(const struct plane *p, const double window[2], int channel, uint8_t *rgb)
{
    const bool pixels = plane_is_pixels(p);
    const size_t n = (size_t)p->h * p->w * p->channels;
    for (size_t i = 0; i < n; i++) {
        const uint8_t v = pixels ? ((const uint8_t *)p->at)[i] : range_map(plane_value(p, i), window);
        if (p->channels == 3) rgb[i] = v;
        else if (channel >= 0) rgb[3 * i + (size_t)channel] = v;
        else rgb[3 * i] = rgb[3 * i + 1] = rgb[3 * i + 2] = v;
    }
}

int plane_to_labels(struct plane *p, int *bytes, struct error *e)
{
    const size_t n = (size_t)p->h * p->w;
    *bytes = plane_type_bytes(p->type) == 1 ? 1 : 2;
    if (p->channels != 1) return error_set(e, PL_USAGE, "it is in colour, and a mask was expected; is it an image?");
    if (plane_is_pixels(p) || (p->type == PLANE_U16 && p->slope == 1 && p->inter == 0)) return PL_OK;
    for (size_t i = 0; i < n; i++) {
        const double v = plane_value(p, i);
        if (!(v >= 0 && v <= (*bytes == 1 ? 255 : 65535)) || v != floor(v))
            return error_set(e, PL_USAGE, "it has the value %g, and a mask was expected: whole numbers from 0 to 65535",
                             v);
        if (*bytes == 1) ((uint8_t *)p->at)[i] = (uint8_t)v;
        else ((uint16_t *)p->at)[i] = (uint16_t)v;
    }
    return PL_OK;
}

/* --- windows ---------------------------------------------------------------------------------- */

/* Returns an integer that orders as the value does. */
static uint64_t key_of(double v)
{
    uint64_t k;
    memcpy(&k, &v, sizeof k);
    return k >> 63 ? ~k : k | 1ull << 63;
}

static double value_of(uint64_t key)
{
    const uint64_t k = key >> 63 ? key & ~(1ull << 63) : ~key;
    double v;
    memcpy(&v, &k, sizeof v);
    return v;
}

/* The finite values of a plane. `ground`: those at the bottom, the smallest if it is below 0, else
 * 0. */
struct facts {
    double least, most;
    uint64_t n, ground;
};

/* Counts the values by the first 16 bits of their keys as well. */
static struct facts find_facts(const struct plane *p, uint64_t *count)
{
    struct facts f = {.least = INFINITY, .most = -INFINITY};
    uint64_t zeros = 0, smallest = 0;
    memset(count, 0, RANGE_VALUES * sizeof *count);
    for (size_t i = 0, n = (size_t)p->h * p->w * p->channels; i < n; i++) {
        const double v = plane_value(p, i);
        if (!isfinite(v)) continue;
        if (v < f.least) f.least = v, smallest = 0;
        if (v > f.most) f.most = v;
        smallest += v == f.least;
        zeros += v == 0;
        count[key_of(v) >> 48]++;
        f.n++;
    }
    f.ground = f.least < 0 ? smallest : zeros;
    return f;
}

/* Returns the value of a rank, from 0, among the finite values: its key is found 16 bits at a
 * time. `first` has the counts of the first 16 bits of all keys, `count` is scratch. The last 16
 * bits of a number of up to 32 bits are 0, and so all 1 in the key of a negative one. */
static double find_rank(const struct plane *p, uint64_t rank, const uint64_t *first, uint64_t *count)
{
    const int last = plane_type_bytes(p->type) <= 4 && p->slope == 1 && p->inter == 0 ? 16 : 0;
    uint64_t key = 0;
    for (int shift = 48; shift >= last; shift -= 16) {
        const uint64_t *counts = shift == 48 ? first : count;
        if (shift < 48) memset(count, 0, RANGE_VALUES * sizeof *count);
        for (size_t i = 0, n = shift < 48 ? (size_t)p->h * p->w * p->channels : 0; i < n; i++) {
            const double v = plane_value(p, i);
            const uint64_t k = key_of(v);
            if (isfinite(v) && k >> (shift + 16) == key) count[k >> shift & (RANGE_VALUES - 1)]++;
        }
        uint64_t digit = 0;
        while (rank >= counts[digit]) rank -= counts[digit++];
        key = key << 16 | digit;
    }
    key <<= last;
    return value_of(key >> 63 ? key : key | ((1ull << last) - 1));
}

/* Returns the smallest of the values above the ground that at least q percent of these do not
 * exceed. */
static double percentile(const struct plane *p, const struct facts *f, double q, uint64_t *counts)
{
    const double want = ceil(q / 100 * (double)(f->n - f->ground));
    return find_rank(p, f->ground + (want < 1 ? 0 : (uint64_t)want - 1), counts, counts + RANGE_VALUES);
}

static bool percentiles(const struct plane *p, const struct facts *f, const struct pixel_range *r, uint64_t *counts,
                        double out[2])
{
    const bool standard = r->percentiles[0] == 0 && r->percentiles[1] == 0;
    if (f->n == f->ground) return false;
    out[0] = percentile(p, f, standard ? 0.5 : r->percentiles[0], counts);
    out[1] = percentile(p, f, standard ? 99.5 : r->percentiles[1], counts);
    if (out[0] < out[1]) return true;
    out[0] = f->least, out[1] = f->most;
    if (out[0] == out[1]) out[0] = f->least < 0 ? f->least : 0; /* one value */
    return out[0] < out[1];
}

static bool is_deep(const struct plane *p) { return p->type == PLANE_U16 && p->slope == 1 && p->inter == 0; }

size_t plane_counts(const struct plane *p)
{
    return plane_is_pixels(p) ? 0 : (is_deep(p) ? 1 : 2) * RANGE_VALUES * sizeof(uint64_t);
}

void plane_window(const struct plane *p, const struct pixel_range *r, uint64_t *counts, double window[2])
{
    window[0] = 0, window[1] = 255;
    if (plane_is_pixels(p)) return;
    if (is_deep(p)) {
        range_window(p->at, (size_t)p->h * p->w * p->channels, r, counts, window);
        return;
    }
    if (r->kind == RANGE_WINDOW) {
        memcpy(window, r->window, sizeof r->window);
        return;
    }
    const struct facts f = find_facts(p, counts);
    if (r->kind != RANGE_FULL && percentiles(p, &f, r, counts, window)) return;
    if (f.n && f.least < f.most) window[0] = f.least, window[1] = f.most;
    else window[0] = 0, window[1] = 255;
}

size_t plane_take(const struct plane *p, size_t room, double *to)
{
    const size_t n = (size_t)p->h * p->w * p->channels, step = (n + room - 1) / room;
    size_t taken = 0;
    for (size_t i = 0; i < n; i += step) {
        const double v = plane_value(p, i);
        if (isfinite(v)) to[taken++] = v;
    }
    return taken;
}
