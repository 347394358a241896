/*
 * compile.c: the pipeline. The model's forward goes in, programs come out; the
 * verifier runs after every pass. The search, which makes many graphs and keeps one,
 * drafts them without it and has the kept one verified.
 */
#include "plan/plan.h"

static const struct {
    const char *name;
    pass_fn *run;
} pipeline[] = {
    {"precision", pass_precision},         {"fuse", pass_fuse},                   {"linear_add", pass_linear_add},
    {"chunk", pass_chunk},                 {"dense", pass_dense},                 {"differentiate", pass_differentiate},
    {"join", pass_join},                   {"residual", pass_residual},           {"bias_grad", pass_bias_grad},
    {"pure_grad", pass_pure_grad},         {"dense", pass_dense},                 {"accumulate", pass_accumulate},
    {"recompute", pass_recompute},         {"selective", pass_selective},         {"trim", pass_trim},
    {"optimizer", pass_optimizer},         {"act_recompute", pass_act_recompute},         {"loss_scale", pass_loss_scale},
    {"fused step", pass_fused_step},       {"guard", pass_guard},                 {"offload", pass_offload},
    {"handover", pass_handover},           {"inlay", pass_inlay},                 {"reuse", pass_reuse},
    {"add_norm", pass_add_norm},           {"first_sum", pass_first_sum},
};

/* As many bytes as the step's batch has, when its storages are as large as they become. */
static void add_next(struct graph *g, enum space staging)
{
    uint64_t bytes = 0;
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == KIND_INPUT) bytes += g->storages.at[s].bytes;
    if (bytes) graph_storage(g, "next", KIND_STAGING, staging, bytes);
}

static int compile(struct graph *g, const struct source *source, const struct settings *s, bool verify, struct error *e)
{
    graph_init(g);
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
    for (size_t i = 0; i < COUNT(pipeline) && !g->error.code; i++) {
        pipeline[i].run(g, s);
        if (verify) graph_verify(g, pipeline[i].name);
    }
    if (s->inputs_ahead && !g->error.code) add_next(g, staging);
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
