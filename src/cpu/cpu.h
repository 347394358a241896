/*
 * cpu.h: how a file of src/cpu registers its kernels, and helpers that such files share.
 *
 * A kernel X consists of X_match, X_workspace if it needs scratch memory (both are called when
 * planning), and X_run. If X_match returns false (strided views, f64, integers), the op's next
 * kernel is tried, and the reference kernel last. At its end a file registers its kernels for an op
 * with one of
 *
 *     CPU_KERNEL(SOFTMAX, softmax);                        without a workspace
 *     CPU_KERNEL_WORK(LINEAR, linear);                     with one
 *     CPU_KERNELS(LINEAR, KERNEL(tiny), KERNEL_WORK(linear));
 *                                                          several, preferred first
 *
 * No other registration is needed: the table (kernels.c) is generated from ops.def.
 */
#ifndef CPU_H
#define CPU_H

#include "run/kernel.h"

#define KERNEL(name) {0, "cpu_" #name, name##_match, NULL, name##_run}
#define KERNEL_WORK(name) {0, "cpu_" #name, name##_match, name##_workspace, name##_run}
#define CPU_KERNELS(OP, ...) const struct kernel cpu_##OP[] = {__VA_ARGS__, {0}}
#define CPU_KERNEL(OP, name) CPU_KERNELS(OP, KERNEL(name))
#define CPU_KERNEL_WORK(OP, name) CPU_KERNELS(OP, KERNEL_WORK(name))

/* One of an op's kernels by name, regardless of the preference: for tests and benchmarks. */
const struct kernel *cpu_kernel_named(uint16_t op, const char *name);

/* The sum of a dense operand's elements, or of their squares, in double: chunks of a fixed length,
 * added in order. `work` holds reduce_workspace() bytes. */
uint64_t reduce_workspace(int64_t elements);
double reduce_sum(const struct operand *x, bool squares, double *work, int threads);

#endif
