/*
 * lanes.c: see lanes.h.
 */
#include "plan/lanes.h"
#include "graph/ops.h"

#include <math.h>

enum { FORGET_EVERY = 64 }; /* nodes */

/* A workspace in use until a time. */
struct used {
    uint64_t at, bytes;
    double until;
};

struct walk {
    const struct graph *g;
    const struct placement *placed;
    const struct life *life;      /* of the program; only with a placement */
    const bool *uses;             /* by lane: the program has a node there */
    double free[LANE_COUNT];      /* time at which each lane is idle */
    double (*until)[LANE_COUNT];  /* by storage: time of each lane's last access... */
    double (*written)[LANE_COUNT]; /* ...and last write: reads may overlap */
    VEC(id) touched[LANE_COUNT];  /* transient storages that a lane has accessed */
    bool (*listed)[LANE_COUNT];    /* by storage: it is in `touched` */
    VEC(struct used) work;        /* of the compute lane, since the last join */
    double total, start;          /* seconds so far; start of the section since the last join */
    id loop;                      /* loop of that section */
};

static double later(double a, double b) { return a > b ? a : b; }

/* Returns the maximum over the other lanes. */
static double latest_other(const double of[LANE_COUNT], enum lane lane)
{
    double when = 0;
    for (int i = 0; i < LANE_COUNT; i++)
        if (i != (int)lane) when = later(when, of[i]);
    return when;
}

/* Joins all lanes; the section counts once for each iteration of its loop. */
static void join(struct walk *w, id next)
{
    double now = later(w->free[LANE_COMPUTE], latest_other(w->free, LANE_COMPUTE));
    w->total += loop_iterations(w->g, w->loop) * (now - w->start);
    for (int lane = 0; lane < LANE_COUNT; lane++) w->free[lane] = now;
    w->start = now;
    w->loop = next;
    w->work.n = 0;
}

/* Returns the earliest time at which another lane is idle. */
static double earliest_other(const struct walk *w, int lane)
{
    double when = INFINITY;
    for (int i = 0; i < LANE_COUNT; i++)
        if (i != lane && w->uses[i]) when = fmin(when, w->free[i]);
    return when;
}

/* Drops entries that no node can still wait for: all other lanes are busy for longer, and their
 * times only grow. */
static void forget(struct walk *w)
{
    for (int busy = 0; busy < LANE_COUNT; busy++) {
        const double over = earliest_other(w, busy);
        uint32_t n = 0;
        for (uint32_t i = 0; i < w->touched[busy].n; i++) {
            id s = w->touched[busy].at[i];
            if (w->until[s][busy] <= over) w->listed[s][busy] = false;
            else w->touched[busy].at[n++] = s;
        }
        w->touched[busy].n = n;
    }
    const double over = earliest_other(w, LANE_COMPUTE);
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->work.n; i++)
        if (w->work.at[i].until > over) w->work.at[n++] = w->work.at[i];
    w->work.n = n;
}

/* Returns the time at which the other lanes are done with every storage that had these bytes and is
 * dead at instant k. */
static double bytes_free(const struct walk *w, enum lane lane, enum space space, uint64_t from, uint64_t bytes,
                         uint32_t k)
{
    double when = 0;
    for (int busy = 0; busy < LANE_COUNT; busy++)
        for (uint32_t i = 0; i < w->touched[busy].n && busy != (int)lane; i++) {
            id s = w->touched[busy].at[i];
            const struct storage *x = &w->g->storages.at[s];
            const uint64_t at = w->placed->offset[s];
            if (x->space != space || w->life[s].end >= k || at >= from + bytes || from >= at + x->bytes) continue;
            when = later(when, w->until[s][busy]);
        }
    for (uint32_t i = 0; i < w->work.n && lane != LANE_COMPUTE && space == SPACE_DEVICE; i++) {
        const struct used *x = &w->work.at[i];
        if (x->at < from + bytes && from < x->at + x->bytes) when = later(when, x->until);
    }
    return when;
}

/* Returns the earliest start of node x at instant k. */
static double start_time(const struct walk *w, const struct node *x, id node, uint32_t k)
{
    const enum lane lane = x->lane;
    double when = w->free[lane];
    for (int i = 0; i < x->nin + x->nout; i++) {
        id t = i < x->nin ? x->in[i] : x->out[i - x->nin];
        if (!t) continue;
        id s = tensor_at(w->g, t)->storage;
        const struct storage *st = &w->g->storages.at[s];
        when = later(when, latest_other((i < x->nin ? w->written : w->until)[s], lane));
        if (w->placed && w->life[s].start == k && !storage_is_persistent(st))
            when = later(when, bytes_free(w, lane, st->space, w->placed->offset[s], st->bytes, k));
    }
    const struct binding *b = w->placed ? &w->placed->binding[node] : NULL;
    if (b && b->work_bytes) when = later(when, bytes_free(w, lane, SPACE_DEVICE, b->work_offset, b->work_bytes, k));
    return when;
}

static void finish_node(struct walk *w, const struct node *x, id node, double when)
{
    const struct binding *b = w->placed ? &w->placed->binding[node] : NULL;
    w->free[x->lane] = when;
    if (b && b->work_bytes && x->lane == LANE_COMPUTE)
        vec_push(&w->work, ((struct used){b->work_offset, b->work_bytes, when}));
    for (int i = 0; i < x->nin + x->nout; i++) {
        id t = i < x->nin ? x->in[i] : x->out[i - x->nin];
        if (!t) continue;
        id s = tensor_at(w->g, t)->storage;
        const struct storage *st = &w->g->storages.at[s];
        w->until[s][x->lane] = when;
        if (i >= x->nin) w->written[s][x->lane] = when;
        if (!w->placed || w->listed[s][x->lane] || storage_is_persistent(st)) continue;
        w->listed[s][x->lane] = true;
        vec_push(&w->touched[x->lane], s);
    }
}

/* Marks the lanes of a program's nodes; false: it has only one lane, and never waits. */
static bool find_lanes(const struct graph *g, enum program program, bool uses[LANE_COUNT])
{
    int n = 0;
    for (uint32_t k = 0; k < g->order[program].nodes.n; k++)
        uses[node_at(g, g->order[program].nodes.at[k])->lane] = true;
    for (int lane = 0; lane < LANE_COUNT; lane++) n += uses[lane];
    return n > 1;
}

static double sum_seconds(const struct graph *g, enum program program, const double *seconds)
{
    double sum = 0;
    for (uint32_t k = 0; k < g->order[program].nodes.n; k++) sum += seconds[g->order[program].nodes.at[k]];
    return sum;
}

double lanes_seconds(const struct graph *g, enum program program, const double *seconds, const struct placement *placed)
{
    bool uses[LANE_COUNT] = {false};
    if (!find_lanes(g, program, uses)) return sum_seconds(g, program, seconds);
    struct walk w = {.g = g, .placed = placed, .life = placed ? placed->life[program] : NULL, .uses = uses};
    w.until = mem_alloc(g->storages.n * sizeof *w.until);
    w.written = mem_alloc(g->storages.n * sizeof *w.written);
    w.listed = mem_alloc(g->storages.n * sizeof *w.listed);
    for (uint32_t k = 0; k < g->order[program].nodes.n; k++) {
        id n = g->order[program].nodes.at[k];
        const struct node *x = node_at(g, n);
        if (!node_launches(x) && x->lane == LANE_COMPUTE) continue;
        const id body = loop_body(g, x->loop);
        if (body != w.loop) join(&w, body);
        if (placed && k % FORGET_EVERY == 0) forget(&w);
        finish_node(&w, x, n, start_time(&w, x, n, k) + seconds[n] / loop_iterations(g, body));
    }
    join(&w, 0);
    for (int lane = 0; lane < LANE_COUNT; lane++) vec_free(&w.touched[lane]);
    vec_free(&w.work);
    mem_free(w.until);
    mem_free(w.written);
    mem_free(w.listed);
    return w.total;
}
