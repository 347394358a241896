/*
 * classes.c: which GPU nodes share a calibration curve (calibration.h). What makes nodes of an op
 * alike is a column of ops.def (graph/op_classes.c).
 *
 * A class that was not measured uses the nearest one. Extents count by their ratio. So does an
 * ideal time outside of the measured range: nodes that take no longer than a launch tell nothing
 * about long ones. All of these count less than another variant, and that less than another kernel.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cost/calibration.h"
#include "graph/ops.h"

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

/* Up to a factor of four the curve is extrapolated at no distance. */
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

/* A copy between device and host matches only copies in the same direction. */
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
