/*
 * bind.c: computes all of a plan except the offsets: the lifetime of each storage, the kernel and
 * workspace of each node, the predicted step time, and the instant with the most bytes alive. The
 * search compares graphs by these; place.c computes offsets for the one that it chooses.
 */
#include "cost/calibration.h"
#include "graph/ops.h"
#include "plan/lanes.h"
#include "plan/plan.h"

bool *plan_mark_reached(const struct graph *g)
{
    bool *reached = mem_alloc(g->storages.n);
    for (int p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            for (int i = 0; i < n->nin; i++) reached[tensor_at(g, n->in[i])->storage] = true;
            for (int o = 0; o < n->nout; o++) reached[tensor_at(g, n->out[o])->storage] = true;
        }
    for (uint32_t i = 0; i < g->params.n; i++) {
        reached[tensor_at(g, g->params.at[i].tensor)->storage] = true;
        reached[tensor_at(g, g->params.at[i].master)->storage] = true;
    }
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == KIND_STAGING || g->storages.at[s].kind == KIND_STEP) reached[s] = true;
    reached[0] = false;
    return reached;
}

/* Finds the lives of storages in each program. Programs without nodes share an array in which no
 * storage is used. */
static void find_lives(struct plan *p, const struct graph *g)
{
    struct placement *to = &p->placement;
    int n = 1;
    for (int program = 0; program < PROGRAM_COUNT; program++) n += g->order[program].nodes.n > 0;
    /* graph_lifetimes sets all of a program's */
    to->lives = mem_resize(NULL, (size_t)n * g->storages.n * sizeof *to->lives);
    memset(to->lives, 0, g->storages.n * sizeof *to->lives);
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        to->life[program] = to->lives + (g->order[program].nodes.n ? (size_t)--n * g->storages.n : 0);
        if (g->order[program].nodes.n) graph_lifetimes(g, program, to->life[program]);
    }
}

/* Extends the life of a storage that is handed over to the end of the first program and through the
 * whole second one, even beyond its last reader: the search for a non-finite gradient reads it
 * there. A cache has its contents before the first program too. */
static void extend_handed(struct plan *p, const struct graph *g)
{
    FOR_PROGRAMS(to, PROGRAM_HANDED) {
        struct life *first = p->placement.life[to - 1], *second = p->placement.life[to];
        const uint32_t n = g->order[to - 1].nodes.n, m = g->order[to].nodes.n;
        for (id s = 1; s < g->storages.n; s++) {
            if (!g->storages.at[s].handed || !first[s].used) continue;
            first[s].end = n - 1;
            if (g->storages.at[s].kind == KIND_CACHE) first[s].start = 0;
            if (m) second[s] = (struct life){0, m - 1, true};
        }
    }
}

/* Extends the lives of what the host's updates read and write of copies in host memory, so that the
 * copies of the next HOST_AHEAD updates need not wait for one that is computed. */
static void extend_hosted(struct plan *p, const struct graph *g)
{
    enum { HOST_AHEAD = 2 };
    for (enum program program = 0; program < PROGRAM_COUNT; program++) {
        const struct order *order = &g->order[program];
        struct life *life = p->placement.life[program];
        uint32_t ahead[HOST_AHEAD] = {0}; /* positions of the next updates, the nearest first */
        for (uint32_t k = order->nodes.n; k-- > 0;) {
            const struct node *n = node_at(g, order->nodes.at[k]);
            if (n->lane != LANE_HOST || n->silent) continue;
            for (int i = 0; i < n->nin; i++) {
                const id s = n->in[i] ? tensor_at(g, n->in[i])->storage : 0;
                if (s && !storage_is_persistent(&g->storages.at[s]))
                    life[s].end = (uint32_t)max_i64(life[s].end, max_i64(ahead[0], ahead[HOST_AHEAD - 1]));
            }
            memmove(ahead + 1, ahead, sizeof ahead - sizeof *ahead);
            ahead[0] = k;
        }
    }
}

/* --- kernels ------------------------------------------------------------------------------ */

/* The kernel found for one node. It is valid for every node that is_alike: the planning half of a
 * kernel depends on shapes, strides, attributes and the profile only (kernel.h), and the blocks of
 * a model repeat them. */
struct found {
    id node;                 /* the node for which it was found, in kernels.of; 0: a free slot */
    bool missing;            /* the device has none: it is the reference kernel */
    const struct kernel *kernel;
    uint64_t work;
    double seconds;          /* of one launch */
    int access, form;        /* binding.access, binding.form */
    uint64_t hash;           /* of the node */
};
/* An open-addressing hash table over distinct nodes; at most half full. */
struct kernels {
    struct found *slot;
    uint32_t slots, used;
    struct graph of;         /* copies of these nodes, and of their tensors, storages and loops */
    /* by node id: the slot of that node in the graph before; drafts share most of their nodes */
    VEC(uint32_t) last;
};

void kernels_free(struct kernels *k)
{
    if (!k) return;
    mem_free(k->slot);
    graph_free(&k->of);
    vec_free(&k->last);
    mem_free(k);
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 32;
}

static uint64_t hash_node(const struct graph *g, const struct node *x)
{
    uint64_t h = x->op;
    for (int i = 0; i < x->nin + x->nout; i++) {
        const struct tensor *t = tensor_at(g, i < x->nin ? x->in[i] : x->out[i - x->nin]);
        uint64_t shape = t->dtype + t->offset;
        for (int d = 0; d < t->rank; d++)
            shape += (uint64_t)t->dim[d] * (0x10001ull + 0x20002ull * (uint64_t)d) + ((uint64_t)t->stride[d] << d);
        h = mix(h, shape);
    }
    return h;
}

/* Compares everything that a kernel's planning half may read; the storage's name and size are not
 * part of it. */
static bool operands_alike(const struct graph *g, id a, const struct graph *h, id b)
{
    if (!a || !b) return a == b;
    const struct tensor *x = tensor_at(g, a), *y = tensor_at(h, b);
    if (x->dtype != y->dtype || x->rank != y->rank || x->offset != y->offset || !x->loop != !y->loop ||
        x->advance != y->advance)
        return false;
    int64_t differ = 0;
    for (int d = 0; d < x->rank; d++) differ |= (x->dim[d] ^ y->dim[d]) | (x->stride[d] ^ y->stride[d]);
    return !differ && g->storages.at[x->storage].space == h->storages.at[y->storage].space;
}

/* Reports whether two nodes of one op have the same attributes for planning. The random key of an
 * update differs from weight to weight; only the running half reads it. */
static bool attributes_alike(const struct node *x, const struct node *y)
{
    if (x->op != OP_ADAMW && x->op != OP_ADAMW_8BIT && x->op != OP_SGD && x->op != OP_ADAFACTOR)
        return !memcmp(&x->attr, &y->attr, sizeof x->attr);
    union attr a = x->attr;
    a.adamw.key = y->attr.adamw.key;
    memcpy(a.adamw.of, y->attr.adamw.of, sizeof a.adamw.of);
    return !memcmp(&a.adamw, &y->attr.adamw, sizeof a.adamw);
}

static bool is_alike(const struct graph *g, const struct node *x, const struct graph *h, const struct node *y)
{
    const struct portion a = g->loops.at[x->loop].portion, b = h->loops.at[y->loop].portion;
    if (x->op != y->op || x->lane != y->lane || x->nin != y->nin || x->nout != y->nout || a.part != b.part ||
        a.whole != b.whole || !attributes_alike(x, y))
        return false;
    for (int i = 0; i < x->nin; i++)
        if (!operands_alike(g, x->in[i], h, y->in[i])) return false;
    for (int o = 0; o < x->nout; o++)
        if (!operands_alike(g, x->out[o], h, y->out[o])) return false;
    return true;
}

/* Copies a node's operand into `to`. */
static id copy_operand(struct graph *to, const struct graph *g, id t)
{
    if (!t) return 0;
    struct tensor x = *tensor_at(g, t);
    vec_push(&to->storages, g->storages.at[x.storage]);
    x.storage = to->storages.n - 1;
    vec_push(&to->tensors, x);
    return to->tensors.n - 1;
}

/* Copies a loop around a node, of which `to` needs only the portion; returns 0 if it has none. */
static id copy_loop(struct graph *to, const struct graph *g, id loop)
{
    const struct portion portion = g->loops.at[loop].portion;
    if (!portion.part) return 0;
    vec_push(&to->loops, ((struct loop){.portion = portion}));
    return to->loops.n - 1;
}

static id copy_node(struct graph *to, const struct graph *g, const struct node *x)
{
    struct node n = *x;
    n.loop = copy_loop(to, g, x->loop);
    for (int i = 0; i < n.nin; i++) n.in[i] = copy_operand(to, g, x->in[i]);
    for (int o = 0; o < n.nout; o++) n.out[o] = copy_operand(to, g, x->out[o]);
    vec_push(&to->nodes, n);
    return to->nodes.n - 1;
}

/* Finds the kernel of a node. If a GPU has none, the reference kernel's planning half is used and
 * the op is recorded as missing: such a plan cannot run. */
static int find_kernel(struct found *f, struct kernels *k, const struct graph *g, id n, const struct profile *profile,
                       struct error *e)
{
    const struct node *x = node_at(g, n);
    struct query q;
    query_fill(&q, g, x, profile);
    const struct kernel *kernel = kernel_find(q.host ? DEVICE_CPU : profile->kind, x->op, &q);
    const bool missing = !kernel && profile->kind == DEVICE_CUDA;
    if (missing) kernel = kernel_find(DEVICE_REF, x->op, &q);
    if (!kernel)
        return error_set(e, PL_USAGE, "device %s has no kernel for %s on %s", profile->name, op_table[x->op].name,
                         q.in[0] ? dtype_name(q.in[0]->dtype) : "this dtype");
    q.kernel = kernel;
    *f = (struct found){.node = copy_node(&k->of, g, x),
                        .missing = missing,
                        .kernel = kernel,
                        .work = kernel->workspace ? kernel->workspace(&q) : 0,
                        .seconds = kernel_seconds(&q, x->op),
                        .access = kernel->access ? kernel->access(&q) : 0,
                        .form = kernel_form(kernel, &q),
                        .hash = f->hash};
    return PL_OK;
}

/* Returns the slot of a node like this one, or the free slot where it belongs. */
static struct found *slot_of(const struct kernels *k, const struct graph *g, const struct node *x)
{
    const uint64_t hash = hash_node(g, x);
    uint64_t at = hash & (k->slots - 1);
    while (k->slot[at].node && (k->slot[at].hash != hash || !is_alike(g, x, &k->of, node_at(&k->of, k->slot[at].node))))
        at = (at + 1) & (k->slots - 1);
    k->slot[at].hash = hash;
    return &k->slot[at];
}

static void grow(struct kernels *k)
{
    const struct kernels old = *k;
    k->slots = old.slots ? 2 * old.slots : 256;
    k->slot = mem_alloc(k->slots * sizeof *k->slot);
    for (uint32_t i = 0; i < old.slots; i++)
        if (old.slot[i].node) *slot_of(k, &k->of, node_at(&k->of, old.slot[i].node)) = old.slot[i];
    if (k->last.n) memset(k->last.at, 0, k->last.n * sizeof *k->last.at);
    mem_free(old.slot);
}

/* Does as slot_of, but looks first where the node of this id in the graph before was found:
 * consecutive graphs resemble each other. */
static struct found *slot_of_node(struct kernels *k, const struct graph *g, id n)
{
    struct found *f = &k->slot[k->last.at[n]];
    if (f->node && is_alike(g, node_at(g, n), &k->of, node_at(&k->of, f->node))) return f;
    f = slot_of(k, g, node_at(g, n));
    k->last.at[n] = (uint32_t)(f - k->slot);
    return f;
}

/* Answers in the evaluations of training are no part of its steps. */
static bool is_timed(const struct plan *p, enum program program)
{
    return program_is(program, PROGRAM_TIMED) && !(p->settings.train && program_is(program, PROGRAM_GENERATES));
}

static int bind_program(struct plan *p, const struct graph *g, enum program program, struct kernels *known,
                        const struct profile *profile, double *seconds, struct error *e)
{
    double sequential = 0;
    for (uint32_t k = 0; k < g->order[program].nodes.n; k++) {
        id n = g->order[program].nodes.at[k];
        const struct node *x = node_at(g, n);
        if (!node_launches(x)) continue;
        if (2 * known->used >= known->slots) grow(known);
        struct found *f = slot_of_node(known, g, n);
        if (!f->node) {
            if (find_kernel(f, known, g, n, profile, e)) return e->code;
            known->used++;
        }
        if (f->missing) p->missing[x->op / 64] |= (uint64_t)1 << x->op % 64;
        p->placement.binding[n] = (struct binding){f->kernel, 0, f->work, f->access, f->form};
        seconds[n] = is_timed(p, program) ? loop_iterations(g, x->loop) * f->seconds : 0;
        sequential += seconds[n];
    }
    p->program_seconds[program] = profile->kind != DEVICE_CUDA ? sequential : lanes_seconds(g, program, seconds, NULL);
    p->seconds += p->program_seconds[program];
    return PL_OK;
}

/* Chooses kernels and sums the predicted time, times the iterations of loops. A CPU runs nodes one
 * after another; for a GPU see lanes.h. */
static int bind_kernels(struct plan *p, const struct graph *g, const struct profile *profile, struct kernels **known,
                        double *seconds, struct error *e)
{
    int rc = PL_OK;
    if (!*known) {
        *known = mem_alloc(sizeof **known);
        graph_init(&(*known)->of);
    }
    while ((*known)->last.n < g->nodes.n) vec_push(&(*known)->last, 0);
    for (int program = 0; program < PROGRAM_COUNT && !rc; program++)
        rc = bind_program(p, g, program, *known, profile, seconds, e);
    return rc;
}

void plan_print_missing(const struct plan *p, struct text *out)
{
    for (int op = 1; op < OP_COUNT; op++)
        if (p->missing[op / 64] >> op % 64 & 1) text_printf(out, "%s%s", out->n ? ", " : "", op_table[op].name);
}

/* Adds up the persistent bytes of what plan_mark_reached marks: a storage lives where a node
 * reaches it. */
static void add_persistent(struct plan *p, const struct graph *g)
{
    bool *param = mem_alloc(g->storages.n);
    for (uint32_t i = 0; i < g->params.n; i++)
        param[tensor_at(g, g->params.at[i].tensor)->storage] = param[tensor_at(g, g->params.at[i].master)->storage] =
            true;
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        bool reached = param[s] || x->kind == KIND_STAGING || x->kind == KIND_STEP;
        for (int program = 0; program < PROGRAM_COUNT; program++) reached |= p->placement.life[program][s].used;
        if (storage_is_persistent(x) && reached) p->persistent[x->space] += align_up(x->bytes, PLAN_ALIGN);
    }
    mem_free(param);
}

/* Adds the changes at births and deaths of storages to act[] and grad[]; their running sums are the
 * bytes alive. grad[] gets the storages that are handed over. */
static void add_changes(const struct plan *p, const struct graph *g, enum program program, int64_t *act, int64_t *grad)
{
    const struct life *life = p->placement.life[program];
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (!life[s].used || storage_is_persistent(x) || x->space != SPACE_DEVICE) continue;
        int64_t *sum = x->handed ? grad : act, bytes = (int64_t)align_up(x->bytes, PLAN_ALIGN);
        sum[life[s].start] += bytes;
        sum[life[s].end + 1] -= bytes;
    }
}

uint64_t *plan_alive(const struct plan *p, const struct graph *g, enum program program, bool handed)
{
    uint32_t n = g->order[program].nodes.n;
    uint64_t *alive = mem_alloc((n + 1) * sizeof *alive);
    int64_t *change = mem_alloc((n + 1) * sizeof *change), live = 0,
            *none = handed ? NULL : mem_alloc((n + 1) * sizeof *none);
    add_changes(p, g, program, change, handed ? change : none);
    mem_free(none);
    for (uint32_t k = 0; k < n; k++) {
        live += change[k];
        alive[k] =
            (uint64_t)live + align_up(p->placement.binding[g->order[program].nodes.at[k]].work_bytes, PLAN_ALIGN);
    }
    mem_free(change);
    return alive;
}

enum kind plan_work_kind(const struct node *n) { return op_table[n->op].flags & OPF_COMM ? KIND_COMM : KIND_WORKSPACE; }

/* Counts the storages of collectives among the transients at the peak as KIND_COMM. */
static void tell_communication(struct plan *p, const struct graph *g)
{
    for (id s = 1; s < g->storages.n; s++) {
        const struct life *l = &p->placement.life[p->peak.program][s];
        if (g->storages.at[s].kind != KIND_COMM || g->storages.at[s].space != SPACE_DEVICE || !l->used ||
            l->start > p->peak.instant || l->end < p->peak.instant)
            continue;
        const uint64_t bytes = align_up(g->storages.at[s].bytes, PLAN_ALIGN);
        p->peak.by_kind[KIND_COMM] += bytes;
        p->peak.by_kind[KIND_ACT] -= bytes;
    }
}

void plan_find_peak(struct plan *p, const struct graph *g, const bool *reached)
{
    uint64_t fixed[KIND_COUNT] = {0};
    for (id s = 1; s < g->storages.n; s++) {
        const struct storage *x = &g->storages.at[s];
        if (storage_is_persistent(x) && x->space == SPACE_DEVICE && reached[s])
            fixed[x->kind] += align_up(x->bytes, PLAN_ALIGN);
    }
    p->peak = (struct peak){0};
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        uint32_t n = g->order[program].nodes.n;
        int64_t *act = mem_alloc((n + 1) * sizeof *act), *grad = mem_alloc((n + 1) * sizeof *grad), live = 0,
                handed = 0;
        add_changes(p, g, program, act, grad);
        for (uint32_t k = 0; k < n; k++) {
            live += act[k];
            handed += grad[k];
            uint64_t work = align_up(p->placement.binding[g->order[program].nodes.at[k]].work_bytes, PLAN_ALIGN);
            uint64_t bytes = p->persistent[SPACE_DEVICE] + (uint64_t)(live + handed) + work;
            if (bytes <= p->peak.bytes) continue;
            p->peak.program = program;
            p->peak.instant = k;
            p->peak.bytes = bytes;
            memcpy(p->peak.by_kind, fixed, sizeof fixed);
            p->peak.by_kind[KIND_ACT] = (uint64_t)live;
            p->peak.by_kind[program_is(program, PROGRAM_GENERATES) ? KIND_CACHE : KIND_GRAD] += (uint64_t)handed;
            p->peak.by_kind[plan_work_kind(node_at(g, g->order[program].nodes.at[k]))] = work;
        }
        mem_free(act);
        mem_free(grad);
    }
    tell_communication(p, g);
}

uint64_t plan_cache_bytes(const struct graph *g)
{
    uint64_t sum = 0;
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == KIND_CACHE) sum += align_up(g->storages.at[s].bytes, PLAN_ALIGN);
    return sum;
}

int plan_bind(struct plan *p, const struct graph *g, const struct profile *profile, struct kernels **known,
              double *seconds, struct error *e)
{
    struct kernels *found = NULL;
    p->placement = (struct placement){.storages = g->storages.n, .nodes = g->nodes.n};
    p->placement.offset = mem_alloc(g->storages.n * sizeof(uint64_t));
    p->placement.binding = mem_alloc(g->nodes.n * sizeof(struct binding));
    p->seconds = 0;
    memset(p->missing, 0, sizeof p->missing);
    memset(p->persistent, 0, sizeof p->persistent);
    find_lives(p, g);
    extend_handed(p, g);
    extend_hosted(p, g);
    double *own = seconds ? NULL : mem_alloc(g->nodes.n * sizeof *own);
    int rc = bind_kernels(p, g, profile, known ? known : &found, seconds ? seconds : own, e);
    mem_free(own);
    kernels_free(found);
    if (rc) {
        placement_free(&p->placement);
        return rc;
    }
    add_persistent(p, g);
    return PL_OK;
}
