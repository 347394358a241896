/*
 * regions.c: see regions.h.
 */
#include "passes/regions.h"
#include "graph/ops.h"

/* --- who reads what -------------------------------------------------------------------------- */

#define FOR_FORWARD_NODES(g, n)                                                                                        \
    FOR_PROGRAMS(p_, PROGRAM_FORWARD)                                                                                  \
    for (uint32_t k_ = 0; k_ < (g)->order[p_].nodes.n; k_++)                                                           \
        for (id n = (g)->order[p_].nodes.at[k_], once_ = 1; once_; once_ = 0)

static void list_uses(struct regions *r)
{
    const struct graph *g = r->g;
    uint32_t *next = mem_alloc((g->tensors.n + 2) * sizeof *next);
    r->first = mem_alloc((g->tensors.n + 2) * sizeof *r->first);
    FOR_FORWARD_NODES(g, n)
    for (int i = 0; i < node_at(g, n)->nin; i++) r->first[node_at(g, n)->in[i] + 1]++;
    for (id t = 0; t <= g->tensors.n; t++) r->first[t + 1] += r->first[t];
    memcpy(next, r->first, (g->tensors.n + 2) * sizeof *next);
    r->uses = mem_alloc((r->first[g->tensors.n] + 1) * sizeof *r->uses);
    FOR_FORWARD_NODES(g, n)
    for (int i = 0; i < node_at(g, n)->nin; i++) r->uses[next[node_at(g, n)->in[i]]++] = (struct use){n, i};
    mem_free(next);
}

/* Returns the program that has a tensor among its outputs; PROGRAM_COUNT: none. */
static enum program output_of(const struct graph *g, id t)
{
    for (uint32_t i = 0; i < g->outputs.n; i++)
        if (g->outputs.at[i].tensor == t) return (enum program)g->outputs.at[i].program;
    return PROGRAM_COUNT;
}
static bool is_output(const struct graph *g, id t) { return output_of(g, t) != PROGRAM_COUNT; }

/* Reports whether a tensor in parts can be an output: the logits of texts that are generated are
 * gathered. */
static bool can_be_output(const struct regions *r, id t)
{
    const enum program p = output_of(r->g, t);
    return p == PROGRAM_COUNT || (r->vocabulary && program_is(p, PROGRAM_GENERATES));
}

enum { IN_THIS = 1, IN_ANOTHER };

/* --- growing a region ------------------------------------------------------------------------- */

static id tensor_in(const struct node *n, int slot) { return slot < MAX_IN ? n->in[slot] : n->out[slot - MAX_IN]; }

/* Reports whether a tensor without a producer can be in parts: a weight that is stored as it is
 * computed with, or a cache. */
static bool is_divisible_leaf(const struct graph *g, id t)
{
    const struct param *p = graph_param_of(g, t);
    if (storage_of(g, t)->kind == KIND_CACHE) return true;
    return p && storage_of(g, t)->kind == KIND_PARAM && !p->form && !p->running;
}

/* Cuts a tensor; false: it is cut otherwise, or cannot be. */
static bool add_tensor(struct regions *r, id t, const struct axis_cut *c)
{
    const struct graph *g = r->g;
    if (r->cut[t].sections) return axis_cuts_alike(&r->cut[t], c);
    if (r->partial[t] || !can_be_output(r, t) || (!tensor_at(g, t)->node && !is_divisible_leaf(g, t))) return false;
    for (int i = 0; i < c->sections; i++) {
        const int copies = c->section[i].copies;
        if ((!c->ragged && c->section[i].length % (r->parts / copies)) || copies != c->section[0].copies) return false;
        if (copies % r->here && r->here % copies) return false;
    }
    r->cut[t] = *c;
    vec_push(&r->touched, t);
    return true;
}

static int by_start(const void *a, const void *b)
{
    const struct attr_slice *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

/* Adds a section, or the sections of a part; false: there are too many. */
static bool add_sections(struct axis_cut *c, int64_t length, const struct axis_cut *part)
{
    const struct axis_cut one = {.sections = 1, .section = {{length, 1}}};
    if (!part) part = &one;
    for (int i = 0; i < part->sections; i++) {
        if (c->sections == SECTIONS_MOST) return false;
        c->section[c->sections++] = part->section[i];
    }
    return true;
}

/* Returns the cut of a tensor whose slices along an axis are read: each is a section, and so is
 * what lies between them; the slice `of` has the sections `known`. sections 0: there is none. */
static struct axis_cut cut_of_slices(const struct regions *r, id t, const struct attr_slice *of,
                                     const struct axis_cut *known)
{
    const struct graph *g = r->g;
    struct attr_slice slice[SECTIONS_MOST + 1] = {*of};
    struct axis_cut c = {.axis = of->axis};
    const int64_t length = tensor_at(g, t)->dim[of->axis];
    int64_t at = 0;
    int n = 1;
    for (uint32_t u = r->first[t]; u < r->first[t + 1]; u++) {
        const struct attr_slice *s = &node_at(g, r->uses[u].node)->attr.slice;
        if (node_at(g, r->uses[u].node)->op != OP_SLICE || s->axis != of->axis) continue;
        int k = 0;
        while (k < n && (slice[k].start != s->start || slice[k].length != s->length)) k++;
        if (k == SECTIONS_MOST) return (struct axis_cut){0};
        slice[k] = *s;
        n += k == n;
    }
    qsort(slice, (size_t)n, sizeof *slice, by_start);
    slice[n] = (struct attr_slice){.start = length};
    for (int i = 0; i <= n; i++) {
        const bool given = i < n && slice[i].start == of->start && slice[i].length == of->length;
        if (slice[i].start < at || (slice[i].start > at && !add_sections(&c, slice[i].start - at, NULL)) ||
            (i < n && !add_sections(&c, slice[i].length, given ? known : NULL)))
            return (struct axis_cut){0};
        at = slice[i].start + slice[i].length;
    }
    return c;
}

/* Returns the end of what a product along K gives: it may pass COMBINE, which is linear in it, so
 * that fewer rows are added. */
static id partial_end(struct regions *r, id t)
{
    const struct graph *g = r->g;
    const bool once = r->first[t + 1] == r->first[t] + 1;
    const struct use *u = &r->uses[r->first[t]];
    if (!once || node_at(g, u->node)->op != OP_COMBINE || u->slot || r->inside[u->node] || is_output(g, t)) return t;
    r->inside[u->node] = IN_THIS;
    r->known[u->node] = 0;
    vec_push(&r->nodes, u->node);
    r->partial[t] = true;
    vec_push(&r->touched, t);
    return node_at(g, u->node)->out[0];
}

static bool add_partial(struct regions *r, id t)
{
    if (r->partial[t] || r->cut[t].sections) return false;
    t = partial_end(r, t);
    r->partial[t] = true;
    vec_push(&r->touched, t);
    return true;
}

/* Checks that a node reads whole what is whole. */
static bool is_consistent(const struct regions *r, id node)
{
    const struct node *n = node_at(r->g, node);
    if (n->op == OP_XENT || (n->op == OP_COMBINE && r->partial[n->in[0]])) return true;
    const struct node_cut c = regions_cut(r, node);
    for (int k = 0; k < n->nin + n->nout; k++) {
        const int at = k < n->nin ? k : MAX_IN + k - n->nin;
        const id t = tensor_in(n, at);
        if (t && !axis_cuts_alike(&c.tensor[at], &r->cut[t]) && (c.tensor[at].sections || r->cut[t].sections))
            return false;
        if (t && k < n->nin && r->partial[t]) return false;
    }
    return true;
}

/* Adds a node, of which the tensor in a slot is cut, and cuts its other tensors. */
static bool visit(struct regions *r, id node, int slot)
{
    const struct graph *g = r->g;
    const struct node *n = node_at(g, node);
    const id from = tensor_in(n, slot);
    struct node_cut c;
    if (r->inside[node] == IN_ANOTHER) return is_consistent(r, node);
    if (r->inside[node]) return true; /* checked at the end */
    if ((!graph_block_of(g, n->scope) && !r->vocabulary) || n->loop) return false;
    if (n->op == OP_XENT && !slot && r->cut[from].axis == tensor_at(g, from)->rank - 1) {
        r->inside[node] = IN_THIS;
        vec_push(&r->nodes, node);
        return true;
    }
    if (n->op == OP_SLICE && slot >= MAX_IN && r->cut[from].axis == n->attr.slice.axis) {
        memset(&c, 0, sizeof c);
        c.tensor[slot] = r->cut[from];
        c.tensor[0] = cut_of_slices(r, n->in[0], &n->attr.slice, &r->cut[from]);
        const struct axis_cut part = axis_cut_part(&c.tensor[0], n->attr.slice.start, n->attr.slice.length);
        if (!c.tensor[0].sections || !axis_cuts_alike(&part, &r->cut[from])) return false;
    } else if (!node_cut(g, n, slot, &r->cut[from], r->parts, &c)) return false;
    r->inside[node] = IN_THIS;
    r->known[node] = (uint8_t)slot;
    vec_push(&r->nodes, node);
    for (int k = 0; k < n->nin + n->nout; k++) {
        const int at = k < n->nin ? k : MAX_IN + k - n->nin;
        if (tensor_in(n, at) && c.tensor[at].sections && !add_tensor(r, tensor_in(n, at), &c.tensor[at])) return false;
    }
    for (int o = 0; o < n->nout && c.partial; o++)
        if (n->out[o] && !c.tensor[MAX_IN + o].sections && !add_partial(r, n->out[o])) return false;
    return true;
}

static bool grow(struct regions *r, id t, const struct axis_cut *c)
{
    if (!add_tensor(r, t, c)) return false;
    for (uint32_t i = 0; i < r->touched.n; i++) {
        const id x = r->touched.at[i], made = tensor_at(r->g, x)->node;
        if (r->partial[x]) continue;
        for (int o = 0; made && o < node_at(r->g, made)->nout; o++)
            if (node_at(r->g, made)->out[o] == x && !visit(r, made, MAX_IN + o)) return false;
        for (uint32_t u = r->first[x]; u < r->first[x + 1]; u++)
            if (!visit(r, r->uses[u].node, r->uses[u].slot)) return false;
    }
    for (uint32_t i = 0; i < r->nodes.n; i++)
        if (!is_consistent(r, r->nodes.at[i])) return false;
    return true;
}

static void forget(struct regions *r)
{
    for (uint32_t i = 0; i < r->touched.n; i++) {
        r->cut[r->touched.at[i]] = (struct axis_cut){0};
        r->partial[r->touched.at[i]] = false;
    }
    for (uint32_t i = 0; i < r->nodes.n; i++) r->inside[r->nodes.at[i]] = 0;
}

/* --- all of them ------------------------------------------------------------------------------ */

struct node_cut regions_cut(const struct regions *r, id node)
{
    const struct node *n = node_at(r->g, node);
    const int slot = r->known[node];
    struct node_cut c;
    memset(&c, 0, sizeof c);
    if (n->op == OP_COMBINE && r->partial[n->in[0]]) {
        c.partial = true;
        return c;
    }
    if (n->op == OP_SLICE && slot >= MAX_IN && r->cut[n->out[0]].axis == n->attr.slice.axis) {
        c.tensor[0] = r->cut[n->in[0]];
        c.tensor[slot] = r->cut[n->out[0]];
        return c;
    }
    CHECK(node_cut(r->g, n, slot, &r->cut[tensor_in(n, slot)], r->parts, &c), "%s was cut", op_table[n->op].name);
    return c;
}

/* Reports whether a program reads a table only in this node. A table that it reads several times,
 * as positions between others do, would take a sum over the parts for each. */
static bool is_read_once(const struct regions *r, id node, id table)
{
    const struct node *n = node_at(r->g, node);
    for (uint32_t u = r->first[table]; u < r->first[table + 1]; u++) {
        const struct node *other = node_at(r->g, r->uses[u].node);
        if (r->uses[u].node != node && other->op == OP_EMBEDDING && other->program == n->program) return false;
    }
    return true;
}

/* Returns what the region of a vocabulary begins with: the logits of a cross-entropy, or the table
 * of an embedding, with several rows for each part; 0: the node has neither. */
static id vocabulary_of(const struct regions *r, id node, struct axis_cut *c)
{
    enum { ROWS_LEAST = 16 };
    const struct node *n = node_at(r->g, node);
    const bool loss = n->op == OP_XENT;
    if ((!loss && n->op != OP_EMBEDDING) || r->inside[node]) return 0;
    if (!loss && !is_read_once(r, node, n->in[1])) return 0;
    const struct tensor *t = tensor_at(r->g, n->in[!loss]);
    const int64_t length = loss ? tensor_last(t) : t->dim[0];
    *c = (struct axis_cut){.axis = (uint8_t)(loss ? t->rank - 1 : 0),
                           .sections = 1,
                           .ragged = length % r->parts,
                           .section = {{length, 1}}};
    return length >= ROWS_LEAST * r->parts ? n->in[!loss] : 0;
}

/* Grows a region from a tensor, or forgets it. */
static void find_from(struct regions *r, id t, const struct axis_cut *c, bool vocabulary)
{
    r->touched.n = r->nodes.n = 0;
    r->vocabulary = vocabulary;
    if (!grow(r, t, c)) {
        forget(r);
        return;
    }
    for (uint32_t i = 0; i < r->nodes.n; i++) r->inside[r->nodes.at[i]] = IN_ANOTHER;
    r->found += !vocabulary;
}

/* Reports whether a region may end with the node: a product of a block, and not of an adapter,
 * whose inner width is small. */
static bool may_end(const struct regions *r, id node)
{
    const struct node *n = node_at(r->g, node);
    const struct param *p = n->nin > 1 ? graph_param_of(r->g, n->in[1]) : NULL;
    return (!p || !p->added) && (n->op == OP_LINEAR || n->op == OP_GROUPED_LINEAR) && graph_block_of(r->g, n->scope) &&
           !r->inside[node] && (n->nin < 4 || !n->in[3]) && tensor_at(r->g, n->in[0])->node;
}

void regions_find(struct regions *r, const struct graph *g, int parts, int here)
{
    *r = (struct regions){.g = g,
                          .parts = parts,
                          .here = here,
                          .cut = mem_alloc(g->tensors.n * sizeof *r->cut),
                          .partial = mem_alloc(g->tensors.n),
                          .inside = mem_alloc(g->nodes.n),
                          .known = mem_alloc(g->nodes.n)};
    list_uses(r);
    FOR_FORWARD_NODES(g, n)
    {
        if (!may_end(r, n)) continue;
        const struct tensor *x = tensor_at(g, node_at(g, n)->in[0]);
        const struct axis_cut c = axis_cut_even(x->rank - 1, tensor_last(x), parts);
        if (c.sections) find_from(r, node_at(g, n)->in[0], &c, false);
    }
    FOR_FORWARD_NODES(g, n)
    {
        struct axis_cut c;
        const id t = vocabulary_of(r, n, &c);
        if (t) find_from(r, t, &c, true);
    }
}

void regions_free(struct regions *r)
{
    mem_free(r->cut);
    mem_free(r->partial);
    mem_free(r->inside);
    mem_free(r->known);
    mem_free(r->first);
    mem_free(r->uses);
    vec_free(&r->touched);
    vec_free(&r->nodes);
}
