/*
 * reuse.c: an output reuses the bytes of an input that dies at its node, if the op's row allows it:
 * dlogits over logits, a rotated query over the query, a sum over one of its terms. No bits change,
 * and there is one storage less.
 */
#include "graph/lifetime.h"
#include "graph/ops.h"
#include "passes/passes.h"

struct reuse {
    struct graph *g;
    enum program program;
    struct life *life;
    id *first, *next;        /* linked lists of the tensors of each storage */
};

/* Reports whether `t` is dense, transient and covers its storage. */
static bool owns(const struct graph *g, id t)
{
    const struct tensor *x = tensor_at(g, t);
    const struct storage *s = &g->storages.at[x->storage];
    return s->kind == KIND_ACT && !x->loop && x->offset == 0 && tensor_is_dense(x) && tensor_bytes(x) == s->bytes;
}

/* Reports whether input `i` dies at `position`, in the loop in which it was written. */
static bool dies(const struct reuse *r, const struct node *n, int i, uint32_t position)
{
    id t = n->in[i], made = tensor_at(r->g, t)->node;
    const struct life *l = &r->life[tensor_at(r->g, t)->storage];
    return l->end == position && made && node_at(r->g, made)->loop == n->loop;
}

static bool fits(const struct reuse *r, const struct node *n, int o, int i, uint32_t position)
{
    const struct graph *g = r->g;
    id in = i < n->nin ? n->in[i] : 0, out = n->out[o];
    if (!in || !out || !owns(g, in) || !owns(g, out) || !dies(r, n, i, position)) return false;
    const struct tensor *a = tensor_at(g, in), *b = tensor_at(g, out);
    if (a->storage == b->storage || a->dtype != b->dtype || tensor_bytes(a) != tensor_bytes(b)) return false;
    if (g->storages.at[a->storage].space != g->storages.at[b->storage].space) return false;
    if (r->life[b->storage].start != position) return false;
    for (int k = 0; k < n->nout; k++) /* no two outputs reuse one input */
        if (k != o && n->out[k] && tensor_at(g, n->out[k])->storage == a->storage) return false;
    for (int k = 0; k < n->nin; k++) /* and the node reads the input once */
        if (k != i && n->in[k] && tensor_at(g, n->in[k])->storage == a->storage) return false;
    return true;
}

/* Moves all tensors of storage `from` to `to`. */
static void merge(struct reuse *r, id from, id to)
{
    id t = r->first[from];
    for (; t; t = r->next[t]) {
        tensor_at(r->g, t)->storage = to;
        if (!r->next[t]) break;
    }
    r->next[t] = r->first[to];
    r->first[to] = r->first[from];
    r->first[from] = 0;
    r->life[to].end = r->life[from].end;
    r->life[from].used = false;
}

static void reuse_in(struct reuse *r)
{
    struct graph *g = r->g;
    for (uint32_t k = 0; k < g->order[r->program].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[r->program].nodes.at[k]);
        for (int o = 0; o < n->nout; o++) {
            int alias = op_table[n->op].alias[o];
            if (alias >= 0) continue;
            int from = alias == ALIAS_ANY ? 0 : -alias - 1, to = alias == ALIAS_ANY ? n->nin - 1 : from;
            for (int i = from; i <= to; i++)
                if (fits(r, n, o, i, k)) {
                    merge(r, tensor_at(g, n->out[o])->storage, tensor_at(g, n->in[i])->storage);
                    break;
                }
        }
    }
}

void pass_reuse(struct graph *g, const struct settings *s)
{
    (void)s;
    struct reuse r = {.g = g};
    r.life = mem_alloc(g->storages.n * sizeof *r.life);
    r.first = mem_alloc(g->storages.n * sizeof *r.first);
    r.next = mem_alloc(g->tensors.n * sizeof *r.next);
    for (id t = 1; t < g->tensors.n; t++) {
        r.next[t] = r.first[tensor_at(g, t)->storage];
        r.first[tensor_at(g, t)->storage] = t;
    }
    for (r.program = 0; r.program < PROGRAM_COUNT; r.program++) {
        if (!g->order[r.program].nodes.n) continue;
        graph_lifetimes(g, r.program, r.life);
        reuse_in(&r);
    }
    mem_free(r.life);
    mem_free(r.first);
    mem_free(r.next);
}
