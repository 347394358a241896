/*
 * calibrate_gpu.c: see calibrate_gpu.h.
 */
#include "calibrate/calibrate_gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda/cuda.h"
#include "calibrate/bench.h"
#include "calibrate/curve_fit.h"
#include "cost/profile.h"
#include "graph/ops.h"

enum { STEPS_LEAST = 3, STEPS_MOST = 12, NODE_STEPS = 2 };
#define SECONDS_EACH 0.25      /* duration of the replays, after STEPS_LEAST */
#define SECONDS_ALL 50.        /* workloads after this time are left out */
#define COPY_LEAST (4 << 20)   /* smallest copy that is used to measure the copy rate */

/* --- samples ----------------------------------------------------------------------------- */

void gpu_add_samples(struct gpu_samples *s, const char *name, const struct run *r, const struct timing *t,
                     double replay, const struct profile *p)
{
    struct gpu_whole whole = {.name = name, .replay = replay};
    for (id n = 1; n < t->nodes; n++) {
        const struct node *x = node_at(&r->planned.graph, n);
        struct gpu_sample one = {0};
        struct query q;
        if (!t->calls[n]) continue;
        query_fill(&q, &r->planned.graph, x, p);
        q.kernel = r->planned.plan.placement.binding[n].kernel;
        class_of(&one.of, &q, x->op);
        one.crosses = q.crosses;
        one.calls = t->calls[n];
        one.ideal = kernel_ideal(&q, x->op);
        one.seconds = t->seconds[n] / t->calls[n];
        vec_push(&s->list, one);
        whole.nodes += t->seconds[n];
        whole.launches += t->calls[n];
        whole.lanes |= x->lane != LANE_COMPUTE;
    }
    vec_push(&s->wholes, whole);
}

void gpu_free(struct gpu_samples *s)
{
    vec_free(&s->list);
    vec_free(&s->wholes);
}

/* --- from samples to a profile -------------------------------------------------------------- */

/* Four digits are more than the clock's precision, and keep the file short. */
static double rounded(double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.4g", x);
    return strtod(text, NULL);
}

/* Nodes with almost no work cost one launch; the estimate is the cheapest of many such nodes. */
static double find_launch(const struct gpu_samples *s)
{
    double least = 1e-5;
    for (uint32_t i = 0; i < s->list.n; i++)
        if (s->list.at[i].ideal < 1e-6 && s->list.at[i].seconds < least) least = s->list.at[i].seconds;
    return least;
}

/* The copy rate is that of the fastest long copy; the ideal times of all copies are recomputed
 * from it. */
static void fit_copies(struct gpu_samples *s, struct profile *p)
{
    double best = 0;
    for (uint32_t i = 0; i < s->list.n; i++) {
        const struct gpu_sample *x = &s->list.at[i];
        double bytes = x->ideal * p->copy_bandwidth;
        if (x->crosses && bytes >= COPY_LEAST) best = fmax(best, bytes / x->seconds);
    }
    if (!(best > 0)) return;
    for (uint32_t i = 0; i < s->list.n; i++)
        if (s->list.at[i].crosses) s->list.at[i].ideal *= p->copy_bandwidth / rounded(best);
    p->copy_bandwidth = rounded(best);
}

/* Fits speed and gap to the replay times by least squares of relative errors. A value outside its
 * plausible range is set to the bound, and the gap is fitted alone. */
static void fit_replays(struct gpu_samples *s)
{
    double uu = 0, uv = 0, vv = 0, u1 = 0, v1 = 0;
    for (uint32_t i = 0; i < s->wholes.n; i++) {
        const struct gpu_whole *w = &s->wholes.at[i];
        if (w->lanes || !(w->replay > 0)) continue;
        double u = w->nodes / w->replay, v = w->launches / w->replay;
        uu += u * u, uv += u * v, vv += v * v, u1 += u, v1 += v;
    }
    s->speed = 1;
    s->gap = 0;
    if (!(vv > 0)) return;
    double determinant = uu * vv - uv * uv;
    if (determinant > 1e-9 * uu * vv) s->speed = fmin(fmax((u1 * vv - v1 * uv) / determinant, 0.8), 1.3);
    s->gap = (v1 - s->speed * uv) / vv;
}

/* Points with equal rounded ideal times are merged, so that ideal times ascend. */
static void round_curve(struct curve *c, double speed)
{
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        struct curve_point x = {rounded(c->at[i].ideal), rounded(fmin(fmax(speed * c->at[i].factor, 1e-3), 1e6))};
        if (!n || x.ideal > c->at[n - 1].ideal) c->at[n++] = x;
    }
    memset(c->at + n, 0, (size_t)(CURVE_POINTS - n) * sizeof *c->at);
    c->n = n;
}

/* A class without samples uses the curve of its whole op. */
static void fit_ops(const struct gpu_samples *s, struct calibration *c, double launch)
{
    for (int op = 1; op < OP_COUNT; op++)
        for (int v = 0; v < OP_VARIANTS; v++)
            for (int half = 0; half < CLASS_COUNT; half++) {
                struct curve_fit fit = {0};
                for (uint32_t i = 0; i < s->list.n; i++) {
                    const struct gpu_sample *x = &s->list.at[i];
                    if ((int)x->of.op == op && x->of.variant == v && x->of.half == half && !x->crosses)
                        curve_fit_add(&fit, x->ideal, x->seconds - launch);
                }
                curve_fit_end(&fit, &c->curve[op][v][half]);
                round_curve(&c->curve[op][v][half], s->speed);
            }
}

static int by_class(const void *a, const void *b)
{
    return class_order(&((const struct gpu_sample *)a)->of, &((const struct gpu_sample *)b)->of);
}

/* The samples of one class are adjacent. Classes beyond the table's capacity use their op's
 * curve or that of a near class. */
static void fit_classes(struct gpu_samples *s, struct calibration *c, double launch)
{
    qsort(s->list.at, s->list.n, sizeof *s->list.at, by_class);
    for (uint32_t i = 0, end; i < s->list.n && c->classes < CLASSES_MOST; i = end) {
        struct curve_fit fit = {0};
        for (end = i; end < s->list.n && !by_class(&s->list.at[i], &s->list.at[end]); end++)
            curve_fit_add(&fit, s->list.at[end].ideal, s->list.at[end].seconds - launch);
        struct op_class *x = &c->class[c->classes++];
        *x = s->list.at[i].of;
        curve_fit_end(&fit, &x->curve);
        round_curve(&x->curve, s->speed);
    }
    calibration_sort(c);
}

void gpu_fit(struct gpu_samples *s, struct profile *p, struct calibration *c)
{
    double launch = find_launch(s);
    fit_copies(s, p);
    fit_replays(s);
    fit_ops(s, c, launch);
    fit_classes(s, c, launch);
    p->launch_seconds = rounded(fmax(s->speed * launch + s->gap, 0));
    p->measured = c;
}

/* --- measuring -------------------------------------------------------------------------------- */

/* Minimum time of each node over several steps. */
static int time_nodes(struct bench *b, struct timing *least, struct error *e)
{
    int rc = PL_OK;
    timing_init(least, &b->run.planned.graph);
    for (int i = 0; i < NODE_STEPS && !rc; i++) {
        rc = bench_time_nodes(b, e);
        for (id n = 1; n < least->nodes; n++) {
            if (!i || b->fastest.seconds[n] < least->seconds[n]) least->seconds[n] = b->fastest.seconds[n];
            least->calls[n] = b->fastest.calls[n];
        }
    }
    return rc;
}

static int replay(struct bench *b, struct error *e)
{
    double begun = clock_seconds();
    int rc = PL_OK;
    for (int i = 0; i < STEPS_MOST && !rc && (i < STEPS_LEAST || clock_seconds() - begun < SECONDS_EACH);
         i += STEPS_LEAST)
        rc = bench_run(b, STEPS_LEAST, e);
    return rc;
}

/* Measures one workload. `view` describes the GPU after it was opened. */
static int measure(struct gpu_samples *s, const char *name, const struct config *c, const struct run_options *o,
                   struct profile *p, struct cuda_view *view, struct error *e)
{
    struct bench b = {0};
    struct timing least = {0};
    int rc = bench_open(&b, c, o, e);
    if (!rc) rc = replay(&b, e);
    if (!rc) rc = time_nodes(&b, &least, e);
    if (!rc) {
        gpu_add_samples(s, name, &b.run, &least, bench_median(&b), p);
        if (!view->total_bytes) cuda_get_view(&b.run.device, view);
    }
    timing_free(&least);
    bench_close(&b);
    return rc;
}

static void log_workload(const struct gpu_samples *s, const char *name, int rc, double seconds, const struct error *e)
{
    char step[32], nodes[32], took[32];
    const struct gpu_whole *w = s->wholes.n ? &s->wholes.at[s->wholes.n - 1] : NULL;
    if (rc) log_warn("calibrating: %s is left out: %.500s", name, e->text);
    else if (w)
        log_note("calibrating: %-30s %8s a step, its nodes %8s; took %s", name, duration_print(w->replay, step),
                 duration_print(w->nodes, nodes), duration_print(seconds, took));
}

/* A workload that fails, or that does not fit into the GPU's memory, is left out. If all are left
 * out, the error of the last one is returned. */
static int measure_all(struct gpu_samples *s, struct profile *p, enum dtype half, struct cuda_view *view,
                       struct error *e)
{
    double begun = clock_seconds();
    struct config c;
    struct run_options o;
    const char *name;
    int rc = PL_OK;
    for (int i = 0; gpu_workload(i, half, &c, &o, &name, e); i++) {
        double from = clock_seconds();
        rc = e->code;
        if (view->free_bytes) c.memory_budget = (struct config_budget){BUDGET_BYTES, view->free_bytes / 10 * 9};
        if (!rc && from - begun > SECONDS_ALL) rc = error_set(e, PL_USAGE, "the time limit is reached");
        if (!rc) rc = measure(s, name, &c, &o, p, view, e);
        log_workload(s, name, rc, clock_seconds() - from, e);
        config_free(&c);
    }
    return s->wholes.n ? PL_OK : rc;
}

int calibrate_gpu(struct profile *p, struct calibration *c, struct error *e)
{
    struct gpu_samples s = {0};
    struct cuda_view view = {0};
    struct gpu gpu = {0};
    time_t now = time(NULL);
    memset(c, 0, sizeof *c);
    if (cuda_gpu(&gpu, e)) return error_prepend(e, "there is no GPU to measure");
    profile_here(p, &gpu);
    p->published = NULL;
    int rc = measure_all(&s, p, gpu.capability < 80 ? DT_F16 : DT_BF16, &view, e);
    if (!rc) {
        snprintf(c->cpu, sizeof c->cpu, "%.*s", (int)sizeof c->cpu - 1, gpu.name);
        snprintf(c->isa, sizeof c->isa, "sm_%d", gpu.capability);
        strftime(c->date, sizeof c->date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
        gpu_fit(&s, p, c);
        log_note("calibrated: %u nodes in %d classes; a replay takes %.3f of the sum of its node times and %+.2f us "
                 "per node",
                 s.list.n, c->classes, s.speed, 1e6 * s.gap);
    }
    gpu_free(&s);
    return rc;
}
