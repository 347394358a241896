/*
 * fused_step.c: updates a weight as soon as its gradient is complete, so that the gradients of all
 * weights never exist at once.
 *
 *     step     forward | backward of block 3, its updates | of block 2, its updates | ...
 *     update   empty
 *
 * Each node of program update moves into program step, after
 *
 *     SUMSQ     the last write to its gradient, and the previous SUMSQ
 *     update    the same, and the last node that reads the weight: a tied weight, a weight that is
 *               used twice, or a recomputed block still reads the old value
 *
 * and after the loop that contains one of these. The gradient is then an ordinary transient. The
 * SUMSQs keep their order, so the reported norm has the same bits. Before each update a CLIP of the
 * partial sum tells whether a gradient was not finite: from there on no weight changes, and the run
 * stops with the norm as it would without this pass. Weights whose gradients were complete earlier
 * have changed by then; no checkpoint of them is written.
 *
 * The norm is complete only after the last gradient, too late for clipping and for skipping a step
 * on inf. plan/search.c and engine/run.c do not enable the pass then. With several micro-batches
 * every gradient is a sum that is complete at the end of the step, and nothing would be saved: the
 * pass does nothing.
 *
 * No bit of the weights or of the optimizer state changes.
 */
#include "graph/ops.h"
#include "passes/passes.h"

struct fused {
    struct graph *g;
    uint32_t *write, *touch; /* by storage: position of the last write; of the last access */
    uint32_t *loop_end;         /* by position: the end of the outermost loop around it */
    uint32_t *after;        /* by node of program update: the position after which it is inserted */
    id sum, clip;            /* the partial sum, and its CLIP; clip 0: the sum has changed since */
};

/* --- positions ------------------------------------------------------------------------ */

static void find_positions(struct fused *f)
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
            f->write[tensor_at(g, n->out[o])->storage] = k; /* views count too: their input must be complete */
        }
        for (id l = n->loop; l; l = g->loops.at[l].parent) outermost[k] = l;
        end[outermost[k]] = k;
    }
    for (uint32_t k = 0; k < order->nodes.n; k++) f->loop_end[k] = outermost[k] ? end[outermost[k]] : k;
    mem_free(end);
    mem_free(outermost);
}

/* The position after which a node of program update is inserted: the writes of the gradients that
 * it reads, and every access to a weight that it changes. AT_ONCE: it depends on nothing. */
static const uint32_t AT_ONCE = UINT32_MAX;
static uint32_t position_of(const struct fused *f, const struct node *n)
{
    const struct graph *g = f->g;
    int64_t at = -1;
    for (int i = 0; i < n->nin; i++)
        if (n->in[i] && storage_of(g, n->in[i])->kind == KIND_GRAD)
            at = max_i64(at, f->write[tensor_at(g, n->in[i])->storage]);
    for (int o = 0; o < n->nout; o++) {
        int from = n->out[o] ? op_must_alias(n, o) : -1;
        if (from < 0) continue;
        enum kind kind = storage_of(g, n->in[from])->kind;
        if (kind == KIND_PARAM || kind == KIND_MASTER) at = max_i64(at, f->touch[tensor_at(g, n->in[from])->storage]);
    }
    return at < 0 ? AT_ONCE : f->loop_end[at];
}

/* --- moving ------------------------------------------------------------------------------ */

/* Appends the node to the step, in scope `scope`. */
static void move(struct fused *f, id node, id scope)
{
    struct node *n = node_at(f->g, node);
    n->program = PROGRAM_STEP;
    n->loop = 0;
    n->scope = scope;
    vec_push(&f->g->order[PROGRAM_STEP].nodes, node);
}

/* Returns the CLIP of the partial sum; emits it if needed. */
static id partial_norm(struct fused *f, id scope)
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
            id clip = partial_norm(f, scope);
            n = node_at(f->g, node);
            n->in[i] = clip;
        }
    move(f, node, scope);
}

/* Lists by position of the step: the nodes of program update inserted after it, SUMSQ first,
 * because an update reads the norm of all complete gradients; each list in the order of program
 * update. 0 ends a list, and index i is stored as i + 1. */
struct lists {
    uint32_t (*first)[2], *next;
};

static struct lists list_updates(const struct fused *f, uint32_t steps, const id *update, uint32_t updates)
{
    struct lists l = {mem_alloc((steps + 1) * sizeof *l.first), mem_alloc((updates + 1) * sizeof *l.next)};
    for (uint32_t i = updates; i-- > 0;) {
        if (f->after[i] == AT_ONCE) continue;
        uint32_t *first = &l.first[f->after[i]][node_at(f->g, update[i])->op != OP_SUMSQ];
        l.next[i] = *first;
        *first = i + 1;
    }
    return l;
}

/* Rewrites the step with each node of `update` at its position. `whole` is the norm that they read
 * before; its node is removed. */
static void interleave(struct fused *f, const id *step, uint32_t steps, const id *update, uint32_t updates, id whole)
{
    struct graph *g = f->g;
    struct lists l = list_updates(f, steps, update, updates);
    id scope = 0;
    g->order[PROGRAM_STEP].nodes.n = 0;
    for (uint32_t i = 0; i < updates; i++)
        if (f->after[i] == AT_ONCE) move(f, update[i], 0);
    for (uint32_t k = 0; k < steps; k++) {
        vec_push(&g->order[PROGRAM_STEP].nodes, step[k]);
        scope = node_at(g, step[k])->scope;
        for (int which = 0; which < 2; which++)
            for (uint32_t i = l.first[k][which]; i; i = l.next[i - 1]) move_update(f, update[i - 1], whole, scope);
    }
    id clip = partial_norm(f, scope);
    graph_output(g, "clip", clip);
    mem_free(l.first);
    mem_free(l.next);
}

/* Removes the output "clip" of program update and returns its tensor. */
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
    f.loop_end = mem_alloc((steps + 1) * sizeof *f.loop_end);
    f.after = mem_alloc((g->order[PROGRAM_UPDATE].nodes.n + 1) * sizeof *f.after);
    find_positions(&f);

    id whole = drop_output(g), *step = mem_copy(g->order[PROGRAM_STEP].nodes.at, steps * sizeof *step);
    id *update = mem_copy(g->order[PROGRAM_UPDATE].nodes.at, g->order[PROGRAM_UPDATE].nodes.n * sizeof *update);
    uint32_t updates = 0, summed = 0; /* summed: the position of the previous SUMSQ */
    for (uint32_t i = 0; i < g->order[PROGRAM_UPDATE].nodes.n; i++) {
        const struct node *n = node_at(g, update[i]);
        if (n->out[0] == whole) continue;
        uint32_t *after = &f.after[updates];
        update[updates++] = update[i];
        *after = position_of(&f, n);
        if (n->op != OP_SUMSQ) continue;
        /* Gradients may be complete in another order than they are summed in (act_recompute.c); an
         * update waits for the sum. */
        if (*after < summed) *after = summed;
        summed = f.write[tensor_at(g, n->in[0])->storage] = *after;
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
    mem_free(f.loop_end);
    mem_free(f.after);
    mem_free(step);
    mem_free(update);
}

/* Reports whether the step cannot be fused, and why. The global norm, and whether a gradient is
 * infinite, are known after the last gradient: too late for weights that are updated before. */
bool fused_step_excluded(const struct settings *s, const struct step_limits *l, struct text *why)
{
    if (l->clips)
        text_printf(why, "train.clip_norm is set, and the norm of all gradients is known only after the first weights "
                         "are updated; set train.clip_norm 0, or memory.fused_step off");
    else if (settings_group(s) || s->shares > 1)
        text_printf(why, "the gradients of a weight are complete only after all shares of the step (parallel.ranks, "
                         "parallel.shares); set memory.fused_step off");
    else if (settings_tensor_parts(s) > 1)
        text_printf(why, "the gradients of a weight are complete only when its ranks have added them "
                         "(parallel.tensor); set memory.fused_step off");
    else if (settings_scale_loss(s))
        text_printf(why, "memory.precision f16 skips steps whose gradients overflow, which is known only after the "
                         "first weights are updated; use bf16 or f32, or memory.fused_step off");
    else if (s->micro_batch < l->effective_batch)
        text_printf(why,
                    "memory.micro_batch %d makes several micro-batches of train.effective_batch %d, and their "
                    "gradients are complete only at the step's end; set "
                    "memory.micro_batch %d, or memory.fused_step off",
                    s->micro_batch, l->effective_batch, l->effective_batch);
    return why->n;
}
