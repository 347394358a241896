/*
 * test_labelled.c: an LM head in chunks runs on the rows with labels by itself (labelled_first.c,
 * engine/loop_trips.c).
 *
 *     rows     labels            chunks of 4 rows, one micro-batch
 *       0      a a a . . . . .   a a a a | a a a a | . . . . | . . . .     two of four are run
 *       1      . . . . a a a a
 *
 * Loss and gradients are those of the whole head. The chunks that are left out change no value, the
 * next batch may need more of them or fewer, and memory that they would have written is never read.
 */
#include "engine/run.h"
#include "graph/ops.h"

#include "harness.h"

enum { ROWS = 7, TOKENS = 16 };
static const int labels_of[][ROWS] = {{15, 1, 0, 7, 4, 15, 2},
                                      {0, 2, 0, 0, 1, 3, 0},
                                      {15, 15, 15, 15, 15, 15, 15},
                                      {0}};
enum { BATCHES = COUNT(labels_of) };

typedef VEC(float) floats;

/* --- a run ------------------------------------------------------------------------------------ */

struct task {
    int micro_batch, chunks;
    bool few;                    /* settings.sparse_labels */
    const char *more;            /* a key with its value; NULL: none */
};

static int describe_few(const struct config *c, const struct model *m, const struct run_options *o, struct bump *memory,
                        struct run_batches *out, struct error *e)
{
    (void)c, (void)m, (void)o, (void)memory, (void)e;
    out->sparse_labels = true;
    return PL_OK;
}

static void open_run(struct run *r, struct config *c, const struct task *t)
{
    char micro[64], chunks[64];
    snprintf(micro, sizeof micro, "memory.micro_batch=%d", t->micro_batch);
    snprintf(chunks, sizeof chunks, "memory.head_chunks=%d", t->chunks);
    const char *const sets[] = {"model.preset=llama-tiny",
                                "device=cpu",
                                "device.threads=2",
                                "memory.offload=none",
                                "memory.recompute=none",
                                "memory.precision=f32",
                                "memory.fused_step=off",
                                "train.effective_batch=7",
                                "data.sequence=16",
                                micro,
                                chunks,
                                t->more};
    struct error e = {0};
    config_init(c);
    for (size_t i = 0; i < COUNT(sets); i++)
        if (sets[i]) must(config_set(c, sets[i], &e), &e);
    must(config_check(c, CONFIG_NEEDS_MODEL, &e), &e);
    must(run_plan(r, c, &(struct run_options){.train = true, .describe = t->few ? describe_few : NULL}, &e), &e);
    must(run_start(r, NULL, true, &e), &e);
}

static void close_run(struct run *r, struct config *c)
{
    run_close(r);
    config_free(c);
}

/* The labels end at the end of even rows. */
static int32_t label_of(int batch, int row, int t)
{
    const int n = labels_of[batch][row];
    const bool has = row % 2 ? t > 0 && t <= n : t >= TOKENS - n;
    return has && t ? (row * 31 + t * 7 + batch) % 256 : -100;
}

static int labels_in(int batch, int row)
{
    int n = 0;
    for (int t = 0; t < TOKENS && row < ROWS; t++) n += label_of(batch, row, t) >= 0;
    return n;
}

static void put_batch(struct run *r, int batch)
{
    struct error e = {0};
    for (int row = 0; row < planned_samples(&r->planned); row++) {
        int32_t ids[TOKENS] = {0}, labels[TOKENS];
        for (int t = 0; t < TOKENS; t++) {
            labels[t] = row < ROWS ? label_of(batch, row, t) : -100;
            ids[t] = row < ROWS ? (row * 17 + t * 5 + batch) % 256 : 0;
        }
        must(run_write_input(r, "input_ids", row, ids, sizeof ids, &e), &e);
        must(run_write_input(r, "labels", row, labels, sizeof labels, &e), &e);
    }
    const struct step_block b = {.inv_count = {1.0f / 44}, .loss_scale = 1, .step = 1, .adam_t = 1};
    must(run_put_step(r, &b, &e), &e);
}

/* The loss, followed by every gradient in the order of the parameters. */
static floats run_batch(struct run *r, int batch)
{
    struct error e = {0};
    floats all = {0};
    put_batch(r, batch);
    must(run_program(r, PROGRAM_STEP, &e), &e);
    vec_push(&all, 0);
    must(run_read(r, graph_find_output(&r->planned.graph, PROGRAM_STEP, "loss"), all.at, &e), &e);
    for (uint32_t i = 0; i < r->planned.graph.params.n; i++) {
        const id g = r->planned.graph.params.at[i].grad;
        const float *x = g ? (const float *)tape_address(&r->tape, g) : NULL;
        for (int64_t k = 0; g && k < tensor_elements(tensor_at(&r->planned.graph, g)); k++) vec_push(&all, x[k]);
    }
    return all;
}

/* --- comparing -------------------------------------------------------------------------------- */

#ifdef __SANITIZE_ADDRESS__
static const double BOUND = 2e-6;
#else
static const double BOUND = 1e-6;
#endif

static void expect_near(const floats *got, const floats *want, const struct task *t, int batch)
{
    double off = 0, all = 0;
    assert_int_equal(got->n, want->n);
    for (uint32_t i = 1; i < got->n; i++) {
        off += pow((double)got->at[i] - (double)want->at[i], 2);
        all += pow((double)want->at[i], 2);
    }
    const double loss = fabs((double)got->at[0] - (double)want->at[0]);
    if (!(sqrt(off) <= BOUND * sqrt(all) && loss <= BOUND * fabs((double)want->at[0])))
        fail_msg("batch %d, micro-batch %d, %d chunks: the loss is off by %.2g, gradients by %.2g of %.2g", batch,
                 t->micro_batch, t->chunks, loss, sqrt(off), sqrt(all));
}

static void expect_same(const floats *got, const floats *want, const char *what)
{
    assert_int_equal(got->n, want->n);
    for (uint32_t i = 0; i < got->n; i++)
        if (got->at[i] != want->at[i])
            fail_msg("%s: value %u is %.9g, expected %.9g", what, i, (double)got->at[i], (double)want->at[i]);
}

/* --- chunks that are run ---------------------------------------------------------------------- */

struct launches {
    const struct graph *g;
    uint32_t losses;
};

static void count_losses(void *observer, const struct entry *e)
{
    struct launches *n = observer;
    n->losses += node_at(n->g, e->node)->op == OP_XENT;
}

static uint32_t expected_losses(const struct run *r, const struct task *t, int batch)
{
    const int rows = t->micro_batch * TOKENS, chunk = (rows + t->chunks - 1) / t->chunks;
    uint32_t n = 0;
    for (int first = 0; first < planned_samples(&r->planned); first += t->micro_batch) {
        int labels = 0;
        for (int row = first; row < first + t->micro_batch; row++) labels += labels_in(batch, row);
        n += (uint32_t)(labels ? (labels + chunk - 1) / chunk : 1);
    }
    return n;
}

static void check_task(const struct task *t, floats want[BATCHES])
{
    struct config c;
    struct run r = {0};
    open_run(&r, &c, t);
    struct launches n = {.g = &r.planned.graph};
    r.tape.observe = count_losses;
    r.tape.observer = &n;
    for (int batch = 0; batch < BATCHES; batch++) {
        n.losses = 0;
        floats got = run_batch(&r, batch);
        expect_near(&got, &want[batch], t, batch);
        if (t->few && t->chunks > 1) assert_int_equal(n.losses, expected_losses(&r, t, batch));
        vec_free(&got);
    }
    close_run(&r, &c);
}

TEST(test_every_split)
{
    static const int chunks[] = {1, 2, 3, 8, 1000};
    static const int micro[] = {1, 2, 3, ROWS};
    struct config c;
    struct run r = {0};
    floats want[BATCHES];
    const struct task whole = {.micro_batch = ROWS, .chunks = 1};
    open_run(&r, &c, &whole);
    for (int batch = 0; batch < BATCHES; batch++) want[batch] = run_batch(&r, batch);
    close_run(&r, &c);
    assert_true(want[0].at[0] > 0);
    for (size_t m = 0; m < COUNT(micro); m++)
        for (size_t k = 0; k < COUNT(chunks); k++)
            check_task(&(struct task){.micro_batch = micro[m], .chunks = chunks[k], .few = true}, want);
    check_task(&(struct task){.micro_batch = 3, .chunks = 4, .few = true, .more = "memory.recompute=all"}, want);
    for (int batch = 0; batch < BATCHES; batch++) vec_free(&want[batch]);
}

/* All chunks, and the chunks with labels: the same values, also where dead bytes are NaN. */
TEST(test_left_out)
{
    struct config c;
    struct run r = {0};
    open_run(&r, &c, &(struct task){.micro_batch = 3, .chunks = 5, .few = true});
    uint32_t **none = mem_alloc(r.planned.graph.storages.n * sizeof *none);
    const id labels = r.planned.graph.loops.at[1].counted;
    assert_true(labels && r.counts[labels]);
    for (int batch = 0; batch < BATCHES; batch++) {
        r.tape.poison = false;
        floats few = run_batch(&r, batch);
        uint32_t **counts = r.counts;
        r.counts = none;
        for (id l = 1; l < r.planned.graph.loops.n; l++)
            for (uint32_t i = 0; i < (r.planned.graph.loops.at[l].parent
                                          ? r.planned.graph.loops.at[r.planned.graph.loops.at[l].parent].trip
                                          : 1);
                 i++)
                r.tape.trip[l][i] = r.planned.graph.loops.at[l].trip;
        floats all = run_batch(&r, batch);
        expect_same(&few, &all, "chunks left out");
        r.counts = counts;
        r.tape.poison = true;
        floats poisoned = run_batch(&r, batch);
        expect_same(&poisoned, &few, "poison");
        vec_free(&few);
        vec_free(&all);
        vec_free(&poisoned);
    }
    mem_free(none);
    close_run(&r, &c);
}

/* A forward over the whole batch, which swaps micro-batches, has the step's loss. */
TEST(test_forward)
{
    struct config c;
    struct run r = {0};
    struct error e = {0};
    open_run(&r, &c, &(struct task){.micro_batch = 2, .chunks = 4, .few = true});
    for (int batch = 0; batch < BATCHES; batch++) {
        float loss = -1;
        floats step = run_batch(&r, batch);
        must(run_forward(&r, graph_find_output(&r.planned.graph, PROGRAM_EVAL, "loss"), &loss, &e), &e);
        assert_true(fabs((double)loss - (double)step.at[0]) <= BOUND * fabs((double)step.at[0]));
        floats again = run_batch(&r, batch);
        expect_same(&again, &step, "after a forward");
        vec_free(&step);
        vec_free(&again);
    }
    close_run(&r, &c);
}

/* Labels that are not written as whole samples may be anywhere. */
TEST(test_parts_of_samples)
{
    struct config c;
    struct run r = {0};
    struct error e = {0};
    open_run(&r, &c, &(struct task){.micro_batch = ROWS, .chunks = 4, .few = true});
    floats want = run_batch(&r, 0);
    put_batch(&r, 3);
    for (int row = 0; row < ROWS; row++)
        for (int half = 0; half < 2; half++) {
            int32_t ids[TOKENS / 2], labels[TOKENS / 2];
            for (int i = 0, t = half * TOKENS / 2; i < TOKENS / 2; i++, t++)
                labels[i] = label_of(0, row, t), ids[i] = (row * 17 + t * 5) % 256;
            const uint64_t from = (uint64_t)(row * TOKENS + half * TOKENS / 2) * sizeof *labels;
            must(run_write_bytes(&r, "input_ids", from, ids, sizeof ids, &e), &e);
            must(run_write_bytes(&r, "labels", from, labels, sizeof labels, &e), &e);
        }
    must(run_program(&r, PROGRAM_STEP, &e), &e);
    float loss = 0;
    must(run_read(&r, graph_find_output(&r.planned.graph, PROGRAM_STEP, "loss"), &loss, &e), &e);
    assert_true(loss == want.at[0]);
    vec_free(&want);
    close_run(&r, &c);
}

MAIN(NULL, NULL)
