/*
 * handover.c: a gradient has bytes from where it is made to the update that reads it, not
 * for the whole run.
 *
 *     step    forward            backward                          update
 *             activations grow   activations die, gradients come   gradients are read
 *             /////////////      \\\\\\\\\\\\\//////////////////
 *
 * The storage of each gradient is marked as handed from program step to program update. In
 * the step the planner then places it like an activation, from its first writer to the end,
 * so that it takes the bytes of what the backward has finished with; in the update it lies
 * where the step left it. Evaluation comes after an update and before a step: no gradient
 * is alive there. Nothing is computed otherwise, so no bit changes.
 */
#include "passes/passes.h"

void pass_handover(struct graph *g, const struct settings *s)
{
    (void)s;
    for (uint32_t i = 0; i < g->params.n; i++) {
        id t = g->params.at[i].grad;
        if (t && storage_of(g, t)->kind == KIND_GRAD) storage_of(g, t)->handed = true;
    }
}
