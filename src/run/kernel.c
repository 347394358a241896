/*
 * kernel.c: finds the kernel of a node.
 */
#include "run/kernel.h"
#include "graph/ops.h"

static const struct kernel *kernels_of(enum device_kind device, enum op op)
{
    switch (device) {
    case DEVICE_REF: return ref_kernels[op];
    case DEVICE_CPU: return cpu_kernels[op];
    default: CHECK(false, "device %d", device);
    }
    return NULL;
}

static const struct kernel *find_in(const struct kernel *k, enum op op, const struct query *q)
{
    for (; k && k->name; k++)
        if ((!k->op || k->op == op) && capability_suffices(k->capability, q->profile->capability) &&
            (!k->match || k->match(q)))
            return k;
    return NULL;
}

const struct kernel *kernel_find(enum device_kind device, uint16_t op, const struct query *q)
{
    const struct kernel *k = NULL;
    if (device != DEVICE_CUDA) k = find_in(kernels_of(device, op), op, q);
    else
        for (const struct kernel *const *f = cuda_kernels; *f && !k; f++) k = find_in(*f, op, q);
    /* Ops without a fast CPU kernel run on the reference kernel: slow but correct. */
    if (!k && device == DEVICE_CPU) k = find_in(ref_kernels[op], op, q);
    return k;
}

void query_fill(struct query *q, const struct graph *g, const struct node *n, const struct profile *p)
{
    memset(q, 0, sizeof *q);
    q->attr = &n->attr;
    q->nin = n->nin;
    q->nout = n->nout;
    q->profile = p;
    q->mesh = g->mesh;
    q->portion = g->loops.at[n->loop].portion;
    for (int i = 0; i < n->nin; i++) q->in[i] = n->in[i] ? tensor_at(g, n->in[i]) : NULL;
    for (int o = 0; o < n->nout; o++) q->out[o] = n->out[o] ? tensor_at(g, n->out[o]) : NULL;
    if (q->in[0] && q->out[0]) q->crosses = storage_of(g, n->in[0])->space != storage_of(g, n->out[0])->space;
    q->host = n->lane == LANE_HOST;
    for (int i = 0; i < n->nin && !q->crosses && !q->host; i++)
        if (n->in[i] && storage_of(g, n->in[i])->space == SPACE_HOST) q->away += (double)tensor_bytes(q->in[i]);
}
