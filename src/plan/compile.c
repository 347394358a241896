/*
 * compile.c: the pass pipeline: from the model's forward to the programs. The verifier runs after
 * every pass. The search drafts many graphs without it and verifies the one that it keeps.
 *
 *     phase       graph after it                 settings that it reads
 *     forward     the model in its precision     micro-batch
 *     backward    with gradients                 and chunks of the head
 *     update      with recompute and optimizer   and recompute, dtype of the optimizer state
 *     whole       the programs                   and everything else
 *
 * Settings in a search often differ only in what a late phase reads. plan_draft_next keeps the
 * graph after each of the first three phases and continues from the last one that is still valid.
 */
#include "plan/plan.h"
#include "graph/ops.h"

/* The techniques that a phase reads decide which drafts may share its result (may_share); RECOMPUTE
 * and UPDATE share one. */
enum { ALL_PROGRAMS, UPDATE_ONLY };
static const struct {
    const char *name;
    pass_fn *run;
    enum pipeline_phase phase;
    enum rewrite rewrite; /* 0: it is none */
    bool updates;         /* without a fused step it makes only program update */
} pipeline[] = {
#define BASE_PASS(name, PHASE, programs, doc) {#name, pass_##name, PIPELINE_##PHASE, 0, programs == UPDATE_ONLY},
#define TECHNIQUE_PASS(name, PHASE, technique, programs, doc)                                                          \
    {#name, pass_##name, PIPELINE_##PHASE, 0, programs == UPDATE_ONLY},
#define REWRITE_PASS(name, PHASE, doc) {#name, pass_##name, PIPELINE_##PHASE, REWRITE_##name, false},
#define AGAIN(name, PHASE) {#name, pass_##name, PIPELINE_##PHASE, REWRITE_##name, false},
#include "passes/pipeline.def"
#undef BASE_PASS
#undef TECHNIQUE_PASS
#undef REWRITE_PASS
#undef AGAIN
};
_Static_assert((int)PIPELINE_UPDATE == (int)PLAN_SHARED,
               "the last shared graph is behind the update, the others behind one phase each");

/* Adds the buffer for the next batch: as large as all input storages, at their final sizes. */
static void add_next(struct graph *g, enum space staging)
{
    uint64_t bytes = 0;
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == KIND_INPUT) bytes += g->storages.at[s].bytes;
    if (bytes) graph_storage(g, "next", KIND_STAGING, staging, bytes);
}

/* Adds the memory through which collectives of GPUs go if there is no NCCL
 * (cuda/device/transport.h): of the largest gradient, out and in. */
static void add_exchange(struct graph *g)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < g->params.n; i++) {
        const uint64_t one = g->params.at[i].grad ? tensor_bytes(tensor_at(g, g->params.at[i].grad)) : 0;
        if (one > bytes) bytes = one;
    }
    if (bytes)
        graph_storage(g, "exchange", KIND_STAGING, SPACE_HOST,
                      2 * min_u64(align_up(bytes, PLAN_EXCHANGE_LEAST), PLAN_EXCHANGE));
}

/* Marks the transients that collectives write: gathered weights, and sums of gradients. */
static void mark_communication(struct graph *g)
{
    for (int p = 0; p < PROGRAM_COUNT; p++)
        for (uint32_t k = 0; k < g->order[p].nodes.n; k++) {
            const struct node *n = node_at(g, g->order[p].nodes.at[k]);
            if (op_table[n->op].flags & OPF_COMM && n->op != OP_ALL_REDUCE && n->op != OP_SUM_RANKS &&
                storage_of(g, n->out[0])->kind == KIND_ACT)
                storage_of(g, n->out[0])->kind = KIND_COMM;
        }
}

/* Reports whether a run has the program: one that generates has the programs for that and no other,
 * unless it trains. */
static bool is_built(enum program p, const struct settings *s)
{
    if (program_is(p, PROGRAM_GENERATES)) return s->prompt_chunk > 0;
    return s->train || (!s->prompt_chunk && !program_is(p, PROGRAM_BESIDE));
}

/* Adds the storages that every graph has, and the model's nodes. */
static void build(struct graph *g, const struct source *source, const struct settings *s, bool verify)
{
    g->mesh = settings_mesh(s);
    graph_step(g);
    enum space staging = s->device.separate_memory ? SPACE_HOST : SPACE_DEVICE;
    graph_storage(g, "staging", KIND_STAGING, staging, PLAN_STAGING);
    if (s->loader_bytes) graph_storage(g, "loader", KIND_STAGING, staging, s->loader_bytes);
    if (s->pipelined) graph_storage(g, "tickets", KIND_STAGING, staging, PLAN_TICKETS);
    FOR_PROGRAMS(p, PROGRAM_FORWARD) {
        g->at.program = (uint8_t)p;
        if (is_built(p, s)) source->build(source->model, g, s->micro_batch);
    }
    g->at.program = PROGRAM_STEP;
    FOR_PROGRAMS(p, PROGRAM_FORWARD) graph_prune(g, p);
    if (verify) graph_verify(g, "build");
}

static void run_phase(struct graph *g, enum pipeline_phase phase, const struct settings *s, bool update, bool verify)
{
    for (size_t i = 0; i < COUNT(pipeline) && !g->error.code; i++) {
        if (pipeline[i].phase != phase || s->without & pipeline[i].rewrite || (pipeline[i].updates && !update))
            continue;
        pipeline[i].run(g, s);
        if (verify) graph_verify(g, pipeline[i].name);
    }
    if (phase != PIPELINE_WHOLE || g->error.code) return;
    if (s->inputs_ahead) add_next(g, s->device.separate_memory ? SPACE_HOST : SPACE_DEVICE);
    if (settings_group(s)) mark_communication(g);
    if ((settings_group(s) || s->tensor > 1) && s->device.separate_memory) add_exchange(g);
}

static int compile(struct graph *g, const struct source *source, const struct settings *s, bool verify, struct error *e)
{
    graph_init(g);
    build(g, source, s, verify);
    for (enum pipeline_phase phase = 0; phase < PIPELINE_PHASES; phase++) run_phase(g, phase, s, true, verify);
    int rc = graph_error(g, e);
    if (rc) graph_free(g);
    return rc;
}

int plan_compile(struct graph *g, const struct source *source, const struct settings *s, struct error *e)
{
    return compile(g, source, s, true, e);
}

int plan_draft(struct graph *g, const struct source *source, const struct settings *s, struct error *e)
{
    return compile(g, source, s, false, e);
}

/* --- drafts that share ---------------------------------------------------------------------- */

/* Reports whether a graph compiled for settings `a` up to and including `phase` is valid for `b`
 * too: the two differ in nothing that these passes read. */
static bool may_share(const struct settings *a, const struct settings *b, int phase)
{
    struct settings x = *b;
    const enum pipeline_phase last = phase == PLAN_SHARED - 1 ? PIPELINE_UPDATE : (enum pipeline_phase)phase;
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        if (techniques[id].phase > last) technique_copy(id, &x, a);
    return !memcmp(&x, a, sizeof x);
}

/* Returns the settings without the techniques that a program does not depend on. */
static struct settings used_by(unsigned program, const struct settings *s)
{
    const struct settings none = {0};
    struct settings x = *s;
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        if (!(techniques[id].programs & program)) technique_copy(id, &x, &none);
    return x;
}

struct settings plan_update_of(const struct settings *s) { return used_by(USED_BY_UPDATE, s); }

struct settings plan_eval_of(const struct settings *s)
{
    struct settings x = used_by(USED_BY_EVAL, s);
    /* it knows no optimizer state, and nothing is saved for a backward */
    x.offload &= OFFLOAD_WEIGHTS | OFFLOAD_MASTERS;
    return x;
}

/* Returns the known program update for the settings; NULL: there is none, as for a fused step,
 * which has no program update. */
static const struct known_program *find_update(const struct plan_drafts *d, const struct settings *s)
{
    const struct settings of = plan_update_of(s);
    for (uint32_t i = 0; i < d->updates.n && d->brief && !s->fused_step; i++)
        if (d->updates.at[i].trained == d->trained && !memcmp(&d->updates.at[i].of, &of, sizeof of))
            return &d->updates.at[i];
    return NULL;
}

/* Returns the known evaluation for the settings; NULL: there is none. Weights that are offloaded
 * are fetched in evaluation too. Which of them are depends on who reads them in program step. */
static const struct known_program *find_eval(const struct plan_drafts *d, const struct settings *s)
{
    const struct settings of = plan_eval_of(s);
    const uint64_t trained = s->offload & OFFLOAD_WEIGHTS ? d->trained : 0;
    for (uint32_t i = d->evals.n; i-- > 0 && d->brief;)
        if (d->evals.at[i].trained == trained && !memcmp(&d->evals.at[i].of, &of, sizeof of)) return &d->evals.at[i];
    return NULL;
}

/* Makes the first `phases` of the shared graphs. */
static int make_shared(struct plan_drafts *d, const struct settings *s, int phases, struct error *e)
{
    for (int phase = 0; phase < phases; phase++) {
        const bool lacks = phase == PLAN_SHARED - 1 && d->bare && !find_update(d, s);
        if (d->made[phase] && !lacks && may_share(&d->of[phase], s, phase)) continue;
        for (int later = phase; later < PLAN_SHARED; later++) d->made[later] = false;
        struct graph *g = &d->shared[phase];
        if (phase) {
            graph_copy_over(g, &d->shared[phase - 1]);
        } else {
            graph_clear(g);
            build(g, d->source, s, false);
        }
        run_phase(g, (enum pipeline_phase)phase, s, true, false);
        if (phase == PLAN_SHARED - 1) {
            d->trained = d->brief && s->train && !g->error.code ? optimizer_signature(g) : 0;
            d->bare = find_update(d, s) != NULL;
            run_phase(g, PIPELINE_UPDATE, s, !d->bare, false);
        }
        if (graph_error(g, e)) return e->code;
        d->of[phase] = *s;
        d->made[phase] = true;
    }
    return PL_OK;
}

int plan_draft_chunk_rows(struct plan_drafts *d, const struct settings *s, int64_t rows[PROGRAM_COUNT], struct error *e)
{
    int rc = make_shared(d, s, PIPELINE_FORWARD + 1, e);
    if (!rc) chunk_rows(&d->shared[PIPELINE_FORWARD], s, rows);
    return rc;
}

int plan_draft_counted(struct plan_drafts *d, const struct settings *s, enum technique_id id, int64_t *n,
                       struct error *e)
{
    int rc = make_shared(d, s, PIPELINE_FORWARD + 1, e);
    if (!rc) *n = techniques[id].counted(&d->shared[PIPELINE_FORWARD], s);
    return rc;
}

/* Goes on with the last shared graph itself, which no later draft shares. */
static void take_shared(struct plan_drafts *d)
{
    const struct graph memory = d->graph;
    d->graph = d->shared[PLAN_SHARED - 1];
    d->shared[PLAN_SHARED - 1] = memory;
    d->made[PLAN_SHARED - 1] = false;
}

int plan_draft_next(struct plan_drafts *d, const struct settings *s, struct error *e)
{
    const struct settings *next = d->next;
    d->next = NULL;
    TRY(make_shared(d, s, PLAN_SHARED, e));
    if (next && !may_share(s, next, PLAN_SHARED - 1)) take_shared(d);
    else graph_copy_over(&d->graph, &d->shared[PLAN_SHARED - 1]);
    d->update = find_update(d, s);
    d->eval = find_eval(d, s);
    if (d->update) d->graph.order[PROGRAM_UPDATE].nodes.n = 0;
    for (enum program p = 0; p < PROGRAM_COUNT && d->eval; p++)
        if (program_evaluates(p)) d->graph.order[p].nodes.n = 0;
    run_phase(&d->graph, PIPELINE_WHOLE, s, !d->update, false);
    return graph_error(&d->graph, e);
}

void plan_drafts_free(struct plan_drafts *d)
{
    for (int phase = 0; phase < PLAN_SHARED; phase++) graph_free(&d->shared[phase]);
    graph_free(&d->graph);
    vec_free(&d->updates);
    vec_free(&d->evals);
    kernels_free(d->kernels);
}
