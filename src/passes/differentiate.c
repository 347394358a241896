/*
 * differentiate.c: the backward, as a pass: gradients of the step's loss with
 * respect to every weight that is not frozen (graph/autodiff.c does the work).
 */
#include "passes/passes.h"

void pass_differentiate(struct graph *g, const struct settings *s)
{
    if (s->forward) return;
    graph_differentiate(g, PROGRAM_STEP, graph_find_output(g, PROGRAM_STEP, "loss"));
    graph_prune(g, PROGRAM_STEP);
}
