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
 * Exponentials are powers of two: q is multiplied by scale * log2(e) as it is packed, and so is the
 * mask. Blocks of keys that no query of the block sees are skipped; within a block the sums run
 * from the first to the last key that a panel sees, so a causal mask halves the work and a sliding
 * window costs its own width. With ranges, a block of queries ends where another document begins.
 *
 * If the processor multiplies bf16 (micro_bf16.h) and q, k and v are bf16, so are the panels, and
 * the probabilities are rounded to bf16 for their product with v; scores, sums and o stay f32. q is
 * then scaled after its product, as f32.
 *
 * A query that sees no key has o = 0 and lse = -inf.
 *
 * Bit-identical for any thread count: the sums of a query run over the key blocks in order, in one
 * thread, and the block boundaries depend on positions alone.
 *
 * With a grid (grid.h), relative positions are added to the scores of a product, and in the same
 * pass the scores are scaled to powers of two.
 *
 *     work: [the grid's tables]
 *           per thread: [q panels | k panels | v panels | s | p | o | max, sum | bias | rows | positions]
 */
#include "cpu/attention/attention.h"

#include <float.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/attention/grid.h"
#include "cpu/products/micro.h"
#include "cpu/products/pack.h"

/* Multiples of PANEL_B and PANEL_A. With more queries per block the keys are packed less often;
 * more keys make longer sums; everything fits the L2 cache. */
enum { QUERIES = 288, KEYS = 144 };

/* --- shared with the backward ----------------------------------------------------------- */

struct heads heads_of(const int64_t *q, const int64_t *k, const union attr *attr)
{
    struct heads n = {.B = q[0], .T = q[1], .S = k[1], .H = q[2], .G = k[2], .D = q[3], .scale = attr->attention.scale};
    int64_t offset = n.S - n.T; /* query t is at key t + offset: both sequences end together */
    n.last = attr->attention.causal ? offset : n.S;
    n.first = -n.T - n.S;
    if (attr->attention.window) n.first = max_i64(n.first, offset - attr->attention.window + 1);
    n.window = attr->attention.window;
    return n;
}

struct heads heads_of_launch(const struct launch *l, int q, int k, int ranges)
{
    struct heads n = heads_of(l->in[q].dim, l->in[k].dim, l->attr);
    n.ranged = launch_has(l, ranges);
    if (n.ranged) n.ranges = l->in[ranges];
    return n;
}

/* The keys of query t's range. */
static struct span heads_range(const struct heads *n, int64_t b, int64_t t)
{
    const struct operand *x = &n->ranges;
    const int32_t *at = (const int32_t *)x->data + b * x->stride[0] + t * x->stride[1];
    const int64_t begin = at[0], end = at[x->stride[2]];
    struct span seen = {max_i64(0, n->window ? max_i64(begin, end - n->window) : begin), min_i64(n->S, end)};
    return seen.begin < seen.end ? seen : (struct span){0, 0};
}

static struct span heads_visible(const struct heads *n, int64_t t, int64_t tn)
{
    return (struct span){max_i64(0, t + n->first), max_i64(0, min_i64(n->S, t + tn + n->last))};
}

/* Neighbours belong together if a key is visible to both, or none to either. */
int64_t heads_document(const struct heads *n, int64_t b, int64_t t, int64_t end, struct span *seen)
{
    if (!n->ranged) return *seen = heads_visible(n, t, end - t), end;
    *seen = heads_range(n, b, t++);
    for (struct span last = *seen; t < end; t++) {
        const struct span next = heads_range(n, b, t),
                          both = {max_i64(last.begin, next.begin), min_i64(last.end, next.end)};
        if (span_is_empty(both) && !(span_is_empty(last) && span_is_empty(next))) return t;
        *seen = (struct span){min_i64(seen->begin, next.begin), max_i64(seen->end, next.end)};
        last = next;
    }
    return end;
}

void heads_ranges(const struct heads *n, int64_t b, int64_t t, int64_t tn, struct key_range *range)
{
    for (int64_t i = 0; n->ranged && i < tn; i++) {
        const struct span x = heads_range(n, b, t + i);
        range[i] = (struct key_range){(int32_t)x.begin, (int32_t)x.end};
    }
}

struct span heads_seen(const struct heads *n, int64_t t, int64_t tn, const struct key_range *range)
{
    if (!n->ranged) return heads_visible(n, t, tn);
    struct key_range all = range[0];
    for (int64_t i = 1; i < tn; i++) {
        if (range[i].begin < all.begin) all.begin = range[i].begin;
        if (range[i].end > all.end) all.end = range[i].end;
    }
    return (struct span){all.begin, all.end};
}

struct key_band heads_band(const struct heads *n, int64_t t, int64_t tn, const struct key_range *range, int64_t s,
                           const float *bias, struct key_range *own, int64_t room)
{
    if (!n->ranged) return (struct key_band){t + n->first - s, t + n->last - s, bias, NULL};
    const int32_t from = (int32_t)s;
    for (int64_t i = 0; i < tn; i++) own[i] = (struct key_range){range[i].begin - from, range[i].end - from};
    for (int64_t i = tn; i < room; i++) own[i] = (struct key_range){0, 0};
    return (struct key_band){0, 0, bias, own};
}

bool heads_bias(const struct operand *mask, int64_t b, int64_t s, int64_t sn, float *bias, int64_t room)
{
    const float *from = (const float *)mask->data + b * mask->stride[0] + s * mask->stride[1];
    bool any = false;
    for (int64_t i = 0; i < sn; i++) {
        bias[i] = from[i * mask->stride[1]] * (float)M_LOG2E;
        any |= bias[i] != -INFINITY;
    }
    for (int64_t i = sn; i < room; i++) bias[i] = 0;
    return any;
}

bool heads_fit(const struct tensor *t)
{
    return t->rank == 4 && (t->stride[3] == 1 || t->dim[3] == 1) && t->dim[3] <= HEAD_MAX &&
           (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16);
}

bool heads_mask_fits(const struct query *q, int input)
{
    return (q->nin <= input || !q->in[input] || q->in[input]->dtype == DT_F32) &&
           (q->nin <= input + 1 || !q->in[input + 1] || q->in[input + 1]->dtype == DT_I32);
}

const struct micro_bf16 *heads_bf16(const struct micro *u, const struct operand *x, int n)
{
    const struct micro_bf16 *h = micro_bf16_vectors();
    for (int i = 0; i < n; i++)
        if (x[i].dtype != DT_BF16) return NULL;
    return h && h->mr == u->mr && h->nr == u->nr ? h : NULL;
}

void heads_store(const struct operand *x, int64_t b, int64_t t, int64_t h, const float *panel, int width, int64_t n,
                 int64_t D, const float *factor, float *rows)
{
    if (x->dtype == DT_F32) {
        panel_to_rows(heads_row(x, b, t, h), x->stride[1], panel, width, n, D, factor);
        return;
    }
    panel_to_rows(rows, D, panel, width, n, D, factor);
    for (int64_t i = 0; i < n; i++) dtype_convert(heads_row(x, b, t + i, h), x->dtype, rows + i * D, DT_F32, D);
}

/* --- planning ------------------------------------------------------------------------------ */

/* A thread's memory: offsets in floats from its beginning. */
struct layout {
    int64_t q, k, v, s, p, o, max, sum, bias, rows, position, total;
};

static struct layout layout_of(const struct heads *n, const struct grid *grid)
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

uint64_t attention_bytes(const struct heads *n, const struct grid *grid, int threads)
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
    const struct micro *u;
    const struct micro_bf16 *half; /* NULL: panels are f32 */
    const struct grid *grid;       /* NULL: no relative positions */
    bool masked;
    int64_t b, h, t0, tn;
    struct span seen; /* the keys that the queries see */
    struct key_range range[QUERIES];
    void *q, *k, *v;  /* panels */
    uint16_t *p;      /* s as a bf16 panel */
    float *s, *o, *max, *sum, *bias, *rows, *position;
};

static int64_t block_depth(const struct block *x) { return round_up(x->n->D, x->u->mr); }

/* Packs n rows of `length` into panels of the dtype that the block multiplies. */
static void block_pack(const struct block *x, void *to, int width, const void *from, enum dtype t, int64_t across,
                       int64_t along, int64_t n, int64_t length)
{
    if (x->half) pack_panels_bf16(to, width, x->half->group, x->half->group, from, across, along, n, length);
    else pack_panels(to, width, from, t, across, along, n, length);
}

/* s = keys from `from` on times the nr queries from p on. */
static void block_scores(const struct block *x, int64_t p, int64_t from, int64_t keys)
{
    const struct micro *u = x->u;
    int64_t D = x->n->D, groups = x->half ? (D + x->half->group - 1) / x->half->group : 0;
    int64_t length = x->half ? groups * x->half->group : D;
    for (int64_t i = 0; i < keys; i += u->mr) {
        int64_t a = (from + i) * length, b = p * length;
        float *s = x->s + i * u->nr;
        if (x->half) x->half->product(groups, (uint16_t *)x->k + a, (uint16_t *)x->q + b, s, u->nr, false);
        else u->product(D, (float *)x->k + a, (float *)x->q + b, s, u->nr, false);
    }
}

/* o += the probabilities times the values of `keys` keys, at offset `from` of the sn packed
 * keys. */
static void block_values(const struct block *x, float *o, int64_t from, int64_t keys, int64_t sn)
{
    const struct micro *u = x->u;
    int64_t D = x->n->D, groups = 0;
    if (x->half) {
        groups = (keys + x->half->group - 1) / x->half->group, sn = round_up(sn, x->half->group);
        x->half->pack_rows(x->p, x->s, keys);
    }
    for (int64_t d = 0; d < D; d += u->mr) {
        int64_t a = d * sn + from * u->mr;
        if (x->half) x->half->product(groups, (uint16_t *)x->v + a, x->p, o + d * u->nr, u->nr, true);
        else u->product(keys, (float *)x->v + a, x->s, o + d * u->nr, u->nr, true);
    }
}

/* Keys s0 .. s0+sn, packed, times the nr queries from p on. */
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
    float factor = x->half ? x->n->scale * (float)M_LOG2E : 1;
    if (x->grid) {
        struct grid_panel at = {u, x->h, x->t0 + p, tn, x->position + p * grid_row(x->grid)};
        grid_add_queries(x->grid, &at, x->s, s0 + from, keys, factor);
        factor = 1;
    }
    u->softmax(x->s, keys, &band, factor, x->max + p, x->sum + p, o, depth);
    block_values(x, o, from, keys, sn);
}

/* o = sum / total and lse, for the nr queries from p on. */
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
    block_pack(x, x->q, u->nr, heads_row(q, x->b, x->t0, x->h), q->dtype, q->stride[1], 1, x->tn, D);
    if (x->grid) grid_positions(x->grid, u, x->half, x->q, D, x->t0, x->tn, x->position);
    for (int64_t i = 0; i < lanes * D && !x->half; i++) ((float *)x->q)[i] *= x->n->scale * (float)M_LOG2E;
    memset(x->o, 0, (size_t)(lanes * block_depth(x)) * sizeof(float));
    memset(x->sum, 0, (size_t)lanes * sizeof(float));
    for (int64_t i = 0; i < lanes; i++) x->max[i] = -FLT_MAX;

    for (int64_t s0 = x->seen.begin; s0 < x->seen.end; s0 += KEYS) {
        int64_t sn = min_i64(KEYS, x->seen.end - s0);
        if (x->masked && !heads_bias(mask, x->b, s0, sn, x->bias, sn)) continue;
        block_pack(x, x->k, u->mr, heads_row(k, x->b, s0, g), k->dtype, k->stride[1], 1, sn, D);
        block_pack(x, x->v, u->mr, heads_row(v, x->b, s0, g), v->dtype, 1, v->stride[1], D, sn);
        for (int64_t p = 0; p < x->tn; p += u->nr) block_panel(x, p, s0, sn);
    }
    for (int64_t p = 0; p < x->tn; p += u->nr) block_finish(x, p);
}

void attention_forward(const struct launch *l, const struct heads *n, struct grid *grid, bool masked)
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
        grid_pack(grid, n, u, half, work);
        work += grid_table_floats(grid, n);
    }
    /* Later queries see more keys: they are scheduled first, so that no thread ends with a long
     * block. */
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < blocks * heads; i++) {
        float *at = work + omp_get_thread_num() * y.total;
        int64_t t0 = (blocks - 1 - i / heads) * QUERIES, end = min_i64(t0 + QUERIES, n->T), head = i % heads;
        struct block x = {.l = l,
                          .n = n,
                          .u = u,
                          .half = half,
                          .grid = grid,
                          .masked = masked,
                          .b = head / n->H,
                          .h = head % n->H,
                          .q = at + y.q,
                          .k = at + y.k,
                          .v = at + y.v,
                          .s = at + y.s,
                          .p = (uint16_t *)(at + y.p),
                          .o = at + y.o,
                          .max = at + y.max,
                          .sum = at + y.sum,
                          .bias = at + y.bias,
                          .rows = at + y.rows,
                          .position = at + y.position};
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
