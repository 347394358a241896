/*
 * handover.c: a gradient occupies memory from its first write to the update, not for the whole run.
 *
 *     step    forward            backward                          update
 *             activations grow   activations die, gradients grow   gradients are read
 *             /////////////      \\\\\\\\\\\\\//////////////////
 *
 * The pass marks the storage of each gradient as handed from program step to program update. In the
 * step the planner places it like an activation, from its first writer to the end, so that it
 * reuses the bytes of dead activations. In the update it is at the same offset. Evaluation runs
 * between an update and a step: no gradient is alive there. The computation is the same, so no bit
 * changes.
 *
 * In a run that trains, the KV cache of prompts that an evaluation answers is alive only in
 * programs prompt and next: it is placed like an activation that lives through both.
 */
#include "passes/passes.h"

void pass_handover(struct graph *g, const struct settings *s)
{
    for (id x = 1; x < g->storages.n && s->train; x++)
        if (g->storages.at[x].kind == KIND_CACHE) g->storages.at[x].handed = true;
    for (uint32_t i = 0; i < g->params.n; i++) {
        id t = g->params.at[i].grad;
        if (t && storage_of(g, t)->kind == KIND_GRAD) storage_of(g, t)->handed = true;
    }
}
