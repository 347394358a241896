/*
 * reduce.c: data parallel training, the part between ranks. Program update begins with
 *
 *     each gradient: ALL_REDUCE                    the tree of shares.c goes on over ranks
 *     SQUARES of each gradient, by cells           instead of SUMSQ
 *     TOTAL of all cells
 *
 * The norm is computed by cells of weights, in an order that does not know who holds a cell. So the
 * clip factor, GUARD and SCALER have the same bits on every rank, and on any number of ranks: all
 * of them update a step, or none does. A rank with one share keeps SUMSQ, and with it the bits that
 * it had before.
 *
 * With one rank and several shares only the norm is replaced.
 *
 * Where a rank computes one micro-batch a step, a gradient is complete in the middle of the
 * backward, and ALL_REDUCE stands behind the block that completes it: a GPU sends it beside the
 * backward of the next blocks. Sums and bits are the same.
 */
#include "graph/division.h"
#include "graph/ops.h"
#include "graph/sizes.h"
#include "passes/passes.h"
#include "passes/uses.h"

struct reduce {
    struct graph *g;
    int ranks, host;     /* over which sums are left to make, as in attr.group; 0: none */
    VEC(id) gradients;   /* in the order of the update */
    VEC(uint32_t) params; /* those that they are the gradients of */
    VEC(id) rest;        /* nodes of the update without the old norm */
    id sum;              /* of squares, as SUMSQ leaves it */
    int tensor;          /* ranks of AXIS_TENSOR */
};

/* Takes the chain of SUMSQ out of program update. */
static void take_norm(struct reduce *r)
{
    const struct graph *g = r->g;
    const struct order *order = &g->order[PROGRAM_UPDATE];
    uint32_t *of = mem_alloc(g->tensors.n * sizeof *of); /* by gradient */
    id zero = 0;
    for (uint32_t i = 0; i < g->params.n; i++) of[g->params.at[i].grad] = i;
    for (uint32_t k = 0; k < order->nodes.n; k++) {
        const struct node *n = node_at(g, order->nodes.at[k]);
        if (n->op != OP_SUMSQ) continue;
        if (!zero) zero = tensor_at(g, n->in[1])->node;
        vec_push(&r->gradients, n->in[0]);
        vec_push(&r->params, of[n->in[0]]);
        r->sum = n->out[0];
    }
    for (uint32_t k = 0; k < order->nodes.n; k++)
        if (node_at(g, order->nodes.at[k])->op != OP_SUMSQ && order->nodes.at[k] != zero)
            vec_push(&r->rest, order->nodes.at[k]);
    mem_free(of);
}

/* Sums of the gradients over ranks; the nodes of `rest` read them instead. */
static void all_reduce(struct reduce *r)
{
    struct graph *g = r->g;
    id *instead = mem_alloc(g->tensors.n * sizeof *instead); /* by tensor; 0: itself */
    for (uint32_t i = 0; i < r->gradients.n; i++) {
        const id x = r->gradients.at[i],
                 sum = op_apply(g, OP_ALL_REDUCE, &(union attr){.group = {.ranks = r->ranks, .host = r->host}},
                                (id[]){x}, 1);
        if (!instead[x]) instead[x] = sum;
        r->gradients.at[i] = sum;
    }
    for (uint32_t k = 0; k < r->rest.n; k++) {
        struct node *n = node_at(g, r->rest.at[k]);
        for (int i = 0; i < n->nin; i++)
            if (instead[n->in[i]]) n->in[i] = instead[n->in[i]];
    }
    mem_free(instead);
}

/* Returns the place of a gradient's cells: those of a divided weight follow each other, part by
 * part. *cells counts all so far; first[param]: 1 + the first cell of the weight; 0: none yet. */
static int64_t place_cells(const struct graph *g, uint32_t param, int64_t *first, int64_t *cells)
{
    const struct param *p = &g->params.at[param];
    const struct division *d = division_of(g, p->master);
    const int64_t n = tensor_elements(tensor_at(g, p->grad));
    int64_t *at = &first[p->main ? p->main - 1 : param];
    if (!*at) {
        *at = 1 + *cells;
        *cells += ceil_div(n, weight_cell(n)) * (d ? d->parts / d->section[0].copies : 1);
    }
    return *at - 1;
}

/* Returns the part of a weight that a gradient is of. One that is not divided is the same on all
 * ranks of AXIS_TENSOR. */
static struct part_number part_of_gradient(const struct reduce *r, const struct param *p)
{
    const struct part_number of = division_number(r->g, p->master);
    return of.here || r->tensor < 2 ? of : (struct part_number){0, 1, r->tensor};
}

static id emit_norm(struct reduce *r)
{
    struct graph *g = r->g;
    int64_t cells = 0, *first = mem_alloc((g->params.n + 1) * sizeof *first),
            *at = mem_alloc((r->gradients.n + 1) * sizeof *at);
    for (uint32_t i = 0; i < r->gradients.n; i++) at[i] = place_cells(g, r->params.at[i], first, &cells);
    id all = op_fill(g, DT_F64, 1, &cells, 0);
    for (uint32_t i = 0; i < r->gradients.n; i++) {
        const int64_t cell = weight_cell(tensor_elements(tensor_at(g, r->gradients.at[i])));
        const struct part_number part = part_of_gradient(r, &g->params.at[r->params.at[i]]);
        all =
            op_apply(g, OP_SQUARES, &(union attr){.squares = {at[i], cell, .of = {part.part, part.here, part.copies}}},
                     (id[]){r->gradients.at[i], all}, 2);
    }
    mem_free(first);
    mem_free(at);
    if (r->tensor > 1)
        all = op_apply(g, OP_ALL_REDUCE, &(union attr){.group = {r->tensor, AXIS_TENSOR}}, (id[]){all}, 1);
    return op_apply(g, OP_TOTAL, NULL, (id[]){all}, 1);
}

/* --- beside the backward ---------------------------------------------------------------------- */

/* A gradient's ALL_REDUCE, to insert before the node at a position of the step. */
struct sent {
    uint32_t at, turn;
    id node;
};

static int by_position(const void *a, const void *b)
{
    const struct sent *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->turn < y->turn ? -1 : x->turn > y->turn;
}

/* Reports whether the step adds gradients over ranks itself, during the backward: with one
 * micro-batch and one share. Levels of sharding have collectives of their own. */
static bool is_early(const struct settings *s)
{
    return settings_group(s) && s->shard == SHARD_NONE && s->accumulation <= 1 && s->shares <= 1;
}

/* Returns, by storage, the position of the last node of the step that touches it. The gradient of a
 * weight that is added to an activation may be that activation's too, which the backward goes on
 * reading. */
static uint32_t *last_uses(const struct graph *g)
{
    uint32_t *last = mem_alloc(g->storages.n * sizeof *last);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        for (int i = 0; i < n->nin; i++) last[tensor_at(g, n->in[i])->storage] = k;
        for (int o = 0; o < n->nout; o++) last[tensor_at(g, n->out[o])->storage] = k;
    }
    return last;
}

static void reduce_early(struct graph *g, int ranks, int host)
{
    struct order *order = &g->order[PROGRAM_STEP];
    uint32_t *last = last_uses(g), next = 0;
    VEC(struct sent) list = {0};
    struct cursor before = graph_move(g, PROGRAM_STEP, PHASE_BACKWARD, "reduce");
    for (uint32_t i = 0; i < g->params.n; i++) {
        const id whole = g->params.at[i].grad;
        if (!whole) continue;
        const uint32_t k = last[tensor_at(g, whole)->storage];
        g->at.scope = node_at(g, order->nodes.at[k])->scope;
        const id sum =
            op_apply(g, OP_ALL_REDUCE, &(union attr){.group = {.ranks = ranks, .host = host}}, (id[]){whole}, 1);
        if (!sum) break;
        vec_push(&list, ((struct sent){block_end(g, PROGRAM_STEP, k, 0), list.n, order->nodes.at[--order->nodes.n]}));
        graph_replace(g, PROGRAM_UPDATE, whole, sum);
        g->params.at[i].grad = sum;
    }
    if (list.n) qsort(list.at, list.n, sizeof *list.at, by_position);
    const uint32_t n = order->nodes.n;
    id *old = mem_copy(order->nodes.at, n * sizeof *old);
    order->nodes.n = 0;
    for (uint32_t k = 0; k <= n; k++) {
        while (next < list.n && list.at[next].at == k) vec_push(&order->nodes, list.at[next++].node);
        if (k < n) vec_push(&order->nodes, old[k]);
    }
    mem_free(old);
    mem_free(last);
    vec_free(&list);
    g->at = before;
}

void pass_reduce(struct graph *g, const struct settings *s)
{
    if (!s->train || (!settings_group(s) && s->shares <= 1 && settings_tensor_parts(s) < 2) || g->error.code) return;
    const bool early = is_early(s);
    if (early) reduce_early(g, settings_group(s), settings_host(s));
    struct reduce r = {.g = g, .ranks = early ? 0 : settings_group(s), .host = settings_host(s), .tensor = s->tensor};
    struct order *order = &g->order[PROGRAM_UPDATE];
    struct cursor before = graph_move(g, PROGRAM_UPDATE, PHASE_UPDATE, "reduce");
    take_norm(&r);
    order->nodes.n = 0;
    if (r.ranks) all_reduce(&r);
    const id total = r.gradients.n ? emit_norm(&r) : 0;
    for (uint32_t k = 0; k < r.rest.n; k++) vec_push(&order->nodes, r.rest.at[k]);
    if (total) graph_replace(g, PROGRAM_UPDATE, r.sum, total);
    vec_free(&r.gradients);
    vec_free(&r.params);
    vec_free(&r.rest);
    g->at = before;
}
