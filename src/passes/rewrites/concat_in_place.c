/*
 * concat_in_place.c: the inputs of a CONCAT are written directly into its result.
 *
 *     before   dq, dk, dv = ATTENTION_BWD(...)       three storages
 *              d = CONCAT(dq, dk, dv)                a fourth, and a copy
 *     after    dq, dk, dv = ATTENTION_BWD(...)       strided views of d
 *
 * If all inputs of a CONCAT come from one op whose kernels write strided outputs, and have no other
 * readers, they become views of the result and the CONCAT is removed. There is no setting: the same
 * elements go to the same positions. The pass runs late, so that the passes before it, which
 * recompute nodes or move storages, need not handle such views.
 */
#include "graph/ops.h"
#include "passes/passes.h"
#include "passes/uses.h"

enum { PACK = 16 }; /* kernels need rows aligned to this many bytes */

/* Reports whether outputs 0 to 2 are heads, which every kernel writes with their strides. */
static bool writes_heads(enum op op)
{
    return op == OP_ATTENTION_BWD || op == OP_ATTENTION_REL_BWD || op == OP_ATTENTION_BIAS_BWD ||
           op == OP_ATTENTION_WINDOW_BWD;
}

/* Reports whether `t` is dense, transient and covers its storage. */
static bool owns(const struct graph *g, id t)
{
    const struct tensor *x = tensor_at(g, t);
    const struct storage *s = &g->storages.at[x->storage];
    return s->kind == KIND_ACT && !x->loop && !x->offset && tensor_is_dense(x) && tensor_bytes(x) == s->bytes;
}

/* Reports whether `t` is one of its maker's heads, written once and read by this CONCAT only. */
static bool is_part(const struct graph *g, const struct node *concat, id t, id maker, const uint32_t *uses)
{
    const struct node *m = node_at(g, maker);
    if (tensor_at(g, t)->node != maker || !owns(g, t) || uses[tensor_at(g, t)->storage] != 2) return false;
    if (m->loop != concat->loop || m->program != concat->program) return false;
    return t == m->out[0] || t == m->out[1] || t == m->out[2];
}

/* Reports whether the strides of the result and the offsets of its parts are multiples of 16
 * bytes. */
static bool is_aligned(const struct graph *g, const struct node *n)
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
        if (!is_part(g, n, n->in[i], maker, uses)) return false;
    return is_aligned(g, n);
}

static void concat_in_place(struct graph *g, const struct node *n)
{
    struct tensor *whole = tensor_at(g, n->out[0]);
    const int axis = n->attr.concat.axis;
    int64_t from = 0;
    whole->node = tensor_at(g, n->in[0])->node;
    for (int i = 0; i < n->nin; i++) {
        struct tensor *part = tensor_at(g, n->in[i]);
        part->storage = whole->storage;
        part->offset = (uint64_t)(from * whole->stride[axis]) * dtype_size(whole->dtype);
        for (int d = 0; d < whole->rank; d++) part->stride[d] = whole->stride[d];
        from += part->dim[axis];
    }
}

void pass_concat_in_place(struct graph *g, const struct settings *s)
{
    (void)s;
    for (int p = 0; p < PROGRAM_COUNT; p++) {
        struct order *order = &g->order[p];
        uint32_t *uses = NULL, kept = 0;
        for (uint32_t k = 0; k < order->nodes.n; k++) {
            const struct node *n = node_at(g, order->nodes.at[k]);
            if (n->op == OP_CONCAT && !uses) uses = uses_by_storage(g, p);
            if (uses && fits(g, n, uses)) concat_in_place(g, n);
            else order->nodes.at[kept++] = order->nodes.at[k];
        }
        order->nodes.n = kept;
        mem_free(uses);
    }
}
