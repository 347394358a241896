/*
 * gradients.c: the gradient of a matrix in bf16 instead of f32: with memory.gradients bf16, and in
 * pure bf16, where the weight itself is bf16.
 *
 *     before   dW f32 = MATMUL(dy, x)        after   dW bf16 = MATMUL(dy, x)
 *
 * The product still sums in f32 and rounds once; the same product adds the later micro-batches, and
 * rounds each time. It takes half the bytes to keep, to write, and to read in the update.
 *
 * All other gradients stay f32: sums over rows (norms, biases, tables), convolutions, weights that
 * are used twice, and those of the LM head or the mask decoder, which may be summed over chunks.
 *
 * Half a unit in the last place of bf16 is 2^-9 of the value: in a sum of many terms the last ones
 * are lost, all in the same direction. With 64 micro-batches, the maximum on a GPU, the norm of a
 * gradient is 0.007 % too small; with 512 it would be 1.5 %. So with more than 64 gradients are
 * f32.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

enum { TERMS_MOST = 64 };

/* Reports whether one product of bf16 operands computes the gradient and only the update reads
 * it. */
static bool fits(const struct graph *g, id grad, const uint32_t *uses)
{
    const struct tensor *t = tensor_at(g, grad);
    const struct node *n = node_at(g, t->node);
    if (!t->node || n->op != OP_MATMUL || n->loop || (n->nin > 2 && n->in[2]) ||
        graph_scope_is(g, n->scope, SCOPE_ROWS))
        return false;
    return t->dtype == DT_F32 && tensor_at(g, n->in[0])->dtype == DT_BF16 && uses[t->storage] == 1 &&
           tensor_bytes(t) == storage_of(g, grad)->bytes;
}

void pass_gradients(struct graph *g, const struct settings *s)
{
    if ((s->precision != PRECISION_BF16_PURE && !s->gradients) || s->accumulation > TERMS_MOST) return;
    uint32_t *uses = uses_by_storage(g, PROGRAM_STEP);
    for (uint32_t i = 0; i < g->params.n; i++) {
        const id grad = g->params.at[i].grad;
        if (!grad || (!s->gradients && tensor_at(g, g->params.at[i].master)->dtype != DT_BF16) || !fits(g, grad, uses))
            continue;
        struct tensor *t = tensor_at(g, grad);
        node_at(g, t->node)->attr.matmul.dtype = t->dtype = DT_BF16;
        storage_of(g, grad)->bytes = tensor_bytes(t);
    }
    mem_free(uses);
}
