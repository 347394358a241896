/*
 * emit.h: functions that emit ops and read like the maths; they return output 0. The functions of
 * emit.def only fill in a row of ops.def. An op needs none of them: op_apply of ops.h emits any op
 * by its row.
 */
#pragma once

#include "graph/graph.h"

/* A sliding window: a query sees itself and the window - 1 keys before it (0: all). With ranges i32
 * [B,T,2] (0: none) a query sees the keys from the first to before the second number of its range,
 * the last `window` of them, and causal is false. A soft cap (0: none) turns x = scale q k^T into
 * cap tanh(x / cap), before the mask. */
struct attention_options {
    float scale, cap;
    bool causal;
    int64_t window;
    id ranges;
};
struct window_options {
    int height, width, window;
    float scale;
};

#define EMIT(name, NAME, PARAMETERS, ...) id op_##name PARAMETERS;
#include "graph/emit.def"
#undef EMIT

/* Returns a view of x, or of a dense copy of x if x is not dense. */
id op_reshape(struct graph *g, id x, int rank, const int64_t *dim);
/* Returns x as a constant: no gradient passes through it. */
id op_detach(struct graph *g, id x);
/* Does as op_rope, but at positions i32 [B,T] (0: as op_rope), or [B,T,3] with the pairs that each
 * of the three coordinates turns. sections NULL: positions are [B,T]. */
struct rope_sections {
    int64_t pairs[3];
    bool interleaved;
};
id op_rope_at(struct graph *g, id x, id inv_freq, id positions, const struct rope_sections *sections, float scale);
id op_attention(struct graph *g, id q, id k, id v, float scale, bool causal);
/* Maps x [B,H,W,C] by w [C,O,kh,kw] to [B,(H-1)*stride-2*pad+kh,...,O]. */
id op_conv_transpose(struct graph *g, id x, id w, id bias, int stride, int pad);
/* Drops elements, or (op_drop_path) whole samples. `samples` [B], the indices of the samples in the
 * step's batch, is the input "samples" that the host fills. Evaluation drops nothing: there, and
 * for p = 0, the result is x. */
id op_dropout(struct graph *g, id x, id samples, float p);
/* Does as op_dropout with a key of the caller's, where the number of the op in the graph may
 * change. */
id op_dropout_keyed(struct graph *g, id x, id samples, float p, uint32_t key);
id op_drop_path(struct graph *g, id x, id samples, float p);
id op_samples(struct graph *g, int64_t B);
/* Returns the weights that bytes [n] hold in NF4 with double quantization or, nested false, with
 * f32 scales. */
struct weight_range {
    int64_t first, all; /* the first weight of the result, at the begin of a block of NF4; those that there are */
};
id op_dequantize(struct graph *g, id bytes, bool nested, enum dtype t, int rank, const int64_t *dim,
                 struct weight_range range);
id op_fill(struct graph *g, enum dtype t, int rank, const int64_t *dim, double value);
/* Returns a view whose axis i is axis axes[i] of x. */
id op_permute(struct graph *g, id x, const int *axes);
/* Returns x if it is dense, else a dense copy, as kernels require. */
id op_dense(struct graph *g, id x);
id op_concat(struct graph *g, const id *x, int n, int axis);
/* Pads x with zeros: per axis, a count before and a count after. */
id op_pad(struct graph *g, id x, const int64_t *before, const int64_t *after);
/* Averages over H x W windows that cover the map, as equal in size as whole pixels allow. */
id op_avgpool_adaptive(struct graph *g, id x, int64_t H, int64_t W);
/* Normalises with statistics over groups of `group` images. Running statistics are updated when
 * given (else 0, 0). */
id op_batchnorm(struct graph *g, id x, id w, id b, int64_t group, float eps, id running_mean, id running_var,
                double momentum);
id op_instancenorm(struct graph *g, id x, id w, id b, float eps);
/* The mask loss (ops.def) of these masks, divided by a count of the step (graph_count). */
struct mask_loss_options {
    float focal, dice, iou;     /* weights of the terms */
    float alpha, gamma, smooth; /* parameters of focal, and of dice */
    bool alpha_both;            /* alpha weighs both classes */
    /* models that predict whether there is an object: iou weighs the absolute error of all
     * candidates instead of the square of one's (SCORE_LOSS); the weight of the object's loss */
    bool all_scores;
    float object;
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
/* The losses of the scores [N,K] and of the object's logit [N,1], divided by a count of the step
 * (graph_count), and the valid areas of the masks whose target has a pixel. */
struct score_loss {
    id loss, within;
};
struct predicted {
    id logits, scores, object;
};
struct score_loss op_score_loss(struct graph *g, struct predicted p, id bits, id valid, float iou, float object,
                                const char *count);
/* The next round of simulated prompts: positions, kinds and round are updated in place, and only
 * the returned tensors may be read afterwards. */
struct prompt_state {
    id positions, kinds, round;
};
struct prompt_state op_prompt_next(struct graph *g, struct prompt_state s, id logits, id bits, id valid, id keys,
                                   int rounds, int first);
/* Repeats each row of x to match the rows of `like`. */
id op_repeat(struct graph *g, id x, id like);
