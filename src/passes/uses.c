/*
 * uses.c: see uses.h.
 */
#include "passes/uses.h"

uint32_t *readers_by_tensor(const struct graph *g, enum program p)
{
    uint32_t *count = mem_alloc(g->tensors.n * sizeof *count);
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        for (int i = 0; i < n->nin; i++) count[n->in[i]]++;
    }
    for (uint32_t i = 0; i < g->outputs.n; i++) count[g->outputs.at[i].tensor]++;
    for (uint32_t i = 0; i < g->params.n; i++) count[g->params.at[i].grad]++;
    return count;
}

uint32_t *readers_by_storage(const struct graph *g, enum program p)
{
    uint32_t *count = mem_alloc(g->storages.n * sizeof *count);
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        for (int i = 0; i < n->nin; i++) count[tensor_at(g, n->in[i])->storage]++;
    }
    for (uint32_t i = 0; i < g->outputs.n; i++) count[tensor_at(g, g->outputs.at[i].tensor)->storage]++;
    return count;
}

uint32_t *uses_by_storage(const struct graph *g, enum program p)
{
    uint32_t *count = readers_by_storage(g, p);
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        for (int o = 0; o < n->nout; o++) count[tensor_at(g, n->out[o])->storage]++;
    }
    return count;
}

uint32_t *positions_by_node(const struct graph *g, enum program p)
{
    uint32_t *position = mem_alloc(g->nodes.n * sizeof *position);
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) position[g->order[p].nodes.at[k]] = k + 1;
    return position;
}

uint32_t block_end(const struct graph *g, enum program p, uint32_t k, id body)
{
    const struct order *order = &g->order[p];
    const id block = graph_block_of(g, node_at(g, order->nodes.at[k])->scope);
    for (k++; k < order->nodes.n; k++) {
        const struct node *before = node_at(g, order->nodes.at[k - 1]), *x = node_at(g, order->nodes.at[k]);
        const bool inner = before->loop != body && x->loop != body;
        if (!loop_inside(g, x->loop, body)) break;
        if (!inner && (x->loop != body || !block || graph_block_of(g, x->scope) != block || x->phase == PHASE_FORWARD))
            break;
    }
    return k;
}

bool *tensors_from_batch(const struct graph *g, enum program p)
{
    bool *from_batch = mem_alloc(g->tensors.n);
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[p].nodes.at[k]);
        bool any = false;
        for (int i = 0; i < n->nin; i++)
            if (n->in[i]) {
                const struct storage *s = storage_of(g, n->in[i]);
                const id made = tensor_at(g, n->in[i])->node; /* of a view without a node of its own */
                any |= from_batch[n->in[i]] |= (s->kind == KIND_INPUT && s->axis != INPUT_SHARED) ||
                                               (made && from_batch[node_at(g, made)->out[0]]);
            }
        for (int o = 0; o < n->nout; o++) from_batch[n->out[o]] |= any;
    }
    return from_batch;
}
