/*
 * attention.c: softmax(scale q k^T + mask) v without storing the scores (online softmax).
 *
 * A thread processes a block of queries of one head and iterates over the keys in blocks. For each
 * it computes the scores, turns them into probabilities relative to a running maximum, and adds
 * their product with v; when the maximum grows, the sum so far is rescaled. All of this uses panels
 * (micro.h) with one query per lane, so that nothing is summed across lanes, and the scores are the
 * output of one product in the layout that the next one reads:
 *
 *     keys  x queries    s  = k  q^T     [key][nr queries]     A = k, B = q
 *     D     x queries    o^T += v^T p    [D][nr queries]       A = v, B = p (= s in place)
 *
 * Exponentials are powers of two: q is multiplied by scale * log2(e) as it is packed, the mask and
 * a cap by log2(e). Blocks of keys that no query of the block sees are skipped; within a block the
 * sums run from the first to the last key that a panel sees, so a causal mask halves the work and
 * a sliding window costs its own width. With ranges, a block of queries ends where another document
 * begins.
 *
 * If the processor multiplies bf16 (micro_bf16.h) and q, k and v are bf16, so are the panels, and
 * the probabilities are rounded to bf16 for their product with v; scores, sums and o stay f32. q is
 * then scaled after its product, as f32.
 *
 * A query that sees no key has o = 0 and lse = -inf.
 *
 * Bit-identical for any thread count: the sums of a query run over the key blocks in order, in one
 * thread, and the block boundaries depend only on positions.
 *
 * With a grid (attention.h), relative positions are added to the scores of a product, and in the
 * same pass the scores are scaled to powers of two.
 *
 *     work: [the grid's tables]
 *           per thread: [q panels | k panels | v panels | s | p | o | max, sum | bias | rows | positions]
 */
#include "cpu/attention/attention.h"

#include <float.h>
#include <math.h>
#include <omp.h>

#include "cpu/cpu.h"

/* Multiples of PANEL_B and PANEL_A. With more queries per block the keys are packed less often;
 * more keys make longer sums; everything fits the L2 cache. */
enum { QUERIES = 288, KEYS = 144 };

/* --- planning ------------------------------------------------------------------------------ */

/* A thread's memory: offsets in floats from its beginning. */
struct layout {
    int64_t q, k, v, s, p, o, max, sum, bias, rows, position, total;
};

static struct layout layout_of(const struct heads *n, const struct score_grid *grid)
{
    int64_t queries = round_up(min_i64(n->T, QUERIES), PANEL_B), keys = round_up(min_i64(n->S, KEYS), PANEL_A);
    int64_t D = n->D + MR_MAX; /* rounded up to any mr */
    int64_t length = max_i64(n->D, GROUP_MAX / 2); /* of a row in floats, also in groups of bf16 */
    struct layout y = {0};
    y.k = round_up(queries * length, 16);
    y.v = y.k + round_up(keys * length, 16);
    y.s = y.v + round_up(keys * D, 16);
    y.p = y.s + keys * NR_MAX;
    y.o = y.p + keys * NR_MAX / 2;
    y.max = y.o + round_up(queries * D, 16);
    y.sum = y.max + queries;
    y.bias = y.sum + queries;
    y.rows = y.bias + round_up(keys, 16);
    y.position = y.rows + round_up(NR_MAX * n->D, 16);
    y.total = y.position + (grid ? grid_query_floats(grid, queries) : 0);
    return y;
}

enum { IN_Q, IN_K, IN_V, IN_MASK, IN_RANGES };

static bool attention_match(const struct query *q)
{
    return heads_fit(q->in[IN_Q]) && heads_fit(q->in[IN_K]) && heads_fit(q->in[IN_V]) && heads_fit(q->out[0]) &&
           q->out[1]->dtype == DT_F32 && heads_mask_fits(q, IN_MASK);
}

uint64_t attention_bytes(const struct heads *n, const struct score_grid *grid, int threads)
{
    int64_t tables = grid ? grid_table_floats(grid, n) : 0;
    return (uint64_t)(tables + layout_of(n, grid).total * threads) * sizeof(float);
}

static uint64_t attention_workspace(const struct query *q)
{
    struct heads n = heads_of(q->in[IN_Q]->dim, q->in[IN_K]->dim, q->attr);
    return attention_bytes(&n, NULL, q->profile->threads);
}

/* --- forward ------------------------------------------------------------------------------- */

/* One block of queries of one head, and the thread's memory. */
struct block {
    const struct launch *l;
    const struct heads *n;
    struct panels panels;
    const struct micro *u;   /* panels.u */
    const struct score_grid *grid; /* NULL: no relative positions */
    bool masked;
    int64_t b, h, t0, tn;
    struct span seen; /* the keys that the queries see */
    struct key_range range[QUERIES];
    void *q, *k, *v;  /* panels */
    uint16_t *p;      /* s as a bf16 panel */
    float *s, *o, *max, *sum, *bias, *rows, *position;
};

static int64_t block_depth(const struct block *x) { return round_up(x->n->D, x->u->mr); }

/* Computes s = keys from `from` on times the nr queries from p on. */
static void block_scores(const struct block *x, int64_t p, int64_t from, int64_t keys)
{
    const int64_t D = x->n->D, length = panels_length(&x->panels, D);
    for (int64_t i = 0; i < keys; i += x->u->mr)
        panels_product(&x->panels, D, x->k, (from + i) * length, x->q, p * length, x->s + i * x->u->nr, x->u->nr,
                       false);
}

/* Computes o += the probabilities times the values of `keys` keys, at offset `from` of the sn
 * packed keys. */
static void block_values(const struct block *x, float *o, int64_t from, int64_t keys, int64_t sn)
{
    const struct micro *u = x->u;
    const int64_t length = panels_length(&x->panels, sn);
    if (x->panels.half) x->panels.half->pack_rows(x->p, x->s, keys);
    const void *p = x->panels.half ? x->p : (const void *)x->s;
    for (int64_t d = 0; d < x->n->D; d += u->mr)
        panels_product(&x->panels, keys, x->v, d * length + from * u->mr, p, 0, o + d * u->nr, u->nr, true);
}

/* Multiplies keys s0 .. s0+sn, packed, with the nr queries from p on. */
static void block_panel(const struct block *x, int64_t p, int64_t s0, int64_t sn)
{
    const struct micro *u = x->u;
    int64_t depth = block_depth(x), tn = min_i64(u->nr, x->tn - p);
    /* The keys that the panel sees, from the beginning of a tile. */
    const struct span seen = heads_seen(x->n, x->t0 + p, tn, x->range + p);
    int64_t from = max_i64(0, seen.begin - s0) / u->mr * u->mr;
    int64_t keys = min_i64(sn, seen.end - s0) - from;
    if (keys <= 0) return;
    float *o = x->o + p * depth;
    block_scores(x, p, from, keys);
    struct key_range own[NR_MAX];
    struct key_band band =
        heads_band(x->n, x->t0 + p, tn, x->range + p, s0 + from, x->masked ? x->bias + from : NULL, own, u->nr);
    float factor = x->panels.half ? x->n->scale * (float)M_LOG2E : 1;
    if (x->grid) {
        struct grid_panel at = {u, x->h, x->t0 + p, tn, x->position + p * grid_row(x->grid)};
        grid_add_queries(x->grid, &at, x->s, s0 + from, keys, factor);
        factor = 1;
    }
    u->softmax(x->s, keys, &band, factor, x->n->cap * (float)M_LOG2E, x->max + p, x->sum + p, o, depth);
    block_values(x, o, from, keys, sn);
}

/* Stores o = sum / total and lse, for the nr queries from p on. */
static void block_finish(const struct block *x, int64_t p)
{
    const struct operand *lse = &x->l->out[1];
    int64_t n = min_i64(x->u->nr, x->tn - p);
    float factor[NR_MAX];
    for (int64_t i = 0; i < n; i++) {
        float sum = x->sum[p + i];
        bool no_keys = sum == 0; /* false for NaN */
        factor[i] = no_keys ? 0 : 1 / sum;
        float *at =
            (float *)lse->data + x->b * lse->stride[0] + x->h * lse->stride[1] + (x->t0 + p + i) * lse->stride[2];
        *at = no_keys ? -INFINITY : x->max[p + i] * (float)M_LN2 + logf(sum);
    }
    heads_store(&x->l->out[0], x->b, x->t0 + p, x->h, x->o + p * block_depth(x), x->u->nr, n, x->n->D, factor, x->rows);
}

static void block_run(const struct block *x)
{
    const struct operand *q = &x->l->in[IN_Q], *k = &x->l->in[IN_K], *v = &x->l->in[IN_V], *mask = &x->l->in[IN_MASK];
    const struct micro *u = x->u;
    int64_t D = x->n->D, g = x->h / (x->n->H / x->n->G), lanes = round_up(x->tn, u->nr);
    panels_pack(&x->panels, x->q, u->nr, heads_row(q, x->b, x->t0, x->h), q->dtype, q->stride[1], 1, x->tn, D);
    if (x->grid) grid_positions(x->grid, &x->panels, x->q, D, x->t0, x->tn, x->position);
    for (int64_t i = 0; i < lanes * D && !x->panels.half; i++) ((float *)x->q)[i] *= x->n->scale * (float)M_LOG2E;
    memset(x->o, 0, (size_t)(lanes * block_depth(x)) * sizeof(float));
    memset(x->sum, 0, (size_t)lanes * sizeof(float));
    for (int64_t i = 0; i < lanes; i++) x->max[i] = -FLT_MAX;

    for (int64_t s0 = x->seen.begin; s0 < x->seen.end; s0 += KEYS) {
        int64_t sn = min_i64(KEYS, x->seen.end - s0);
        if (x->masked && !heads_bias(mask, x->b, s0, sn, x->bias, sn)) continue;
        panels_pack(&x->panels, x->k, u->mr, heads_row(k, x->b, s0, g), k->dtype, k->stride[1], 1, sn, D);
        panels_pack(&x->panels, x->v, u->mr, heads_row(v, x->b, s0, g), v->dtype, 1, v->stride[1], D, sn);
        for (int64_t p = 0; p < x->tn; p += u->nr) block_panel(x, p, s0, sn);
    }
    for (int64_t p = 0; p < x->tn; p += u->nr) block_finish(x, p);
}

void attention_forward(const struct launch *l, const struct heads *n, struct score_grid *grid, bool masked)
{
    struct layout y = layout_of(n, grid);
    CHECK(l->work_bytes >= attention_bytes(n, grid, l->threads), "%llu bytes of workspace",
          (unsigned long long)l->work_bytes);
    int64_t blocks = (n->T + QUERIES - 1) / QUERIES, heads = n->B * n->H;
    const struct micro *u = micro_best();
    const struct micro_bf16 *half = heads_bf16(u, &l->in[IN_Q], 3);
    float *work = l->work;
    if (grid) {
        if (!grid_is_bf16(grid)) half = NULL;
        grid_pack(grid, n, &(struct panels){u, half}, work);
        work += grid_table_floats(grid, n);
    }
    /* Later queries see more keys: they are scheduled first, so that no thread ends with a long
     * block. */
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < blocks * heads; i++) {
        float *at = work + omp_get_thread_num() * y.total;
        int64_t t0 = (blocks - 1 - i / heads) * QUERIES, end = min_i64(t0 + QUERIES, n->T), head = i % heads;
        struct block x = {.l = l, .n = n, .panels = {u, half}, .u = u, .grid = grid, .masked = masked,
                          .b = head / n->H, .h = head % n->H, .q = at + y.q, .k = at + y.k, .v = at + y.v,
                          .s = at + y.s, .p = (uint16_t *)(at + y.p), .o = at + y.o, .max = at + y.max,
                          .sum = at + y.sum, .bias = at + y.bias, .rows = at + y.rows, .position = at + y.position};
        for (x.t0 = t0; x.t0 < end; x.t0 += x.tn) {
            x.tn = heads_document(n, x.b, x.t0, end, &x.seen) - x.t0;
            heads_ranges(n, x.b, x.t0, x.tn, x.range);
            block_run(&x);
        }
    }
}

static void attention_run(const struct launch *l)
{
    struct heads n = heads_of_launch(l, IN_Q, IN_K, IN_RANGES);
    attention_forward(l, &n, NULL, launch_has(l, IN_MASK));
}

CPU_KERNEL_WORK(ATTENTION, attention);
