/*
 * shares.c: data parallel training, the part of one rank: a step's batch is cut into shares, and a
 * rank runs some of them, one after the other.
 *
 *     loop over the rank's shares {
 *         forward and backward of a share, in one or more micro-batches   (accumulate.c)
 *         each gradient, and the loss: FOLD
 *     }
 *     the loss: ALL_REDUCE over ranks, so that all of them see one that is not finite
 *
 * A share begins at zero wherever it runs and with the same program, so its gradients have the same
 * bits there. FOLD adds them in a binary tree over shares (cpu/update/collective.c), and reduce.c
 * goes on with the same tree over ranks: N ranks have the bits of one rank with N shares. The
 * number of partial sums of every gradient that are alive in the step is log2 of a rank's shares; a
 * single share needs none.
 *
 * The storages of the inputs hold all shares of the rank. Gradients are folded in the order in
 * which the backward completes them, which is the order of the update.
 */
#include "graph/ops.h"
#include "graph/sizes.h"
#include "passes/passes.h"

/* A gradient, or an output of the step: a loss. */
struct sum {
    id *tensor;          /* where the graph keeps it */
    uint32_t complete;   /* position of the last write to it */
    uint32_t number;
    enum kind kind;
};

struct shares {
    struct graph *g;
    VEC(struct sum) sums;
    uint32_t *in;        /* by storage: sums in it */
    id loop;
};

static int by_completion(const void *a, const void *b)
{
    const struct sum *x = a, *y = b;
    if (x->complete != y->complete) return x->complete < y->complete ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static void list_sums(struct shares *s)
{
    struct graph *g = s->g;
    uint32_t *last = mem_alloc(g->storages.n * sizeof *last);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        for (int o = 0; o < n->nout; o++)
            if (n->out[o]) last[tensor_at(g, n->out[o])->storage] = k;
    }
    for (uint32_t i = 0; i < g->params.n; i++)
        if (g->params.at[i].grad) vec_push(&s->sums, ((struct sum){&g->params.at[i].grad, 0, s->sums.n, KIND_GRAD}));
    for (uint32_t i = 0; i < g->outputs.n; i++)
        if (g->outputs.at[i].program == PROGRAM_STEP)
            vec_push(&s->sums, ((struct sum){&g->outputs.at[i].tensor, 0, s->sums.n, KIND_OUTPUT}));
    for (uint32_t i = 0; i < s->sums.n; i++) {
        const id storage = tensor_at(g, *s->sums.at[i].tensor)->storage;
        s->sums.at[i].complete = last[storage];
        s->in[storage]++;
    }
    qsort(s->sums.at, s->sums.n, sizeof *s->sums.at, by_completion);
    mem_free(last);
}

/* Sums are updated in place: each needs dense bytes of its own. */
static void separate(struct shares *s)
{
    struct graph *g = s->g;
    for (uint32_t i = 0; i < s->sums.n; i++) {
        const struct sum *x = &s->sums.at[i];
        const struct tensor t = *tensor_at(g, *x->tensor);
        if (s->in[t.storage] < 2 && tensor_is_dense(&t) && !t.loop) continue;
        const id copy = op_copy(g, *x->tensor, SPACE_DEVICE), name = t.name;
        if (!copy) return;
        storage_of(g, copy)->kind = x->kind;
        storage_of(g, copy)->name = tensor_at(g, copy)->name = name;
        g->storages.at[t.storage].kind = KIND_ACT;
        *x->tensor = copy;
    }
}

/* Lets the inputs advance with the loop over shares: their storages hold the rank's shares, one
 * after the other. A loop over micro-batches goes on through them. A view of a part of the input
 * advances by all of a share too. */
static void advance_inputs(struct shares *s, int count)
{
    struct graph *g = s->g;
    uint64_t *each = mem_alloc(g->storages.n * sizeof *each); /* by storage: bytes of a share */
    bool *seen = mem_alloc(g->tensors.n);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        for (int i = 0; i < n->nin; i++) {
            struct tensor *x = tensor_at(g, n->in[i]);
            struct storage *of = &g->storages.at[x->storage];
            if (!n->in[i] || seen[n->in[i]] || of->kind != KIND_INPUT || of->axis == INPUT_SHARED) continue;
            seen[n->in[i]] = true;
            if (!each[x->storage]) {
                each[x->storage] = of->bytes;
                of->bytes *= (uint64_t)count;
            }
            if (x->loop) {
                g->loops.at[x->loop].continues = true;
                continue;
            }
            x->loop = s->loop;
            x->advance = (int64_t)each[x->storage];
        }
    }
    /* as in accumulate.c */
    const id ranges = g->sequence.ranges;
    if (ranges && !each[ranges]) g->storages.at[ranges].bytes *= (uint64_t)count;
    mem_free(each);
    mem_free(seen);
}

/* Puts the whole program into a loop. */
static void open_loop(struct shares *s, int count)
{
    struct graph *g = s->g;
    s->loop = graph_loop(g, "shares", (uint32_t)count);
    for (id l = 1; l < s->loop; l++)
        if (g->loops.at[l].program == PROGRAM_STEP && !g->loops.at[l].parent) g->loops.at[l].parent = s->loop;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        if (!n->loop) n->loop = s->loop;
    }
}

/* Makes the partial sums, before the loop. No kernel fills them: FOLD writes each before it reads
 * it. */
static id make_partials(struct graph *g, const struct tensor *x, int shares)
{
    const int64_t dim[2] = {fold_levels(shares), tensor_elements(x)};
    const id t = op_fill(g, x->dtype, 2, dim, 0);
    if (!t) return 0;
    node_at(g, tensor_at(g, t)->node)->silent = true;
    storage_of(g, t)->name = tensor_at(g, t)->name = graph_intern(g, "partial sums over shares");
    return t;
}

static void fold_sums(struct shares *s, int count)
{
    struct graph *g = s->g;
    struct order *order = &g->order[PROGRAM_STEP];
    const union attr attr = {.fold = {count}};
    VEC(id) first = {0};
    for (uint32_t i = 0; i < s->sums.n && !g->error.code; i++) {
        const struct sum *x = &s->sums.at[i];
        const struct tensor t = *tensor_at(g, *x->tensor);
        g->at.loop = 0;
        const id partials = make_partials(g, &t, count);
        vec_push(&first, order->nodes.at[--order->nodes.n]);
        g->at.loop = s->loop;
        const id n = graph_emit(g, OP_FOLD, &attr, (id[]){*x->tensor, partials}, 2);
        if (n) *x->tensor = node_at(g, n)->out[0];
    }
    const uint32_t body = order->nodes.n;
    for (uint32_t i = 0; i < first.n; i++) vec_push(&order->nodes, 0);
    memmove(order->nodes.at + first.n, order->nodes.at, body * sizeof *order->nodes.at);
    if (first.n) memcpy(order->nodes.at, first.at, first.n * sizeof *first.at);
    vec_free(&first);
}

/* Adds the loss over ranks, at the end of the step; gradients are added over ranks by the update
 * (reduce.c). */
static void reduce_outputs(struct shares *s, int ranks, int host)
{
    s->g->at.loop = 0;
    for (uint32_t i = 0; i < s->sums.n && ranks; i++)
        if (s->sums.at[i].kind == KIND_OUTPUT)
            *s->sums.at[i].tensor =
                op_apply(s->g, OP_ALL_REDUCE, &(union attr){.group = {.ranks = ranks, .host = host}},
                         (id[]){*s->sums.at[i].tensor}, 1);
}

void pass_shares(struct graph *g, const struct settings *s)
{
    const int count = s->shares > 1 ? s->shares : 1;
    if (!s->train || (count == 1 && !settings_group(s)) || g->error.code) return;
    struct shares x = {.g = g, .in = mem_alloc(g->storages.n * sizeof *x.in)};
    struct cursor before = graph_move(g, PROGRAM_STEP, PHASE_BACKWARD, "shares");
    list_sums(&x);
    separate(&x);
    if (count > 1) {
        open_loop(&x, count);
        advance_inputs(&x, count);
        fold_sums(&x, count);
    }
    reduce_outputs(&x, settings_group(s), settings_host(s));
    vec_free(&x.sums);
    mem_free(x.in);
    g->at = before;
}
