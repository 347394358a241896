/*
 * image_grid.c: see image_grid.h.
 */
#include "models/image_grid.h"

#include <math.h>

/* --- patches ---------------------------------------------------------------------------------- */

/* Visits the features of a frame of h x w of them, window by window: `at` counts visits, `feature`
 * is row * w + column. Without windows the frame is one. */
struct visit {
    int64_t at, feature, window_begin, window_size;
};
typedef void visitor(void *user, const struct visit *v);

static void visit_frame(int64_t h, int64_t w, int64_t window, visitor *see, void *user)
{
    const int64_t dh = window ? window : h, dw = window ? window : w;
    struct visit v = {0};
    for (int64_t y0 = 0; y0 < h; y0 += dh)
        for (int64_t x0 = 0; x0 < w; x0 += dw) {
            const int64_t y1 = min_i64(y0 + dh, h), x1 = min_i64(x0 + dw, w);
            v.window_begin = v.at;
            v.window_size = (y1 - y0) * (x1 - x0);
            for (int64_t y = y0; y < y1; y++)
                for (int64_t x = x0; x < x1; x++, v.at++) {
                    v.feature = y * w + x;
                    see(user, &v);
                }
        }
}

struct laying {
    const struct grid_model *m;
    const struct image_grid *grid;
    const struct grid_row *out;
    int64_t first; /* patch of the frame, in the row */
};

/* Finds the entries of the table around a position, and their weights: bilinear, with the corners
 * of image and table on each other. In f32, as published. */
static void corners_of(const struct grid_model *m, const struct image_grid *g, int64_t y, int64_t x, int32_t corner[4],
                       float weight[4])
{
    const int64_t at[2] = {y, x}, size[2] = {g->h, g->w};
    int32_t low[2], high[2];
    float part[2];
    for (int k = 0; k < 2; k++) {
        const float place = (float)at[k] * (float)(m->table - 1) / (float)max_i64(size[k] - 1, 1);
        low[k] = (int32_t)floorf(place);
        high[k] = (int32_t)min_i64(low[k] + 1, m->table - 1);
        part[k] = place - (float)low[k];
    }
    for (int i = 0; i < 4; i++) {
        const bool down = i & 2, right = i & 1;
        corner[i] = (down ? high[0] : low[0]) * (int32_t)m->table + (right ? high[1] : low[1]);
        weight[i] = (down ? part[0] : 1 - part[0]) * (right ? part[1] : 1 - part[1]);
    }
}

static void lay_feature(void *user, const struct visit *v)
{
    const struct laying *l = user;
    const struct grid_row *out = l->out;
    const int64_t merge = l->m->merge, unit = merge * merge, across = l->grid->w / merge;
    const int64_t to = l->first + v->at * unit, from = l->first + v->feature * unit;
    const int64_t frame = l->grid->h * l->grid->w, begin = l->first + v->window_begin * unit;
    if (out->feature) out->feature[from / unit] = (int32_t)(to / unit);
    for (int64_t i = 0; i < unit; i++) {
        const int64_t y = v->feature / across * merge + i / merge, x = v->feature % across * merge + i % merge;
        const int64_t p = to + i;
        if (out->order) out->order[p] = (int32_t)(from + i);
        if (out->ranges) out->ranges[p][0] = (int32_t)l->first, out->ranges[p][1] = (int32_t)(l->first + frame);
        if (out->windows)
            out->windows[p][0] = (int32_t)begin, out->windows[p][1] = (int32_t)(begin + v->window_size * unit);
        if (out->positions) out->positions[p][0] = (int32_t)y, out->positions[p][1] = (int32_t)x;
        if (out->corners) corners_of(l->m, l->grid, y, x, out->corners[p], out->weights[p]);
    }
}

/* Fills patches from `from` on with padding, which sees nothing. */
static void lay_padding(const struct grid_row *out, int64_t from, int64_t P)
{
    const size_t n = (size_t)(P - from);
    for (int64_t p = from; p < P && out->order; p++) out->order[p] = -1;
    if (out->ranges) memset(out->ranges + from, 0, n * sizeof *out->ranges);
    if (out->windows) memset(out->windows + from, 0, n * sizeof *out->windows);
    if (out->corners) memset(out->corners + from, 0, n * sizeof *out->corners);
    if (out->weights) memset(out->weights + from, 0, n * sizeof *out->weights);
}

void grid_lay_out(const struct grid_model *m, const struct image_grid *grids, int64_t n, int64_t P,
                  const struct grid_row *out)
{
    struct laying l = {m, NULL, out, 0};
    if (out->positions) memset(out->positions, 0, (size_t)P * sizeof *out->positions);
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = 0; t < grids[i].t; t++, l.first += grids[i].h * grids[i].w) {
            l.grid = &grids[i];
            CHECK(l.first + grids[i].h * grids[i].w <= P, "a row of %lld patches is too short", (long long)P);
            visit_frame(grids[i].h / m->merge, grids[i].w / m->merge, m->window, lay_feature, &l);
        }
    lay_padding(out, l.first, P);
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* Returns the next image or video, and in *begin its first feature; NULL: there are no more. For
 * a video whose grids are apart it is the next of them. */
static struct image_grid next_grid(struct grid_walk *w, bool video, int64_t *begin)
{
    const struct grid_model *m = w->model;
    int64_t *next = &w->next[video], i = 0;
    *begin = 0;
    while (*next < w->n && w->grids[*next].video != video) ++*next;
    for (; i < *next && i < w->n; i++) *begin += grid_features(m, &w->grids[i]);
    if (*next == w->n) return (struct image_grid){0};
    struct image_grid g = w->grids[*next];
    if (video && m->apart) {
        *begin += w->part * grid_features(m, &g) / g.t;
        if (++w->part < g.t) return g.t = 1, g;
        w->part = 0;
        g.t = 1;
    }
    ++*next;
    return g;
}

/* Returns the position in time of frame t of a grid: whole ones of the time that has passed, in f32
 * as transformers computes it. */
static int64_t time_of(const struct grid_model *m, const struct image_grid *g, int64_t t)
{
    if (!g->video || !m->per_second) return t;
    return (int64_t)((float)t * ((float)m->per_second * (float)(g->seconds > 0 ? g->seconds : 1)));
}

bool grid_tokens(struct grid_walk *w, const int32_t *ids, int64_t T, int32_t (*positions)[3], int32_t *index)
{
    const struct grid_model *m = w->model;
    int64_t position = w->position, t = 0;
    while (t < T) {
        const bool video = ids[t] == m->video;
        if (!video && ids[t] != m->image) {
            for (int k = 0; k < 3 && positions; k++) positions[t][k] = (int32_t)position;
            if (index) index[t] = -1;
            position++, t++;
            continue;
        }
        int64_t begin;
        const struct image_grid g = next_grid(w, video, &begin);
        const int64_t n = g.t && m->tokens ? m->tokens : grid_features(m, &g);
        const int64_t across = g.w / m->merge, frame = g.t ? n / g.t : 0;
        if (!n || t + n > T) return false;
        for (int64_t i = 0; i < n; i++, t++) {
            if (ids[t] != (video ? m->video : m->image)) return false;
            if (positions) {
                positions[t][0] = (int32_t)(position + time_of(m, &g, i / frame));
                positions[t][1] = (int32_t)(position + (m->tokens ? 0 : i % frame / across));
                positions[t][2] = (int32_t)(position + (m->tokens ? 0 : i % frame % across));
            }
            if (!index) continue;
            if (m->tokens) index[t] = (int32_t)((w->next[0] - 1) * m->tokens + i);
            else index[t] = w->feature ? w->feature[begin + i] : (int32_t)(begin + i);
        }
        position += max_i64(g.h, g.w) / m->merge;
    }
    w->position = position;
    return true;
}

bool grid_document(struct grid_walk *w, const int32_t *ids, int64_t T, int32_t (*positions)[3], int32_t *index)
{
    w->position = 0;
    return grid_tokens(w, ids, T, positions, index);
}
