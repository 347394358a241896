/*
 * fused_step.c: a weight is updated as soon as its gradient is complete, so that the
 * gradients of all weights never exist at once.
 *
 *     step     forward | backward of block 3, its updates | of block 2, its updates | ...
 *     update   empty
 *
 * Each node of program update moves into program step, behind
 *
 *     SUMSQ     the last write to its gradient, and the SUMSQ before it
 *     update    that, and the last node that reads the weight: a tied weight, one that is used
 *               twice, or a block that is computed again still sees the old value
 *
 * and behind the loop that one of these lies in. The gradient is then a transient like any
 * other. SUMSQs keep their order, so the norm that is reported has the same bits; before each
 * update a CLIP of the sum so far tells it whether a gradient was not finite: from there on
 * nothing changes, and the run stops with the norm as it would without this pass. Weights
 * whose gradients came before are changed by then; no checkpoint is written of them.
 *
 * The norm is whole only when the last gradient is: clipping by it, and unscaling by a found
 * inf, come too late here. Who decides on this pass (plan/search.c, train/run.c) does not ask
 * for it then. With several micro-batches every gradient is a sum over them that is complete
 * at the end of the step, and nothing would be saved: the pass does nothing.
 *
 * No bit of the weights or of the state changes.
 */
#include "graph/ops.h"
#include "passes/passes.h"

struct fused {
    struct graph *g;
    uint32_t *write, *touch; /* by storage: position of the last write; of the last access */
    uint32_t *leave;         /* by position: where the outermost loop around it ends */
    uint32_t *behind;        /* by node of program update: after which position it comes */
    id sum, clip;            /* the sum so far, and what CLIP made of it; clip 0: the sum has grown */
};

/* --- where ---------------------------------------------------------------------------- */

static void look(struct fused *f)
{
    struct graph *g = f->g;
    const struct order *order = &g->order[PROGRAM_STEP];
    uint32_t *end = mem_alloc(g->loops.n * sizeof *end);
    id *outermost = mem_alloc((order->nodes.n + 1) * sizeof *outermost);
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        for (int i = 0; i < n->nin; i++) f->touch[tensor_at(g, n->in[i])->storage] = k;
        for (int o = 0; o < n->nout; o++) {
            f->touch[tensor_at(g, n->out[o])->storage] = k;
            f->write[tensor_at(g, n->out[o])->storage] = k; /* or a view: what is read must be made */
        }
        for (id l = n->loop; l; l = g->loops.at[l].parent) outermost[k] = l;
        end[outermost[k]] = k;
    }
    for (uint32_t k = 0; k < order->nodes.n; k++) f->leave[k] = outermost[k] ? end[outermost[k]] : k;
    mem_free(end);
    mem_free(outermost);
}

/* Behind what a node of program update comes: the writes of gradients that it reads, and
 * every access to a weight that it changes; AT_ONCE: it waits for nothing. */
static const uint32_t AT_ONCE = UINT32_MAX;
static uint32_t place_of(const struct fused *f, const struct node *n)
{
    const struct graph *g = f->g;
    int64_t at = -1;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] && storage_of(g, n->in[i])->kind == KIND_GRAD) at = max_i64(at, f->write[tensor_at(g, n->in[i])->storage]);
    for (int o = 0; o < n->nout; o++) {
        int from = n->out[o] ? op_must_alias(g, n, o) : -1;
        if (from < 0) continue;
        enum kind kind = storage_of(g, n->in[from])->kind;
        if (kind == KIND_PARAM || kind == KIND_MASTER) at = max_i64(at, f->touch[tensor_at(g, n->in[from])->storage]);
    }
    return at < 0 ? AT_ONCE : f->leave[at];
}

/* --- moving ------------------------------------------------------------------------------ */

/* Appends the node to the step, in the module in which it lands. */
static void move(struct fused *f, id node, id scope)
{
    struct node *n = node_at(f->g, node);
    n->program = PROGRAM_STEP;
    n->loop = 0;
    n->scope = scope;
    vec_push(&f->g->order[PROGRAM_STEP].nodes, node);
}

/* The norm so far, made where it is not made yet. */
static id norm_here(struct fused *f, id scope)
{
    struct graph *g = f->g;
    g->at.scope = scope;
    if (!f->clip) f->clip = op_apply(g, OP_CLIP, NULL, (id[]){f->sum, graph_step(g)}, 2);
    return f->clip;
}

static void move_update(struct fused *f, id node, id whole, id scope)
{
    struct node *n = node_at(f->g, node);
    if (n->op == OP_SUMSQ) {
        f->sum = n->out[0];
        f->clip = 0;
    }
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] == whole) {
            id clip = norm_here(f, scope);
            n = node_at(f->g, node);
            n->in[i] = clip;
        }
    move(f, node, scope);
}

/* By position of the step the updates behind it, as lists: SUMSQ first, since an update asks for the norm of all that is
 * complete; each list in the order of program update. A list ends with 0, and i is written as i + 1. */
struct lists {
    uint32_t (*first)[2], *next;
};

static struct lists list_updates(const struct fused *f, uint32_t steps, const id *update, uint32_t updates)
{
    struct lists l = {mem_alloc((steps + 1) * sizeof *l.first), mem_alloc((updates + 1) * sizeof *l.next)};
    for (uint32_t i = updates; i-- > 0;) {
        if (f->behind[i] == AT_ONCE) continue;
        uint32_t *first = &l.first[f->behind[i]][node_at(f->g, update[i])->op != OP_SUMSQ];
        l.next[i] = *first;
        *first = i + 1;
    }
    return l;
}

/* The step again, with each node of `update` behind its position; `whole` is the norm that they
 * read up to now, whose node goes. */
static void interleave(struct fused *f, const id *step, uint32_t steps, const id *update, uint32_t updates, id whole)
{
    struct graph *g = f->g;
    struct lists l = list_updates(f, steps, update, updates);
    id scope = 0;
    g->order[PROGRAM_STEP].nodes.n = 0;
    for (uint32_t i = 0; i < updates; i++)
        if (f->behind[i] == AT_ONCE) move(f, update[i], 0);
    for (uint32_t k = 0; k < steps; k++) {
        vec_push(&g->order[PROGRAM_STEP].nodes, step[k]);
        scope = node_at(g, step[k])->scope;
        for (int which = 0; which < 2; which++)
            for (uint32_t i = l.first[k][which]; i; i = l.next[i - 1]) move_update(f, update[i - 1], whole, scope);
    }
    id clip = norm_here(f, scope);
    graph_output(g, "clip", clip);
    mem_free(l.first);
    mem_free(l.next);
}

/* The output "clip" of program update, which is no more. */
static id drop_output(struct graph *g)
{
    id found = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->outputs.n; i++) {
        if (g->outputs.at[i].program == PROGRAM_UPDATE) found = g->outputs.at[i].tensor;
        else g->outputs.at[n++] = g->outputs.at[i];
    }
    g->outputs.n = n;
    return found;
}

void pass_fused_step(struct graph *g, const struct settings *s)
{
    if (!s->train || !s->fused_step || s->accumulation > 1 || g->error.code) return;
    const uint32_t steps = g->order[PROGRAM_STEP].nodes.n;
    struct fused f = {.g = g};
    f.write = mem_alloc(g->storages.n * sizeof *f.write);
    f.touch = mem_alloc(g->storages.n * sizeof *f.touch);
    f.leave = mem_alloc((steps + 1) * sizeof *f.leave);
    f.behind = mem_alloc((g->order[PROGRAM_UPDATE].nodes.n + 1) * sizeof *f.behind);
    look(&f);

    id whole = drop_output(g), *step = mem_copy(g->order[PROGRAM_STEP].nodes.at, steps * sizeof *step);
    id *update = mem_copy(g->order[PROGRAM_UPDATE].nodes.at, g->order[PROGRAM_UPDATE].nodes.n * sizeof *update);
    uint32_t updates = 0, summed = 0; /* summed: behind what the SUMSQ before comes */
    for (uint32_t i = 0; i < g->order[PROGRAM_UPDATE].nodes.n; i++) {
        const struct node *n = node_at(g, update[i]);
        if (n->out[0] == whole) continue;
        uint32_t *behind = &f.behind[updates];
        update[updates++] = update[i];
        *behind = place_of(&f, n);
        if (n->op != OP_SUMSQ) continue;
        /* Gradients may be complete in another order than they are summed in (act_recompute.c); who updates waits for the sum. */
        if (*behind < summed) *behind = summed;
        summed = f.write[tensor_at(g, n->in[0])->storage] = *behind;
    }
    g->order[PROGRAM_UPDATE].nodes.n = 0;
    struct cursor before = graph_move(g, PROGRAM_STEP, PHASE_UPDATE, "fused step");
    interleave(&f, step, steps, update, updates, whole);
    g->at = before;
    for (uint32_t i = 0; i < g->params.n; i++)
        if (g->params.at[i].grad && storage_of(g, g->params.at[i].grad)->kind == KIND_GRAD)
            storage_of(g, g->params.at[i].grad)->kind = KIND_ACT;
    mem_free(f.write);
    mem_free(f.touch);
    mem_free(f.leave);
    mem_free(f.behind);
    mem_free(step);
    mem_free(update);
}
