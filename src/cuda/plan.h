/*
 * plan.h: the planning half of the CUDA kernels, family by family: which nodes each kernel supports
 * and how much workspace it needs. Pure C, in every build, a function of shapes, dtypes and the
 * profile: a plan made without a GPU is the plan made on the GPU.
 *
 *     rows/norms.def       one row per kernel (kernels.def)
 *     rows/plan_norms.c    match and workspace of each row
 *     rows/norms.c         the running half: CUDA_KERNEL(name, .launch = ...) (device/host.h)
 *     rows/norms.cu        the kernels, called through launchers of launch_norms.h
 *
 * The plan chooses the kernel, also by the GPU's compute capability, which is in the profile; a
 * launch chooses nothing. Tensors are stored as f32, bf16 or f16; the arithmetic is f32 throughout.
 */
#ifndef CUDA_PLAN_H
#define CUDA_PLAN_H

#include "cuda/kernels.h"
#include "run/kernel.h"

/* A row of a family's table. */
#define KERNEL(OP, NAME, CAPABILITY, MATCH, WORKSPACE) {OP_##OP, #NAME, MATCH, WORKSPACE, NULL, CAPABILITY, ROW_##NAME},

/* Each list ends with op OP_NONE; plan.c enumerates the lists. */
extern const struct kernel cuda_plan_thin[], cuda_plan_filters[], cuda_plan_products[], cuda_plan_conv[], cuda_plan_attention[], cuda_plan_elementwise[], cuda_plan_shuffle[], cuda_plan_norms[], cuda_plan_tokens[], cuda_plan_masks[], cuda_plan_update[];

static inline const struct tensor *given(const struct query *q, int i) { return i < q->nin ? q->in[i] : NULL; }

static inline bool is_dense(const struct tensor *t, enum dtype dtype) { return t && t->dtype == dtype && tensor_is_dense(t); }

static inline bool is_storable(const struct tensor *t)
{
    return t && (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16) && tensor_is_dense(t);
}

/* Whether every row of it begins at a multiple of 16 bytes relative to its storage, in every iteration of its
 * loop; storages begin at multiples of 256. */
static inline bool is_aligned(const struct tensor *t) { return t->offset % 16 == 0 && (!t->loop || t->advance % 16 == 0); }

/* Whether the tensor cores of the GPU multiply this dtype: f16 from 7.5 on, bf16 from 8.0 on. */
static inline bool has_tensor_cores(const struct query *q, enum dtype dtype)
{
    return (dtype == DT_F16 && q->profile->capability >= 75) || (dtype == DT_BF16 && q->profile->capability >= 80);
}

/* Bytes of shared memory that a block may have on a GPU of the profile's compute capability. */
static inline uint64_t shared_limit(const struct query *q)
{
    const int c = q->profile->capability;
    if (c < 80) return 64 * 1024;
    if (c == 80 || c == 87) return 163 * 1024;
    return (c >= 90 && c < 120 ? 227 : 99) * 1024;
}

/* The library gets a fixed workspace limit and selects an algorithm within it when the tape is
 * recorded: the workspace it would prefer depends on its version, and a plan must not. */
static inline uint64_t workspace_library(const struct query *q) { return q->profile->library_workspace; }

#endif
