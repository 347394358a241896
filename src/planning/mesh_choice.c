/*
 * mesh_choice.c: parallel.tensor auto: how many ranks compute parts of the same products. Each
 * number that divides the ranks and those of a host is planned. The fastest plan that fits is
 * taken; if none fits, the one that needs the least memory; of two alike that with fewer parts.
 */
#include "planning/stages.h"

#include "run/ranks.h"

/* What is known of the best number so far. */
struct mesh_choice {
    int tensor;
    bool fits, known; /* known: it could be planned */
    double seconds;
    uint64_t smallest;
};

/* Plans for a number of ranks and keeps it if it is better. What is refused, such as heads that are
 * not divisible, is left out. */
static void try_tensor(struct mesh_choice *best, const struct config *c, const struct run_options *o, int tensor)
{
    struct planned *probe = mem_alloc(sizeof *probe);
    struct run_options quiet = *o;
    struct error e = {0};
    quiet.probe = quiet.unsized = true;
    quiet.ablation = quiet.several = quiet.fitting = false;
    const int rc = planned_make_for(probe, c, &quiet, tensor, &e);
    const struct mesh_choice x = {tensor, !rc, true, probe->plan.seconds, probe->plan.smallest};
    const bool better = x.fits ? !best->fits || x.seconds < best->seconds
                               : !best->fits && (!best->known || x.smallest < best->smallest);
    if ((!rc || rc == PL_NOFIT) && better) *best = x;
    planned_close(probe);
    mem_free(probe);
}

/* Returns the number of ranks to plan for. */
static int choose_tensor(const struct config *c, const struct run_options *o)
{
    const int64_t all = o->ranks ? o->ranks->n : max_i64(1, c->parallel_ranks),
                  host = c->parallel_per_host > 0 ? c->parallel_per_host : o->ranks ? o->ranks->local : all;
    struct mesh_choice best = {.tensor = 1};
    for (int t = 1; t <= host && all > 1; t++)
        if (all % t == 0 && host % t == 0) try_tensor(&best, c, o, t);
    return best.tensor;
}

int planned_make(struct planned *r, const struct config *c, const struct run_options *o, struct error *e)
{
    const bool free = o->train && c->parallel_tensor <= 0;
    return planned_make_for(r, c, o, free ? choose_tensor(c, o) : (int)max_i64(1, c->parallel_tensor), e);
}
