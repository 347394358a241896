/*
 * ref_attention.c: reference attention, plain, over a grid and within its windows, and the
 * gradients (see ref.c for the reference's guarantees, graph/vjp.c for the formulas).
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

/* --- plain ------------------------------------------------------------------------------------ */

/* The shape of a launch, and the operands of a score. */
struct ref_heads {
    int64_t B, T, S, H, G, D, window;
    double scale, cap; /* cap 0: none */
    bool causal;
    const struct operand *q, *k, *mask, *ranges; /* mask, ranges NULL: none */
};

/* Reads the sizes, the mask and the ranges, which are the input behind the mask, of a launch. */
static struct ref_heads ref_heads_of(const struct launch *l, int q, int k, int mask)
{
    const struct operand *x = &l->in[q], *y = &l->in[k];
    return (struct ref_heads){
        .B = x->dim[0], .T = x->dim[1], .S = y->dim[1], .H = x->dim[2], .G = y->dim[2], .D = x->dim[3],
        .scale = l->attr->attention.scale, .cap = l->attr->attention.cap, .causal = l->attr->attention.causal,
        .window = l->attr->attention.window,
        .q = x, .k = y, .mask = launch_has(l, mask) ? &l->in[mask] : NULL,
        .ranges = launch_has(l, mask + 1) ? &l->in[mask + 1] : NULL,
    };
}

/* Returns the first element of a query's head row; that of a key's; and the index of a query's
 * lse. */
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

/* Reports whether a query sees a key: by range, one of its last `window` keys; or by position:
 * queries and keys end together, so query t is at key t + (S-T). */
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

static double ref_product(const struct ref_heads *n, int64_t b, int64_t t, int64_t h, int64_t s)
{
    return n->scale * ref_dot(n->q, query_row(n, b, t, h), n->k, key_row(n, b, s, h), n->D);
}

static double ref_score(const struct ref_heads *n, int64_t b, int64_t t, int64_t h, int64_t s)
{
    if (!key_seen(n, b, t, s)) return -INFINITY;
    double mask = n->mask ? ref_get(n->mask, b * n->S + s) : 0, x = ref_product(n, b, t, h, s);
    return (n->cap > 0 ? n->cap * tanh(x / n->cap) : x) + mask;
}

/* Returns exp(score - lse), and 0 for a query that sees no key: its lse is -inf, too. */
static double ref_probability(double score, double lse) { return score == -INFINITY ? 0 : exp(score - lse); }

static uint64_t ref_attention_workspace(const struct query *q)
{
    return (uint64_t)q->in[0]->dim[3] * sizeof(double);
}

/* Returns log(sum(exp(score))) over the keys that (b,t,h) sees; -inf if it sees none. */
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

/* The gradient. With p = softmax(scale q k^T + mask) and o = p v:  dv = p^T do,  dp = do v^T, and
 * through the softmax dscore = p (dp - rowsum(p dp)). The row sum equals do . o. Then
 *     dq = scale dscore k,   dk = scale dscore^T q.
 * A cap turns a product x into cap tanh(x / cap): dscore is multiplied by 1 - tanh^2. */

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
    double capped = n->cap > 0 ? tanh(ref_product(n, b, t, h, s) / n->cap) : 0;
    return (struct ref_pair){.p = p, .ds = n->scale * p * (dp - sum) * (1 - capped * capped)};
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

/* Computes one key of group g: all queries that see it, in every head of the group. */
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

/* --- over a grid, or within its windows -------------------------------------------------------
 *
 *     q, k, v, o, do, dq, dk, dv  [B,T,H,D]      lse  [B,H,T]      T = height x width      pad  [2,H,D]
 *
 * A whole grid is one window. One query of one head at a time: a row of scores, one for each
 * position of the query's window. The gradients of keys, pad and table rows are summed over queries
 * in double in the workspace and stored at the end. */

/* The shape of a launch, and the operands of a score. */
struct ref_grid {
    int64_t B, T, H, D, height, width;
    int64_t rows, columns, keys; /* of a window */
    double scale;
    const struct operand *q, *k, *v;
    const struct operand *table_h, *table_w, *bias; /* the first two, or only the last */
    const struct operand *pad;                      /* key and value beyond the grid; NULL: zeros */
};

enum ref_positions { BY_TABLES, BY_BIAS, IN_WINDOWS };

static struct ref_grid ref_grid_of(const struct launch *l, int q, int table, enum ref_positions by)
{
    const struct operand *x = &l->in[q];
    struct ref_grid n =
        {.B = x->dim[0], .T = x->dim[1], .H = x->dim[2], .D = x->dim[3], .q = x, .k = x + 1, .v = x + 2};
    if (by == IN_WINDOWS) {
        n.height = l->attr->windowed.height, n.width = l->attr->windowed.width, n.scale = l->attr->windowed.scale;
        n.rows = n.columns = l->attr->windowed.window;
        if (launch_has(l, table + 2)) n.pad = &l->in[table + 2];
    } else {
        n.height = n.rows = l->attr->relative.height, n.width = n.columns = l->attr->relative.width;
        n.scale = l->attr->relative.scale;
    }
    n.keys = n.rows * n.columns;
    if (by == BY_BIAS) n.bias = &l->in[table];
    else n.table_h = &l->in[table], n.table_w = &l->in[table + 1];
    return n;
}

static int64_t grid_row(const struct ref_grid *n, int64_t b, int64_t t, int64_t h)
{
    return ((b * n->T + t) * n->H + h) * n->D;
}
static int64_t grid_lse(const struct ref_grid *n, int64_t b, int64_t t, int64_t h) { return (b * n->H + h) * n->T + t; }

/* Returns the token at position s of query t's window; -1: it is beyond the grid. */
static int64_t token_of(const struct ref_grid *n, int64_t t, int64_t s)
{
    int64_t y = t / n->width / n->rows * n->rows + s / n->columns,
            x = t % n->width / n->columns * n->columns + s % n->columns;
    return y < n->height && x < n->width ? y * n->width + x : -1;
}

/* Returns how many rows, and columns, query t is from position s of its window. */
static int64_t rows_from(const struct ref_grid *n, int64_t t, int64_t s)
{
    return t / n->width % n->rows - s / n->columns;
}
static int64_t columns_from(const struct ref_grid *n, int64_t t, int64_t s)
{
    return t % n->width % n->columns - s % n->columns;
}

/* Returns the first element of a pair's row of the table of rows, and of columns; and its place in
 * the bias. */
static int64_t table_row_h(const struct ref_grid *n, int64_t t, int64_t s)
{
    return (rows_from(n, t, s) + n->rows - 1) * n->D;
}
static int64_t table_row_w(const struct ref_grid *n, int64_t t, int64_t s)
{
    return (columns_from(n, t, s) + n->columns - 1) * n->D;
}
static int64_t place_bias(const struct ref_grid *n, int64_t h, int64_t t, int64_t s)
{
    return h * n->T + llabs(rows_from(n, t, s)) * n->width + llabs(columns_from(n, t, s));
}

/* Returns the key (which 0) or the value (1) at position s of t's window. */
static struct ref_row grid_value(const struct ref_grid *n, int which, int64_t b, int64_t t, int64_t h, int64_t s)
{
    const int64_t token = token_of(n, t, s);
    if (token >= 0) return ref_row(which ? n->v : n->k, grid_row(n, b, token, h));
    return n->pad ? ref_row(n->pad, (which * n->H + h) * n->D) : (struct ref_row){0};
}

static double row_product(const struct ref_row *a, const struct ref_row *b, int64_t n)
{
    double sum = 0;
    for (int64_t k = 0; k < n; k++) sum += ref_at(a, k) * ref_at(b, k);
    return sum;
}

static double grid_score(const struct ref_grid *n, int64_t b, int64_t t, int64_t h, int64_t s)
{
    const struct ref_row query = ref_row(n->q, grid_row(n, b, t, h)), key = grid_value(n, 0, b, t, h, s);
    const double score = n->scale * row_product(&query, &key, n->D);
    if (n->bias) return score + ref_get(n->bias, place_bias(n, h, t, s));
    const struct ref_row high = ref_row(n->table_h, table_row_h(n, t, s)),
                         wide = ref_row(n->table_w, table_row_w(n, t, s));
    return score + row_product(&query, &high, n->D) + row_product(&query, &wide, n->D);
}

static void grid_forward_row(const struct launch *l, const struct ref_grid *n, int64_t b, int64_t t, int64_t h)
{
    double *p = l->work, *o = p + n->keys; // [keys], [D]
    double max = -INFINITY, sum = 0;
    for (int64_t s = 0; s < n->keys; s++) {
        p[s] = grid_score(n, b, t, h, s);
        max = fmax(max, p[s]);
    }
    for (int64_t s = 0; s < n->keys; s++) sum += exp(p[s] - max);
    memset(o, 0, (size_t)n->D * sizeof *o);
    for (int64_t s = 0; s < n->keys; s++) {
        const struct ref_row value = grid_value(n, 1, b, t, h, s);
        const double weight = exp(p[s] - max) / sum;
        for (int64_t d = 0; d < n->D; d++) o[d] += weight * ref_at(&value, d);
    }
    for (int64_t d = 0; d < n->D; d++) ref_put(&l->out[0], grid_row(n, b, t, h) + d, o[d]);
    ref_put(&l->out[1], grid_lse(n, b, t, h), max + log(sum));
}

static void grid_forward(const struct launch *l, enum ref_positions by)
{
    const struct ref_grid n = ref_grid_of(l, 0, 3, by);
    for (int64_t b = 0; b < n.B; b++)
        for (int64_t t = 0; t < n.T; t++)
            for (int64_t h = 0; h < n.H; h++) grid_forward_row(l, &n, b, t, h);
}

static void ref_attention_rel(const struct launch *l) { grid_forward(l, BY_TABLES); }
static void ref_attention_bias(const struct launch *l) { grid_forward(l, BY_BIAS); }
static void ref_attention_window(const struct launch *l) { grid_forward(l, IN_WINDOWS); }

static uint64_t ref_attention_rel_workspace(const struct query *q)
{
    return (uint64_t)(q->in[0]->dim[1] + q->in[0]->dim[3]) * sizeof(double);
}
static uint64_t ref_attention_bias_workspace(const struct query *q) { return ref_attention_rel_workspace(q); }
static uint64_t ref_attention_window_workspace(const struct query *q)
{
    const uint64_t window = (uint64_t)q->attr->windowed.window;
    return (window * window + (uint64_t)q->in[0]->dim[3]) * sizeof(double);
}

/* Sums in double: of one head, and of tables, or the bias, and pad over all heads. */
struct ref_sums {
    double *d[2], *dq;      // dk, dv [T,D], dq [D]
    double *table[2], *pad; // as the tables, as pad
};

/* Adds the gradient ds of query t against position s to all its destinations. */
static void grid_pair(const struct launch *l, const struct ref_grid *n, const struct ref_sums *to, int64_t b, int64_t t,
                      int64_t h, int64_t s, double delta)
{
    const int64_t i = grid_row(n, b, t, h), D = n->D, token = token_of(n, t, s);
    double *dk = token >= 0 ? to->d[0] + token * D : to->pad + h * D,
           *dv = token >= 0 ? to->d[1] + token * D : to->pad + (n->H + h) * D;
    const struct ref_row key = grid_value(n, 0, b, t, h, s), value = grid_value(n, 1, b, t, h, s),
                         query = ref_row(n->q, i), dout = ref_row(&l->in[0], i);
    const double p = exp(grid_score(n, b, t, h, s) - ref_get(&l->in[5], grid_lse(n, b, t, h))),
                 ds = p * (row_product(&dout, &value, D) - delta);
    for (int64_t d = 0; d < D; d++) {
        dv[d] += p * ref_at(&dout, d);
        dk[d] += n->scale * ds * ref_at(&query, d);
        to->dq[d] += n->scale * ds * ref_at(&key, d);
    }
    if (n->bias) {
        to->table[0][place_bias(n, h, t, s)] += ds;
        return;
    }
    const int64_t y = table_row_h(n, t, s), x = table_row_w(n, t, s);
    const struct ref_row high = ref_row(n->table_h, y), wide = ref_row(n->table_w, x);
    for (int64_t d = 0; d < D; d++) {
        to->dq[d] += ds * (ref_at(&high, d) + ref_at(&wide, d));
        to->table[0][y + d] += ds * ref_at(&query, d);
        to->table[1][x + d] += ds * ref_at(&query, d);
    }
}

static void grid_backward_head(const struct launch *l, const struct ref_grid *n, const struct ref_sums *to, int64_t b,
                               int64_t h)
{
    const int64_t D = n->D;
    memset(to->d[0], 0, (size_t)(2 * n->T * D) * sizeof(double));
    for (int64_t t = 0; t < n->T; t++) {
        int64_t i = grid_row(n, b, t, h);
        double delta = ref_dot(&l->in[0], i, &l->in[4], i, D);
        memset(to->dq, 0, (size_t)D * sizeof(double));
        for (int64_t s = 0; s < n->keys; s++) grid_pair(l, n, to, b, t, h, s, delta);
        for (int64_t d = 0; d < D; d++) ref_put(&l->out[0], i + d, to->dq[d]);
    }
    for (int which = 0; which < 2; which++)
        for (int64_t s = 0; s < n->T; s++)
            for (int64_t d = 0; d < D; d++)
                ref_put(&l->out[1 + which], grid_row(n, b, s, h) + d, to->d[which][s * D + d]);
}

static void grid_backward(const struct launch *l, enum ref_positions by)
{
    const struct ref_grid n = ref_grid_of(l, 1, 6, by);
    const int64_t first = operand_elements(&l->out[3]), second = by == BY_BIAS ? 0 : operand_elements(&l->out[4]),
                  pad = by == IN_WINDOWS ? operand_elements(&l->out[5]) : 0;
    struct ref_sums to = {.d = {l->work}};
    to.d[1] = to.d[0] + n.T * n.D, to.dq = to.d[1] + n.T * n.D;
    to.table[0] = to.dq + n.D, to.table[1] = to.table[0] + first, to.pad = to.table[1] + second;
    memset(to.table[0], 0, (size_t)(first + second + pad) * sizeof(double));
    for (int64_t b = 0; b < n.B; b++)
        for (int64_t h = 0; h < n.H; h++) grid_backward_head(l, &n, &to, b, h);
    for (int64_t e = 0; e < first; e++) ref_put(&l->out[3], e, to.table[0][e]);
    for (int64_t e = 0; e < second; e++) ref_put(&l->out[4], e, to.table[1][e]);
    for (int64_t e = 0; e < pad; e++) ref_put(&l->out[5], e, to.pad[e]);
}

static void ref_attention_rel_bwd(const struct launch *l) { grid_backward(l, BY_TABLES); }
static void ref_attention_bias_bwd(const struct launch *l) { grid_backward(l, BY_BIAS); }
static void ref_attention_window_bwd(const struct launch *l) { grid_backward(l, IN_WINDOWS); }

static uint64_t ref_attention_rel_bwd_workspace(const struct query *q)
{
    int64_t doubles = (2 * q->in[1]->dim[1] + 1) * q->in[1]->dim[3];
    for (int i = 3; i < q->nout; i++) doubles += tensor_elements(q->out[i]);
    return (uint64_t)doubles * sizeof(double);
}
static uint64_t ref_attention_bias_bwd_workspace(const struct query *q) { return ref_attention_rel_bwd_workspace(q); }
static uint64_t ref_attention_window_bwd_workspace(const struct query *q) { return ref_attention_rel_bwd_workspace(q); }

REF_KERNEL_WORK(ATTENTION_REL, attention_rel);
REF_KERNEL_WORK(ATTENTION_REL_BWD, attention_rel_bwd);
REF_KERNEL_WORK(ATTENTION_BIAS, attention_bias);
REF_KERNEL_WORK(ATTENTION_BIAS_BWD, attention_bias_bwd);
REF_KERNEL_WORK(ATTENTION_WINDOW, attention_window);
REF_KERNEL_WORK(ATTENTION_WINDOW_BWD, attention_window_bwd);
