/*
 * recompute_units.c: which nodes are recomputed together.
 *
 *     chain     blocks under the same rule with the same name except for the number, in the order
 *               of the forward: model.layers.0, model.layers.1, ...
 *     unit      nodes that are recomputed at once: a block, a part of one (+halves), or a run of
 *               several (segments)
 *
 *     blocks of a chain    0   1   2   3   4   5   6
 *     all                 [0] [1] [2] [3] [4] [5] [6]
 *     every:3             [0]         [3]         [6]
 *     ratio:0.5, first:4  [0] [1] [2] [3]                 the first ones: their backward is last,
 *     segments:3          [0   1] [2   3] [4   5   6]     when the others have freed their memory
 *
 * Parts are the scopes within a block. Nodes of the block between two parts belong to the part
 * before them. Chains are counted separately: a vision tower and a language model, the stages of a
 * pyramid, an encoder and a decoder.
 */
#include <ctype.h>
#include <math.h>

#include "passes/techniques/recompute.h"

struct chain {
    const char *name;  /* of its first block... */
    size_t stem;       /* ...and the length of the common prefix */
    uint32_t rule;
    uint32_t blocks;
};

/* All by scope. */
struct finder {
    const struct graph *g;
    const struct settings *s;
    uint32_t *rule;    /* 0: the global settings, else modules[rule - 1] */
    id *block, *part;  /* the block around it, and the child of the block around it; 0: none */
    id *first_part;    /* by block: its first part with nodes */
    bool *seen;        /* a block with nodes */
    uint32_t *chain, *index; /* by block: its chain, and its index there */
    uint32_t *unit;    /* by block or part; 0: none yet */
    VEC(struct chain) chains;
};

static struct recompute recompute_of(const struct finder *f, uint32_t rule)
{
    return rule ? f->s->modules[rule - 1].recompute : f->s->recompute;
}

/* --- scopes --------------------------------------------------------------------------- */

static uint32_t rule_of(const struct settings *s, const struct graph *g, id scope)
{
    for (uint32_t i = s->n_modules; i-- > 0;)
        if (s->modules[i].has_recompute && module_matches(&s->modules[i], g, scope)) return i + 1;
    return 0;
}

static void read_scopes(struct finder *f)
{
    const struct graph *g = f->g;
    for (id s = 1; s < g->scopes.n; s++) {
        f->rule[s] = rule_of(f->s, g, s);
        f->block[s] = graph_block_of(g, s);
        if (!f->block[s] || f->block[s] == s) continue;
        for (f->part[s] = s; g->scopes.at[f->part[s]].parent != f->block[s];)
            f->part[s] = g->scopes.at[f->part[s]].parent;
    }
}

/* Returns the length of the prefix that the blocks of a chain share: all before the number, or
 * before the last component of a name without a number. */
static size_t stem_of(const char *name)
{
    size_t n = strlen(name), k = n;
    while (k && isdigit((unsigned char)name[k - 1])) k--;
    if (k < n) return k;
    while (k && name[k - 1] != '.') k--;
    return k;
}

/* --- chains --------------------------------------------------------------------------- */

static uint32_t chain_of(struct finder *f, id block)
{
    const char *name = graph_name(f->g, f->g->scopes.at[block].name);
    size_t stem = stem_of(name);
    for (uint32_t c = 0; c < f->chains.n; c++) {
        const struct chain *x = &f->chains.at[c];
        if (x->rule == f->rule[block] && x->stem == stem && !strncmp(x->name, name, stem)) return c;
    }
    vec_push(&f->chains, ((struct chain){name, stem, f->rule[block], 0}));
    return f->chains.n - 1;
}

/* Gives each block its chain and its index in it, in the order of the forward. */
static void number_blocks(struct finder *f)
{
    const struct graph *g = f->g;
    const struct order *order = &g->order[PROGRAM_STEP];
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        id block = f->block[n->scope];
        if (!block || n->phase != PHASE_FORWARD) continue;
        if (!f->first_part[block]) f->first_part[block] = f->part[n->scope];
        if (f->seen[block]) continue;
        f->seen[block] = true;
        f->chain[block] = chain_of(f, block);
        f->index[block] = f->chains.at[f->chain[block]].blocks++;
    }
}

/* Reports whether block i of L is recomputed. */
static bool is_chosen(const struct recompute *r, uint32_t i, uint32_t L)
{
    switch (r->kind) {
    case RECOMPUTE_ALL:
    case RECOMPUTE_SEGMENTS:
        return true;
    case RECOMPUTE_EVERY:
        return i % (uint32_t)r->n == 0;
    case RECOMPUTE_RATIO: /* a product such as 0.7 * 10 may exceed 7 by rounding */
        return i < (uint32_t)ceil(r->ratio * L - 1e-9);
    case RECOMPUTE_FIRST:
        return i < (uint32_t)r->n;
    default:
        return false;
    }
}

/* Returns the run of block i: there are K runs of L / K blocks, and the last one takes the
 * remainder. */
static uint32_t run_of(const struct recompute *r, uint32_t i, uint32_t L)
{
    uint32_t K = (uint32_t)r->n < L ? (uint32_t)r->n : L, run = i / (L / K);
    return run < K ? run : K - 1;
}

/* --- nodes ----------------------------------------------------------------------------- */

static uint32_t numbered(struct units *u, uint32_t *at)
{
    if (!*at) *at = ++u->n;
    return *at;
}

/* Returns the unit of a forward node in a block; 0: it is not recomputed. `last`: by block, the
 * previous part; `runs`: the unit by chain and run. */
static uint32_t unit_of(struct units *u, struct finder *f, id scope, id *last, uint32_t *const *runs)
{
    id block = f->block[scope], part = f->part[scope];
    struct recompute r = recompute_of(f, f->rule[block]);
    uint32_t L = f->chains.at[f->chain[block]].blocks, i = f->index[block];
    if (part) last[block] = part;
    if (!is_chosen(&r, i, L)) return 0;
    if (r.kind == RECOMPUTE_SEGMENTS) return numbered(u, &runs[f->chain[block]][run_of(&r, i, L)]);
    if (!r.halves) return numbered(u, &f->unit[block]);
    if (!part) part = last[block] ? last[block] : f->first_part[block];
    return numbered(u, &f->unit[part ? part : block]);
}

static void assign(struct units *u, struct finder *f)
{
    const struct graph *g = f->g;
    const struct order *order = &g->order[PROGRAM_STEP];
    id *last = mem_alloc(g->scopes.n * sizeof *last);
    uint32_t **runs = mem_alloc((f->chains.n + 1) * sizeof *runs);
    for (uint32_t c = 0; c < f->chains.n; c++) runs[c] = mem_alloc(f->chains.at[c].blocks * sizeof **runs);
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        id node = order->nodes.at[k], scope = node_at(g, node)->scope;
        if (node_at(g, node)->phase != PHASE_FORWARD) continue;
        if (f->block[scope]) u->of[node] = unit_of(u, f, scope, last, runs);
        struct recompute r = recompute_of(f, f->rule[scope]);
        u->selective[node] = r.kind == RECOMPUTE_SELECTIVE || (r.selective && !u->of[node]);
        u->any |= u->selective[node];
    }
    for (uint32_t c = 0; c < f->chains.n; c++) mem_free(runs[c]);
    mem_free(runs);
    mem_free(last);
}

void units_find(struct units *u, const struct graph *g, const struct settings *s)
{
    size_t n = g->scopes.n;
    struct finder f = {.g = g, .s = s};
    *u = (struct units){.of = mem_alloc(g->nodes.n * sizeof *u->of), .selective = mem_alloc(g->nodes.n)};
    /* One allocation for all arrays by scope. */
    uint32_t *by_scope = mem_alloc(7 * n * sizeof *by_scope);
    f.rule = by_scope, f.block = f.rule + n, f.part = f.block + n, f.first_part = f.part + n;
    f.chain = f.first_part + n, f.index = f.chain + n, f.unit = f.index + n;
    f.seen = mem_alloc(n);
    read_scopes(&f);
    number_blocks(&f);
    assign(u, &f);
    vec_free(&f.chains);
    mem_free(f.seen);
    mem_free(by_scope);
}

void units_free(struct units *u)
{
    mem_free(u->of);
    mem_free(u->selective);
}
