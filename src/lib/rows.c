/*
 * rows.c: checks the scopes with PL_ROWS of a user's model, so that the passes can run them over
 * chunks of their rows (passes/techniques/chunk.c).
 *
 * What such a scope reads of the batch has rows first: `rows` of them, or a multiple. So has
 * everything that it computes from these, but for scalars, which are sums. Only scalars leave it,
 * and what pl_output names; on their way to the loss they are added and scaled, so that their
 * gradients are known before the scope runs (graph/autodiff.c).
 */
#include "plimsoll.h"

#include "lib/session.h"

#include "graph/ops.h"
#include "passes/uses.h"

struct checking {
    struct graph *g;
    enum program program;
    id scope;
    int64_t rows;      /* 0: it reads nothing with rows */
    bool *from_batch;  /* by tensor */
    bool *inside;      /* by tensor: the scope makes it */
    bool *has_rows;    /* by tensor: it is made from rows */
};

static const struct node *node_of(const struct checking *c, uint32_t k)
{
    return node_at(c->g, c->g->order[c->program].nodes.at[k]);
}
static bool is_in(const struct checking *c, const struct node *n) { return graph_rows_of(c->g, n->scope) == c->scope; }
static const char *name_of(const struct checking *c) { return graph_name(c->g, c->g->scopes.at[c->scope].name); }

static bool is_read(const struct checking *c, id t)
{
    const struct tensor *x = tensor_at(c->g, t);
    return t && c->from_batch[t] && !c->inside[t] && x->rank && x->dim[0] > 1;
}

/* Finds the rows of the scope: the smallest first dimension that is read counts them. Fails unless
 * the scope's nodes follow one another. */
static void find_rows(struct checking *c)
{
    const uint32_t count = c->g->order[c->program].nodes.n;
    uint32_t end = 0;
    for (uint32_t k = 0; k < count; k++) {
        const struct node *n = node_of(c, k);
        if (!is_in(c, n)) continue;
        if (end && end != k)
            graph_fail(c->g, "scope %s has PL_ROWS and is opened twice; expected its ops to follow one another",
                       name_of(c));
        end = k + 1;
        for (int o = 0; o < n->nout; o++) c->inside[n->out[o]] = n->out[o] != 0;
    }
    for (uint32_t k = 0; k < count; k++)
        for (int i = 0; i < node_of(c, k)->nin && is_in(c, node_of(c, k)); i++) {
            const id t = node_of(c, k)->in[i];
            if (is_read(c, t) && (!c->rows || tensor_at(c->g, t)->dim[0] < c->rows))
                c->rows = tensor_at(c->g, t)->dim[0];
        }
}

static void check_node(struct checking *c, const struct node *n)
{
    char text[160];
    bool has_rows = false;
    for (int i = 0; i < n->nin; i++) {
        if (is_read(c, n->in[i]) && tensor_at(c->g, n->in[i])->dim[0] % c->rows)
            graph_fail(c->g,
                       "scope %s has PL_ROWS and reads %s; expected %lld rows, as another input has, or a multiple",
                       name_of(c), tensor_print(c->g, n->in[i], text), (long long)c->rows);
        has_rows |= n->in[i] && (c->has_rows[n->in[i]] || is_read(c, n->in[i]));
    }
    for (int o = 0; o < n->nout; o++) {
        const struct tensor *x = tensor_at(c->g, n->out[o]);
        if (!n->out[o] || !has_rows || !x->rank) continue;
        c->has_rows[n->out[o]] = true;
        if (x->dim[0] % c->rows)
            graph_fail(c->g, "scope %s has PL_ROWS, and %s of it gives %s; expected the %lld rows first, or a multiple",
                       name_of(c), op_table[n->op].name, tensor_print(c->g, n->out[o], text), (long long)c->rows);
    }
}

/* Checks a node after the scope that reads a result of it, or a sum of results, and marks what the
 * node computes as such a sum. */
static void check_reader(struct checking *c, const struct node *n, id t)
{
    char text[160];
    if (tensor_at(c->g, t)->rank)
        graph_fail(c->g, "scope %s has PL_ROWS, and %s leaves it; expected scalars, which are sums over its rows",
                   name_of(c), tensor_print(c->g, t, text));
    if (n->op != OP_ADD && n->op != OP_SCALE)
        graph_fail(c->g,
                   "scope %s has PL_ROWS, and %s reads its result; expected pl_add or pl_scale, and pl_per_count "
                   "within the scope",
                   name_of(c), op_table[n->op].name);
    for (int o = 0; o < n->nout; o++) c->inside[n->out[o]] = n->out[o] != 0;
}

/* Checks what is read after the scope, or named as an output. */
static void check_results(struct checking *c)
{
    char text[160];
    for (uint32_t k = 0; k < c->g->order[c->program].nodes.n; k++)
        for (int i = 0; i < node_of(c, k)->nin && !is_in(c, node_of(c, k)); i++)
            if (node_of(c, k)->in[i] && c->inside[node_of(c, k)->in[i]])
                check_reader(c, node_of(c, k), node_of(c, k)->in[i]);
    for (uint32_t i = 0; i < c->g->outputs.n; i++) {
        const id t = c->g->outputs.at[i].tensor;
        const struct tensor *x = tensor_at(c->g, t);
        if (!c->inside[t] || !x->rank) continue;
        if (!c->has_rows[t] || x->offset || tensor_bytes(x) != storage_of(c->g, t)->bytes)
            graph_fail(c->g, "scope %s has PL_ROWS, and the output %s is a part of a tensor, or has no rows",
                       name_of(c), tensor_print(c->g, t, text));
    }
}

static void check_scope(struct graph *g, enum program p, id scope)
{
    struct checking c = {.g = g, .program = p, .scope = scope, .from_batch = tensors_from_batch(g, p),
                         .inside = mem_alloc(g->tensors.n), .has_rows = mem_alloc(g->tensors.n)};
    find_rows(&c);
    for (uint32_t k = 0; k < g->order[p].nodes.n && c.rows; k++)
        if (is_in(&c, node_of(&c, k))) check_node(&c, node_of(&c, k));
    if (c.rows) check_results(&c);
    mem_free(c.from_batch);
    mem_free(c.inside);
    mem_free(c.has_rows);
}

void builder_check_rows(struct graph *g, enum program p)
{
    for (id s = 1; s < g->scopes.n && !g->error.code; s++)
        if (g->scopes.at[s].flags & SCOPE_ROWS && graph_rows_of(g, s) == s) check_scope(g, p, s);
}
