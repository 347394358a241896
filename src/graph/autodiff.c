/*
 * autodiff.c: reverse-mode differentiation of a program, as a graph-to-graph transformation.
 *
 * Adjoints. adjoint[t] is the tensor that holds the gradient of t accumulated so far. A second
 * contribution is added to it. If the node that produced the contribution can accumulate
 * (OPF_ACCUM) and only t owns the adjoint, that node adds in place and no temporary exists:
 *
 *     dx = dq Wq          MATMUL
 *     dx = dk Wk + dx     MATMUL with accumulator, same bytes
 *
 * An adjoint passed through unchanged (both sides of a residual add) belongs to two tensors and is
 * never overwritten: `owned` distinguishes the two cases.
 *
 * Views. The gradient of a permuted or concatenated tensor is a strided view of the result's
 * gradient, and may be viewed again further up. It becomes a dense copy where its elements are
 * used: before a node that computes, before another contribution is added, and as the gradient of a
 * weight. So an adjoint that is added to is always dense, and interleaved views of one storage are
 * never written.
 *
 * Loops. A forward loop becomes one loop of forward and backward: the body's backward follows the
 * body, inside the loop. The gradients of the loop's results must therefore exist before the loop
 * runs. They do, because a loop's result is a sum (ACCUMULATE) on its way to the loss. Per loop:
 *
 *     fill accumulators with 0
 *     loop { forward body; backward body:
 *            gradients of slices  -> written to slices of the whole's gradient
 *            gradients of weights -> added to their accumulators }
 *
 * The rest of the program is then differentiated with the whole tensors' gradients as seeds: encode
 * once, loop over the head, one encoder backward. A body that contains loops is such a program
 * itself, so loops nest. An accumulator is carried over the outermost loop around the contribution
 * in which its tensor is not produced per iteration.
 */
#include "graph/graph.h"
#include "graph/ops.h"

struct autodiff {
    struct graph *g;
    enum program program;
    id *adjoint;                 /* indexed by tensor of the forward; 0: none yet */
    bool *owned, *requires_grad; /* indexed by tensor */
    uint32_t tensors;            /* number of tensors before differentiation */
    id loop;                     /* the body of this loop is being differentiated; 0: none */
    struct order *before;        /* indexed by loop: the nodes that must run before it */
};

/* --- which tensors require a gradient ---------------------------------------- */

static void mark_requires_grad(struct autodiff *s)
{
    struct graph *g = s->g;
    for (uint32_t i = 0; i < g->params.n; i++)
        if (!g->params.at[i].frozen) s->requires_grad[g->params.at[i].tensor] = true;
    for (uint32_t k = 0; k < g->order[s->program].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[s->program].nodes.at[k]);
        bool any = false;
        for (int i = 0; i < n->nin; i++) any |= n->in[i] && s->requires_grad[n->in[i]];
        for (int o = 0; o < n->nout && any; o++)
            if (n->out[o] && op_table[n->op].vjp && dtype_is_float(tensor_at(g, n->out[o])->dtype)) {
                s->requires_grad[n->out[o]] = true;
                for (uint32_t c = 0; c < g->cuts.n; c++)
                    if (g->cuts.at[c].whole == n->out[o]) s->requires_grad[g->cuts.at[c].slice] = true;
            }
    }
}

/* --- adding a contribution ------------------------------------------------------- */

/* Makes the producer of `t` add to `acc` in place. Returns false when it cannot, for example when
 * it runs before `acc` holds the sum so far. */
static bool accumulate_in_place(struct graph *g, id t, id acc)
{
    id producer = tensor_at(g, t)->node;
    if (!producer) return false;
    struct node *n = node_at(g, producer);
    const struct op_row *row = &op_table[n->op];
    if (!(row->flags & OPF_ACCUM) || n->out[0] != t) return false;
    /* A higher node id is later in the order too, except for a loop's accumulators, which are
     * filled before the loop. */
    id begun = tensor_at(g, acc)->node;
    if (begun > producer && node_at(g, begun)->loop == n->loop) return false;
    int slot = row->max_in - 1;
    if (n->nin > slot && n->in[slot]) return false;
    const struct tensor *x = tensor_at(g, t), *a = tensor_at(g, acc);
    if (x->dtype != a->dtype || tensor_elements(x) != tensor_elements(a) || !tensor_is_dense(a)) return false;
    while (n->nin < slot) n->in[n->nin++] = 0;
    n->in[slot] = acc;
    n->nin = slot + 1;
    graph_redirect(g, t, acc);
    return true;
}

/* Returns a zeroed accumulator for the gradient `like`, which is filled before loop `over`; 0 on
 * error. */
static id carried(struct autodiff *s, id like, id over)
{
    struct graph *g = s->g;
    struct tensor x = *tensor_at(g, like);
    id loop = g->at.loop;
    g->at.loop = g->loops.at[over].parent;
    id acc = op_fill(g, x.dtype, x.rank, x.dim, 0);
    g->at.loop = loop;
    if (!acc) return 0;
    struct order *now = &g->order[s->program];
    vec_push(&s->before[over].nodes, now->nodes.at[--now->nodes.n]);
    return acc;
}

/* Reports whether each iteration of the loop has its own tensor: it is produced inside the loop, or
 * is a slice. */
static bool per_iteration(const struct graph *g, id t, id loop)
{
    const struct tensor *x = tensor_at(g, t);
    return (x->node && loop_inside(g, node_at(g, x->node)->loop, loop)) || (x->loop && loop_inside(g, x->loop, loop));
}

/* Returns the outermost loop around the current body in which t is not produced per iteration; 0:
 * none. */
static id carry_loop(const struct autodiff *s, id t)
{
    id over = 0;
    for (id l = s->loop; l && !per_iteration(s->g, t, l); l = s->g->loops.at[l].parent) over = l;
    return over;
}

/* Reports whether t is dense and fills its storage. The gradient of a weight outlives the program:
 * its storage must hold no other bytes. */
static bool stands_alone(const struct graph *g, id t)
{
    const struct tensor *x = tensor_at(g, t);
    return tensor_is_dense(x) && tensor_bytes(x) == g->storages.at[x->storage].bytes;
}

/* Makes the adjoint of t dense, because its elements are about to be used. */
static void make_dense(struct autodiff *s, id t)
{
    id have = s->adjoint[t], dense = op_dense(s->g, have);
    if (!dense || dense == have) return;
    s->adjoint[t] = dense;
    s->owned[t] = true;
}

/* Adds `more` into the bytes of `sum`. The producer of `more` may be redirected there only when no
 * other tensor shares it. */
static id add_into(struct autodiff *s, id sum, id more, bool more_owned)
{
    if (more_owned && accumulate_in_place(s->g, more, sum)) return more;
    return op_accumulate(s->g, more, sum);
}

/* Returns the gradient in the shape of t: a matrix product flattens leading dimensions, so its
 * operands' gradients may have other shapes than the operands. */
static id shaped_like(struct graph *g, id gradient, id t)
{
    const struct tensor x = *tensor_at(g, t), *d = tensor_at(g, gradient);
    if (d->rank == x.rank && !memcmp(d->dim, x.dim, x.rank * sizeof *x.dim)) return gradient;
    return op_reshape(g, gradient, x.rank, x.dim);
}

/* Converts a contribution to the layout in which it is kept: a dense f32 tensor with a storage of
 * its own for a weight (elementwise ops pass their dy through), dense where it is added. */
static id to_kept_layout(struct autodiff *s, id t, id gradient)
{
    struct graph *g = s->g;
    bool weight = storage_of(g, t)->kind == KIND_PARAM, adds = s->adjoint[t] || carry_loop(s, t);
    enum dtype type = tensor_at(g, gradient)->dtype;
    if (weight || adds) gradient = op_dense(g, gradient);
    if (weight && gradient && type != DT_F32 && type != DT_F64) gradient = op_cast(g, gradient, DT_F32);
    else if (weight && gradient && !adds && !stands_alone(g, gradient)) gradient = op_copy(g, gradient, SPACE_DEVICE);
    return gradient;
}

static void contribute(struct autodiff *s, id t, id gradient, bool owned)
{
    struct graph *g = s->g;
    if (!(gradient = shaped_like(g, gradient, t))) return;
    id ready = to_kept_layout(s, t, gradient);
    if (!ready) return;
    owned |= ready != gradient;
    gradient = ready;
    if (s->adjoint[t]) make_dense(s, t);
    id have = s->adjoint[t], over = carry_loop(s, t);
    if (over) {
        if (!have) have = carried(s, gradient, over);
        if (have) s->adjoint[t] = add_into(s, have, gradient, owned);
        s->owned[t] = true;
        return;
    }
    if (!have) {
        s->adjoint[t] = gradient;
        s->owned[t] = owned;
    } else if (s->owned[t]) {
        s->adjoint[t] = add_into(s, have, gradient, owned);
    } else if (owned && tensor_at(g, have)->dtype == tensor_at(g, gradient)->dtype) {
        s->adjoint[t] = op_accumulate(g, have, gradient);
        s->owned[t] = true;
    } else {
        s->adjoint[t] = op_add(g, have, gradient);
        s->owned[t] = true;
    }
}

/* --- one node ------------------------------------------------------------------------ */

/* Checks that the vjp reads only what its row lists in `reads`. A tensor that appears in several
 * slots (a weight used twice) may be read when one of the slots is listed. */
static void check_reads(struct autodiff *s, const struct node *n, uint32_t first)
{
    const struct op_row *row = &op_table[n->op];
    for (uint32_t m = first; m < s->g->nodes.n; m++)
        for (int j = 0; j < s->g->nodes.at[m].nin; j++) {
            id t = s->g->nodes.at[m].in[j];
            uint32_t slots = 0;
            if (!t || t >= s->tensors) continue;
            for (int i = 0; i < n->nin; i++) slots |= n->in[i] == t ? 1u << i : 0;
            for (int o = 0; o < n->nout; o++) slots |= n->out[o] == t ? 1u << (16 + o) : 0;
            CHECK(!slots || slots & row->reads, "the gradient of %s reads tensors that its row does not list: %x",
                  row->name, slots);
        }
}

static void differentiate_node(struct autodiff *s, id node)
{
    struct graph *g = s->g;
    struct node n = *node_at(g, node);
    const struct op_row *row = &op_table[n.op];
    struct vjp v = {.g = g, .op = n.op, .attr = &n.attr};
    bool any_out = false, any_in = false;
    for (int o = 0; o < n.nout; o++) any_out |= n.out[o] && s->adjoint[n.out[o]];
    for (int i = 0; i < n.nin; i++) {
        v.in[i] = n.in[i];
        v.need[i] = n.in[i] && s->requires_grad[n.in[i]];
        any_in |= v.need[i];
    }
    if (!any_out || !any_in || !row->vjp) return;

    g->at.scope = n.scope;
    g->at.origin = node;
    bool computes = !(row->flags & OPF_VIEW) && n.op != OP_COPY;
    for (int i = 0; i < n.nin; i++) /* now, so that the vjp's nodes can add to it in place */
        if (v.need[i] && s->adjoint[n.in[i]]) make_dense(s, n.in[i]);
    for (int o = 0; o < n.nout; o++) {
        if (computes && n.out[o]) make_dense(s, n.out[o]);
        v.out[o] = n.out[o];
        v.dout[o] = n.out[o] ? s->adjoint[n.out[o]] : 0;
    }
    /* Statistics beside the result (rstd, log-sum-exp) are for the backward only. */
    for (int o = 1; o < n.nout; o++)
        if (v.dout[o]) {
            graph_fail(g, "the loss depends on output %d of %s, through which no gradient flows", o, row->name);
            return;
        }
    uint32_t first = g->nodes.n;
    row->vjp(&v);
    check_reads(s, &n, first);
    for (int i = 0; i < n.nin; i++) {
        if (!v.need[i] || !v.din[i]) continue;
        /* Owned, unless it is (a view of) a gradient that another tensor shares. */
        bool passed = v.din[i] == v.dout[0], fresh = tensor_at(g, v.din[i])->node >= first;
        bool view = fresh && op_table[node_at(g, tensor_at(g, v.din[i])->node)->op].flags & OPF_VIEW;
        contribute(s, n.in[i], v.din[i], fresh && !passed && (!view || s->owned[n.out[0]]));
    }
}

/* --- loops ------------------------------------------------------------------------------ */

/* Writes a slice's gradient directly into its slice of the whole's gradient: the accumulating chain
 * on storage `from`, with its views, moves there. */
static void move_to(struct autodiff *s, id from, id slice_grad)
{
    struct graph *g = s->g;
    const struct tensor to = *tensor_at(g, slice_grad);
    for (id t = s->tensors; t < g->tensors.n; t++) {
        struct tensor *x = tensor_at(g, t);
        if (x->storage != from) continue;
        x->storage = to.storage;
        x->loop = to.loop;
        x->advance = to.advance;
    }
}

/* Copies a gradient into the slice and returns the copy: a gradient that another tensor shares
 * stays unchanged. */
static id copy_to(struct autodiff *s, id gradient, id slice_grad)
{
    id copy = op_copy(s->g, gradient, SPACE_DEVICE);
    if (copy) graph_redirect(s->g, copy, slice_grad);
    return copy;
}

/* Puts aside what the loops before this one gathered: several loops may slice one tensor, and each
 * gathers a gradient of it. */
static void put_aside(struct autodiff *s, id loop, id *aside)
{
    const struct graph *g = s->g;
    for (uint32_t c = 0; c < g->cuts.n; c++) {
        const id whole = g->cuts.at[c].whole;
        if (g->cuts.at[c].loop != loop) continue;
        aside[c] = s->adjoint[whole];
        s->adjoint[whole] = 0;
    }
}

/* Adds what put_aside kept, after the loops. */
static void add_aside(struct autodiff *s, id loop, const id *aside)
{
    const struct graph *g = s->g;
    for (uint32_t c = 0; c < g->cuts.n; c++)
        if (g->cuts.at[c].loop == loop && aside[c]) contribute(s, g->cuts.at[c].whole, aside[c], true);
}

/* Gathers the gradients of the cut tensors, which exist slice by slice after the body: allocates
 * the whole gradient and makes the slice's last writer write into it. */
static void gather_slices(struct autodiff *s, id loop)
{
    struct graph *g = s->g;
    for (uint32_t c = 0; c < g->cuts.n; c++) {
        struct cut cut = g->cuts.at[c];
        id d = s->adjoint[cut.slice];
        if (cut.loop != loop || !d) continue;
        struct tensor whole = *tensor_at(g, cut.whole), slice = *tensor_at(g, cut.slice);
        char name[256] = "d:";
        strncat(name, graph_name(g, whole.name), sizeof name - 3);
        /* If the last slice is ragged, the storage is longer than the tensor: cover the storage. */
        uint64_t bytes = (uint64_t)slice.advance * g->loops.at[loop].trip;
        id storage = graph_storage(g, name, KIND_ACT, SPACE_DEVICE, bytes);
        id all = graph_tensor(g, name, storage, whole.dtype, whole.rank, whole.dim, 0);
        id slice_grad = graph_tensor(g, name, storage, slice.dtype, slice.rank, slice.dim, 0);
        tensor_at(g, slice_grad)->loop = loop;
        tensor_at(g, slice_grad)->advance = slice.advance;
        if (s->owned[cut.slice] && stands_alone(g, d)) move_to(s, tensor_at(g, d)->storage, slice_grad);
        else d = copy_to(s, d, slice_grad);
        if (!d) return;
        tensor_at(g, all)->node = tensor_at(g, d)->node;
        s->adjoint[cut.whole] = all;
        s->owned[cut.whole] = true;
    }
}

/* --- between a loop's sums and the loss ----------------------------------------------------
 *
 * A loop's backward runs inside the loop, so the gradients of its sums must exist before it starts.
 * The nodes between the sums and the loss are differentiated first. This works when their vjps read
 * no forward tensor (add, scale, reshape). Anything else is an error: the gradient would depend on
 * values that the loop has not computed yet. */

/* Reports whether the node is in a loop inside the current body. */
static bool is_inner(const struct autodiff *s, id node) { return node_at(s->g, node)->loop != s->loop; }

static bool made_in_inner(const struct autodiff *s, id t)
{
    id producer = t ? tensor_at(s->g, t)->node : 0, loop = producer ? node_at(s->g, producer)->loop : 0;
    return loop != s->loop && loop_inside(s->g, loop, s->loop);
}

/* Fills after[], indexed by tensor: true when the tensor depends on the result of an inner loop
 * that a gradient flows into. */
static void mark_after_loops(const struct autodiff *s, const id *forward, uint32_t count, bool *after)
{
    for (uint32_t k = 0; k < count; k++) {
        const struct node *n = node_at(s->g, forward[k]);
        bool any = false;
        for (int i = 0; i < n->nin && !is_inner(s, forward[k]); i++)
            any |= (made_in_inner(s, n->in[i]) && s->requires_grad[n->in[i]]) || after[n->in[i]];
        for (int o = 0; o < n->nout; o++) after[n->out[o]] = any;
    }
}

/* Checks that the gradient of `t` is complete at this point, where `t` leaves a loop and
 * contributes to the loss. */
static void check_exit(struct autodiff *s, id t, bool deferred)
{
    struct graph *g = s->g;
    char text[160];
    bool output = false;
    if (!made_in_inner(s, t) || !s->requires_grad[t]) return;
    const struct node *n = node_at(g, tensor_at(g, t)->node);
    for (int o = 0; o < n->nout; o++) output |= n->out[o] == t;
    if (deferred || !output)
        graph_fail(g, "%s leaves a loop, but reaches the loss through other ops than sums: it cannot be differentiated",
                   tensor_print(g, t, text));
}

/* Differentiates the nodes that can be before the loops; sets early[k] for forward[k] that were. */
static void differentiate_early(struct autodiff *s, const id *forward, uint32_t count, bool *early)
{
    struct graph *g = s->g;
    bool *after = mem_alloc(s->tensors), *leads = mem_alloc(s->tensors), *deferred = mem_alloc(s->tensors);
    mark_after_loops(s, forward, count, after);
    for (id t = 1; t < s->tensors; t++) leads[t] = s->adjoint[t];
    for (uint32_t k = count; k-- > 0;) {
        const struct node n = *node_at(g, forward[k]);
        bool reaches = false, ready = !op_table[n.op].reads && !is_inner(s, forward[k]);
        for (int o = 0; o < n.nout; o++) {
            reaches |= n.out[o] && leads[n.out[o]];
            ready &= !deferred[n.out[o]] && (!n.out[o] || after[n.out[o]]);
        }
        if (!reaches || is_inner(s, forward[k])) continue;
        early[k] = ready;
        if (ready) differentiate_node(s, forward[k]);
        for (int i = 0; i < n.nin; i++) {
            if (!n.in[i]) continue;
            leads[n.in[i]] = true;
            deferred[n.in[i]] |= !ready;
            check_exit(s, n.in[i], deferred[n.in[i]]);
        }
    }
    mem_free(after);
    mem_free(leads);
    mem_free(deferred);
}

/* --- the whole program ------------------------------------------------------------------- */

static void append(struct order *to, const id *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) vec_push(&to->nodes, from[i]);
}

/* Returns the end of the nodes of [k, count) that are in the same loop of this body as node k. */
static uint32_t loop_end(const struct autodiff *s, const id *forward, uint32_t k, uint32_t count, id *loop)
{
    *loop = node_at(s->g, forward[k])->loop;
    while (s->g->loops.at[*loop].parent != s->loop) *loop = s->g->loops.at[*loop].parent;
    while (k < count && loop_inside(s->g, node_at(s->g, forward[k])->loop, *loop)) k++;
    return k;
}

/* Differentiates a loop body, or the program itself. Appends to `done`, in this order: the nodes
 * for the gradients of the inner loops' sums; the forward, with each inner loop's backward inside
 * that loop; and the backward of the rest. */
static void differentiate_body(struct autodiff *s, const id *forward, uint32_t count, struct order *done)
{
    struct graph *g = s->g;
    struct order *now = &g->order[s->program], saved = *now;
    id body = s->loop;
    bool *early = mem_alloc(count + 1);
    *now = (struct order){0};
    differentiate_early(s, forward, count, early);
    append(done, now->nodes.at, now->nodes.n);
    now->nodes.n = 0;

    for (uint32_t k = 0; k < count && !g->error.code;) {
        if (!is_inner(s, forward[k])) {
            vec_push(&done->nodes, forward[k++]);
            continue;
        }
        struct order inside = {0};
        id loop;
        uint32_t end = loop_end(s, forward, k, count, &loop);
        id *aside = mem_alloc((g->cuts.n + 1) * sizeof *aside);
        put_aside(s, loop, aside);
        s->loop = g->at.loop = loop;
        differentiate_body(s, forward + k, end - k, &inside);
        s->loop = g->at.loop = body;
        add_aside(s, loop, aside); /* among the nodes of the rest, after all loops */
        mem_free(aside);
        append(done, s->before[loop].nodes.at, s->before[loop].nodes.n);
        append(done, inside.nodes.at, inside.nodes.n);
        vec_free(&inside.nodes);
        k = end;
    }
    for (uint32_t k = count; k-- > 0 && !g->error.code;)
        if (!is_inner(s, forward[k]) && !early[k]) differentiate_node(s, forward[k]);
    if (body) gather_slices(s, body);
    append(done, now->nodes.at, now->nodes.n);
    vec_free(&now->nodes);
    *now = saved;
    mem_free(early);
}

static void differentiate_program(struct autodiff *s, id loss, id seed)
{
    struct graph *g = s->g;
    struct order *order = &g->order[s->program], forward = *order, done = {0};
    *order = (struct order){0};
    s->adjoint[loss] = seed ? seed : op_fill(g, tensor_at(g, loss)->dtype, 0, NULL, 1.0);
    append(&done, order->nodes.at, order->nodes.n);
    vec_free(&order->nodes);
    differentiate_body(s, forward.nodes.at, forward.nodes.n, &done);
    vec_free(&forward.nodes);
    *order = done;
}

/* Records and names the gradients of parameters. They outlive the program: their storages become
 * GRAD. */
static void keep_gradients(struct autodiff *s)
{
    struct graph *g = s->g;
    for (uint32_t i = 0; i < g->params.n; i++) {
        struct param *p = &g->params.at[i];
        p->grad = p->frozen ? 0 : s->adjoint[p->tensor];
        if (!p->grad) continue;
        char name[256] = "grad.";
        strncat(name, graph_name(g, tensor_at(g, p->tensor)->name), sizeof name - 6);
        struct storage *st = storage_of(g, p->grad);
        if (st->kind == KIND_ACT) st->kind = KIND_GRAD;
        id interned = graph_intern(g, name);
        storage_of(g, p->grad)->name = interned;
        tensor_at(g, p->grad)->name = interned;
    }
}

void graph_differentiate(struct graph *g, enum program p, id loss) { graph_differentiate_from(g, p, loss, 0); }

void graph_differentiate_from(struct graph *g, enum program p, id loss, id seed)
{
    if (g->error.code || !loss) return;
    struct autodiff s = {.g = g, .program = p, .tensors = g->tensors.n};
    s.adjoint = mem_alloc(s.tensors * sizeof(id));
    s.owned = mem_alloc(s.tensors);
    s.requires_grad = mem_alloc(s.tensors);
    s.before = mem_alloc(g->loops.n * sizeof *s.before);
    struct cursor before = graph_move(g, p, PHASE_BACKWARD, "autodiff");
    mark_requires_grad(&s);
    differentiate_program(&s, loss, seed);
    keep_gradients(&s);
    g->at = before;
    mem_free(s.adjoint);
    mem_free(s.owned);
    mem_free(s.requires_grad);
    for (uint32_t l = 0; l < g->loops.n; l++) vec_free(&s.before[l].nodes);
    mem_free(s.before);
}
