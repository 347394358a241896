/*
 * verify.c: the invariants that hold after every pass. It runs after each pass, in every build; a
 * violation is a bug in the pass and aborts with the pass and the node.
 *
 *   ids        every id is in range; a node is in one program's order, once
 *   loops      a loop's nodes are consecutive and loops nest
 *   shapes     outputs have the shape and dtype that the shape rule derives from the inputs
 *   bounds     a tensor lies inside its storage, in all iterations; a view is on its
 *              base's storage
 *   order      an input is written before it is read, and not overwritten in between
 */
#include "graph/graph.h"
#include "graph/ops.h"
#include "graph/stored.h"

struct verify {
    const struct graph *g;
    const char *pass;
    enum program program;
    bool *written;   /* by tensor: produced earlier in this program */
    id *stale;       /* by tensor: the node that overwrote it; 0: none */
    id *first, *next; /* linked lists: the tensors of each storage */
};

#define HOLDS(cond, n, ...)                                                                              \
    do {                                                                                                 \
        if (!(cond)) report(v, n, #cond, __LINE__);                                                    \
    } while (0)

static void report(const struct verify *v, id n, const char *what, int line)
{
    const struct node *x = node_at(v->g, n);
    const char *scope = graph_name(v->g, v->g->scopes.at[x->scope].name);
    check_failed(__FILE__, line, what, "after pass %s, program %s, node %u %s in %s", v->pass,
                 program_name(v->program), n, op_table[x->op].name, scope);
}

/* Returns the bytes from a tensor's first to its last element, all iterations included. */
static uint64_t extent(const struct graph *g, const struct tensor *x)
{
    uint64_t last = 0;
    for (int i = 0; i < x->rank; i++) last += (uint64_t)(x->dim[i] - 1) * (uint64_t)x->stride[i];
    uint64_t bytes = g->storages.at[x->storage].form ? stored_bytes(g, x) : (last + 1) * dtype_size(x->dtype);
    uint64_t slices = 1;
    for (id l = x->loop; l; l = g->loops.at[l].continues ? g->loops.at[l].parent : 0) slices *= g->loops.at[l].trip;
    bytes += (uint64_t)x->advance * (slices - 1);
    return bytes;
}

static void verify_ids(const struct verify *v, id n)
{
    const struct graph *g = v->g;
    HOLDS(n > 0 && n < g->nodes.n, n);
    const struct node *x = node_at(g, n);
    HOLDS(x->program == v->program, n);
    HOLDS(x->scope < g->scopes.n && x->loop < g->loops.n && x->origin < g->nodes.n, n);
    for (int i = 0; i < x->nin; i++) HOLDS(x->in[i] < g->tensors.n, n);
    for (int i = 0; i < op_table[x->op].min_in; i++) HOLDS(x->in[i], n);
    for (int o = 0; o < x->nout; o++) {
        HOLDS(x->out[o] < g->tensors.n, n);
        HOLDS(!x->out[o] || tensor_at(g, x->out[o])->node, n);
    }
}

static void verify_shapes(const struct verify *v, id n)
{
    const struct graph *g = v->g;
    const struct node *x = node_at(g, n);
    struct infer f = {.op = x->op, .attr = &x->attr, .nin = x->nin};
    for (int i = 0; i < x->nin; i++) f.in[i] = x->in[i] ? tensor_at(g, x->in[i]) : NULL;
    op_infer(&f);
    HOLDS(!f.error[0], n);
    for (int o = 0; o < x->nout; o++) {
        if (!x->out[o]) continue;
        const struct tensor *t = tensor_at(g, x->out[o]);
        HOLDS(t->dtype == f.out[o].dtype && t->rank == f.out[o].rank, n);
        HOLDS(!memcmp(t->dim, f.out[o].dim, t->rank * sizeof *t->dim), n);
        HOLDS(t->offset + extent(g, t) <= g->storages.at[t->storage].bytes, n);
        if (op_table[x->op].flags & OPF_VIEW) HOLDS(t->storage == tensor_at(g, x->in[0])->storage, n);
        int from = op_must_alias(x, o);
        HOLDS(from < 0 ||
                  (t->storage == tensor_at(g, x->in[from])->storage && t->offset == tensor_at(g, x->in[from])->offset),
              n);
    }
    for (int i = 0; i < x->nin; i++) {
        const struct tensor *t = tensor_at(g, x->in[i]);
        if (x->in[i]) HOLDS(t->offset + extent(g, t) <= g->storages.at[t->storage].bytes, n);
        if (x->in[i] && t->loop) HOLDS(loop_inside(g, x->loop, t->loop) || g->loops.at[t->loop].axis || !t->advance, n);
    }
    /* Ranks leave out other iterations: a collective in such a loop would wait for one that has
     * none. Ranks of one line of AXIS_TENSOR have the same batch. */
    for (id l = x->loop; l && op_table[x->op].flags & OPF_COMM; l = g->loops.at[l].parent)
        HOLDS(!g->loops.at[l].counted || x->attr.group.axis == AXIS_TENSOR, n);
}

/* Verifies that each input may be read: a node wrote it earlier in this program, or its storage is
 * persistent; and no node overwrote it since. */
static void verify_reads(struct verify *v, id n)
{
    const struct graph *g = v->g;
    const struct node *x = node_at(g, n);
    for (int i = 0; i < x->nin; i++) {
        id t = x->in[i];
        if (!t) continue;
        bool persistent = kind_is_persistent(storage_of(g, t)->kind);
        id producer = tensor_at(g, t)->node;
        HOLDS(v->written[t] || persistent || (producer && v->written[node_at(g, producer)->out[0]]), n);
        HOLDS(!v->stale[t], n);
    }
}

static bool overlap(const struct graph *g, id a, id b)
{
    const struct tensor *x = tensor_at(g, a), *y = tensor_at(g, b);
    return x->offset < y->offset + extent(g, y) && y->offset < x->offset + extent(g, x);
}

/* Verifies and records a node's writes. An in-place update makes every earlier view of those bytes
 * unreadable. */
static void verify_writes(struct verify *v, id n)
{
    const struct graph *g = v->g;
    const struct node *x = node_at(g, n);
    for (int o = 0; o < x->nout; o++) {
        if (!x->out[o]) continue;
        v->written[x->out[o]] = true;
        CHECK(!(op_table[x->op].flags & OPF_VIEW) ||
                  tensor_at(g, x->out[o])->storage == tensor_at(g, x->in[0])->storage,
              "node %u, %s, is a view, but not of its input's storage", n, op_table[x->op].name);
        bool in_place = op_must_alias(x, o) >= 0;
        for (int i = 0; i < x->nin && !in_place && !(op_table[x->op].flags & OPF_VIEW); i++)
            in_place = x->in[i] && tensor_at(g, x->in[i])->storage == tensor_at(g, x->out[o])->storage;
        if (!in_place) continue;
        for (id t = v->first[tensor_at(g, x->out[o])->storage]; t; t = v->next[t]) {
            bool mine = false;
            for (int k = 0; k < x->nout; k++) mine |= x->out[k] == t;
            if (!mine && v->written[t] && overlap(g, t, x->out[o])) v->stale[t] = n;
        }
    }
}

/* Loops open and close in the order like brackets. */
static void verify_loops(const struct verify *v)
{
    const struct graph *g = v->g;
    const struct order *order = &g->order[v->program];
    bool *closed = mem_alloc(g->loops.n);
    id inside = 0;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        id n = order->nodes.at[k], to = node_at(g, n)->loop;
        while (inside && !loop_inside(g, to, inside)) {
            closed[inside] = true;
            inside = g->loops.at[inside].parent;
        }
        for (id l = to; l != inside; l = g->loops.at[l].parent) HOLDS(!closed[l] && g->loops.at[l].trip > 0, n);
        inside = to;
    }
    mem_free(closed);
}

void graph_verify(const struct graph *g, const char *pass)
{
    if (g->error.code) return;
    struct verify v = {.g = g, .pass = pass};
    v.first = mem_alloc(g->storages.n * sizeof(id));
    v.next = mem_alloc(g->tensors.n * sizeof(id));
    for (id t = g->tensors.n - 1; t > 0; t--) {
        v.next[t] = v.first[tensor_at(g, t)->storage];
        v.first[tensor_at(g, t)->storage] = t;
    }
    bool *seen = mem_alloc(g->nodes.n);
    for (int p = 0; p < PROGRAM_COUNT; p++) {
        v.program = p;
        v.written = mem_alloc(g->tensors.n);
        v.stale = mem_alloc(g->tensors.n * sizeof(id));
        verify_loops(&v);
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            id n = g->order[p].nodes.at[k];
            verify_ids(&v, n);
            CHECK(!seen[n], "after pass %s: node %u occurs twice in the order", pass, n);
            seen[n] = true;
            verify_shapes(&v, n);
            verify_reads(&v, n);
            verify_writes(&v, n);
        }
        mem_free(v.written);
        mem_free(v.stale);
    }
    mem_free(seen);
    mem_free(v.first);
    mem_free(v.next);
}
