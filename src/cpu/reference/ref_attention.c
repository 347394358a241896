/*
 * ref_attention.c: reference attention and its gradient (see ref.c for the reference's guarantees).
 *
 *     q, o, do, dq  [B,T,H,D]      k, v, dk, dv  [B,S,G,D]      lse  [B,H,T]      mask  [B,S]      ranges  [B,T,2]
 *
 * Query head h reads key head h / (H/G). A key that a query does not see has the score -inf,
 * whether because of its position, the query's range or the mask, and is not multiplied. Scores are
 * recomputed wherever they are needed, so nothing of size T x S is ever stored; the workspace holds
 * one or two rows of D doubles.
 */
#include <math.h>

#include "cpu/reference/ref.h"

/* The shape of a launch, and the operands of a score. */
struct ref_heads {
    int64_t B, T, S, H, G, D, window;
    double scale;
    bool causal;
    const struct operand *q, *k, *mask, *ranges; /* mask, ranges NULL: none */
};

/* The ranges are the input behind the mask. */
static struct ref_heads ref_heads_of(const struct launch *l, int q, int k, int mask)
{
    const struct operand *x = &l->in[q], *y = &l->in[k];
    return (struct ref_heads){
        .B = x->dim[0],
        .T = x->dim[1],
        .S = y->dim[1],
        .H = x->dim[2],
        .G = y->dim[2],
        .D = x->dim[3],
        .scale = l->attr->attention.scale,
        .causal = l->attr->attention.causal,
        .window = l->attr->attention.window,
        .q = x,
        .k = y,
        .mask = ref_has(l, mask) ? &l->in[mask] : NULL,
        .ranges = ref_has(l, mask + 1) ? &l->in[mask + 1] : NULL,
    };
}

/* The first element of a query's and of a key's head row; the index of a query's lse. */
static int64_t query_row(const struct ref_heads *n, int64_t b, int64_t t, int64_t h)
{
    return ((b * n->T + t) * n->H + h) * n->D;
}
static int64_t key_row(const struct ref_heads *n, int64_t b, int64_t s, int64_t h)
{
    return ((b * n->S + s) * n->G + h / (n->H / n->G)) * n->D;
}
static int64_t lse_at(const struct ref_heads *n, int64_t b, int64_t t, int64_t h)
{
    return (b * n->H + h) * n->T + t;
}

/* By range, the last `window` keys of it. By position: queries and keys end together, so query t is
 * at key t + (S-T). */
static bool key_seen(const struct ref_heads *n, int64_t b, int64_t t, int64_t s)
{
    if (n->ranges) {
        int64_t begin = (int64_t)ref_get(n->ranges, (b * n->T + t) * 2),
                end = (int64_t)ref_get(n->ranges, (b * n->T + t) * 2 + 1);
        return s >= begin && s < end && (!n->window || s >= end - n->window);
    }
    int64_t before = t + (n->S - n->T) - s;
    return (!n->causal || before >= 0) && (!n->window || before < n->window);
}

static double ref_score(const struct ref_heads *n, int64_t b, int64_t t, int64_t h, int64_t s)
{
    if (!key_seen(n, b, t, s)) return -INFINITY;
    double mask = n->mask ? ref_get(n->mask, b * n->S + s) : 0;
    return n->scale * ref_dot(n->q, query_row(n, b, t, h), n->k, key_row(n, b, s, h), n->D) + mask;
}

/* exp(score - lse), and 0 for a query that sees no key: its lse is -inf, too. */
static double ref_probability(double score, double lse) { return score == -INFINITY ? 0 : exp(score - lse); }

/* --- forward -------------------------------------------------------------------------- */

static uint64_t ref_attention_workspace(const struct query *q)
{
    return (uint64_t)q->in[0]->dim[3] * sizeof(double);
}

/* log(sum(exp(score))) over the keys that (b,t,h) sees; -inf if it sees none. */
static double ref_row_lse(const struct ref_heads *n, int64_t b, int64_t t, int64_t h)
{
    double max = -INFINITY, sum = 0;
    for (int64_t s = 0; s < n->S; s++) max = fmax(max, ref_score(n, b, t, h, s));
    for (int64_t s = 0; s < n->S; s++) sum += ref_probability(ref_score(n, b, t, h, s), max);
    return max + log(sum);
}

static void ref_attention(const struct launch *l)
{
    const struct operand *v = &l->in[2];
    const struct ref_heads n = ref_heads_of(l, 0, 1, 3);
    double *o = l->work; // [D]
    for (int64_t b = 0; b < n.B; b++)
        for (int64_t t = 0; t < n.T; t++)
            for (int64_t h = 0; h < n.H; h++) {
                double lse = ref_row_lse(&n, b, t, h);
                for (int64_t d = 0; d < n.D; d++) o[d] = 0;
                for (int64_t s = 0; s < n.S; s++) {
                    double p = ref_probability(ref_score(&n, b, t, h, s), lse);
                    const struct ref_row value = ref_row(v, key_row(&n, b, s, h));
                    for (int64_t d = 0; p != 0 && d < n.D; d++) o[d] += p * ref_at(&value, d);
                }
                for (int64_t d = 0; d < n.D; d++) ref_put(&l->out[0], query_row(&n, b, t, h) + d, o[d]);
                ref_put(&l->out[1], lse_at(&n, b, t, h), lse);
            }
}

/* --- backward ---------------------------------------------------------------------------
 *
 * With p = softmax(scale q k^T + mask) and o = p v:  dv = p^T do,  dp = do v^T, and through
 * the softmax dscore = p (dp - rowsum(p dp)). The row sum equals do . o. Then
 *     dq = scale dscore k,   dk = scale dscore^T q.
 */

static uint64_t ref_attention_bwd_workspace(const struct query *q)
{
    return (uint64_t)q->in[1]->dim[3] * 2 * sizeof(double);
}

/* p and scale * dscore of one query and one key. */
struct ref_pair {
    double p, ds;
};
static struct ref_pair ref_pair_of(const struct launch *l, const struct ref_heads *n, int64_t b, int64_t t,
                                   int64_t h, int64_t s)
{
    const struct operand *dout = &l->in[0], *v = &l->in[3], *o = &l->in[4];
    const int64_t i = query_row(n, b, t, h), j = key_row(n, b, s, h);
    double p = ref_probability(ref_score(n, b, t, h, s), ref_get(&l->in[5], lse_at(n, b, t, h)));
    if (p == 0) return (struct ref_pair){0};
    double dp = ref_dot(dout, i, v, j, n->D), sum = ref_dot(dout, i, o, i, n->D);
    return (struct ref_pair){.p = p, .ds = n->scale * p * (dp - sum)};
}

static void ref_attention_dq(const struct launch *l, const struct ref_heads *n, int64_t b, int64_t t, int64_t h)
{
    double *dq = l->work; // [D]
    for (int64_t d = 0; d < n->D; d++) dq[d] = 0;
    for (int64_t s = 0; s < n->S; s++) {
        struct ref_pair pair = ref_pair_of(l, n, b, t, h, s);
        const struct ref_row key = ref_row(&l->in[2], key_row(n, b, s, h));
        for (int64_t d = 0; pair.p != 0 && d < n->D; d++) dq[d] += pair.ds * ref_at(&key, d);
    }
    for (int64_t d = 0; d < n->D; d++) ref_put(&l->out[0], query_row(n, b, t, h) + d, dq[d]);
}

/* One key of group g: all queries that see it, in every head of the group. */
static void ref_attention_dkv(const struct launch *l, const struct ref_heads *n, int64_t b, int64_t s, int64_t g)
{
    const int64_t group = n->H / n->G, at = key_row(n, b, s, g * group);
    double *dk = l->work, *dv = dk + n->D; // [D] each
    for (int64_t d = 0; d < n->D; d++) dk[d] = dv[d] = 0;
    for (int64_t h = g * group; h < (g + 1) * group; h++)
        for (int64_t t = 0; t < n->T; t++) {
            struct ref_pair pair = ref_pair_of(l, n, b, t, h, s);
            for (int64_t d = 0; pair.p != 0 && d < n->D; d++) {
                dk[d] += pair.ds * ref_get(&l->in[1], query_row(n, b, t, h) + d);
                dv[d] += pair.p * ref_get(&l->in[0], query_row(n, b, t, h) + d);
            }
        }
    for (int64_t d = 0; d < n->D; d++) {
        ref_put(&l->out[1], at + d, dk[d]);
        ref_put(&l->out[2], at + d, dv[d]);
    }
}

static void ref_attention_bwd(const struct launch *l)
{
    const struct ref_heads n = ref_heads_of(l, 1, 2, 6);
    for (int64_t b = 0; b < n.B; b++) {
        for (int64_t t = 0; t < n.T; t++)
            for (int64_t h = 0; h < n.H; h++) ref_attention_dq(l, &n, b, t, h);
        for (int64_t s = 0; s < n.S; s++)
            for (int64_t g = 0; g < n.G; g++) ref_attention_dkv(l, &n, b, s, g);
    }
}

REF_KERNEL_WORK(ATTENTION, attention);
REF_KERNEL_WORK(ATTENTION_BWD, attention_bwd);
