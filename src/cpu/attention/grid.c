/*
 * grid.c: relative positions on a grid, for attention's forward (see attention.h).
 *
 * With tables, a panel of queries is multiplied with the rows of the tables that any of its queries
 * needs, and each lane selects its own:
 *
 *     product[i][lane] = q . table_h[first + i]
 *     rel_h[kh][lane] = product[h - kh + height-1 - first][lane]
 */
#include "cpu/attention/attention.h"

#include <math.h>


struct score_grid grid_of(const union attr *attr, bool biased)
{
    return (struct score_grid){.height = attr->relative.height, .width = attr->relative.width, .biased = biased};
}

struct heads grid_heads(const int64_t *q, const union attr *attr)
{
    union attr plain = {.attention = {.scale = attr->relative.scale}};
    return heads_of(q, q, &plain);
}

bool grid_is_bf16(const struct score_grid *g)
{
    return g->biased || (g->table[0]->dtype == DT_BF16 && g->table[1]->dtype == DT_BF16);
}

static int64_t grid_size(const struct score_grid *g, int axis) { return axis ? g->width : g->height; }

/* --- tables --------------------------------------------------------------------------------- */

/* Returns the floats of a table's panels: rows in whole tiles, f32 or bf16 in groups. */
static int64_t panel_room(const struct score_grid *g, int axis, int64_t D)
{
    return round_up((2 * grid_size(g, axis) - 1 + MR_MAX) * max_i64(D, GROUP_MAX / 2), 16);
}

int64_t grid_table_floats(const struct score_grid *g, const struct heads *n)
{
    if (g->biased) return round_up(n->H * g->height * (2 * g->width - 1), 16);
    return panel_room(g, 0, n->D) + panel_room(g, 1, n->D);
}

void grid_mirror(struct score_grid *g, const struct heads *n, float *to)
{
    const struct operand *table = g->table[0];
    g->mirror = to;
    for (int64_t h = 0; h < n->H; h++)
        for (int64_t y = 0; y < g->height; y++)
            for (int64_t x = 1 - g->width; x < g->width; x++) {
                int64_t at = h * table->stride[0] + (y * g->width + (x < 0 ? -x : x)) * table->stride[1];
                *to++ = (float)(dtype_load(table->data, table->dtype, at) * M_LOG2E);
            }
}

void grid_pack(struct score_grid *g, const struct heads *n, const struct panels *p, float *to)
{
    if (g->biased) {
        grid_mirror(g, n, to);
        return;
    }
    for (int axis = 0; axis < 2; axis++) {
        const struct operand *t = g->table[axis];
        g->packed[axis] = to;
        panels_pack(p, to, p->u->mr, t->data, t->dtype, t->stride[0], t->stride[1], t->dim[0], n->D);
        to += panel_room(g, axis, n->D);
    }
}

/* --- position terms of queries ------------------------------------------------------------- */

/* Returns the scratch of grid_positions: rows of one table, in whole tiles, against a panel. */
static int64_t product_floats(const struct score_grid *g)
{
    return (2 * max_i64(g->height, g->width) + 2 * MR_MAX) * NR_MAX;
}

int64_t grid_query_floats(const struct score_grid *g, int64_t queries)
{
    return g->biased ? 0 : round_up(queries * grid_row(g), 16) + product_floats(g);
}

/* The minimum and maximum of a coordinate over queries t .. t+tn. */
struct reach {
    int64_t low, high;
};

static struct reach reach_of(const struct score_grid *g, int axis, int64_t t, int64_t tn)
{
    int64_t last = t + tn - 1, W = g->width;
    if (axis == 0) return (struct reach){t / W, last / W};
    return t / W == last / W ? (struct reach){t % W, last % W} : (struct reach){0, W - 1};
}

/* Computes one panel's rel_h or rel_w, [size][nr]. */
static void panel_positions(const struct score_grid *g, int axis, const struct panels *p, const void *q, int64_t at_q,
                            int64_t D, int64_t t, int64_t tn, float *rel, float *product)
{
    const struct micro *u = p->u;
    const int64_t size = grid_size(g, axis), length = panels_length(p, D);
    const struct reach need = reach_of(g, axis, t, tn);
    const int64_t first = need.low / u->mr * u->mr;
    for (int64_t r = first; r < need.high + size; r += u->mr)
        panels_product(p, D, g->packed[axis], r * length, q, at_q, product + (r - first) * u->nr, u->nr, false);
    int64_t at[NR_MAX];
    for (int64_t i = 0; i < u->nr; i++) {
        /* Lanes without a query repeat the last one. */
        int64_t query = t + min_i64(i, tn - 1), coordinate = axis ? query % g->width : query / g->width;
        at[i] = (coordinate + size - 1 - first) * u->nr + i;
    }
    for (int64_t k = 0; k < size; k++)
        for (int64_t i = 0; i < u->nr; i++) rel[k * u->nr + i] = product[at[i] - k * u->nr] * (float)M_LOG2E;
}

void grid_positions(const struct score_grid *g, const struct panels *p, const void *q, int64_t D, int64_t t, int64_t tn,
                    float *position)
{
    if (g->biased) return;
    const int64_t nr = p->u->nr, length = panels_length(p, D), row = grid_row(g);
    float *product = position + round_up(round_up(tn, nr) * row, 16);
    for (int64_t i = 0; i < tn; i += nr) {
        const int64_t count = min_i64(nr, tn - i);
        float *rel = position + i * row;
        panel_positions(g, 0, p, q, i * length, D, t + i, count, rel, product);
        panel_positions(g, 1, p, q, i * length, D, t + i, count, rel + g->height * nr, product);
    }
}

/* --- adding to the scores ------------------------------------------------------------------- */

/* Lanes in one row of the grid. */
struct lane_run {
    int64_t lane, n, y, x;
};

static int stretches_of(const struct score_grid *g, int64_t t, int64_t tn, struct lane_run to[NR_MAX])
{
    int count = 0;
    for (int64_t i = 0; i < tn;) {
        struct lane_run x = {i, min_i64(tn - i, g->width - (t + i) % g->width), (t + i) / g->width, (t + i) % g->width};
        to[count++] = x;
        i += x.n;
    }
    return count;
}

static void add_bias(const struct score_grid *g, const struct grid_panel *at, float *s, int64_t s0, int64_t keys,
                     float factor)
{
    const int64_t wide = 2 * g->width - 1, nr = at->u->nr;
    struct lane_run lane_run[NR_MAX];
    const int count = stretches_of(g, at->t, at->tn, lane_run);
    for (int64_t i = 0; i < keys; i++, s += nr) {
        int64_t y = (s0 + i) / g->width, x = (s0 + i) % g->width;
        for (int k = 0; k < count; k++) {
            const struct lane_run *q = &lane_run[k];
            int64_t down = q->y < y ? y - q->y : q->y - y;
            const float *bias = g->mirror + (at->h * g->height + down) * wide + q->x - x + g->width - 1;
            for (int64_t l = 0; l < q->n; l++) s[q->lane + l] = s[q->lane + l] * factor + bias[l];
        }
    }
}

void grid_add_queries(const struct score_grid *g, const struct grid_panel *at, float *s, int64_t s0, int64_t keys,
                      float factor)
{
    if (g->biased) {
        add_bias(g, at, s, s0, keys, factor);
        return;
    }
    const float *rel_h = at->position + s0 / g->width * at->u->nr, *rel_w = at->position + g->height * at->u->nr;
    at->u->grid_queries(s, keys, factor, rel_h, rel_w, s0 % g->width, g->width);
}
