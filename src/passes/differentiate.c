/*
 * differentiate.c: the backward, as a pass: gradients of the step's loss with respect to every
 * weight that is not frozen (graph/autodiff.c implements it).
 *
 * In f16 small gradients would underflow. There the gradient of the loss is not 1 but the step's
 * loss scale, and all gradients are scaled by it until the update of loss_scale.c divides by it.
 */
#include "passes/passes.h"

void pass_differentiate(struct graph *g, const struct settings *s)
{
    if (s->forward) return;
    id seed = 0;
    if (settings_scale_loss(s))
        seed = graph_view(g, graph_step(g), DT_F32, 0, NULL, NULL, offsetof(struct step_block, loss_scale));
    graph_differentiate_from(g, PROGRAM_STEP, graph_find_output(g, PROGRAM_STEP, "loss"), seed);
    graph_prune(g, PROGRAM_STEP);
}
