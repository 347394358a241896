/*
 * h200_trace.h: the launches of a training step on an H200 with their measured times,
 * tests/golden/h200_trace/NAME.txt (make_trace.py), and which of them a node of a plan is.
 *
 * A node and a launch are matched by program, op, dtype and shape of the result, and flops. Run
 * from the repository's root.
 */
#pragma once

#include <inttypes.h>
#include <math.h>

#include "engine/run.h"
#include "graph/ops.h"

struct traced {
    char program[16], op[40], result[80];
    double flops;
    uint64_t launches;
    double measured, predicted; /* seconds of all launches of a step */
    bool matched;
};

struct trace {
    VEC(struct traced) at;
};

/* Reads the launches into `t`, and the settings of the run into `c`. */
static inline void trace_read(const char *run, struct config *c, struct trace *t)
{
    char path[128], line[512], set[400];
    struct error e = {0};
    snprintf(path, sizeof path, "tests/golden/h200_trace/%s.txt", run);
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("%s: cannot be read", path);
    config_init(c);
    while (fgets(line, sizeof line, f)) {
        struct traced x = {0};
        double micro;
        if (sscanf(line, "set %399s", set) == 1) {
            if (config_set(c, set, &e)) fail_msg("%s", e.text);
            continue;
        }
        if (sscanf(line, "%15s %39s %79s %lf %" SCNu64 " %lf", x.program, x.op, x.result, &x.flops, &x.launches,
                   &micro) != 6)
            fail_msg("%s: %s", path, line);
        x.measured = 1e-6 * micro * (double)x.launches;
        vec_push(&t->at, x);
    }
    fclose(f);
    if (config_check(c, CONFIG_NEEDS_MODEL, &e)) fail_msg("%s", e.text);
}

static inline double query_flops(const struct query *q, enum op op)
{
    return op_table[op].cost(q->in, q->out, q->attr).flops;
}

/* How often a step launches the node. */
static inline uint64_t node_times(const struct graph *g, const struct node *n)
{
    uint64_t times = 1;
    for (id l = n->loop; l; l = g->loops.at[l].parent) times *= g->loops.at[l].trip;
    return times;
}

/* Describes a node as the trace describes launches, without times. */
static inline struct traced traced_of(const struct graph *g, enum program p, const struct node *n)
{
    struct traced x = {0};
    struct query q;
    char text[160] = "-";
    if (n->nout && n->out[0]) tensor_print(g, n->out[0], text);
    const char *result = strrchr(text, ' ');
    query_fill(&q, g, n, NULL);
    x.flops = query_flops(&q, n->op);
    snprintf(x.program, sizeof x.program, "%s", program_name(p));
    snprintf(x.op, sizeof x.op, "%s", op_table[n->op].name);
    snprintf(x.result, sizeof x.result, "%.79s", result ? result + 1 : text);
    return x;
}

/* Finds the launches like x; NULL: there are none. */
static inline struct traced *trace_find(struct trace *t, const struct traced *x)
{
    for (uint32_t i = 0; i < t->at.n; i++) {
        struct traced *y = &t->at.at[i];
        if (!strcmp(x->program, y->program) && !strcmp(x->op, y->op) && !strcmp(x->result, y->result) &&
            fabs(x->flops - y->flops) <= 0.5)
            return y;
    }
    return NULL;
}
