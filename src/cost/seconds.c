/*
 * seconds.c: the predicted time of a node: its ideal time at the profile's ceilings, corrected by
 * measurements (calibration.h), plus the cost of a launch and, for a collective, the time of its
 * links (links.h).
 */
#include <math.h>

#include "cost/calibration.h"
#include "cost/links.h"
#include "graph/ops.h"

/* Returns the bandwidth for a node's bytes: up to cache_bytes that of the caches, from 32 times
 * that on that of memory; between the two it is interpolated in log-log space. */
static double bandwidth(const struct profile *p, double bytes)
{
    if (!p->cache_bytes || bytes >= 32 * p->cache_bytes) return p->memory_bandwidth;
    if (bytes <= p->cache_bytes) return p->cache_bandwidth;
    double x = log2(bytes / p->cache_bytes) / 5;
    return p->cache_bandwidth * pow(p->memory_bandwidth / p->cache_bandwidth, x);
}

/* A function of the host in a captured program begins this many seconds late. */
#define HOST_LAUNCH 2e-5
/* Operations of an update that the host's processors do in the time of a byte. */
#define HOST_OPERATIONS 3

/* The host's rate where it was not measured: two channels of DDR5, or 16 cores of a server. */
#define HOST_BANDWIDTH 60e9

double host_rate(const struct profile *p) { return p->host_bandwidth > 0 ? p->host_bandwidth : HOST_BANDWIDTH; }

double kernel_ideal(const struct query *q, enum op op)
{
    if (op_table[op].flags & OPF_VIEW) return 0;
    const struct profile *p = q->profile;
    struct cost c = op_table[op].cost(q->in, q->out, q->attr);
    if (q->crosses) return (double)tensor_bytes(q->in[0]) / p->copy_bandwidth;
    if (q->host) return fmax(c.bytes, c.flops / HOST_OPERATIONS) / host_rate(p);
    const struct tensor *x = q->in[0] ? q->in[0] : q->out[0];
    /* CPU kernels compute f16 as f32 */
    bool fast = x->dtype == DT_BF16 || (x->dtype == DT_F16 && p->kind != DEVICE_CPU);
    double rate = x->dtype == DT_E4M3 ? p->flops_fp8 : fast ? p->flops_bf16 : p->flops_f32;
    /* Bytes of the offload file are read and written where they are, as a copy reads and writes
     * them. */
    const double here = c.bytes - fmin(c.bytes, 2 * q->away);
    double arithmetic = c.flops / rate, memory = here / bandwidth(p, here) + q->away / p->copy_bandwidth;
    return arithmetic > memory ? arithmetic : memory;
}

double kernel_seconds(const struct query *q, enum op op)
{
    if (op_table[op].flags & OPF_VIEW) return 0;
    double ideal = kernel_ideal(q, op);
    if (q->profile->measured && (!q->crosses || q->profile->kind == DEVICE_CUDA))
        ideal = calibration_apply(q->profile->measured, q, op, ideal);
    if (op_table[op].flags & OPF_COMM) ideal += links_seconds(q->profile, q, op);
    return (q->host ? HOST_LAUNCH : q->profile->launch_seconds) + ideal;
}

/* --- corrections by measurements -------------------------------------------------------------- */

/* Below this ideal time a node's time is only the launch. */
#define IDEAL_LEAST 1e-7

_Static_assert((int)ACT_KINDS <= (int)OP_VARIANTS, "a variant for each activation");

double curve_factor(const struct curve *c, double ideal)
{
    int k = 0;
    CHECK(c->n > 0);
    while (k < c->n && c->at[k].ideal < ideal) k++;
    if (k == 0) return c->at[0].factor;
    if (k == c->n) return c->at[c->n - 1].factor;
    const struct curve_point *a = &c->at[k - 1], *b = &c->at[k];
    double x = log(ideal / a->ideal) / log(b->ideal / a->ideal);
    return a->factor * pow(b->factor / a->factor, x);
}

static const struct curve *curve_of_op(const struct calibration *c, enum op op, int variant, enum dtype_class half)
{
    const struct curve *exact = &c->curve[op][variant][half];
    if (exact->n) return exact;
    for (int v = 0; v < OP_VARIANTS; v++)
        if (c->curve[op][v][half].n) return &c->curve[op][v][half];
    for (int v = 0; v < OP_VARIANTS; v++)
        if (c->curve[op][v][!half].n) return &c->curve[op][v][!half];
    return NULL;
}

/* Applies a class's curve. Far beyond the measured range no node is faster than its ceiling: the
 * caches that made it so are too small there. For arithmetic, a short node is never nearer to its
 * ceiling than a long one: if it was measured so, the GPU was cooler during the measurement than it
 * is within a step. */
static double apply_class(const struct curve *c, double ideal, bool arithmetic)
{
    double factor = curve_factor(c, ideal);
    for (int i = 0; i < c->n && arithmetic; i++)
        if (c->at[i].ideal > ideal) factor = fmax(factor, c->at[i].factor);
    return ideal * (ideal > 4 * c->at[c->n - 1].ideal ? fmax(factor, 1) : factor);
}

double calibration_apply(const struct calibration *c, const struct query *q, enum op op, double ideal)
{
    const struct op_class *x = c->classes ? class_find(c, q, op, fmax(ideal, IDEAL_LEAST)) : NULL;
    struct cost cost = op_table[op].cost(q->in, q->out, q->attr);
    if (q->host && (!x || strcmp(x->kernel, q->kernel->name))) return ideal; /* not measured */
    if (x) return apply_class(&x->curve, fmax(ideal, IDEAL_LEAST), cost.flops > 20 * cost.bytes);
    if (q->crosses) return ideal;
    enum dtype_class half = query_class(q);
    const struct curve *curve = curve_of_op(c, op, op_variant(op, q->in, q->attr), half);
    if (!curve && op_like(op)) curve = curve_of_op(c, op_like(op), op_variant(op_like(op), q->in, q->attr), half);
    if (!curve) curve = curve_of_op(c, cost.flops > 20 * cost.bytes ? OP_LINEAR : OP_ADD, 0, half);
    if (ideal < IDEAL_LEAST) ideal = IDEAL_LEAST;
    return curve ? ideal * curve_factor(curve, ideal) : ideal;
}

/* --- which GPU nodes share a calibration curve ------------------------------------------------
 *
 * What makes nodes of an op alike is a column of ops.def (op_classes.c).
 *
 * A class that was not measured uses the nearest one. Extents count by their ratio. So does an
 * ideal time outside of the measured range: nodes that take no longer than a launch tell nothing
 * about long ones. All of these count less than another variant, and that less than another kernel.
 */

enum { FAR_VARIANT = 128, FAR_KERNEL = 256 };

static int step_of(double extent) { return extent > 1 ? (int)lround(2 * log2(extent)) : 0; }

static bool is_half(const struct tensor *t) { return t && (t->dtype == DT_BF16 || t->dtype == DT_F16); }

enum dtype_class query_class(const struct query *q)
{
    for (int i = 0; i < q->nin; i++)
        if (is_half(q->in[i])) return CLASS_HALF;
    for (int o = 0; o < q->nout; o++)
        if (is_half(q->out[o])) return CLASS_HALF;
    return CLASS_FULL;
}

void class_of(struct op_class *x, const struct query *q, enum op op)
{
    double at[EXTENTS] = {0};
    memset(x, 0, sizeof *x);
    x->op = op;
    x->variant = q->crosses ? q->attr->copy.space == SPACE_HOST ? 1 : 2 : op_variant(op, q->in, q->attr);
    x->half = q->crosses ? CLASS_FULL : query_class(q);
    if (q->kernel) strncpy(x->kernel, q->kernel->name, sizeof x->kernel - 1);
    if (q->crosses) return;
    if (op_table[op].alike->extents) op_table[op].alike->extents(q->in, q->out, q->attr, at);
    for (int i = 0; i < EXTENTS; i++) x->extent[i] = step_of(at[i]);
}

int class_order(const void *a, const void *b)
{
    const struct op_class *x = a, *y = b;
    int kernels = strcmp(x->kernel, y->kernel);
    if (x->op != y->op) return x->op < y->op ? -1 : 1;
    if (kernels) return kernels < 0 ? -1 : 1;
    if (x->variant != y->variant) return x->variant < y->variant ? -1 : 1;
    if (x->half != y->half) return x->half < y->half ? -1 : 1;
    for (int i = 0; i < EXTENTS; i++)
        if (x->extent[i] != y->extent[i]) return x->extent[i] < y->extent[i] ? -1 : 1;
    return 0;
}

void calibration_sort(struct calibration *c)
{
    int k = 0;
    qsort(c->class, (size_t)c->classes, sizeof *c->class, class_order);
    for (int op = 0; op <= OP_COUNT; op++) {
        while (k < c->classes && (int)c->class[k].op < op) k++;
        c->first[op] = k;
    }
}

/* Returns how far an ideal time is outside of a curve's range: 0 up to a factor of four. */
static int outside(const struct curve *c, double ideal)
{
    double least = c->at[0].ideal, most = c->at[c->n - 1].ideal, times = ideal < least ? least / ideal : ideal / most;
    return times > 4 ? (int)(2 * log2(times / 4)) : 0;
}

static int distance(const struct op_class *x, const struct op_class *y, double ideal)
{
    int far = (x->variant != y->variant) * FAR_VARIANT;
    if (x->kernel[0] && strcmp(x->kernel, y->kernel)) far += FAR_KERNEL;
    for (int i = 0; i < EXTENTS; i++) far += abs(x->extent[i] - y->extent[i]);
    return far + outside(&y->curve, ideal);
}

/* Reports whether a class can be used for another: both have one dtype class, and a copy between
 * device and host matches only copies in the same direction. */
static bool is_like(const struct op_class *x, const struct op_class *y)
{
    return x->half == y->half && !(x->op == OP_COPY && x->variant != y->variant);
}

const struct op_class *class_find(const struct calibration *c, const struct query *q, enum op op, double ideal)
{
    struct op_class x;
    const struct op_class *nearest = NULL;
    int least = 0;
    class_of(&x, q, op);
    for (int k = c->first[op]; k < c->first[op + 1]; k++) {
        const struct op_class *y = &c->class[k];
        if (!is_like(&x, y)) continue;
        int far = distance(&x, y, ideal);
        if (nearest && far >= least) continue;
        nearest = y;
        least = far;
    }
    return nearest;
}

/* --- links between ranks ---------------------------------------------------------------------- */

/* Returns the bytes of all parts of a collective; *times: how often they are exchanged. */
static double parts_bytes(const struct query *q, enum op op, int *times)
{
    *times = op == OP_ALL_REDUCE || op == OP_SUM_RANKS ? 2 : 1;
    if (op == OP_REDUCE_SCATTER)
        return (double)q->attr->group.ranks * (double)q->attr->group.part * dtype_size(q->in[0]->dtype);
    return (double)tensor_bytes(q->out[0]);
}

double links_bytes(const struct query *q, uint16_t op)
{
    int times;
    const double n = q->attr->group.ranks, bytes = parts_bytes(q, op, &times);
    return n > 1 ? times * bytes * (n - 1) / n : 0;
}

static double exchange_seconds(const struct link *l, int peers, double part)
{
    return peers && l->bandwidth > 0 ? l->latency + peers * (l->peer + part / l->bandwidth) : 0;
}

/* Returns how many ranks of a collective are on one host. */
static int on_host(const struct profile *p, const struct query *q)
{
    const int n = q->attr->group.ranks, axis = q->attr->group.axis;
    if (axis == AXIS_ACROSS || axis == AXIS_HOST) return axis == AXIS_HOST ? n : 1;
    const int all = axis <= AXIS_DATA ? n * mesh_size(q->mesh.tensor) * mesh_size(q->mesh.pipeline) : INT32_MAX;
    const int host = mesh_on_host(q->mesh, all, (enum rank_axis)axis, p->per_host);
    return host && host < n ? host : n;
}

double links_seconds(const struct profile *p, const struct query *q, uint16_t op)
{
    int times;
    const int n = q->attr->group.ranks, host = on_host(p, q), levels = q->attr->group.host;
    const double part = parts_bytes(q, op, &times) / n;
    if (levels)
        return times * (exchange_seconds(&p->link[LINK_LOCAL], levels - 1, part * n / levels) +
                        exchange_seconds(&p->link[LINK_REMOTE], n / levels - 1, part));
    return times * fmax(exchange_seconds(&p->link[LINK_LOCAL], host - 1, part),
                        exchange_seconds(&p->link[LINK_REMOTE], n - host, part));
}

double links_part(const struct query *q, uint16_t op, int *times)
{
    return parts_bytes(q, op, times) / q->attr->group.ranks;
}

static const char *state_of(const struct link *l) { return l->ranks ? "measured" : "unmeasured"; }

static void print_link(const struct link *l, struct text *out)
{
    if (l->ranks) text_printf(out, "%.3g GB/s", 1e-9 * l->bandwidth);
    else text_printf(out, "%s", l->name);
}

void links_print(const struct profile *p, struct text *out)
{
    const struct link *local = &p->link[LINK_LOCAL], *remote = &p->link[LINK_REMOTE];
    const struct link *last = p->per_host > 0 ? remote : local;
    print_link(local, out);
    if (last != local && !local->ranks != !remote->ranks) text_printf(out, ", %s,", state_of(local));
    if (last != local) text_printf(out, " and ");
    if (last != local) print_link(remote, out);
    text_printf(out, ", %s", state_of(last));
}
