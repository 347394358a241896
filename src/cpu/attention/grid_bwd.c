/*
 * grid_bwd.c: relative positions on a grid, for attention's backward (see attention.h).
 *
 * With tables there are three phases. Before: all queries' position terms, [B,H,T,row], from one
 * product with both tables. During: attention_bwd.c iterates over its tiles, adds position terms to
 * scores, and adds ds into drel, of the same shape:
 *
 *     row:  rel_h, height numbers | rel_w, width numbers, repeated from the first on: a panel of
 *           keys that continues in the next row of the grid reads and adds contiguously
 *
 * After: with G [T,J] = drel scattered to the rows of the (reversed) tables,
 *
 *     dq += G tables          dtables += G^T q
 *
 * If there is only one block of keys, as in a window, a thread does the three phases for a block of
 * queries in one pass, and rel and drel hold only the rows of that block.
 *
 * Each group of heads has a partial sum of dtables; groups are a function of the shape and are
 * added in order: bit-identical for any thread count. With a bias each block of keys has its
 * partial sum.
 */
#include <math.h>

#include "cpu/attention/attention.h"

enum { QUERIES = 96, GROUPS = 64 };

/* --- memory ---------------------------------------------------------------------------------- */

/* Offsets in floats, of the shared section and of a thread's. */
struct layout {
    int64_t rel, drel, rows, by_row, by_depth, partial, shared;
    int64_t product, narrow, left, right, own_rel, own_drel, own;
};

static struct layout layout_of(const struct grid_bwd *x, const struct heads *n, int64_t key_blocks)
{
    struct layout y = {0};
    int64_t at = 0, rows = n->B * n->H * n->T, J = x->J, deep = n->D + NR_MAX;
    if (x->g.biased) {
        int64_t table = x->g.height * (2 * x->g.width - 1);
        y.rel = reserve_floats(&at, n->H * table);
        y.partial = reserve_floats(&at, n->B * n->H * key_blocks * table);
        y.shared = at;
        return y;
    }
    if (x->one_pass) rows = 0;
    y.rel = reserve_floats(&at, rows * x->row), y.drel = reserve_floats(&at, rows * x->row);
    y.rows = reserve_floats(&at, J * n->D);
    y.by_row = reserve_floats(&at, (J + NR_MAX) * max_i64(n->D, GROUP_MAX / 2)),
    y.by_depth = reserve_floats(&at, (J + GROUP_MAX) * deep);
    y.partial = reserve_floats(&at, x->groups * (J + MR_MAX) * deep);
    y.shared = at;

    int64_t queries = round_up(min_i64(n->T, QUERIES), PANEL_A);
    at = 0;
    y.product = reserve_floats(&at, queries * (J + NR_MAX));
    y.narrow = reserve_floats(&at, queries * J / 2 + 1);
    y.left = reserve_floats(&at, max_i64(queries * max_i64(J, max_i64(n->D, GROUP_MAX)),
                                         (J + MR_MAX) * (queries + GROUP_MAX)));
    y.right = reserve_floats(&at, deep * (queries + GROUP_MAX));
    y.own_rel = reserve_floats(&at, x->one_pass ? queries * x->row : 0),
    y.own_drel = reserve_floats(&at, x->one_pass ? queries * x->row : 0);
    y.own = at;
    return y;
}

struct grid_bwd grid_bwd_of(const union attr *attr, bool biased, const struct heads *n)
{
    struct grid_bwd x = {.g = grid_of(attr, biased), .groups = min_i64(n->B * n->H, GROUPS)};
    x.J = 2 * x.g.height + 2 * x.g.width - 2;
    x.row = round_up(x.g.height + x.g.width + NR_MAX, 4);
    return x;
}

/* Makes each head a group if there are tables and one block of keys: one thread then computes a
 * head's sums of the tables' gradients. */
void grid_bwd_blocks(struct grid_bwd *x, const struct heads *n, int64_t key_blocks)
{
    x->one_pass = key_blocks <= 1 && !x->g.biased;
    if (x->one_pass) x->groups = n->B * n->H;
}

int64_t grid_bwd_floats(const struct grid_bwd *x, const struct heads *n, int64_t key_blocks)
{
    return layout_of(x, n, key_blocks).shared;
}

int64_t grid_bwd_thread_floats(const struct grid_bwd *x, const struct heads *n) { return layout_of(x, n, 0).own; }

/* --- tables ----------------------------------------------------------------------------------- */

/* Writes both tables, each from its last row to its first, in the products' dtype. */
static void reverse_tables(const struct grid_bwd *x, const struct heads *n)
{
    const enum dtype to = x->panels.half ? DT_BF16 : DT_F32;
    int64_t row = 0;
    for (int axis = 0; axis < 2; axis++) {
        const struct operand *t = x->g.table[axis];
        for (int64_t i = t->dim[0] - 1; i >= 0; i--, row++)
            for (int64_t d = 0; d < n->D; d++)
                dtype_store(x->rows, to, row * n->D + d,
                            dtype_load(t->data, t->dtype, i * t->stride[0] + d * t->stride[1]));
    }
}

void grid_bwd_place(struct grid_bwd *x, const struct heads *n, const struct panels *p, float *to)
{
    struct layout y = layout_of(x, n, 0);
    x->panels = *p, x->u = p->u;
    if (x->g.biased) {
        grid_mirror(&x->g, n, to + y.rel);
        x->partial = to + y.partial;
        return;
    }
    x->rel = to + y.rel, x->drel = to + y.drel, x->partial = to + y.partial;
    x->rows = to + y.rows, x->by_row = to + y.by_row, x->by_depth = to + y.by_depth;
    reverse_tables(x, n);
    const enum dtype t = p->half ? DT_BF16 : DT_F32;
    panels_pack(&x->panels, x->by_row, x->u->nr, x->rows, t, n->D, 1, x->J, n->D);
    panels_pack(&x->panels, x->by_depth, x->u->nr, x->rows, t, 1, n->D, n->D, x->J);
}

/* --- before: position terms ------------------------------------------------------------------- */

/* Returns the first of a block's rows of rel, and of drel. */
static float *rel_rows(const struct grid_bwd *x, const struct heads *n, const struct grid_block *at)
{
    if (x->one_pass) return at->work + layout_of(x, n, 1).own_rel;
    return x->rel + ((at->b * n->H + at->h) * n->T + at->t0) * x->row;
}
static float *drel_rows(const struct grid_bwd *x, const struct heads *n, const struct grid_block *at)
{
    if (x->one_pass) return at->work + layout_of(x, n, 1).own_drel;
    return x->drel + ((at->b * n->H + at->h) * n->T + at->t0) * x->row;
}

/* Returns the offset of rel_h, and of rel_w, of query t among the J rows of the reversed tables. */
static int64_t begin_h(const struct grid_bwd *x, int64_t t) { return x->g.height - 1 - t / x->g.width; }
static int64_t begin_w(const struct grid_bwd *x, int64_t t)
{
    return 2 * x->g.height - 1 + x->g.width - 1 - t % x->g.width;
}

void grid_block_begin(const struct grid_bwd *x, const struct heads *n, const struct operand *q,
                      const struct grid_block *at)
{
    const int64_t b = at->b, h = at->h, t0 = at->t0, tn = at->tn;
    float *work = at->work, *rows = rel_rows(x, n, at);
    const struct layout y = layout_of(x, n, 0);
    const struct micro *u = x->u;
    const int64_t D = n->D, length = panels_length(&x->panels, D), ld = round_up(x->J, u->nr), H = x->g.height,
                  W = x->g.width;
    panels_pack(&x->panels, work + y.left, u->mr, heads_row(q, b, t0, h), q->dtype, q->stride[1], 1, tn, D);
    for (int64_t i = 0; i < tn; i += u->mr)
        for (int64_t j = 0; j < x->J; j += u->nr)
            panels_product(&x->panels, D, work + y.left, i * length, x->by_row, j * length,
                           work + y.product + i * ld + j, ld, false);
    for (int64_t i = 0; i < tn; i++) {
        const float *from = work + y.product + i * ld;
        const float *from_h = from + begin_h(x, t0 + i), *from_w = from + begin_w(x, t0 + i);
        float *rel = rows + i * x->row;
        for (int64_t k = 0; k < H; k++) rel[k] = from_h[k] * (float)M_LOG2E;
        for (int64_t k = 0; k < W; k++) rel[H + k] = from_w[k] * (float)M_LOG2E;
        for (int64_t k = H + W; k < H + W + u->nr; k++) rel[k] = rel[k - W];
    }
}

void grid_bwd_begin(const struct grid_bwd *x, const struct heads *n, const struct operand *q, float *work)
{
    if (x->g.biased || x->one_pass) return;
    const int64_t blocks = (n->T + QUERIES - 1) / QUERIES;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n->B * n->H * blocks; i++) {
        int64_t t0 = i % blocks * QUERIES, head = i / blocks;
        grid_block_begin(x, n, q,
                         &(struct grid_block){head / n->H, head % n->H, t0, min_i64(QUERIES, n->T - t0), work});
    }
}

/* --- during: tiles of attention_bwd.c --------------------------------------------------------- */

void grid_lanes_of(const struct grid_bwd *x, const struct micro *u, int64_t s, int64_t n, struct grid_lanes *to)
{
    to->s = s, to->n = n;
    to->steps = (int)((s + n - 1) / x->g.width - s / x->g.width) + 1;
    if (x->g.biased) return;
    memset(to->masks, 0, (size_t)(to->steps * u->nr) * sizeof(float));
    for (int64_t i = 0; i < n; i++) to->masks[((s + i) / x->g.width - s / x->g.width) * u->nr + i] = 1;
}

/* Returns the offset in a mirrored table [height][2 width - 1] of a run of a panel's keys in one
 * row of the grid, for query t. */
static int64_t mirror_at(const struct grid_bwd *x, int64_t t, int64_t s)
{
    const int64_t W = x->g.width, down = t / W - s / W;
    return (down < 0 ? -down : down) * (2 * W - 1) + s % W - t % W + W - 1;
}

static void add_bias(const struct grid_bwd *x, const struct micro *u, const struct grid_lanes *lanes, int64_t h,
                     int64_t t, int64_t tn, float *s, float factor)
{
    const int64_t W = x->g.width;
    const float *mirror = x->g.mirror + h * x->g.height * (2 * W - 1);
    for (int64_t i = 0; i < tn; i++, s += u->nr)
        for (int64_t a = 0; a < lanes->n;) {
            int64_t count = min_i64(lanes->n - a, W - (lanes->s + a) % W);
            const float *bias = mirror + mirror_at(x, t + i, lanes->s + a);
            for (int64_t l = 0; l < count; l++) s[a + l] = s[a + l] * factor + bias[l];
            a += count;
        }
}

static void gather_bias(const struct grid_bwd *x, const struct micro *u, const struct grid_lanes *lanes, int64_t t,
                        int64_t tn, const float *ds, float *sums)
{
    const int64_t W = x->g.width;
    for (int64_t i = 0; i < tn; i++, ds += u->nr)
        for (int64_t a = 0; a < lanes->n;) {
            int64_t count = min_i64(lanes->n - a, W - (lanes->s + a) % W);
            float *to = sums + mirror_at(x, t + i, lanes->s + a);
            for (int64_t l = 0; l < count; l++) to[l] += ds[a + l];
            a += count;
        }
}

void grid_add_keys(const struct grid_bwd *x, const struct heads *n, const struct grid_lanes *lanes,
                   const struct grid_block *at, float *s, float factor)
{
    if (x->g.biased) {
        add_bias(x, x->u, lanes, at->h, at->t0, at->tn, s, factor);
        return;
    }
    const float *rel = rel_rows(x, n, at);
    const int64_t W = x->g.width;
    x->u->grid_keys(s, at->tn, factor, rel + lanes->s / W, rel + x->g.height + lanes->s % W, x->row, lanes->steps,
                    lanes->masks);
}

void grid_gather_keys(const struct grid_bwd *x, const struct heads *n, const struct grid_lanes *lanes,
                      const struct grid_block *at, const float *ds, float *bias)
{
    if (x->g.biased) {
        gather_bias(x, x->u, lanes, at->t0, at->tn, ds, bias);
        return;
    }
    float *drel = drel_rows(x, n, at);
    const int64_t W = x->g.width;
    x->u->grid_gather(ds, at->tn, drel + lanes->s / W, drel + x->g.height + lanes->s % W, x->row, lanes->steps,
                      lanes->masks);
}

void grid_clear(const struct grid_bwd *x, const struct heads *n, const struct grid_block *at)
{
    const size_t used = (size_t)(x->g.height + x->g.width + x->u->nr) * sizeof(float);
    float *drel = drel_rows(x, n, at);
    for (int64_t i = 0; i < at->tn; i++) memset(drel + i * x->row, 0, used);
}

/* --- after: dq and the tables' gradients ------------------------------------------------------ */

/* Writes G's rows for queries t0.., from their accumulated ds, which includes the scale. */
static void block_gathered(const struct grid_bwd *x, const struct heads *n, const struct grid_block *at, float *to)
{
    const int64_t t0 = at->t0, tn = at->tn;
    const float *drel = drel_rows(x, n, at);
    const int64_t H = x->g.height, W = x->g.width, nr = x->u->nr;
    const float factor = 1 / n->scale;
    memset(to, 0, (size_t)(tn * x->J) * sizeof *to);
    for (int64_t i = 0; i < tn; i++, to += x->J, drel += x->row) {
        float *to_h = to + begin_h(x, t0 + i), *to_w = to + begin_w(x, t0 + i);
        for (int64_t k = 0; k < H; k++) to_h[k] = drel[k] * factor;
        for (int64_t k = 0; k < W; k++) to_w[k] = drel[H + k] * factor;
        for (int64_t from = W; from < W + nr; from += W)
            for (int64_t k = 0; k < min_i64(W, W + nr - from); k++) to_w[k] += drel[H + from + k] * factor;
    }
}

static void block_finish(const struct grid_bwd *x, const struct heads *n, const struct operand *q,
                         const struct operand *dq, const struct grid_block *at, float *partial)
{
    const int64_t b = at->b, h = at->h, t0 = at->t0, tn = at->tn;
    float *work = at->work;
    const struct layout y = layout_of(x, n, 0);
    const struct micro *u = x->u;
    const int64_t D = n->D, J = x->J, wide = round_up(D, u->nr), tall = panels_length(&x->panels, J);
    float *gathered = work + y.product;
    void *left = work + y.left, *right = work + y.right, *G = gathered;
    block_gathered(x, n, at, gathered);
    if (x->panels.half) {
        G = work + y.narrow;
        dtype_convert(G, DT_BF16, gathered, DT_F32, tn * J);
    }
    panels_pack(&x->panels, left, u->mr, G, DT_F32, J, 1, tn, J);
    for (int64_t i = 0; i < tn; i += u->mr)
        for (int64_t d = 0; d < D; d += u->nr)
            panels_edge(&x->panels, J, left, i * tall, x->by_depth, d * tall,
                        (float *)heads_row(dq, b, t0 + i, h) + d, dq->stride[1], true, min_i64(u->mr, tn - i),
                        min_i64(u->nr, D - d));
    panels_pack(&x->panels, left, u->mr, G, DT_F32, 1, J, J, tn);
    panels_pack(&x->panels, right, u->nr, heads_row(q, b, t0, h), q->dtype, 1, q->stride[1], D, tn);
    const int64_t length = panels_length(&x->panels, tn);
    for (int64_t j = 0; j < J; j += u->mr)
        for (int64_t d = 0; d < D; d += u->nr)
            panels_product(&x->panels, tn, left, j * length, right, d * length, partial + j * wide + d, wide, true);
}

static int64_t partial_size(const struct grid_bwd *x, const struct heads *n)
{
    return (x->J + MR_MAX) * (n->D + NR_MAX);
}

void grid_block_finish(const struct grid_bwd *x, const struct heads *n, const struct operand *q,
                       const struct operand *dq, const struct grid_block *at)
{
    float *partial = x->partial + (at->b * n->H + at->h) * partial_size(x, n);
    if (at->t0 == 0) memset(partial, 0, (size_t)partial_size(x, n) * sizeof *partial);
    block_finish(x, n, q, dq, at, partial);
}

/* Sums row j of the reversed tables over all groups. */
static void finish_tables(const struct grid_bwd *x, const struct heads *n, const struct operand *dtable)
{
    const int64_t D = n->D, wide = round_up(D, x->u->nr), size = partial_size(x, n);
#pragma omp for schedule(static)
    for (int64_t j = 0; j < x->J; j++) {
        const int axis = j >= 2 * x->g.height - 1;
        const struct operand *to = &dtable[axis];
        int64_t i = axis ? x->J - 1 - j : 2 * x->g.height - 2 - j;
        for (int64_t d = 0; d < D; d++) {
            double sum = 0;
            for (int64_t g = 0; g < x->groups; g++) sum += (double)x->partial[g * size + j * wide + d];
            ((float *)to->data)[i * to->stride[0] + d * to->stride[1]] = (float)sum;
        }
    }
}

/* Sums, with a bias, both sides of the mirror, over batches and blocks of keys. */
static void finish_bias(const struct grid_bwd *x, const struct heads *n, const struct operand *to, int64_t key_blocks)
{
    const int64_t W = x->g.width, T = x->g.height * W, size = x->g.height * (2 * W - 1);
#pragma omp for schedule(static)
    for (int64_t e = 0; e < n->H * T; e++) {
        const int64_t h = e / T, y = e % T / W, dx = e % W;
        double sum = 0;
        for (int64_t b = 0; b < n->B; b++)
            for (int64_t k = 0; k < key_blocks; k++) {
                const float *at = x->partial + ((b * n->H + h) * key_blocks + k) * size + y * (2 * W - 1) + W - 1;
                sum += (double)at[dx] + (dx ? (double)at[-dx] : 0);
            }
        ((float *)to->data)[h * to->stride[0] + e % T * to->stride[1]] = (float)(sum / (double)n->scale);
    }
}

void grid_bwd_finish(const struct grid_bwd *x, const struct heads *n, const struct operand *q, const struct operand *dq,
                     const struct operand *dtable, int64_t key_blocks, float *work)
{
    if (x->g.biased) {
        finish_bias(x, n, dtable, key_blocks);
        return;
    }
    const int64_t heads = n->B * n->H, size = partial_size(x, n);
#pragma omp for schedule(dynamic, 1)
    for (int64_t g = 0; g < (x->one_pass ? 0 : x->groups); g++) {
        float *partial = x->partial + g * size;
        memset(partial, 0, (size_t)size * sizeof *partial);
        for (int64_t i = heads * g / x->groups; i < heads * (g + 1) / x->groups; i++)
            for (int64_t t0 = 0; t0 < n->T; t0 += QUERIES)
                block_finish(x, n, q, dq,
                             &(struct grid_block){i / n->H, i % n->H, t0, min_i64(QUERIES, n->T - t0), work}, partial);
    }
    finish_tables(x, n, dtable);
}
