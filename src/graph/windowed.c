/*
 * windowed.c: the rules of attention within the windows of a grid (ATTENTION_WINDOW): builder,
 * shapes, gradient, cost.
 *
 *      . . . . | . . + +     a grid of 5 x 6 in windows of 4 x 4: positions of a window beyond
 *      . . . . | . . + +     the grid (+) have pad's key and value, each at its own relative
 *      . . . . | . . + +     position, and no query
 *      . . . . | . . + +
 *      --------+--------
 *      . . . . | . . + +
 *      + + + + | + + + +
 *
 * Within a window it is ATTENTION_REL with window x window positions. If k and v are outputs of a
 * linear layer whose input grid would be padded with zeros, pad is that layer's bias: the result is
 * the same, without the padded grid, its copies and its products.
 */
#include "graph/infer.h"
#include "graph/ops.h"

id op_attention_window(struct graph *g, id q, id k, id v, id table_h, id table_w, id pad, struct window_options o)
{
    union attr a = {.windowed = {o.scale, o.height, o.width, o.window}};
    id n = graph_emit(g, OP_ATTENTION_WINDOW, &a, (id[]){q, k, v, table_h, table_w, pad}, pad ? 6 : 5);
    return n ? node_at(g, n)->out[0] : 0;
}

/* --- shapes ----------------------------------------------------------------------------- */

static bool is_table(const struct tensor *x, int64_t rows, int64_t columns)
{
    return x->rank == 2 && x->dim[0] == rows && x->dim[1] == columns && dtype_is_float(x->dtype);
}

/* q, k and v are inputs from `first` on, tables and pad from `table` on. */
static void check_windowed(struct infer *f, int first, int table)
{
    const struct tensor *q = f->in[first], *pad = f->in[table + 2];
    const int64_t height = f->attr->windowed.height, width = f->attr->windowed.width, window = f->attr->windowed.window;
    REQUIRE(q->rank == 4 && same(q, f->in[first + 1]) && same(q, f->in[first + 2]), "q, k and v must all be [B,T,H,D]");
    REQUIRE(height > 0 && width > 0 && q->dim[1] == height * width, "%lld tokens are not a grid of %lld x %lld",
            (long long)q->dim[1], (long long)height, (long long)width);
    REQUIRE(window > 0 && window <= 4096, "a window of %lld x %lld", (long long)window, (long long)window);
    REQUIRE(f->attr->windowed.scale > 0, "the scale %g must be above 0", (double)f->attr->windowed.scale);
    for (int i = 0; i < 2; i++)
        REQUIRE(is_table(f->in[table + i], 2 * window - 1, q->dim[3]), "the tables must be [%lld,%lld]",
                (long long)(2 * window - 1), (long long)q->dim[3]);
    REQUIRE(!pad || (pad->rank == 3 && pad->dim[0] == 2 && pad->dim[1] == q->dim[2] && pad->dim[2] == q->dim[3] &&
                     dtype_is_float(pad->dtype)),
            "pad must be [2,%lld,%lld]: a key and a value for each head", (long long)q->dim[2], (long long)q->dim[3]);
}

void infer_attention_window(struct infer *f)
{
    const struct tensor *q = f->in[0];
    check_windowed(f, 0, 3);
    if (f->error[0]) return;
    like(&f->out[0], q);
    set(&f->out[1], statistic(q), 3, (int64_t[]){q->dim[0], q->dim[2], q->dim[1]});
}

void infer_attention_window_bwd(struct infer *f)
{
    const struct tensor *q = f->in[1];
    check_windowed(f, 1, 6);
    if (f->error[0]) return;
    REQUIRE(same(f->in[0], q) && same(f->in[4], q) && f->in[5]->rank == 3, "shapes do not agree");
    for (int i = 0; i < 3; i++) like(&f->out[i], f->in[i + 1]);
    for (int i = 0; i < 2; i++) set(&f->out[3 + i], statistic(q), 2, f->in[6 + i]->dim);
    set(&f->out[5], statistic(q), 3, (int64_t[]){2, q->dim[2], q->dim[3]});
}

/* --- gradient ------------------------------------------------------------------------------ */

/* As ATTENTION_REL, window by window; the gradient of pad sums dk and dv over all padded
 * positions. */
void vjp_attention_window(struct vjp *v)
{
    id in[9] = {v->dout[0], v->in[0], v->in[1], v->in[2], v->out[0], v->out[1], v->in[3], v->in[4], v->in[5]};
    id n = graph_emit(v->g, OP_ATTENTION_WINDOW_BWD, v->attr, in, v->in[5] ? 9 : 8);
    for (int i = 0; n && i < (v->in[5] ? 6 : 5); i++) v->din[i] = node_at(v->g, n)->out[i];
}

/* --- costs ------------------------------------------------------------------------------------ */

static double bytes_of(const struct tensor *const *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (x[i]) sum += (double)tensor_bytes(x[i]);
    return sum;
}

/* Per query and head: `products` products with a window's keys, and `small` products with a row and
 * a column of the window. */
static double window_flops(const struct tensor *q, const union attr *attr, double products, double small)
{
    const double window = (double)attr->windowed.window;
    return 2 * (double)tensor_elements(q) * (products * window * window + small * 2 * window);
}

struct cost cost_attention_window(const struct tensor *const *in, const struct tensor *const *out,
                                  const union attr *attr)
{
    return (struct cost){window_flops(in[0], attr, 2, 1), bytes_of(in, 6) + bytes_of(out, 2)};
}

struct cost cost_attention_window_bwd(const struct tensor *const *in, const struct tensor *const *out,
                                      const union attr *attr)
{
    return (struct cost){window_flops(in[1], attr, 5, 3), bytes_of(in, 9) + bytes_of(out, 6)};
}
