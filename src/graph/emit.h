/*
 * emit.h: a function for each op that models and passes emit. It reads like the maths and returns
 * output 0. Any other op is emitted by its row, with op_apply of ops.h.
 */
#ifndef EMIT_H
#define EMIT_H

#include "graph/graph.h"

/* A view of x, or of a dense copy of x if x is not dense. */
id op_reshape(struct graph *g, id x, int rank, const int64_t *dim);
/* x as a constant: no gradient passes through it. */
id op_detach(struct graph *g, id x);
id op_slice(struct graph *g, id x, int axis, int64_t start, int64_t length);
id op_linear(struct graph *g, id x, id w, id bias);
id op_matmul(struct graph *g, id a, id b, bool ta, bool tb, enum dtype result);
id op_bmm(struct graph *g, id a, id b, bool ta, bool tb, enum dtype result);
id op_rmsnorm(struct graph *g, id x, id w, float eps);
id op_layernorm(struct graph *g, id x, id w, id b, float eps);
id op_rope(struct graph *g, id x, id inv_freq, float scale, bool inverse);
/* The same at positions i32 [B,T] (0: those of op_rope), or [B,T,3] with the number of pairs that
 * each of the three coordinates turns. sections NULL: positions are [B,T]. */
id op_rope_at(struct graph *g, id x, id inv_freq, id positions, const int64_t *sections, float scale);
id op_silu_gate(struct graph *g, id gate, id up);
id op_act(struct graph *g, id x, enum act_kind kind);
id op_softmax(struct graph *g, id x);
id op_attention(struct graph *g, id q, id k, id v, float scale, bool causal);
/* Attention with a key mask [B,S] that is added to the scores (0: none) and a sliding window: a
 * query sees itself and the window - 1 keys before it (0: all). With ranges i32 [B,T,2] (0: none) a
 * query sees the keys from the first to before the second number of its range, the last `window` of
 * them, and causal is false. */
struct attention_options {
    float scale;
    bool causal;
    int64_t window;
    id ranges;
};
id op_attention_with(struct graph *g, id q, id k, id v, id mask, struct attention_options o);
/* Relative-position attention over a grid: q, k and v [B,height*width,H,D]; tables [2*height-1,D]
 * and [2*width-1,D]. */
id op_attention_rel(struct graph *g, id q, id k, id v, id table_h, id table_w, int height, int width, float scale);
/* Relative-position attention within the windows of a grid: tables [2*window-1,D]; pad [2,H,D] is
 * the key and the value of positions beyond the grid (0: zeros). */
struct window_options {
    int height, width, window;
    float scale;
};
id op_attention_window(struct graph *g, id q, id k, id v, id table_h, id table_w, id pad, struct window_options o);
/* Attention over a square window with a bias by distance: table [H,window*window]. */
id op_attention_bias(struct graph *g, id q, id k, id v, id table, int window, float scale);
/* Maps are [B,H,W,C]. x [B,H,W,C], w [O,C/groups,kh,kw], bias 0: none; groups is 1 or C. */
id op_conv(struct graph *g, id x, id w, id bias, int stride, int pad, int groups);
/* x [B,H,W,C], w [C,O,kh,kw]: [B,(H-1)*stride-2*pad+kh,...,O]. */
id op_conv_transpose(struct graph *g, id x, id w, id bias, int stride, int pad);
id op_embedding(struct graph *g, id ids, id table);
/* As torch.nn.Embedding with padding_idx: the table's row of the id padding - 1 gets no gradient;
 * 0: none. */
id op_embedding_padded(struct graph *g, id ids, id table, int64_t padding);
id op_shift_labels(struct graph *g, id labels);
/* The cross-entropy, divided by a count of the step (graph_count). */
id op_xent(struct graph *g, id logits, id labels, const char *count);
id op_add(struct graph *g, id a, id b);
id op_mul(struct graph *g, id a, id b);
id op_scale(struct graph *g, id x, double value);
/* DT_NONE: the activation dtype, which passes/techniques/precision.c chooses; f32 until then. */
id op_cast(struct graph *g, id x, enum dtype to);
id op_sum(struct graph *g, id x);
id op_accumulate(struct graph *g, id x, id acc);
/* The mean of x as it is in this graph. Not for a loss over a batch that may be split into
 * micro-batches: their losses are added, so each must be divided by the count of the whole step
 * (graph_count), not by its own. */
id op_mean(struct graph *g, id x);
/* `samples` [B], the indices of the samples in the step's batch, is the input "samples" that the
 * host fills. Evaluation drops nothing: there, and for p = 0, the result is x. op_drop_path drops
 * whole samples. */
id op_dropout(struct graph *g, id x, id samples, float p);
/* With a key of the caller's, where the number of the op in the graph may change. */
id op_dropout_keyed(struct graph *g, id x, id samples, float p, uint32_t key);
id op_drop_path(struct graph *g, id x, id samples, float p);
id op_samples(struct graph *g, int64_t B);
/* The weights that bytes [n] hold in NF4 with double quantization or, nested false, with f32
 * scales. */
id op_dequantize(struct graph *g, id bytes, bool nested, enum dtype t, int rank, const int64_t *dim);
id op_fill(struct graph *g, enum dtype t, int rank, const int64_t *dim, double value);
id op_copy(struct graph *g, id x, enum space to);
/* Axis i of the result is axis axes[i] of x; a view. */
id op_permute(struct graph *g, id x, const int *axes);
/* x itself if it is dense, else a dense copy, as kernels require. */
id op_dense(struct graph *g, id x);
id op_concat(struct graph *g, const id *x, int n, int axis);
/* Pads x with zeros: per axis, a count before and a count after. */
id op_pad(struct graph *g, id x, const int64_t *before, const int64_t *after);
/* x [B,T,C] with rows of y [N,C], or [B,N,C], where index i32 [B,T] is 0 or more; y 0: with zeros
 * there. */
id op_replace_rows(struct graph *g, id x, id index, id y);
id op_gather(struct graph *g, id x, id index);
/* The indices of the k largest of each row of x, in the order of the row; of equal ones the first
 * counts as larger. */
id op_topk(struct graph *g, id x, int64_t k);
id op_gather_unique(struct graph *g, id x, id index, id inverse); /* no row is read twice */
id op_scatter_add(struct graph *g, id y, id index, int64_t rows);
id op_resize(struct graph *g, id x, int64_t H, int64_t W, bool align_corners);
/* k, stride and pad: for H and for W. */
id op_avgpool(struct graph *g, id x, const int64_t k[2], const int64_t stride[2], const int64_t pad[2], bool count_pad);
/* H x W windows that cover the map, as equal in size as whole pixels allow. */
id op_avgpool_adaptive(struct graph *g, id x, int64_t H, int64_t W);
/* Statistics over groups of `group` images. Running statistics are updated when given (else 0,
 * 0). */
id op_batchnorm(struct graph *g, id x, id w, id b, int64_t group, float eps, id running_mean, id running_var,
                double momentum);
id op_instancenorm(struct graph *g, id x, id w, id b, float eps);
id op_batchnorm_frozen(struct graph *g, id x, id w, id b, id mean, id var, float eps);
/* x [B,H,W,C] as windows [B nh nw,size,size,C], zero-padded beyond the map; and the inverse. */
id op_window(struct graph *g, id x, int size);
id op_unwindow(struct graph *g, id x, int64_t H, int64_t W);
/* coords [...,2] in 0..1, frequencies [2,F]: result [...,2F]. Both stay f32 in any precision if
 * coords is an input itself and not a view of one. */
id op_fourier(struct graph *g, id coords, id gauss);
/* The mask loss (ops.def) of these masks, divided by a count of the step (graph_count). */
struct mask_loss_options {
    float focal, dice, iou;     /* weights of the terms */
    float alpha, gamma, smooth; /* parameters of focal, and of dice */
    bool alpha_both;            /* alpha weighs both classes */
};
struct mask_loss {
    id loss, statistics; /* statistics: of each mask (MASK_LOSS in ops.def) */
};
/* The structure loss (STRUCTURE_LOSS in ops.def) of masks [N,1,h,w] in the same way. */
struct structure_loss_options {
    float edge, bce_edge; /* how much more a pixel at the mask's edge weighs, in the IoU and in the cross-entropy */
    float smooth;         /* of the IoU */
    int size;             /* pixels of the window in which a mask's share tells an edge: an odd number of at most 63 */
};
struct mask_loss op_structure_loss(struct graph *g, id logits, id bits, id valid, struct structure_loss_options o,
                                   const char *count);
struct mask_loss op_mask_loss(struct graph *g, id logits, id iou, id bits, id valid, struct mask_loss_options o,
                              const char *count);
/* Normalises pixels u8 [B,H,W,3] for the model. */
id op_image(struct graph *g, id x, id valid, const float mean[3], const float std[3]);
/* The logits [N,h,w] of the best candidate; `into` is the destination, or 0. */
id op_mask_pick(struct graph *g, id logits, id scores, id into);
/* The next round of simulated prompts: positions, kinds and round are updated in place, and only
 * the returned tensors may be read afterwards. */
struct prompt_state {
    id positions, kinds, round;
};
struct prompt_state op_prompt_next(struct graph *g, struct prompt_state s, id logits, id bits, id valid, id keys,
                                   int rounds, int first);
/* Repeats each row of x to match the rows of `like`. */
id op_repeat(struct graph *g, id x, id like);

#endif
