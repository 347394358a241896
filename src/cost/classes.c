/*
 * classes.c: which GPU nodes share a calibration curve (calibration.h). The extents of a class:
 *
 *     product     op(a) [M,K] op(b) [K,N]   min(M,N), K      a narrow side leaves tiles empty
 *     attention   T queries, S keys, D      T, S, D          7 queries do not fill a tile of 64
 *     convolution C to O, k x k             C of a group, O, k^2
 *     sum         to fewer elements         the row, the elements of the result
 *     the rest    rows                      the row
 *
 * A class that was not measured uses the nearest one. Extents count by their ratio. So does an
 * ideal time outside of the measured range: nodes that take no longer than a launch tell nothing
 * about long ones. All of these count less than another variant, and that less than another kernel.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cost/calibration.h"

enum { FAR_VARIANT = 128, FAR_KERNEL = 256 };

static int step_of(double extent) { return extent > 1 ? (int)lround(2 * log2(extent)) : 0; }

static double elements(const struct tensor *t) { return t ? (double)tensor_elements(t) : 0; }
static double last_dim(const struct tensor *t) { return t && t->rank ? (double)t->dim[t->rank - 1] : 1; }

static void product_extents(const struct query *q, enum op op, double at[EXTENTS])
{
    const struct tensor *a = q->in[0], *y = q->out[0] ? q->out[0] : q->out[1];
    double n = last_dim(y), m = elements(y) / n, k = op == OP_LINEAR || op == OP_LINEAR_ACT ? last_dim(a) : elements(a) / m;
    if (op == OP_BMM) { /* of one matrix of the batch */
        m = (double)y->dim[y->rank - 2];
        k = elements(a) / (elements(y) / n);
    }
    at[0] = fmin(m, n);
    at[1] = k;
}

static void attention_extents(const struct query *q, int first, double at[EXTENTS])
{
    at[0] = (double)q->in[first]->dim[1];
    at[1] = (double)q->in[first + 1]->dim[1];
    at[2] = last_dim(q->in[first]);
}

/* Windows of a grid: the window's size counts, not their number. */
static void window_extents(const struct query *q, int first, double at[EXTENTS])
{
    at[0] = at[1] = (double)q->attr->windowed.window * q->attr->windowed.window;
    at[2] = last_dim(q->in[first]);
}

/* For a filter [O,C/groups,kh,kw]. */
static void convolution_extents(const struct tensor *w, double at[EXTENTS])
{
    at[0] = (double)w->dim[1];
    at[1] = (double)w->dim[0];
    at[2] = (double)(w->dim[2] * w->dim[3]);
}

static void find_extents(const struct query *q, enum op op, double at[EXTENTS])
{
    switch (op) {
    case OP_LINEAR: case OP_LINEAR_ACT: case OP_MATMUL: case OP_BMM: product_extents(q, op, at); break;
    case OP_ATTENTION: case OP_ATTENTION_REL: case OP_ATTENTION_BIAS: attention_extents(q, 0, at); break;
    case OP_ATTENTION_BWD: case OP_ATTENTION_REL_BWD: case OP_ATTENTION_BIAS_BWD: attention_extents(q, 1, at); break;
    case OP_ATTENTION_WINDOW: window_extents(q, 0, at); break;
    case OP_ATTENTION_WINDOW_BWD: window_extents(q, 1, at); break;
    case OP_CONV: case OP_CONV_DX: convolution_extents(q->in[1], at); break;
    case OP_CONV_DW: convolution_extents(q->out[0], at); break;
    case OP_SUM_TO: at[0] = last_dim(q->in[0]); at[1] = elements(q->out[0]); break;
    /* These kernels treat their elements as one long row. */
    case OP_ADAMW: case OP_ADAMW_8BIT: case OP_SGD: case OP_SUMSQ: case OP_CAST: case OP_SCALE: case OP_ACT: case OP_ACT_BWD:
    case OP_SILU_GATE: case OP_SILU_GATE_BWD: case OP_SILU_GATE_BWD_Y: case OP_ACCUMULATE: case OP_FILL: case OP_SUM: break;
    default: at[0] = last_dim(q->in[0] ? q->in[0] : q->out[0]);
    }
}

void class_of(struct op_class *x, const struct query *q, enum op op)
{
    double at[EXTENTS] = {0};
    memset(x, 0, sizeof *x);
    x->op = op;
    x->variant = q->crosses ? q->attr->copy.space == SPACE_HOST ? 1 : 2 : op_variant(op, q->attr);
    x->half = q->crosses ? CLASS_FULL : query_class(q);
    if (q->kernel) strncpy(x->kernel, q->kernel->name, sizeof x->kernel - 1);
    if (q->crosses) return;
    find_extents(q, op, at);
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
