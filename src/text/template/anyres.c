/*
 * anyres.c: see anyres.h. Arithmetic in double is that of transformers.
 */
#include "text/template/anyres.h"

#include <math.h>

int anyres_parse(struct anyres *a, const struct value *config, struct error *e)
{
    static const char key[] = "image_grid_pinpoints";
    static const int32_t usual[][2] = {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
    const struct value *list = value_get(config, key);
    if (!list || list->kind == VALUE_NULL) {
        a->n = COUNT(usual);
        memcpy(a->sizes, usual, sizeof usual);
        return PL_OK;
    }
    TRY(value_as_list(list, key, e));
    if (!list->count || list->count > ANYRES_MOST)
        return error_set(e, PL_USAGE, "%s has %u sizes, expected 1 to %d", key, list->count, ANYRES_MOST);
    a->n = list->count;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct value *size = value_at(list, i);
        TRY(value_as_list(size, key, e));
        for (uint32_t k = 0; k < 2; k++) {
            int64_t x = 0;
            if (size->count != 2) return error_set(e, PL_USAGE, "%s: expected pairs of height and width", key);
            TRY(value_as_int(value_at(size, k), key, &x, e));
            if (x < 1 || x > 1 << 14) return error_set(e, PL_USAGE, "%s: %lld pixels", key, (long long)x);
            a->sizes[i][k] = (int32_t)x;
        }
    }
    return PL_OK;
}

bool anyres_equal(const struct anyres *a, const struct anyres *b)
{
    return a->n == b->n && !memcmp(a->sizes, b->sizes, a->n * sizeof *a->sizes);
}

uint32_t anyres_choose(const struct anyres *a, uint32_t width, uint32_t height)
{
    int64_t most = 0, least = INT64_MAX;
    uint32_t best = 0;
    for (uint32_t i = 0; i < a->n; i++) {
        const double w = a->sizes[i][1], h = a->sizes[i][0], scale = fmin(w / width, h / height);
        const int64_t covered = min_i64((int64_t)(width * scale) * (int64_t)(height * scale), (int64_t)width * height),
                      wasted = (int64_t)a->sizes[i][0] * a->sizes[i][1] - covered;
        if (covered < most || (covered == most && wasted >= least)) continue;
        most = covered;
        least = wasted;
        best = i;
    }
    return best;
}

/* Returns the features that an edge has without padding, which is as wide on both sides. */
static int32_t without_padding(int32_t all, double part)
{
    const int32_t kept = (int32_t)(nearbyint(part * 1e7) / 1e7);
    return all - (all - kept) / 2 * 2;
}

static struct anyres_shape tiles_of(const struct anyres *a, uint32_t i)
{
    return (struct anyres_shape){.size = (int32_t)i, .rows = a->sizes[i][0] / a->tile,
                                 .columns = a->sizes[i][1] / a->tile};
}

struct anyres_shape anyres_shape_of(const struct anyres *a, uint32_t width, uint32_t height)
{
    struct anyres_shape s = tiles_of(a, anyres_choose(a, width, height));
    s.height = s.rows * a->side;
    s.width = s.columns * a->side;
    if ((double)width / height > (double)s.width / s.height)
        s.height = without_padding(s.height, height * ((double)s.width / width));
    else s.width = without_padding(s.width, width * ((double)s.height / height));
    return s;
}

void anyres_put(const struct anyres *a, struct anyres_shape s, int32_t *ids)
{
    for (int32_t i = 0; i < a->side * a->side; i++) *ids++ = a->token;
    const int32_t map = ANYRES_FIRST - 2 * s.size;
    for (int32_t y = 0; y < s.height; y++)
        for (int32_t x = 0; x <= s.width; x++) *ids++ = x < s.width ? map : map - 1;
}

bool anyres_find(const struct anyres *a, const int32_t *ids, int64_t n, struct anyres_shape *out)
{
    const int64_t whole = (int64_t)a->side * a->side;
    int64_t at = whole;
    for (int64_t i = 0; i < whole; i++)
        if (i >= n || ids[i] != a->token) return false;
    if (at >= n || !anyres_is_map(ids[at])) return false;
    const uint32_t size = (uint32_t)(ANYRES_FIRST - ids[at]) / 2;
    const int32_t map = ANYRES_FIRST - 2 * (int32_t)size;
    if (size >= a->n) return false;
    *out = tiles_of(a, size);
    while (at < n && ids[at] == map) at++;
    out->width = (int32_t)(at - whole);
    for (at = whole; at + out->width < n && ids[at + out->width] == map - 1; at += out->width + 1) {
        for (int64_t x = 0; x < out->width; x++)
            if (ids[at + x] != map) return false;
        out->height++;
    }
    return out->height <= out->rows * a->side && out->width <= out->columns * a->side;
}

void anyres_index(const struct anyres *a, struct anyres_shape s, int32_t first, int32_t *index)
{
    const int32_t side = a->side, whole = side * side, top = (s.rows * side - s.height) / 2,
                  left = (s.columns * side - s.width) / 2;
    for (int32_t i = 0; i < whole; i++) *index++ = first + i;
    for (int32_t i = 0; i < s.height; i++, *index++ = 0)
        for (int32_t k = 0; k < s.width; k++) {
            const int32_t y = top + i, x = left + k, tile = y / side * s.columns + x / side;
            *index++ = first + (1 + tile) * whole + y % side * side + x % side;
        }
}
