/*
 * inlay.c: what is to be laid side by side is written there at once.
 *
 *     before   dq, dk, dv = ATTENTION_BWD(...)       three storages
 *              d = CONCAT(dq, dk, dv)                a fourth, and a copy
 *     after    dq, dk, dv = ATTENTION_BWD(...)       strided views of d
 *
 * Where all pieces of a CONCAT come from one op whose kernels take strided outputs, and nobody
 * else reads them, they become views of the whole and the CONCAT is gone. There is no switch:
 * the same elements go to where they would have gone. It comes late, so that the passes before
 * it, which make nodes again or move storages, know nothing of it.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

enum { PACK = 16 }; /* bytes at whose multiples kernels want rows to begin */

/* Its outputs from 0 to 2 are heads, which every kernel writes by their strides. */
static bool writes_heads(enum op op)
{
    return op == OP_ATTENTION_BWD || op == OP_ATTENTION_REL_BWD || op == OP_ATTENTION_BIAS_BWD || op == OP_ATTENTION_WINDOW_BWD;
}

/* Whole, dense and transient. */
static bool owns(const struct graph *g, id t)
{
    const struct tensor *x = tensor_at(g, t);
    const struct storage *s = &g->storages.at[x->storage];
    return s->kind == KIND_ACT && !x->loop && !x->offset && tensor_is_dense(x) && tensor_bytes(x) == s->bytes;
}

/* The piece is one of its maker's heads, made for this CONCAT alone: written once, read once. */
static bool is_piece(const struct graph *g, const struct node *concat, id t, id maker, const uint32_t *uses)
{
    const struct node *m = node_at(g, maker);
    if (tensor_at(g, t)->node != maker || !owns(g, t) || uses[tensor_at(g, t)->storage] != 2) return false;
    if (m->loop != concat->loop || m->program != concat->program) return false;
    return t == m->out[0] || t == m->out[1] || t == m->out[2];
}

/* Steps of the whole, and places at which pieces begin in it, at multiples of 16 bytes. */
static bool is_even(const struct graph *g, const struct node *n)
{
    const struct tensor *whole = tensor_at(g, n->out[0]);
    const int64_t size = (int64_t)dtype_size(whole->dtype), axis = n->attr.concat.axis;
    for (int d = 0; d + 1 < whole->rank; d++)
        if (whole->stride[d] * size % PACK) return false;
    for (int i = 0; i < n->nin; i++)
        if (tensor_at(g, n->in[i])->dim[axis] * whole->stride[axis] * size % PACK) return false;
    return axis + 1 < whole->rank;
}

static bool fits(const struct graph *g, const struct node *n, const uint32_t *uses)
{
    const id maker = n->op == OP_CONCAT && n->nin ? tensor_at(g, n->in[0])->node : 0;
    if (!maker || !writes_heads(node_at(g, maker)->op) || !owns(g, n->out[0])) return false;
    for (int i = 0; i < n->nin; i++)
        if (!is_piece(g, n, n->in[i], maker, uses)) return false;
    return is_even(g, n);
}

static void inlay(struct graph *g, const struct node *n)
{
    struct tensor *whole = tensor_at(g, n->out[0]);
    const int axis = n->attr.concat.axis;
    int64_t from = 0;
    whole->node = tensor_at(g, n->in[0])->node;
    for (int i = 0; i < n->nin; i++) {
        struct tensor *piece = tensor_at(g, n->in[i]);
        piece->storage = whole->storage;
        piece->offset = (uint64_t)(from * whole->stride[axis]) * dtype_size(whole->dtype);
        for (int d = 0; d < whole->rank; d++) piece->stride[d] = whole->stride[d];
        from += piece->dim[axis];
    }
}

void pass_inlay(struct graph *g, const struct settings *s)
{
    (void)s;
    for (int p = 0; p < PROGRAM_COUNT; p++) {
        struct order *order = &g->order[p];
        uint32_t *uses = NULL, kept = 0;
        for (uint32_t k = 0; k < order->nodes.n; k++) {
            const struct node *n = node_at(g, order->nodes.at[k]);
            if (n->op == OP_CONCAT && !uses) uses = uses_by_storage(g, p);
            if (uses && fits(g, n, uses)) inlay(g, n);
            else order->nodes.at[kept++] = order->nodes.at[k];
        }
        order->nodes.n = kept;
        mem_free(uses);
    }
}
