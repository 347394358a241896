/*
 * ref_relative.c: reference attention over a grid and its gradient (see ref.c for the reference's
 * guarantees, graph/relative.c for the formulas).
 *
 *     q, k, v, o, do, dq, dk, dv  [B,T,H,D]      lse  [B,H,T]      T = height x width
 *
 * One query of one head at a time: a row of T scores. The gradients of keys and of table rows are
 * summed over queries in double in the workspace and stored at the end.
 */
#include <math.h>
#include <string.h>

#include "cpu/reference/ref.h"

/* The shape of a launch, and the operands of a score. */
struct ref_grid {
    int64_t B, T, H, D, height, width;
    double scale;
    const struct operand *q, *k, *v;
    const struct operand *table_h, *table_w, *bias; /* the first two, or only the last */
};

static struct ref_grid ref_grid_of(const struct launch *l, int q, int table, bool biased)
{
    const struct operand *x = &l->in[q];
    return (struct ref_grid){
        .B = x->dim[0], .T = x->dim[1], .H = x->dim[2], .D = x->dim[3],
        .height = l->attr->relative.height, .width = l->attr->relative.width, .scale = l->attr->relative.scale,
        .q = x, .k = &l->in[q + 1], .v = &l->in[q + 2], .table_h = biased ? NULL : &l->in[table],
        .table_w = biased ? NULL : &l->in[table + 1], .bias = biased ? &l->in[table] : NULL,
    };
}

static int64_t row_at(const struct ref_grid *n, int64_t b, int64_t t, int64_t h)
{
    return ((b * n->T + t) * n->H + h) * n->D;
}
static int64_t lse_at(const struct ref_grid *n, int64_t b, int64_t t, int64_t h) { return (b * n->H + h) * n->T + t; }

/* The rows of the two tables, or the index in the bias' row, of a pair. */
static int64_t table_row_h(const struct ref_grid *n, int64_t t, int64_t s)
{
    return t / n->width - s / n->width + n->height - 1;
}
static int64_t table_row_w(const struct ref_grid *n, int64_t t, int64_t s)
{
    return t % n->width - s % n->width + n->width - 1;
}
static int64_t place_bias(const struct ref_grid *n, int64_t h, int64_t t, int64_t s)
{
    int64_t dy = t / n->width - s / n->width, dx = t % n->width - s % n->width;
    return h * n->T + (dy < 0 ? -dy : dy) * n->width + (dx < 0 ? -dx : dx);
}

static double score(const struct ref_grid *n, int64_t b, int64_t t, int64_t h, int64_t s)
{
    const int64_t i = row_at(n, b, t, h);
    double value = n->scale * ref_dot(n->q, i, n->k, row_at(n, b, s, h), n->D);
    if (n->bias) return value + ref_get(n->bias, place_bias(n, h, t, s));
    return value + ref_dot(n->q, i, n->table_h, table_row_h(n, t, s) * n->D, n->D) +
           ref_dot(n->q, i, n->table_w, table_row_w(n, t, s) * n->D, n->D);
}

/* --- forward -------------------------------------------------------------------------- */

static uint64_t forward_workspace(const struct query *q)
{
    return (uint64_t)(q->in[0]->dim[1] + q->in[0]->dim[3]) * sizeof(double);
}
static uint64_t ref_attention_rel_workspace(const struct query *q) { return forward_workspace(q); }
static uint64_t ref_attention_bias_workspace(const struct query *q) { return forward_workspace(q); }

static void forward_row(const struct launch *l, const struct ref_grid *n, int64_t b, int64_t t, int64_t h)
{
    double *p = l->work, *o = p + n->T; // [T], [D]
    double max = -INFINITY, sum = 0;
    for (int64_t s = 0; s < n->T; s++) {
        p[s] = score(n, b, t, h, s);
        max = fmax(max, p[s]);
    }
    for (int64_t s = 0; s < n->T; s++) sum += exp(p[s] - max);
    memset(o, 0, (size_t)n->D * sizeof *o);
    for (int64_t s = 0; s < n->T; s++) {
        const double weight = exp(p[s] - max) / sum;
        const struct ref_row value = ref_row(n->v, row_at(n, b, s, h));
        for (int64_t d = 0; d < n->D; d++) o[d] += weight * ref_at(&value, d);
    }
    for (int64_t d = 0; d < n->D; d++) ref_put(&l->out[0], row_at(n, b, t, h) + d, o[d]);
    ref_put(&l->out[1], lse_at(n, b, t, h), max + log(sum));
}

static void forward(const struct launch *l, const struct ref_grid *n)
{
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t t = 0; t < n->T; t++)
            for (int64_t h = 0; h < n->H; h++) forward_row(l, n, b, t, h);
}

static void ref_attention_rel(const struct launch *l)
{
    const struct ref_grid n = ref_grid_of(l, 0, 3, false);
    forward(l, &n);
}

static void ref_attention_bias(const struct launch *l)
{
    const struct ref_grid n = ref_grid_of(l, 0, 3, true);
    forward(l, &n);
}

/* --- backward --------------------------------------------------------------------------- */

/* Sums in double: of one head, and of the tables over all heads. */
struct ref_sums {
    double *dk, *dv, *dq; // [T,D] [T,D] [D]
    double *table[2];     // as the tables
};

static uint64_t backward_workspace(const struct query *q)
{
    uint64_t floats = (uint64_t)(2 * q->in[1]->dim[1] + 1) * (uint64_t)q->in[1]->dim[3];
    for (int i = 6; i < q->nin; i++) floats += (uint64_t)tensor_elements(q->in[i]);
    return floats * sizeof(double);
}
static uint64_t ref_attention_rel_bwd_workspace(const struct query *q) { return backward_workspace(q); }
static uint64_t ref_attention_bias_bwd_workspace(const struct query *q) { return backward_workspace(q); }

/* Query t against key s: adds the pair's gradient ds to all its destinations. */
static void backward_pair(const struct launch *l, const struct ref_grid *n, const struct ref_sums *to, int64_t b,
                          int64_t t, int64_t h, int64_t s, double delta)
{
    const struct operand *dO = &l->in[0];
    const int64_t i = row_at(n, b, t, h), j = row_at(n, b, s, h), D = n->D;
    double p = exp(score(n, b, t, h, s) - ref_get(&l->in[5], lse_at(n, b, t, h)));
    double ds = p * (ref_dot(dO, i, n->v, j, D) - delta);
    const struct ref_row query = ref_row(n->q, i), key = ref_row(n->k, j), dout = ref_row(dO, i);
    for (int64_t d = 0; d < D; d++) {
        to->dv[s * D + d] += p * ref_at(&dout, d);
        to->dk[s * D + d] += n->scale * ds * ref_at(&query, d);
        to->dq[d] += n->scale * ds * ref_at(&key, d);
    }
    if (n->bias) {
        to->table[0][place_bias(n, h, t, s)] += ds;
        return;
    }
    const int64_t y = table_row_h(n, t, s) * D, x = table_row_w(n, t, s) * D;
    const struct ref_row high = ref_row(n->table_h, y), wide = ref_row(n->table_w, x);
    for (int64_t d = 0; d < D; d++) {
        to->dq[d] += ds * (ref_at(&high, d) + ref_at(&wide, d));
        to->table[0][y + d] += ds * ref_at(&query, d);
        to->table[1][x + d] += ds * ref_at(&query, d);
    }
}

static void backward_head(const struct launch *l, const struct ref_grid *n, const struct ref_sums *to, int64_t b,
                          int64_t h)
{
    const int64_t D = n->D;
    memset(to->dk, 0, (size_t)(2 * n->T * D) * sizeof(double));
    for (int64_t t = 0; t < n->T; t++) {
        int64_t i = row_at(n, b, t, h);
        double delta = ref_dot(&l->in[0], i, &l->in[4], i, D);
        memset(to->dq, 0, (size_t)D * sizeof(double));
        for (int64_t s = 0; s < n->T; s++) backward_pair(l, n, to, b, t, h, s, delta);
        for (int64_t d = 0; d < D; d++) ref_put(&l->out[0], i + d, to->dq[d]);
    }
    for (int64_t s = 0; s < n->T; s++)
        for (int64_t d = 0; d < D; d++) {
            ref_put(&l->out[1], row_at(n, b, s, h) + d, to->dk[s * D + d]);
            ref_put(&l->out[2], row_at(n, b, s, h) + d, to->dv[s * D + d]);
        }
}

static void backward(const struct launch *l, const struct ref_grid *n, int tables)
{
    struct ref_sums to = {.dk = l->work};
    to.dv = to.dk + n->T * n->D;
    to.dq = to.dv + n->T * n->D;
    to.table[0] = to.dq + n->D;
    to.table[1] = to.table[0] + operand_elements(&l->in[6]);
    for (int i = 0; i < tables; i++) memset(to.table[i], 0, (size_t)operand_elements(&l->in[6 + i]) * sizeof(double));
    for (int64_t b = 0; b < n->B; b++)
        for (int64_t h = 0; h < n->H; h++) backward_head(l, n, &to, b, h);
    for (int i = 0; i < tables; i++)
        for (int64_t e = 0; e < operand_elements(&l->out[3 + i]); e++) ref_put(&l->out[3 + i], e, to.table[i][e]);
}

static void ref_attention_rel_bwd(const struct launch *l)
{
    const struct ref_grid n = ref_grid_of(l, 1, 6, false);
    backward(l, &n, 2);
}

static void ref_attention_bias_bwd(const struct launch *l)
{
    const struct ref_grid n = ref_grid_of(l, 1, 6, true);
    backward(l, &n, 1);
}

REF_KERNEL_WORK(ATTENTION_REL, attention_rel);
REF_KERNEL_WORK(ATTENTION_REL_BWD, attention_rel_bwd);
REF_KERNEL_WORK(ATTENTION_BIAS, attention_bias);
REF_KERNEL_WORK(ATTENTION_BIAS_BWD, attention_bias_bwd);
