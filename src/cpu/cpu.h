/*
 * cpu.h: how a file of src/cpu offers its kernels, and what such files share.
 *
 * A kernel X is X_match and, where it needs scratch, X_workspace, the planning half,
 * and X_run. What a match refuses (strided views, f64, integers) falls to the next
 * kernel of the op and at last to the reference. At its end a file says which op they
 * are for, with one of
 *
 *     CPU_KERNEL(SOFTMAX, softmax);                        without a workspace
 *     CPU_KERNEL_WORK(LINEAR, linear);                     with one
 *     CPU_KERNELS(LINEAR, KERNEL(LINEAR, tiny), KERNEL_WORK(LINEAR, linear));
 *                                                          several, preferred first
 *
 * and that is all: the table (kernels.c) is made from ops.def.
 */
#ifndef CPU_H
#define CPU_H

#include "run/kernel.h"

#define KERNEL(OP, name) {OP_##OP, "cpu_" #name, name##_match, NULL, name##_run}
#define KERNEL_WORK(OP, name) {OP_##OP, "cpu_" #name, name##_match, name##_workspace, name##_run}
#define CPU_KERNELS(OP, ...) const struct kernel cpu_##OP[] = {__VA_ARGS__, {.op = OP_NONE}}
#define CPU_KERNEL(OP, name) CPU_KERNELS(OP, KERNEL(OP, name))
#define CPU_KERNEL_WORK(OP, name) CPU_KERNELS(OP, KERNEL_WORK(OP, name))

#define VIEW(NAME, ...)
#define OP(NAME, ...) extern const struct kernel cpu_##NAME[];
#include "graph/ops.def"
#undef OP

/* One of an op's kernels, whatever else would be preferred: for tests and benches. */
const struct kernel *cpu_kernel_named(enum op op, const char *name);

/* The sum of a dense operand's elements, or of their squares, in double: chunks
 * of a fixed length, added in order. `work` holds reduce_workspace() bytes. */
uint64_t reduce_workspace(int64_t elements);
double reduce_sum(const struct operand *x, bool squares, double *work, int threads);

#endif
