/*
 * plane.c: see plane.h.
 */
#include "data/images/plane.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

/* One row per type: X(enum, name, C type). */
#define PLANE_TYPES_DO(X)                                                                                              \
    X(PLANE_U8, "uint8", uint8_t) X(PLANE_I8, "int8", int8_t) X(PLANE_U16, "uint16", uint16_t)                        \
    X(PLANE_I16, "int16", int16_t) X(PLANE_U32, "uint32", uint32_t) X(PLANE_I32, "int32", int32_t)                    \
    X(PLANE_U64, "uint64", uint64_t) X(PLANE_I64, "int64", int64_t) X(PLANE_F32, "float32", float)                    \
    X(PLANE_F64, "float64", double)

size_t plane_type_bytes(enum plane_type t)
{
#define BYTES(type, name, c) [type] = sizeof(c),
    static const size_t bytes[] = {PLANE_TYPES_DO(BYTES)};
    return bytes[t];
}

const char *plane_type_name(enum plane_type t)
{
#define NAME(type, name, c) [type] = name,
    static const char *const names[] = {PLANE_TYPES_DO(NAME)};
    return names[t];
}

static double stored(const struct plane *p, size_t i)
{
    switch (p->type) {
#define READ(t, name, c) case t: return (double)((const c *)p->at)[i];
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
            return error_set(e, PL_USAGE, "it has the value %g, and a mask was expected: whole numbers from 0 to 65535", v);
        if (*bytes == 1) ((uint8_t *)p->at)[i] = (uint8_t)v;
        else ((uint16_t *)p->at)[i] = (uint16_t)v;
    }
    return PL_OK;
}

/* --- percentiles ------------------------------------------------------------------------------ */

void plane_sample_add(struct plane_sample *s, const struct plane *p, size_t room)
{
    const size_t n = (size_t)p->h * p->w * p->channels, step = (n + room - 1) / room;
    if (!s->values.n) s->least = INFINITY, s->most = -INFINITY;
    for (size_t i = 0; i < n; i += step) {
        const double v = plane_value(p, i);
        if (!isfinite(v)) continue;
        if (v < s->least) s->least = v;
        if (v > s->most) s->most = v;
        vec_push(&s->values, v);
    }
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The smallest of n sorted values that at least q percent of them do not exceed. */
static double percentile(const double *v, size_t n, double q)
{
    const double want = ceil(q / 100 * (double)n);
    return v[want < 1 ? 0 : (size_t)want - 1];
}

bool plane_sample_percentiles(struct plane_sample *s, const struct pixel_range *r, double out[2])
{
    const bool standard = r->percentiles[0] == 0 && r->percentiles[1] == 0;
    const double ground = s->least < 0 ? s->least : 0;
    size_t first = 0, n;
    if (!s->values.n) return false;
    qsort(s->values.at, s->values.n, sizeof *s->values.at, compare);
    while (first < s->values.n && s->values.at[first] <= ground) first++;
    n = s->values.n - first;
    if (!n) return false;
    out[0] = percentile(s->values.at + first, n, standard ? 0.5 : r->percentiles[0]);
    out[1] = percentile(s->values.at + first, n, standard ? 99.5 : r->percentiles[1]);
    if (out[0] < out[1]) return true;
    out[0] = s->least, out[1] = s->most;
    if (out[0] == out[1]) out[0] = ground; /* one value */
    return out[0] < out[1];
}

void plane_window(const struct plane *p, const struct pixel_range *r, uint64_t *count, double window[2])
{
    struct plane_sample s = {0};
    window[0] = 0, window[1] = 255;
    if (plane_is_pixels(p)) return;
    if (p->type == PLANE_U16 && p->slope == 1 && p->inter == 0) {
        range_window(p->at, (size_t)p->h * p->w * p->channels, r, count, window);
        return;
    }
    if (r->kind == RANGE_WINDOW) {
        memcpy(window, r->window, sizeof r->window);
        return;
    }
    plane_sample_add(&s, p, (size_t)p->h * p->w * p->channels);
    if ((r->kind == RANGE_FULL || !plane_sample_percentiles(&s, r, window)) && s.values.n && s.least < s.most) window[0] = s.least, window[1] = s.most;
    plane_sample_free(&s);
}

void plane_sample_free(struct plane_sample *s) { vec_free(&s->values); }
