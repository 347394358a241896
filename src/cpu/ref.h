/*
 * ref.h: shared by the files of the reference kernels.
 *
 * An element is identified by its index in row-major order over the dimensions; the helpers handle
 * strides and dtype. So a kernel reads like its formula.
 */
#ifndef REF_H
#define REF_H

#include "run/kernel.h"

enum { REF_IGNORED = -100 }; /* a label that is ignored */

/* Element i (row-major) of an operand of any dtype and strides. */
double ref_get(const struct operand *x, int64_t i);
void ref_put(const struct operand *x, int64_t i, double value);
/* Element i of an accumulator; 0 if it is not given. */
double ref_get_acc(const struct launch *l, int input, int64_t i);
/* True if an optional input is given. */
bool ref_has(const struct launch *l, int input);
/* For an ADD_ op: computes its sum, and sets `rest` to the launch of the op on it. */
void ref_add_first(const struct launch *l, struct launch *rest);

/* Declares ref_NAME as the reference kernel of an op; with _WORK it needs the scratch memory of
 * ref_NAME_workspace. It matches everything. The table in ref.c is generated from ops.def. */
#define REF_KERNEL(OP, name) const struct kernel ref_##OP[] = {{OP_##OP, "ref_" #name, NULL, NULL, ref_##name}, {.op = OP_NONE}}
#define REF_KERNEL_WORK(OP, name) \
    const struct kernel ref_##OP[] = {{OP_##OP, "ref_" #name, NULL, ref_##name##_workspace, ref_##name}, {.op = OP_NONE}}

#define VIEW(NAME, ...)
#define OP(NAME, ...) extern const struct kernel ref_##NAME[];
#include "graph/ops.def"
#undef OP

#endif
