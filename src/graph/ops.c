/*
 * ops.c: the op table itself, and the builder's spelling of each op.
 */
#include "graph/ops.h"

#include <string.h>

#include "graph/rules.h"

#define I(n) (1u << (n))
#define O(n) (1u << (16 + (n)))
#define NONE 0u
#define NEW ALIAS_NEW
#define MUST(i) ((i) + 1)
#define MAY(i) (-(i) - 1)
#define MAY_ANY ALIAS_ANY
#define ALIAS(...) {__VA_ARGS__}
#define vjp_none NULL /* "no gradient", said in the row */

const struct op_row op_table[OP_COUNT] = {
    [OP_NONE] = {.name = "none"},
#define OP(NAME, lo, hi, OUTS, SHAPE, VJP, READS, ALIASES, COST, FLAGS, DOC) \
    [OP_##NAME] = {#NAME, lo, hi, OUTS, infer_##SHAPE, vjp_##VJP, READS, ALIASES, cost_##COST, FLAGS, DOC},
#include "graph/ops.def"
#undef OP
};

static id emit1(struct graph *g, enum op op, const union attr *attr, const id *in, int nin)
{
    id n = graph_emit(g, op, attr, in, nin);
    return n ? node_at(g, n)->out[0] : 0;
}

id op_reshape(struct graph *g, id x, int rank, const int64_t *dim)
{
    union attr a = {.reshape = {.rank = rank}};
    memcpy(a.reshape.dim, dim, rank * sizeof *dim);
    return emit1(g, OP_RESHAPE, &a, &x, 1);
}

id op_slice(struct graph *g, id x, int axis, int64_t start, int64_t length)
{
    union attr a = {.slice = {axis, start, length}};
    return emit1(g, OP_SLICE, &a, &x, 1);
}

id op_linear(struct graph *g, id x, id w, id bias)
{
    return emit1(g, OP_LINEAR, NULL, (id[]){x, w, bias}, bias ? 3 : 2);
}

id op_matmul(struct graph *g, id a, id b, bool ta, bool tb, enum dtype result)
{
    union attr t = {.matmul = {ta, tb, result}};
    return emit1(g, OP_MATMUL, &t, (id[]){a, b}, 2);
}

id op_rmsnorm(struct graph *g, id x, id w, float eps)
{
    union attr a = {.rmsnorm = {eps}};
    return emit1(g, OP_RMSNORM, &a, (id[]){x, w}, 2);
}

id op_layernorm(struct graph *g, id x, id w, id b, float eps)
{
    union attr a = {.layernorm = {eps}};
    return emit1(g, OP_LAYERNORM, &a, (id[]){x, w, b}, 3);
}

id op_rope(struct graph *g, id x, id inv_freq, float scale, bool inverse)
{
    union attr a = {.rope = {scale, inverse}};
    return emit1(g, OP_ROPE, &a, (id[]){x, inv_freq}, 2);
}

id op_silu_gate(struct graph *g, id gate, id up) { return emit1(g, OP_SILU_GATE, NULL, (id[]){gate, up}, 2); }

id op_act(struct graph *g, id x, enum act_kind kind)
{
    union attr a = {.act = {kind}};
    return emit1(g, OP_ACT, &a, &x, 1);
}

id op_softmax(struct graph *g, id x) { return emit1(g, OP_SOFTMAX, NULL, &x, 1); }

id op_attention(struct graph *g, id q, id k, id v, float scale, bool causal)
{
    union attr a = {.attention = {scale, causal}};
    return emit1(g, OP_ATTENTION, &a, (id[]){q, k, v}, 3);
}

id op_embedding(struct graph *g, id ids, id table) { return emit1(g, OP_EMBEDDING, NULL, (id[]){ids, table}, 2); }
id op_shift_labels(struct graph *g, id labels) { return emit1(g, OP_SHIFT_LABELS, NULL, &labels, 1); }

id op_xent(struct graph *g, id logits, id labels)
{
    return emit1(g, OP_XENT, NULL, (id[]){logits, labels, graph_step(g)}, 3);
}

id op_add(struct graph *g, id a, id b) { return emit1(g, OP_ADD, NULL, (id[]){a, b}, 2); }
id op_mul(struct graph *g, id a, id b) { return emit1(g, OP_MUL, NULL, (id[]){a, b}, 2); }

id op_scale(struct graph *g, id x, double value)
{
    union attr a = {.scale = {value}};
    return emit1(g, OP_SCALE, &a, &x, 1);
}

id op_cast(struct graph *g, id x, enum dtype to)
{
    union attr a = {.cast = {to}};
    return emit1(g, OP_CAST, &a, &x, 1);
}

id op_sum(struct graph *g, id x) { return emit1(g, OP_SUM, NULL, &x, 1); }
id op_accumulate(struct graph *g, id x, id acc) { return emit1(g, OP_ACCUMULATE, NULL, (id[]){x, acc}, 2); }


static int64_t count_of(const struct graph *g, id x) { return x ? tensor_elements(tensor_at(g, x)) : 1; }
id op_mean(struct graph *g, id x) { return op_scale(g, op_sum(g, x), 1.0 / (double)count_of(g, x)); }
id op_mean_square(struct graph *g, id x) { return op_mean(g, op_mul(g, x, x)); }

/* The key is the stable id that the node will get: a repetition carries it along. */
static id dropout(struct graph *g, id x, id samples, float p, bool per_sample)
{
    union attr a = {.dropout = {p, per_sample, g->next_stable + 1}};
    if (p == 0 || g->at.program == PROGRAM_EVAL) return x;
    return emit1(g, OP_DROPOUT, &a, (id[]){x, graph_step(g), samples}, 3);
}

id op_dropout(struct graph *g, id x, id samples, float p) { return dropout(g, x, samples, p, false); }
id op_drop_path(struct graph *g, id x, id samples, float p) { return dropout(g, x, samples, p, true); }
id op_samples(struct graph *g, int64_t B) { return graph_input(g, "samples", DT_I32, 1, &B); }

id op_fill(struct graph *g, enum dtype t, int rank, const int64_t *dim, double value)
{
    union attr a = {.fill = {value, t, rank}};
    for (int i = 0; i < rank; i++) a.fill.dim[i] = dim[i];
    return emit1(g, OP_FILL, &a, NULL, 0);
}

id op_copy(struct graph *g, id x, enum space to)
{
    union attr a = {.copy = {to}};
    return emit1(g, OP_COPY, &a, &x, 1);
}
