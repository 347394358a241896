/*
 * guard.c: after a step with a non-finite loss or norm, no weight is updated until the host has
 * seen it.
 *
 * If the host submits a step while the previous one is in flight (engine/ticket.h), it learns too
 * late that a loss or a norm is not finite. So the device keeps the weights as they were:
 *
 *     update          sum of squares of all gradients
 *                     GUARD   not finite, or the loss is not: sets found_inf for good  <- this pass
 *                     CLIP, updates   read found_inf: if set, they change no byte
 *
 *     a fused step    its last node is a GUARD: updates before the last gradient was complete have
 *                     happened; the following steps update nothing
 *
 * When the host retires that step, weights and optimizer state are those with which the step began
 * (of a fused step, those that it left), and the search for the cause runs the same step again
 * (engine/nonfinite.c). f16 has SCALER instead: there the step is skipped, and the next one
 * continues.
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
