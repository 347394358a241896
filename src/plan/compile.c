/*
 * compile.c: the pipeline. The model's forward goes in, programs come out; the
 * verifier runs after every pass. The search, which makes many graphs and keeps one,
 * drafts them without it and has the kept one verified.
 *
 *     forward     the model in its precision     micro-batch
 *     backward    with gradients                 and chunks of the head
 *     update      with recompute and optimizer   and recompute, form of the state
 *     whole       the programs                   and everything else
 *
 * A search drafts hundreds of graphs whose settings differ in what a late pass reads: plan_draft_next
 * keeps the graph as it was behind each of the first three parts and goes on from the last that is
 * the same.
 */
#include <string.h>

#include "plan/plan.h"

struct pass {
    const char *name;
    pass_fn *run;
};

/* Which settings a part reads decides which drafts may share it (may_share). */
static const struct pass forward[] = {{"precision", pass_precision}, {"fuse", pass_fuse}, {"linear_add", pass_linear_add}};
static const struct pass backward[] = {
    {"chunk", pass_chunk},       {"dense", pass_dense},         {"differentiate", pass_differentiate}, {"join", pass_join},
    {"residual", pass_residual}, {"bias_grad", pass_bias_grad}, {"pure_grad", pass_pure_grad},         {"dense", pass_dense},
    {"accumulate", pass_accumulate},
};
static const struct pass update[] = {
    {"recompute", pass_recompute}, {"selective", pass_selective}, {"trim", pass_trim},
    {"optimizer", pass_optimizer}, {"act_recompute", pass_act_recompute},
};
static const struct pass whole[] = {
    {"loss_scale", pass_loss_scale}, {"fused step", pass_fused_step}, {"guard", pass_guard},
    {"offload", pass_offload},       {"handover", pass_handover},     {"inlay", pass_inlay},
    {"reuse", pass_reuse},           {"add_norm", pass_add_norm},     {"first_sum", pass_first_sum},
};
enum { FORWARD, BACKWARD, UPDATE, WHOLE, PARTS };
static const struct {
    const struct pass *at;
    size_t n;
} pipeline[PARTS] = {{forward, COUNT(forward)}, {backward, COUNT(backward)}, {update, COUNT(update)}, {whole, COUNT(whole)}};
_Static_assert((int)WHOLE == (int)PLAN_SHARED, "what is before the last part can be shared");

/* As many bytes as the step's batch has, when its storages are as large as they become. */
static void add_next(struct graph *g, enum space staging)
{
    uint64_t bytes = 0;
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == KIND_INPUT) bytes += g->storages.at[s].bytes;
    if (bytes) graph_storage(g, "next", KIND_STAGING, staging, bytes);
}

/* The storages of every graph, and the model's own nodes. */
static void build(struct graph *g, const struct source *source, const struct settings *s, bool verify)
{
    graph_step(g);
    enum space staging = s->host_staging ? SPACE_HOST : SPACE_DEVICE;
    graph_storage(g, "staging", KIND_STAGING, staging, PLAN_STAGING);
    if (s->loader_bytes) graph_storage(g, "loader", KIND_STAGING, staging, s->loader_bytes);
    if (s->pipelined) graph_storage(g, "tickets", KIND_STAGING, staging, PLAN_TICKETS);
    g->at.program = PROGRAM_STEP;
    source->build(source->model, g, s->micro_batch);
    if (s->train) {
        g->at.program = PROGRAM_EVAL;
        source->build(source->model, g, s->micro_batch);
        g->at.program = PROGRAM_STEP;
    }
    graph_prune(g, PROGRAM_STEP);
    graph_prune(g, PROGRAM_EVAL);
    if (verify) graph_verify(g, "build");
}

static void run_part(struct graph *g, int part, const struct settings *s, bool verify)
{
    for (size_t i = 0; i < pipeline[part].n && !g->error.code; i++) {
        pipeline[part].at[i].run(g, s);
        if (verify) graph_verify(g, pipeline[part].at[i].name);
    }
    if (part == WHOLE && s->inputs_ahead && !g->error.code) add_next(g, s->host_staging ? SPACE_HOST : SPACE_DEVICE);
}

static int compile(struct graph *g, const struct source *source, const struct settings *s, bool verify, struct error *e)
{
    graph_init(g);
    build(g, source, s, verify);
    for (int part = 0; part < PARTS; part++) run_part(g, part, s, verify);
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

/* Whether a graph of settings `a` that is compiled up to `part`, that one included, is also one of `b`: they differ in nothing
 * that these passes read. */
static bool may_share(const struct settings *a, const struct settings *b, int part)
{
    struct settings x = *b;
    if (part <= FORWARD) x.head_chunks = a->head_chunks;
    if (part <= BACKWARD) x.recompute = a->recompute;
    if (part <= BACKWARD) x.state = a->state;
    x.offload = a->offload;
    x.fused_step = a->fused_step;
    return !memcmp(&x, a, sizeof x);
}

int plan_draft_next(struct plan_drafts *d, const struct settings *s, struct error *e)
{
    for (int part = 0; part < PLAN_SHARED; part++) {
        if (d->made[part] && may_share(&d->of[part], s, part)) continue;
        for (int later = part; later < PLAN_SHARED; later++) d->made[later] = false;
        struct graph *g = &d->shared[part];
        if (part) {
            graph_copy_over(g, &d->shared[part - 1]);
        } else {
            graph_clear(g);
            build(g, d->source, s, false);
        }
        run_part(g, part, s, false);
        if (graph_error(g, e)) return e->code;
        d->of[part] = *s;
        d->made[part] = true;
    }
    graph_copy_over(&d->graph, &d->shared[PLAN_SHARED - 1]);
    run_part(&d->graph, WHOLE, s, false);
    return graph_error(&d->graph, e);
}

void plan_drafts_free(struct plan_drafts *d)
{
    for (int part = 0; part < PLAN_SHARED; part++) graph_free(&d->shared[part]);
    graph_free(&d->graph);
}
