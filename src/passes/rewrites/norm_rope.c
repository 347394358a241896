/*
 * norm_rope.c: fuses the norm of queries or keys with their rotation.
 *
 *     before   y, rstd = RMSNORM(x, w)    z = ROPE(y, inv_freq, positions)
 *     after    z, rstd = RMSNORM_ROPE(x, w, inv_freq, positions)
 *
 * This saves a pass over the heads, and another one in the backward. It applies where the norm is
 * over a head, as in Qwen3 and Gemma 3, and nothing else reads y or rstd. A strided x stays as it
 * is: on a CPU the norm runs on its reference kernel, and the rotation on a fast one.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

/* Finds the norm that only this rotation reads; 0: there is none. */
static id norm_of(const struct graph *g, const uint32_t *readers, const struct node *rope)
{
    if (rope->op != OP_ROPE) return 0;
    const id y = rope->in[0], norm = tensor_at(g, y)->node;
    const struct node *n = node_at(g, norm);
    if (!norm || n->op != OP_RMSNORM || n->out[0] != y || n->loop != rope->loop) return 0;
    if (readers[y] != 1 || readers[n->out[1]]) return 0;
    if (graph_block_of(g, n->scope) != graph_block_of(g, rope->scope)) return 0;
    return tensor_is_dense(tensor_at(g, n->in[0])) ? norm : 0;
}

/* Turns the rotation into RMSNORM_ROPE. */
static void fuse(struct graph *g, id rope, id norm)
{
    struct node *r = node_at(g, rope);
    const struct node *n = node_at(g, norm);
    union attr a = {0};
    a.rope = r->attr.rope;
    a.rmsnorm_rope.eps = n->attr.rmsnorm.eps;
    a.rmsnorm_rope.unit_offset = n->attr.rmsnorm.unit_offset;
    r->op = OP_RMSNORM_ROPE;
    r->attr = a;
    for (int i = r->nin; i > 1; i--) r->in[i] = r->in[i - 1];
    r->in[0] = n->in[0];
    r->in[1] = n->in[1];
    r->nin++;
    r->out[1] = n->out[1];
    r->nout = 2;
    tensor_at(g, r->out[1])->node = rope;
    r->made_by = graph_intern(g, "norm_rope");
}

void pass_norm_rope(struct graph *g, const struct settings *s)
{
    (void)s;
    FOR_PROGRAMS(p, PROGRAM_FORWARD) {
        struct order *order = &g->order[p];
        uint32_t *readers = readers_by_tensor(g, p), kept = 0;
        bool *gone = mem_alloc(g->nodes.n);
        for (uint32_t k = 0; k < order->nodes.n; k++) {
            const id node = order->nodes.at[k], norm = norm_of(g, readers, node_at(g, node));
            if (norm) fuse(g, node, norm);
            gone[norm] = norm;
        }
        for (uint32_t k = 0; k < order->nodes.n; k++)
            if (!gone[order->nodes.at[k]]) order->nodes.at[kept++] = order->nodes.at[k];
        order->nodes.n = kept;
        mem_free(gone);
        mem_free(readers);
    }
}
