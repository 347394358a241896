/*
 * bench.c: see bench.h.
 */
#include <math.h>

#include "base/system.h"
#include "calibrate/bench.h"
#include "batch/writer.h"
#include "dist/agree.h"
#include "folder/train_state.h"

/* --- steps --------------------------------------------------------------------------- */

static int nonfinite_error(struct bench *b, const struct ticket *k, struct error *e)
{
    char name[256];
    run_find_nonfinite(&b->run, name, sizeof name);
    return error_set(e, PL_FAIL, "step %d: the loss on synthetic inputs is %g%s%s", k->block.step, k->loss,
                     name[0] ? "; first seen in " : "", name);
}

/* Submits a step with the learning rate 0: every kernel runs, but the weights do not drift over
 * many steps. With f16 the op SCALER counts the updates. */
static int submit_step(struct bench *b, struct error *e)
{
    const struct run *r = &b->run;
    const uint64_t done = b->tickets.submitted;
    struct step_block block = {.inv_count = {(float)(1 / batch_synthetic_count(r))},
                               .clip_norm = (float)r->planned.config->train_clip_norm,
                               .loss_scale = 1,
                               .step = (int32_t)done + 1,
                               .adam_t = (int32_t)done + !b->tickets.scaled,
                               .seed = (uint64_t)r->planned.config->train_seed,
                               .rng_step = done};
    return ticket_submit(&b->tickets, &block, clock_seconds(), e);
}

static int retire_step(struct bench *b, struct error *e)
{
    struct ticket k;
    int rc = ticket_retire(&b->tickets, &k, e);
    return !rc && !isfinite(k.loss) ? nonfinite_error(b, &k, e) : rc;
}

static int run_step(struct bench *b, struct error *e)
{
    int rc = submit_step(b, e);
    return rc ? rc : retire_step(b, e);
}

static void read_memory(struct bench *b)
{
    const struct device *d = &b->run.device;
    uint64_t left = 0, all = 0;
    if (!d->ops->memory) return;
    d->ops->memory(d, &left, &all);
    b->device_used = all - left;
    b->device_total = all;
}

static double least_seconds(const struct bench *b)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < b->steps; i++) least = fmin(least, b->seconds[i]);
    return least;
}

static void note_step(struct bench *b, double seconds)
{
    if (b->steps == b->room) {
        b->room = 2 * b->room + 16;
        b->seconds = mem_resize(b->seconds, b->room * sizeof *b->seconds);
    }
    if (b->run.tape.timing && seconds < least_seconds(b)) timing_copy(&b->fastest, &b->now);
    b->seconds[b->steps++] = seconds;
}

/* Runs steps as training does: on a GPU a step is submitted before the results of the previous step
 * are read. */
int bench_run(struct bench *b, int64_t steps, struct error *e)
{
    int rc = PL_OK;
    for (int64_t i = 0; i < steps && !rc; i++) {
        const uint32_t left = i + 1 < steps && tickets_overlap(&b->tickets) ? 1 : 0;
        timing_clear(&b->now);
        rc = submit_step(b, e);
        while (!rc && tickets_in_flight(&b->tickets) > left) {
            rc = retire_step(b, e);
            if (!rc) note_step(b, b->tickets.seconds);
            if (b->progress) progress_add(b->progress, 1);
        }
    }
    if (!rc) read_memory(b);
    return rc;
}

int bench_run_shown(struct bench *b, int64_t steps, struct error *e)
{
    struct progress p;
    progress_begin(&p, "measuring", "steps", (uint64_t)steps);
    progress_expect(&p, b->run.planned.plan.seconds * (double)steps);
    b->progress = &p;
    int rc = bench_run(b, steps, e);
    b->progress = NULL;
    progress_clear();
    return rc;
}

int bench_open(struct bench *b, const struct config *c, const struct run_options *o, struct error *e)
{
    memset(b, 0, sizeof *b);
    int rc = agree_on(o->ranks, run_plan(&b->run, c, o, e), e);
    if (!rc)
        rc = agree_same(o->ranks,
                        (struct agree_same[]){{"the number of ranks of its host",
                                               (uint64_t)b->run.planned.profile.per_host},
                                              {"the plan", plan_digest(&b->run.planned.plan, &b->run.planned.graph)}},
                        2, e);
    if (!rc) rc = run_start(&b->run, NULL, true, e);
    if (!rc)
        rc = state_reset(&b->run.planned.graph, &b->run.device, &b->run.tape, run_staging(&b->run), PLAN_STAGING, e);
    if (!rc) rc = batch_synthesize(&b->run, e);
    if (rc) return rc;
    timing_init(&b->now, &b->run.planned.graph);
    timing_init(&b->fastest, &b->run.planned.graph);
    tickets_begin(&b->tickets, &b->run);
    if (!bench_replays(b)) bench_by_node(b);
    return run_step(b, e);
}

bool bench_replays(const struct bench *b) { return b->run.planned.kind == DEVICE_CUDA; }

void bench_by_node(struct bench *b) { b->run.tape.timing = &b->now; }

int bench_time_nodes(struct bench *b, struct error *e)
{
    if (b->run.tape.timing) return PL_OK;
    timing_clear(&b->now);
    bench_by_node(b);
    int rc = run_step(b, e);
    b->run.tape.timing = NULL;
    timing_copy(&b->fastest, &b->now);
    return rc;
}

void bench_close(struct bench *b)
{
    timing_free(&b->now);
    timing_free(&b->fastest);
    mem_free(b->seconds);
    run_close(&b->run);
}

/* --- results ----------------------------------------------------------------------------- */

double bench_total(const struct bench *b)
{
    double total = 0;
    for (uint32_t i = 0; i < b->steps; i++) total += b->seconds[i];
    return total;
}

double bench_mean(const struct bench *b) { return bench_total(b) / b->steps; }

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_median(const struct bench *b)
{
    double *sorted = mem_copy(b->seconds, b->steps * sizeof *sorted);
    qsort(sorted, b->steps, sizeof *sorted, by_value);
    double median = (sorted[(b->steps - 1) / 2] + sorted[b->steps / 2]) / 2;
    mem_free(sorted);
    return median;
}

static int by_seconds(const void *a, const void *b)
{
    const struct bench_op *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    return x->op != y->op ? (x->op < y->op ? -1 : 1) : (int)x->dtype - (int)y->dtype;
}

static bool is_half(enum dtype t) { return t == DT_BF16 || t == DT_F16; }

uint32_t bench_ops(const struct bench *b, struct bench_op *out)
{
    const struct graph *g = &b->run.planned.graph;
    struct bench_op sums[2 * OP_COUNT];
    memset(sums, 0, sizeof sums);
    for (id n = 1; n < g->nodes.n; n++) {
        const struct node *x = node_at(g, n);
        if (!b->fastest.calls[n]) continue;
        struct query q;
        query_fill(&q, g, x, &b->run.planned.profile);
        q.kernel = b->run.planned.plan.placement.binding[n].kernel;
        const struct tensor *first = q.in[0] ? q.in[0] : q.out[0];
        struct bench_op *s = &sums[2 * x->op + is_half(first->dtype)];
        struct cost c = op_table[x->op].cost(q.in, q.out, q.attr);
        double calls = b->fastest.calls[n];
        s->op = x->op;
        s->dtype = first->dtype;
        s->calls += b->fastest.calls[n];
        s->seconds += b->fastest.seconds[n];
        s->predicted += calls * kernel_seconds(&q, x->op);
        s->ideal += calls * kernel_ideal(&q, x->op);
        s->flops += calls * c.flops;
        s->bytes += calls * c.bytes;
    }
    uint32_t n = 0;
    for (size_t i = 0; i < COUNT(sums); i++)
        if (sums[i].calls) out[n++] = sums[i];
    qsort(out, n, sizeof *out, by_seconds);
    return n;
}

static int by_class(const void *a, const void *b)
{
    const struct bench_class *x = a, *y = b;
    const int order = class_order(&x->of, &y->of);
    return order ? order : strcmp(x->form, y->form);
}

static int by_error(const void *a, const void *b)
{
    const struct bench_class *x = a, *y = b;
    double dx = fabs(x->seconds - x->predicted), dy = fabs(y->seconds - y->predicted);
    return dx != dy ? (dx > dy ? -1 : 1) : by_class(a, b);
}

uint32_t bench_classes(const struct bench *b, struct bench_class **out)
{
    const struct graph *g = &b->run.planned.graph;
    struct bench_class *all = mem_alloc(g->nodes.n * sizeof *all);
    uint32_t nodes = 0, n = 0;
    for (id k = 1; k < g->nodes.n; k++) {
        const struct node *x = node_at(g, k);
        struct query q;
        if (!b->fastest.calls[k]) continue;
        query_fill(&q, g, x, &b->run.planned.profile);
        const struct binding *bound = &b->run.planned.plan.placement.binding[k];
        q.kernel = bound->kernel;
        class_of(&all[nodes].of, &q, x->op);
        all[nodes].form = kernel_form_name(bound->kernel, bound->form);
        all[nodes].calls = b->fastest.calls[k];
        all[nodes].seconds = b->fastest.seconds[k];
        all[nodes++].predicted = b->fastest.calls[k] * kernel_seconds(&q, x->op);
    }
    qsort(all, nodes, sizeof *all, by_class);
    for (uint32_t i = 0; i < nodes; i++) {
        if (n && !by_class(&all[n - 1], &all[i])) {
            all[n - 1].calls += all[i].calls;
            all[n - 1].seconds += all[i].seconds;
            all[n - 1].predicted += all[i].predicted;
        } else {
            all[n++] = all[i];
        }
    }
    qsort(all, n, sizeof *all, by_error);
    *out = all;
    return n;
}

uint64_t bench_peak_resident(void)
{
    struct system_process p;
    system_process(&p);
    return p.resident_peak;
}

/* --- the time of a step by kernel and shape ---------------------------------------------------
 *
 * A row sums all launches of one kernel
 * whose first input and first output have the same shapes: windowed attention and global
 * attention have rows of their own. */

static bool same_shape(const struct tensor *a, const struct tensor *b)
{
    if (!a || !b) return a == b;
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

static struct bench_kernel *find_kernel(struct bench_kernel *all, uint32_t *n, const struct bench_kernel *like)
{
    for (uint32_t i = 0; i < *n; i++)
        if (all[i].op == like->op && all[i].kernel == like->kernel && all[i].form == like->form &&
            same_shape(all[i].in, like->in) && same_shape(all[i].out, like->out))
            return &all[i];
    all[*n] = *like;
    return &all[(*n)++];
}

static int by_kernel_seconds(const void *a, const void *b)
{
    const struct bench_kernel *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    return x->op != y->op ? (x->op < y->op ? -1 : 1) : 0;
}

uint32_t bench_kernels(const struct bench *b, struct bench_kernel *out, uint32_t most)
{
    const struct graph *g = &b->run.planned.graph;
    struct bench_kernel *all = mem_alloc((g->nodes.n + 1) * sizeof *all);
    uint32_t n = 0;
    for (id x = 1; x < g->nodes.n; x++) {
        const double calls = b->fastest.calls[x];
        if (!b->fastest.calls[x]) continue;
        const struct node *node = node_at(g, x);
        struct query q;
        query_fill(&q, g, node, &b->run.planned.profile);
        const struct binding *bound = &b->run.planned.plan.placement.binding[x];
        const struct bench_kernel like =
            {.op = node->op, .kernel = bound->kernel, .form = bound->form, .in = q.in[0], .out = q.out[0]};
        struct bench_kernel *line = find_kernel(all, &n, &like);
        struct cost c = op_table[node->op].cost(q.in, q.out, q.attr);
        line->calls += b->fastest.calls[x];
        line->seconds += b->fastest.seconds[x];
        line->ideal += calls * kernel_ideal(&q, node->op);
        line->flops += calls * c.flops;
        line->bytes += calls * c.bytes;
    }
    qsort(all, n, sizeof *all, by_kernel_seconds);
    n = n < most ? n : most;
    memcpy(out, all, n * sizeof *out);
    mem_free(all);
    return n;
}

int rank_times_gather(struct ranks *r, const struct bench *b, double exchanges, struct rank_times *each,
                      struct error *e)
{
    struct rank_times mine = {.seconds = bench_mean(b), .exchanges = exchanges};
    snprintf(mine.host, sizeof mine.host, "%s", r->host);
    return r->gather(r, &mine, each, sizeof mine, e);
}
