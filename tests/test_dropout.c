/*
 * test_dropout.c: a dropout mask depends on seed, step, op, sample and element index, and on
 * nothing else: not on the split into micro-batches, not on recomputation, not on the number of
 * head chunks.
 *
 * A small model with three dropouts (of elements, of whole samples, and one inside a row-wise head)
 * is compiled with many settings for the same eight samples. An observer reads each DROPOUT that
 * runs and records, by op, sample and element, whether the element was kept. Every other run,
 * forward, recompute or backward, must agree.
 */
#include "optest.h"

#include "passes/passes.h"

enum { E = 8, N = 301, OPS = 3 };

/* Settings to compile with: micro-batch, recompute, number of head chunks. */
struct setting {
    int micro_batch;
    bool recompute;
    int chunks;
};

/* x with two copies that a batch of 1 does not need: its transposed views are dense. */
static id copied(struct graph *g, id x, int64_t B)
{
    id y = op_dense(g, op_permute(g, op_reshape(g, x, DIM(B, 7, N / 7)), (const int[]){1, 0, 2}));
    return op_reshape(g, op_dense(g, op_permute(g, y, (const int[]){1, 0, 2})), DIM(B, N));
}

static void build(struct graph *g, int64_t B)
{
    /* the head is split along tensors that are not inputs */
    id samples = op_samples(g, B), own = op_copy(g, samples, SPACE_DEVICE);
    id x = graph_input(g, "x", DT_F32, DIM(B, N)), weights = graph_input(g, "weights", DT_F32, DIM(B, N));
    id outer = graph_scope_push(g, "block", SCOPE_BLOCK);
    x = op_mul(g, x, graph_param(g, "w", DT_F32, DIM(N), (struct init){INIT_NORMAL, 1, 0}));
    x = op_dropout(g, op_act(g, copied(g, x, B), ACT_TANH), samples, 0.3f);
    x = op_drop_path(g, op_act(g, x, ACT_GELU), samples, 0.5f);
    graph_scope_pop(g, outer);
    x = op_add(g, x, op_scale(g, weights, 0.5));
    outer = graph_scope_push(g, "head", SCOPE_ROWS);
    id v = graph_param(g, "v", DT_F32, DIM(N, N), (struct init){INIT_NORMAL, 0.1f, 0});
    id loss = op_sum(g, op_act(g, op_dropout(g, op_linear(g, x, v, 0), own, 0.3f), ACT_TANH));
    graph_scope_pop(g, outer);
    graph_output(g, "loss", loss);
}

static void run_pass(struct graph *g, const char *name, pass_fn *pass, const struct settings *s)
{
    pass(g, s);
    graph_verify(g, name);
}

static void make(struct rig *r, const struct setting *w)
{
    struct graph *g = &r->graph;
    struct settings s = {.micro_batch = w->micro_batch, .accumulation = (E + w->micro_batch - 1) / w->micro_batch,
                         .precision = PRECISION_F32, .recompute = {w->recompute}, .head_chunks = w->chunks};
    memset(r, 0, sizeof *r);
    graph_init(g);
    build(g, w->micro_batch);
    graph_verify(g, "build");
    run_pass(g, "chunk", pass_chunk, &s);
    run_pass(g, "differentiate", pass_differentiate, &s);
    run_pass(g, "accumulate", pass_accumulate, &s);
    run_pass(g, "recompute", pass_recompute, &s);
    rig_open(r, DEVICE_CPU);
}

/* --- recorded masks -------------------------------------------------------------------------- */

enum { UNSEEN, KEPT, DROPPED };

struct masks {
    uint32_t key[OPS]; /* in the order of their first run */
    uint8_t at[OPS][E][N];
    int runs[PHASE_COUNT];
    const struct graph *g;
    const char *what;
};

static int slot_of(struct masks *m, uint32_t key)
{
    int i = 0;
    while (i < OPS && m->key[i] && m->key[i] != key) i++;
    assert_true(i < OPS);
    m->key[i] = key;
    return i;
}

/* Where the input is 0 the output does not reveal the mask. */
static void record_mask(void *observer, const struct entry *e)
{
    struct masks *m = observer;
    if (node_at(m->g, e->node)->op != OP_DROPOUT) return;
    m->runs[node_at(m->g, e->node)->phase]++;
    int slot = slot_of(m, e->launch.attr->dropout.key);
    const struct operand *x = &e->launch.in[0];
    for (int64_t b = 0; b < x->dim[0]; b++) {
        int32_t sample = ((const int32_t *)e->launch.in[2].data)[b];
        for (int64_t i = 0; i < N && sample >= 0 && sample < E; i++) {
            float in = ((const float *)x->data)[b * N + i], out = ((const float *)e->launch.out[0].data)[b * N + i];
            uint8_t *have = &m->at[slot][sample][i], now = out != 0 ? KEPT : DROPPED;
            if (in == 0) continue;
            if (*have != UNSEEN && *have != now)
                fail_msg("seed %llu, %s: dropout %d, sample %d, element %lld differs in a %s", (unsigned long long)seed,
                         m->what, slot, sample, (long long)i, phase_name(node_at(m->g, e->node)->phase));
            *have = now;
        }
    }
}

/* Runs the rig and records the masks in `m`; they must agree with the recorded ones. The observer
 * needs input and output at once, so the graph is compiled without in-place reuse. */
static void observe(struct rig *r, struct masks *m, const char *what)
{
    m->g = &r->graph;
    m->what = what;
    r->tape.observe = record_mask;
    r->tape.observer = m;
    rig_run(r);
    r->tape.observe = NULL;
}

static void set_step(struct rig *r, uint64_t run_seed, uint64_t step)
{
    struct step_block *b = tape_address(&r->tape, r->graph.step);
    b->seed = run_seed;
    b->rng_step = step;
}

/* --- tests ------------------------------------------------------------------------------------ */

TEST(test_same_masks)
{
    static const struct setting SETTINGS[] = {{8, false, 1}, {8, true, 1}, {4, false, 1}, {2, true, 1}, {1, false, 1},
                                      {3, true, 1},  {8, true, 2}, {8, false, 3}, {4, true, 4}, {3, false, 2}};
    struct masks m = {0};
    for (size_t i = 0; i < COUNT(SETTINGS); i++) {
        char what[64];
        struct rig r;
        snprintf(what, sizeof what, "micro-batch %d%s, %d chunks", SETTINGS[i].micro_batch,
                 SETTINGS[i].recompute ? ", recomputed" : "", SETTINGS[i].chunks);
        make(&r, &SETTINGS[i]);
        set_step(&r, seed, 7);
        memset(m.runs, 0, sizeof m.runs);
        observe(&r, &m, what);
        assert_true(m.runs[PHASE_FORWARD] >= OPS && m.runs[PHASE_BACKWARD] >= OPS);
        assert_true(!SETTINGS[i].recompute || m.runs[PHASE_RECOMPUTE] > 0);
        rig_close(&r);
    }
    for (int s = 0; s < E; s++)
        for (int i = 0; i < N; i++) /* tanh and gelu have no zeros there, nor do the first and last inputs */
            assert_true(m.at[0][s][i] != UNSEEN && m.at[2][s][i] != UNSEEN);
}

/* The same kernels with the same masks: bit-equal. */
TEST(test_recompute_bits)
{
    struct rig a, b;
    make(&a, &(struct setting){4, false, 1});
    make(&b, &(struct setting){4, true, 1});
    set_step(&a, seed, 3);
    set_step(&b, seed, 3);
    rig_run(&a);
    rig_run(&b);
    assert_true(rig_loss(&a) == rig_loss(&b));
    for (uint32_t i = 0; i < a.graph.params.n; i++) {
        id x = a.graph.params.at[i].grad, y = b.graph.params.at[i].grad;
        assert_memory_equal(tape_address(&a.tape, x), tape_address(&b.tape, y), tensor_bytes(tensor_at(&a.graph, x)));
    }
    rig_close(&a);
    rig_close(&b);
}

/* The fraction of elements kept by an op, and the fraction on which two masks agree. */
static double share_kept(const struct masks *m, int slot)
{
    double n = 0;
    for (int s = 0; s < E; s++)
        for (int i = 0; i < N; i++) n += m->at[slot][s][i] == KEPT;
    return n / (E * N);
}

static double share_equal(const struct masks *a, int i, const struct masks *b, int j)
{
    double n = 0;
    for (int s = 0; s < E; s++)
        for (int k = 0; k < N; k++) n += a->at[i][s][k] == b->at[j][s][k];
    return n / (E * N);
}

/* Another seed, another step, another op: independent masks, which agree on p^2 + (1-p)^2 of all
 * elements, within five standard deviations. */
TEST(test_independence)
{
    static const struct { uint64_t seed, step; } STEPS[] = {{1, 1}, {1, 2}, {2, 1}};
    static struct masks m[3];
    const double p = 0.3, chance = p * p + (1 - p) * (1 - p), deviation = sqrt(0.25 / (E * N));
    struct rig r;
    make(&r, &(struct setting){8, false, 1});
    for (size_t i = 0; i < COUNT(STEPS); i++) {
        set_step(&r, STEPS[i].seed, STEPS[i].step);
        observe(&r, &m[i], "one step");
        assert_true(fabs(share_kept(&m[i], 0) - (1 - p)) < 5 * deviation);
        assert_true(fabs(share_equal(&m[i], 0, &m[i], 2) - chance) < 5 * deviation);
        if (i) assert_true(fabs(share_equal(&m[0], 0, &m[i], 0) - chance) < 5 * deviation);
    }
    /* Samples differ from each other. */
    double same = 0;
    for (int k = 0; k < N; k++) same += m[0].at[0][0][k] == m[0].at[0][1][k];
    assert_true(fabs(same / N - chance) < 5 * sqrt(0.25 / N));
    /* With one choice per sample, all of a sample is kept or none. */
    for (int s = 0; s < E; s++)
        for (int k = 0, first = UNSEEN; k < N; k++) {
            if (m[0].at[1][s][k] == UNSEEN) continue;
            if (first == UNSEEN) first = m[0].at[1][s][k];
            assert_int_equal(m[0].at[1][s][k], first);
        }
    rig_close(&r);
}

TEST(test_builder)
{
    struct error e;
    for (int bad = 0; bad < 3; bad++) {
        struct graph g;
        graph_init(&g);
        id x = graph_param(&g, "x", DT_F32, DIM(4, 3), (struct init){0});
        id samples = op_samples(&g, bad == 0 ? 3 : 4);
        assert_int_equal(op_dropout(&g, x, samples, 0), x); /* nothing to drop */
        g.at.program = PROGRAM_EVAL;
        assert_int_equal(op_dropout(&g, x, samples, 0.5f), x);
        g.at.program = PROGRAM_STEP;
        assert_int_equal(op_dropout(&g, x, samples, bad == 1 ? 1 : bad == 2 ? -0.1f : 0.5f), 0);
        assert_int_equal(graph_error(&g, &e), PL_USAGE);
        if (!strstr(e.text, bad ? bad == 1 ? "p is 1, expected p<1" : "expected p>=0" : "samples must be i32 [4]"))
            fail_msg("%s", e.text);
        graph_free(&g);
    }
}

MAIN(NULL, NULL)
