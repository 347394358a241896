/*
 * test_gpu.c: GPU profiles. The profile that `bench --calibrate --set device=cuda` derives from the
 * times of a simulated GPU predicts that GPU. Also lanes, the profile that is distributed with
 * the program, and the widths of kernels.
 *
 * The simulated GPU takes for a launch what an H200 took for the most similar launch of the stored
 * trace (h200_trace.h): of the same op and dtype, with about as many flops and results, times the
 * ratio of their ideal times. No class of the calibration (cost/seconds.c) decides which. With
 * events a node takes EVENT longer than without. In a graph replay everything takes LOADED times as
 * long, and GAP longer per node. How exact the predictions are for the real GPU is the subject of
 * test_predict.c.
 */
#include "batch/batch_plan.h"
#include "cost/calibration.h"
#include "batch/feed.h"
#include "optest.h"
#include "h200_trace.h"

#include "io/file.h"
#include "plan/lanes.h"
#include "cost/profile.h"
#include "calibrate/calibrate.h"

#define EVENT 1.5e-6
#define GAP 0.8e-6
#define LOADED 1.04

static struct calibration given, taken;

static struct like {
    enum op op;
    uint8_t dtype;                          /* of the first result */
    double flops, elements, ideal, seconds; /* per launch; elements: of the first result */
} measured[512];
static int measured_count;

static struct like describe(const struct query *q, enum op op)
{
    return (
        struct like){op, q->out[0]->dtype, query_flops(q, op), (double)tensor_elements(q->out[0]), kernel_ideal(q, op),
                     0};
}

/* Adds the launches of a run of the trace. */
static void add_trace(const char *run, const struct profile *ideal)
{
    struct config c;
    struct run r;
    struct trace t = {0};
    struct error e = {0};
    trace_read(run, &c, &t);
    if (run_plan(&r, &c, &(struct run_options){.train = true, .describe = feed_describe}, &e)) fail_msg("%s", e.text);
    for (enum program p = PROGRAM_STEP; p <= PROGRAM_UPDATE; p++)
        for (uint32_t k = 0; k < r.planned.graph.order[p].nodes.n; k++) {
            const struct node *x = node_at(&r.planned.graph, r.planned.graph.order[p].nodes.at[k]);
            if (!node_launches(x) || !x->nout) continue;
            const struct traced key = traced_of(&r.planned.graph, p, x);
            struct traced *found = trace_find(&t, &key);
            struct query q;
            if (!found || found->matched) continue;
            found->matched = true;
            query_fill(&q, &r.planned.graph, x, ideal);
            assert_true(measured_count < (int)COUNT(measured));
            measured[measured_count] = describe(&q, x->op);
            measured[measured_count++].seconds = found->measured / (double)found->launches;
        }
    vec_free(&t.at);
    run_close(&r);
    config_free(&c);
}

static double ratio(double a, double b) { return fabs(log2(fmax(a, 1) / fmax(b, 1))); }

/* The kernel's own time on the simulated GPU; an op that the trace does not have takes twice its
 * ideal time. */
static double truth(const struct query *q, enum op op)
{
    const struct like x = describe(q, op), *nearest = NULL;
    double least = 0, factor = 2;
    for (const struct like *y = measured; y < measured + measured_count; y++) {
        const double far = ratio(x.flops, y->flops) + ratio(x.elements, y->elements);
        if (x.op == y->op && x.dtype == y->dtype && (!nearest || far < least)) nearest = y, least = far;
    }
    if (nearest) factor = fmax(nearest->seconds - 1e-6, nearest->ideal) / nearest->ideal;
    return 1e-6 + x.ideal * factor;
}

/* The sum over a program's nodes, and their number; fills `t` like node-by-node timing. */
static double sum_nodes(const struct run *r, const struct profile *p, struct timing *t, double *launches)
{
    double sum = 0;
    *launches = 0;
    for (int program = 0; program < PROGRAM_COUNT; program++)
        for (uint32_t k = 0; program != PROGRAM_EVAL && k < r->planned.graph.order[program].nodes.n; k++) {
            id n = r->planned.graph.order[program].nodes.at[k];
            const struct node *x = node_at(&r->planned.graph, n);
            struct query q;
            if (!node_launches(x)) continue;
            query_fill(&q, &r->planned.graph, x, p);
            q.kernel = r->planned.plan.placement.binding[n].kernel;
            const double times = (double)node_times(&r->planned.graph, x), one = truth(&q, x->op);
            sum += times * one;
            *launches += times;
            if (t) t->calls[n] = (uint32_t)times, t->seconds[n] = times * (one + EVENT);
        }
    return sum;
}

static double replayed(double sum, double launches) { return LOADED * sum + GAP * launches; }

TEST(test_fit)
{
    struct gpu_samples s = {0};
    struct profile ideal, p, again;
    struct error e = {0};
    struct config c;
    struct run_options o;
    const char *name;
    profile_default(&ideal, DEVICE_CUDA, 0);
    add_trace("llama-1b", &ideal);
    add_trace("sam-vit-b", &ideal);
    for (int i = 0; gpu_workload(i, DT_BF16, &c, &o, &name, &e); i++) {
        struct run r;
        struct timing t;
        double launches;
        if (e.code || run_plan(&r, &c, &o, &e)) fail_msg("%s: %s", name, e.text);
        assert_true(!r.planned.plan.missing[0] && !r.planned.plan.missing[1]);
        timing_init(&t, &r.planned.graph);
        double sum = sum_nodes(&r, &ideal, &t, &launches);
        gpu_add_samples(&s, name, &r, &t, replayed(sum, launches), &ideal);
        timing_free(&t);
        run_close(&r);
        config_free(&c);
    }
    p = ideal;
    memset(&given, 0, sizeof given);
    snprintf(given.cpu, sizeof given.cpu, "A GPU");
    snprintf(given.isa, sizeof given.isa, "sm_90");
    snprintf(given.date, sizeof given.date, "2026-01-02");
    gpu_fit(&s, &p, &given);
    /* EVENT appears in every node's time, and not in a replay's. */
    assert_true(fabs(s.speed - LOADED) < 0.01 && fabs(s.gap + LOADED * EVENT - GAP) < 0.2e-6);
    assert_true(given.classes < CLASSES_MOST);
    struct text out = {0}, twice = {0};
    profile_write(&p, &out);
    print_message("%u nodes, %d classes, %zu bytes\n", s.list.n, given.classes, out.n);
    if (profile_parse(out.at, out.n, &again, &taken, &e)) fail_msg("%s", e.text);
    assert_memory_equal(&given, &taken, sizeof given);
    profile_write(&again, &twice);
    assert_string_equal(out.at, twice.at);
    text_free(&out);
    text_free(&twice);
    gpu_free(&s);
}

/* Models and batch sizes that were not measured. The times of the simulated GPU jump where another
 * launch of the trace is the most similar one, and curves do not: vision models have many such
 * sizes, language models few. */
static const struct unmeasured {
    const char *preset;
    int batch, micro, sequence, chunks;
    const char *recompute;
    double within;
} unmeasured[] = {
    {"sam-vit-h", 4, 4, 2, 1, "none", 0.12},      {"sam-vit-h", 8, 8, 2, 8, "all", 0.12},
    {"sam-vit-h", 6, 1, 2, 2, "none", 0.12},      {"sam-vit-b", 3, 3, 2, 1, "none", 0.12},
    {"sam-vit-l", 4, 2, 2, 1, "selective", 0.12}, {"llama-1b", 6, 6, 2048, 2, "none", 0.03},
    {"llama-1b", 8, 4, 1024, 2, "none", 0.03},    {"tinysam", 4, 4, 2, 1, "none", 0.12},
    {"llama-7b", 2, 2, 2048, 8, "all", 0.03},
};

TEST(test_predicts)
{
    char path[] = "/tmp/plimsoll-GPU-XXXXXX";
    struct profile ideal, p;
    struct error e = {0};
    struct text out = {0};
    profile_default(&p, DEVICE_CUDA, 0);
    profile_default(&ideal, DEVICE_CUDA, 0);
    if (!given.classes) skip();
    close(mkstemp(path));
    p.measured = &given;
    p.launch_seconds = LOADED * 1e-6 + GAP;
    profile_write(&p, &out);
    assert_int_equal(file_write_atomic(path, out.at, out.n, &e), PL_OK);
    for (size_t i = 0; i < COUNT(unmeasured); i++) {
        struct config c;
        struct run r;
        char sets[8][96];
        double launches;
        int n = 0;
        config_init(&c);
        snprintf(sets[n++], 96, "model.preset=%s", unmeasured[i].preset);
        snprintf(sets[n++], 96, "data.sequence=%d", unmeasured[i].sequence);
        snprintf(sets[n++], 96, "train.effective_batch=%d", unmeasured[i].batch);
        snprintf(sets[n++], 96, "memory.micro_batch=%d", unmeasured[i].micro);
        snprintf(sets[n++], 96, "memory.head_chunks=%d", unmeasured[i].chunks);
        snprintf(sets[n++], 96, "memory.recompute=%s", unmeasured[i].recompute);
        snprintf(sets[n++], 96, "device.profile=%s", path);
        snprintf(sets[n++], 96, "device=cuda");
        for (int k = 0; k < n; k++)
            if (config_set(&c, sets[k], &e)) fail_msg("%s", e.text);
        if (config_set(&c, "memory.offload=none", &e) || config_set(&c, "train.clip_norm=1", &e))
            fail_msg("%s", e.text);
        if (run_plan(&r, &c, &(struct run_options){.train = true, .describe = feed_describe, .probe = true}, &e))
            fail_msg("%s", e.text);
        double sum = sum_nodes(&r, &ideal, NULL, &launches), takes = replayed(sum, launches);
        print_message("%s, %d of %d: %.4f s, predicted %.4f s: %+.1f %%\n", unmeasured[i].preset, unmeasured[i].micro,
                      unmeasured[i].batch, takes, r.planned.plan.seconds, 100 * (r.planned.plan.seconds / takes - 1));
        assert_true(fabs(r.planned.plan.seconds / takes - 1) < unmeasured[i].within);
        run_close(&r);
        config_free(&c);
    }
    unlink(path);
    text_free(&out);
}

/* Simulates a program with the waits of its tape, as a GPU executes them. */
static double simulate_tape(const struct tape *t, enum program p, const double *seconds)
{
    double free[LANE_COUNT] = {0}, total = 0, begun = 0, *done = mem_alloc((t->program[p].n + 1) * sizeof *done);
    id loop = 0;
    for (uint32_t k = 0; k <= t->program[p].n; k++) {
        const struct entry *x = &t->program[p].at[k];
        if (k < t->program[p].n && x->kind != ENTRY_LAUNCH) continue;
        double times = 1;
        for (id l = loop; l; l = t->graph->loops.at[l].parent) times *= t->graph->loops.at[l].trip;
        if (k == t->program[p].n || x->loop != loop) {
            double now = 0;
            for (int i = 0; i < LANE_COUNT; i++) now = fmax(now, free[i]);
            total += times * (now - begun);
            for (int i = 0; i < LANE_COUNT; i++) free[i] = now;
            begun = now;
            if (k == t->program[p].n) break;
            loop = x->loop;
            times = 1;
            for (id l = loop; l; l = t->graph->loops.at[l].parent) times *= t->graph->loops.at[l].trip;
        }
        double when = free[x->lane];
        for (int i = 0; i < x->nwait; i++) when = fmax(when, done[x->wait[i]]);
        free[x->lane] = done[k] = when + seconds[x->node] / times;
    }
    mem_free(done);
    return total;
}

static const char *const offload_settings[] = {"optimizer",
                                               "[optimizer, masters]",
                                               "weights",
                                               "activations",
                                               "[optimizer, masters, weights, activations]",
                                               "[optimizer, masters, update]",
                                               "[optimizer, masters, weights, activations, update]"};

/* Copies overlap with compute as the tape's waits allow: never less than the longer lane, never
 * more than the sum. */
TEST(test_lanes)
{
    struct profile ideal;
    profile_default(&ideal, DEVICE_CUDA, 0);
    for (size_t i = 0; i < 3 * COUNT(offload_settings); i++) {
        const bool fused = i >= 2 * COUNT(offload_settings);
        struct config c;
        struct run r;
        struct error e = {0};
        struct tape t;
        char set[96];
        const char *const sets[] = {"model.preset=sam-vit-b",
                                    "train.effective_batch=4",
                                    "memory.head_chunks=2",
                                    "device=cuda",
                                    "device.profile=h200",
                                    "memory.host_budget=none",
                                    fused ? "memory.micro_batch=4" : "memory.micro_batch=2",
                                    fused ? "memory.fused_step=on" : "memory.fused_step=off"};
        config_init(&c);
        for (size_t k = 0; k < COUNT(sets); k++)
            if (config_set(&c, sets[k], &e)) fail_msg("%s", e.text);
        snprintf(set, sizeof set, "memory.offload=%s", offload_settings[i % COUNT(offload_settings)]);
        if (config_set(&c, set, &e) ||
            config_set(&c, i < COUNT(offload_settings) ? "memory.recompute=none" : "memory.recompute=all", &e))
            fail_msg("%s", e.text);
        if (run_plan(&r, &c, &(struct run_options){.train = true, .describe = feed_describe}, &e))
            fail_msg("%s", e.text);
        double *seconds = mem_alloc(r.planned.graph.nodes.n * sizeof *seconds), whole = 0;
        char *const arena[SPACE_COUNT] = {0};
        for (id n = 1; n < r.planned.graph.nodes.n; n++) {
            const struct node *x = node_at(&r.planned.graph, n);
            struct query q;
            if (!node_launches(x)) continue;
            query_fill(&q, &r.planned.graph, x, &r.planned.profile);
            q.kernel = r.planned.plan.placement.binding[n].kernel;
            seconds[n] = kernel_seconds(&q, x->op);
            for (id l = x->loop; l; l = r.planned.graph.loops.at[l].parent)
                seconds[n] *= r.planned.graph.loops.at[l].trip;
        }
        tape_build(&t, &r.planned.graph, &r.planned.plan.placement, arena, 1, NULL);
        for (int p = PROGRAM_STEP; p <= PROGRAM_UPDATE; p++) {
            const double least = lanes_seconds(&r.planned.graph, p, seconds, NULL),
                         placed = lanes_seconds(&r.planned.graph, p, seconds, &r.planned.plan.placement),
                         taped = simulate_tape(&t, p, seconds);
            double lane[LANE_COUNT] = {0}, most = 0, sum = 0;
            for (uint32_t k = 0; k < t.program[p].n; k++)
                if (t.program[p].at[k].kind == ENTRY_LAUNCH)
                    lane[t.program[p].at[k].lane] += seconds[t.program[p].at[k].node];
            for (int k = 0; k < LANE_COUNT; k++) most = fmax(most, lane[k]), sum += lane[k];
            print_message("%s, %s: lanes %.4f, %.4f, %.4f, %.4f and %.4f; %.4f at least, %.4f placed, %.4f by the "
                          "tape\n",
                          offload_settings[i % COUNT(offload_settings)], program_name(p), lane[LANE_COMPUTE],
                          lane[LANE_IN], lane[LANE_OUT], lane[LANE_HOST], lane[LANE_BACK], least, placed, taped);
            assert_true(least >= most * (1 - 1e-9) && placed >= least * (1 - 1e-9) && placed <= sum * (1 + 1e-9));
            assert_true(fabs(placed - taped) <= 0.002 * taped);
            whole += placed;
        }
        assert_true(fabs(whole / r.planned.plan.seconds - 1) < 1e-9);
        tape_free(&t);
        mem_free(seconds);
        run_close(&r);
        config_free(&c);
    }
}

/* Replacing `from` by `to` makes the profile invalid; the message contains `word`. */
static void refuses(const struct text *t, const char *from, const char *to, const char *word)
{
    struct profile p;
    struct text bad = {0};
    struct error e = {0};
    char *at = strstr(t->at, from);
    if (!at) fail_msg("no %s in the profile", from);
    text_printf(&bad, "%.*s%s%s", (int)(at - t->at), t->at, to, at + strlen(from));
    int rc = profile_parse(bad.at, bad.n, &p, &taken, &e);
    if (rc != PL_USAGE || !strstr(e.text, word))
        fail_msg("%s -> %s: code %d, \"%s\", expected the word %s", from, to, rc, e.text, word);
    text_free(&bad);
}

TEST(test_damaged)
{
    struct profile p;
    struct text t = {0};
    profile_default(&p, DEVICE_CUDA, 0);
    memset(&given, 0, sizeof given);
    snprintf(given.cpu, sizeof given.cpu, "A GPU");
    snprintf(given.isa, sizeof given.isa, "sm_90");
    snprintf(given.date, sizeof given.date, "2026-01-02");
    for (int i = 0; i < 2; i++) {
        struct op_class *x = &given.class[given.classes++];
        x->op = OP_ADD, x->half = CLASS_HALF, x->extent[0] = 4 + i;
        snprintf(x->kernel, sizeof x->kernel, "cuda_add");
        x->curve.n = 1, x->curve.at[0].ideal = 1e-5, x->curve.at[0].factor = 2;
    }
    p.measured = &given;
    profile_write(&p, &t);
    refuses(&t, "\"classes\": [", "\"classes\": 7, \"rest\": [", "classes");
    refuses(&t, "\"extents\": [", "\"extents\": [1, ", "extents");
    refuses(&t, "[4,", "[500,", "extent");
    refuses(&t, "[4,", "[5,", "twice");
    refuses(&t, "\"kernel\": \"cuda_add\"", "\"kernel\": \"\"", "kernel");
    refuses(&t, "\"memory_bytes\": ", "\"memory_bytes\": -", "memory_bytes");
    refuses(&t, "\"name\": \"h200\"", "\"name\": 3", "name");
    text_free(&t);
}

/* A different kernel is farther away than different extents; a copy within the GPU is a different
 * class from one to or from the host. */
TEST(test_nearest)
{
    struct calibration *c = &given;
    memset(c, 0, sizeof *c);
    for (int i = 0; i < 3; i++) {
        struct op_class *x = &c->class[c->classes++];
        x->op = OP_LINEAR, x->half = CLASS_FULL, x->extent[0] = 4 + 8 * i, x->extent[1] = 20;
        snprintf(x->kernel, sizeof x->kernel, i < 2 ? "ours" : "theirs");
        x->curve.n = 1, x->curve.at[0].ideal = 1e-5, x->curve.at[0].factor = 2 + i;
    }
    calibration_sort(c);
    struct graph g;
    struct query q;
    struct profile p;
    struct kernel ours = {.op = OP_LINEAR, .name = "ours"}, theirs = {.op = OP_LINEAR, .name = "theirs"},
                  others = {.op = OP_LINEAR, .name = "others"};
    profile_default(&p, DEVICE_CUDA, 0);
    graph_init(&g);
    id x = graph_param(&g, "x", DT_F32, DIM(1024, 1024), (struct init){0}),
       w = graph_param(&g, "w", DT_F32, DIM(1024, 1024), (struct init){0});
    query_fill(&q, &g, node_at(&g, tensor_at(&g, op_linear(&g, x, w, 0))->node), &p);
    q.kernel = &ours;
    assert_true(class_find(c, &q, OP_LINEAR, 1e-5)->curve.at[0].factor == 3);
    assert_true(class_find(c, &q, OP_LINEAR, 10)->curve.at[0].factor == 3); /* both are equally far from it */
    q.kernel = &theirs;
    assert_true(class_find(c, &q, OP_LINEAR, 1e-5)->curve.at[0].factor == 4);
    q.kernel = &others;
    assert_true(class_find(c, &q, OP_LINEAR, 1e-5)->curve.at[0].factor == 4);
    assert_null(class_find(c, &q, OP_ADD, 1e-5));
    graph_free(&g);
}

TEST(test_stored)
{
    struct profile p;
    struct error e = {0};
    assert_true(profile_is_stored("h200") && !profile_is_stored("rtx-4090"));
    if (profile_gpu(&p, &taken, "h200", &e)) fail_msg("%s", e.text);
    assert_true(p.kind == DEVICE_CUDA && p.measured == &taken && p.memory_bytes > (uint64_t)130 << 30 &&
                p.library_workspace);
    assert_string_equal(p.name, "h200");
}

/* An op of one input, and perhaps ids, on dense tensors; `from`: the input's first byte; `advance`:
 * its step in a loop. */
static int access_of(enum op op, enum dtype type, const int64_t dim[3], uint64_t from, int64_t advance)
{
    static const int64_t rows[2] = {2, 3};
    struct profile p;
    struct tensor x = {.dtype = (uint8_t)type, .rank = 3, .offset = from, .loop = advance != 0, .advance = advance}, y,
                  index = {.dtype = DT_I32, .rank = 2};
    union attr a = {0};
    profile_default(&p, DEVICE_CUDA, 1);
    memcpy(x.dim, dim, 3 * sizeof *dim);
    memcpy(index.dim, rows, sizeof rows);
    tensor_dense_strides(&x);
    tensor_dense_strides(&index);
    y = x;
    y.offset = 0, y.loop = 0;
    struct query q =
        {.attr = &a, .in = {&x, &index}, .out = {&y}, .nin = op == OP_GATHER ? 2 : 1, .nout = 1, .profile = &p};
    q.kernel = kernel_find(DEVICE_CUDA, op, &q);
    assert_non_null(q.kernel);
    return q.kernel->access(&q);
}

/* 16 bytes where rows and every address allow it, else an element; copies take what fits. */
TEST(test_access)
{
    assert_int_equal(access_of(OP_SOFTMAX, DT_BF16, (int64_t[]){2, 3, 8}, 256, 0), 16);
    assert_int_equal(access_of(OP_SOFTMAX, DT_BF16, (int64_t[]){2, 3, 12}, 0, 0), 2);
    assert_int_equal(access_of(OP_SOFTMAX, DT_BF16, (int64_t[]){2, 3, 8}, 8, 0), 2);
    assert_int_equal(access_of(OP_SOFTMAX, DT_BF16, (int64_t[]){2, 3, 8}, 0, 24), 2);
    assert_int_equal(access_of(OP_SOFTMAX, DT_F32, (int64_t[]){2, 3, 4}, 0, 32), 16);
    assert_int_equal(access_of(OP_SOFTMAX, DT_F32, (int64_t[]){2, 3, 6}, 0, 0), 4);
    assert_int_equal(access_of(OP_GATHER, DT_F32, (int64_t[]){2, 3, 4}, 0, 0), 16);
    assert_int_equal(access_of(OP_GATHER, DT_F32, (int64_t[]){2, 3, 6}, 0, 0), 8);
    assert_int_equal(access_of(OP_GATHER, DT_F32, (int64_t[]){2, 3, 6}, 4, 0), 4);
    assert_int_equal(access_of(OP_GATHER, DT_U8, (int64_t[]){2, 3, 6}, 0, 3), 1);
}

/* `skip`: elements between the rows of a tensor. */
static struct tensor rows_of(enum dtype type, int rank, const int64_t *dim, int64_t skip)
{
    struct tensor t = {.dtype = (uint8_t)type, .rank = (uint8_t)rank};
    memcpy(t.dim, dim, (size_t)rank * sizeof *dim);
    t.dim[rank - 1] += skip;
    tensor_dense_strides(&t);
    t.dim[rank - 1] -= skip;
    return t;
}

/* Windows of 3 in a map of 4 x 4, without tensor cores, with heads of D and tables of `table`;
 * skip: between the rows of k. */
static int window_access_of(bool backward, enum dtype type, enum dtype table, int64_t D, int64_t skip, uint64_t from)
{
    struct profile p;
    struct tensor heads = rows_of(type, 4, (int64_t[]){2, 16, 2, D}, 0),
                  k = rows_of(type, 4, (int64_t[]){2, 16, 2, D}, skip),
                  lse = rows_of(DT_F32, 3, (int64_t[]){2, 2, 16}, 0);
    struct tensor rows = rows_of(table, 2, (int64_t[]){5, D}, 0), drows = rows_of(DT_F32, 2, (int64_t[]){5, D}, 0),
                  dpad = rows_of(DT_F32, 3, (int64_t[]){2, 2, D}, 0);
    union attr a = {.windowed = {.height = 4, .width = 4, .window = 3, .scale = 1}};
    profile_default(&p, DEVICE_CUDA, 1);
    p.capability = 70;
    k.offset = from;
    struct query q = {.attr = &a,
                      .in = {&heads, &k, &heads, &rows, &rows},
                      .out = {&heads, &lse},
                      .nin = 5,
                      .nout = 2,
                      .profile = &p};
    if (backward)
        q = (struct query){.attr = &a,
                           .in = {&heads, &heads, &k, &heads, &heads, &lse, &rows, &rows},
                           .out = {&heads, &heads, &heads, &drows, &drows, &dpad},
                           .nin = 8,
                           .nout = 6,
                           .profile = &p};
    q.kernel = kernel_find(DEVICE_CUDA, backward ? OP_ATTENTION_WINDOW_BWD : OP_ATTENTION_WINDOW, &q);
    assert_non_null(q.kernel);
    assert_string_equal(q.kernel->name, backward ? "cuda_attention_window_bwd" : "cuda_attention_window");
    return q.kernel->access(&q);
}

TEST(test_window_access)
{
    for (int backward = 0; backward < 2; backward++) {
        assert_int_equal(window_access_of(backward, DT_F32, DT_F32, 4, 0, 256), 16);
        assert_int_equal(window_access_of(backward, DT_F32, DT_F32, 6, 0, 0), 4);
        assert_int_equal(window_access_of(backward, DT_F32, DT_F32, 4, 4, 0), 16);
        assert_int_equal(window_access_of(backward, DT_F32, DT_F32, 4, 1, 0), 4);
        assert_int_equal(window_access_of(backward, DT_BF16, DT_BF16, 16, 0, 8), 2);
        assert_int_equal(window_access_of(backward, DT_BF16, DT_BF16, 16, 8, 32), 16);
        /* such tables are read by element */
        assert_int_equal(window_access_of(backward, DT_BF16, DT_F32, 16, 0, 0), 16);
        assert_int_equal(window_access_of(backward, DT_BF16, DT_BF16, 12, 0, 0), 2);
    }
}

/* The form in which compute capability 9.0 runs an op on these operands. */
static const char *form_of(enum op op, struct query *q)
{
    struct profile p;
    profile_default(&p, DEVICE_CUDA, 1);
    p.capability = 90;
    q->profile = &p;
    q->kernel = kernel_find(DEVICE_CUDA, op, q);
    assert_non_null(q->kernel);
    return kernel_form_name(q->kernel, kernel_form(q->kernel, q));
}

static const union attr no_attributes = {0};

static const char *copy_form(int64_t B, int64_t R, int64_t C, bool turned)
{
    struct tensor x = rows_of(DT_F32, 3, (int64_t[]){B, R, C}, 3), y = rows_of(DT_F32, 3, (int64_t[]){B, R, C}, 0);
    if (turned) x.stride[0] = R * C, x.stride[1] = 1, x.stride[2] = R;
    return form_of(OP_COPY, &(struct query){.attr = &no_attributes, .in = {&x}, .out = {&y}, .nin = 1, .nout = 1});
}

static const char *window_form_of(int64_t C)
{
    struct tensor x = rows_of(DT_BF16, 4, (int64_t[]){1, 4, 4, C}, 0),
                  y = rows_of(DT_BF16, 4, (int64_t[]){4, 2, 2, C}, 0);
    return form_of(OP_WINDOW, &(struct query){.attr = &no_attributes, .in = {&x}, .out = {&y}, .nin = 1, .nout = 1});
}

static const char *rmsnorm_form(int64_t C)
{
    struct tensor x = rows_of(DT_BF16, 2, (int64_t[]){5, C}, 0), w = rows_of(DT_BF16, 1, (int64_t[]){C}, 0),
                  rstd = rows_of(DT_F32, 1, (int64_t[]){5}, 0);
    return form_of(OP_RMSNORM,
                   &(struct query){.attr = &no_attributes, .in = {&x, &w}, .out = {&x, &rstd}, .nin = 2, .nout = 2});
}

static const char *attention_form(enum dtype type, int64_t B, int64_t T, int64_t S, int64_t D, bool with_ranges)
{
    struct tensor q = rows_of(type, 4, (int64_t[]){B, T, 1, D}, 0), k = rows_of(type, 4, (int64_t[]){B, S, 1, D}, 0),
                  lse = rows_of(DT_F32, 3, (int64_t[]){B, 1, T}, 0);
    struct tensor ranges = rows_of(DT_I32, 3, (int64_t[]){B, T, 2}, 0);
    static const union attr a = {.attention = {.scale = 1}};
    struct query query = {.attr = &a,
                          .in = {&q, &k, &k, NULL, &ranges},
                          .out = {&q, &lse},
                          .nin = with_ranges ? 5 : 3,
                          .nout = 2};
    return form_of(OP_ATTENTION, &query);
}

TEST(test_forms)
{
    assert_string_equal(copy_form(2, 8, 9, true), "transposed");
    assert_string_equal(copy_form(2, 8, 9, false), "by rows");
    assert_string_equal(copy_form(2, 7, 9, true), "by rows"); /* tiles would be mostly empty */
    assert_string_equal(window_form_of(256), "a warp per pixel");
    assert_string_equal(window_form_of(248), "a thread per unit");
    assert_string_equal(window_form_of(257), "a warp per pixel"); /* units of 2 bytes */
    assert_string_equal(rmsnorm_form(256), "a few lanes per row");
    assert_string_equal(rmsnorm_form(4096), "a block per row");
    assert_string_equal(rmsnorm_form(4104), "a wide block per row");
    assert_string_equal(rmsnorm_form(4105), ""); /* another kernel, for rows that are not whole packs */
    assert_string_equal(attention_form(DT_BF16, 2, 100, 8, 32, false), "up to 8 keys");
    assert_string_equal(attention_form(DT_BF16, 2, 100, 9, 16, false), "up to 16 keys");
    assert_string_equal(attention_form(DT_F32, 2, 7, 100, 32, false), "up to 8 queries");
    assert_string_equal(attention_form(DT_F32, 2, 16, 100, 32, false), "up to 16 queries");
    assert_string_equal(attention_form(DT_F32, 2, 17, 100, 16, false), "tiles of queries");
    assert_string_equal(attention_form(DT_F32, 2, 100, 100, 65, false), "heads up to 256");
    assert_string_equal(attention_form(DT_F32, 2, 100, 100, 64, true), "heads up to 64, ranges of keys");
    assert_string_equal(attention_form(DT_BF16, 2, 100, 100, 64, false), "all keys");
    assert_string_equal(attention_form(DT_BF16, 256, 64, 64, 64, true), "ranges of keys");
    assert_string_equal(attention_form(DT_BF16, 257, 64, 64, 64, true), "ranges of keys, ordered apart");
}

/* Every kernel with forms has at least two, with different names. */
TEST(test_form_names)
{
    for (int f = 0; cuda_kernels[f]; f++)
        for (const struct kernel *k = cuda_kernels[f]; k->op != OP_NONE; k++) {
            if (!k->forms) continue;
            assert_true(k->forms->choose && k->forms->names[0] && k->forms->names[1] && !k->forms->names[FORMS_MOST]);
            for (int i = 0; k->forms->names[i]; i++)
                for (int j = 0; j < i; j++) assert_string_not_equal(k->forms->names[i], k->forms->names[j]);
        }
}

MAIN(NULL, NULL)
