/*
 * communication.c: what a rank sends in a step, how long that takes, and how much of it is hidden behind computation.
 */
#include "plan/communication.h"

#include "cost/calibration.h"
#include "cost/links.h"
#include "plan/lanes.h"

struct communication plan_communication(const struct plan *p, const struct graph *g, const struct profile *profile)
{
    struct communication c = {0};
    double *seconds = mem_alloc(g->nodes.n * sizeof *seconds), with = 0, without = 0;
    for (int program = 0; program < PROGRAM_COUNT && p->settings.ranks > 1; program++) {
        if (!program_is(program, PROGRAM_TIMED) || program_is(program, PROGRAM_GENERATES)) continue;
        double own = 0;
        for (int turn = 0; turn < 2; turn++) { /* with the collectives, and without */
            for (uint32_t k = 0; k < g->order[program].nodes.n; k++) {
                const id node = g->order[program].nodes.at[k];
                const struct node *n = node_at(g, node);
                const bool sends = op_table[n->op].flags & OPF_COMM;
                struct query q;
                if (!node_launches(n) || (turn && !sends)) continue;
                query_fill(&q, g, n, profile);
                q.kernel = p->placement.binding[node].kernel;
                const double times = loop_iterations(g, n->loop);
                if (sends && !turn) c.sent += times * links_bytes(&q, n->op);
                seconds[node] = turn ? 0 : times * kernel_seconds(&q, n->op);
                if (sends && !turn) own += seconds[node];
            }
            const double all = profile->kind == DEVICE_CUDA ? lanes_seconds(g, program, seconds, NULL) : 0;
            *(turn ? &without : &with) += all;
        }
        c.seconds += own;
    }
    if (profile->kind == DEVICE_CUDA) c.hidden = c.seconds - (with - without);
    if (c.hidden < 0) c.hidden = 0;
    mem_free(seconds);
    return c;
}
