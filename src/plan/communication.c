/*
 * communication.c: what a rank sends in a step, how long that takes, and how much of it is hidden
 * behind computation.
 */
#include "plan/plan.h"

#include "cost/calibration.h"
#include "cost/links.h"
#include "graph/ops.h"
#include "plan/lanes.h"

/* Returns the most bytes of collectives alive at once, of all programs. */
static uint64_t most_buffers(const struct plan *p, const struct graph *g)
{
    uint64_t most = 0;
    for (int program = 0; program < PROGRAM_COUNT; program++) {
        const struct life *life = p->placement.life[program];
        const uint32_t n = g->order[program].nodes.n;
        int64_t *change = mem_alloc((n + 1) * sizeof *change), live = 0;
        for (id s = 1; s < g->storages.n; s++) {
            if (!life[s].used || g->storages.at[s].kind != KIND_COMM || g->storages.at[s].space != SPACE_DEVICE)
                continue;
            change[life[s].start] += (int64_t)align_up(g->storages.at[s].bytes, PLAN_ALIGN);
            change[life[s].end + 1] -= (int64_t)align_up(g->storages.at[s].bytes, PLAN_ALIGN);
        }
        for (uint32_t k = 0; k < n; k++) {
            const id node = g->order[program].nodes.at[k];
            const uint64_t work = plan_work_kind(node_at(g, node)) == KIND_COMM
                                      ? align_up(p->placement.binding[node].work_bytes, PLAN_ALIGN)
                                      : 0;
            live += change[k];
            if ((uint64_t)live + work > most) most = (uint64_t)live + work;
        }
        mem_free(change);
    }
    return most;
}

/* Returns the bytes of the storage "exchange" of plan/compile.c; 0: there is none. */
static uint64_t host_bytes(const struct graph *g)
{
    for (id s = 1; s < g->storages.n; s++)
        if (g->storages.at[s].kind == KIND_STAGING && !strcmp(graph_name(g, g->storages.at[s].name), "exchange"))
            return g->storages.at[s].bytes;
    return 0;
}

struct communication plan_communication(const struct plan *p, const struct graph *g, const struct profile *profile)
{
    struct communication c = {.buffers = most_buffers(p, g), .host = host_bytes(g)};
    double *seconds = mem_alloc(g->nodes.n * sizeof *seconds), with = 0, without = 0;
    for (int program = 0; program < PROGRAM_COUNT && settings_world(&p->settings) > 1; program++) {
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
