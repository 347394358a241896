/*
 * timing.c: see timing.h. Allocates only in timing_init and timing_record_events.
 */
#include "run/timing.h"

#include <string.h>

void timing_init(struct timing *t, const struct graph *g)
{
    *t = (struct timing){.nodes = g->nodes.n};
    t->seconds = mem_alloc(t->nodes * sizeof *t->seconds);
    t->calls = mem_alloc(t->nodes * sizeof *t->calls);
}

void timing_add(struct timing *t, const struct timing_event *v)
{
    t->seconds[v->node] += v->to - v->from;
    t->calls[v->node]++;
    if (t->n_events < t->room) t->events[t->n_events++] = *v;
}

void timing_record_events(struct timing *t, uint32_t launches)
{
    t->events = mem_resize(t->events, launches * sizeof *t->events);
    t->room = launches;
    t->n_events = 0;
}

void timing_clear(struct timing *t)
{
    memset(t->seconds, 0, t->nodes * sizeof *t->seconds);
    memset(t->calls, 0, t->nodes * sizeof *t->calls);
}

void timing_copy(struct timing *to, const struct timing *from)
{
    CHECK(to->nodes == from->nodes);
    memcpy(to->seconds, from->seconds, to->nodes * sizeof *to->seconds);
    memcpy(to->calls, from->calls, to->nodes * sizeof *to->calls);
}

void timing_free(struct timing *t)
{
    mem_free(t->seconds);
    mem_free(t->calls);
    mem_free(t->events);
    memset(t, 0, sizeof *t);
}
