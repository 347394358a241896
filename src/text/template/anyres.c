/*
 * anyres.c: see anyres.h. Arithmetic in double is that of transformers.
 */
#include "text/template/anyres.h"

#include <math.h>

/* Sets the sizes of the classes' defaults. */
static void usual_sizes(struct anyres *a, bool onevision)
{
    static const int32_t next[][2] = {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
    enum { TILE = 384, TILES = 6 };
    a->n = onevision ? TILES * TILES : COUNT(next);
    if (!onevision) memcpy(a->sizes, next, sizeof next);
    for (int32_t i = 0; i < TILES * TILES && onevision; i++) {
        a->sizes[i][0] = (i / TILES + 1) * TILE;
        a->sizes[i][1] = (i % TILES + 1) * TILE;
    }
}

int anyres_parse(struct anyres *a, const struct value *config, bool onevision, struct error *e)
{
    static const char key[] = "image_grid_pinpoints";
    const struct value *list = value_get(config, key);
    if (!list || list->kind == VALUE_NULL) {
        usual_sizes(a, onevision);
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

/* Returns how often a number goes into n: Python's n // of. */
static int32_t whole_times(int32_t n, double of) { return (int32_t)nearbyint((n - fmod(n, of)) / of); }

/* Sets the size of a map that is resized to the limit: its area counts, with a tenth to spare. */
static void limit(const struct anyres *a, struct anyres_shape *s)
{
    s->to_height = s->height;
    s->to_width = s->width;
    if (!a->most) return;
    const double ratio = sqrt((double)(s->height * s->width) / ((double)a->most * a->side * a->side));
    if (!(ratio > 1.1)) return;
    s->to_height = whole_times(s->height, ratio);
    s->to_width = whole_times(s->width, ratio);
}

struct anyres_shape anyres_shape_of(const struct anyres *a, uint32_t width, uint32_t height)
{
    struct anyres_shape s = tiles_of(a, anyres_choose(a, width, height));
    s.height = s.rows * a->side;
    s.width = s.columns * a->side;
    if ((double)width / height > (double)s.width / s.height)
        s.height = without_padding(s.height, height * ((double)s.width / width));
    else s.width = without_padding(s.width, width * ((double)s.height / height));
    limit(a, &s);
    return s;
}

int32_t anyres_tokens(const struct anyres *a, struct anyres_shape s)
{
    if (s.frames) return s.frames * a->pooled * a->pooled + 1;
    return a->side * a->side + (s.rows ? s.to_height * (s.to_width + 1) : 1);
}

/* --- ids -------------------------------------------------------------------------------------- */

/* Returns the id of the features of an image's map: its size, and what is padding on one side of
 * it, above or on the left. */
static int32_t map_id(const struct anyres *a, struct anyres_shape s)
{
    const int32_t above = (s.rows * a->side - s.height) / 2, left = (s.columns * a->side - s.width) / 2;
    return ANYRES_FIRST - 2 * ((s.size * 2 + (above > 0)) * ANYRES_PADDING + (above ? above : left));
}

/* Does the reverse. */
static struct anyres_shape shape_of_id(const struct anyres *a, int32_t id)
{
    const int32_t code = (ANYRES_FIRST - id) / 2, padding = code % ANYRES_PADDING, from = code / ANYRES_PADDING;
    if (from / 2 >= (int32_t)a->n) return (struct anyres_shape){0};
    struct anyres_shape s = tiles_of(a, (uint32_t)(from / 2));
    s.height = s.rows * a->side - (from % 2 ? 2 * padding : 0);
    s.width = s.columns * a->side - (from % 2 ? 0 : 2 * padding);
    if (s.height < 0 || s.width < 0) return (struct anyres_shape){0};
    limit(a, &s);
    return s;
}

static int32_t id_at(const struct anyres *a, struct anyres_shape s, int32_t i)
{
    const int32_t k = i - a->side * a->side;
    if (s.frames) return i + 1 < anyres_tokens(a, s) ? a->video : ANYRES_AFTER_VIDEO;
    if (k < 0) return a->token;
    if (!s.rows) return ANYRES_AFTER_IMAGE;
    return map_id(a, s) - (k % (s.to_width + 1) == s.to_width);
}

int32_t anyres_placeholder(const struct anyres *a, int32_t id)
{
    if (id == ANYRES_AFTER_VIDEO) return a->video;
    return anyres_is_map(id) ? a->token : id;
}

void anyres_put(const struct anyres *a, struct anyres_shape s, int32_t *ids)
{
    for (int32_t i = 0; i < anyres_tokens(a, s); i++) ids[i] = id_at(a, s, i);
}

/* Finds the frames of a video that begins here; 0: it has no whole ones. */
static int32_t frames_at(const struct anyres *a, const int32_t *ids, int64_t n)
{
    int64_t k = 0;
    while (k < n && k < INT32_MAX && ids[k] == a->video) k++;
    return k % (a->pooled * a->pooled) ? 0 : (int32_t)(k / (a->pooled * a->pooled));
}

bool anyres_find(const struct anyres *a, const int32_t *ids, int64_t n, struct anyres_shape *out)
{
    const int64_t whole = (int64_t)a->side * a->side;
    *out = (struct anyres_shape){0};
    if (a->pooled && n && ids[0] == a->video) {
        if (!(out->frames = frames_at(a, ids, n))) return false;
    } else if (n <= whole || !anyres_is_map(ids[whole])) return false;
    else if (ids[whole] > ANYRES_AFTER_IMAGE) {
        *out = shape_of_id(a, ids[whole]);
        if (!out->rows) return false;
    } else if (!a->pooled) return false;
    const int32_t tokens = anyres_tokens(a, *out);
    for (int32_t i = 0; i < tokens; i++)
        if (i >= n || ids[i] != id_at(a, *out, i)) return false;
    return true;
}

/* --- features --------------------------------------------------------------------------------- */

/* Finds, along one axis, the two positions between which position i of `to` lies when `from` of
 * them are resized to it, and the second one's weight: in f32, as PyTorch's bilinear interpolation
 * without align_corners. */
static float between(int32_t from, int32_t to, int32_t i, int32_t at[2])
{
    at[0] = at[1] = i;
    if (from == to) return 0;
    const float place = fmaxf((float)from / (float)to * ((float)i + 0.5f) - 0.5f, 0);
    at[0] = (int32_t)fminf(floorf(place), (float)(from - 1));
    at[1] = at[0] + (at[0] < from - 1);
    return fminf(place - (float)at[0], 1);
}

/* A map of height x width features that is resized, and where they are: in tiles, `columns` of them
 * beside each other, from a feature on that is `top` and `left` in them. */
struct feature_map {
    int32_t height, width, to_height, to_width, columns, top, left, first;
};

static void sum_of(const struct anyres *a, const struct feature_map *m, int32_t y, int32_t x,
                   struct anyres_feature *out)
{
    int32_t rows[2], columns[2];
    const float down = between(m->height, m->to_height, y, rows), right = between(m->width, m->to_width, x, columns);
    for (int k = 0; k < 4; k++) {
        const int32_t v = m->top + rows[k / 2], u = m->left + columns[k % 2],
                      tile = v / a->side * m->columns + u / a->side;
        out->weight[k] = (k / 2 ? down : 1 - down) * (k % 2 ? right : 1 - right);
        out->row[k] = out->weight[k] > 0
                          ? m->first + (tile * a->side + v % a->side) * a->side + u % a->side : -1;
    }
}

void anyres_feature(const struct anyres *a, struct anyres_shape s, int32_t first, int32_t i,
                    struct anyres_feature *out)
{
    const int32_t whole = a->side * a->side, frame = a->pooled * a->pooled, k = i - whole;
    *out = (struct anyres_feature){{0, -1, -1, -1}, {1, 0, 0, 0}}; /* the newline */
    if (s.frames) {
        const struct feature_map m = {a->side, a->side, a->pooled, a->pooled, 1, 0, 0, first + i / frame * whole};
        if (i < s.frames * frame) sum_of(a, &m, i % frame / a->pooled, i % a->pooled, out);
    } else if (k < 0) out->row[0] = first + i;
    else if (s.rows && k % (s.to_width + 1) < s.to_width) {
        const struct feature_map m = {s.height, s.width, s.to_height, s.to_width, s.columns,
                                      (s.rows * a->side - s.height) / 2, (s.columns * a->side - s.width) / 2,
                                      first + whole};
        sum_of(a, &m, k / (s.to_width + 1), k % (s.to_width + 1), out);
    }
}
