/*
 * selective.c: selective recompute: tensors that are cheap to recompute are recomputed in the
 * backward instead of kept.
 *
 *     kept      x --norm--> n --linear--> u --gelu--> a --linear-->        x n u a
 *     selective x --norm--> n --linear--> u --gelu--> a --linear-->        x   u
 *     backward                          [recompute gelu] dW2, du   [recompute norm] dW1, dx
 *
 * A node is repeated just before the first backward node that reads its result, if it moves little
 * more than it frees (norms, activations, gates, casts, dropout) and its inputs are available there
 * anyway: a weight, a tensor that the backward reads later, or one that is recomputed itself. So
 * nothing lives longer because of it, no product is computed twice, and the same kernels on the
 * same bytes give the same bits. The result of a LINEAR_ACT (fuse.c) is recomputed by ACT, from
 * z, without the product.
 *
 * Only nodes that recompute_units.c allows are recomputed here: all (selective), or those that no
 * block recomputes (+selective). A tensor that a recomputed block will read is kept for it and
 * serves here too.
 */
#include "graph/ops.h"
#include "graph/rules.h"
#include "passes/techniques/recompute.h"

/* A repetition may move this many bytes for each byte that it frees. */
enum { BYTES_PER_BYTE = 4 };

struct selective {
    struct graph *g;
    uint32_t tensors;    /* number of tensors before the pass */
    struct units units;
    uint32_t *last;      /* by storage: the last position in the backward that reads it, plus 1; 0: none */
    uint32_t *kept;      /* by storage: the last position where a block is recomputed from it, plus 1; 0: none */
    id *copy;            /* by tensor: its recomputed copy; 0: none */
    uint32_t *checked_at;     /* by tensor: the position, plus 1, for which `can` is valid */
    bool *can;        /* by tensor: it can be recomputed there */
};

/* Returns the node that recomputes `t`: a copy of `made`, or for the y of a LINEAR_ACT the ACT of
 * its z. */
static struct node recipe(const struct graph *g, id made, id t)
{
    struct node n = *node_at(g, made);
    if (n.op != OP_LINEAR_ACT || n.out[0] != t || !n.out[1]) return n;
    n.op = OP_ACT;
    n.nin = n.nout = 1;
    n.in[0] = n.out[1];
    return n;
}

/* Reports whether the op is a view, or streams its elements once (cost_stream) and moves few more
 * bytes than it frees. */
static bool is_cheap(const struct graph *g, const struct node *n)
{
    const struct op_row *row = &op_table[n->op];
    if (n->phase != PHASE_FORWARD || row->flags & (OPF_EFFECT | OPF_GRAD | OPF_COMM)) return false;
    const struct tensor *in[MAX_IN] = {0}, *out[MAX_OUT] = {0};
    double frees = 0;
    for (int i = 0; i < n->nin; i++) in[i] = n->in[i] ? tensor_at(g, n->in[i]) : NULL;
    for (int o = 0; o < n->nout; o++) {
        if (op_must_alias(n, o) >= 0) return false;
        if (!n->out[o]) continue;
        out[o] = tensor_at(g, n->out[o]);
        frees += (double)tensor_bytes(out[o]);
    }
    if (row->flags & OPF_VIEW) return true;
    return row->cost == cost_stream && row->cost(in, out, &n->attr).bytes <= BYTES_PER_BYTE * frees;
}

/* Finds the node that computes `t`, if it can be repeated at `position` in loop `loop`; 0: it
 * cannot, or `t` comes from outside. */
static id repeatable(struct selective *s, id t, uint32_t position, id loop);

/* Reports whether `t` is available at `position`, kept for other nodes or recomputed. */
static bool is_available(struct selective *s, id t, uint32_t position, id loop)
{
    if (!t || s->copy[t] || kind_is_persistent(storage_of(s->g, t)->kind)) return true;
    return repeatable(s, t, position, loop) || s->last[tensor_at(s->g, t)->storage] > position;
}

static id repeatable(struct selective *s, id t, uint32_t position, id loop)
{
    struct graph *g = s->g;
    id made = tensor_at(g, t)->node;
    if (!made || !s->units.selective[made] || node_at(g, made)->loop != loop ||
        s->kept[tensor_at(g, t)->storage] > position)
        return 0;
    const struct node repeated = recipe(g, made, t), *n = &repeated;
    if (s->checked_at[t] == position + 1) return s->can[t] ? made : 0;
    bool can = is_cheap(g, n), output = false;
    for (int o = 0; o < n->nout; o++) output |= n->out[o] == t;
    /* A view of a kept tensor is kept; a view of a recomputed tensor is emitted anew. */
    bool view = op_table[n->op].flags & OPF_VIEW;
    for (int i = 0; i < n->nin && can && output; i++)
        can = view ? s->copy[n->in[i]] || repeatable(s, n->in[i], position, loop)
                   : is_available(s, n->in[i], position, loop);
    s->checked_at[t] = position + 1;
    s->can[t] = can && output;
    return s->can[t] ? made : 0;
}

/* Emits the repetition of the node that computes `t`, and before it those of its inputs. */
static void repeat(struct selective *s, id t, uint32_t position, id loop)
{
    struct graph *g = s->g;
    id made = !t || s->copy[t] || kind_is_persistent(storage_of(g, t)->kind) ? 0 : repeatable(s, t, position, loop);
    if (!made) return;
    struct node x = recipe(g, made, t);
    for (int i = 0; i < x.nin; i++) {
        repeat(s, x.in[i], position, loop);
        if (x.in[i] && s->copy[x.in[i]]) x.in[i] = s->copy[x.in[i]];
    }
    repeat_node(g, made, &x, s->copy);
}

static void note_reads(struct selective *s, const id *nodes, uint32_t count)
{
    for (uint32_t k = 0; k < count; k++) {
        const struct node *n = node_at(s->g, nodes[k]);
        for (int i = 0; i < n->nin && n->phase != PHASE_FORWARD; i++) {
            if (!n->in[i]) continue;
            s->last[tensor_at(s->g, n->in[i])->storage] = k + 1;
            if (n->phase == PHASE_RECOMPUTE) s->kept[tensor_at(s->g, n->in[i])->storage] = k + 1;
        }
    }
}

/* Emits the repetitions of a backward node's inputs before it, where that is cheap. */
static void recompute_inputs(void *pass, id node, uint32_t position)
{
    struct selective *s = pass;
    struct graph *g = s->g;
    struct node n = *node_at(g, node);
    g->at.loop = n.loop;
    for (int i = 0; i < n.nin; i++) {
        if (!n.in[i] || n.in[i] >= s->tensors) continue;
        repeat(s, n.in[i], position, n.loop);
        if (s->copy[n.in[i]]) node_at(g, node)->in[i] = s->copy[n.in[i]];
    }
}

void pass_selective(struct graph *g, const struct settings *settings)
{
    struct selective s = {.g = g, .tensors = g->tensors.n};
    units_find(&s.units, g, settings);
    struct bump b = {0};
    if (s.units.any) {
        s.last = bump_alloc(&b, g->storages.n * sizeof *s.last);
        s.kept = bump_alloc(&b, g->storages.n * sizeof *s.kept);
        s.copy = bump_alloc(&b, s.tensors * sizeof *s.copy);
        s.checked_at = bump_alloc(&b, s.tensors * sizeof *s.checked_at);
        s.can = bump_alloc(&b, s.tensors * sizeof *s.can);
        note_reads(&s, g->order[PROGRAM_STEP].nodes.at, g->order[PROGRAM_STEP].nodes.n);
        repeat_in_backward(g, "selective", recompute_inputs, &s);
        bump_free(&b);
    }
    units_free(&s.units);
}
