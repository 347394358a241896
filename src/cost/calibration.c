/*
 * calibration.c: see calibration.h.
 */
#include "cost/calibration.h"
#include "graph/ops.h"

#include <math.h>
#include <string.h>

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

/* Far beyond the measured range no node is faster than its ceiling: the caches that made it so are
 * too small there. For arithmetic, a short node is never nearer to its ceiling than a long one: if
 * it was measured so, the GPU was cooler during the measurement than it is within a step. */
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
    if (x) return apply_class(&x->curve, fmax(ideal, IDEAL_LEAST), cost.flops > 20 * cost.bytes);
    if (q->crosses) return ideal;
    enum dtype_class half = query_class(q);
    const struct curve *curve = curve_of_op(c, op, op_variant(op, q->in, q->attr), half);
    if (!curve && op_like(op)) curve = curve_of_op(c, op_like(op), op_variant(op_like(op), q->in, q->attr), half);
    if (!curve) curve = curve_of_op(c, cost.flops > 20 * cost.bytes ? OP_LINEAR : OP_ADD, 0, half);
    if (ideal < IDEAL_LEAST) ideal = IDEAL_LEAST;
    return curve ? ideal * curve_factor(curve, ideal) : ideal;
}
