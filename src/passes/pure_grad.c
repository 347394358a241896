/*
 * pure_grad.c: without f32 masters a matrix has no f32 gradient either.
 *
 *     before   dW f32 = MATMUL(dy, x)        after   dW bf16 = MATMUL(dy, x)
 *
 * The product still adds up in f32 and rounds once; micro-batches after the first are added by the same product, and round
 * again. A gradient is then as wide as its weight: half the bytes to keep, to write, and to read in the update.
 *
 * Whatever else makes gradients keeps them in f32: sums over rows (norms, biases, tables), convolutions, a weight that is used
 * twice, and the head or the mask decoder, which may add up theirs piece by piece.
 *
 * Half a step of bf16 is 2^-9 of a number: of a sum of many terms the last ones are lost, all in the same direction. At 64
 * micro-batches, as many as a GPU has, a gradient's norm is 0.007 % short; at 512 it would be 1.5 %. So above 64 gradients are f32.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

enum { TERMS_MOST = 64 };

/* One product makes it, for nobody but the update. */
static bool fits(const struct graph *g, id grad, const uint32_t *uses)
{
    const struct tensor *t = tensor_at(g, grad);
    const struct node *n = node_at(g, t->node);
    if (!t->node || n->op != OP_MATMUL || n->loop || (n->nin > 2 && n->in[2]) || graph_scope_is(g, n->scope, SCOPE_ROWS)) return false;
    return t->dtype == DT_F32 && uses[t->storage] == 1 && tensor_bytes(t) == storage_of(g, grad)->bytes;
}

void pass_pure_grad(struct graph *g, const struct settings *s)
{
    if (!s->pure || s->accumulation > TERMS_MOST) return;
    uint32_t *uses = uses_by_storage(g, PROGRAM_STEP);
    for (uint32_t i = 0; i < g->params.n; i++) {
        const id grad = g->params.at[i].grad;
        if (!grad || tensor_at(g, g->params.at[i].master)->dtype != DT_BF16 || !fits(g, grad, uses)) continue;
        struct tensor *t = tensor_at(g, grad);
        node_at(g, t->node)->attr.matmul.dtype = t->dtype = DT_BF16;
        storage_of(g, grad)->bytes = tensor_bytes(t);
    }
    mem_free(uses);
}
