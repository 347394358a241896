/*
 * relative.c: the rules of attention over an image's grid with relative positions: builders,
 * shapes, gradients, costs.
 *
 * Query t = (h, w) and key s = (kh, kw) are positions of the same grid, row by row. The score scale
 * q.k gets added
 *
 *     ATTENTION_REL    q . table_h[h - kh + height-1]  +  q . table_w[w - kw + width-1]
 *     ATTENTION_BIAS   table[head, |h - kh| * window + |w - kw|]
 *
 * The first is SAM's decomposed relative position: q is unscaled, and all heads share one pair of
 * tables. The second is TinyViT's learned bias.
 */
#include "graph/infer.h"
#include "graph/ops.h"

static id emit_first(struct graph *g, enum op op, const union attr *attr, const id *in, int nin)
{
    id n = graph_emit(g, op, attr, in, nin);
    return n ? node_at(g, n)->out[0] : 0;
}

id op_attention_rel(struct graph *g, id q, id k, id v, id table_h, id table_w, int height, int width, float scale)
{
    union attr a = {.relative = {scale, height, width}};
    return emit_first(g, OP_ATTENTION_REL, &a, (id[]){q, k, v, table_h, table_w}, 5);
}

id op_attention_bias(struct graph *g, id q, id k, id v, id table, int window, float scale)
{
    union attr a = {.relative = {scale, window, window}};
    return emit_first(g, OP_ATTENTION_BIAS, &a, (id[]){q, k, v, table}, 4);
}

/* --- shapes ----------------------------------------------------------------------------- */

static bool is_table(const struct tensor *x, int64_t rows, int64_t columns)
{
    return x->rank == 2 && x->dim[0] == rows && x->dim[1] == columns && dtype_is_float(x->dtype);
}

/* q, k and v over the attribute's grid. */
static void check_grid(struct infer *f, const struct tensor *q, const struct tensor *k, const struct tensor *v)
{
    const int64_t height = f->attr->relative.height, width = f->attr->relative.width;
    REQUIRE(q->rank == 4 && same(q, k) && same(q, v), "q, k and v must all be [B,T,H,D]");
    REQUIRE(height > 0 && width > 0 && q->dim[1] == height * width, "%lld tokens are not a grid of %lld x %lld",
            (long long)q->dim[1], (long long)height, (long long)width);
    REQUIRE(f->attr->relative.scale > 0, "the scale %g must be above 0", (double)f->attr->relative.scale);
}

static void check_rel_tables(struct infer *f, const struct tensor *h, const struct tensor *w, int64_t D)
{
    const int64_t rows = 2 * f->attr->relative.height - 1, columns = 2 * f->attr->relative.width - 1;
    REQUIRE(is_table(h, rows, D) && is_table(w, columns, D), "the tables must be [%lld,%lld] and [%lld,%lld]",
            (long long)rows, (long long)D, (long long)columns, (long long)D);
}

static void check_bias_table(struct infer *f, const struct tensor *table, int64_t heads)
{
    const int64_t window = f->attr->relative.height;
    REQUIRE(window == f->attr->relative.width, "the window must be square, not %lld x %lld", (long long)window,
            (long long)f->attr->relative.width);
    REQUIRE(is_table(table, heads, window * window), "the table must be [%lld,%lld]: heads, window x window",
            (long long)heads, (long long)(window * window));
}

static void set_forward(struct infer *f, const struct tensor *q)
{
    like(&f->out[0], q);
    set(&f->out[1], statistic(q), 3, (int64_t[]){q->dim[0], q->dim[2], q->dim[1]});
}

void infer_attention_rel(struct infer *f)
{
    check_grid(f, f->in[0], f->in[1], f->in[2]);
    if (!f->error[0]) check_rel_tables(f, f->in[3], f->in[4], f->in[0]->dim[3]);
    if (!f->error[0]) set_forward(f, f->in[0]);
}

void infer_attention_bias(struct infer *f)
{
    check_grid(f, f->in[0], f->in[1], f->in[2]);
    if (!f->error[0]) check_bias_table(f, f->in[3], f->in[0]->dim[2]);
    if (!f->error[0]) set_forward(f, f->in[0]);
}

/* Inputs do, q, k, v, o, lse, tables; outputs dq, dk, dv, and the tables' gradients in f32. */
static void set_backward(struct infer *f, int tables)
{
    const struct tensor *dO = f->in[0], *q = f->in[1], *o = f->in[4], *lse = f->in[5];
    REQUIRE(same(dO, q) && same(o, q) && lse->rank == 3, "shapes do not agree");
    for (int i = 0; i < 3; i++) like(&f->out[i], f->in[i + 1]);
    for (int i = 0; i < tables; i++) set(&f->out[3 + i], statistic(q), 2, f->in[6 + i]->dim);
}

void infer_attention_rel_bwd(struct infer *f)
{
    check_grid(f, f->in[1], f->in[2], f->in[3]);
    if (!f->error[0]) check_rel_tables(f, f->in[6], f->in[7], f->in[1]->dim[3]);
    if (!f->error[0]) set_backward(f, 2);
}

void infer_attention_bias_bwd(struct infer *f)
{
    check_grid(f, f->in[1], f->in[2], f->in[3]);
    if (!f->error[0]) check_bias_table(f, f->in[6], f->in[1]->dim[2]);
    if (!f->error[0]) set_backward(f, 1);
}

/* --- gradients --------------------------------------------------------------------------- */

/* With P and dS as in ATTENTION's, before dS is scaled, and R[t,s] = Rh[h-kh] + Rw[w-kw]:
 *   dv = P^T do,  dk = scale dS^T q,  dq = scale dS k + sum over s of dS[t,s] R[t,s].
 * R depends on kh and kw alone, so only two sums of dS are needed,
 *   dH[t,kh] = sum over kw of dS,   dW[t,kw] = sum over kh of dS:
 *   dq += sum over kh of dH[t,kh] table_h[h-kh+height-1] + the same of dW,
 *   dtable_h[i] = sum over t, kh with h-kh+height-1 = i of dH[t,kh] q[t], over all heads. */
void vjp_attention_rel(struct vjp *v)
{
    id in[8] = {v->dout[0], v->in[0], v->in[1], v->in[2], v->out[0], v->out[1], v->in[3], v->in[4]};
    id n = graph_emit(v->g, OP_ATTENTION_REL_BWD, v->attr, in, 8);
    for (int i = 0; n && i < 5; i++) v->din[i] = node_at(v->g, n)->out[i];
}

/* The bias is added to the score: the gradient of an entry is the sum of dS over all pairs at its
 * distance. */
void vjp_attention_bias(struct vjp *v)
{
    id in[7] = {v->dout[0], v->in[0], v->in[1], v->in[2], v->out[0], v->out[1], v->in[3]};
    id n = graph_emit(v->g, OP_ATTENTION_BIAS_BWD, v->attr, in, 7);
    for (int i = 0; n && i < 4; i++) v->din[i] = node_at(v->g, n)->out[i];
}

/* --- costs --------------------------------------------------------------------------------- */

static double bytes_of(const struct tensor *const *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (x[i]) sum += (double)tensor_bytes(x[i]);
    return sum;
}

/* Per query and head: `products` products with T keys, and `small` products with a row and a column
 * of the grid. */
static double grid_flops(const struct tensor *q, const union attr *attr, double products, double small)
{
    double rows = products * (double)q->dim[1] + small * (double)(attr->relative.height + attr->relative.width);
    return 2 * (double)tensor_elements(q) * rows;
}

struct cost cost_attention_grid(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    return (struct cost){grid_flops(in[0], attr, 2, 1), bytes_of(in, 5) + bytes_of(out, 2)};
}

struct cost cost_attention_grid_bwd(const struct tensor *const *in, const struct tensor *const *out,
                                    const union attr *attr)
{
    return (struct cost){grid_flops(in[1], attr, 5, 3), bytes_of(in, 8) + bytes_of(out, 5)};
}
