/*
 * rules.h: declares every rule that ops.def names, from ops.def itself, so that a row cannot name a
 * rule that does not exist.
 */
#ifndef RULES_H
#define RULES_H

#include "graph/ops.h"

#define OP(NAME, lo, hi, OUTS, SHAPE, VJP, READS, ALIASES, COST, CLASS, FLAGS, DOC) \
    extern const struct op_class_rule class_##CLASS;                                                  \
    void infer_##SHAPE(struct infer *);                                                               \
    void vjp_##VJP(struct vjp *);                                                                     \
    struct cost cost_##COST(const struct tensor *const *, const struct tensor *const *, const union attr *);
#include "graph/ops.def"
#undef OP

/* For vjps: sums `gradient`, which has x's broadcast shape, to x's own shape. */
id vjp_sum_to(struct vjp *v, id gradient, id x);

#endif
