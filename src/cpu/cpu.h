/*
 * cpu.h: what the files of src/cpu offer to the kernel table (kernels.c).
 *
 * For each op: X_match and X_workspace, the planning half, and X_run. A kernel
 * without X_workspace needs none. What a match refuses (strided views, f64,
 * integers) falls to the reference kernels.
 */
#ifndef CPU_H
#define CPU_H

#include "run/kernel.h"

#define CPU_KERNEL(name)                      \
    bool name##_match(const struct query *q); \
    void name##_run(const struct launch *l)
#define CPU_KERNEL_WORK(name) \
    CPU_KERNEL(name);         \
    uint64_t name##_workspace(const struct query *q)

/* gemm.c, bmm.c, attention.c */
CPU_KERNEL_WORK(linear);
CPU_KERNEL_WORK(matmul);
CPU_KERNEL_WORK(bmm);
CPU_KERNEL_WORK(attention);
CPU_KERNEL_WORK(attention_bwd);

/* grid.c, grid_bwd.c */
CPU_KERNEL_WORK(attention_rel);
CPU_KERNEL_WORK(attention_rel_bwd);
CPU_KERNEL_WORK(attention_bias);
CPU_KERNEL_WORK(attention_bias_bwd);

/* conv.c */
CPU_KERNEL_WORK(conv);
CPU_KERNEL_WORK(conv_dx);
CPU_KERNEL_WORK(conv_dw);

/* norm.c */
CPU_KERNEL(rmsnorm);
CPU_KERNEL_WORK(rmsnorm_bwd);

/* layernorm.c */
CPU_KERNEL(layernorm);
CPU_KERNEL_WORK(layernorm_bwd);

/* rope.c */
CPU_KERNEL(rope);

/* elementwise.c */
CPU_KERNEL(silu_gate);
CPU_KERNEL(silu_gate_bwd);
CPU_KERNEL(add);
CPU_KERNEL(mul);
CPU_KERNEL(scale);
CPU_KERNEL(cast);
CPU_KERNEL_WORK(sum);
CPU_KERNEL(spread);
CPU_KERNEL(accumulate);
CPU_KERNEL(fill);

/* copy.c, gather.c */
CPU_KERNEL(copy);
CPU_KERNEL(concat);
CPU_KERNEL(pad);
CPU_KERNEL(gather);
CPU_KERNEL_WORK(scatter_add);

/* broadcast.c */
CPU_KERNEL_WORK(sum_to);

/* activations.c */
CPU_KERNEL(act);
CPU_KERNEL(act_bwd);

/* softmax.c */
CPU_KERNEL(softmax);
CPU_KERNEL(softmax_bwd);

/* dropout.c */
CPU_KERNEL(dropout);
/* separable.c */
CPU_KERNEL_WORK(resize);
CPU_KERNEL_WORK(resize_bwd);
CPU_KERNEL_WORK(avgpool);
CPU_KERNEL_WORK(avgpool_bwd);

/* batchnorm.c */
CPU_KERNEL_WORK(batchnorm);
CPU_KERNEL_WORK(batchnorm_bwd);
CPU_KERNEL_WORK(batchnorm_frozen);
CPU_KERNEL_WORK(batchnorm_frozen_bwd);
CPU_KERNEL(batchnorm_update);

/* tokens.c */
CPU_KERNEL(embedding);
CPU_KERNEL(embedding_dw);
CPU_KERNEL(shift_labels);
CPU_KERNEL_WORK(xent);
CPU_KERNEL(xent_bwd);

/* windows.c */
CPU_KERNEL(window);
CPU_KERNEL(unwindow);
CPU_KERNEL(fourier);

/* mask_loss.c */
CPU_KERNEL_WORK(mask_loss);
CPU_KERNEL(mask_loss_bwd);

/* optimizer.c */
CPU_KERNEL_WORK(sumsq);
CPU_KERNEL(clip);
CPU_KERNEL(adamw);

/* The sum of a dense operand's elements, or of their squares, in double: chunks
 * of a fixed length, added in order. `work` holds reduce_workspace() bytes. */
uint64_t reduce_workspace(int64_t elements);
double reduce_sum(const struct operand *x, bool squares, double *work, int threads);

#endif
