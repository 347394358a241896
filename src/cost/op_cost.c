/*
 * op_cost.c: the cost of a node from its shapes only: floating-point operations and bytes moved.
 * The planner divides them by the ceilings of a profile. What connects ranks is not known here: a
 * collective counts memory traffic, and seconds.c adds the time of its exchange.
 */
#include "graph/rules.h"

#define UNUSED __attribute__((unused))
#define COST(name)                                                                                       \
    struct cost cost_##name(const struct tensor *const *in UNUSED, const struct tensor *const *out UNUSED, \
                            const union attr *attr UNUSED)

static double bytes_of(const struct tensor *const *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (x[i]) sum += (double)tensor_bytes(x[i]);
    return sum;
}
static double elements(const struct tensor *t) { return (double)tensor_elements(t); }

COST(none) { return (struct cost){0, 0}; }

/* Counts everything read once and written once, and a few operations per element. */
COST(stream)
{
    double n = out[0] ? elements(out[0]) : 0;
    if (in[0] && elements(in[0]) > n) n = elements(in[0]);
    return (struct cost){4 * n, bytes_of(in, MAX_IN) + bytes_of(out, MAX_OUT)};
}

/* Counts the part of the weights that is dequantized. */
COST(dequantize)
{
    const double n = elements(out[0]), share = n / (double)attr->dequantize.all;
    return (struct cost){4 * n, share * bytes_of(in, 1) + bytes_of(out, 1)};
}

/* Counts the rows that the ids select: the rest of the table is not read. */
COST(embedding) { return (struct cost){0, bytes_of(in, 1) + 2 * bytes_of(out, 1)}; }

/* Counts dy's rows, which are added to rows of the accumulator, or to a table of zeros. */
COST(embedding_dw)
{
    const double dy = elements(in[1]), size = dtype_size(out[0]->dtype);
    return (struct cost){dy, bytes_of(in, 2) + 2 * dy * size + (in[2] ? 0 : bytes_of(out, 1))};
}

/* Counts the rows that are moved, not the rest of the cache. */
COST(cache_write) { return (struct cost){0, 2 * bytes_of(in + 1, 1) + bytes_of(in + 2, 1)}; }

COST(copy) { return (struct cost){0, bytes_of(in, 1) + bytes_of(out, 1)}; }

/* --- products -------------------------------------------------------------------------------- */

COST(linear)
{
    return (struct cost){2.0 * (double)tensor_rows(in[0]) * elements(in[1]), bytes_of(in, 4) + bytes_of(out, 1)};
}

/* Adds the function, which is applied while z is in cache: it costs arithmetic only. */
COST(linear_act)
{
    struct cost c = cost_linear(in, out, attr);
    c.flops += 4.0 * elements(out[0]);
    if (out[1]) c.bytes += bytes_of(out + 1, 1);
    return c;
}

COST(matmul)
{
    double k = (double)(attr->matmul.ta ? tensor_rows(in[0]) : tensor_last(in[0]));
    return (struct cost){2.0 * elements(out[0]) * k, bytes_of(in, 3) + bytes_of(out, 1)};
}

/* Counts the average rows of the experts that w has. */
COST(grouped_linear)
{
    const int64_t all = attr->grouped_linear.experts;
    const double share = all ? (double)in[1]->dim[0] / (double)all : 1;
    return (struct cost){2.0 * share * elements(out[0]) * (double)tensor_last(in[0]),
                         share * (bytes_of(in, 1) + bytes_of(out, 1)) + bytes_of(in + 1, 2)};
}

COST(scaled_linear)
{
    return (struct cost){2.0 * (double)tensor_rows(in[0]) * elements(in[2]), bytes_of(in, 6) + bytes_of(out, 1)};
}

COST(scaled_dw)
{
    return (struct cost){2.0 * elements(in[0]) * (double)in[2]->dim[0], bytes_of(in, 5) + bytes_of(out, 1)};
}

COST(grouped_dw)
{
    return (struct cost){2.0 * elements(in[0]) * (double)tensor_last(in[1]), bytes_of(in, 4) + bytes_of(out, 1)};
}

COST(bmm)
{
    double k = (double)in[0]->dim[in[0]->rank - (attr->matmul.ta ? 2 : 1)];
    return (struct cost){2.0 * elements(out[0]) * k, bytes_of(in, 3) + bytes_of(out, 1)};
}

/* Counts about ten operations for an activation, and as many for its derivative. */
COST(bmm_act)
{
    return (struct cost){2.0 * elements(out[0]) * (double)tensor_last(in[0]) + 10.0 * elements(in[1]),
                         bytes_of(in, 2) + bytes_of(out, 1)};
}

COST(bmm_act_bwd)
{
    return (struct cost){4.0 * elements(in[0]) * (double)tensor_last(in[1]) + 20.0 * elements(in[2]),
                         bytes_of(in, 3) + bytes_of(out, 2) + bytes_of(in + 2, 1)};
}

/* Counts one product with the kernel of its channel for each element of dy (or y). */
static struct cost conv_cost(const struct tensor *y, const struct tensor *w, const struct tensor *const *in,
                             const struct tensor *out)
{
    return (struct cost){2.0 * elements(y) * (double)(tensor_elements(w) / max_i64(1, w->dim[0])),
                         (double)tensor_bytes(out) + bytes_of(in, 3)};
}
COST(conv) { return conv_cost(out[0], in[1], in, out[0]); }
COST(conv_dx) { return conv_cost(in[0], in[1], in, out[0]); }
COST(conv_dw) { return conv_cost(in[0], out[0], in, out[0]); }

/* --- attention ------------------------------------------------------------------------------- */

/* Returns 1 + 2 + .. + n; 0 for a negative n. */
static double triangle(double n) { return n > 0 ? n * (n + 1) / 2 : 0; }

/* Returns the number of (query, key) pairs that a head computes. Query t, of T, is at position p =
 * t + (S-T) and sees keys p - window < s, and s <= p if causal. So two triangles are subtracted
 * from T x S: the keys after p, 0 .. T-1 of them, and the keys before the window, up to S - window
 * of them. What ranges hold is not known when a plan is made: they count as one causal document. */
static double attention_pairs(double T, double S, bool causal, const union attr *attr)
{
    double pairs = T * S, window = (double)attr->attention.window;
    if (causal) pairs = triangle(S) - triangle(S - T);
    if (window > 0) pairs -= triangle(S - window) - triangle(S - T - window);
    return pairs;
}

/* Returns the flops of `products` matrix products of pairs x D per head. */
static double attention_flops(const struct tensor *q, const struct tensor *k, const struct tensor *ranges,
                              const union attr *attr, double products)
{
    double pairs = (double)(q->dim[0] * q->dim[2]) *
                   attention_pairs((double)q->dim[1], (double)k->dim[1], ranges || attr->attention.causal, attr);
    return products * 2 * pairs * (double)q->dim[3];
}

/* Returns the part of a cache that is read: the keys within reach of the queries. */
static double keys_read(const struct tensor *q, const struct tensor *k, const union attr *attr)
{
    const int64_t reach = attr->attention.window ? q->dim[1] + attr->attention.window : k->dim[1];
    return k->dim[1] > reach ? (double)reach / (double)k->dim[1] : 1;
}

COST(attention)
{
    return (struct cost){attention_flops(in[0], in[1], in[4], attr, 2),
                         bytes_of(in, 1) + keys_read(in[0], in[1], attr) * bytes_of(in + 1, 2) + bytes_of(in + 3, 2) +
                             bytes_of(out, 2)};
}

COST(attention_bwd)
{
    return (struct cost){attention_flops(in[1], in[2], in[7], attr, 5), bytes_of(in, 8) + bytes_of(out, 3)};
}

/* Returns the flops per query and head of `products` products with T keys, and of `small` products
 * with a row and a column of the grid. */
static double grid_flops(const struct tensor *q, const union attr *attr, double products, double small)
{
    double rows = products * (double)q->dim[1] + small * (double)(attr->relative.height + attr->relative.width);
    return 2 * elements(q) * rows;
}
COST(attention_grid) { return (struct cost){grid_flops(in[0], attr, 2, 1), bytes_of(in, 5) + bytes_of(out, 2)}; }
COST(attention_grid_bwd) { return (struct cost){grid_flops(in[1], attr, 5, 3), bytes_of(in, 8) + bytes_of(out, 5)}; }

/* Does as grid_flops, for the keys, rows and columns of a window. */
static double window_flops(const struct tensor *q, const union attr *attr, double products, double small)
{
    const double window = (double)attr->windowed.window;
    return 2 * elements(q) * (products * window * window + small * 2 * window);
}
COST(attention_window) { return (struct cost){window_flops(in[0], attr, 2, 1), bytes_of(in, 6) + bytes_of(out, 2)}; }
COST(attention_window_bwd)
{
    return (struct cost){window_flops(in[1], attr, 5, 3), bytes_of(in, 9) + bytes_of(out, 6)};
}

/* --- the bytes of cost_stream with other flops ----------------------------------------------- */

static struct cost with_flops(struct cost c, double flops) { return (struct cost){flops, c.bytes}; }

/* Counts sums along H, then along W. */
COST(avgpool)
{
    const struct cost c = cost_stream(in, out, attr);
    return with_flops(c, c.flops *
                             ((double)(attr->avgpool.adaptive ? 2 : attr->avgpool.k[0] + attr->avgpool.k[1]) / 2));
}

/* Counts an exponential and a logarithm for each pixel. */
COST(masks)
{
    const struct cost c = cost_stream(in, out, attr);
    return with_flops(c, c.flops * 10);
}

/* Counts a lookup for each code, without vector instructions: at the matrix rate a code costs as
 * much as OPERATIONS flops (an estimate, which calibration corrects). */
COST(adamw_8bit)
{
    enum { OPERATIONS = 160 };
    return with_flops(cost_stream(in, out, attr), OPERATIONS * elements(in[0]));
}

/* --- shares and ranks ------------------------------------------------------------------------ */

/* Counts x, which is read, and its cells, which are written. */
COST(squares)
{
    const double n = elements(in[0]);
    return (struct cost){2 * n, (double)tensor_bytes(in[0]) + 8 * n / (double)attr->squares.cell};
}

/* Counts an iteration: it adds one partial sum on average, and writes x and a partial sum. */
COST(fold) { return (struct cost){elements(in[0]), 4 * (double)tensor_bytes(in[0])}; }

/* Counts x, which every rank sends and receives twice, in parts, and its part, which it adds. */
COST(all_reduce) { return (struct cost){elements(in[0]), 6 * (double)tensor_bytes(in[0])}; }

/* Counts x, which is sent in parts, and as much, which is received and added. */
COST(reduce_scatter)
{
    return (struct cost){elements(in[0]), 3 * (double)tensor_bytes(in[0]) + (double)tensor_bytes(out[0])};
}

/* Counts what all ranks send, which is written. */
COST(all_gather) { return (struct cost){0, (double)tensor_bytes(in[0]) + (double)tensor_bytes(out[0])}; }
