/*
 * tape.c: recording and replaying (see tape.h).
 */
#include "base/system.h"
#include "graph/ops.h"
#include "run/ranks.h"
#include "run/tape.h"

void placement_free(struct placement *p)
{
    mem_free(p->offset);
    mem_free(p->binding);
    mem_free(p->lives);
    memset(p, 0, sizeof *p);
}

/* --- recording --------------------------------------------------------------- */

/* Sets the number of ranks that hold a shard of the weights each, and this rank's shard. A plan
 * that divides weights has one loop over these ranks. */
static void find_holders(struct tape *t)
{
    t->holders = 1;
    for (id l = 1; l < t->graph->loops.n; l++) {
        const struct loop *loop = &t->graph->loops.at[l];
        if (loop->axis) t->holders = (int)loop->trip, t->host = (int)loop->host;
    }
    if (!t->ranks) return;
    const struct rank_group g = ranks_group(t->graph->mesh, t->ranks->n, t->ranks->rank, AXIS_DATA, t->holders, false);
    t->shard = ranks_shard(t->holders, t->host, ranks_place(&g));
}

static void bind_operand(const struct tape *t, struct entry *e, int slot, struct operand *x, id tensor)
{
    if (!tensor) return;
    const struct tensor *d = tensor_at(t->graph, tensor);
    const struct storage *s = &t->graph->storages.at[d->storage];
    x->data = t->arena[s->space] + t->placement->offset[d->storage] + d->offset;
    x->dtype = d->dtype;
    x->rank = d->rank;
    memcpy(x->dim, d->dim, sizeof x->dim);
    memcpy(x->stride, d->stride, sizeof x->stride);
    if (d->loop && t->graph->loops.at[d->loop].axis) {
        x->data = (char *)x->data + d->advance * (int64_t)t->shard;
    } else if (d->loop) {
        e->advances = true;
        e->move[slot].loop = d->loop;
        e->move[slot].advance = d->advance;
        e->move[slot].base = x->data;
    }
}

/* Reports whether a node sums over rows of images, of which there are fewer than planned: by
 * following the sequence, or, where features come from a cache, over zeros too. Its bits are those
 * of the other way. */
static bool sums_sequence(const struct graph *g, const struct node *n)
{
    return g->sequence.ranges && n->op == OP_MATMUL && n->attr.matmul.ta && graph_scope_is(g, n->scope, SCOPE_IMAGES);
}

/* Notes the operands that are along the sequence, of a node that follows it. */
static void bind_sequence(const struct tape *t, struct entry *e, const struct node *n)
{
    e->follows = t->sequence.follows && t->sequence.follows[e->node];
    if (sums_sequence(t->graph, n)) e->least = TERMS_LEAST;
    for (int k = 0; k < n->nin + n->nout && e->follows; k++) {
        const int slot = k < n->nin ? k : MAX_IN + k - n->nin;
        const id x = k < n->nin ? n->in[k] : n->out[k - n->nin];
        const int axis = x ? t->sequence.along[x] - 1 : -1;
        e->along[slot].axis = (int8_t)axis;
        if (axis < 0) continue;
        e->along[slot].dense = tensor_is_dense(tensor_at(t->graph, x));
        e->along[slot].length = tensor_at(t->graph, x)->dim[axis];
        if (!slot && !e->least) e->least = t->sequence.bucket * e->along[slot].length / t->sequence.entries;
        e->advances = true;
    }
}

/* Binds the accumulator of a sum that begins with this node (passes/rewrites/first_sum.c). */
static void bind_sum(const struct tape *t, struct entry *e, const struct node *n)
{
    const int slot = op_table[n->op].flags & OPF_ACCUM ? op_must_alias(n, 0) : -1;
    if (slot < 0) return;
    const struct node *made = node_at(t->graph, tensor_at(t->graph, n->in[slot])->node);
    if (!made->silent) return;
    e->advances = true;
    e->sum.slot = slot;
    e->sum.around = made->loop;
    e->sum.base = e->launch.in[slot].data;
}

/* Returns the threads of what the host computes beside a GPU. Its kernels compute each element by
 * itself: their number changes no bit. */
static int processors(void)
{
    struct system_processors here;
    system_processors(&here);
    return (int)here.usable;
}

static void record_launch(struct tape *t, enum program p, uint32_t position, id node, int threads)
{
    const struct node *n = node_at(t->graph, node);
    if (!node_launches(n)) return;
    const struct binding *b = &t->placement->binding[node];
    struct entry e = {.kind = ENTRY_LAUNCH, .lane = n->lane, .node = node, .loop = n->loop, .position = position,
                      .kernel = b->kernel};
    e.launch = (struct launch){.attr = &n->attr,
                               .nin = n->nin,
                               .nout = n->nout,
                               .threads = threads,
                               .work_bytes = b->work_bytes,
                               .access = b->access,
                               .form = b->form,
                               .ranks = t->ranks,
                               .mesh = t->graph->mesh,
                               .shard = t->shard,
                               .portion = t->graph->loops.at[n->loop].portion};
    if (n->lane == LANE_HOST) e.launch.threads = processors();
    e.advances = n->op == OP_FOLD || t->graph->loops.at[n->loop].tokens;
    if (b->work_bytes) e.launch.work = t->arena[SPACE_DEVICE] + b->work_offset;
    for (int i = 0; i < n->nin; i++) bind_operand(t, &e, i, &e.launch.in[i], n->in[i]);
    for (int o = 0; o < n->nout; o++) bind_operand(t, &e, MAX_IN + o, &e.launch.out[o], n->out[o]);
    bind_sum(t, &e, n);
    bind_sequence(t, &e, n);
    vec_push(&t->program[p], e);
}

/* --- wait lists ----------------------------------------------------------------- */

/* The byte ranges that an entry accesses: its whole storages, and its workspace. */
struct range {
    uint8_t space;
    bool write;
    uint64_t from, to;
};

static int ranges_of(const struct tape *t, const struct entry *e, struct range *r)
{
    const struct node *n = node_at(t->graph, e->node);
    int count = 0;
    for (int k = 0; k < n->nin + n->nout; k++) {
        id x = k < n->nin ? n->in[k] : n->out[k - n->nin];
        if (!x) continue;
        id s = tensor_at(t->graph, x)->storage;
        uint64_t from = t->placement->offset[s];
        r[count++] =
            (struct range){t->graph->storages.at[s].space, k >= n->nin, from, from + t->graph->storages.at[s].bytes};
    }
    const struct binding *b = &t->placement->binding[e->node];
    if (b->work_bytes) r[count++] = (struct range){SPACE_DEVICE, true, b->work_offset, b->work_offset + b->work_bytes};
    return count;
}

static bool conflict(const struct range *a, int na, const struct range *b, int nb)
{
    for (int i = 0; i < na; i++)
        for (int j = 0; j < nb; j++)
            if (a[i].space == b[j].space && (a[i].write || b[j].write) && a[i].from < b[j].to && b[j].from < a[i].to)
                return true;
    return false;
}

/* Sets what each entry waits for: the latest conflicting entry of every other lane; lanes are
 * queues, so this covers the earlier ones. Conflicts are detected by address, so bytes that are
 * reused by another storage are covered too. The end of a loop joins all lanes: iterations do not
 * overlap. A loop over tokens is in one lane only, and its end joins nothing. */
static void find_waits(struct tape *t, enum program p)
{
    struct range a[MAX_IN + MAX_OUT + 1], b[MAX_IN + MAX_OUT + 1];
    uint32_t count[LANE_COUNT] = {0};
    for (uint32_t k = 0; k < t->program[p].n; k++) count[t->program[p].at[k].lane]++;
    if (count[LANE_COMPUTE] == t->program[p].n) return;
    for (uint32_t k = 0; k < t->program[p].n; k++) {
        struct entry *e = &t->program[p].at[k];
        if (e->kind != ENTRY_LAUNCH) continue;
        int na = ranges_of(t, e, a);
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            if (lane == e->lane) continue;
            for (uint32_t j = k; j-- > 0;) {
                const struct entry *f = &t->program[p].at[j];
                if (f->kind == ENTRY_END && !t->graph->loops.at[f->loop].tokens) break;
                if (f->kind != ENTRY_LAUNCH || f->lane != lane) continue;
                if (!conflict(a, na, b, ranges_of(t, f, b))) continue;
                CHECK(e->nwait < MAX_WAIT);
                e->wait[e->nwait++] = j;
                break;
            }
        }
    }
}

/* Returns the number of slices of a loop, over the loops that it continues too. */
static uint32_t slices_of(const struct graph *g, id loop)
{
    const struct loop *l = &g->loops.at[loop];
    return l->continues ? slices_of(g, l->parent) * l->trip : l->trip;
}

static uint32_t iterations_around(const struct graph *g, id loop)
{
    const id parent = g->loops.at[loop].parent;
    return parent ? slices_of(g, parent) : 1;
}

/* Sets the iterations of all loops as planned; the runner may be told otherwise later. */
static void build_trips(struct tape *t)
{
    const struct graph *g = t->graph;
    t->trip = mem_alloc(g->loops.n * sizeof *t->trip);
    for (id l = 1; l < g->loops.n; l++) {
        const uint32_t n = iterations_around(g, l);
        t->trip[l] = mem_alloc(n * sizeof *t->trip[l]);
        for (uint32_t i = 0; i < n; i++) t->trip[l][i] = g->loops.at[l].trip;
    }
}

/* Sets the extents to all that is planned. */
static void build_extents(struct tape *t)
{
    const struct graph *g = t->graph;
    sequence_find(&t->sequence, g);
    if (!t->sequence.entries) return;
    t->extents = (uint32_t)(g->storages.at[g->sequence.ranges].bytes / (uint64_t)t->sequence.whole /
                            sizeof(int32_t[2]) * (uint64_t)t->sequence.sections);
    t->extent = mem_alloc(t->extents * sizeof *t->extent);
    for (uint32_t i = 0; i < t->extents; i++) t->extent[i] = (uint32_t)t->sequence.entries;
}

void tape_build(struct tape *t, const struct graph *g, const struct placement *p, char *const arena[SPACE_COUNT],
                int threads, struct ranks *ranks)
{
    memset(t, 0, sizeof *t);
    t->ranks = ranks;
    t->graph = g;
    t->placement = p;
    memcpy(t->arena, arena, sizeof t->arena);
    find_holders(t);
    build_trips(t);
    build_extents(t);
    t->iteration = mem_alloc(g->loops.n * sizeof *t->iteration);
    t->range = mem_alloc(g->loops.n * sizeof *t->range);
    for (id l = 1; l < g->loops.n; l++) t->range[l].from = UINT32_MAX;
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        id inside = 0;
        const struct order *order = &g->order[program];
        for (uint32_t k = 0; k <= order->nodes.n; k++) {
            id to = k < order->nodes.n ? node_at(g, order->nodes.at[k])->loop : 0;
            while (inside && !loop_inside(g, to, inside)) {
                vec_push(&t->program[program], ((struct entry){.kind = ENTRY_END, .loop = inside}));
                inside = g->loops.at[inside].parent;
            }
            while (inside != to) {
                id l = to;
                while (g->loops.at[l].parent != inside) l = g->loops.at[l].parent;
                vec_push(&t->program[program], ((struct entry){.kind = ENTRY_LOOP, .loop = l}));
                inside = l;
            }
            if (k == order->nodes.n) break;
            for (id l = to; l; l = g->loops.at[l].parent) {
                if (t->range[l].from == UINT32_MAX) t->range[l].from = k;
                t->range[l].to = k;
            }
            record_launch(t, program, k, order->nodes.at[k], threads);
        }
        find_waits(t, program);
    }
}

void tape_free(struct tape *t)
{
    for (int p = 0; p < PROGRAM_COUNT; p++) vec_free(&t->program[p]);
    for (id l = 1; t->trip && l < t->graph->loops.n; l++) mem_free(t->trip[l]);
    mem_free(t->trip);
    sequence_free(&t->sequence);
    mem_free(t->extent);
    mem_free(t->iteration);
    mem_free(t->range);
}

void *tape_address(const struct tape *t, id tensor)
{
    const struct tensor *d = tensor_at(t->graph, tensor);
    return t->arena[t->graph->storages.at[d->storage].space] + t->placement->offset[d->storage] + d->offset;
}

/* --- replaying ---------------------------------------------------------------------- */

/* Returns the slice of the current iteration. */
static uint32_t slice_at(const struct tape *t, id loop)
{
    const struct loop *l = &t->graph->loops.at[loop];
    return l->continues ? slice_at(t, l->parent) * l->trip + t->iteration[loop] : t->iteration[loop];
}

/* Returns the iterations to run of a loop, in the current iteration of the loop around it. */
static uint32_t tape_trip(const struct tape *t, id loop)
{
    const id parent = t->graph->loops.at[loop].parent;
    return t->trip[loop][parent ? slice_at(t, parent) : 0];
}

static bool is_first_term(const struct tape *t, const struct entry *e)
{
    for (id l = e->loop; l != e->sum.around; l = t->graph->loops.at[l].parent)
        if (t->iteration[l]) return false;
    return true;
}

/* Shortens the operands to the extent of the current micro-batch and section. */
static void set_extent(const struct tape *t, const struct entry *e, struct launch *l)
{
    const int64_t sections = t->sequence.sections, P = t->sequence.entries;
    const int64_t at = (t->sequence.loop ? slice_at(t, t->sequence.loop) : 0) * sections +
                       (sections > 1 ? t->iteration[e->loop] : 0);
    CHECK(at < t->extents);
    const int64_t extent = t->extent[at];
    l->extent = (struct portion){(uint32_t)extent, (uint32_t)P};
    for (int k = 0; k < MAX_IN + MAX_OUT; k++) {
        struct operand *x = k < MAX_IN ? &l->in[k] : &l->out[k - MAX_IN];
        const int axis = e->along[k].axis;
        if (axis < 0 || (k < MAX_IN ? k >= l->nin : k - MAX_IN >= l->nout)) continue;
        x->dim[axis] = e->along[k].length * extent / P;
        for (int i = axis; i-- > 0 && e->along[k].dense;) x->stride[i] = x->stride[i + 1] * x->dim[i + 1];
    }
}

void tape_advance(const struct tape *t, const struct entry *e, struct launch *l)
{
    for (int k = 0; k < MAX_IN + MAX_OUT; k++) {
        if (!e->move[k].loop) continue;
        char *at = e->move[k].base + e->move[k].advance * (int64_t)slice_at(t, e->move[k].loop);
        if (k < MAX_IN) l->in[k].data = at;
        else l->out[k - MAX_IN].data = at;
    }
    const struct loop *loop = &t->graph->loops.at[e->loop];
    l->iteration = t->iteration[e->loop];
    l->token = loop->tokens ? loop->first + (int64_t)l->iteration * loop->portion.part : 0;
    if (e->follows) set_extent(t, e, l);
    if (e->sum.base) l->in[e->sum.slot].data = is_first_term(t, e) ? NULL : e->sum.base;
}

/* Reports whether this is the last iteration of every loop that a storage lives through: only after
 * it does the storage die. */
static bool is_last_iteration(const struct tape *t, const struct life *l, id loop)
{
    for (; loop; loop = t->graph->loops.at[loop].parent)
        if (l->start <= t->range[loop].from && l->end >= t->range[loop].to &&
            t->iteration[loop] + 1 < tape_trip(t, loop))
            return false;
    return true;
}

/* Fills every storage that dies at entry `e` with NaN. */
static void poison_after(const struct tape *t, enum program p, const struct entry *e)
{
    for (id s = 1; s < t->graph->storages.n; s++) {
        const struct life *l = &t->placement->life[p][s];
        const struct storage *x = &t->graph->storages.at[s];
        if (l->used && l->end == e->position && !kind_is_persistent(x->kind) && is_last_iteration(t, l, e->loop))
            memset(t->arena[x->space] + t->placement->offset[s], 0xff, x->bytes);
    }
}

/* Fills, before a program, all transient storages with NaN, except the gradients that the update
 * reads and the caches of a text that is being generated. */
static void poison_all(const struct tape *t, enum program p)
{
    for (id s = 1; s < t->graph->storages.n; s++) {
        const struct storage *x = &t->graph->storages.at[s];
        if (t->placement->life[p][s].used && !storage_is_persistent(x) && x->kind != KIND_CACHE &&
            !(x->handed && program_is(p, PROGRAM_HANDED)))
            memset(t->arena[x->space] + t->placement->offset[s], 0xff, x->bytes);
    }
}

static void run_timed(struct timing *t, enum program p, const struct entry *e)
{
    double from = clock_seconds();
    e->kernel->run(&e->launch);
    timing_add(t, &(struct timing_event){e->node, e->position, (uint8_t)p, e->lane, from, clock_seconds()});
}

static void launch(struct tape *t, enum program p, struct entry *e)
{
    if (e->advances) tape_advance(t, e, &e->launch);
    if (t->poison && e->launch.work_bytes) memset(e->launch.work, 0xff, e->launch.work_bytes);
    if (t->timing) run_timed(t->timing, p, e);
    else e->kernel->run(&e->launch);
    if (t->observe) t->observe(t->observer, e);
    if (t->poison && e->launch.work_bytes) memset(e->launch.work, 0xff, e->launch.work_bytes);
    if (t->poison) poison_after(t, p, e);
}

uint32_t tape_follow(struct tape *t, enum program p, uint32_t k)
{
    const struct entry *e = &t->program[p].at[k];
    if (e->kind == ENTRY_LOOP) {
        CHECK(tape_trip(t, e->loop) <= t->graph->loops.at[e->loop].trip);
        t->iteration[e->loop] = 0;
        while (!tape_trip(t, e->loop) && (t->program[p].at[k].kind != ENTRY_END || t->program[p].at[k].loop != e->loop))
            k++;
    } else if (e->kind == ENTRY_END) {
        if (++t->iteration[e->loop] < tape_trip(t, e->loop))
            while (t->program[p].at[k].kind != ENTRY_LOOP || t->program[p].at[k].loop != e->loop) k--;
        else t->iteration[e->loop] = 0; /* programs without the loop read its first slice */
    }
    return k + 1;
}

void tape_run(struct tape *t, enum program p)
{
    if (t->poison) poison_all(t, p);
    for (uint32_t k = 0; k < t->program[p].n; k = tape_follow(t, p, k))
        if (t->program[p].at[k].kind == ENTRY_LAUNCH) launch(t, p, &t->program[p].at[k]);
}

/* --- timing: allocates only in timing_init and timing_record_events --------------------------- */

void timing_init(struct timing *t, const struct graph *g)
{
    *t = (struct timing){.nodes = g->nodes.n};
    t->seconds = mem_alloc(t->nodes * sizeof *t->seconds);
    t->calls = mem_alloc(t->nodes * sizeof *t->calls);
}

void timing_add(struct timing *t, const struct timing_event *v)
{
    t->seconds[v->node] += v->to - v->from;
    t->calls[v->node]++;
    if (t->n_events < t->room) t->events[t->n_events++] = *v;
}

void timing_record_events(struct timing *t, uint32_t launches)
{
    t->events = mem_resize(t->events, launches * sizeof *t->events);
    t->room = launches;
    t->n_events = 0;
}

void timing_clear(struct timing *t)
{
    memset(t->seconds, 0, t->nodes * sizeof *t->seconds);
    memset(t->calls, 0, t->nodes * sizeof *t->calls);
}

void timing_copy(struct timing *to, const struct timing *from)
{
    CHECK(to->nodes == from->nodes);
    memcpy(to->seconds, from->seconds, to->nodes * sizeof *to->seconds);
    memcpy(to->calls, from->calls, to->nodes * sizeof *to->calls);
}

void timing_free(struct timing *t)
{
    mem_free(t->seconds);
    mem_free(t->calls);
    mem_free(t->events);
    memset(t, 0, sizeof *t);
}
