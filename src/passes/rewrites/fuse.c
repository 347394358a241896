/*
 * fuse.c: fuses an activation into the product before it, as an epilogue.
 *
 *     before   x --LINEAR--> z --ACT--> y
 *     after    x --LINEAR_ACT--> y, z
 *
 * LINEAR_ACT gives the same bits as the two ops, so there is no setting for it. It is used where z
 * is not needed afterwards: in programs without a backward, and everywhere for RELU, whose gradient
 * needs only y. Where the backward reads z, both are written anyway and nothing is gained.
 * trim.c then removes z.
 */
#include "graph/ops.h"
#include "passes/passes.h"

/* By storage: the number of reads in a program, the host's included, and the last node that reads
 * it. */
struct readers {
    uint32_t *count;
    id *last;
};

static struct readers readers_of(const struct graph *g, enum program p)
{
    struct readers r = {mem_alloc(g->storages.n * sizeof *r.count), mem_alloc(g->storages.n * sizeof *r.last)};
    for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
        id node = g->order[p].nodes.at[k];
        const struct node *n = node_at(g, node);
        for (int i = 0; i < n->nin; i++) {
            if (!n->in[i]) continue;
            id s = tensor_at(g, n->in[i])->storage;
            r.count[s]++;
            r.last[s] = node;
        }
    }
    for (uint32_t i = 0; i < g->outputs.n; i++) r.count[tensor_at(g, g->outputs.at[i].tensor)->storage]++;
    return r;
}

static void readers_free(struct readers *r)
{
    mem_free(r->count);
    mem_free(r->last);
}

/* Finds the ACT that is the only reader of the product's result; 0: there is none. */
static id activation_of(const struct graph *g, const struct readers *r, const struct node *product)
{
    id z = product->out[0], s = tensor_at(g, z)->storage;
    if (product->op != OP_LINEAR || product->nin > 3 || r->count[s] != 1) return 0;
    const struct node *n = node_at(g, r->last[s]);
    return r->last[s] && n->op == OP_ACT && n->in[0] == z && n->loop == product->loop ? r->last[s] : 0;
}

/* Turns the product into LINEAR_ACT. */
static void fuse(struct graph *g, id product, id act)
{
    struct node *n = node_at(g, product);
    const struct node *a = node_at(g, act);
    n->op = OP_LINEAR_ACT;
    n->attr = a->attr;
    n->out[1] = n->out[0];
    n->out[0] = a->out[0];
    n->nout = 2;
    tensor_at(g, n->out[0])->node = product;
    n->made_by = graph_intern(g, "fuse");
}

/* Reports whether the fused product gives the same bits. On a CPU only the reference kernel accepts
 * a strided x, and it does not round z before the activation. */
static bool keeps_bits(const struct graph *g, const struct node *product, enum act_kind kind, bool fuses_strided)
{
    return fuses_strided || kind == ACT_RELU || tensor_is_dense(tensor_at(g, product->in[0]));
}

/* Fuses the activations of one program; only ReLU where the program gets a backward
 * (`differentiated`). */
static void fuse_program(struct graph *g, enum program p, bool differentiated, bool fuses_strided)
{
    struct order *order = &g->order[p];
    struct readers r = readers_of(g, p);
    bool *gone = mem_alloc(g->nodes.n);
    uint32_t kept = 0;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        id node = order->nodes.at[k], act = gone[node] ? 0 : activation_of(g, &r, node_at(g, node));
        const enum act_kind kind = node_at(g, act)->attr.act.kind;
        if (act && ((differentiated && kind != ACT_RELU) || !keeps_bits(g, node_at(g, node), kind, fuses_strided)))
            act = 0;
        if (act) fuse(g, node, act);
        if (act) gone[act] = true;
        if (!gone[node]) order->nodes.at[kept++] = node;
    }
    order->nodes.n = kept;
    mem_free(gone);
    readers_free(&r);
}

void pass_fuse(struct graph *g, const struct settings *s)
{
    FOR_PROGRAMS(p, PROGRAM_FORWARD)
    fuse_program(g, p, program_is(p, PROGRAM_TRAINS) && !s->forward, s->device.fuses_strided);
}
