/*
 * selective.c: what is cheap to make again is made again in the backward instead of kept.
 *
 *     kept      x --norm--> n --linear--> u --gelu--> a --linear-->        x n u a
 *     selective x --norm--> n --linear--> u --gelu--> a --linear-->        x   u
 *     backward                               [gelu again] dW2, du   [norm again] dW1, dx
 *
 * A node is repeated just before the first node of the backward that reads its result,
 * when it moves little more than it frees (norms, activations, gates, casts, dropout) and
 * what it reads is there at that moment anyway: a weight, a tensor that the backward still
 * has to read, or one that is made again itself. So nothing lives longer for it, no product
 * is made twice, and the same kernels on the same bytes give the same bits. What LINEAR_ACT
 * made in one pass (fuse.c) is made again by ACT alone, from z.
 *
 * Only what units.c allows is made again so: everything (selective), or what no block
 * rebuilds (+selective). What a rebuilt block will read is kept for it and serves here too.
 */
#include "graph/ops.h"
#include "graph/rules.h"
#include "passes/rebuild.h"

/* A repetition may move so many bytes for each that it frees. */
enum { BYTES_PER_BYTE = 4 };

struct selective {
    struct graph *g;
    uint32_t tensors;    /* how many there were before */
    struct units units;
    uint32_t *last;      /* by storage: the last position of the backward that reads it, plus 1; 0: none */
    uint32_t *kept;      /* by storage: the last position where a block is rebuilt from it, plus 1; 0: none */
    id *copy;            /* by tensor: its repetition; 0: none */
    uint32_t *asked;     /* by tensor: the position, plus 1, for which `answer` holds */
    bool *answer;        /* can it be made again there? */
};

/* What makes `t` again, given all else that `made` gave: that node, or for LINEAR_ACT's y
 * the ACT of its z. */
static struct node recipe(const struct graph *g, id made, id t)
{
    struct node n = *node_at(g, made);
    if (n.op != OP_LINEAR_ACT || n.out[0] != t || !n.out[1]) return n;
    n.op = OP_ACT;
    n.nin = n.nout = 1;
    n.in[0] = n.out[1];
    return n;
}

/* Elements pass through once (cost_stream), and not many more than come out. */
static bool is_cheap(const struct graph *g, const struct node *n)
{
    const struct op_row *row = &op_table[n->op];
    if (n->phase != PHASE_FORWARD || row->flags & (OPF_EFFECT | OPF_GRAD)) return false;
    const struct tensor *in[MAX_IN] = {0}, *out[MAX_OUT] = {0};
    double frees = 0;
    for (int i = 0; i < n->nin; i++) in[i] = n->in[i] ? tensor_at(g, n->in[i]) : NULL;
    for (int o = 0; o < n->nout; o++) {
        if (op_must_alias(g, n, o) >= 0) return false;
        if (!n->out[o]) continue;
        out[o] = tensor_at(g, n->out[o]);
        frees += (double)tensor_bytes(out[o]);
    }
    if (row->flags & OPF_VIEW) return true;
    return row->cost == cost_stream && row->cost(in, out, &n->attr).bytes <= BYTES_PER_BYTE * frees;
}

/* The node that makes `t`, when it can be repeated at `position` of loop `loop`; 0: it
 * cannot, or `t` comes from outside. */
static id made_again(struct selective *s, id t, uint32_t position, id loop);

/* Is `t` there at `position`, kept for others or made again? */
static bool is_there(struct selective *s, id t, uint32_t position, id loop)
{
    if (!t || s->copy[t] || kind_is_persistent(storage_of(s->g, t)->kind)) return true;
    return made_again(s, t, position, loop) || s->last[tensor_at(s->g, t)->storage] > position;
}

static id made_again(struct selective *s, id t, uint32_t position, id loop)
{
    struct graph *g = s->g;
    id made = tensor_at(g, t)->node;
    if (!made || !s->units.selective[made] || node_at(g, made)->loop != loop || s->kept[tensor_at(g, t)->storage] > position) return 0;
    const struct node again = recipe(g, made, t), *n = &again;
    if (s->asked[t] == position + 1) return s->answer[t] ? made : 0;
    bool can = is_cheap(g, n), output = false;
    for (int o = 0; o < n->nout; o++) output |= n->out[o] == t;
    /* A view of what is kept is kept; of what is made again it is another view. */
    bool view = op_table[n->op].flags & OPF_VIEW;
    for (int i = 0; i < n->nin && can && output; i++)
        can = view ? s->copy[n->in[i]] || made_again(s, n->in[i], position, loop) : is_there(s, n->in[i], position, loop);
    s->asked[t] = position + 1;
    s->answer[t] = can && output;
    return s->answer[t] ? made : 0;
}

/* Repeats what makes `t` at the end of the order; what that reads comes first. */
static void repeat(struct selective *s, id t, uint32_t position, id loop)
{
    struct graph *g = s->g;
    id made = !t || s->copy[t] || kind_is_persistent(storage_of(g, t)->kind) ? 0 : made_again(s, t, position, loop);
    if (!made) return;
    struct node x = recipe(g, made, t);
    for (int i = 0; i < x.nin; i++) {
        repeat(s, x.in[i], position, loop);
        if (x.in[i] && s->copy[x.in[i]]) x.in[i] = s->copy[x.in[i]];
    }
    g->at.scope = x.scope;
    g->at.origin = made;
    id again = graph_emit(g, x.op, &x.attr, x.in, x.nin);
    CHECK(again, "a node that was valid is not when repeated");
    for (int o = 0; o < x.nout; o++)
        if (x.out[o]) s->copy[x.out[o]] = node_at(g, again)->out[o];
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

/* One node of the backward: what it reads is repeated before it, where that pays. */
static void serve(struct selective *s, id node, uint32_t position)
{
    struct graph *g = s->g;
    struct node n = *node_at(g, node);
    g->at.loop = n.loop;
    for (int i = 0; i < n.nin; i++) {
        if (!n.in[i] || n.in[i] >= s->tensors) continue;
        repeat(s, n.in[i], position, n.loop);
        if (s->copy[n.in[i]]) node_at(g, node)->in[i] = s->copy[n.in[i]];
    }
    rebuild_follow(g, node_at(g, node));
}

/* The order again, with what is repeated in its places. */
static void rebuild(struct selective *s)
{
    struct graph *g = s->g;
    struct order *order = &g->order[PROGRAM_STEP];
    uint32_t count = order->nodes.n;
    id *old = mem_copy(order->nodes.at, count * sizeof(id));
    note_reads(s, old, count);
    order->nodes.n = 0;
    for (uint32_t k = 0; k < count; k++) {
        if (node_at(g, old[k])->phase == PHASE_BACKWARD) serve(s, old[k], k);
        vec_push(&order->nodes, old[k]);
    }
    mem_free(old);
}

void pass_selective(struct graph *g, const struct settings *settings)
{
    struct selective s = {.g = g, .tensors = g->tensors.n};
    units_find(&s.units, g, settings);
    if (s.units.any) {
        s.last = mem_alloc(g->storages.n * sizeof *s.last);
        s.kept = mem_alloc(g->storages.n * sizeof *s.kept);
        s.copy = mem_alloc(s.tensors * sizeof *s.copy);
        s.asked = mem_alloc(s.tensors * sizeof *s.asked);
        s.answer = mem_alloc(s.tensors * sizeof *s.answer);
        struct cursor before = graph_move(g, PROGRAM_STEP, PHASE_RECOMPUTE, "selective");
        rebuild(&s);
        g->at = before;
        graph_prune(g, PROGRAM_STEP);
        mem_free(s.last);
        mem_free(s.kept);
        mem_free(s.copy);
        mem_free(s.asked);
        mem_free(s.answer);
    }
    units_free(&s.units);
}
