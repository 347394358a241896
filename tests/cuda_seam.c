/*
 * cuda_seam.c: compares the CUDA device with the reference kernels through the whole pipeline:
 * builder -> plan_place -> tape_build -> record -> run -> read.
 *
 *     cuda_seam [--small] [--device cpu]
 *
 * Each case builds one graph, runs it on the reference and on the device, and compares relative L2
 * norms. On the GPU it also checks that repeated launches are bit-equal, that execution node by
 * node gives the bits of the captured graph, that capture happens once, and that the GPU's free
 * memory stays constant.
 *
 * The reference is slow, so at real sizes it gets PERIOD rows and the device's batch repeats them.
 * The block works row by row, so row r must equal row r % PERIOD. PERIOD is prime, so a row that a
 * wrong tile writes is detected.
 *
 * --small omits real sizes and launches less often (for a memory checker); --device cpu runs the
 * same cases on the CPU device. Without a GPU the cases are planned and counted as skipped, and the
 * exit code is 0. A failure exits with 1.
 */
#include <math.h>

#include "cuda/cuda.h"
#include "graph/ops.h"
#include "passes/passes.h"
#include "plan/plan.h"

enum { PERIOD = 7, SEED = 20240607 };

static int passed, failed, skipped;
static enum device_kind subject = DEVICE_CUDA;
static bool small; /* --small */

/* More launches of a graph that was captured once; each is slow under a memory checker. */
static int more_launches(void) { return small ? 5 : 100; }

/* --- one line per check ----------------------------------------------------------- */

static void report(const char *name, const char *what, bool ok, const char *detail)
{
    if (ok) passed++;
    else failed++;
    printf("%-26s %-22s %-6s %s\n", name, what, ok ? "ok" : "FAILED", detail);
    fflush(stdout);
}

static void report_skip(const char *name, const char *why)
{
    skipped++;
    printf("%-26s %-22s %-6s %s\n", name, "", "skip", why);
}

/* Reports an error of the project or of CUDA with its message. */
static bool report_call(const char *name, const char *what, int rc, const struct error *e)
{
    if (rc) report(name, what, false, e->text);
    return !rc;
}

/* --- a graph on a device ------------------------------------------------------------ */

struct side {
    const struct graph *graph;
    struct device device;
    struct plan plan;
    struct tape tape;
    bool opened, placed, built;
};

static int side_start(struct side *s, enum device_kind kind, struct error *e)
{
    int rc = device_open(&s->device, kind, 0, e);
    if (rc) return rc;
    s->opened = true;
    if ((rc = plan_place(&s->plan, s->graph, &s->device.profile, e))) return rc;
    s->placed = true;
    if ((rc = device_allocate(&s->device, s->plan.placement.arena, e))) return rc;
    tape_build(&s->tape, s->graph, &s->plan.placement, s->device.arena, s->device.profile.threads, NULL);
    s->built = true;
    return s->device.ops->record(&s->device, &s->tape, e);
}

static bool side_open(struct side *s, const struct graph *g, enum device_kind kind, const char *name)
{
    struct error e = {0};
    memset(s, 0, sizeof *s);
    s->graph = g;
    return report_call(name, kind == DEVICE_REF ? "open reference" : "open device", side_start(s, kind, &e), &e);
}

static void side_close(struct side *s)
{
    if (s->opened) device_close(&s->device, s->built ? &s->tape : NULL);
    if (s->built) tape_free(&s->tape);
    if (s->placed) plan_free(&s->plan);
}

static bool side_write(struct side *s, id tensor, const void *from, uint64_t bytes, const char *name)
{
    struct error e = {0};
    return report_call(name, "write", s->device.ops->write(&s->device, tape_address(&s->tape, tensor), from, bytes, &e),
                       &e);
}

static bool side_read(struct side *s, id tensor, void *to, uint64_t bytes, const char *name)
{
    struct error e = {0};
    return report_call(name, "read", s->device.ops->read(&s->device, to, tape_address(&s->tape, tensor), bytes, &e),
                       &e);
}

static bool side_run(struct side *s, enum program p, const char *name)
{
    struct error e = {0};
    return report_call(name, "run", s->device.ops->run(&s->device, &s->tape, p, &e), &e);
}

/* --- numbers --------------------------------------------------------------------------- */

/* Element i of stream `key`: uniform with mean 0 and the given standard deviation. */
static double noise(uint64_t key, uint64_t i, double deviation)
{
    uint64_t x = SEED + key * 0x9e3779b97f4a7c15u + i * 0xd1342543de82ef95u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return ((double)(x >> 11) / 4503599627370496.0 - 1.0) * 1.7320508 * deviation;
}

/* Random content for a tensor, its rows repeating with `period` (0: no repetition). The caller
 * frees. */
static void *make_noise(const struct graph *g, id tensor, double mean, double deviation, int64_t period)
{
    const struct tensor *x = tensor_at(g, tensor);
    const int64_t n = tensor_elements(x), cycle = period ? period * tensor_last(x) : n;
    char *out = mem_alloc(tensor_bytes(x));
    for (int64_t i = 0; i < n; i++)
        dtype_store(out, x->dtype, i, mean + noise(tensor, (uint64_t)(i % cycle), deviation));
    return out;
}

/* An f32 sum over `length` terms, then one rounding to the storage dtype. Both sides round every
 * intermediate alike. They differ there only in the rare element that the sum's error pushed over a
 * rounding boundary: a quarter of eps is plenty for those. A wrong rounding mode (about half an eps
 * in every element) still fails. */
static double tolerance(enum dtype t, double length)
{
    return dtype_table[t].epsilon / 4 + 2 * dtype_table[DT_F32].epsilon * sqrt(length);
}

/* Relative L2 of n elements against a reference whose elements repeat every `cycle`. */
static void compare(const char *name, const char *what, const void *got, const void *want, enum dtype t, int64_t n,
                    int64_t cycle, double tol)
{
    double difference = 0, norm = 0, worst = -1;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        double a = dtype_load(got, t, i), b = dtype_load(want, t, i % cycle), d = a - b;
        difference += d * d;
        norm += b * b;
        if (!(fabs(d) <= worst)) worst = fabs(d), at = i;
    }
    double relative = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    bool ok = relative <= tol && norm > 0;
    char detail[256];
    snprintf(detail, sizeof detail, "%.3g of %.3g%s", relative, tol,
             ok         ? ""
             : norm > 0 ? ""
                        : " (the reference is all 0)");
    if (!ok)
        snprintf(detail + strlen(detail), sizeof detail - strlen(detail),
                 "; worst at %lld of %lld: got %.9g, want %.9g", (long long)at, (long long)n, dtype_load(got, t, at),
                 dtype_load(want, t, at % cycle));
    report(name, what, ok, detail);
}

/* Reads a tensor on both sides and compares; shapes differ in rows at most. */
static void compare_sides(const char *name, const char *what, struct side *got, struct side *want, id tensor,
                          double tol)
{
    const struct tensor *a = tensor_at(got->graph, tensor), *b = tensor_at(want->graph, tensor);
    void *x = mem_alloc(tensor_bytes(a)), *y = mem_alloc(tensor_bytes(b));
    if (side_read(got, tensor, x, tensor_bytes(a), name) && side_read(want, tensor, y, tensor_bytes(b), name))
        compare(name, what, x, y, a->dtype, tensor_elements(a), tensor_elements(b), tol);
    mem_free(x);
    mem_free(y);
}

/* --- checks that need a GPU ------------------------------------------------------------------ */

/* Another launch gives the same bits; `erased`: all output bits are inverted before it. */
static void check_relaunch(const char *name, const char *what, struct side *s, id tensor, bool erased)
{
    const uint64_t bytes = tensor_bytes(tensor_at(s->graph, tensor));
    char *first = mem_alloc(bytes), *second = mem_alloc(bytes);
    bool ok = side_read(s, tensor, first, bytes, name);
    for (uint64_t i = 0; i < bytes; i++) second[i] = (char)~first[i];
    if (ok && erased) ok = side_write(s, tensor, second, bytes, name);
    if (ok && side_run(s, PROGRAM_STEP, name) && side_read(s, tensor, second, bytes, name)) {
        uint64_t at = 0;
        while (at < bytes && first[at] == second[at]) at++;
        char detail[64];
        snprintf(detail, sizeof detail, "the first %llu of %llu bytes", (unsigned long long)at,
                 (unsigned long long)bytes);
        report(name, what, at == bytes, detail);
    }
    mem_free(first);
    mem_free(second);
}

static void check_repeats(const char *name, struct side *s, id tensor)
{
    check_relaunch(name, "launches bit-equal", s, tensor, false);
}

/* Launches of a step with the current number of iterations. */
static uint64_t count_launches(const struct tape *t)
{
    uint64_t n = 0;
    for (uint32_t k = 0; k < t->program[PROGRAM_STEP].n; k++) {
        const struct entry *entry = &t->program[PROGRAM_STEP].at[k];
        uint64_t times = entry->kind == ENTRY_LAUNCH;
        for (id l = entry->loop; l; l = t->graph->loops.at[l].parent) times *= t->trip[l][0];
        n += times;
    }
    return n;
}

static void count_entry(void *n, const struct entry *entry)
{
    if (entry->launch.out[0].data) ++*(uint64_t *)n;
}

/* Runs node by node, without and with timing and an observer, which see every launch; then the
 * captured graph once more. */
static void check_nodes(const char *name, struct side *s, id tensor)
{
    struct timing timing = {0};
    const uint64_t launches = count_launches(&s->tape);
    uint64_t calls = 0;
    double seconds = 0;
    char detail[96];
    s->tape.nodes = true;
    check_relaunch(name, "node by node bit-equal", s, tensor, true);
    s->tape.nodes = false;
    timing_init(&timing, s->graph);
    timing_record_events(&timing, (uint32_t)launches);
    s->tape.timing = &timing;
    check_relaunch(name, "timed bit-equal", s, tensor, true);
    s->tape.timing = NULL;
    for (id n = 1; n < timing.nodes; n++) calls += timing.calls[n], seconds += timing.seconds[n];
    bool ordered = timing.n_events == launches;
    for (uint32_t i = 0; i < timing.n_events; i++)
        ordered &=
            timing.events[i].to >= timing.events[i].from && (!i || timing.events[i].to >= timing.events[i - 1].to);
    snprintf(detail, sizeof detail, "%llu of %llu launches, %.1f us", (unsigned long long)calls,
             (unsigned long long)launches, 1e6 * seconds);
    report(name, "timed", calls == launches && ordered && seconds > 0, detail);
    timing_free(&timing);
    calls = 0;
    s->tape.observe = count_entry;
    s->tape.observer = &calls;
    check_relaunch(name, "observed bit-equal", s, tensor, true);
    s->tape.observe = NULL;
    snprintf(detail, sizeof detail, "%llu of %llu launches", (unsigned long long)calls, (unsigned long long)launches);
    report(name, "observed", calls == launches, detail);
    check_relaunch(name, "graph behind nodes", s, tensor, true);
}

/* Many launches capture nothing and allocate nothing on the GPU. */
static void check_steady(const char *name, struct side *s, id tensor, uint64_t captures)
{
    struct cuda_view before, after;
    char first[8], detail[160];
    if (!cuda_get_view(&s->device, &before)) {
        report_skip(name, "no GPU to inspect");
        return;
    }
    double start = clock_seconds();
    for (int i = 0; i < more_launches(); i++)
        if (!side_run(s, PROGRAM_STEP, name)) return;
    uint64_t bytes = tensor_bytes(tensor_at(s->graph, tensor));
    if (!side_read(s, tensor, first, bytes < sizeof first ? bytes : sizeof first, name)) return;
    double each = (clock_seconds() - start) / more_launches();
    cuda_get_view(&s->device, &after);
    snprintf(detail, sizeof detail, "%llu captured (%llu nodes), %d more launches, %.1f us each",
             (unsigned long long)after.captures, (unsigned long long)after.nodes, more_launches(), each * 1e6);
    report(name, "captured once",
           after.captures == captures && after.launches >= before.launches + (uint64_t)more_launches(), detail);
    if (small) { /* a memory checker allocates GPU memory itself */
        report_skip(name, "free memory is compared without --small only");
        return;
    }
    snprintf(detail, sizeof detail, "%lld bytes less free, of %llu", (long long)(before.free_bytes - after.free_bytes),
             (unsigned long long)after.total_bytes);
    report(name, "memory steady", before.free_bytes == after.free_bytes, detail);
}

/* Planning for a GPU needs no GPU; the library's workspace is the cap in the profile. */
static void check_planned(const char *name, const struct graph *g)
{
    struct error e = {0};
    struct profile gpu;
    struct plan p = {0};
    profile_default(&gpu, DEVICE_CUDA, 0);
    if (!report_call(name, "planned", plan_place(&p, g, &gpu, &e), &e)) return;
    bool ok = true;
    for (id n = 1; n < g->nodes.n; n++)
        if (node_at(g, n)->op == OP_LINEAR) ok &= p.placement.binding[n].work_bytes == gpu.library_workspace;
    char detail[64];
    snprintf(detail, sizeof detail, "arena %llu bytes", (unsigned long long)plan_arena(&p));
    report(name, "planned", ok, detail);
    plan_free(&p);
}

/* --- the gated block -------------------------------------------------------------------
 *
 *     y = x + down(silu(gate(h)) * up(h)) + bias,   h = rmsnorm(x)
 */

struct block_case {
    const char *name;
    int64_t rows, C, N;
    enum dtype dtype;
    bool bias;
    bool each;  /* every op's result is kept and compared, not only the last */
    bool real;  /* the reference gets PERIOD rows */
};

struct block {
    id x, norm, gate, up, down, bias; /* filled by the caller */
    id y;
    struct { const char *name; id tensor; } step[8]; /* intermediate results */
    int steps;
};

static id keep(struct graph *g, struct block *b, bool each, const char *name, id tensor)
{
    if (each && tensor) {
        graph_output(g, name, tensor);
        b->step[b->steps].name = name;
        b->step[b->steps++].tensor = tensor;
    }
    return tensor;
}

static struct block build_block(struct graph *g, const struct block_case *c, int64_t rows)
{
    struct block b = {0};
    const struct init zero = {INIT_ZERO, 0, 0};
    graph_init(g);
    b.x = graph_input(g, "x", c->dtype, 2, (int64_t[]){rows, c->C});
    b.norm = graph_param(g, "norm", c->dtype, 1, (int64_t[]){c->C}, zero);
    b.gate = graph_param(g, "gate", c->dtype, 2, (int64_t[]){c->N, c->C}, zero);
    b.up = graph_param(g, "up", c->dtype, 2, (int64_t[]){c->N, c->C}, zero);
    b.down = graph_param(g, "down", c->dtype, 2, (int64_t[]){c->C, c->N}, zero);
    if (c->bias) b.bias = graph_param(g, "bias", c->dtype, 1, (int64_t[]){c->C}, zero);
    id h = keep(g, &b, c->each, "rmsnorm", op_rmsnorm(g, b.x, b.norm, 1e-5f));
    if (h) keep(g, &b, c->each, "rstd", node_at(g, tensor_at(g, h)->node)->out[1]);
    id gate = keep(g, &b, c->each, "linear gate", op_linear(g, h, b.gate, 0));
    id up = keep(g, &b, c->each, "linear up", op_linear(g, h, b.up, 0));
    id act = keep(g, &b, c->each, "silu_gate", op_silu_gate(g, gate, up));
    id down = keep(g, &b, c->each, c->bias ? "linear down + bias" : "linear down", op_linear(g, act, b.down, b.bias));
    b.y = op_add(g, b.x, down);
    graph_output(g, "y", b.y);
    graph_verify(g, "test");
    return b;
}

static bool fill_block(struct side *s, const struct block *b, const struct block_case *c)
{
    const struct { id tensor; double mean, deviation; } in[] = {
        {b->x, 0, 1},  {b->norm, 1, 0.2}, {b->gate, 0, 1 / sqrt((double)c->C)}, {b->up, 0, 1 / sqrt((double)c->C)},
        {b->down, 0, 1 / sqrt((double)c->N)}, {b->bias, 0, 0.5}};
    bool ok = true;
    for (size_t i = 0; i < COUNT(in) && ok; i++) {
        if (!in[i].tensor) continue;
        int64_t period = in[i].tensor == b->x && c->real ? PERIOD : 0;
        void *data = make_noise(s->graph, in[i].tensor, in[i].mean, in[i].deviation, period);
        ok = side_write(s, in[i].tensor, data, tensor_bytes(tensor_at(s->graph, in[i].tensor)), c->name);
        mem_free(data);
    }
    return ok;
}

static void compare_block(const struct block_case *c, const struct block *b, struct side *got, struct side *want)
{
    const double length = (double)(c->C + c->N);
    for (int i = 0; i < b->steps; i++)
        compare_sides(c->name, b->step[i].name, got, want, b->step[i].tensor,
                      tolerance(tensor_at(got->graph, b->step[i].tensor)->dtype, length));
    compare_sides(c->name, "y", got, want, b->y, tolerance(c->dtype, length));
}

static void test_block(const struct block_case *c, bool run)
{
    struct graph on_gpu, on_reference;
    struct side got = {0}, want = {0};
    struct error e = {0};
    const struct block b = build_block(&on_gpu, c, c->rows);
    build_block(&on_reference, c, c->real ? PERIOD : c->rows);
    if (report_call(c->name, "build", graph_error(&on_gpu, &e), &e)) {
        check_planned(c->name, &on_gpu);
        if (!run) {
            report_skip(c->name, "no GPU");
        } else if (side_open(&want, &on_reference, DEVICE_REF, c->name) && side_open(&got, &on_gpu, subject, c->name) &&
                   fill_block(&want, &b, c) && fill_block(&got, &b, c) && side_run(&want, PROGRAM_STEP, c->name) &&
                   side_run(&got, PROGRAM_STEP, c->name)) {
            compare_block(c, &b, &got, &want);
            check_repeats(c->name, &got, b.y);
            check_nodes(c->name, &got, b.y);
            check_steady(c->name, &got, b.y, 1);
        }
    }
    side_close(&got);
    side_close(&want);
    graph_free(&on_gpu);
    graph_free(&on_reference);
}

/* --- a loop ----------------------------------------------------------------------------------
 *
 *     sum = 0;  loop TRIP { y[i] = x[i] w^T + b;  sum += y[i] };  z = sum + sum
 *
 * Slices have 3 x 33 elements, so iterations differ in alignment. With fewer iterations the later
 * slices of y keep their values. */

enum { TRIP = 4, FEWER = 2 };

struct walk {
    id x, w, bias, y, z;
    id loop;
};

static struct walk build_walk(struct graph *g)
{
    const int64_t rows = 3, C = 33, N = 20;
    const struct init zero = {INIT_ZERO, 0, 0};
    struct walk k;
    graph_init(g);
    k.x = graph_input(g, "x", DT_F32, 3, (int64_t[]){TRIP, rows, C});
    k.w = graph_param(g, "w", DT_F32, 2, (int64_t[]){N, C}, zero);
    k.bias = graph_param(g, "bias", DT_F32, 1, (int64_t[]){N}, zero);
    id store = graph_storage(g, "y", KIND_OUTPUT, SPACE_DEVICE, (uint64_t)(TRIP * rows * N) * sizeof(float));
    k.y = graph_tensor(g, "y", store, DT_F32, 3, (int64_t[]){TRIP, rows, N}, 0);
    id sum = op_fill(g, DT_F32, 2, (int64_t[]){rows, N}, 0);

    k.loop = g->at.loop = graph_loop(g, "slices", TRIP);
    id from = graph_view(g, k.x, DT_F32, 2, (int64_t[]){rows, C}, NULL, 0);
    tensor_at(g, from)->loop = k.loop;
    tensor_at(g, from)->advance = rows * C * (int64_t)sizeof(float);
    id to = graph_view(g, k.y, DT_F32, 2, (int64_t[]){rows, N}, NULL, 0);
    tensor_at(g, to)->loop = k.loop;
    tensor_at(g, to)->advance = rows * N * (int64_t)sizeof(float);
    id slice = op_linear(g, from, k.w, k.bias);
    graph_redirect(g, slice, to);
    sum = op_accumulate(g, slice, sum);
    g->at.loop = 0;
    k.z = op_add(g, sum, sum);
    graph_output(g, "z", k.z);
    graph_verify(g, "test");
    return k;
}

/* One run with `trip` iterations, on its own inputs. */
static bool run_walk(struct side *s, const struct walk *k, uint32_t trip, double mean, const char *name)
{
    const id in[] = {k->x, k->w, k->bias};
    for (size_t i = 0; i < COUNT(in); i++) {
        void *data = make_noise(s->graph, in[i], mean, 1, 0);
        bool ok = side_write(s, in[i], data, tensor_bytes(tensor_at(s->graph, in[i])), name);
        mem_free(data);
        if (!ok) return false;
    }
    s->tape.trip[k->loop][0] = trip;
    return side_run(s, PROGRAM_STEP, name);
}

static void test_loop(bool run)
{
    const char *name = "loop f32";
    struct graph g;
    struct side got = {0}, want = {0};
    struct error e = {0};
    const struct walk k = build_walk(&g);
    if (report_call(name, "build", graph_error(&g, &e), &e)) {
        check_planned(name, &g);
        if (!run) report_skip(name, "no GPU");
        else if (side_open(&want, &g, DEVICE_REF, name) && side_open(&got, &g, subject, name)) {
            const uint32_t asked[] = {TRIP, FEWER};
            for (size_t i = 0; i < COUNT(asked); i++)
                if (run_walk(&want, &k, asked[i], 0.5 * (double)i, name) &&
                    run_walk(&got, &k, asked[i], 0.5 * (double)i, name)) {
                    compare_sides(name, i ? "y, fewer iterations" : "y", &got, &want, k.y, tolerance(DT_F32, 33));
                    compare_sides(name, i ? "sum, fewer iterations" : "sum", &got, &want, k.z,
                                  tolerance(DT_F32, 33 * TRIP));
                }
            check_repeats(name, &got, k.y);
            check_nodes(name, &got, k.z);
            got.tape.trip[k.loop][0] = TRIP;
            side_run(&got, PROGRAM_STEP, name);
            check_nodes(name, &got, k.y);
            check_steady(name, &got, k.z, TRIP + 2); /* before the loop, iterations, after it */
        }
    }
    side_close(&got);
    side_close(&want);
    graph_free(&g);
}

/* --- a loop whose iterations depend on labels, in a loop -----------------------------------------
 *
 *     sum = 0;  loop OUTER { a = x[o] / 2;  loop TRIP { sum += a[i] w^T } };  z = sum + sum
 *
 * The inner loop has fewer iterations in some iterations of the outer loop. */

enum { OUTER = 2 };

static struct walk build_nested(struct graph *g)
{
    const int64_t rows = 3, C = 33, N = 20;
    struct walk k = {0};
    graph_init(g);
    k.x = graph_input(g, "x", DT_F32, 3, (int64_t[]){OUTER, TRIP * rows, C});
    k.w = graph_param(g, "w", DT_F32, 2, (int64_t[]){N, C}, (struct init){INIT_ZERO, 0, 0});
    id sum = op_fill(g, DT_F32, 2, (int64_t[]){rows, N}, 0);
    const id outer = g->at.loop = graph_loop(g, "batches", OUTER);
    id from = graph_view(g, k.x, DT_F32, 2, (int64_t[]){TRIP * rows, C}, NULL, 0);
    tensor_at(g, from)->loop = outer;
    tensor_at(g, from)->advance = TRIP * rows * C * (int64_t)sizeof(float);
    id a = op_scale(g, from, 0.5);
    k.loop = g->at.loop = graph_loop(g, "rows", TRIP);
    g->loops.at[k.loop].counted = tensor_at(g, k.x)->storage;
    g->loops.at[k.loop].rows = (uint32_t)rows;
    id slice = graph_view(g, a, DT_F32, 2, (int64_t[]){rows, C}, NULL, 0);
    tensor_at(g, slice)->loop = k.loop;
    tensor_at(g, slice)->advance = rows * C * (int64_t)sizeof(float);
    sum = op_accumulate(g, op_linear(g, slice, k.w, 0), sum);
    g->at.loop = 0;
    k.z = op_add(g, sum, sum);
    graph_output(g, "z", k.z);
    graph_verify(g, "test");
    return k;
}

static bool run_nested(struct side *s, const struct walk *k, const uint32_t trips[OUTER], const char *name)
{
    const id in[] = {k->x, k->w};
    for (size_t i = 0; i < COUNT(in); i++) {
        void *data = make_noise(s->graph, in[i], 0.5, 1, 0);
        bool ok = side_write(s, in[i], data, tensor_bytes(tensor_at(s->graph, in[i])), name);
        mem_free(data);
        if (!ok) return false;
    }
    memcpy(s->tape.trip[k->loop], trips, OUTER * sizeof *trips);
    return side_run(s, PROGRAM_STEP, name);
}

static void test_nested(bool run)
{
    static const uint32_t asked[][OUTER] = {{TRIP, TRIP}, {3, 1}, {1, TRIP}};
    const char *name = "nested loop f32";
    struct graph g;
    struct side got = {0}, want = {0};
    struct error e = {0};
    const struct walk k = build_nested(&g);
    if (report_call(name, "build", graph_error(&g, &e), &e)) {
        check_planned(name, &g);
        if (!run) report_skip(name, "no GPU");
        else if (side_open(&want, &g, DEVICE_REF, name) && side_open(&got, &g, subject, name)) {
            for (size_t i = 0; i < COUNT(asked); i++)
                if (run_nested(&want, &k, asked[i], name) && run_nested(&got, &k, asked[i], name))
                    compare_sides(name, i ? "sum, fewer iterations" : "sum", &got, &want, k.z,
                                  tolerance(DT_F32, 33 * TRIP * OUTER));
            check_repeats(name, &got, k.z);
            /* before and after; in each batch before its rows, and the rows */
            check_steady(name, &got, k.z, 2 + OUTER * (1 + TRIP));
        }
    }
    side_close(&got);
    side_close(&want);
    graph_free(&g);
}

/* --- two lanes -------------------------------------------------------------------------------
 *
 *     a = x + x;   host = copy(a);   b = silu(a) * x;   back = copy(host);   y = back + b
 *
 * The copy lane moves `a` to host memory and back while the compute lane works. Another tensor may
 * reuse the bytes of `a`, and must wait for the copy. */

static void test_lanes(bool run)
{
    const char *name = "lanes bf16";
    struct graph g;
    struct side got = {0}, want = {0};
    struct error e = {0};
    graph_init(&g);
    id x = graph_input(&g, "x", DT_BF16, 2, (int64_t[]){small ? 65 : 2048, 1023});
    id a = op_add(&g, x, x), host = op_copy(&g, a, SPACE_HOST);
    id b = op_silu_gate(&g, a, x), back = op_copy(&g, host, SPACE_DEVICE);
    id y = op_add(&g, back, b);
    graph_output(&g, "y", y);
    graph_verify(&g, "test");
    if (report_call(name, "build", graph_error(&g, &e), &e)) {
        check_planned(name, &g);
        if (!run) report_skip(name, "no GPU");
        else if (side_open(&want, &g, DEVICE_REF, name) && side_open(&got, &g, subject, name)) {
            void *data = make_noise(&g, x, 0, 1, 0);
            const uint64_t bytes = tensor_bytes(tensor_at(&g, x));
            if (side_write(&want, x, data, bytes, name) && side_write(&got, x, data, bytes, name) &&
                side_run(&want, PROGRAM_STEP, name) && side_run(&got, PROGRAM_STEP, name)) {
                compare_sides(name, "y", &got, &want, y, tolerance(DT_BF16, 1));
                check_repeats(name, &got, y);
                check_nodes(name, &got, y);
                check_steady(name, &got, y, 1);
            }
            mem_free(data);
        }
    }
    side_close(&got);
    side_close(&want);
    graph_free(&g);
}

/* --- the update ------------------------------------------------------------------------------
 *
 * Several parameters of odd sizes, with and without a lower-precision copy and a clip factor. One
 * graph serves every step: the step block is written between launches. A step with found_inf leaves
 * every byte unchanged. */

enum { PARAMS = 5, STEPS = 6, SKIPPED_STEP = 3 };

struct update {
    id p[PARAMS], g[PARAMS], m[PARAMS], v[PARAMS], w[PARAMS], clip;
};

static id state_tensor(struct graph *g, const char *name, enum kind kind, enum dtype t, int64_t n)
{
    id s = graph_storage(g, name, kind, SPACE_DEVICE, (uint64_t)n * dtype_size(t));
    return graph_tensor(g, name, s, t, 1, &n, 0);
}

static struct update build_update(struct graph *g)
{
    const int64_t size[PARAMS] = {1, 3, 1000, 4097, small ? 5000 : 1 << 20};
    const enum dtype copy[PARAMS] = {DT_NONE, DT_BF16, DT_NONE, DT_F16, DT_BF16};
    struct update u = {0};
    graph_init(g);
    g->at.program = PROGRAM_UPDATE;
    g->at.phase = PHASE_UPDATE;
    u.clip = graph_input(g, "clip", DT_F32, 1, (int64_t[]){2});
    for (int i = 0; i < PARAMS; i++) {
        const union attr attr = {.adamw = {0.9f, 0.95f, 1e-8f, i % 2 ? 0.1f : 0, 1.0f - 0.1f * (float)i}};
        u.p[i] = state_tensor(g, "p", KIND_MASTER, DT_F32, size[i]);
        u.g[i] = state_tensor(g, "g", KIND_GRAD, DT_F32, size[i]);
        u.m[i] = state_tensor(g, "m", KIND_STATE, DT_F32, size[i]);
        u.v[i] = state_tensor(g, "v", KIND_STATE, DT_F32, size[i]);
        if (copy[i]) u.w[i] = state_tensor(g, "w", KIND_PARAM, copy[i], size[i]);
        const id in[] = {u.p[i], u.g[i], u.m[i], u.v[i], graph_step(g), i % 3 ? u.clip : 0, u.w[i]};
        graph_emit(g, OP_ADAMW, &attr, in, u.w[i] ? 7 : 6);
    }
    graph_verify(g, "test");
    return u;
}

/* m and v start as zero, like the arena. */
static bool start_update(struct side *s, const struct update *u, const char *name)
{
    bool ok = side_write(s, u->clip, (float[]){3.5f, 0.75f}, 2 * sizeof(float), name);
    for (int i = 0; i < PARAMS && ok; i++) {
        void *data = make_noise(s->graph, u->p[i], 0, 0.5, 0);
        ok = side_write(s, u->p[i], data, tensor_bytes(tensor_at(s->graph, u->p[i])), name);
        mem_free(data);
    }
    return ok;
}

static bool step_update(struct side *s, const struct update *u, int step, const char *name)
{
    const struct step_block block = {.learning_rate = 0.01f / (float)step,
                                     .step = step,
                                     .adam_t = step > SKIPPED_STEP ? step - 1 : step,
                                     .found_inf = step == SKIPPED_STEP};
    bool ok = side_write(s, s->graph->step, &block, sizeof block, name);
    for (int i = 0; i < PARAMS && ok; i++) {
        void *data = make_noise(s->graph, u->g[i], 0.1 * step, 1, 0);
        ok = side_write(s, u->g[i], data, tensor_bytes(tensor_at(s->graph, u->g[i])), name);
        mem_free(data);
    }
    return ok && side_run(s, PROGRAM_UPDATE, name);
}

/* One hash of everything that an update may change. */
static uint64_t hash_update(struct side *s, const struct update *u, const char *name)
{
    uint64_t hash = SEED;
    for (int i = 0; i < PARAMS; i++) {
        const id all[] = {u->p[i], u->m[i], u->v[i], u->w[i]};
        for (size_t k = 0; k < COUNT(all); k++) {
            if (!all[k]) continue;
            const uint64_t bytes = tensor_bytes(tensor_at(s->graph, all[k]));
            void *data = mem_alloc(bytes);
            if (side_read(s, all[k], data, bytes, name)) hash = hash_bytes(data, bytes, hash);
            mem_free(data);
        }
    }
    return hash;
}

static void compare_update(const char *name, const struct update *u, struct side *got, struct side *want)
{
    const double tol = tolerance(DT_F32, STEPS);
    char what[32];
    for (int i = 0; i < PARAMS; i++) {
        const id all[] = {u->p[i], u->m[i], u->v[i], u->w[i]};
        for (size_t k = 0; k < COUNT(all); k++) {
            if (!all[k]) continue;
            const struct tensor *x = tensor_at(got->graph, all[k]);
            snprintf(what, sizeof what, "%c %s[%lld]", "pmvw"[k], dtype_name(x->dtype), (long long)x->dim[0]);
            compare_sides(name, what, got, want, all[k], k == 3 ? tolerance(x->dtype, STEPS) : tol);
        }
    }
}

static void run_update(const char *name, const struct update *u, struct side *got, struct side *want)
{
    if (!start_update(got, u, name) || !start_update(want, u, name)) return;
    for (int step = 1; step <= STEPS; step++) {
        const uint64_t before = hash_update(got, u, name);
        if (!step_update(got, u, step, name) || !step_update(want, u, step, name)) return;
        const bool same = hash_update(got, u, name) == before;
        if (step == SKIPPED_STEP) report(name, "found_inf", same, same ? "nothing changed" : "bytes changed");
        else if (same) report(name, "step", false, "nothing changed");
    }
    compare_update(name, u, got, want);
    struct cuda_view v;
    char detail[64];
    if (!cuda_get_view(&got->device, &v)) {
        report_skip(name, "no GPU to inspect");
        return;
    }
    snprintf(detail, sizeof detail, "%llu captured, %llu launches", (unsigned long long)v.captures,
             (unsigned long long)v.launches);
    report(name, "captured once", v.captures == 1 && v.launches == STEPS, detail);
}

static void test_update(bool run)
{
    const char *name = "adamw";
    struct graph g;
    struct side got = {0}, want = {0};
    struct error e = {0};
    const struct update u = build_update(&g);
    if (report_call(name, "build", graph_error(&g, &e), &e)) {
        check_planned(name, &g);
        if (!run) report_skip(name, "no GPU");
        else if (side_open(&want, &g, DEVICE_REF, name) && side_open(&got, &g, subject, name))
            run_update(name, &u, &got, &want);
    }
    side_close(&got);
    side_close(&want);
    graph_free(&g);
}

/* The same weights, updated on the device and on the host beside it (LANE_HOST): the same bits
 * after every step, and after those node by node. */
static void test_host_update(bool run)
{
    const char *name = "adamw on the host";
    struct graph g, h;
    struct side device = {0}, host = {0};
    struct error e = {0};
    const struct update u = build_update(&g), v = build_update(&h);
    pass_offload(&h, &(struct settings){.offload = OFFLOAD_STATE | OFFLOAD_MASTERS | OFFLOAD_UPDATE, .accumulation = 1,
                                        .micro_batch = 1, .device = device_traits(DEVICE_CUDA)});
    graph_verify(&h, "offload");
    if (report_call(name, "build", graph_error(&h, &e), &e)) check_planned(name, &h);
    if (!run) report_skip(name, "no GPU");
    else if (side_open(&device, &g, subject, name) && side_open(&host, &h, subject, name) &&
             start_update(&device, &u, name) && start_update(&host, &v, name)) {
        bool same = true;
        for (int step = 1; step <= 2 * STEPS; step++) {
            host.tape.nodes = step > STEPS;
            same &= step_update(&device, &u, step, name) && step_update(&host, &v, step, name) &&
                    hash_update(&device, &u, name) == hash_update(&host, &v, name);
        }
        report(name, "bits", same, same ? "those of the device" : "other than on the device");
    }
    side_close(&device);
    side_close(&host);
    graph_free(&g);
    graph_free(&h);
}

/* --- many weights ----------------------------------------------------------------------------
 *
 * The norm of many gradients, then their updates. A captured graph runs these as a few launches
 * (batch.c). Execution node by node, with a launch for each, must give the same bits. One weight is
 * updated twice in a row: those two updates are not batched. */

enum { MANY = 150, TWICE = 25 };

struct many {
    id p[MANY], g[MANY], m[MANY], v[MANY], w[MANY], clip;
};

static struct many build_many(struct graph *g, enum dtype master, enum dtype moment, enum dtype gradient)
{
    const int64_t size[] = {768, 1, 3, 1280, 16384, 16385, 70001, 5, 12, 40000};
    struct many u = {0};
    graph_init(g);
    g->at.program = PROGRAM_UPDATE;
    g->at.phase = PHASE_UPDATE;
    id sum = op_fill(g, DT_F64, 0, NULL, 0);
    for (int i = 0; i < MANY; i++) {
        const int64_t n = i == 77 && !small ? 3000007 : size[i % (int)COUNT(size)];
        u.p[i] = state_tensor(g, "p", KIND_MASTER, master, n);
        u.g[i] = state_tensor(g, "g", KIND_GRAD, gradient, n);
        u.m[i] = state_tensor(g, "m", KIND_STATE, moment, n);
        u.v[i] = state_tensor(g, "v", KIND_STATE, moment, n);
        if (i % 3) u.w[i] = state_tensor(g, "w", KIND_PARAM, i == 100 ? DT_F16 : DT_BF16, n);
        sum = op_apply(g, OP_SUMSQ, NULL, (id[]){u.g[i], sum}, 2);
    }
    u.clip = op_apply(g, OP_CLIP, NULL, (id[]){sum, graph_step(g)}, 2);
    graph_output(g, "clip", u.clip);
    for (int k = 0; k <= MANY; k++) {
        const int i = k <= TWICE ? k : k - 1;
        const union attr attr = {
            .adamw = {0.9f, 0.95f, 1e-8f, k % 2 ? 0.1f : 0, 1.0f - 0.005f * (float)k, (uint64_t)k}};
        graph_emit(g, OP_ADAMW, &attr, (id[]){u.p[i], u.g[i], u.m[i], u.v[i], graph_step(g), u.clip, u.w[i]},
                   u.w[i] ? 7 : 6);
    }
    graph_verify(g, "test");
    return u;
}

/* Each run starts from the same values. */
static bool run_many(struct side *s, const struct many *u, const char *name)
{
    const struct step_block block =
        {.learning_rate = 0.01f, .clip_norm = 1, .loss_scale = 1, .step = 3, .adam_t = 3, .seed = SEED};
    bool ok = side_write(s, s->graph->step, &block, sizeof block, name);
    for (int i = 0; i < MANY && ok; i++) {
        const id all[] = {u->p[i], u->g[i], u->m[i], u->v[i]};
        for (size_t k = 0; k < COUNT(all) && ok; k++) {
            void *data = make_noise(s->graph, all[k], k == 3 ? 2 : 0, k == 3 ? 0.5 : 1, 0);
            ok = side_write(s, all[k], data, tensor_bytes(tensor_at(s->graph, all[k])), name);
            mem_free(data);
        }
    }
    return ok && side_run(s, PROGRAM_UPDATE, name);
}

static uint64_t hash_many(struct side *s, const struct many *u, const char *name)
{
    uint64_t hash = SEED;
    for (int i = 0; i < 4 * MANY + 1; i++) {
        const id x = i == 4 * MANY ? u->clip
                     : i % 4 == 0  ? u->p[i / 4]
                     : i % 4 == 1  ? u->m[i / 4]
                     : i % 4 == 2  ? u->v[i / 4]
                                   : u->w[i / 4];
        if (!x) continue;
        const uint64_t bytes = tensor_bytes(tensor_at(s->graph, x));
        void *data = mem_alloc(bytes);
        if (side_read(s, x, data, bytes, name)) hash = hash_bytes(data, bytes, hash);
        mem_free(data);
    }
    return hash;
}

static void check_many(const char *name, const struct many *u, struct side *got, struct side *want)
{
    struct timing timing = {0};
    struct cuda_view v;
    char detail[64];
    if (!run_many(want, u, name) || !run_many(got, u, name)) return;
    const uint64_t captured = hash_many(got, u, name);
    const id some[] = {u->clip, u->p[0], u->p[6], u->p[TWICE], u->p[77], u->v[77], u->w[100], u->p[MANY - 1]};
    for (size_t i = 0; i < COUNT(some); i++) {
        const id stored = some[i] == u->p[TWICE] ? u->m[TWICE] : some[i]; /* the second update reads rounded values */
        compare_sides(name, graph_name(got->graph, tensor_at(got->graph, some[i])->name), got, want, some[i],
                      tolerance(tensor_at(got->graph, stored)->dtype, STEPS));
    }
    got->tape.nodes = true;
    if (run_many(got, u, name)) report(name, "node by node bit-equal", hash_many(got, u, name) == captured, "");
    got->tape.nodes = false;
    timing_init(&timing, got->graph);
    timing_record_events(&timing, (uint32_t)got->tape.program[PROGRAM_UPDATE].n);
    got->tape.timing = &timing;
    if (run_many(got, u, name)) report(name, "timed bit-equal", hash_many(got, u, name) == captured, "");
    got->tape.timing = NULL;
    report(name, "all are timed", timing.n_events == got->tape.program[PROGRAM_UPDATE].n, "");
    timing_free(&timing);
    if (!cuda_get_view(&got->device, &v)) return;
    snprintf(detail, sizeof detail, "%llu nodes of a captured graph", (unsigned long long)v.nodes);
    report(name, "few launches", v.nodes < 30, detail);
}

static void test_many(const char *name, enum dtype master, enum dtype moment, enum dtype gradient, bool run)
{
    struct graph g;
    struct side got = {0}, want = {0};
    struct error e = {0};
    const struct many u = build_many(&g, master, moment, gradient);
    if (report_call(name, "build", graph_error(&g, &e), &e)) {
        check_planned(name, &g);
        if (!run) report_skip(name, "no GPU");
        else if (side_open(&want, &g, DEVICE_REF, name) && side_open(&got, &g, subject, name))
            check_many(name, &u, &got, &want);
    }
    side_close(&got);
    side_close(&want);
    graph_free(&g);
}

/* --- many vectors ----------------------------------------------------------------------------
 *
 * Sums over micro-batches of the gradients of norms and biases: consecutive fills and additions,
 * most of short vectors. A captured graph runs these as a few launches. */

struct vectors_case {
    id x[MANY], y[MANY];
};

static struct vectors_case build_vectors(struct graph *g)
{
    const int64_t size[] = {768, 1, 3, 1280, 16384, 5, 12, 16385, 255, 257};
    struct vectors_case u = {0};
    id filled[MANY] = {0};
    graph_init(g);
    g->at.program = PROGRAM_UPDATE;
    g->at.phase = PHASE_UPDATE;
    for (int i = 0; i < MANY; i++) {
        const int64_t n = size[i % (int)COUNT(size)];
        u.x[i] = state_tensor(g, "x", KIND_STATE, i == 90 ? DT_BF16 : DT_F32, n);
        u.y[i] = state_tensor(g, "y", KIND_STATE, i == 120 ? DT_BF16 : DT_F32, n);
        filled[i] = op_fill(g, i == 40 ? DT_F16 : DT_F32, 1, &n, i < 70 ? 0.5 : -3);
    }
    for (int i = 0; i < MANY; i++) op_accumulate(g, i % 2 ? u.x[i] : filled[i], u.y[i]);
    /* a second addition to the same vector: not batched */
    op_accumulate(g, u.x[3], u.y[MANY - 1 - (MANY - 1) % (int)COUNT(size) + 3]);
    graph_verify(g, "test");
    return u;
}

static bool run_vectors(struct side *s, const struct vectors_case *u, const char *name)
{
    bool ok = true;
    for (int i = 0; i < 2 * MANY && ok; i++) {
        const id t = i < MANY ? u->x[i] : u->y[i - MANY];
        void *data = make_noise(s->graph, t, 0, 1, 0);
        ok = side_write(s, t, data, tensor_bytes(tensor_at(s->graph, t)), name);
        mem_free(data);
    }
    return ok && side_run(s, PROGRAM_UPDATE, name);
}

static uint64_t hash_vectors(struct side *s, const struct vectors_case *u, const char *name)
{
    uint64_t hash = SEED;
    for (int i = 0; i < MANY; i++) {
        const uint64_t bytes = tensor_bytes(tensor_at(s->graph, u->y[i]));
        void *data = mem_alloc(bytes);
        if (side_read(s, u->y[i], data, bytes, name)) hash = hash_bytes(data, bytes, hash);
        mem_free(data);
    }
    return hash;
}

static void check_vectors(const char *name, const struct vectors_case *u, struct side *got, struct side *want)
{
    struct cuda_view v;
    char detail[64];
    if (!run_vectors(want, u, name) || !run_vectors(got, u, name)) return;
    const uint64_t captured = hash_vectors(got, u, name);
    report(name, "the reference's bits", captured == hash_vectors(want, u, name), "");
    got->tape.nodes = true;
    if (run_vectors(got, u, name)) report(name, "node by node bit-equal", hash_vectors(got, u, name) == captured, "");
    got->tape.nodes = false;
    if (!cuda_get_view(&got->device, &v)) return;
    snprintf(detail, sizeof detail, "%llu nodes of a captured graph", (unsigned long long)v.nodes);
    report(name, "few launches", v.nodes < 2 * MANY / 2, detail);
}

static void test_vectors(const char *name, bool run)
{
    struct graph g;
    struct side got = {0}, want = {0};
    struct error e = {0};
    const struct vectors_case u = build_vectors(&g);
    if (report_call(name, "build", graph_error(&g, &e), &e)) {
        check_planned(name, &g);
        if (!run) report_skip(name, "no GPU");
        else if (side_open(&want, &g, DEVICE_REF, name) && side_open(&got, &g, subject, name))
            check_vectors(name, &u, &got, &want);
    }
    side_close(&got);
    side_close(&want);
    graph_free(&g);
}

#include "cuda_pipeline.inc"

/* --- all ------------------------------------------------------------------------------------ */

static const struct block_case blocks[] = {
    {"odd f32, each op", 7, 33, 50, DT_F32, true, true, false},
    {"odd f32", 7, 33, 50, DT_F32, false, false, false},
    {"odd bf16, each op", 7, 33, 50, DT_BF16, true, true, false},
    {"odd bf16", 7, 33, 50, DT_BF16, false, false, false},
    {"odd f16, each op", 7, 33, 50, DT_F16, true, true, false},
    {"one row f32", 1, 5, 3, DT_F32, true, true, false},
    {"even f32, each op", 48, 64, 96, DT_F32, true, true, false},
    {"even bf16, each op", 48, 64, 96, DT_BF16, true, true, false},
    {"real f32", 2048, 1024, 4096, DT_F32, false, false, true},
    {"real f32, bias", 2048, 1024, 4096, DT_F32, true, false, true},
    {"real bf16", 2048, 1024, 4096, DT_BF16, false, false, true},
    {"real bf16, bias", 2048, 1024, 4096, DT_BF16, true, false, true},
};

/* Prints the tested device in one line. */
static void print_subject(bool run)
{
    struct device d;
    struct error e = {0};
    struct cuda_view v;
    printf("device %s: %s; seed %d\n", subject == DEVICE_CUDA ? "cuda" : "cpu",
           !run ? "no GPU, or a build without CUDA: the cases are planned only" : "running", SEED);
    if (!run || subject != DEVICE_CUDA) return;
    int rc = device_open(&d, DEVICE_CUDA, 0, &e);
    if (report_call("device", "open", rc, &e) && cuda_get_view(&d, &v))
        printf("%s, %llu of %llu bytes free\n", v.gpu, (unsigned long long)v.free_bytes,
               (unsigned long long)v.total_bytes);
    device_close(&d, NULL);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--small")) small = true;
        else if (!strcmp(argv[i], "--device") && i + 1 < argc && !strcmp(argv[i + 1], "cpu")) subject = DEVICE_CPU, i++;
        else {
            fprintf(stderr, "usage: cuda_seam [--small] [--device cpu]; found '%s'\n", argv[i]);
            return 2;
        }
    }
    const bool run = subject == DEVICE_CPU || cuda_gpus() > 0;
    print_subject(run);
    printf("%-26s %-22s %-6s %s\n", "case", "check", "", "relative L2 of tolerance, or detail");
    for (size_t i = 0; i < COUNT(blocks); i++)
        if (!small || !blocks[i].real) test_block(&blocks[i], run);
    test_nested(run);
    test_loop(run);
    test_lanes(run);
    test_update(run);
    test_host_update(run);
    test_many("many f32", DT_F32, DT_F32, DT_F32, run);
    test_many("many, bf16 moments", DT_F32, DT_BF16, DT_F32, run);
    test_many("many bf16", DT_BF16, DT_BF16, DT_BF16, run);
    test_vectors("many vectors", run);
    test_pipelined("a batch ahead", "next", AHEAD, run_ahead, run);
    test_pipelined("steps without waiting", "tickets", DEVICE_EVENTS * 2 * AHEAD, run_pipeline, run);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed ? 1 : 0;
}
