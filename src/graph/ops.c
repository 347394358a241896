/*
 * ops.c: the builder function of each op.
 */
#include "graph/ops.h"

#include <string.h>

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

id op_reshape(struct graph *g, id x, int rank, const int64_t *dim)
{
    union attr a = {.reshape = {.rank = rank}};
    memcpy(a.reshape.dim, dim, rank * sizeof *dim);
    x = op_dense(g, x);
    return op_apply(g, OP_RESHAPE, &a, &x, 1);
}

id op_detach(struct graph *g, id x)
{
    if (!x) return 0;
    const struct tensor *t = tensor_at(g, x);
    union attr a = {.reshape = {.rank = t->rank}};
    memcpy(a.reshape.dim, t->dim, t->rank * sizeof *t->dim);
    return op_apply(g, OP_DETACH, &a, &x, 1);
}

id op_slice(struct graph *g, id x, int axis, int64_t start, int64_t length)
{
    union attr a = {.slice = {axis, start, length}};
    return op_apply(g, OP_SLICE, &a, &x, 1);
}

id op_linear(struct graph *g, id x, id w, id bias)
{
    return op_apply(g, OP_LINEAR, NULL, (id[]){x, w, bias}, bias ? 3 : 2);
}

id op_matmul(struct graph *g, id a, id b, bool ta, bool tb, enum dtype result)
{
    union attr t = {.matmul = {ta, tb, result}};
    return op_apply(g, OP_MATMUL, &t, (id[]){a, b}, 2);
}

id op_bmm(struct graph *g, id a, id b, bool ta, bool tb, enum dtype result)
{
    union attr t = {.matmul = {ta, tb, result}};
    return op_apply(g, OP_BMM, &t, (id[]){a, b}, 2);
}

id op_rmsnorm(struct graph *g, id x, id w, float eps)
{
    union attr a = {.rmsnorm = {eps}};
    return op_apply(g, OP_RMSNORM, &a, (id[]){x, w}, 2);
}

id op_layernorm(struct graph *g, id x, id w, id b, float eps)
{
    union attr a = {.layernorm = {eps}};
    return op_apply(g, OP_LAYERNORM, &a, (id[]){x, w, b}, 3);
}

id op_rope(struct graph *g, id x, id inv_freq, float scale, bool inverse)
{
    union attr a = {.rope = {.scale = scale, .inverse = inverse}};
    return op_apply(g, OP_ROPE, &a, (id[]){x, inv_freq}, 2);
}

id op_rope_at(struct graph *g, id x, id inv_freq, id positions, const int64_t *sections, float scale)
{
    union attr a = {.rope = {.scale = scale}};
    if (sections) memcpy(a.rope.sections, sections, sizeof a.rope.sections);
    return op_apply(g, OP_ROPE, &a, (id[]){x, inv_freq, positions}, positions ? 3 : 2);
}

id op_silu_gate(struct graph *g, id gate, id up) { return op_apply(g, OP_SILU_GATE, NULL, (id[]){gate, up}, 2); }

id op_act(struct graph *g, id x, enum act_kind kind)
{
    union attr a = {.act = {kind}};
    return op_apply(g, OP_ACT, &a, &x, 1);
}

id op_softmax(struct graph *g, id x) { return op_apply(g, OP_SOFTMAX, NULL, &x, 1); }

id op_attention(struct graph *g, id q, id k, id v, float scale, bool causal)
{
    return op_attention_with(g, q, k, v, 0, (struct attention_options){.scale = scale, .causal = causal});
}

id op_attention_with(struct graph *g, id q, id k, id v, id mask, struct attention_options o)
{
    union attr a = {.attention = {o.scale, o.causal, o.window}};
    return op_apply(g, OP_ATTENTION, &a, (id[]){q, k, v, mask, o.ranges}, o.ranges ? 5 : mask ? 4 : 3);
}

id op_conv(struct graph *g, id x, id w, id bias, int stride, int pad, int groups)
{
    union attr a = {.conv = {.stride = stride, .pad = pad, .groups = groups}};
    return op_apply(g, OP_CONV, &a, (id[]){x, w, bias}, bias ? 3 : 2);
}

id op_conv_transpose(struct graph *g, id x, id w, id bias, int stride, int pad)
{
    if (!x || !w) return 0;
    const struct tensor *map = tensor_at(g, x), *kernel = tensor_at(g, w);
    if (map->rank != 4 || kernel->rank != 4)
        return graph_fail(g, "a transposed convolution needs x [B,H,W,C] and w [C,O,kh,kw]; their ranks are %d and %d",
                          map->rank, kernel->rank);
    union attr a = {.conv = {.stride = stride, .pad = pad, .groups = 1}};
    a.conv.H = (map->dim[1] - 1) * stride - 2 * pad + kernel->dim[2];
    a.conv.W = (map->dim[2] - 1) * stride - 2 * pad + kernel->dim[3];
    if (a.conv.H < 1 || a.conv.W < 1)
        return graph_fail(g, "a transposed convolution with padding %d gives a map of %d x %d", pad, (int)a.conv.H,
                          (int)a.conv.W);
    return op_apply(g, OP_CONV_DX, &a, (id[]){x, w, bias}, bias ? 3 : 2);
}

id op_embedding(struct graph *g, id ids, id table) { return op_embedding_padded(g, ids, table, 0); }
id op_embedding_padded(struct graph *g, id ids, id table, int64_t padding)
{
    union attr a = {.embedding = {padding}};
    return op_apply(g, OP_EMBEDDING, &a, (id[]){ids, table}, 2);
}
id op_shift_labels(struct graph *g, id labels) { return op_apply(g, OP_SHIFT_LABELS, NULL, &labels, 1); }

id op_xent(struct graph *g, id logits, id labels, const char *count)
{
    return op_apply(g, OP_XENT, NULL, (id[]){logits, labels, graph_count(g, count)}, 3);
}

id op_add(struct graph *g, id a, id b) { return op_apply(g, OP_ADD, NULL, (id[]){a, b}, 2); }
id op_mul(struct graph *g, id a, id b) { return op_apply(g, OP_MUL, NULL, (id[]){a, b}, 2); }

id op_scale(struct graph *g, id x, double value)
{
    union attr a = {.scale = {value}};
    return op_apply(g, OP_SCALE, &a, &x, 1);
}

id op_cast(struct graph *g, id x, enum dtype to)
{
    union attr a = {.cast = {to}};
    return op_apply(g, OP_CAST, &a, &x, 1);
}

id op_sum(struct graph *g, id x) { return op_apply(g, OP_SUM, NULL, &x, 1); }
id op_accumulate(struct graph *g, id x, id acc) { return op_apply(g, OP_ACCUMULATE, NULL, (id[]){x, acc}, 2); }


static int64_t count_of(const struct graph *g, id x) { return x ? tensor_elements(tensor_at(g, x)) : 1; }
id op_mean(struct graph *g, id x) { return op_scale(g, op_sum(g, x), 1.0 / (double)count_of(g, x)); }

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

id op_dequantize(struct graph *g, id bytes, bool nested, enum dtype t, int rank, const int64_t *dim)
{
    union attr a = {.dequantize = {nested, t, rank}};
    for (int i = 0; i < rank; i++) a.dequantize.dim[i] = dim[i];
    return op_apply(g, OP_DEQUANTIZE, &a, &bytes, 1);
}

id op_fill(struct graph *g, enum dtype t, int rank, const int64_t *dim, double value)
{
    union attr a = {.fill = {value, t, rank}};
    for (int i = 0; i < rank; i++) a.fill.dim[i] = dim[i];
    return op_apply(g, OP_FILL, &a, NULL, 0);
}

id op_copy(struct graph *g, id x, enum space to)
{
    union attr a = {.copy = {to}};
    return op_apply(g, OP_COPY, &a, &x, 1);
}

id op_permute(struct graph *g, id x, const int *axes)
{
    union attr a = {0};
    int rank = x ? tensor_at(g, x)->rank : 0;
    for (int i = 0; i < rank && i < MAX_RANK; i++) a.permute.axes[i] = (uint8_t)axes[i];
    return op_apply(g, OP_PERMUTE, &a, &x, 1);
}

id op_dense(struct graph *g, id x)
{
    if (!x || tensor_is_dense(tensor_at(g, x))) return x;
    return op_copy(g, x, storage_of(g, x)->space);
}

/* A node takes at most max_in inputs; more of them are concatenated in groups. */
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
    int rank = x ? tensor_at(g, x)->rank : 0;
    for (int i = 0; i < rank && i < MAX_RANK; i++) {
        a.pad.before[i] = before[i];
        a.pad.after[i] = after[i];
    }
    return op_apply(g, OP_PAD, &a, &x, 1);
}

id op_replace_rows(struct graph *g, id x, id index, id y)
{
    return op_apply(g, OP_REPLACE_ROWS, NULL, (id[]){x, index, y}, y ? 3 : 2);
}
id op_gather(struct graph *g, id x, id index) { return op_apply(g, OP_GATHER, NULL, (id[]){x, index}, 2); }
id op_gather_unique(struct graph *g, id x, id index, id inverse)
{
    return op_apply(g, OP_GATHER, NULL, (id[]){x, index, inverse}, 3);
}

id op_topk(struct graph *g, id x, int64_t k)
{
    union attr a = {.topk = {k}};
    return op_apply(g, OP_TOPK, &a, &x, 1);
}

id op_scatter_add(struct graph *g, id y, id index, int64_t rows)
{
    union attr a = {.scatter_add = {rows}};
    return op_apply(g, OP_SCATTER_ADD, &a, (id[]){y, index}, 2);
}

id op_resize(struct graph *g, id x, int64_t H, int64_t W, bool align_corners)
{
    union attr a = {.resize = {H, W, align_corners}};
    return op_apply(g, OP_RESIZE, &a, &x, 1);
}

id op_avgpool(struct graph *g, id x, const int64_t k[2], const int64_t stride[2], const int64_t pad[2], bool count_pad)
{
    union attr a = {.avgpool = {{k[0], k[1]}, {stride[0], stride[1]}, {pad[0], pad[1]}, .count_pad = count_pad}};
    return op_apply(g, OP_AVGPOOL, &a, &x, 1);
}

id op_avgpool_adaptive(struct graph *g, id x, int64_t H, int64_t W)
{
    const struct tensor *t = x ? tensor_at(g, x) : NULL;
    if (t && t->rank == 4 && H > 0 && W > 0 && t->dim[1] % H == 0 && t->dim[2] % W == 0) {
        const int64_t k[2] = {t->dim[1] / H, t->dim[2] / W};
        return op_avgpool(g, x, k, k, (int64_t[2]){0, 0}, true);
    }
    union attr a = {.avgpool = {.adaptive = 1, .H = H, .W = W}};
    return op_apply(g, OP_AVGPOOL, &a, &x, 1);
}

/* The optimizer does not update a running statistic, but the step does and checkpoints store it. */
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

id op_batchnorm_frozen(struct graph *g, id x, id w, id b, id mean, id var, float eps)
{
    union attr a = {.batchnorm_frozen = {eps}};
    return op_apply(g, OP_BATCHNORM_FROZEN, &a, (id[]){x, w, b, mean, var}, 5);
}
