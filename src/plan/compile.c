/*
 * compile.c: the pipeline. The model's forward goes in, programs come out; the
 * verifier runs after every pass. The search, which makes many graphs and keeps one,
 * drafts them without it and has the kept one verified.
 */
#include "plan/plan.h"

/* A rewrite, other than a pass that carries out a setting, can be left out. */
static const struct {
    const char *name;
    pass_fn *run;
    enum rewrite rewrite; /* 0: it is none */
} pipeline[] = {
    {"precision", pass_precision, 0},
    {"fuse", pass_fuse, REWRITE_FUSE},
    {"linear_add", pass_linear_add, REWRITE_LINEAR_ADD},
    {"chunk", pass_chunk, 0},
    {"dense", pass_dense, REWRITE_DENSE},
    {"differentiate", pass_differentiate, 0},
    {"join", pass_join, REWRITE_JOIN},
    {"residual", pass_residual, REWRITE_RESIDUAL},
    {"bias_grad", pass_bias_grad, REWRITE_BIAS_GRAD},
    {"pure_grad", pass_pure_grad, 0},
    {"dense", pass_dense, REWRITE_DENSE},
    {"accumulate", pass_accumulate, 0},
    {"recompute", pass_recompute, 0},
    {"selective", pass_selective, 0},
    {"trim", pass_trim, REWRITE_TRIM},
    {"optimizer", pass_optimizer, 0},
    {"act_recompute", pass_act_recompute, REWRITE_ACT_AGAIN},
    {"loss_scale", pass_loss_scale, 0},
    {"fused step", pass_fused_step, 0},
    {"guard", pass_guard, 0},
    {"offload", pass_offload, 0},
    {"handover", pass_handover, REWRITE_HANDOVER},
    {"inlay", pass_inlay, REWRITE_INLAY},
    {"reuse", pass_reuse, REWRITE_REUSE},
    {"add_norm", pass_add_norm, REWRITE_ADD_NORM},
    {"first_sum", pass_first_sum, REWRITE_FIRST_SUM},
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
        if (s->without & pipeline[i].rewrite) continue;
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
