/*
 * plan_kernels.h: the planning half of the CUDA kernels, family by family: which nodes each kernel
 * supports and how much workspace it needs. Pure C, in every build, a function of shapes, dtypes
 * and the profile: a plan made without a GPU is the plan made on the GPU.
 *
 *     rows/norms.def       one row per kernel (kernels.def)
 *     rows/plan_norms.c    match and workspace of each row
 *     rows/norms.cu        the kernels, and the running half: CUDA_KERNEL(name, .launch = ...)
 *                          (device/host.h, device/kernel.cuh)
 *
 * The plan chooses the kernel, also by the GPU's compute capability, which is in the profile, its
 * form where it has several, and how many bytes a thread moves at a time: offsets in the arena,
 * shapes and strides are known. A launch chooses nothing: from the shape it computes its grid and
 * the template's arguments that the node has (dtypes, head dimension, activation function, optional
 * operands). Tensors are stored as f32, bf16 or f16; the arithmetic is f32 throughout.
 */
#pragma once

#include "cuda/cuda.h"
#include "graph/ops.h"
#include "run/kernel.h"

/* A row of a family's table. */
#define KERNEL(OP, NAME, CAPABILITY, MATCH, ...) \
    {OP_##OP,    #NAME,        MATCH, KERNEL_WORKSPACE(__VA_ARGS__, NULL), NULL, \
     CAPABILITY, ROW_##NAME, KERNEL_ACCESS(__VA_ARGS__, NULL, NULL), KERNEL_FORMS(__VA_ARGS__, NULL, NULL, NULL)},
#define KERNEL_WORKSPACE(WORKSPACE, ...) WORKSPACE
#define KERNEL_ACCESS(WORKSPACE, ACCESS, ...) ACCESS
#define KERNEL_FORMS(WORKSPACE, ACCESS, FORMS, ...) FORMS

/* Each list ends with op OP_NONE; plan_kernels.c enumerates the lists. */
extern const struct kernel cuda_plan_thin[], cuda_plan_filters[], cuda_plan_products[], cuda_plan_conv[],
    cuda_plan_attention[], cuda_plan_elementwise[], cuda_plan_shuffle[], cuda_plan_norms[], cuda_plan_tokens[],
    cuda_plan_masks[], cuda_plan_update[];

static inline const struct tensor *given(const struct query *q, int i) { return i < q->nin ? q->in[i] : NULL; }

static inline bool is_dense(const struct tensor *t, enum dtype dtype)
{
    return t && t->dtype == dtype && tensor_is_dense(t);
}

static inline bool is_storable(const struct tensor *t)
{
    return t && (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16) && tensor_is_dense(t);
}

/* Reports whether every row of it begins at a multiple of 16 bytes relative to its storage, in
 * every iteration of its loop; storages begin at multiples of 256. */
static inline bool is_aligned(const struct tensor *t)
{
    return t->offset % 16 == 0 && (!t->loop || t->advance % 16 == 0);
}

/* Operands as a set: IN(0) | OUT(0). */
#define IN(i) (1u << (i))
#define OUT(o) (1u << (MAX_IN + (o)))
enum { ALL_IN = (1 << MAX_IN) - 1 };

/* Returns the bits of the addresses of those of these operands that are given, in every iteration,
 * ORed together. */
static inline uint64_t address_bits(const struct query *q, unsigned operands)
{
    uint64_t bits = 0;
    for (int i = 0; i < q->nin + q->nout; i++) {
        const bool out = i >= q->nin;
        const struct tensor *t = out ? q->out[i - q->nin] : q->in[i];
        if (t && operands & (out ? OUT(i - q->nin) : IN(i)))
            bits |= (uint64_t)t->offset | (t->loop ? (uint64_t)t->advance : 0);
    }
    return bits;
}

/* Returns kernel.access: 16 bytes if these byte counts and the addresses of these operands are
 * multiples of it, else `least`. */
static inline int access_wide(const struct query *q, unsigned operands, int64_t bytes, int least)
{
    return (address_bits(q, operands) | (uint64_t)bytes) % 16 ? least : 16;
}

/* Does as access_wide, but for rows of [rows,C] of x's dtype. */
static inline int access_rows(const struct query *q, unsigned operands, const struct tensor *x)
{
    const int size = (int)dtype_size(x->dtype);
    return access_wide(q, operands, tensor_last(x) * size, size);
}

/* Returns the widest unit of 1, 2, 4, 8 or 16 bytes, for kernels that move bytes as they are. */
static inline int access_unit(const struct query *q, unsigned operands, int64_t bytes)
{
    const uint64_t bits = address_bits(q, operands) | (uint64_t)bytes | 16;
    return (int)(bits & -bits);
}

/* Reports whether the tensor cores of the GPU multiply this dtype: f16 from 7.5 on, bf16 from 8.0
 * on. */
static inline bool has_tensor_cores(const struct query *q, enum dtype dtype)
{
    return (dtype == DT_F16 && q->profile->capability >= 75) || (dtype == DT_BF16 && q->profile->capability >= 80);
}

/* Returns the bytes of shared memory that a block may have on a GPU of the profile's compute
 * capability. */
static inline uint64_t shared_limit(const struct query *q)
{
    const int c = q->profile->capability;
    if (c < 80) return 64 * 1024;
    if (c == 80 || c == 87) return 163 * 1024;
    return (c >= 90 && c < 120 ? 227 : 99) * 1024;
}

/* Returns the library's fixed workspace limit, within which it selects an algorithm when the tape
 * is recorded: the workspace it would prefer depends on its version, and a plan must not. */
static inline uint64_t workspace_library(const struct query *q) { return q->profile->library_workspace; }
