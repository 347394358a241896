/*
 * lane_order.h: runs a program as a GPU may, whose lanes are queues side by side: again and again
 * one of the lanes whose next launch need not wait, at random, goes on. Without a wait that is
 * needed, some order computes other bits.
 */
#pragma once

#include "random_graph.h"

/* Returns the first entry of a lane from `k` on; `end`: there is none. */
static inline uint32_t next_of_lane(const struct tape *t, enum program p, int lane, uint32_t k, uint32_t end)
{
    while (k < end && t->program[p].at[k].lane != lane) k++;
    return k;
}

static inline bool may_start(const struct entry *e, const bool *done)
{
    for (int i = 0; i < e->nwait; i++)
        if (!done[e->wait[i]]) return false;
    return true;
}

/* Runs the launches [from, to), among which no loop begins or ends. */
static inline void run_section(struct tape *t, enum program p, uint32_t from, uint32_t to, bool *done, struct dice *d)
{
    uint32_t next[LANE_COUNT];
    memset(done + from, 0, to - from);
    for (int lane = 0; lane < LANE_COUNT; lane++) next[lane] = next_of_lane(t, p, lane, from, to);
    for (uint32_t left = to - from; left; left--) {
        int ready[LANE_COUNT], n = 0;
        for (int lane = 0; lane < LANE_COUNT; lane++)
            if (next[lane] < to && may_start(&t->program[p].at[next[lane]], done)) ready[n++] = lane;
        assert_true(n > 0);
        const int lane = ready[throw_dice(d, n)];
        struct entry *e = &t->program[p].at[next[lane]];
        if (e->advances) tape_advance(t, e, &e->launch);
        e->kernel->run(&e->launch);
        done[next[lane]] = true;
        next[lane] = next_of_lane(t, p, lane, next[lane] + 1, to);
    }
}

/* Runs a program; loops join all lanes. */
static inline void run_in_any_order(struct tape *t, enum program p, struct dice *d)
{
    const uint32_t n = t->program[p].n;
    bool *done = mem_alloc(n + 1);
    for (uint32_t k = 0, end; k < n; k = end) {
        for (end = k; end < n && t->program[p].at[end].kind == ENTRY_LAUNCH;) end++;
        if (end > k) run_section(t, p, k, end, done, d);
        else end = tape_follow(t, p, k);
    }
    mem_free(done);
}
