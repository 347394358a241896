/*
 * plan.h: the planning half of the CUDA kernels, family by family: which nodes each kernel supports
 * and how much workspace it needs. Pure C, in every build, a function of shapes, dtypes and the
 * profile: a plan made without a GPU is the plan made on the GPU.
 *
 *     plan_norms.c   const struct kernel cuda_plan_norms[]        names, matches, workspaces
 *     norms.c        const struct cuda_kernel cuda_run_norms[]    the same names, running (host.h)
 *     norms.cu       the kernels, called through launchers of launch_norms.h or launch.h
 *
 * Invariant: every name of the planning half exists in the running half; the device checks this
 * when it is opened. Tensors are stored as f32, bf16 or f16; the arithmetic is f32 throughout.
 */
#ifndef CUDA_PLAN_H
#define CUDA_PLAN_H

#include "run/kernel.h"

/* Each list ends with op OP_NONE; plan.c and bind.c enumerate the lists. */
extern const struct kernel cuda_plan_thin[], cuda_plan_filters[], cuda_plan_products[], cuda_plan_conv[], cuda_plan_attention_few[], cuda_plan_attention_window[], cuda_plan_attention[], cuda_plan_elementwise[], cuda_plan_shuffle[], cuda_plan_norms[], cuda_plan_tokens[], cuda_plan_masks[], cuda_plan_update[];

static inline const struct tensor *given(const struct query *q, int i) { return i < q->nin ? q->in[i] : NULL; }

static inline bool is_dense(const struct tensor *t, enum dtype dtype) { return t && t->dtype == dtype && tensor_is_dense(t); }

static inline bool is_storable(const struct tensor *t)
{
    return t && (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16) && tensor_is_dense(t);
}

/* The library gets a fixed workspace limit and selects an algorithm within it when the tape is
 * recorded: the workspace it would prefer depends on its version, and a plan must not. */
static inline uint64_t workspace_library(const struct query *q) { return q->profile->library_workspace; }

#endif
