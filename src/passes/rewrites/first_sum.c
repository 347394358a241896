/*
 * first_sum.c: the first term of a sum over a loop is written instead of added to zeros.
 *
 *     acc = FILL 0
 *     loop { acc = MATMUL(a, b, acc) }
 *
 * The pass marks the FILL as silent, and it is not launched. In the first iteration of all loops
 * between the two nodes, the tape passes no accumulator to the adding node (run/tape.c). Each step
 * saves a write of zeros to the gradients and a read of them. No bit changes except the sign of a
 * zero. (A oneDNN product, which always adds, clears its result itself.)
 *
 * The adding node must be the first to access these bytes, and must access all of them.
 */
#include "graph/ops.h"
#include "passes/passes.h"

static bool is_whole(const struct graph *g, const struct tensor *x)
{
    return !x->loop && x->offset == 0 && tensor_is_dense(x) && tensor_bytes(x) == g->storages.at[x->storage].bytes;
}

static bool fills_with_zeros(const struct graph *g, const struct node *n)
{
    return n->op == OP_FILL && n->attr.fill.value == 0 && is_whole(g, tensor_at(g, n->out[0]));
}

/* Reports whether this node, in a loop after `fill`, adds to the tensor that `fill` writes. */
static bool adds_to(const struct graph *g, const struct node *n, id fill)
{
    const int slot = op_table[n->op].flags & OPF_ACCUM ? op_must_alias(n, 0) : -1;
    const id around = node_at(g, fill)->loop;
    if (slot < 0 || n->loop == around || !loop_inside(g, n->loop, around)) return false;
    const struct tensor *sum = tensor_at(g, n->in[slot]);
    for (int i = 0; i < n->nin; i++)
        if (i != slot && n->in[i] && tensor_at(g, n->in[i])->storage == sum->storage) return false;
    return sum->node == fill && is_whole(g, sum);
}

static void mark_silent(struct graph *g, enum program p, id *filled)
{
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const id node = g->order[p].nodes.at[k];
        const struct node *n = node_at(g, node);
        for (int i = 0; i < n->nin + n->nout; i++) {
            const id t = i < n->nin ? n->in[i] : n->out[i - n->nin], s = t ? tensor_at(g, t)->storage : 0;
            if (!s || !filled[s]) continue;
            if (adds_to(g, n, filled[s])) node_at(g, filled[s])->silent = true;
            filled[s] = 0;
        }
        if (fills_with_zeros(g, n)) filled[tensor_at(g, n->out[0])->storage] = node;
    }
}

void pass_first_sum(struct graph *g, const struct settings *s)
{
    (void)s;
    id *filled = mem_alloc(g->storages.n * sizeof *filled); /* by storage: the FILL, until another node accesses it */
    for (int p = 0; p < PROGRAM_COUNT; p++) {
        bool loops = false;
        for (id l = 1; l < g->loops.n; l++) loops |= g->loops.at[l].program == p;
        if (!loops) continue;
        memset(filled, 0, g->storages.n * sizeof *filled);
        mark_silent(g, p, filled);
    }
    mem_free(filled);
}
