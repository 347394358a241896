/*
 * cost.c: what a node must do, from shapes alone: floating-point operations and
 * bytes moved. The planner divides them by a profile's ceilings.
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
                         bytes_of(in, 3) + bytes_of(out, 1)};
}

struct cost cost_matmul(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    double k = (double)(attr->matmul.ta ? tensor_rows(in[0]) : tensor_last(in[0]));
    return (struct cost){2.0 * (double)tensor_elements(out[0]) * k, bytes_of(in, 3) + bytes_of(out, 1)};
}

/* `products` matrix products of T x S x D per head; causal does about half. */
static struct cost attention_cost(const struct tensor *q, const struct tensor *k, bool causal, double products)
{
    double pairs = (double)q->dim[0] * (double)q->dim[2] * (double)q->dim[1] * (double)k->dim[1] * (causal ? 0.5 : 1);
    return (struct cost){products * 2 * pairs * (double)q->dim[3], 0};
}

struct cost cost_attention(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    struct cost c = attention_cost(in[0], in[1], attr->attention.causal, 2);
    c.bytes = bytes_of(in, 3) + bytes_of(out, 2);
    return c;
}

struct cost cost_attention_bwd(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    struct cost c = attention_cost(in[1], in[2], attr->attention.causal, 5);
    c.bytes = bytes_of(in, 6) + bytes_of(out, 3);
    return c;
}

/* Sums along H, then along W. */
struct cost cost_avgpool(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    struct cost c = cost_stream(in, out, attr);
    c.flops *= (double)(attr->avgpool.adaptive ? 2 : attr->avgpool.k[0] + attr->avgpool.k[1]) / 2;
    return c;
}
