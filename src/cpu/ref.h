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

/* ref_layers.c */
void ref_linear(const struct launch *l);
void ref_matmul(const struct launch *l);
void ref_bmm(const struct launch *l);
void ref_rmsnorm(const struct launch *l);
void ref_rmsnorm_bwd(const struct launch *l);
void ref_rope(const struct launch *l);
void ref_silu_gate(const struct launch *l);
void ref_silu_gate_bwd(const struct launch *l);

/* ref_attention.c */
void ref_attention(const struct launch *l);
void ref_attention_bwd(const struct launch *l);
uint64_t ref_attention_workspace(const struct query *q);
uint64_t ref_attention_bwd_workspace(const struct query *q);

/* ref_relative.c */
void ref_attention_rel(const struct launch *l);
void ref_attention_rel_bwd(const struct launch *l);
void ref_attention_bias(const struct launch *l);
void ref_attention_bias_bwd(const struct launch *l);
uint64_t ref_attention_rel_workspace(const struct query *q);
uint64_t ref_attention_rel_bwd_workspace(const struct query *q);
uint64_t ref_attention_bias_workspace(const struct query *q);
uint64_t ref_attention_bias_bwd_workspace(const struct query *q);

/* ref_masks.c */
void ref_window(const struct launch *l);
void ref_unwindow(const struct launch *l);
void ref_fourier(const struct launch *l);
void ref_mask_loss(const struct launch *l);
void ref_mask_loss_bwd(const struct launch *l);

/* ref_acts.c */
void ref_sum_to(const struct launch *l);
void ref_layernorm(const struct launch *l);
void ref_layernorm_bwd(const struct launch *l);
void ref_act(const struct launch *l);
void ref_act_bwd(const struct launch *l);
void ref_softmax(const struct launch *l);
void ref_softmax_bwd(const struct launch *l);
void ref_dropout(const struct launch *l);

/* ref_conv.c */
void ref_conv(const struct launch *l);
void ref_conv_dx(const struct launch *l);
void ref_conv_dw(const struct launch *l);

/* ref_tokens.c */
void ref_embedding(const struct launch *l);
void ref_embedding_dw(const struct launch *l);
void ref_shift_labels(const struct launch *l);
void ref_xent(const struct launch *l);
void ref_xent_bwd(const struct launch *l);

/* ref_maps.c */
void ref_concat(const struct launch *l);
void ref_pad(const struct launch *l);
void ref_gather(const struct launch *l);
void ref_scatter_add(const struct launch *l);
void ref_resize(const struct launch *l);
void ref_resize_bwd(const struct launch *l);
void ref_avgpool(const struct launch *l);
void ref_avgpool_bwd(const struct launch *l);

/* ref_batchnorm.c */
void ref_batchnorm(const struct launch *l);
void ref_batchnorm_bwd(const struct launch *l);
void ref_batchnorm_frozen(const struct launch *l);
void ref_batchnorm_frozen_bwd(const struct launch *l);
void ref_batchnorm_update(const struct launch *l);

#endif
