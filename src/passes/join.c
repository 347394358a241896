/*
 * join.c: gradients of slices that make up a whole are laid side by side instead of being summed.
 *
 *     before   PAD(dq) + PAD(dk) + PAD(dv)     each as large as the whole, two thirds of it zeros
 *     after    CONCAT(dq, dk, dv)
 *
 * The gradient of a slice is zero around it, and the sum of such gradients is, where they neither
 * overlap nor leave gaps, no sum at all: x + 0 is x. Three layers that share one weight move a
 * fifth of the bytes for its gradient. There is no switch: only a zero's sign could change.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

struct piece {
    id x, pad;            /* what is padded, and the node that did it */
    int64_t from, length; /* along the axis */
};

/* A sum of padded tensors: its pieces, in the whole's order, and the nodes that it takes. */
struct sum {
    struct piece at[MAX_IN];
    id adds[MAX_IN];
    int n, nadds, axis; /* axis -1: none yet */
};

/* The only axis with zeros; -1: there is none, or more than one. */
static int padded_axis(const struct node *n)
{
    int axis = -1;
    for (int d = 0; d < MAX_RANK; d++) {
        if (!n->attr.pad.before[d] && !n->attr.pad.after[d]) continue;
        if (axis >= 0) return -1;
        axis = d;
    }
    return axis;
}

/* Takes the PAD that made t as a piece, in its place among the others. */
static bool take_piece(struct sum *s, const struct graph *g, id t, id loop)
{
    const id node = tensor_at(g, t)->node;
    const struct node *n = node_at(g, node);
    if (!node || n->op != OP_PAD || n->loop != loop || s->n == MAX_IN) return false;
    const int axis = padded_axis(n);
    if (axis < 0 || (s->n && axis != s->axis)) return false;
    s->axis = axis;
    const struct piece p = {n->in[0], node, n->attr.pad.before[axis], tensor_at(g, n->in[0])->dim[axis]};
    int i = s->n++;
    for (; i > 0 && s->at[i - 1].from > p.from; i--) s->at[i] = s->at[i - 1];
    s->at[i] = p;
    return true;
}

/* Follows a sum from its last addition back; false: it is not of PADs alone, or somebody else
 * reads a part of it. */
static bool follow(struct sum *s, const struct graph *g, id last, const uint32_t *readers)
{
    const id loop = node_at(g, last)->loop;
    id node = last;
    for (;;) {
        const struct node *n = node_at(g, node);
        if (n->loop != loop || s->nadds == MAX_IN - 1) return false;
        s->adds[s->nadds++] = node;
        const id more = n->in[0], sum = n->in[1], made = tensor_at(g, sum)->node;
        if (readers[more] != 1 || readers[sum] != 1 || !take_piece(s, g, more, loop)) return false;
        if (!made || node_at(g, made)->op != OP_ACCUMULATE) return take_piece(s, g, sum, loop);
        node = made;
    }
}

static bool is_whole(const struct sum *s, const struct tensor *whole)
{
    int64_t at = 0;
    for (int i = 0; i < s->n; at += s->at[i].length, i++)
        if (s->at[i].from != at) return false;
    return at == whole->dim[s->axis];
}

/* The last addition becomes the CONCAT, where the sum was. */
static void join(struct graph *g, const struct sum *s, bool *gone)
{
    struct node *n = node_at(g, s->adds[0]);
    n->op = OP_CONCAT;
    n->attr = (union attr){.concat = {(uint8_t)s->axis}};
    n->nin = (uint8_t)s->n;
    for (int i = 0; i < s->n; i++) {
        n->in[i] = s->at[i].x;
        gone[s->at[i].pad] = true;
    }
    for (int i = 1; i < s->nadds; i++) gone[s->adds[i]] = true;
    n->made_by = graph_intern(g, "join");
}

void pass_join(struct graph *g, const struct settings *settings)
{
    struct order *order = &g->order[PROGRAM_STEP];
    bool *gone = mem_alloc(g->nodes.n);
    uint32_t *readers = readers_by_tensor(g, PROGRAM_STEP), kept = 0;
    (void)settings;
    for (uint32_t k = order->nodes.n; k-- > 0;) {
        const id node = order->nodes.at[k];
        const struct node *n = node_at(g, node);
        struct sum s = {.axis = -1};
        if (gone[node] || n->op != OP_ACCUMULATE || !follow(&s, g, node, readers)) continue;
        if (is_whole(&s, tensor_at(g, n->out[0]))) join(g, &s, gone);
    }
    for (uint32_t k = 0; k < order->nodes.n; k++)
        if (!gone[order->nodes.at[k]]) order->nodes.at[kept++] = order->nodes.at[k];
    order->nodes.n = kept;
    mem_free(readers);
    mem_free(gone);
}
