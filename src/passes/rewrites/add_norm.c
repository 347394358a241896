/*
 * add_norm.c: fuses a sum with the norm that follows it.
 *
 *     before   r = ADD(a, b)    y = NORM(r, ...)
 *     after    y, r = ADD_NORM(a, b, ...)
 *
 * This saves one pass over the tensor. The bits are those of the two ops: r is rounded before it is
 * normalised. The pass fuses adjacent nodes only, so it runs late, when recompute and copies are
 * fixed.
 *
 * In the fused op y is alive together with a and b. The two ops stay separate if a or b dies at the
 * sum and is not reused for r: y could have had its bytes. They also stay separate if the norm
 * begins the next block: the search composes a plan's time block by block (plan/survey.c), and the
 * fusion would depend on two blocks.
 */
#include "graph/lifetime.h"
#include "graph/ops.h"
#include "passes/passes.h"

static enum op fused_op(enum op norm)
{
    return norm == OP_RMSNORM ? OP_ADD_RMSNORM : norm == OP_LAYERNORM ? OP_ADD_LAYERNORM : OP_NONE;
}

/* Reports whether the sum at position k and the norm after it can be fused. */
static bool fits(const struct graph *g, const struct life *life, uint32_t k, const struct node *sum,
                 const struct node *norm)
{
    const id r = sum->out[0];
    if (sum->op != OP_ADD || !fused_op(norm->op) || norm->in[0] != r || sum->loop != norm->loop ||
        sum->lane != norm->lane)
        return false;
    if (graph_block_of(g, sum->scope) != graph_block_of(g, norm->scope)) return false;
    for (int i = 0; i < 2; i++) {
        const id s = tensor_at(g, sum->in[i])->storage;
        if (!tensors_alike(tensor_at(g, sum->in[i]), tensor_at(g, r))) return false;
        if (s == tensor_at(g, r)->storage) {
            if (tensor_at(g, sum->in[i])->offset != tensor_at(g, r)->offset) return false;
        } else if (life[s].used && life[s].end <= k && g->storages.at[s].kind == KIND_ACT) return false;
    }
    return true;
}

static void fuse(struct graph *g, const struct node *sum, id node)
{
    struct node *n = node_at(g, node);
    n->op = fused_op(n->op);
    for (int i = n->nin; i > 1; i--) n->in[i] = n->in[i - 1];
    n->in[0] = sum->in[0];
    n->in[1] = sum->in[1];
    n->nin++;
    n->out[n->nout++] = sum->out[0];
    tensor_at(g, sum->out[0])->node = node;
    n->made_by = graph_intern(g, "add_norm");
}

void pass_add_norm(struct graph *g, const struct settings *s)
{
    struct life *life = mem_alloc(g->storages.n * sizeof *life);
    (void)s;
    for (enum program p = 0; p < PROGRAM_COUNT; p++) {
        struct order *order = &g->order[p];
        uint32_t kept = 0;
        bool known = false; /* whether `life` is filled, which happens before the first change */
        for (uint32_t k = 0; k < order->nodes.n; k++) {
            const id node = order->nodes.at[k], next = k + 1 < order->nodes.n ? order->nodes.at[k + 1] : 0;
            if (!known && next && node_at(g, node)->op == OP_ADD && fused_op(node_at(g, next)->op)) {
                graph_lifetimes(g, p, life);
                known = true;
            }
            if (known && next && fits(g, life, k, node_at(g, node), node_at(g, next))) fuse(g, node_at(g, node), next);
            else order->nodes.at[kept++] = node;
        }
        order->nodes.n = kept;
    }
    mem_free(life);
}
