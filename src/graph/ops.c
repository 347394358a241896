/*
 * ops.c: the builder functions of ops: those of emit.def, and those that do more than fill in a
 * row.
 */
#include "graph/ops.h"

id op_apply(struct graph *g, enum op op, const union attr *attr, const id *in, int nin)
{
    id n = graph_emit(g, op, attr, in, nin);
    return n ? node_at(g, n)->out[0] : 0;
}

struct outputs op_outputs(struct graph *g, enum op op, const union attr *attr, const id *in, int nin)
{
    struct outputs y = {{0}};
    id n = graph_emit(g, op, attr, in, nin);
    if (n) memcpy(y.at, node_at(g, n)->out, sizeof y.at);
    return y;
}

#define UNPACK(...) __VA_ARGS__
#define EMIT(name, NAME, PARAMETERS, INPUTS, ...)                       \
    id op_##name PARAMETERS                                             \
    {                                                                   \
        const id in[] = {UNPACK INPUTS};                                \
        const union attr attr = {__VA_ARGS__};                          \
        return op_apply(g, OP_##NAME, &attr, in, (int)COUNT(in));       \
    }
#include "graph/emit.def"
#undef EMIT

id op_reshape(struct graph *g, id x, int rank, const int64_t *dim)
{
    union attr a = {.reshape = {.rank = rank}};
    memcpy(a.reshape.dim, dim, rank * sizeof *dim);
    x = op_dense(g, x);
    return op_apply(g, OP_RESHAPE, &a, &x, 1);
}

id op_detach(struct graph *g, id x)
{
    const struct tensor *t = tensor_at(g, x);
    union attr a = {.reshape = {.rank = t->rank}};
    memcpy(a.reshape.dim, t->dim, sizeof t->dim);
    return op_apply(g, OP_DETACH, &a, &x, 1);
}

id op_rope_at(struct graph *g, id x, id inv_freq, id positions, const struct rope_sections *sections, float scale)
{
    union attr a = {.rope = {.scale = scale, .interleaved = sections && sections->interleaved}};
    if (sections) memcpy(a.rope.sections, sections->pairs, sizeof a.rope.sections);
    return op_apply(g, OP_ROPE, &a, (id[]){x, inv_freq, positions}, 3);
}

id op_attention(struct graph *g, id q, id k, id v, float scale, bool causal)
{
    return op_attention_with(g, q, k, v, 0, (struct attention_options){.scale = scale, .causal = causal});
}

id op_conv_transpose(struct graph *g, id x, id w, id bias, int stride, int pad)
{
    const struct tensor *map = tensor_at(g, x), *kernel = tensor_at(g, w);
    if (!x || !w) return 0;
    if (map->rank != 4 || kernel->rank != 4)
        return graph_fail(g, "a transposed convolution needs x [B,H,W,C] and w [C,O,kh,kw]; their ranks are %d and %d",
                          map->rank, kernel->rank);
    union attr a = {.conv = {.stride = stride, .pad = pad, .groups = 1}};
    a.conv.H = (map->dim[1] - 1) * stride - 2 * pad + kernel->dim[2];
    a.conv.W = (map->dim[2] - 1) * stride - 2 * pad + kernel->dim[3];
    if (a.conv.H < 1 || a.conv.W < 1)
        return graph_fail(g, "a transposed convolution with padding %d gives a map of %d x %d", pad, (int)a.conv.H,
                          (int)a.conv.W);
    return op_apply(g, OP_CONV_DX, &a, (id[]){x, w, bias}, 3);
}

/* Dropouts are keyed by their order among the dropouts of the model. The number of other nodes
 * depends on the micro-batch: for a batch of 1 no copy of a transposed view is made. A recomputed
 * copy of the node keeps the key. */
static uint32_t next_key(struct graph *g) { return program_is(g->at.program, PROGRAM_TRAINS) ? ++g->dropouts : 0; }

static id dropout(struct graph *g, id x, id samples, float p, bool per_sample, uint32_t key)
{
    union attr a = {.dropout = {p, per_sample, key}};
    if (p == 0 || !program_is(g->at.program, PROGRAM_TRAINS)) return x;
    return op_apply(g, OP_DROPOUT, &a, (id[]){x, graph_step(g), samples}, 3);
}

id op_dropout(struct graph *g, id x, id samples, float p) { return dropout(g, x, samples, p, false, next_key(g)); }
id op_dropout_keyed(struct graph *g, id x, id samples, float p, uint32_t key)
{
    return dropout(g, x, samples, p, false, key);
}
id op_drop_path(struct graph *g, id x, id samples, float p) { return dropout(g, x, samples, p, true, next_key(g)); }
id op_samples(struct graph *g, int64_t B) { return graph_input(g, "samples", DT_I32, 1, &B); }

id op_dequantize(struct graph *g, id bytes, bool nested, enum dtype t, int rank, const int64_t *dim,
                 struct weight_range range)
{
    union attr a = {.dequantize = {nested, t, rank, .first = range.first, .all = range.all}};
    memcpy(a.dequantize.dim, dim, rank * sizeof *dim);
    return op_apply(g, OP_DEQUANTIZE, &a, &bytes, 1);
}

id op_fill(struct graph *g, enum dtype t, int rank, const int64_t *dim, double value)
{
    union attr a = {.fill = {value, t, rank}};
    for (int i = 0; i < rank; i++) a.fill.dim[i] = dim[i];
    return op_apply(g, OP_FILL, &a, NULL, 0);
}

id op_permute(struct graph *g, id x, const int *axes)
{
    union attr a = {0};
    for (int i = 0; i < MAX_RANK && i < tensor_at(g, x)->rank; i++) a.permute.axes[i] = (uint8_t)axes[i];
    return op_apply(g, OP_PERMUTE, &a, &x, 1);
}

id op_dense(struct graph *g, id x)
{
    if (!x || tensor_is_dense(tensor_at(g, x))) return x;
    return op_copy(g, x, storage_of(g, x)->space);
}

/* Concatenates n tensors, in groups where there are more than the max_in inputs of a node. */
id op_concat(struct graph *g, const id *x, int n, int axis)
{
    union attr a = {.concat = {(uint8_t)axis}};
    id part[MAX_IN];
    const int most = op_table[OP_CONCAT].max_in;
    int parts = 0, each = 1;
    for (int i = 0; i < n; i++)
        if (!x[i]) return 0;
    while (each * most < n) each *= most;
    if (each == 1) return op_apply(g, OP_CONCAT, &a, x, n);
    for (int i = 0; i < n; i += each) part[parts++] = op_concat(g, x + i, n - i < each ? n - i : each, axis);
    return op_concat(g, part, parts, axis);
}

id op_pad(struct graph *g, id x, const int64_t *before, const int64_t *after)
{
    union attr a = {0};
    for (int i = 0; i < MAX_RANK && i < tensor_at(g, x)->rank; i++) {
        a.pad.before[i] = before[i];
        a.pad.after[i] = after[i];
    }
    return op_apply(g, OP_PAD, &a, &x, 1);
}

id op_avgpool_adaptive(struct graph *g, id x, int64_t H, int64_t W)
{
    const struct tensor *t = tensor_at(g, x);
    if (t->rank == 4 && H > 0 && W > 0 && t->dim[1] % H == 0 && t->dim[2] % W == 0) {
        const int64_t k[2] = {t->dim[1] / H, t->dim[2] / W};
        return op_avgpool(g, x, k, k, (int64_t[2]){0, 0}, true);
    }
    union attr a = {.avgpool = {.adaptive = 1, .H = H, .W = W}};
    return op_apply(g, OP_AVGPOOL, &a, &x, 1);
}

/* Marks a running statistic: the optimizer does not update it, but the step does and checkpoints
 * store it. */
static void mark_running(struct graph *g, id statistic)
{
    struct param *p = graph_param_of(g, statistic);
    if (p) p->frozen = p->running = true;
}

id op_batchnorm(struct graph *g, id x, id w, id b, int64_t group, float eps, id running_mean, id running_var,
                double momentum)
{
    union attr a = {.batchnorm = {group, eps}};
    const struct outputs norm = op_outputs(g, OP_BATCHNORM, &a, (id[]){x, w, b}, 3);
    if (!norm.at[0]) return 0;
    if (running_mean || running_var) {
        const struct tensor *t = tensor_at(g, x);
        union attr u = {.batchnorm_update = {momentum, group * t->dim[1] * t->dim[2], eps}};
        if (!op_apply(g, OP_BATCHNORM_UPDATE, &u, (id[]){norm.at[1], norm.at[2], running_mean, running_var}, 4))
            return 0;
        mark_running(g, running_mean);
        mark_running(g, running_var);
    }
    return norm.at[0];
}

id op_instancenorm(struct graph *g, id x, id w, id b, float eps) { return op_batchnorm(g, x, w, b, 1, eps, 0, 0, 0); }

struct score_loss op_score_loss(struct graph *g, struct predicted p, id bits, id valid, float iou, float object,
                                const char *count)
{
    union attr a = {.score_loss = {iou, object}};
    const struct outputs y = op_outputs(
        g, OP_SCORE_LOSS, &a, (id[]){p.logits, p.scores, p.object, bits, valid, graph_count(g, count)}, 6);
    return (struct score_loss){y.at[0], y.at[2]};
}

struct mask_loss op_mask_loss(struct graph *g, id logits, id iou, id bits, id valid, struct mask_loss_options o,
                              const char *count)
{
    union attr a = {.mask_loss = {o.focal, o.dice, o.iou, o.alpha, o.gamma, o.smooth, o.alpha_both}};
    const struct outputs y =
        op_outputs(g, OP_MASK_LOSS, &a, (id[]){logits, iou, bits, valid, graph_count(g, count)}, 5);
    return (struct mask_loss){y.at[0], y.at[1]};
}

struct mask_loss op_structure_loss(struct graph *g, id logits, id bits, id valid, struct structure_loss_options o,
                                   const char *count)
{
    union attr a = {.structure_loss = {o.edge, o.bce_edge, o.smooth, o.size}};
    const struct outputs y =
        op_outputs(g, OP_STRUCTURE_LOSS, &a, (id[]){logits, bits, valid, graph_count(g, count)}, 4);
    return (struct mask_loss){y.at[0], y.at[1]};
}

struct prompt_state op_prompt_next(struct graph *g, struct prompt_state s, id logits, id bits, id valid, id keys,
                                   int rounds, int first)
{
    union attr a = {.prompt_next = {rounds, first}};
    const id in[8] = {s.positions, s.kinds, s.round, logits, bits, valid, keys, graph_step(g)};
    const struct outputs y = op_outputs(g, OP_PROMPT_NEXT, &a, in, 8);
    return (struct prompt_state){y.at[0], y.at[1], y.at[2]};
}

id op_repeat(struct graph *g, id x, id like)
{
    const struct tensor *t = tensor_at(g, x), *target = tensor_at(g, like);
    if (t->rank && target->rank && t->dim[0] == target->dim[0]) return x;
    return op_apply(g, OP_REPEAT, NULL, (id[]){x, like}, 2);
}
