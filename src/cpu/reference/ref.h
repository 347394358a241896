/*
 * ref.h: shared by the files of the reference kernels.
 *
 * An element is identified by its index in row-major order over the dimensions; the helpers handle
 * strides and dtype. So a kernel reads like its formula.
 */
#pragma once

#include "cpu/cpu.h"

enum { REF_IGNORED = -100 }; /* a label that is ignored */

/* Read and write element i (row-major) of an operand of any dtype and strides. */
double ref_get(const struct operand *x, int64_t i);
void ref_put(const struct operand *x, int64_t i, double value);

/* Elements of a row of an operand, one after another in its last dimension: many are read there,
 * and finding the place of each anew would take most of the time of a test. */
struct ref_row {
    const void *data; /* NULL: zeros */
    enum dtype dtype;
    int64_t at, step; /* in elements */
};
/* Returns the row that begins with element i (row-major). */
struct ref_row ref_row(const struct operand *x, int64_t i);
static inline double ref_at(const struct ref_row *r, int64_t k)
{
    return r->data ? dtype_load(r->data, r->dtype, r->at + k * r->step) : 0;
}
/* Returns the sum of the products of the n elements from element i of x and element j of y. */
double ref_dot(const struct operand *x, int64_t i, const struct operand *y, int64_t j, int64_t n);

/* Returns element i of an accumulator; 0 if it is not given. */
double ref_get_acc(const struct launch *l, int input, int64_t i);

/* Declare ref_NAME as the reference kernel of an op, which matches everything; with _WORK it needs
 * the scratch memory of ref_NAME_workspace. With _AS the op has one implementation: the CPU's
 * kernel is the reference too. The table in ref.c is generated from ops.def. */
#define REF_KERNEL(OP, name) const struct kernel ref_##OP[] = {{0, "ref_" #name, NULL, NULL, ref_##name}, {0}}
#define REF_KERNEL_WORK(OP, name) \
    const struct kernel ref_##OP[] = {{0, "ref_" #name, NULL, ref_##name##_workspace, ref_##name}, {0}}
#define REF_KERNEL_AS(OP, name) const struct kernel ref_##OP[] = {{0, "ref_" #name, NULL, NULL, name##_run}, {0}}
#define REF_KERNEL_AS_WORK(OP, name) \
    const struct kernel ref_##OP[] = {{0, "ref_" #name, NULL, name##_workspace, name##_run}, {0}}
