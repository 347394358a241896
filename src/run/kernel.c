/*
 * kernel.c: finds the kernel of a node and predicts its time.
 */
#include "run/kernel.h"

#include <math.h>
#include <string.h>

#include "run/calibration.h"

/* The list of an op's kernels. */
static const struct kernel *kernels_of(enum device_kind device, enum op op)
{
    switch (device) {
    case DEVICE_REF: return ref_kernels[op];
    case DEVICE_CPU: return cpu_kernels[op];
    default: CHECK(false, "device %d", device);
    }
    return NULL;
}

static const struct kernel *find_in(const struct kernel *k, enum op op, const struct query *q)
{
    for (; k && k->op != OP_NONE; k++)
        if (k->op == op && (!k->match || k->match(q))) return k;
    return NULL;
}

const struct kernel *kernel_find(enum device_kind device, enum op op, const struct query *q)
{
    const struct kernel *k = NULL;
    if (device != DEVICE_CUDA) k = find_in(kernels_of(device, op), op, q);
    else
        for (const struct kernel *const *f = cuda_kernels; *f && !k; f++) k = find_in(*f, op, q);
    /* Ops without a fast CPU kernel run on the reference kernel: slow but correct. */
    if (!k && device == DEVICE_CPU) k = find_in(ref_kernels[op], op, q);
    return k;
}

void query_fill(struct query *q, const struct graph *g, const struct node *n, const struct profile *p)
{
    memset(q, 0, sizeof *q);
    q->attr = &n->attr;
    q->nin = n->nin;
    q->nout = n->nout;
    q->profile = p;
    for (int i = 0; i < n->nin; i++) q->in[i] = n->in[i] ? tensor_at(g, n->in[i]) : NULL;
    for (int o = 0; o < n->nout; o++) q->out[o] = n->out[o] ? tensor_at(g, n->out[o]) : NULL;
    if (q->in[0] && q->out[0]) q->crosses = storage_of(g, n->in[0])->space != storage_of(g, n->out[0])->space;
}

/* Up to cache_bytes the bandwidth is that of the caches, from 32 times that on it is that of
 * memory; between the two it is interpolated in log-log space. */
static double bandwidth(const struct profile *p, double bytes)
{
    if (!p->cache_bytes || bytes >= 32 * p->cache_bytes) return p->memory_bandwidth;
    if (bytes <= p->cache_bytes) return p->cache_bandwidth;
    double x = log2(bytes / p->cache_bytes) / 5;
    return p->cache_bandwidth * pow(p->memory_bandwidth / p->cache_bandwidth, x);
}

double kernel_ideal(const struct query *q, enum op op)
{
    if (op_table[op].flags & OPF_VIEW) return 0;
    const struct profile *p = q->profile;
    struct cost c = op_table[op].cost(q->in, q->out, q->attr);
    if (q->crosses) return (double)tensor_bytes(q->in[0]) / p->copy_bandwidth;
    const struct tensor *x = q->in[0] ? q->in[0] : q->out[0];
    /* CPU kernels compute f16 as f32 */
    bool fast = x->dtype == DT_BF16 || (x->dtype == DT_F16 && p->kind != DEVICE_CPU);
    double rate = fast ? p->flops_bf16 : p->flops_f32;
    double arithmetic = c.flops / rate, memory = c.bytes / bandwidth(p, c.bytes);
    return arithmetic > memory ? arithmetic : memory;
}

double kernel_seconds(const struct query *q, enum op op)
{
    if (op_table[op].flags & OPF_VIEW) return 0;
    double ideal = kernel_ideal(q, op);
    if (q->profile->measured && (!q->crosses || q->profile->kind == DEVICE_CUDA)) ideal = calibration_apply(q->profile->measured, q, op, ideal);
    return q->profile->launch_seconds + ideal;
}
