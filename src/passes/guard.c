/*
 * guard.c: after a step that went wrong nothing is updated any more, before the host has seen it.
 *
 * Where the host asks for a step while the one before it runs (train/ticket.h), it learns too late that
 * a loss or a norm is not finite. So the GPU keeps the weights of before:
 *
 *     update          sum of squares of all gradients
 *                     GUARD    it or the loss is not finite: found_inf, which stays     <- this pass
 *                     CLIP, updates   read found_inf: with it they leave every byte as it was
 *
 *     a fused step    ... its last node is a GUARD: what was updated before the last gradient was
 *                     whole is, as ever; the steps behind it update nothing
 *
 * When the host reads that step, weights and state are those that the step began with (of a fused one,
 * those that it left), and the search for what went wrong takes the same step again (train/nonfinite.c).
 * f16 has its SCALER instead: there a step is skipped, and the next one goes on.
 */
#include "graph/ops.h"
#include "passes/passes.h"

static void guard_fused(struct graph *g)
{
    id clip = graph_find_output(g, PROGRAM_STEP, "clip"), loss = graph_find_output(g, PROGRAM_STEP, "loss");
    if (!clip) return;
    struct cursor before = graph_move(g, PROGRAM_STEP, PHASE_UPDATE, "guard");
    graph_emit(g, OP_GUARD, NULL, (id[]){node_at(g, tensor_at(g, clip)->node)->in[0], graph_step(g), loss}, 3);
    g->at = before;
}

void pass_guard(struct graph *g, const struct settings *s)
{
    if (!s->train || !s->pipelined || settings_scale_loss(s) || g->error.code) return;
    if (!emit_before_clip(g, OP_GUARD, "guard")) guard_fused(g);
}
