/*
 * ref_window.c: reference attention within the windows of a grid and its gradient (see ref.c for
 * the reference's guarantees, graph/windowed.c for the op).
 *
 *     q, k, v, o, do, dq, dk, dv  [B,T,H,D]      lse  [B,H,T]      T = height x width      pad  [2,H,D]
 *
 * One query of one head at a time: a row of window^2 scores. The gradients of keys, pad and table
 * rows are summed over queries in double in the workspace and stored at the end.
 */
#include <math.h>
#include <string.h>

#include "cpu/reference/ref.h"

struct windows {
    int64_t B, T, H, D, height, width, window, keys;
    double scale;
    const struct operand *q, *k, *v, *table_h, *table_w, *pad; /* pad NULL: zeros */
};

static struct windows windows_of(const struct launch *l, int q, int table)
{
    const struct operand *x = &l->in[q];
    const int64_t window = l->attr->windowed.window;
    return (struct windows){
        .B = x->dim[0], .T = x->dim[1], .H = x->dim[2], .D = x->dim[3], .height = l->attr->windowed.height,
        .width = l->attr->windowed.width, .window = window, .keys = window * window, .scale = l->attr->windowed.scale,
        .q = x, .k = &l->in[q + 1], .v = &l->in[q + 2], .table_h = &l->in[table], .table_w = &l->in[table + 1],
        .pad = ref_has(l, table + 2) ? &l->in[table + 2] : NULL,
    };
}

static int64_t row_at(const struct windows *n, int64_t b, int64_t t, int64_t h)
{
    return ((b * n->T + t) * n->H + h) * n->D;
}
static int64_t lse_at(const struct windows *n, int64_t b, int64_t t, int64_t h) { return (b * n->H + h) * n->T + t; }

/* The token at position s of query t's window; -1: it is beyond the grid. */
static int64_t token_of(const struct windows *n, int64_t t, int64_t s)
{
    int64_t y = t / n->width / n->window * n->window + s / n->window,
            x = t % n->width / n->window * n->window + s % n->window;
    return y < n->height && x < n->width ? y * n->width + x : -1;
}

/* The rows of the two tables for query t and position s. */
static int64_t table_row_h(const struct windows *n, int64_t t, int64_t s)
{
    return t / n->width % n->window - s / n->window + n->window - 1;
}
static int64_t table_row_w(const struct windows *n, int64_t t, int64_t s)
{
    return t % n->width % n->window - s % n->window + n->window - 1;
}

/* The key (which 0) or the value (1) at position s of t's window. */
static struct ref_row row_of(const struct windows *n, int which, int64_t b, int64_t t, int64_t h, int64_t s)
{
    const int64_t token = token_of(n, t, s);
    if (token >= 0) return ref_row(which ? n->v : n->k, row_at(n, b, token, h));
    return n->pad ? ref_row(n->pad, (which * n->H + h) * n->D) : (struct ref_row){0};
}

static double score(const struct windows *n, int64_t b, int64_t t, int64_t h, int64_t s)
{
    const struct ref_row query = ref_row(n->q, row_at(n, b, t, h)), key = row_of(n, 0, b, t, h, s);
    const struct ref_row high = ref_row(n->table_h, table_row_h(n, t, s) * n->D),
                         wide = ref_row(n->table_w, table_row_w(n, t, s) * n->D);
    double sum = 0;
    for (int64_t d = 0; d < n->D; d++)
        sum += ref_at(&query, d) * (n->scale * ref_at(&key, d) + ref_at(&high, d) + ref_at(&wide, d));
    return sum;
}

/* --- forward -------------------------------------------------------------------------- */

static uint64_t ref_attention_window_workspace(const struct query *q)
{
    const uint64_t window = (uint64_t)q->attr->windowed.window;
    return (window * window + (uint64_t)q->in[0]->dim[3]) * sizeof(double);
}

static void forward_row(const struct launch *l, const struct windows *n, int64_t b, int64_t t, int64_t h)
{
    double *p = l->work, *o = p + n->keys; // [keys], [D]
    double max = -INFINITY, sum = 0;
    for (int64_t s = 0; s < n->keys; s++) {
        p[s] = score(n, b, t, h, s);
        max = fmax(max, p[s]);
    }
    for (int64_t s = 0; s < n->keys; s++) sum += exp(p[s] - max);
    memset(o, 0, (size_t)n->D * sizeof *o);
    for (int64_t s = 0; s < n->keys; s++) {
        const struct ref_row value = row_of(n, 1, b, t, h, s);
        const double weight = exp(p[s] - max) / sum;
        for (int64_t d = 0; d < n->D; d++) o[d] += weight * ref_at(&value, d);
    }
    for (int64_t d = 0; d < n->D; d++) ref_put(&l->out[0], row_at(n, b, t, h) + d, o[d]);
    ref_put(&l->out[1], lse_at(n, b, t, h), max + log(sum));
}

static void ref_attention_window(const struct launch *l)
{
    const struct windows n = windows_of(l, 0, 3);
    for (int64_t b = 0; b < n.B; b++)
        for (int64_t t = 0; t < n.T; t++)
            for (int64_t h = 0; h < n.H; h++) forward_row(l, &n, b, t, h);
}

/* --- backward --------------------------------------------------------------------------- */

/* Sums in double: of one head, and of tables and pad over all heads. */
struct ref_sums {
    double *d[2], *dq;         // dk, dv [T,D], dq [D]
    double *table[2], *pad;    // as the tables, as pad
};

static uint64_t ref_attention_window_bwd_workspace(const struct query *q)
{
    const int64_t *dim = q->in[1]->dim, rows = 2 * q->attr->windowed.window - 1;
    return (uint64_t)((2 * dim[1] + 1 + 2 * rows + 2 * dim[2]) * dim[3]) * sizeof(double);
}

/* Query t against position s: adds the pair's gradient ds to all its destinations. */
static void backward_pair(const struct launch *l, const struct windows *n, const struct ref_sums *to, int64_t b,
                          int64_t t, int64_t h, int64_t s, double delta)
{
    const struct operand *dO = &l->in[0];
    const int64_t i = row_at(n, b, t, h), D = n->D, token = token_of(n, t, s);
    const int64_t y = table_row_h(n, t, s) * D, x = table_row_w(n, t, s) * D;
    double *dk = token >= 0 ? to->d[0] + token * D : to->pad + h * D,
           *dv = token >= 0 ? to->d[1] + token * D : to->pad + (n->H + h) * D;
    double p = exp(score(n, b, t, h, s) - ref_get(&l->in[5], lse_at(n, b, t, h))), dp = 0;
    const struct ref_row key = row_of(n, 0, b, t, h, s), value = row_of(n, 1, b, t, h, s), query = ref_row(n->q, i),
                         dout = ref_row(dO, i);
    const struct ref_row high = ref_row(n->table_h, y), wide = ref_row(n->table_w, x);
    for (int64_t d = 0; d < D; d++) dp += ref_at(&dout, d) * ref_at(&value, d);
    const double ds = p * (dp - delta);
    for (int64_t d = 0; d < D; d++) {
        const double q = ref_at(&query, d);
        dv[d] += p * ref_at(&dout, d);
        dk[d] += n->scale * ds * q;
        to->dq[d] += ds * (n->scale * ref_at(&key, d) + ref_at(&high, d) + ref_at(&wide, d));
        to->table[0][y + d] += ds * q;
        to->table[1][x + d] += ds * q;
    }
}

static void backward_head(const struct launch *l, const struct windows *n, const struct ref_sums *to, int64_t b,
                          int64_t h)
{
    const int64_t D = n->D;
    memset(to->d[0], 0, (size_t)(2 * n->T * D) * sizeof(double));
    for (int64_t t = 0; t < n->T; t++) {
        int64_t i = row_at(n, b, t, h);
        double delta = ref_dot(&l->in[0], i, &l->in[4], i, D);
        memset(to->dq, 0, (size_t)D * sizeof(double));
        for (int64_t s = 0; s < n->keys; s++) backward_pair(l, n, to, b, t, h, s, delta);
        for (int64_t d = 0; d < D; d++) ref_put(&l->out[0], i + d, to->dq[d]);
    }
    for (int which = 0; which < 2; which++)
        for (int64_t s = 0; s < n->T; s++)
            for (int64_t d = 0; d < D; d++)
                ref_put(&l->out[1 + which], row_at(n, b, s, h) + d, to->d[which][s * D + d]);
}

static void ref_attention_window_bwd(const struct launch *l)
{
    const struct windows n = windows_of(l, 1, 6);
    const int64_t table = (2 * n.window - 1) * n.D;
    struct ref_sums to = {.d = {l->work}};
    to.d[1] = to.d[0] + n.T * n.D, to.dq = to.d[1] + n.T * n.D;
    to.table[0] = to.dq + n.D, to.table[1] = to.table[0] + table, to.pad = to.table[1] + table;
    memset(to.table[0], 0, (size_t)(2 * table + 2 * n.H * n.D) * sizeof(double));
    for (int64_t b = 0; b < n.B; b++)
        for (int64_t h = 0; h < n.H; h++) backward_head(l, &n, &to, b, h);
    for (int64_t e = 0; e < table; e++) {
        ref_put(&l->out[3], e, to.table[0][e]);
        ref_put(&l->out[4], e, to.table[1][e]);
    }
    for (int64_t e = 0; e < 2 * n.H * n.D; e++) ref_put(&l->out[5], e, to.pad[e]);
}

REF_KERNEL_WORK(ATTENTION_WINDOW, attention_window);
REF_KERNEL_WORK(ATTENTION_WINDOW_BWD, attention_window_bwd);
