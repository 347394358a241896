/*
 * cost.c: the cost of a node from its shapes alone: floating-point operations and bytes moved. The
 * planner divides them by the ceilings of a profile.
 */
#include "graph/rules.h"

static double bytes_of(const struct tensor *const *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        if (x[i]) sum += (double)tensor_bytes(x[i]);
    return sum;
}

/* Everything read once and written once; a few operations per element. */
struct cost cost_stream(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)attr;
    double elements = out[0] ? (double)tensor_elements(out[0]) : 0;
    if (in[0] && tensor_elements(in[0]) > elements) elements = (double)tensor_elements(in[0]);
    return (struct cost){4 * elements, bytes_of(in, MAX_IN) + bytes_of(out, MAX_OUT)};
}

/* Rows of a table, selected by ids: only these rows of the table are read. */
struct cost cost_embedding(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)attr;
    return (struct cost){0, bytes_of(in, 1) + 2 * bytes_of(out, 1)};
}

/* dy's rows are added to the accumulator's rows, or to a table of zeros. */
struct cost cost_embedding_dw(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)attr;
    const double dy = (double)tensor_elements(in[1]), size = dtype_size(out[0]->dtype);
    return (struct cost){dy, bytes_of(in, 2) + 2 * dy * size + (in[2] ? 0 : bytes_of(out, 1))};
}

/* Only the rows are moved, not the rest of the cache. */
struct cost cost_cache_write(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)out, (void)attr;
    return (struct cost){0, 2 * bytes_of(in + 1, 1) + bytes_of(in + 2, 1)};
}

struct cost cost_none(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)in, (void)out, (void)attr;
    return (struct cost){0, 0};
}

struct cost cost_copy(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)attr;
    return (struct cost){0, bytes_of(in, 1) + bytes_of(out, 1)};
}

struct cost cost_linear(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)attr;
    return (struct cost){2.0 * (double)tensor_rows(in[0]) * (double)tensor_elements(in[1]),
                         bytes_of(in, 4) + bytes_of(out, 1)};
}

/* The function is applied while z is in cache: it costs arithmetic only. */
struct cost cost_linear_act(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    struct cost c = cost_linear(in, out, attr);
    c.flops += 4.0 * (double)tensor_elements(out[0]);
    if (out[1]) c.bytes += bytes_of(out + 1, 1);
    return c;
}

struct cost cost_matmul(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    double k = (double)(attr->matmul.ta ? tensor_rows(in[0]) : tensor_last(in[0]));
    return (struct cost){2.0 * (double)tensor_elements(out[0]) * k, bytes_of(in, 3) + bytes_of(out, 1)};
}

struct cost cost_bmm(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    double k = (double)in[0]->dim[in[0]->rank - (attr->matmul.ta ? 2 : 1)];
    return (struct cost){2.0 * (double)tensor_elements(out[0]) * k, bytes_of(in, 3) + bytes_of(out, 1)};
}

/* An activation costs about ten operations, and so does its derivative. */
struct cost cost_bmm_act(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)attr;
    return (struct cost){2.0 * (double)tensor_elements(out[0]) * (double)tensor_last(in[0]) +
                             10.0 * (double)tensor_elements(in[1]),
                         bytes_of(in, 2) + bytes_of(out, 1)};
}

struct cost cost_bmm_act_bwd(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)attr;
    return (struct cost){4.0 * (double)tensor_elements(in[0]) * (double)tensor_last(in[1]) +
                             20.0 * (double)tensor_elements(in[2]),
                         bytes_of(in, 3) + bytes_of(out, 2) + bytes_of(in + 2, 1)};
}

/* 1 + 2 + .. + n; 0 for a negative n. */
static double triangle(double n) { return n > 0 ? n * (n + 1) / 2 : 0; }

/* Number of (query, key) pairs that a head computes. Query t, of T, is at position p = t + (S-T)
 * and sees keys p - window < s, and s <= p if causal. So two triangles are subtracted from T x S:
 * the keys after p, 0 .. T-1 of them, and the keys before the window, up to S - window of them.
 * What ranges hold is not known when a plan is made: they count as one causal document. */
static double attention_pairs(double T, double S, bool causal, const union attr *attr)
{
    double pairs = T * S, window = (double)attr->attention.window;
    if (causal) pairs = triangle(S) - triangle(S - T);
    if (window > 0) pairs -= triangle(S - window) - triangle(S - T - window);
    return pairs;
}

/* `products` matrix products of pairs x D per head. */
static struct cost attention_cost(const struct tensor *q, const struct tensor *k, const struct tensor *ranges,
                                  const union attr *attr, double products)
{
    double pairs = (double)(q->dim[0] * q->dim[2]) *
                   attention_pairs((double)q->dim[1], (double)k->dim[1], ranges || attr->attention.causal, attr);
    return (struct cost){products * 2 * pairs * (double)q->dim[3], 0};
}

/* Of a cache only the keys within reach of the queries are read. */
static double keys_read(const struct tensor *q, const struct tensor *k, const union attr *attr)
{
    const int64_t reach = attr->attention.window ? q->dim[1] + attr->attention.window : k->dim[1];
    return k->dim[1] > reach ? (double)reach / (double)k->dim[1] : 1;
}

struct cost cost_attention(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    struct cost c = attention_cost(in[0], in[1], in[4], attr, 2);
    c.bytes =
        bytes_of(in, 1) + keys_read(in[0], in[1], attr) * bytes_of(in + 1, 2) + bytes_of(in + 3, 2) + bytes_of(out, 2);
    return c;
}

struct cost cost_attention_bwd(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    struct cost c = attention_cost(in[1], in[2], in[7], attr, 5);
    c.bytes = bytes_of(in, 8) + bytes_of(out, 3);
    return c;
}

/* Sums along H, then along W. */
struct cost cost_avgpool(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    struct cost c = cost_stream(in, out, attr);
    c.flops *= (double)(attr->avgpool.adaptive ? 2 : attr->avgpool.k[0] + attr->avgpool.k[1]) / 2;
    return c;
}
