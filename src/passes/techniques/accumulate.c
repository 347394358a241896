/*
 * accumulate.c: gradient accumulation: a step as a loop over micro-batches.
 *
 *     fill gradients with 0
 *     loop n { forward and backward of micro-batch i; gradients += }
 *
 * The storages of the inputs hold the batch of the whole step, one micro-batch after the other, and
 * the body reads a slice that advances. An input that all samples share does not advance. Gradients
 * and losses are carried over the loop. A matrix product adds its weight gradient in place; an op
 * that cannot is followed by an ACCUMULATE. The loss is already divided by its count over the whole
 * step (graph_count), so sums over micro-batches are the step's.
 */
#include "graph/ops.h"
#include "passes/passes.h"

struct carry {
    struct graph *g;
    id loop;
    VEC(id) prologue;        /* fills, before the loop */
    VEC(id) body;
    uint32_t *sums;          /* by storage: number of gradients and outputs in it */
    id *writer;              /* by storage: the first node of the body that writes it */
    bool *used;              /* by storage: after that write the body does more than add to it */
    bool *moved;             /* by node: moved to the prologue */
};

static void move_to_prologue(struct carry *c, id node)
{
    c->moved[node] = true;
    node_at(c->g, node)->loop = 0;
    vec_push(&c->prologue, node);
}

/* Makes a tensor of zeros like `t`, filled before the loop. */
static id zero_like(struct carry *c, id t)
{
    struct graph *g = c->g;
    struct tensor x = *tensor_at(g, t);
    id z = op_fill(g, x.dtype, x.rank, x.dim, 0);
    struct order *order = &g->order[PROGRAM_STEP];
    vec_push(&c->prologue, order->nodes.at[--order->nodes.n]);
    node_at(g, tensor_at(g, z)->node)->loop = 0;
    return z;
}

static void note_writers(struct carry *c)
{
    const struct graph *g = c->g;
    for (uint32_t k = 0; k < c->body.n; k++) {
        const struct node *n = node_at(g, c->body.at[k]);
        for (int o = 0; o < n->nout && !(op_table[n->op].flags & OPF_VIEW); o++) {
            id s = n->out[o] ? tensor_at(g, n->out[o])->storage : 0;
            if (s && !c->writer[s]) c->writer[s] = c->body.at[k];
        }
    }
}

/* Marks the storages with which the body does more than add to them after their first write. These
 * cannot hold the running sum: a node that reads or overwrites the value of one iteration must not
 * see the sum. */
static void note_uses(struct carry *c)
{
    const struct graph *g = c->g;
    for (uint32_t k = 0; k < c->body.n; k++) {
        id node = c->body.at[k];
        const struct node *n = node_at(g, node);
        if (op_table[n->op].flags & OPF_VIEW) continue;
        int slot = n->op == OP_ACCUMULATE || op_table[n->op].flags & OPF_ACCUM ? op_must_alias(n, 0) : -1;
        for (int i = 0; i < n->nin; i++) {
            id s = tensor_at(g, n->in[i])->storage;
            if (i != slot && n->in[i] && c->writer[s] != node) c->used[s] = true;
        }
        for (int o = 0; o < n->nout && slot < 0; o++) {
            id s = tensor_at(g, n->out[o])->storage;
            if (n->out[o] && c->writer[s] != node) c->used[s] = true;
        }
    }
}

/* Carries the sum of `t` over the loop; returns the tensor that holds the result, on a storage of
 * the given kind. */
static id carry_sum(struct carry *c, id t, enum kind kind)
{
    struct graph *g = c->g;
    id storage = tensor_at(g, t)->storage, writer = c->writer[storage];
    CHECK(writer, "no node writes a carried value");
    struct node *n = node_at(g, writer);
    const struct op_row *row = &op_table[n->op];
    int slot = row->max_in - 1;
    bool in_place = c->sums[storage] <= 1 && !c->used[storage];
    if (n->op == OP_FILL && in_place) {
        move_to_prologue(c, writer);
        return t;
    }
    if (row->flags & OPF_ACCUM && !(n->nin > slot && n->in[slot]) && in_place) {
        id out = n->out[0], z = zero_like(c, out);
        graph_redirect(g, z, out);
        n = node_at(g, writer);
        while (n->nin < slot) n->in[n->nin++] = 0;
        n->in[slot] = z;
        n->nin = slot + 1;
        return t;
    }
    id name = storage_of(g, t)->name;
    id z = zero_like(c, t);
    id loop = g->at.loop;
    g->at.loop = c->loop;
    id sum = op_accumulate(g, t, z);
    g->at.loop = loop;
    struct order *order = &g->order[PROGRAM_STEP];
    vec_push(&c->body, order->nodes.at[--order->nodes.n]);
    storage_of(g, t)->kind = KIND_ACT;
    storage_of(g, sum)->kind = kind;
    storage_of(g, sum)->name = tensor_at(g, sum)->name = name;
    return sum;
}

/* Makes the storage of each input hold the batch of the whole step, of which the body reads a
 * slice. A view of a part of the input advances by all of a micro-batch too. */
static void advance_inputs(struct carry *c, int count)
{
    struct graph *g = c->g;
    uint64_t *each = mem_alloc(g->storages.n * sizeof *each); /* by storage: bytes of a micro-batch */
    for (uint32_t k = 0; k < c->body.n; k++) {
        const struct node *n = node_at(g, c->body.at[k]);
        for (int i = 0; i < n->nin; i++) {
            if (!n->in[i] || storage_of(g, n->in[i])->kind != KIND_INPUT ||
                storage_of(g, n->in[i])->axis == INPUT_SHARED)
                continue;
            struct tensor *x = tensor_at(g, n->in[i]);
            struct storage *s = &g->storages.at[x->storage];
            if (!each[x->storage]) {
                each[x->storage] = s->bytes;
                s->bytes *= (uint64_t)count;
            }
            x->loop = c->loop;
            x->advance = (int64_t)each[x->storage];
        }
    }
    /* the host counts the entries of a sequence by its ranges, also where no node reads them */
    const id ranges = g->sequence.ranges;
    if (ranges && !each[ranges]) g->storages.at[ranges].bytes *= (uint64_t)count;
    mem_free(each);
}

void pass_accumulate(struct graph *g, const struct settings *s)
{
    if (s->accumulation <= 1) return;
    struct carry c = {.g = g};
    struct order *order = &g->order[PROGRAM_STEP];
    struct cursor before = graph_move(g, PROGRAM_STEP, PHASE_BACKWARD, "accumulate");
    c.loop = graph_loop(g, "micro-batches", (uint32_t)s->accumulation);
    for (id l = 1; l < c.loop; l++)
        if (g->loops.at[l].program == PROGRAM_STEP && !g->loops.at[l].parent) g->loops.at[l].parent = c.loop;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        id n = order->nodes.at[k];
        if (!node_at(g, n)->loop) node_at(g, n)->loop = c.loop;
        vec_push(&c.body, n);
    }
    advance_inputs(&c, s->accumulation);
    c.sums = mem_alloc(g->storages.n * sizeof *c.sums);
    for (uint32_t i = 0; i < g->params.n; i++) c.sums[tensor_at(g, g->params.at[i].grad)->storage]++;
    for (uint32_t i = 0; i < g->outputs.n; i++) c.sums[tensor_at(g, g->outputs.at[i].tensor)->storage]++;
    c.writer = mem_alloc(g->storages.n * sizeof *c.writer);
    c.used = mem_alloc(g->storages.n * sizeof *c.used);
    c.moved = mem_alloc(g->nodes.n * sizeof *c.moved);
    uint32_t nodes = g->nodes.n;
    note_writers(&c);
    note_uses(&c);
    for (uint32_t i = 0; i < g->params.n; i++)
        if (g->params.at[i].grad) {
            id sum = carry_sum(&c, g->params.at[i].grad, KIND_GRAD);
            g->params.at[i].grad = sum;
        }
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        if (g->outputs.at[i].program != PROGRAM_STEP) continue;
        CHECK(tensor_at(g, g->outputs.at[i].tensor)->rank == 0,
              "an output of an accumulated step must be a scalar sum");
        id sum = carry_sum(&c, g->outputs.at[i].tensor, KIND_OUTPUT);
        g->outputs.at[i].tensor = sum;
    }
    order->nodes.n = 0;
    for (uint32_t k = 0; k < c.prologue.n; k++) vec_push(&order->nodes, c.prologue.at[k]);
    for (uint32_t k = 0; k < c.body.n; k++)
        if (c.body.at[k] >= nodes || !c.moved[c.body.at[k]]) vec_push(&order->nodes, c.body.at[k]);
    vec_free(&c.prologue);
    vec_free(&c.body);
    mem_free(c.sums);
    mem_free(c.writer);
    mem_free(c.used);
    mem_free(c.moved);
    g->at = before;
}

bool micro_batch_excluded(const struct settings *s, const struct step_limits *l, struct text *why)
{
    const int trips = (l->effective_batch + s->micro_batch - 1) / s->micro_batch;
    if (l->trips && trips > l->trips)
        text_printf(why,
                    "it makes %d micro-batches of train.effective_batch %d, a CUDA device takes %d at most; set "
                    "memory.micro_batch %d or more, or leave it out",
                    trips, l->effective_batch, l->trips, l->least_micro_batch);
    return why->n;
}
