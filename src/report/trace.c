/*
 * trace.c: Chrome's trace events (see trace.h). Times are microseconds from the first launch.
 */
#include <math.h>

#include "graph/ops.h"
#include "io/json.h"
#include "report/trace.h"

/* Microseconds, rounded to three decimals. */
static double micro(double seconds) { return round(1e9 * seconds) / 1e3; }

static void put_name(struct json_writer *w, const char *what, int process, int thread, const char *name)
{
    json_begin_map(w, NULL);
    json_put_string(w, "ph", "M");
    json_put_string(w, "name", what);
    json_put_int(w, "pid", process);
    json_put_int(w, "tid", thread);
    json_begin_map(w, "args");
    json_put_string(w, "name", name);
    json_end(w);
    json_end(w);
}

/* Writes one launch: the node's op, module, bytes and flops. */
static void put_slice(struct json_writer *w, const struct graph *g, const struct timing_event *v,
                      const struct trace_process *of)
{
    const struct node *n = node_at(g, v->node);
    const struct tensor *in[MAX_IN] = {0}, *out[MAX_OUT] = {0};
    char shape[160];
    for (int i = 0; i < n->nin; i++) in[i] = n->in[i] ? tensor_at(g, n->in[i]) : NULL;
    for (int o = 0; o < n->nout; o++) out[o] = n->out[o] ? tensor_at(g, n->out[o]) : NULL;
    struct cost c = op_table[n->op].cost(in, out, &n->attr);
    json_begin_map(w, NULL);
    json_put_string(w, "ph", "X");
    json_put_string(w, "name", op_table[n->op].name);
    json_put_string(w, "cat", phase_name(n->phase));
    json_put_int(w, "pid", of->number);
    json_put_int(w, "tid", v->lane);
    json_put_number(w, "ts", micro(v->from - of->zero));
    json_put_number(w, "dur", micro(v->to - v->from));
    json_begin_map(w, "args");
    json_put_string(w, "module", graph_name(g, g->scopes.at[n->scope].name));
    json_put_string(w, "program", program_name(v->program));
    if (n->nout && n->out[0]) json_put_string(w, "result", tensor_print(g, n->out[0], shape));
    json_put_number(w, "bytes", c.bytes);
    json_put_number(w, "flops", c.flops);
    json_end(w);
    json_end(w);
}

static void put_counter(struct json_writer *w, const uint64_t *bytes, int process, double at)
{
    json_begin_map(w, NULL);
    json_put_string(w, "ph", "C");
    json_put_string(w, "name", "memory");
    json_put_int(w, "pid", process);
    json_put_number(w, "ts", micro(at));
    json_begin_map(w, "args");
    for (int k = KIND_PARAM; k < KIND_COUNT; k++) json_put_uint(w, kind_name(k), bytes[k]);
    json_end(w);
    json_end(w);
}

void trace_events(const struct graph *g, const struct lives *l, const struct timing *t, const struct trace_process *of,
                  struct text *out)
{
    struct json_writer w = {.out = out};
    uint64_t *alive[PROGRAM_COUNT] = {0}, last[KIND_COUNT] = {0};
    FOR_STEP_PROGRAMS(program) alive[program] = lives_by_position(l, g, program);
    json_begin_list(&w, NULL);
    put_name(&w, "process_name", of->number, 0, of->name);
    for (int lane = 0; lane < LANE_COUNT; lane++)
        put_name(&w, "thread_name", of->number, lane, lane_name((enum lane)lane));
    for (uint32_t i = 0; i < t->n_events; i++) {
        const struct timing_event *v = &t->events[i];
        const uint64_t *now = alive[v->program] + v->position * KIND_COUNT;
        if (memcmp(now, last, sizeof last)) put_counter(&w, now, of->number, v->from - of->zero);
        memcpy(last, now, sizeof last);
        put_slice(&w, g, v, of);
        text_append(out, "\n", 1);
    }
    json_end(&w);
    FOR_STEP_PROGRAMS(program) mem_free(alive[program]);
}

void trace_write(const struct plan *p, const struct text *processes, int n, struct text *out)
{
    text_printf(out, "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"arena_bytes\": %llu}, \"traceEvents\": [",
                (unsigned long long)plan_arena(p));
    for (int i = 0; i < n; i++) {
        if (i) text_append(out, ",", 1);
        text_append(out, processes[i].at + 1, processes[i].n - 2); /* without the brackets of a list */
    }
    text_printf(out, "]}");
}
