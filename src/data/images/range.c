/*
 * range.c: see range.h.
 *
 * Samples of 16 bits and pixels of 8-bit RGB share one buffer. Grey grows from 2 to 3 bytes a
 * pixel, so it is converted from the last pixel to the first; colour shrinks from 6 to 3 and is
 * converted in order. Counts of values follow the pixels.
 */
#include "data/images/range.h"

#include "base/base.h"

static const double full[2] = {0, RANGE_VALUES - 1};

/* --- percentiles ------------------------------------------------------------------------------ */

/* Returns the smallest value above 0 that at least q percent of them do not exceed. */
static uint32_t percentile(const uint64_t *count, uint64_t total, double q)
{
    const double want = q / 100 * (double)total;
    uint64_t seen = 0;
    uint32_t last = 0;
    for (uint32_t v = 1; v < RANGE_VALUES; v++) {
        if (!count[v]) continue;
        last = v;
        seen += count[v];
        if ((double)seen >= want) return v;
    }
    return last;
}

bool range_percentiles(const uint64_t count[RANGE_VALUES], const struct pixel_range *r, double out[2])
{
    const bool standard = r->percentiles[0] == 0 && r->percentiles[1] == 0;
    uint64_t total = 0;
    for (uint32_t v = 1; v < RANGE_VALUES; v++) total += count[v];
    if (!total) return false;
    out[0] = percentile(count, total, standard ? 0.5 : r->percentiles[0]);
    out[1] = percentile(count, total, standard ? 99.5 : r->percentiles[1]);
    if (out[0] < out[1]) return true;
    out[0] = count[0] ? 0 : percentile(count, total, 0);
    out[1] = percentile(count, total, 100);
    if (out[0] == out[1]) out[0] = 0; /* one value */
    return true;
}

struct pixel_range range_choose(const uint64_t count[RANGE_VALUES], const struct pixel_range *r)
{
    struct pixel_range out = *r;
    out.kind = RANGE_FULL;
    if (range_percentiles(count, r, out.window) && out.window[1] - out.window[0] < RANGE_VALUES / 2)
        out.kind = RANGE_WINDOW;
    return out;
}

void range_count(const uint16_t *at, size_t n, uint64_t count[RANGE_VALUES])
{
    for (size_t i = 0; i < n; i++) count[at[i]]++;
}

/* --- decoding --------------------------------------------------------------------------------- */

/* Reports whether libpng's own rounding to 8 bits is the whole conversion. */
static bool plain(const struct png_header *h, const struct pixel_range *r)
{
    return h->depth != 16 || r->kind == RANGE_FULL;
}
static bool counts(const struct pixel_range *r) { return r->kind != RANGE_WINDOW; }

/* Returns where the counts begin. */
static size_t pixels_end(const struct png_header *h)
{
    size_t samples = png_bytes(h, PNG_AS_SAMPLES), rgb = png_bytes(h, PNG_AS_RGB);
    return (size_t)align_up(samples > rgb ? samples : rgb, sizeof(uint64_t));
}

size_t range_bytes(const struct png_header *h, const struct pixel_range *r)
{
    if (plain(h, r)) return png_bytes(h, PNG_AS_RGB);
    return pixels_end(h) + (counts(r) ? RANGE_VALUES * sizeof(uint64_t) : 0);
}

void range_window(const uint16_t *at, size_t n, const struct pixel_range *r, uint64_t *count, double window[2])
{
    memcpy(window, r->kind == RANGE_WINDOW ? r->window : full, sizeof full);
    if (!counts(r) || r->kind == RANGE_FULL) return;
    memset(count, 0, RANGE_VALUES * sizeof *count);
    range_count(at, n, count);
    if (r->kind == RANGE_PERCENTILES) {
        double found[2];
        if (range_percentiles(count, r, found)) memcpy(window, found, sizeof found);
        return;
    }
    struct pixel_range chosen = range_choose(count, r);
    if (chosen.kind == RANGE_WINDOW) memcpy(window, chosen.window, sizeof chosen.window);
}

static void convert(struct png_pixels *p, const double window[2])
{
    const uint16_t *from = p->at;
    uint8_t *to = p->at;
    size_t n = (size_t)p->width * p->height;
    if (p->channels == 3)
        for (size_t i = 0; i < 3 * n; i++) to[i] = range_map(from[i], window);
    else
        for (size_t i = n; i-- > 0;) to[3 * i] = to[3 * i + 1] = to[3 * i + 2] = range_map(from[i], window);
    p->channels = 3;
    p->depth = 8;
    p->bytes = 3 * n;
}

int range_decode(const void *bytes, size_t n, const struct pixel_range *r, void *to, size_t room,
                 struct png_pixels *out, double used[2], struct error *e)
{
    struct png_header h;
    double window[2] = {0};
    memset(out, 0, sizeof *out);
    if (used) used[0] = used[1] = 0;
    if (png_peek(bytes, n, &h, e)) return e->code;
    if (used && h.depth == 16) memcpy(used, full, sizeof full);
    if (plain(&h, r)) return png_decode(bytes, n, PNG_AS_RGB, 0, to, room, out, e);
    size_t need = range_bytes(&h, r);
    if ((uint64_t)h.width * h.height > PNG_MAX_PIXELS)
        return error_set(e, PL_USAGE, "the PNG has %ux%u pixels; at most %d pixels are allowed", h.width, h.height,
                         PNG_MAX_PIXELS);
    if (to && room < need)
        return error_set(e, PL_USAGE, "a PNG of %ux%u pixels needs %zu bytes; the buffer has %zu", h.width, h.height,
                         need, room);
    char *at = to ? to : mem_alloc(need);
    if (png_decode(bytes, n, PNG_AS_SAMPLES, 0, at, need, out, e)) {
        if (!to) mem_free(at);
        return e->code;
    }
    range_window(out->at, (size_t)out->width * out->height * out->channels, r,
                 (uint64_t *)(void *)(at + pixels_end(&h)), window);
    convert(out, window);
    if (used) memcpy(used, window, sizeof window);
    return PL_OK;
}

const char *range_print(const struct pixel_range *r, char out[96])
{
    switch (r->kind) {
    case RANGE_AUTO: snprintf(out, 96, "auto"); break;
    case RANGE_FULL: snprintf(out, 96, "full (0 to %d)", RANGE_VALUES - 1); break;
    case RANGE_PERCENTILES:
        snprintf(out, 96, "percentiles %g and %g of each image", r->percentiles[1] > 0 ? r->percentiles[0] : 0.5,
                 r->percentiles[1] > 0 ? r->percentiles[1] : 99.5);
        break;
    case RANGE_WINDOW: snprintf(out, 96, "window %.10g to %.10g", r->window[0], r->window[1]); break;
    }
    return out;
}
