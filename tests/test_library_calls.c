/*
 * test_library_calls.c: what a binding needs of the library: steps apart, gradients, training
 * state, dtypes, views, the log, cancelling, calls of several threads, and tables.
 */
#include "library.h"

#include <pthread.h>

static void classifier(struct pl_builder *b, int64_t batch, void *user)
{
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, IN)),
              labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch));
    pl_tensor w = pl_param(b, "in.weight", PL_SHAPE(WIDTH, IN), PL_NORMAL, 0.5f);
    x = pl_activate(b, pl_linear(b, x, w, 0), PL_TANH);
    pl_tensor logits = pl_linear(b, x, pl_param(b, "out.weight", PL_SHAPE(CLASSES, WIDTH), PL_NORMAL, 0.2f), 0);
    pl_output(b, "logits", logits);
    pl_output(b, "loss", pl_cross_entropy(b, logits, labels));
}

static struct pl_session *started(const struct batch *d)
{
    struct pl_session *s = open_with(classifier);
    ok(s, pl_set(s, "memory.fused_step", "off"));
    start_on(s, d);
    return s;
}

/* --- steps ---------------------------------------------------------------------------------- */

/* Steps whose halves are apart have the bits of whole ones. */
TEST(test_submit_and_retire)
{
    struct batch d;
    double a[6], b[6];
    struct pl_step_info info = PL_INIT(pl_step_info);
    make_batch(&d);
    struct pl_session *s = started(&d), *t = started(&d);
    for (int i = 0; i < 6; i++) ok(s, pl_step(s, &a[i], NULL));
    refused(t, pl_retire(t, &info), "no step is submitted");
    ok(t, pl_submit(t));
    for (int i = 0; i < 5; i++) {
        ok(t, pl_write_input(t, "x", d.x, sizeof d.x));
        ok(t, pl_submit(t));
        refused(t, pl_submit(t), "2 steps are submitted");
        refused(t, pl_step(t, &b[i], NULL), "2 of the submitted steps are not retired");
        refused(t, pl_evaluate(t, &b[i]), "not retired");
        ok(t, pl_retire(t, &info));
        assert_int_equal(info.step, i + 1);
        b[i] = info.loss;
    }
    ok(t, pl_retire(t, &info));
    b[5] = info.loss;
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(pl_steps(t), 6);
    pl_close(t);
    pl_close(s);
}

/* The gradient against differences of the loss, and the weights are as before. */
TEST(test_gradients)
{
    enum { N = CLASSES * WIDTH };
    static float w[N], g[N], again[N];
    struct batch d;
    double loss, above, below;
    make_batch(&d);
    struct pl_session *s = started(&d);
    ok(s, pl_read_parameter(s, "out.weight", w, sizeof w));
    ok(s, pl_backward(s, &loss));
    ok(s, pl_read_gradient(s, "out.weight", g, sizeof g));
    ok(s, pl_read_parameter(s, "out.weight", again, sizeof again));
    assert_memory_equal(w, again, sizeof w);
    assert_int_equal(pl_steps(s), 0);
    for (int i = 0; i < N; i += 7) {
        const float h = 1e-2f, was = w[i];
        w[i] = was + h;
        ok(s, pl_write_parameter(s, "out.weight", w, sizeof w));
        ok(s, pl_evaluate(s, &above));
        w[i] = was - h;
        ok(s, pl_write_parameter(s, "out.weight", w, sizeof w));
        ok(s, pl_evaluate(s, &below));
        w[i] = was;
        assert_true(fabs((above - below) / (2 * (double)h) - (double)g[i]) < 1e-4);
    }
    ok(s, pl_write_parameter(s, "out.weight", w, sizeof w));
    /* A step computes the same gradient. */
    ok(s, pl_step(s, NULL, NULL));
    ok(s, pl_read_gradient(s, "out.weight", again, sizeof again));
    assert_memory_equal(g, again, sizeof g);
    refused(s, pl_read_gradient(s, "out.weight", g, 4), "4 bytes, expected 320");
    refused(s, pl_read_gradient(s, "nothing", g, 4), "no parameter nothing");
    pl_close(s);

    s = open_with(classifier);
    ok(s, pl_set(s, "memory.fused_step", "on"));
    ok(s, pl_set(s, "train.clip_norm", "0"));
    start_on(s, &d);
    refused(s, pl_backward(s, &loss), "memory.fused_step");
    refused(s, pl_read_gradient(s, "out.weight", g, sizeof g), "memory.fused_step");
    pl_close(s);
}

/* A session that reads the state of another one continues with its bits, within another budget. */
TEST(test_state)
{
    struct batch d;
    double a[4], b[4];
    char dir[128];
    make_batch(&d);
    snprintf(dir, sizeof dir, "%s/state", folder);
    struct pl_session *s = started(&d), *t = open_with(classifier);
    for (int i = 0; i < 3; i++) ok(s, pl_step(s, NULL, NULL));
    ok(s, pl_save_state(s, dir));
    refused(s, pl_save_state(s, dir), "not empty");
    for (int i = 0; i < 4; i++) ok(s, pl_step(s, &a[i], NULL));
    refused(t, pl_load_state(t, dir), "pl_start first");
    ok(t, pl_set(t, "memory.fused_step", "off"));
    ok(t, pl_set(t, "memory.offload", "optimizer"));
    start_on(t, &d);
    refused(t, pl_load_state(t, folder), folder);
    ok(t, pl_load_state(t, dir));
    assert_int_equal(pl_steps(t), 3);
    for (int i = 0; i < 4; i++) ok(t, pl_step(t, &b[i], NULL));
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(pl_steps(t), 7);
    pl_close(t);
    pl_close(s);
}

/* --- dtypes --------------------------------------------------------------------------------- */

TEST(test_dtypes)
{
    static double x64[E][IN], logits64[E][CLASSES], w64[CLASSES * WIDTH];
    static float logits[E][CLASSES], w[CLASSES * WIDTH];
    static uint16_t half[E][IN];
    int64_t labels[E];
    uint8_t bytes[E];
    struct batch d;
    double before, after;
    make_batch(&d);
    struct pl_session *s = started(&d);
    for (int i = 0; i < E; i++) {
        labels[i] = d.labels[i];
        bytes[i] = (uint8_t)d.labels[i];
        for (int k = 0; k < IN; k++) {
            x64[i][k] = (double)d.x[i][k];
            uint32_t u;
            memcpy(&u, &d.x[i][k], 4);
            half[i][k] = (uint16_t)(u >> 16); /* bf16, cut */
        }
    }
    ok(s, pl_evaluate(s, &before));
    ok(s, pl_write_input_as(s, "x", PL_F64, x64, sizeof x64));
    ok(s, pl_write_input_as(s, "labels", PL_I64, labels, sizeof labels));
    ok(s, pl_evaluate(s, &after));
    assert_true(before == after);
    ok(s, pl_write_input_as(s, "labels", PL_U8, bytes, sizeof bytes));
    ok(s, pl_evaluate(s, &after));
    assert_true(before == after);
    ok(s, pl_write_input_as(s, "x", PL_BF16, half, sizeof half));
    ok(s, pl_evaluate(s, &after));
    assert_true(before != after && fabs(before - after) < 0.02);
    labels[2] = (int64_t)1 << 40;
    refused(s, pl_write_input_as(s, "labels", PL_I64, labels, sizeof labels), "element 2 of labels is 1099511627776");
    labels[2] = CLASSES;
    refused(s, pl_write_input_as(s, "labels", PL_I64, labels, sizeof labels), "element 2 of labels is 5");
    refused(s, pl_write_input_as(s, "labels", PL_F32, d.x, sizeof labels / 2), "labels is i32, and the data is f32");
    refused(s, pl_write_input_as(s, "x", PL_I64, x64, sizeof x64), "x is f32, and the data is i64");
    refused(s, pl_write_input_as(s, "x", PL_F64, x64, 8), "8 bytes, expected 576: 48 for each of 12 samples");
    refused(s, pl_write_input_as(s, "x", (enum pl_dtype)99, x64, 8), "99");

    ok(s, pl_read_output(s, "logits", logits, sizeof logits));
    ok(s, pl_read_output_as(s, "logits", PL_F64, logits64, sizeof logits64));
    for (int i = 0; i < E; i++)
        for (int k = 0; k < CLASSES; k++) assert_true((double)logits[i][k] == logits64[i][k]);
    refused(s, pl_read_output_as(s, "logits", PL_I64, logits64, sizeof logits64), "f32, which is not read as i64");
    ok(s, pl_read_parameter(s, "out.weight", w, sizeof w));
    ok(s, pl_read_parameter_as(s, "out.weight", PL_F64, w64, sizeof w64));
    for (int i = 0; i < CLASSES * WIDTH; i++) assert_true((double)w[i] == w64[i]);
    ok(s, pl_write_parameter_as(s, "out.weight", PL_F64, w64, sizeof w64));
    pl_close(s);
}

/* --- DLPack --------------------------------------------------------------------------------- */

/* The layout of DLPack, as any library has it. */
struct DLManagedTensor {
    void *data;
    struct {
        int32_t type, index;
    } device;
    int32_t rank;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } type;
    int64_t *dim, *stride;
    uint64_t offset;
    void *context;
    void (*deleter)(struct DLManagedTensor *);
};

TEST(test_views)
{
    struct batch d;
    struct DLManagedTensor *w, *g;
    static float read[CLASSES * WIDTH];
    double before, after;
    make_batch(&d);
    struct pl_session *s = started(&d);
    ok(s, pl_step(s, NULL, NULL));
    ok(s, pl_view_parameter(s, "out.weight", &w));
    ok(s, pl_view_gradient(s, "out.weight", &g));
    assert_true(w->rank == 2 && w->dim[0] == CLASSES && w->dim[1] == WIDTH && w->stride[1] == 1);
    assert_true(w->type.code == 2 && w->type.bits == 32);
    if (w->device.type != 1) { /* the memory of a GPU, which this test cannot read */
        assert_int_equal(w->device.type, 2);
        w->deleter(w);
        g->deleter(g);
        pl_close(s);
        return;
    }
    ok(s, pl_read_parameter(s, "out.weight", read, sizeof read));
    assert_memory_equal(read, w->data, sizeof read);
    ok(s, pl_read_gradient(s, "out.weight", read, sizeof read));
    assert_memory_equal(read, g->data, sizeof read);
    refused(s, pl_view_parameter(s, "nothing", &g), "no parameter nothing");
    assert_null(g);

    ok(s, pl_evaluate(s, &before));
    int64_t dim[2] = {E, IN}, stride[2] = {IN, 1};
    struct DLManagedTensor x = {.data = d.x, .device = {1, 0}, .rank = 2, .type = {2, 32, 1}, .dim = dim};
    ok(s, pl_write_input_view(s, "x", &x));
    x.stride = stride;
    ok(s, pl_write_input_view(s, "x", &x));
    ok(s, pl_evaluate(s, &after));
    assert_true(before == after);
    stride[0] = 2 * IN;
    refused(s, pl_write_input_view(s, "x", &x), "not contiguous");
    x.device.type = 2;
    refused(s, pl_write_input_view(s, "x", &x), "not in host memory");
    /* The memory stays until the last view is freed. */
    memcpy(read, w->data, sizeof read);
    pl_close(s);
    assert_memory_equal(read, w->data, sizeof read);
    w->deleter(w);
}

/* --- the log, cancelling, threads ----------------------------------------------------------- */

struct heard {
    int lines[3];
    struct pl_session *cancels; /* after `steps` steps */
    int64_t steps;
};
static void hear(enum pl_log level, const char *line, void *user)
{
    struct heard *h = user;
    assert_true(*line && line[strlen(line) - 1] != '\n');
    h->lines[level]++;
}
static int count_steps(const struct pl_step_info *info, void *user)
{
    struct heard *h = user;
    if (info->step == h->steps) pl_cancel(h->cancels, 1);
    return 0;
}

static struct pl_session *token_run(const char *out)
{
    char path[160], data[160];
    snprintf(data, sizeof data, "%s/text", folder);
    FILE *f = fopen(data, "w");
    for (int i = 0; i < 4000; i++) fputc("the quick brown fox "[i % 20], f);
    fclose(f);
    snprintf(path, sizeof path, "%s/%s", folder, out);
    struct pl_session *s = open_f32();
    const char *keys[][2] = {{"model.preset", "llama-tiny"}, {"data.format", "bytes"}, {"data.train", data},
                             {"data.sequence", "16"}, {"train.effective_batch", "2"}, {"train.steps", "6"},
                             {"train.out", path}, {"device.threads", "1"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) ok(s, pl_set(s, keys[i][0], keys[i][1]));
    return s;
}

/* pl_cancel ends a run after the current step with a checkpoint; pl_resume continues it. */
TEST(test_cancel)
{
    struct pl_session *s = token_run("cancelled");
    struct heard h = {.cancels = s, .steps = 2};
    ok(s, pl_on_log(s, hear, &h));
    ok(s, pl_on_step(s, count_steps, &h));
    assert_int_equal(pl_train(s), PL_STOPPED);
    stopped_after(s, 2);
    assert_non_null(strstr(pl_message(s), "stopped by pl_cancel"));
    assert_non_null(strstr(pl_model_path(s), "checkpoints/step-"));
    assert_true(h.lines[PL_LOG_PROGRESS] + h.lines[PL_LOG_NOTE] > 0);
    ok(s, pl_on_step(s, NULL, NULL));
    ok(s, pl_resume(s));
    assert_int_equal(pl_steps(s), 6);
    pl_close(s);

    /* Before the call: nothing is begun. A withdrawn one has no effect. */
    s = token_run("never");
    pl_cancel(s, 1);
    assert_int_equal(pl_train(s), PL_STOPPED);
    assert_string_equal(pl_model_path(s), "");
    pl_cancel(s, 1);
    assert_int_equal(pl_plan(s, NULL), PL_STOPPED);
    pl_cancel(s, 1);
    pl_cancel(s, 0);
    ok(s, pl_plan(s, NULL));
    pl_close(s);
    pl_cancel(NULL, 1);
}

static void *plan_often(void *user)
{
    for (int i = 0; i < 3; i++) {
        struct pl_session *s = open_with(classifier);
        struct pl_plan_info p = PL_INIT(pl_plan_info);
        if (pl_plan(s, &p) || !p.fits) *(int *)user = 1;
        pl_close(s);
    }
    return NULL;
}

TEST(test_threads)
{
    pthread_t thread[4];
    int failed[4] = {0};
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, plan_often, &failed[i]), 0);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 4; i++) assert_int_equal(failed[i], 0);
}

TEST(test_tables_of_plans)
{
    struct pl_session *s = token_run("compared");
    const char *rows = pl_frontier_json(s);
    if (!rows) fail_msg("%s", pl_message(s));
    assert_true(strstr(rows, "\"label\": \"smallest\"") && strstr(rows, "samples_per_second"));
    assert_non_null(rows = pl_devices_json(s, "8,h200"));
    assert_non_null(strstr(rows, "\"devices\""));
    assert_null(pl_devices_json(s, "8,nothing"));
    assert_non_null(strstr(pl_message(s), "nothing"));
    assert_null(pl_devices_json(s, NULL));
    pl_close(s);
    s = open_with(classifier);
    assert_null(pl_frontier_json(s));
    assert_int_equal(pl_code(s), PL_USAGE);
    pl_close(s);
}

/* --- what there is -------------------------------------------------------------------------- */

TEST(test_ports)
{
    struct pl_session *s = open_with(classifier);
    struct pl_port p = PL_INIT(pl_port);
    refused(s, pl_input_at(s, 0, &p), "pl_plan first");
    ok(s, pl_set(s, "memory.micro_batch", "3"));
    ok(s, pl_plan(s, NULL));
    ok(s, pl_input_at(s, 0, &p));
    assert_string_equal(p.name, "x");
    assert_true(p.type == PL_F32 && p.rank == 2 && p.dim[0] == E && p.dim[1] == IN && p.axis == 0 && p.used);
    assert_int_equal(p.bytes, E * IN * 4);
    ok(s, pl_input_at(s, 1, &p));
    assert_true(!strcmp(p.name, "labels") && p.type == PL_I32 && p.rank == 1 && p.dim[0] == E);
    refused(s, pl_input_at(s, 2, &p), "the model has 2 inputs");
    int found = 0;
    for (int i = 0; !pl_output_at(s, i, &p); i++)
        if (!strcmp(p.name, "logits")) {
            found = 1;
            assert_true(p.dim[0] == E && p.dim[1] == CLASSES && p.bytes == E * CLASSES * 4);
        }
    assert_true(found);
    pl_close(s);
}

TEST(test_tables)
{
    struct pl_key k = PL_INIT(pl_key);
    struct pl_op_info o = PL_INIT(pl_op_info);
    int keys = 0, ops = 0, steps = 0, norm = 0;
    for (; !pl_key_at(keys, &k); keys++) {
        assert_true(k.name && k.type && k.standard && k.allowed && k.needs && strlen(k.doc) > 3);
        if (!strcmp(k.name, "train.steps")) steps = !strcmp(k.type, "integer");
    }
    for (; !pl_op_at(ops, &o); ops++) {
        assert_true(strlen(o.name) > 0 && strstr(o.signature, "->") && strlen(o.doc) > 1);
        if (!strcmp(o.name, "RMSNORM"))
            norm = o.inputs_least == 2 && o.inputs_most == 2 && o.in_models && strstr(o.attributes, "eps");
        if (!strcmp(o.name, "ADAMW")) assert_false(o.in_models);
    }
    assert_true(keys > 100 && ops > 80 && steps && norm);
    assert_int_equal(pl_key_at(-1, &k), PL_USAGE);
    assert_int_equal(pl_op_at(0, NULL), PL_USAGE);
}

MAIN(make_folder, remove_folder)
