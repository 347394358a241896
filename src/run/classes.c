/*
 * classes.c: which nodes of a GPU are alike (calibration.h).
 *
 *     product     op(a) [M,K] op(b) [K,N]   min(M,N), K      a narrow side leaves tiles empty
 *     attention   T queries, S keys, D      T, S, D          7 queries are no 64
 *     convolution C to O, k x k             C of a group, O, k^2
 *     sum         to fewer elements         the row, what is left
 *     the rest    rows                      the row
 *
 * A class that was not measured is taken for the nearest one: extents count by how many times
 * larger one is than the other, and so does an ideal that lies outside of what a class was measured at: from
 * nodes that took a launch and no more nothing is learnt of long ones. All of that is less than
 * another variant, and that less than another kernel.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/calibration.h"

enum { FAR_VARIANT = 128, FAR_KERNEL = 256 };

static int step_of(double extent) { return extent > 1 ? (int)lround(2 * log2(extent)) : 0; }

static double elements(const struct tensor *t) { return t ? (double)tensor_elements(t) : 0; }
static double last(const struct tensor *t) { return t && t->rank ? (double)t->dim[t->rank - 1] : 1; }

static void of_product(const struct query *q, enum op op, double at[EXTENTS])
{
    const struct tensor *a = q->in[0], *y = q->out[0] ? q->out[0] : q->out[1];
    double n = last(y), m = elements(y) / n, k = op == OP_LINEAR || op == OP_LINEAR_ACT ? last(a) : elements(a) / m;
    if (op == OP_BMM) { /* of one of the products */
        m = (double)y->dim[y->rank - 2];
        k = elements(a) / (elements(y) / n);
    }
    at[0] = fmin(m, n);
    at[1] = k;
}

static void of_attention(const struct query *q, int first, double at[EXTENTS])
{
    at[0] = (double)q->in[first]->dim[1];
    at[1] = (double)q->in[first + 1]->dim[1];
    at[2] = last(q->in[first]);
}

/* Squares of a grid: the square counts, not how many there are. */
static void of_windows(const struct query *q, int first, double at[EXTENTS])
{
    at[0] = at[1] = (double)q->attr->windowed.window * q->attr->windowed.window;
    at[2] = last(q->in[first]);
}

/* A kernel [O,C/groups,kh,kw]. */
static void of_convolution(const struct tensor *w, double at[EXTENTS])
{
    at[0] = (double)w->dim[1];
    at[1] = (double)w->dim[0];
    at[2] = (double)(w->dim[2] * w->dim[3]);
}

static void find_extents(const struct query *q, enum op op, double at[EXTENTS])
{
    switch (op) {
    case OP_LINEAR: case OP_LINEAR_ACT: case OP_MATMUL: case OP_BMM: of_product(q, op, at); break;
    case OP_ATTENTION: case OP_ATTENTION_REL: case OP_ATTENTION_BIAS: of_attention(q, 0, at); break;
    case OP_ATTENTION_BWD: case OP_ATTENTION_REL_BWD: case OP_ATTENTION_BIAS_BWD: of_attention(q, 1, at); break;
    case OP_ATTENTION_WINDOW: of_windows(q, 0, at); break;
    case OP_ATTENTION_WINDOW_BWD: of_windows(q, 1, at); break;
    case OP_CONV: case OP_CONV_DX: of_convolution(q->in[1], at); break;
    case OP_CONV_DW: of_convolution(q->out[0], at); break;
    case OP_SUM_TO: at[0] = last(q->in[0]); at[1] = elements(q->out[0]); break;
    /* These go over their elements as one long row. */
    case OP_ADAMW: case OP_ADAMW_8BIT: case OP_SGD: case OP_SUMSQ: case OP_CAST: case OP_SCALE: case OP_ACT: case OP_ACT_BWD:
    case OP_SILU_GATE: case OP_SILU_GATE_BWD: case OP_SILU_GATE_BWD_Y: case OP_ACCUMULATE: case OP_FILL: case OP_SUM: break;
    default: at[0] = last(q->in[0] ? q->in[0] : q->out[0]);
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

/* Up to a factor of four the curve goes on. */
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

/* A copy between the spaces is like no other copy. */
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
