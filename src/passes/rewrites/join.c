/*
 * join.c: gradients of slices that cover a tensor are concatenated instead of summed.
 *
 *     before   PAD(dq) + PAD(dk) + PAD(dv)     each as large as the whole, two thirds of it zeros
 *     after    CONCAT(dq, dk, dv)
 *
 * The gradient of a slice is zero outside of it. If the slices neither overlap nor leave gaps, the
 * sum of their padded gradients needs no addition: x + 0 is x. For three layers that share one
 * weight, the gradient moves a fifth of the bytes. There is no setting: only the sign of a zero can
 * change.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

struct slice {
    id x, pad;            /* the tensor that is padded, and the PAD node */
    int64_t from, length; /* along the axis */
};

/* A sum of padded tensors: its slices in order of their offsets, and its ACCUMULATE nodes. */
struct sum {
    struct slice at[MAX_IN];
    id adds[MAX_IN];
    int n, nadds, axis; /* axis -1: none yet */
};

/* Returns the only padded axis; -1: none, or more than one. */
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

/* Adds the PAD that computes t to the sum, sorted by offset. */
static bool add_slice(struct sum *s, const struct graph *g, id t, id loop)
{
    const id node = tensor_at(g, t)->node;
    const struct node *n = node_at(g, node);
    if (!node || n->op != OP_PAD || n->loop != loop || s->n == MAX_IN) return false;
    const int axis = padded_axis(n);
    if (axis < 0 || (s->n && axis != s->axis)) return false;
    s->axis = axis;
    const struct slice p = {n->in[0], node, n->attr.pad.before[axis], tensor_at(g, n->in[0])->dim[axis]};
    int i = s->n++;
    for (; i > 0 && s->at[i - 1].from > p.from; i--) s->at[i] = s->at[i - 1];
    s->at[i] = p;
    return true;
}

/* Follows a sum back from its last addition. Returns false if it has other terms than PADs, or if
 * another node reads a partial sum. */
static bool follow(struct sum *s, const struct graph *g, id last, const uint32_t *readers)
{
    const id loop = node_at(g, last)->loop;
    id node = last;
    for (;;) {
        const struct node *n = node_at(g, node);
        if (n->loop != loop || s->nadds == MAX_IN - 1) return false;
        s->adds[s->nadds++] = node;
        const id more = n->in[0], sum = n->in[1], made = tensor_at(g, sum)->node;
        if (readers[more] != 1 || readers[sum] != 1 || !add_slice(s, g, more, loop)) return false;
        if (!made || node_at(g, made)->op != OP_ACCUMULATE) return add_slice(s, g, sum, loop);
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

/* Turns the last addition into the CONCAT. */
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
