/*
 * seconds.c: the predicted time of a node: its ideal time at the profile's ceilings, corrected by
 * measurements, plus the cost of a launch.
 */
#include <math.h>

#include "cost/calibration.h"
#include "cost/links.h"
#include "graph/ops.h"

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
    if (q->profile->measured && (!q->crosses || q->profile->kind == DEVICE_CUDA))
        ideal = calibration_apply(q->profile->measured, q, op, ideal);
    if (op_table[op].flags & OPF_COMM) ideal += links_seconds(q->profile, q, op);
    return q->profile->launch_seconds + ideal;
}
