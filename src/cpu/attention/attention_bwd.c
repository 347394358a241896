/*
 * attention_bwd.c: the gradient of attention, from o and lse, also without storing the scores.
 *
 * With P = exp(scale q k^T + mask - lse) and delta = rowsum(do * o):
 *
 *     dv = P^T do      dP = do v^T      dS = scale P (dP - delta)
 *     dq = dS k        dk = dS^T q
 *
 * A thread processes a block of keys of one key head and iterates over the query blocks of all
 * query heads that read it: five products per pair, in panels (micro.h) with one key per lane:
 *
 *     queries x keys   s  = q  k^T,  dp = do v^T   [query][nr keys]   A = q, do   B = k, v
 *     D x keys         dv^T += do^T p              [D][nr keys]       A = do      B = p
 *                      dk^T += q^T ds                                 A = q       B = ds
 *     queries x D      dq += ds k                  rows of D          A = ds^T    B = k
 *
 * so only ds is transposed. dk and dv stay in the thread and are stored once. dq is summed over key
 * blocks, which different threads process: each block of queries has the end of the keys that were
 * added so far, and a key block waits for its turn. Work items are scheduled key block by key
 * block, so the previous one started long before, and the first unfinished item never waits: no
 * deadlock, little waiting. Every sum thus has one order: bit-identical for any thread count.
 *
 * If the processor multiplies bf16 (micro_bf16.h) and do, q, k and v are bf16, so are the panels; p
 * and ds are computed in f32 and rounded to bf16 for their products, whose sums stay f32.
 *
 * The first key block stores dq instead of adding to it; for a block of queries that sees no key at
 * all this is key block 0.
 *
 * With ranges, blocks of queries and of keys are cut where a document begins or ends, and the cuts
 * of a block of keys are processed one after the other.
 *
 * With a grid (attention.h), relative positions are added to the scores between their product and
 * the softmax's gradient, and the gradients of a query's positions are added in the same turns as
 * dq.
 *
 *     work: [delta, B H T][turns, B H blocks][dq in f32, if dq is not][the grid's]
 *           per thread: [k, v, k by D | q, do, q by D, do by D | s, dp, ds^T, p or ds as bf16
 *                       | dk, dv | lse, delta, bias | rows | the grid's]
 */
#include <math.h>
#include <omp.h>
#include <sched.h>

#include "cpu/attention/attention.h"
#include "cpu/cpu.h"
#include "cpu/products/micro.h"
#include "cpu/products/pack.h"

/* Multiples of PANEL_A and PANEL_B. With more keys per block the queries are packed less often. */
enum { QUERIES = 96, KEYS = 192, KEYS_ALONE = 288 };

/* Returns the keys per block: a few more than KEYS are processed in one block instead of two, if
 * there are enough heads for all threads. */
static int64_t keys_of(const struct heads *n) { return n->S <= KEYS_ALONE && n->B * n->G >= 16 ? KEYS_ALONE : KEYS; }

/* --- planning ------------------------------------------------------------------------------ */

/* Offsets in floats: the shared sections, then those of a thread from its beginning. */
struct layout {
    int64_t delta, turns, dq, grid, threads;
    int64_t k, v, kd, q, o, qd, od, s, dp, st, half, dk, dv, lse, row_delta, bias, rows, own_grid, total;
};

static int64_t blocks_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Returns the blocks of queries; with ranges any query may be the first of one. */
static int64_t turns_of(const struct heads *n) { return n->ranged ? n->T : blocks_of(n->T, QUERIES); }

static struct layout layout_of(const struct heads *n, const struct grid_bwd *grid, bool narrow)
{
    struct layout y;
    int64_t at = 0, rows = n->B * n->H * n->T;
    y.delta = reserve_floats(&at, rows);
    y.turns = reserve_floats(&at, n->B * n->H * turns_of(n));
    y.dq = reserve_floats(&at, narrow ? rows * n->D : 0);
    y.grid = reserve_floats(&at, grid ? grid_bwd_floats(grid, n, blocks_of(n->S, keys_of(n))) : 0);
    y.threads = at;

    int64_t queries = round_up(min_i64(n->T, QUERIES), PANEL_A), keys = round_up(min_i64(n->S, keys_of(n)), PANEL_B);
    int64_t deep = n->D + MR_MAX, wide = n->D + NR_MAX; /* D rounded up to any mr, any nr */
    int64_t length = max_i64(n->D, GROUP_MAX / 2); /* of a row in floats, also in groups of bf16 */
    at = 0;
    y.k = reserve_floats(&at, keys * length), y.v = reserve_floats(&at, keys * length),
    y.kd = reserve_floats(&at, keys * wide);
    y.q = reserve_floats(&at, queries * length), y.o = reserve_floats(&at, queries * length);
    y.qd = reserve_floats(&at, queries * deep), y.od = reserve_floats(&at, queries * deep);
    y.s = reserve_floats(&at, queries * keys), y.dp = reserve_floats(&at, queries * keys),
    y.st = reserve_floats(&at, queries * keys);
    y.half = reserve_floats(&at, queries * NR_MAX / 2);
    y.dk = reserve_floats(&at, keys * deep), y.dv = reserve_floats(&at, keys * deep);
    y.lse = reserve_floats(&at, queries), y.row_delta = reserve_floats(&at, queries),
    y.bias = reserve_floats(&at, keys);
    y.rows = reserve_floats(&at, NR_MAX * n->D);
    y.own_grid = reserve_floats(&at, grid ? grid_bwd_thread_floats(grid, n) : 0);
    y.total = at;
    return y;
}

static uint64_t layout_bytes(const struct layout *y, int threads)
{
    return (uint64_t)(y->threads + y->total * threads) * sizeof(float);
}

enum { IN_DO, IN_Q, IN_K, IN_V, IN_O, IN_LSE, IN_MASK, IN_RANGES };

static bool attention_bwd_match(const struct query *q)
{
    for (int i = 0; i < 5; i++)
        if (!heads_fit(q->in[i])) return false;
    for (int i = 0; i < 3; i++)
        if (!heads_fit(q->out[i])) return false;
    return q->in[IN_LSE]->dtype == DT_F32 && heads_mask_fits(q, IN_MASK);
}

uint64_t attention_bwd_bytes(const struct heads *n, struct grid_bwd *grid, bool narrow, int threads)
{
    if (grid) grid_bwd_blocks(grid, n, blocks_of(n->S, keys_of(n)));
    struct layout y = layout_of(n, grid, narrow);
    return layout_bytes(&y, threads);
}

static uint64_t attention_bwd_workspace(const struct query *q)
{
    struct heads n = heads_of(q->in[IN_Q]->dim, q->in[IN_K]->dim, q->attr);
    n.ranged = q->nin > IN_RANGES && q->in[IN_RANGES];
    return attention_bwd_bytes(&n, NULL, q->out[0]->dtype != DT_F32, q->profile->threads);
}

/* --- one block of keys -------------------------------------------------------------------- */

/* What all items of a launch share. */
struct gradient {
    const struct launch *l;
    struct panels panels;
    const struct micro *u;       /* panels.u */
    const struct grid_bwd *grid; /* NULL: no relative positions */
    bool masked;
    struct heads n;
    struct layout y;
    float *delta; /* [B,H,T] */
    int *turns;   /* [B,H,blocks of queries]: the end of the keys that were added to dq */
    struct operand dq; /* f32: the output, or the accumulator for it */
};

/* The block of keys s0.. of head g, the block of queries t0.. of head h, and the thread's
 * memory. */
struct item {
    const struct gradient *r;
    int64_t b, g, s0, sn, h, t0, tn;
    struct span seen; /* the keys that the queries see */
    struct key_range range[QUERIES];
    bool hidden;      /* every key of the block is masked out */
    void *k, *v, *kd, *q, *o, *qd, *od, *st; /* panels */
    uint16_t *half;                          /* p or ds as a bf16 panel */
    float *s, *dp, *dk, *dv, *lse, *delta, *bias, *rows, *grid;
};

/* Packs n rows of `length`; `rows`: those of x, else its columns. */
static void run_pack(const struct gradient *r, void *to, int width, const void *from, const struct operand *x,
                     bool rows, int64_t n, int64_t length)
{
    panels_pack(&r->panels, to, width, from, x->dtype, rows ? x->stride[1] : 1, rows ? 1 : x->stride[1], n, length);
}

/* Reports whether dq is incomplete when all key blocks have been added. */
static bool run_adds_later(const struct gradient *r) { return r->grid && !r->grid->g.biased && !r->grid->one_pass; }

static int64_t item_block(const struct item *x) { return x->s0 / keys_of(&x->r->n); }

/* Reports whether this is the first, or the last, block of keys that the queries see. If they see
 * none, it is the one with key 0. */
static bool item_is_first(const struct item *x) { return span_is_empty(x->seen) ? x->s0 == 0 : x->seen.begin >= x->s0; }
static bool item_is_last(const struct item *x)
{
    return span_is_empty(x->seen) ? x->s0 == 0 : x->seen.end <= x->s0 + x->sn;
}

/* Reports whether the queries see a key of the block, or none at all and it is theirs. */
static bool item_meets(const struct item *x)
{
    if (span_is_empty(x->seen)) return x->s0 == 0;
    return x->seen.begin < x->s0 + x->sn && x->seen.end > x->s0;
}

static bool range_meets(struct key_range x, int64_t s, int64_t sn) { return x.begin < s + sn && x.end > s; }

/* Returns the first and one past the last query of the block, counted from t0, that see keys s ..
 * s+sn. */
static struct span item_seers(const struct item *x, int64_t s, int64_t sn)
{
    const struct heads *n = &x->r->n;
    if (!n->ranged) return (struct span){max_i64(0, s - x->t0 - n->last), min_i64(x->tn, s + sn - x->t0 - n->first)};
    struct span queries = {0, x->tn};
    while (queries.begin < queries.end && !range_meets(x->range[queries.begin], s, sn)) queries.begin++;
    while (queries.begin < queries.end && !range_meets(x->range[queries.end - 1], s, sn)) queries.end--;
    return queries;
}

static void item_keys(struct item *x)
{
    const struct gradient *r = x->r;
    const struct operand *k = &r->l->in[IN_K], *v = &r->l->in[IN_V];
    const struct micro *u = r->u;
    int64_t D = r->n.D, sums = round_up(x->sn, u->nr) * round_up(D, u->mr);
    run_pack(r, x->k, u->nr, heads_row(k, x->b, x->s0, x->g), k, true, x->sn, D);
    run_pack(r, x->v, u->nr, heads_row(v, x->b, x->s0, x->g), v, true, x->sn, D);
    run_pack(r, x->kd, u->nr, heads_row(k, x->b, x->s0, x->g), k, false, D, x->sn);
    memset(x->dk, 0, (size_t)sums * sizeof(float));
    memset(x->dv, 0, (size_t)sums * sizeof(float));
    if (r->masked)
        x->hidden = !heads_bias(&r->l->in[IN_MASK], x->b, x->s0, x->sn, x->bias, round_up(x->sn, u->nr));
}

static void item_queries(struct item *x)
{
    const struct gradient *r = x->r;
    const struct operand *q = &r->l->in[IN_Q], *o = &r->l->in[IN_DO], *lse = &r->l->in[IN_LSE];
    const struct micro *u = r->u;
    const void *q0 = heads_row(q, x->b, x->t0, x->h), *o0 = heads_row(o, x->b, x->t0, x->h);
    run_pack(r, x->q, u->mr, q0, q, true, x->tn, r->n.D);
    run_pack(r, x->o, u->mr, o0, o, true, x->tn, r->n.D);
    run_pack(r, x->qd, u->mr, q0, q, false, r->n.D, x->tn);
    run_pack(r, x->od, u->mr, o0, o, false, r->n.D, x->tn);
    const float *from = (const float *)lse->data + x->b * lse->stride[0] + x->h * lse->stride[1];
    for (int64_t i = 0; i < x->tn; i++) {
        float value = from[(x->t0 + i) * lse->stride[2]] * (float)M_LOG2E;
        /* A query that sees no key: every probability becomes 0, not 1/0. */
        x->lse[i] = value == -INFINITY ? INFINITY : value;
        x->delta[i] = r->delta[(x->b * r->n.H + x->h) * r->n.T + x->t0 + i];
    }
}

/* Computes sum [D][nr] += the panel `by_d` of queries from `from` on, times n rows of p or ds. */
static void item_add(struct item *x, float *sum, const void *by_d, int64_t from, const float *rows, int64_t n)
{
    const struct gradient *r = x->r;
    const struct micro *u = r->u;
    int64_t length = panels_length(&r->panels, x->tn);
    if (r->panels.half) r->panels.half->pack_rows(x->half, rows, n);
    for (int64_t d = 0; d < r->n.D; d += u->mr)
        panels_product(&r->panels, n, by_d, d * length + from * u->mr, r->panels.half ? x->half : (const void *)rows, 0,
                       sum + d * u->nr, u->nr, true);
}

/* Packs rows `from`.. of ds, n of them against the nr keys from j on, as the operand of dq's
 * product. */
static void item_transpose(struct item *x, int64_t j, int64_t from, float *ds, int64_t n)
{
    const struct gradient *r = x->r;
    const struct micro *u = r->u;
    int64_t wide = round_up(x->sn, u->nr), there = min_i64(u->nr, x->sn - j);
    for (int64_t i = 0; i < n; i += u->mr) {
        float *tile = ds + i * u->nr;
        int64_t at = (from + i) * wide + j * u->mr;
        if (!r->panels.half) {
            tile_transpose((float *)x->st + at, tile, u->nr, u->mr, u->nr);
            continue;
        }
        /* The last group of keys may extend beyond them, into unused lanes. */
        for (int64_t row = 0; row < u->mr && there < u->nr; row++)
            memset(tile + row * u->nr + there, 0, (size_t)(u->nr - there) * sizeof(float));
        r->panels.half->pack_columns((uint16_t *)x->st + at, tile);
    }
}

/* Clears lanes without a key. */
static void item_blank(const struct item *x, int64_t j, float *ds, int64_t n)
{
    const int64_t nr = x->r->u->nr, there = min_i64(nr, x->sn - j);
    for (int64_t i = 0; i < n && there < nr; i++) memset(ds + i * nr + there, 0, (size_t)(nr - there) * sizeof *ds);
}

/* Returns the sums that the block of keys adds to the gradient of its head's bias. */
static float *item_bias(const struct item *x)
{
    const struct gradient *r = x->r;
    int64_t block = (x->b * r->n.H + x->h) * blocks_of(r->n.S, keys_of(&r->n)) + item_block(x);
    return r->grid->partial + block * r->grid->g.height * (2 * r->grid->g.width - 1);
}

/* Multiplies the nr keys from j on with the block of queries: p, ds, and their contributions to dk
 * and dv. */
static void item_panel(struct item *x, int64_t j)
{
    const struct gradient *r = x->r;
    const struct micro *u = r->u;
    int64_t D = r->n.D, depth = round_up(D, u->mr), tall = round_up(x->tn, u->mr),
            length = panels_length(&r->panels, D);
    /* From the first query that sees a key of the panel to the last, in whole tiles. */
    const struct span queries = item_seers(x, x->s0 + j, min_i64(u->nr, x->sn - j));
    if (queries.begin >= queries.end) return;
    int64_t from = queries.begin / u->mr * u->mr, to = min_i64(x->tn, round_up(queries.end, u->mr));
    float *s = x->s + j * tall, *dp = x->dp + j * tall;
    for (int64_t i = from; i < to; i += u->mr) {
        panels_product(&r->panels, D, x->q, i * length, x->k, j * length, s + i * u->nr, u->nr, false);
        panels_product(&r->panels, D, x->o, i * length, x->v, j * length, dp + i * u->nr, u->nr, false);
    }
    s += from * u->nr, dp += from * u->nr;
    int64_t n = to - from;
    struct key_range own[QUERIES];
    struct key_band band =
        heads_band(&r->n, x->t0 + from, n, x->range + from, x->s0 + j, r->masked ? x->bias + j : NULL, own, n);
    float factor = r->n.scale * (float)M_LOG2E;
    struct grid_lanes lanes;
    struct grid_block at = {x->b, x->h, x->t0, x->tn, x->grid}; /* on a grid all keys are visible: from is 0 */
    if (r->grid) {
        grid_lanes_of(r->grid, u, x->s0 + j, min_i64(u->nr, x->sn - j), &lanes);
        grid_add_keys(r->grid, &r->n, &lanes, &at, s, factor);
        factor = 1;
    }
    u->gradient(s, dp, n, &band, factor, r->n.cap * (float)M_LOG2E, r->n.scale, x->lse + from, x->delta + from);
    if (r->grid) {
        item_blank(x, j, dp, n);
        if (r->grid->g.biased)
            grid_gather_keys(r->grid, &r->n, &lanes, &at, dp, item_bias(x));
    }
    item_add(x, x->dv + j * depth, x->od, from, s, n);
    item_add(x, x->dk + j * depth, x->qd, from, dp, n);
    item_transpose(x, j, from, dp, n);
}

/* Computes dq's rows i.. (one tile), from the keys that the tile's queries see. */
static void item_dq_tile(const struct item *x, int64_t i, bool add)
{
    const struct gradient *r = x->r;
    const struct micro *u = r->u;
    int64_t m = min_i64(u->mr, x->tn - i), D = r->n.D, ld = r->dq.stride[1];
    const struct span seen = heads_seen(&r->n, x->t0 + i, m, x->range + i);
    int64_t from = max_i64(0, seen.begin - x->s0);
    int64_t keys = max_i64(0, min_i64(x->sn, seen.end - x->s0) - from);
    if (x->hidden) from = keys = 0;
    /* Back to the beginning of a group: ds is 0 where a key is not visible. */
    if (r->panels.half && keys) keys += from % r->panels.half->group, from -= from % r->panels.half->group;
    int64_t st = i * round_up(x->sn, u->nr) + from * u->mr, length = panels_length(&r->panels, x->sn);
    float *row = heads_row(&r->dq, x->b, x->t0 + i, x->h);
    for (int64_t d = 0; d < D; d += u->nr) {
        int64_t n = min_i64(u->nr, D - d);
        int64_t kd = d * length + from * u->nr;
        panels_edge(&r->panels, keys, x->st, st, x->kd, kd, row + d, ld, add, m, n);
    }
}

/* Adds, with tables, the gradients of the positions of the block's queries, from its keys. */
static void item_positions(const struct item *x, bool first)
{
    const struct gradient *r = x->r;
    const struct micro *u = r->u;
    const int64_t tall = round_up(x->tn, u->mr);
    const struct grid_block at = {x->b, x->h, x->t0, x->tn, x->grid};
    if (first) grid_clear(r->grid, &r->n, &at);
    for (int64_t j = 0; j < x->sn; j += u->nr) {
        struct grid_lanes lanes;
        grid_lanes_of(r->grid, u, x->s0 + j, min_i64(u->nr, x->sn - j), &lanes);
        grid_gather_keys(r->grid, &r->n, &lanes, &at, x->dp + j * tall, NULL);
    }
    if (r->grid->one_pass) grid_block_finish(r->grid, &r->n, &r->l->in[IN_Q], &r->dq, &at);
}

/* Adds to dq when it is this key block's turn. The last one converts dq to its dtype, unless
 * positions are still to be added. */
static void item_dq(struct item *x)
{
    const struct gradient *r = x->r;
    int64_t D = r->n.D;
    const bool first = item_is_first(x), last = item_is_last(x) && !run_adds_later(r);
    int *turn = r->turns + (x->b * r->n.H + x->h) * turns_of(&r->n) + (r->n.ranged ? x->t0 : x->t0 / QUERIES);
    for (int spins = 0; !first && __atomic_load_n(turn, __ATOMIC_ACQUIRE) != x->s0; spins++)
        if (spins > 100) sched_yield();
    for (int64_t i = 0; i < x->tn; i += r->u->mr) item_dq_tile(x, i, !first);
    if (r->grid && !r->grid->g.biased) item_positions(x, first);
    const struct operand *dq = &r->l->out[0];
    if (last && dq->data != r->dq.data)
        for (int64_t t = x->t0; t < x->t0 + x->tn; t++)
            dtype_convert(heads_row(dq, x->b, t, x->h), dq->dtype, heads_row(&r->dq, x->b, t, x->h), DT_F32, D);
    __atomic_store_n(turn, (int)(x->s0 + x->sn), __ATOMIC_RELEASE);
}

static void item_store(struct item *x)
{
    const struct gradient *r = x->r;
    const struct micro *u = r->u;
    int64_t depth = round_up(r->n.D, u->mr);
    for (int64_t j = 0; j < x->sn; j += u->nr) {
        int64_t n = min_i64(u->nr, x->sn - j);
        heads_store(&r->l->out[1], x->b, x->s0 + j, x->g, x->dk + j * depth, u->nr, n, r->n.D, NULL, x->rows);
        heads_store(&r->l->out[2], x->b, x->s0 + j, x->g, x->dv + j * depth, u->nr, n, r->n.D, NULL, x->rows);
    }
}

static void item_run(struct item *x)
{
    const struct heads *n = &x->r->n;
    int64_t group = n->H / n->G;
    item_keys(x);
    if (x->r->grid && x->r->grid->g.biased) {
        x->h = x->g;
        memset(item_bias(x), 0, (size_t)(x->r->grid->g.height * (2 * x->r->grid->g.width - 1)) * sizeof(float));
    }
    for (x->h = x->g * group; x->h < (x->g + 1) * group; x->h++)
        for (x->t0 = 0; x->t0 < n->T; x->t0 += x->tn) {
            x->tn =
                heads_document(n, x->b, x->t0, min_i64(x->t0 / QUERIES * QUERIES + QUERIES, n->T), &x->seen) - x->t0;
            if (!item_meets(x)) continue;
            heads_ranges(n, x->b, x->t0, x->tn, x->range);
            if (!x->hidden) {
                item_queries(x);
                if (x->r->grid && x->r->grid->one_pass)
                    grid_block_begin(x->r->grid, n, &x->r->l->in[IN_Q],
                                     &(struct grid_block){x->b, x->h, x->t0, x->tn, x->grid});
                for (int64_t j = 0; j < x->sn; j += x->r->u->nr) item_panel(x, j);
            }
            item_dq(x);
        }
    item_store(x);
}

/* --- running ------------------------------------------------------------------------------- */

static void run_delta(const struct gradient *r)
{
    const struct heads *n = &r->n;
    const struct operand *dO = &r->l->in[IN_DO], *o = &r->l->in[IN_O];
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n->B * n->H * n->T; i++) {
        int64_t t = i % n->T, h = i / n->T % n->H, b = i / n->T / n->H;
        float x[HEAD_MAX], y[HEAD_MAX], sum = 0;
        dtype_convert(x, DT_F32, heads_row(dO, b, t, h), dO->dtype, n->D);
        dtype_convert(y, DT_F32, heads_row(o, b, t, h), o->dtype, n->D);
        r->u->dots(1, x, 0, y, n->D, &sum);
        r->delta[i] = sum;
    }
}

/* Converts dq to its own dtype, if it was summed in a separate f32 accumulator. */
static void run_narrow(const struct gradient *r)
{
    const struct heads *n = &r->n;
    const struct operand *dq = &r->l->out[0];
    if (dq->data == r->dq.data) return;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n->B * n->H * n->T; i++) {
        int64_t t = i % n->T, h = i / n->T % n->H, b = i / n->T / n->H;
        dtype_convert(heads_row(dq, b, t, h), dq->dtype, heads_row(&r->dq, b, t, h), DT_F32, n->D);
    }
}

/* Returns the end of the keys from s on, at most `end`, that are in the same documents. */
static int64_t run_cut(const struct gradient *r, int64_t b, int64_t s, int64_t end)
{
    const struct heads *n = &r->n;
    for (int64_t t = 0, next; n->ranged && t < n->T; t = next) {
        struct span seen;
        next = heads_document(n, b, t, n->T, &seen);
        if (seen.begin > s) end = min_i64(end, seen.begin);
        if (seen.end > s) end = min_i64(end, seen.end);
    }
    return end;
}

static void run_item(const struct gradient *r, int64_t i, float *at)
{
    const struct heads *n = &r->n;
    const struct layout *y = &r->y;
    int64_t heads = n->B * n->G, keys = keys_of(n), s0 = i / heads * keys, end = min_i64(s0 + keys, n->S);
    struct item x = {.r = r, .b = i % heads / n->G, .g = i % n->G, .s0 = s0, .k = at + y->k, .v = at + y->v,
                     .kd = at + y->kd, .q = at + y->q, .o = at + y->o, .qd = at + y->qd, .od = at + y->od,
                     .s = at + y->s, .dp = at + y->dp, .st = at + y->st, .half = (uint16_t *)(at + y->half),
                     .dk = at + y->dk, .dv = at + y->dv, .lse = at + y->lse, .delta = at + y->row_delta,
                     .bias = at + y->bias, .rows = at + y->rows, .grid = at + y->own_grid};
    do {
        x.sn = run_cut(r, x.b, x.s0, end) - x.s0;
        item_run(&x);
        x.s0 += x.sn;
    } while (x.s0 < end);
}

void attention_backward(const struct launch *l, const struct heads *heads, struct grid_bwd *grid, bool masked)
{
    const struct operand *dq = &l->out[0];
    struct gradient r = {.l = l, .panels = {.u = micro_best()}, .u = micro_best(), .n = *heads, .dq = *dq, .grid = grid,
                         .masked = masked};
    struct heads *n = &r.n;
    float *work = l->work;
    const int64_t key_blocks = blocks_of(n->S, keys_of(n));
    r.panels.half = heads_bf16(r.u, &l->in[IN_DO], 4);
    if (grid && !grid_is_bf16(&grid->g)) r.panels.half = NULL;
    if (grid) grid_bwd_blocks(grid, n, key_blocks);
    r.y = layout_of(n, grid, dq->dtype != DT_F32);
    CHECK(l->work_bytes >= layout_bytes(&r.y, l->threads), "%llu bytes of workspace",
          (unsigned long long)l->work_bytes);
    r.delta = work + r.y.delta;
    r.turns = (int *)(work + r.y.turns);
    if (dq->dtype != DT_F32) {
        r.dq.data = work + r.y.dq, r.dq.dtype = DT_F32;
        r.dq.stride[0] = n->H * n->T * n->D, r.dq.stride[1] = n->D, r.dq.stride[2] = n->T * n->D;
    }
    memset(r.turns, 0, (size_t)(n->B * n->H * turns_of(n)) * sizeof *r.turns);
    if (grid) grid_bwd_place(grid, n, &r.panels, work + r.y.grid);

    /* At least one block: without keys dq must still be zeroed. */
    int64_t items = max_i64(1, key_blocks) * n->B * n->G, next = 0;
#pragma omp parallel num_threads(l->threads)
    {
        float *at = work + r.y.threads + omp_get_thread_num() * r.y.total;
        run_delta(&r);
        if (grid) grid_bwd_begin(grid, n, &l->in[IN_Q], at + r.y.own_grid);
        for (int64_t i; (i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < items;) run_item(&r, i, at);
        if (grid) {
#pragma omp barrier
            grid_bwd_finish(grid, n, &l->in[IN_Q], &r.dq, &l->out[3], key_blocks, at + r.y.own_grid);
            if (run_adds_later(&r)) run_narrow(&r);
        }
    }
}

static void attention_bwd_run(const struct launch *l)
{
    struct heads n = heads_of_launch(l, IN_Q, IN_K, IN_RANGES);
    attention_backward(l, &n, NULL, launch_has(l, IN_MASK));
}

CPU_KERNEL_WORK(ATTENTION_BWD, attention_bwd);
