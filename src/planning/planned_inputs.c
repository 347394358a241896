/*
 * planned_inputs.c: the shares of a step, the ranks that have them, and its inputs as they are
 * planned: their samples, ids and bytes (see planned.h).
 *
 *     an input's storage   | micro-batch 0 | micro-batch 1 | ... | n-1 |
 *     step program           the loop walks over all of them
 *     evaluation program     reads the first one
 *
 * An input [T,B,C] has its micro-batches one after the other too, each [T,b,C]. An input that all
 * samples share exists once.
 */
#include "graph/ops.h"
#include "cost/links.h"
#include "planning/stages.h"
#include "run/ranks.h"

/* --- ranks and shares ----------------------------------------------------------------------- */

int planned_world(const struct planned *r)
{
    return r->ranks ? r->ranks->n : r->trains && r->config->parallel_ranks > 0 ? (int)r->config->parallel_ranks : 1;
}

struct mesh planned_mesh(const struct planned *r)
{
    return (struct mesh){.tensor = r->trains ? r->tensor : 1};
}

int planned_data_ranks(const struct planned *r) { return mesh_line(planned_mesh(r), planned_world(r), AXIS_DATA); }

/* Returns the place of this rank among those that have other samples. */
static int data_place(const struct planned *r)
{
    return r->ranks ? mesh_place(planned_mesh(r), r->ranks->rank, AXIS_DATA) : 0;
}

bool planned_speaks(const struct planned *r)
{
    return !r->ranks || mesh_place(planned_mesh(r), r->ranks->rank, AXIS_TENSOR) == 0;
}

int planned_host_ranks(const struct planned *r)
{
    const int n = planned_world(r);
    return r->ranks                           ? (int)max_i64(1, r->ranks->local)
           : r->config->parallel_per_host > 0 ? (int)min_i64(n, r->config->parallel_per_host)
                                              : n;
}

/* Checks that the ranks are a mesh. */
static int check_mesh(const struct config *c, int64_t ranks, int64_t tensor, struct error *e)
{
    const int64_t parts = c->parallel_tensor_shares > 0 ? c->parallel_tensor_shares : tensor;
    if (ranks % tensor) {
        error_set(e, PL_USAGE,
                  "parallel.tensor is %lld, which does not divide the %lld ranks: every group of ranks "
                  "that compute together has the same number of them",
                  (long long)tensor, (long long)ranks);
        return config_at_key(c, KEY_parallel_tensor, e);
    }
    if (parts % tensor) {
        error_set(e, PL_USAGE,
                  "parallel.tensor_shares is %lld, which is not divisible by parallel.tensor %lld: every "
                  "rank has the same number of parts",
                  (long long)parts, (long long)tensor);
        return config_at_key(c, KEY_parallel_tensor_shares, e);
    }
    return PL_OK;
}

int planned_open_shares(struct planned *r, const struct run_options *o, struct error *e)
{
    const struct config *c = r->config;
    const int64_t all = o->ranks ? o->ranks->n : max_i64(1, c->parallel_ranks);
    r->shares = 1;
    if (!o->train) return PL_OK;
    TRY(check_mesh(c, all, r->tensor, e));
    const int64_t ranks = all / r->tensor, shares = c->parallel_shares > 0 ? c->parallel_shares : ranks;
    if (o->whole && (all > 1 || shares > 1 || c->parallel_tensor_shares > 1))
        return error_set(e, PL_USAGE, "parallel.ranks and parallel.shares are for `plimsoll train`, which reads its "
                         "own data; leave them out");
    if (shares % ranks) {
        error_set(e, PL_USAGE, "parallel.shares is %lld, which is not divisible by the %lld ranks: every rank runs the "
                  "same number of shares", (long long)shares, (long long)ranks);
        return config_at_key(c, KEY_parallel_shares, e);
    }
    r->ranks = o->ranks;
    r->trains = true;
    r->shares = (int)shares;
    if (shares > c->train_effective_batch && !o->probe && (!o->ranks || !o->ranks->rank))
        log_warn("train.effective_batch %lld has fewer samples than the step has shares (%lld): some of them, and "
                 "their ranks, have nothing to do", (long long)c->train_effective_batch, (long long)shares);
    return PL_OK;
}

int planned_open_links(struct planned *r, struct error *e)
{
    const struct config *c = r->config;
    const int n = planned_world(r);
    const int64_t host = c->parallel_per_host > 0 ? c->parallel_per_host : r->ranks ? r->ranks->local : n;
    if (n < 2) return PL_OK;
    if (host > n || n % host) {
        error_set(e, PL_USAGE, "parallel.per_host is %lld, which does not divide the %d ranks: every host has the same "
                  "number of them", (long long)host, n);
        return config_at_key(c, KEY_parallel_per_host, e);
    }
    return links_set(&r->profile, c->parallel_links, host < n ? (int)host : 0, e)
               ? config_at_key(c, KEY_parallel_links, e)
               : PL_OK;
}

int planned_check_hosts(const struct planned *r, struct error *e)
{
    const struct ranks *x = r->ranks;
    if (!x || r->plan.settings.group != GROUP_HOST || r->config->parallel_per_host > 0 ||
        x->rank % x->local == x->local_rank)
        return PL_OK;
    return error_set(e, PL_USAGE, "parallel.group host: rank %d is number %d of its host, so ranks are not numbered "
                     "host by host; start them with mpirun --map-by slot, or set parallel.group all", x->rank,
                     x->local_rank);
}

int planned_share_samples(const struct planned *r) { return (int)ceil_div(r->effective_batch, r->shares); }
int64_t planned_share_rows(const struct planned *r)
{
    return (int64_t)r->plan.settings.micro_batch * r->plan.settings.accumulation;
}
int planned_own_shares(const struct planned *r) { return r->plan.settings.shares > 1 ? r->plan.settings.shares : 1; }
int planned_first_share(const struct planned *r) { return data_place(r) * planned_own_shares(r); }
int planned_data_place(const struct planned *r) { return data_place(r); }
struct planned_part planned_part(const struct planned *r)
{
    const int64_t first = min_i64(r->effective_batch, (int64_t)planned_first_share(r) * planned_share_samples(r));
    return (struct planned_part){first, min_i64(r->effective_batch - first,
                                                (int64_t)planned_own_shares(r) * planned_share_samples(r))};
}
int64_t planned_samples(const struct planned *r) { return planned_share_rows(r) * planned_own_shares(r); }

/* --- properties of an input --------------------------------------------------------- */

/* Follows ids through views and the label shift to the tables that they index. from[n]: the first
 * output of node n holds the input's ids. */
struct trace {
    const struct graph *g;
    id storage;
    bool *from;
    struct planned_input *out;
};

static bool traced(const struct trace *t, id x)
{
    return x && (tensor_at(t->g, x)->storage == t->storage || t->from[tensor_at(t->g, x)->node]);
}

static void add_bound(struct trace *t, int64_t below, bool ignores)
{
    struct planned_input *x = t->out;
    x->ignores = ignores && (x->ignores || !x->below);
    if (!x->below || below < x->below) x->below = below;
}

/* Reports whether the node's output holds the ids of its input unchanged. */
static bool keeps_ids(const struct node *n)
{
    return op_table[n->op].flags & OPF_VIEW || n->op == OP_SHIFT_LABELS || n->op == OP_LABELLED_FIRST ||
           n->op == OP_COPY;
}

static void trace_node(struct trace *t, id node)
{
    const struct node *n = node_at(t->g, node);
    if (keeps_ids(n)) t->from[node] = traced(t, n->in[0]);
    else if (n->op == OP_PART_IDS && traced(t, n->in[0]))
        add_bound(t, n->attr.part_ids.vocabulary, n->attr.part_ids.labels);
    else if (n->op == OP_EMBEDDING && traced(t, n->in[0])) add_bound(t, tensor_at(t->g, n->in[1])->dim[0], false);
    else if (n->op == OP_XENT && traced(t, n->in[1])) add_bound(t, tensor_last(tensor_at(t->g, n->in[0])), true);
}

/* Returns the input as the model declared it: the first tensor over the storage. */
static const struct tensor *declared(const struct graph *g, id storage)
{
    for (id t = 1; t < g->tensors.n; t++)
        if (tensor_at(g, t)->storage == storage) return tensor_at(g, t);
    return tensor_at(g, 0);
}

bool planned_input(const struct planned *r, const char *name, struct planned_input *out)
{
    const struct graph *g = &r->graph;
    memset(out, 0, sizeof *out);
    for (id s = 1; s < g->storages.n && !out->storage; s++)
        if (g->storages.at[s].kind == KIND_INPUT && !strcmp(graph_name(g, g->storages.at[s].name), name))
            out->storage = s;
    if (!out->storage) return false;
    const struct storage *s = &g->storages.at[out->storage];
    const struct tensor *t = declared(g, out->storage);
    out->axis = s->axis;
    out->sample = s->axis == INPUT_SHARED ? s->bytes : s->bytes / (uint64_t)planned_samples(r);
    out->dtype = t->dtype;
    out->outer = out->entries = 1;
    out->entry = dtype_size(t->dtype);
    for (int i = 0; i < t->rank; i++)
        *(i < s->axis ? &out->outer : i == s->axis ? &out->entries : &out->entry) *= (uint64_t)t->dim[i];
    return true;
}

bool planned_input_used(const struct planned *r, const struct planned_input *x)
{
    bool used = false;
    for (int p = 0; p < PROGRAM_COUNT; p++) used |= r->plan.placement.life[p][x->storage].used;
    return used;
}

void planned_input_ids(const struct planned *r, struct planned_input *x)
{
    const struct graph *g = &r->graph;
    struct trace t = {g, x->storage, mem_alloc(g->nodes.n), x};
    x->below = 0;
    x->ignores = false;
    for (int p = 0; p < PROGRAM_COUNT && x->dtype == DT_I32; p++)
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) trace_node(&t, g->order[p].nodes.at[k]);
    mem_free(t.from);
}

/* Returns PL_USAGE for ids that the graph computes, because they cannot be checked before the step
 * runs. */
int planned_check_ids(const struct planned *r, struct error *e)
{
    const struct graph *g = &r->graph;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        if (n->op != OP_EMBEDDING && n->op != OP_XENT) continue;
        const struct tensor *x = tensor_at(g, n->in[n->op == OP_XENT]);
        while (x->node && (keeps_ids(node_at(g, x->node)) || node_at(g, x->node)->op == OP_PART_IDS))
            x = tensor_at(g, node_at(g, x->node)->in[0]);
        if (x->node)
            return error_set(e, PL_USAGE, "%s takes its ids from %s: they must be an input, or a view of one, so that "
                             "they can be checked", op_table[n->op].name, op_table[node_at(g, x->node)->op].name);
    }
    return PL_OK;
}
