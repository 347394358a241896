/*
 * ref.h: what the files of the reference kernels share.
 *
 * An element is named by its place in row-major order over the dimensions;
 * strides and dtype are the helpers' matter. So a kernel reads as its formula.
 */
#ifndef REF_H
#define REF_H

#include "run/kernel.h"

enum { REF_IGNORED = -100 }; /* a label that counts for nothing */

/* Element i (row-major) of an operand of any dtype and strides. */
double ref_get(const struct operand *x, int64_t i);
void ref_put(const struct operand *x, int64_t i, double value);
/* Element i of an accumulator that may not be given: then 0. */
double ref_get_acc(const struct launch *l, int input, int64_t i);
/* An optional input is given. */
bool ref_has(const struct launch *l, int input);
/* An ADD_ op: its sum is made, and `rest` is the launch of the op on it. */
void ref_add_first(const struct launch *l, struct launch *rest);

/* Says that ref_NAME is the reference kernel of an op; with _WORK it needs the scratch that
 * ref_NAME_workspace tells. It matches everything. The table in ref.c is made from ops.def. */
#define REF_KERNEL(OP, name) const struct kernel ref_##OP[] = {{OP_##OP, "ref_" #name, NULL, NULL, ref_##name}, {.op = OP_NONE}}
#define REF_KERNEL_WORK(OP, name) \
    const struct kernel ref_##OP[] = {{OP_##OP, "ref_" #name, NULL, ref_##name##_workspace, ref_##name}, {.op = OP_NONE}}

#define VIEW(NAME, ...)
#define OP(NAME, ...) extern const struct kernel ref_##NAME[];
#include "graph/ops.def"
#undef OP

#endif
