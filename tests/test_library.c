/*
 * test_library.c: the library as an external program sees it. This file includes plimsoll.h and no
 * other header of the project, and links with the shared library.
 *
 * The model is a gated network on random points. The tests check that the loss falls; that two runs
 * give the same bits, also with the recomputation that a budget needs, and agree within 1e-6 for
 * any split into micro-batches; that saved parameters are read back; that the model can be adapted
 * (LoRA); and that any wrong order of calls, name or size returns PL_USAGE with a message that
 * states the error.
 */
#include "library.h"

enum { INNER = 24, BLOCKS = 3 };

/* --- the model --------------------------------------------------------------------- */

static pl_tensor block(struct pl_builder *b, pl_tensor x, int i)
{
    char name[4][64];
    static const char *const part[] = {"norm", "gate", "up", "down"};
    for (int k = 0; k < 4; k++) snprintf(name[k], sizeof name[k], "blocks.%d.%s.weight", i, part[k]);
    char scope[32];
    snprintf(scope, sizeof scope, "blocks.%d", i);
    pl_scope_begin(b, scope, PL_BLOCK);
    pl_tensor n = pl_rmsnorm(b, x, pl_param(b, name[0], PL_SHAPE(WIDTH), PL_ONES, 0), 1e-5f);
    pl_tensor gate = pl_linear(b, n, pl_param(b, name[1], PL_SHAPE(INNER, WIDTH), PL_NORMAL, 0.2f), 0);
    pl_tensor up = pl_linear(b, n, pl_param(b, name[2], PL_SHAPE(INNER, WIDTH), PL_NORMAL, 0.2f), 0);
    pl_tensor down = pl_param(b, name[3], PL_SHAPE(WIDTH, INNER), PL_NORMAL, 0.2f);
    x = pl_add(b, x, pl_linear(b, pl_silu_gate(b, gate, up), down, 0));
    pl_scope_end(b);
    return x;
}

static void classifier(struct pl_builder *b, int64_t batch, void *user)
{
    if (user) ++*(int *)user;
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, IN)),
              labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch));
    /* One call per line: C does not fix the order of argument evaluation, and parameters are in the
     * order of the calls. */
    pl_tensor w = pl_param(b, "in.weight", PL_SHAPE(WIDTH, IN), PL_NORMAL, 0.5f),
              bias = pl_param(b, "in.bias", PL_SHAPE(WIDTH), PL_ZEROS, 0);
    x = pl_linear(b, x, w, bias);
    for (int i = 0; i < BLOCKS; i++) x = block(b, x, i);
    pl_tensor logits = pl_linear(b, x, pl_param(b, "out.weight", PL_SHAPE(CLASSES, WIDTH), PL_NORMAL, 0.2f), 0);
    pl_output(b, "logits", logits);
    pl_output(b, "loss", pl_cross_entropy(b, logits, labels));
}

/* Least squares, with a loss that the user builds from ops. */
static void regression(struct pl_builder *b, int64_t batch, void *user)
{
    (void)user;
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, IN)), y = pl_input(b, "y", PL_F32, PL_SHAPE(batch, 1));
    pl_tensor p = pl_linear(b, x, pl_param(b, "w", PL_SHAPE(1, IN), PL_ZEROS, 0), 0);
    pl_tensor d = pl_add(b, p, pl_scale(b, y, -1));
    pl_output(b, "error", d);
    pl_output(b, "loss", pl_per_count(b, pl_sum(b, pl_mul(b, d, d))));
}

/* Two of them, whose predictions are added. */
static void two_regressions(struct pl_builder *b, int64_t batch, void *user)
{
    (void)user;
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, IN));
    pl_tensor p = pl_linear(b, x, pl_param(b, "left.w", PL_SHAPE(1, IN), PL_NORMAL, 0.1f), 0);
    pl_tensor q = pl_linear(b, x, pl_param(b, "right.w", PL_SHAPE(1, IN), PL_NORMAL, 0.1f), 0);
    pl_tensor sum = pl_add(b, p, q);
    pl_output(b, "loss", pl_per_count(b, pl_sum(b, pl_mul(b, sum, sum))));
}

/* A class and a number from one layer; a loss for each, with a count of its own. `weights` selects
 * the samples that have a number. */
static void class_and_number(struct pl_builder *b, int64_t batch, void *user)
{
    (void)user;
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, IN)),
              labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch));
    pl_tensor y = pl_input(b, "y", PL_F32, PL_SHAPE(batch, 1)),
              weights = pl_input(b, "weights", PL_F32, PL_SHAPE(batch, 1));
    pl_tensor logits = pl_linear(b, x, pl_param(b, "classes", PL_SHAPE(CLASSES, IN), PL_ZEROS, 0), 0);
    pl_tensor d =
        pl_add(b, pl_linear(b, x, pl_param(b, "number", PL_SHAPE(1, IN), PL_ZEROS, 0), 0), pl_scale(b, y, -1));
    d = pl_mul(b, weights, pl_mul(b, d, d));
    pl_tensor by_class = pl_cross_entropy_of(b, logits, labels, "labels"),
              by_number = pl_per_count_of(b, pl_sum(b, d), "numbers");
    pl_output(b, "loss.labels", by_class);
    pl_output(b, "loss.numbers", by_number);
    pl_output(b, "loss", pl_add(b, by_class, by_number));
}

/* Two losses over tokens, for pl_train: one per token, one per sample. `user`: the second count. */
static void token_losses(struct pl_builder *b, int64_t batch, void *user)
{
    enum { T = 32, C = 8 };
    pl_tensor ids = pl_input(b, "input_ids", PL_I32, PL_SHAPE(batch, T)),
              labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch, T));
    pl_tensor table = pl_param(b, "table", PL_SHAPE(256, C), PL_ZEROS, 0),
              head = pl_param(b, "head", PL_SHAPE(256, C), PL_ZEROS, 0);
    pl_tensor logits = pl_linear(b, pl_reshape(b, pl_embedding(b, ids, table), PL_SHAPE(-1, C)), head, 0);
    labels = pl_reshape(b, pl_shift_labels(b, labels), PL_SHAPE(-1));
    pl_output(b, "loss",
              pl_add(b, pl_cross_entropy_of(b, logits, labels, "tokens"),
                     pl_cross_entropy_of(b, logits, labels, user)));
}

/* A byte-level model with attention; its inputs are tokens, as pl_train needs. `user` not NULL:
 * rows of several documents, whose positions and ranges are inputs, too. */
static void tokens(struct pl_builder *b, int64_t batch, void *user)
{
    enum { T = 32, C = 16 };
    pl_tensor positions = user ? pl_input(b, "positions", PL_I32, PL_SHAPE(batch, T)) : 0,
              ranges = user ? pl_input(b, "ranges", PL_I32, PL_SHAPE(batch, T, 2)) : 0;
    pl_tensor ids = pl_input(b, "input_ids", PL_I32, PL_SHAPE(batch, T)),
              labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch, T));
    pl_tensor table = pl_param(b, "table", PL_SHAPE(256, C), PL_NORMAL, 0.1f);
    static const float inv_freq[4] = {1, 0.1f, 0.01f, 0.001f};
    pl_tensor freq = pl_constant(b, "inv_freq", PL_SHAPE(4), inv_freq);
    pl_tensor x = pl_embedding(b, ids, table);
    pl_tensor w[3];
    for (int i = 0; i < 3; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        w[i] = pl_linear(b, x, pl_param(b, name, PL_SHAPE(C, C), PL_NORMAL, 0.2f), 0);
        w[i] = pl_reshape(b, w[i], PL_SHAPE(batch, T, 2, 8));
        if (i < 2) w[i] = user ? pl_rope_at(b, w[i], freq, positions, 1) : pl_rope(b, w[i], freq, 1);
    }
    pl_tensor seen =
        user ? pl_attention_ranges(b, w[0], w[1], w[2], ranges, 0.35f, 0) : pl_attention(b, w[0], w[1], w[2], 0.35f, 1);
    x = pl_add(b, x, pl_reshape(b, seen, PL_SHAPE(batch, T, C)));
    pl_tensor logits = pl_linear(b, pl_reshape(b, x, PL_SHAPE(-1, C)), table, 0);
    pl_output(b, "loss", pl_cross_entropy(b, logits, pl_reshape(b, pl_shift_labels(b, labels), PL_SHAPE(-1))));
}

/* Losses of n steps on one batch, with a budget and a setting; the returned session is open. */
static struct pl_session *losses(const char *memory, const char *key, const char *value, double *out, int n)
{
    struct batch d;
    struct pl_session *s = open_with(classifier);
    make_batch(&d);
    if (memory) ok(s, pl_set_memory(s, memory));
    if (key) ok(s, pl_set(s, key, value));
    start_on(s, &d);
    for (int i = 0; i < n; i++) ok(s, pl_step(s, &out[i], NULL));
    return s;
}

/* --- planning ------------------------------------------------------------------------------ */

TEST(test_version)
{
    assert_string_equal(pl_version(), PL_VERSION);
    assert_string_equal(pl_kind_name(PL_ACTIVATIONS), "activations");
    assert_string_equal(pl_kind_name((enum pl_kind)99), "none");
}

TEST(test_plan)
{
    struct pl_session *s = open_with(classifier);
    struct pl_plan_info free = PL_INIT(pl_plan_info), tight = PL_INIT(pl_plan_info), none = PL_INIT(pl_plan_info);
    ok(s, pl_plan(s, &free));
    assert_true(free.fits);
    uint64_t sum = 0;
    for (int k = 0; k < PL_KINDS; k++) sum += free.bytes[k];
    assert_int_equal(sum, free.lower_bound_bytes);
    assert_true(free.arena_bytes >= free.lower_bound_bytes);
    assert_int_equal(free.micro_batch * free.accumulation, E);
    assert_int_equal(free.parameters, WIDTH * IN + WIDTH + BLOCKS * (WIDTH + 3 * WIDTH * INNER) + CLASSES * WIDTH);
    assert_int_equal(free.trainable, free.parameters);
    assert_string_equal(pl_technique_value(&free, "precision"), "f32");
    assert_string_equal(pl_technique_value(&free, "recompute"), "none");
    assert_null(pl_technique_value(&free, "seconds"));

    /* The smallest budget runs, one byte less is rejected. */
    char size[32];
    snprintf(size, sizeof size, "%llu", (unsigned long long)free.smallest_budget_bytes);
    ok(s, pl_set_memory(s, size));
    ok(s, pl_plan(s, &tight));
    assert_int_equal(tight.arena_bytes, free.smallest_budget_bytes);
    ok(s, pl_start(s));
    pl_close(s);

    s = open_with(classifier);
    snprintf(size, sizeof size, "%llu", (unsigned long long)free.smallest_budget_bytes - 1);
    ok(s, pl_set_memory(s, size));
    assert_int_equal(pl_plan(s, &none), PL_NOFIT);
    assert_false(none.fits);
    assert_int_equal(none.smallest_budget_bytes, free.smallest_budget_bytes);
    assert_non_null(strstr(pl_plan_json(s), "\"fits\": false"));
    assert_int_equal(pl_start(s), PL_NOFIT);
    assert_true(strlen(pl_message(s)) > 20);
    ok(s, pl_set_memory(s, "none"));
    ok(s, pl_plan(s, &none));
    assert_non_null(strstr(pl_plan_table(s), "activations"));
    pl_close(s);
}

/* A plan is computed once, and once more after an option changes. */
TEST(test_plan_is_kept)
{
    int calls = 0, before;
    struct pl_session *s = open_f32();
    ok(s, pl_define(s, classifier, &calls, NULL));
    ok(s, pl_plan(s, NULL));
    assert_true(calls > 0);
    before = calls;
    ok(s, pl_plan(s, NULL));
    assert_non_null(pl_plan_json(s));
    assert_int_equal(calls, before);
    ok(s, pl_set(s, "train.effective_batch", "4"));
    ok(s, pl_plan(s, NULL));
    assert_true(calls > before);
    pl_close(s);
}

TEST(test_splits_are_whole)
{
    struct pl_session *s = open_with(classifier);
    struct pl_plan_info p = PL_INIT(pl_plan_info);
    ok(s, pl_set(s, "memory.micro_batch", "5"));
    refused(s, pl_plan(s, &p), "does not divide");
    ok(s, pl_set(s, "memory.micro_batch", "4"));
    ok(s, pl_plan(s, &p));
    assert_int_equal(p.accumulation, 3);
    pl_close(s);
}

/* --- steps ---------------------------------------------------------------------------------- */

TEST(test_loss_falls)
{
    double l[60], norm = 0;
    struct pl_session *s = losses(NULL, NULL, NULL, l, 60);
    assert_true(fabs(l[0] - log(CLASSES)) < 1);
    assert_true(l[59] < 0.2 * l[0]);
    double now;
    ok(s, pl_evaluate(s, &now));
    ok(s, pl_step(s, &l[0], &norm));
    assert_true(fabs(now - l[0]) <= 1e-6 * l[0]); /* the step reports the loss before its update */
    assert_true(norm > 0 && isfinite(norm));
    assert_int_equal(pl_steps(s), 61);
    pl_close(s);
}

TEST(test_same_bits)
{
    double a[8], b[8];
    pl_close(losses(NULL, NULL, NULL, a, 8));
    pl_close(losses(NULL, NULL, NULL, b, 8));
    assert_memory_equal(a, b, sizeof a);
    pl_close(losses(NULL, "memory.recompute", "all", b, 8));
    assert_memory_equal(a, b, sizeof a);
    pl_close(losses(NULL, "memory.offload", "optimizer", b, 8));
    assert_memory_equal(a, b, sizeof a);
}

TEST(test_split_changes_nothing)
{
    double a[8], b[8];
    static float whole[E][CLASSES], split[E][CLASSES];
    struct pl_session *s = losses(NULL, "memory.micro_batch", "12", a, 8);
    ok(s, pl_read_output(s, "logits", whole, sizeof whole));
    pl_close(s);
    s = losses(NULL, "memory.micro_batch", "3", b, 8);
    for (int i = 0; i < 8; i++) assert_true(fabs(a[i] - b[i]) <= 1e-6 * fabs(a[i]));
    /* Evaluation covers every sample in order and leaves the batch unchanged. */
    double before, after;
    ok(s, pl_evaluate(s, &before));
    ok(s, pl_read_output(s, "logits", split, sizeof split));
    for (int i = 0; i < E; i++)
        for (int c = 0; c < CLASSES; c++) assert_true(fabsf(whole[i][c] - split[i][c]) < 1e-4f);
    ok(s, pl_evaluate(s, &after));
    assert_true(before == after);
    float loss;
    ok(s, pl_read_output(s, "loss", &loss, sizeof loss));
    assert_true(fabs(loss - after) < 1e-7);
    pl_close(s);
}

/* An input without a reader has no memory. Writing it, padding its last micro-batch and swapping
 * micro-batches affect nothing else. */
static void with_unused_input(struct pl_builder *b, int64_t batch, void *user)
{
    classifier(b, batch, user);
    pl_input(b, "aside", PL_F32, PL_SHAPE(batch, 8 * WIDTH));
}

TEST(test_unused_input)
{
    static float unused[E][8 * WIDTH];
    double a[4], b[4], x, y;
    struct batch d;
    make_batch(&d);
    for (int i = 0; i < E; i++)
        for (int k = 0; k < 8 * WIDTH; k++) unused[i][k] = 12345;
    struct pl_session *s = losses(NULL, "memory.micro_batch", "3", a, 4), *t = open_with(with_unused_input);
    ok(t, pl_set(t, "memory.micro_batch", "3"));
    start_on(t, &d);
    ok(t, pl_write_input(t, "aside", unused, sizeof unused));
    for (int i = 0; i < 4; i++) ok(t, pl_step(t, &b[i], NULL));
    assert_memory_equal(a, b, sizeof a);
    ok(s, pl_evaluate(s, &x));
    ok(t, pl_evaluate(t, &y));
    assert_true(x == y);
    pl_close(t);
    pl_close(s);
}

TEST(test_bf16)
{
    double l[40];
    struct pl_session *s = losses(NULL, "memory.precision", "bf16", l, 40);
    struct pl_plan_info p = PL_INIT(pl_plan_info);
    ok(s, pl_plan(s, &p));
    assert_string_equal(pl_technique_value(&p, "precision"), "bf16");
    assert_true(p.bytes[PL_MASTERS] > 0);
    assert_true(l[39] < 0.5 * l[0]);
    pl_close(s);
}

/* In a started session the learning rate and the clipping may change, as the plan does not depend
 * on them. */
TEST(test_change_while_started)
{
    struct batch d;
    make_batch(&d);
    struct pl_session *s = open_with(classifier);
    ok(s, pl_set(s, "train.groups", "[{match: in.weight, learning_rate: 1.0e-4}]"));
    ok(s, pl_set(s, "memory.fused_step", "on"));
    ok(s, pl_set(s, "train.clip_norm", "0"));
    start_on(s, &d);
    refused(s, pl_set(s, "train.clip_norm", "1"), "fused");
    refused(s, pl_set(s, "train.learning_rate", "1"), "train.groups[0]");
    pl_close(s);
    s = open_with(classifier);
    start_on(s, &d);
    ok(s, pl_set(s, "train.clip_norm", "1"));
    ok(s, pl_set(s, "train.learning_rate", "1e-3"));
    pl_close(s);
}

/* d/dw of sum (xw - y)^2 / count at w = 0 is -2 sum x y / count: the count is a divisor. */
TEST(test_count)
{
    struct batch d;
    make_batch(&d);
    double want = 0, norm, loss, squares = 0;
    for (int i = 0; i < E; i++) want += (double)d.y[i] * d.y[i];
    for (int k = 0; k < IN; k++) {
        double g = 0;
        for (int i = 0; i < E; i++) g += 2.0 * d.x[i][k] * d.y[i];
        squares += g * g;
    }
    for (int split = 0; split < 2; split++) {
        struct pl_session *s = open_with(regression);
        static float error[E];
        ok(s, pl_set(s, "train.learning_rate", "0"));
        ok(s, pl_set(s, "memory.micro_batch", split ? "4" : "12"));
        ok(s, pl_start(s));
        ok(s, pl_write_input(s, "x", d.x, sizeof d.x));
        ok(s, pl_write_input(s, "y", d.y, sizeof d.y));
        ok(s, pl_step(s, &loss, &norm));
        assert_true(fabs(loss - want / E) < 1e-5 * want);
        assert_true(fabs(norm - sqrt(squares) / E) < 1e-5 * sqrt(squares));
        ok(s, pl_set_count(s, 3));
        ok(s, pl_step(s, &loss, &norm));
        assert_true(fabs(loss - want / 3) < 1e-5 * want);
        assert_true(fabs(norm - sqrt(squares) / 3) < 1e-5 * sqrt(squares));
        ok(s, pl_read_output(s, "error", error, sizeof error));
        for (int i = 0; i < E; i++) assert_true(fabsf(error[i] + d.y[i]) < 1e-6f);
        ok(s, pl_set_count(s, 0));
        ok(s, pl_evaluate(s, &loss));
        assert_true(fabs(loss - want / E) < 1e-5 * want);
        /* The learning rate may change during a run. */
        ok(s, pl_set(s, "train.learning_rate", "0.05"));
        for (int i = 0; i < 200; i++) ok(s, pl_step(s, &loss, NULL));
        assert_true(loss < 0.05 * want / E);
        pl_close(s);
    }
}

/* Labels and numbers of the batch that do not count, spread unevenly over micro-batches. */
static int has_label(int i) { return i < 4 || i == 7; }
static int has_number(int i) { return i == 3 || i > 8; }

static void start_on_both(struct pl_session *s, const struct batch *d)
{
    int32_t labels[E];
    float weights[E];
    for (int i = 0; i < E; i++) {
        labels[i] = has_label(i) ? d->labels[i] : -100;
        weights[i] = (float)has_number(i);
    }
    ok(s, pl_start(s));
    ok(s, pl_write_input(s, "x", d->x, sizeof d->x));
    ok(s, pl_write_input(s, "y", d->y, sizeof d->y));
    ok(s, pl_write_input(s, "labels", labels, sizeof labels));
    ok(s, pl_write_input(s, "weights", weights, sizeof weights));
}

/* With all weights 0 the first loss is log(classes), the second the mean of y^2, and the gradients
 * are sums over the samples that count, each divided by its own count. */
TEST(test_counts)
{
    static const char *const splits[] = {"12", "6", "4", "1"};
    struct batch d;
    make_batch(&d);
    double squares = 0, want = 0, norm, loss, after, first = 0;
    int labels = 0, numbers = 0;
    for (int i = 0; i < E; i++) labels += has_label(i), numbers += has_number(i);
    for (int i = 0; i < E; i++) want += has_number(i) ? (double)d.y[i] * d.y[i] / numbers : 0;
    for (int k = 0; k < IN; k++) {
        double g[CLASSES] = {0}, h = 0;
        for (int i = 0; i < E; i++) {
            h += has_number(i) ? 2.0 * d.x[i][k] * d.y[i] / numbers : 0;
            for (int c = 0; c < CLASSES; c++)
                g[c] += has_label(i) ? d.x[i][k] * (1.0 / CLASSES - (d.labels[i] == c)) / labels : 0;
        }
        squares += h * h;
        for (int c = 0; c < CLASSES; c++) squares += g[c] * g[c];
    }
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        float part[2];
        struct pl_session *s = open_with(class_and_number);
        ok(s, pl_set(s, "memory.micro_batch", splits[i]));
        ok(s, pl_set(s, "memory.optimizer", "sgd"));
        ok(s, pl_set(s, "train.momentum", "0"));
        ok(s, pl_set(s, "train.weight_decay", "0"));
        ok(s, pl_set(s, "train.learning_rate", "1e-3"));
        ok(s, pl_set_count_of(s, "labels", labels));
        start_on_both(s, &d);
        ok(s, pl_set_count_of(s, "numbers", numbers));
        ok(s, pl_read_output(s, "loss.labels", &part[0], sizeof part[0]));
        ok(s, pl_read_output(s, "loss.numbers", &part[1], sizeof part[1]));
        assert_true(fabs(part[0] - log(CLASSES)) < 1e-6 && fabs(part[1] - want) < 1e-6);
        ok(s, pl_step(s, &loss, &norm));
        if (!i) first = loss;
        assert_true(fabs(loss - want - log(CLASSES)) < 1e-6 * loss);
        assert_true(fabs(loss - first) <= 1e-6 * first);
        assert_true(fabs(norm - sqrt(squares)) < 1e-6 * norm);
        /* Finite difference along the gradient: a step of SGD lowers the loss by rate * norm^2. */
        ok(s, pl_evaluate(s, &after));
        assert_true(fabs((loss - after) / 1e-3 - norm * norm) < 1e-2 * norm * norm);
        /* A count is a divisor of its own loss by itself. */
        ok(s, pl_set(s, "train.learning_rate", "0"));
        ok(s, pl_set_count_of(s, "numbers", 2 * numbers));
        double less;
        ok(s, pl_evaluate(s, &less));
        ok(s, pl_read_output(s, "loss.numbers", &part[1], sizeof part[1]));
        assert_true(fabs(less + part[1] - after) < 1e-5);
        refused(s, pl_set_count_of(s, "boxes", 3),
                "no loss of the model is divided by a count boxes; it has: labels, numbers");
        refused(s, pl_set_count_of(s, "numbers", -1), "expected a number above 0");
        refused(s, pl_set_count_of(s, "", 1), "no name");
        pl_close(s);
    }
    struct pl_session *s = open_with(class_and_number);
    ok(s, pl_set_count_of(s, "boxes", 3));
    refused(s, pl_start(s), "count boxes");
    ok(s, pl_set_count_of(s, "boxes", 0));
    ok(s, pl_start(s)); /* the default counts samples */
    pl_close(s);
}

/* The data sets the counts: the same cross-entropy, log(256) a token, once per token and once per
 * sample. */
TEST(test_train_counts)
{
    char path[160], out[128], line[1024];
    snprintf(path, sizeof path, "%s/counted.bin", folder);
    snprintf(out, sizeof out, "%s/counted", folder);
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < 32 * 10; i++) fputc(i * 7 % 256, f);
    fclose(f);
    for (int known = 0; known < 2; known++) {
        struct pl_session *s = open_f32();
        ok(s, pl_define(s, token_losses, known ? "samples" : "boxes", NULL));
        ok(s, pl_set(s, "data.format", "bytes"));
        ok(s, pl_set(s, "data.sequence", "32"));
        ok(s, pl_set(s, "data.train", path));
        ok(s, pl_set(s, "data.validation", path));
        ok(s, pl_set(s, "train.effective_batch", "4"));
        ok(s, pl_set(s, "memory.micro_batch", "2"));
        ok(s, pl_set(s, "train.learning_rate", "0"));
        ok(s, pl_set(s, "train.steps", "2"));
        ok(s, pl_set(s, "train.out", out));
        if (known) ok(s, pl_train(s));
        else
            refused(s, pl_train(s),
                    "divided by the count boxes, which this data does not have; it has: tokens, samples");
        pl_close(s);
    }
    int losses = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", out);
    assert_non_null(f = fopen(path, "r"));
    while (fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "loss\":");
        assert_non_null(at);
        assert_true(fabs(atof(at + 6) - 32 * log(256)) < 1e-3);
        losses++;
    }
    fclose(f);
    assert_true(losses >= 3); /* two steps, and an evaluation */
}

/* A preset, run step by step, with a batch size that no micro-batch size divides. */
TEST(test_preset)
{
    enum { N = 5, T = 16 };
    static int32_t ids[N][T];
    double l[6], whole;
    for (int i = 0; i < N * T; i++) ids[i / T][i % T] = (i * 37) % 256;
    for (int split = 0; split < 2; split++) {
        struct pl_session *s = open_f32();
        ok(s, pl_set(s, "model.preset", "llama-tiny"));
        ok(s, pl_set(s, "data.sequence", "16"));
        ok(s, pl_set(s, "train.effective_batch", "5"));
        ok(s, pl_set(s, "train.learning_rate", "1e-3"));
        ok(s, pl_set(s, "memory.micro_batch", split ? "2" : "5"));
        ok(s, pl_set(s, "device.threads", "1"));
        ok(s, pl_start(s));
        ok(s, pl_write_input(s, "input_ids", ids, sizeof ids));
        ok(s, pl_write_input(s, "labels", ids, sizeof ids));
        for (int i = 0; i < 6; i++) ok(s, pl_step(s, &l[i], NULL));
        assert_true(l[5] < l[0]);
        if (!split) whole = l[5];
        else assert_true(fabs(whole - l[5]) <= 1e-5 * whole);
        double now;
        ok(s, pl_evaluate(s, &now));
        assert_true(now < l[5]);
        ids[0][0] = 256;
        refused(s, pl_write_input(s, "input_ids", ids, sizeof ids), "element 0 of input_ids is 256, expected 0 to 255");
        ids[0][0] = 0;
        pl_close(s);
    }
}

/* The loss of 4 rows of 32 tokens, each of documents of `length` tokens. With several documents
 * the first one has no labels. */
static double loss_of_rows(int64_t length, int packed, int32_t first_id)
{
    enum { N = 4, T = 32 };
    static int32_t ids[N][T], labels[N][T], positions[N][T], ranges[N][T][2];
    struct pl_session *s = open_f32();
    double loss;
    for (int i = 0; i < N * T; i++) {
        const int32_t n = i / T, t = i % T, begin = t / (int32_t)length * (int32_t)length;
        ids[n][t] = t ? (i * 37) % 256 : first_id;
        labels[n][t] = t == begin || (t < length && length < T) ? -100 : ids[n][t];
        positions[n][t] = t - begin, ranges[n][t][0] = begin, ranges[n][t][1] = t + 1;
    }
    ok(s, pl_define(s, tokens, packed ? s : NULL, NULL));
    ok(s, pl_set(s, "train.effective_batch", "4"));
    ok(s, pl_set(s, "device.threads", "1"));
    ok(s, pl_start(s));
    ok(s, pl_write_input(s, "input_ids", ids, sizeof ids));
    ok(s, pl_write_input(s, "labels", labels, sizeof labels));
    if (packed) ok(s, pl_write_input(s, "positions", positions, sizeof positions));
    if (packed) ok(s, pl_write_input(s, "ranges", ranges, sizeof ranges));
    ok(s, pl_evaluate(s, &loss));
    pl_close(s);
    return loss;
}

/* A causal row written as ranges is a causal row; a document does not see the one before it. */
TEST(test_rows_of_documents)
{
    assert_true(loss_of_rows(32, 1, 7) == loss_of_rows(32, 0, 7));
    assert_true(loss_of_rows(16, 1, 7) == loss_of_rows(16, 1, 90));
    assert_true(loss_of_rows(16, 0, 7) != loss_of_rows(16, 0, 90));
}

/* --- parameters and folders ------------------------------------------------------------------ */

TEST(test_save_and_read_back)
{
    char dir[128], text[256];
    double l[5], a, b;
    static float out[CLASSES * WIDTH], again[CLASSES * WIDTH];
    struct batch d;
    make_batch(&d);
    struct pl_session *s = losses(NULL, NULL, NULL, l, 5);
    ok(s, pl_evaluate(s, &a));
    ok(s, pl_read_parameter(s, "out.weight", out, sizeof out));
    snprintf(dir, sizeof dir, "%s/model/", folder);
    ok(s, pl_save(s, dir));
    dir[strlen(dir) - 1] = '\0';
    assert_string_equal(pl_model_path(s), dir);
    refused(s, pl_save(s, dir), "not empty");
    pl_close(s);

    snprintf(text, sizeof text, "%s/config.json", dir);
    FILE *f = fopen(text, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    assert_non_null(strstr(text, "\"model_type\": \"custom\""));
    fclose(f);

    s = open_with(classifier);
    ok(s, pl_set(s, "model.path", dir));
    start_on(s, &d);
    ok(s, pl_read_parameter(s, "out.weight", again, sizeof again));
    assert_memory_equal(out, again, sizeof out);
    ok(s, pl_evaluate(s, &b));
    assert_true(a == b);
    /* The forward pass reads a written parameter. */
    memset(again, 0, sizeof again);
    ok(s, pl_write_parameter(s, "out.weight", again, sizeof again));
    ok(s, pl_evaluate(s, &b));
    assert_true(fabs(b - log(CLASSES)) < 1e-6);
    again[3] = NAN;
    refused(s, pl_write_parameter(s, "out.weight", again, sizeof again), "element 3 is nan");
    pl_close(s);

    /* Another model rejects the file. */
    s = open_with(regression);
    ok(s, pl_set(s, "model.path", dir));
    refused(s, pl_start(s), "tensor \"w\" is missing");
    pl_close(s);
}

/* A part's weights come from its own folder, the others from their inits; saved as one folder. */
TEST(test_parts)
{
    static float given[IN], left[IN], right[IN];
    char dir[128], whole[128];
    for (int i = 0; i < IN; i++) given[i] = (float)i - 3;
    snprintf(dir, sizeof dir, "%s/part", folder);
    snprintf(whole, sizeof whole, "%s/put-together", folder);
    struct pl_session *s = open_with(regression);
    ok(s, pl_start(s));
    ok(s, pl_write_parameter(s, "w", given, sizeof given));
    ok(s, pl_save(s, dir));
    pl_close(s);

    s = open_with(two_regressions);
    ok(s, pl_part(s, "left", dir));
    ok(s, pl_part(s, "right", dir));
    ok(s, pl_part(s, "right", NULL));
    ok(s, pl_start(s));
    ok(s, pl_read_parameter(s, "left.w", left, sizeof left));
    ok(s, pl_read_parameter(s, "right.w", right, sizeof right));
    assert_memory_equal(left, given, sizeof given);
    assert_memory_not_equal(right, given, sizeof given);
    refused(s, pl_part(s, "right", dir), "use another session");
    ok(s, pl_save(s, whole));
    pl_close(s);

    s = open_with(two_regressions);
    ok(s, pl_set(s, "model.path", whole));
    ok(s, pl_start(s));
    ok(s, pl_read_parameter(s, "left.w", left, sizeof left));
    assert_memory_equal(left, given, sizeof given);
    ok(s, pl_read_parameter(s, "right.w", left, sizeof left));
    assert_memory_equal(left, right, sizeof right);
    pl_close(s);

    s = open_with(two_regressions);
    ok(s, pl_part(s, "left", whole)); /* holds it under two names */
    refused(s, pl_start(s), "the folder holds this model twice");
    ok(s, pl_part(s, "left", "/nowhere"));
    refused(s, pl_start(s), "part left");
    ok(s, pl_part(s, "left", NULL));
    ok(s, pl_part(s, "middle", dir));
    refused(s, pl_start(s), "part middle: no parameter of the model begins with \"middle.\"");
    refused(s, pl_part(s, "", dir), "no name");
    pl_close(s);

    s = open_f32();
    ok(s, pl_set(s, "model.preset", "llama-tiny"));
    ok(s, pl_part(s, "left", dir));
    refused(s, pl_plan(s, NULL), "parts are of a model of your own");
    pl_close(s);
}

/* Whether a file of a folder has a text in it. */
static int holds(const char *dir, const char *name, const char *part)
{
    char path[256], text[4096];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    const size_t n = fread(text, 1, sizeof text - 1, f), length = strlen(part);
    fclose(f);
    for (size_t i = 0; i + length <= n; i++)
        if (!memcmp(text + i, part, length)) return 1;
    return 0;
}

/* LoRA on a model of the user's own, by the names of its modules: the base stays as it is, and the
 * saved folder is an adapter that another session reads beside the base. */
TEST(test_adapter)
{
    enum { R = 2 };
    char base[128], dir[128];
    double l[5], before, first, after, again;
    static float was[INNER * WIDTH], is[INNER * WIDTH], B[INNER * R];
    struct batch d;
    struct pl_parameter p = PL_INIT(pl_parameter);
    make_batch(&d);
    snprintf(base, sizeof base, "%s/adapted-base", folder);
    snprintf(dir, sizeof dir, "%s/adapter", folder);
    struct pl_session *s = losses(NULL, NULL, NULL, l, 5);
    ok(s, pl_evaluate(s, &before));
    ok(s, pl_read_parameter(s, "blocks.1.gate.weight", was, sizeof was));
    ok(s, pl_save(s, base));
    pl_close(s);

    s = open_with(classifier);
    ok(s, pl_set(s, "model.path", base));
    ok(s, pl_set(s, "adapter.target_modules", "[gate, blocks.1.down]"));
    ok(s, pl_set(s, "adapter.r", "2"));
    ok(s, pl_set(s, "adapter.lora_alpha", "4"));
    start_on(s, &d);
    int64_t trained = 0, frozen = 0;
    for (int i = 0; !pl_parameter_at(s, i, &p); i++) *(p.frozen ? &frozen : &trained) += p.elements;
    assert_int_equal(trained, (BLOCKS + 1) * R * (INNER + WIDTH));
    assert_int_equal(frozen, WIDTH * IN + WIDTH + BLOCKS * (WIDTH + 3 * INNER * WIDTH) + CLASSES * WIDTH);
    ok(s, pl_evaluate(s, &first));
    assert_true(first == before); /* lora_B starts as zeros */
    for (int i = 0; i < 5; i++) ok(s, pl_step(s, &l[i], NULL));
    ok(s, pl_evaluate(s, &after));
    assert_true(after < before);
    ok(s, pl_read_parameter(s, "blocks.1.gate.weight", is, sizeof is));
    assert_memory_equal(was, is, sizeof was);
    ok(s, pl_read_parameter(s, "blocks.1.gate.lora_B.weight", B, sizeof B));
    assert_true(B[0] != 0);
    ok(s, pl_save(s, dir));
    pl_close(s);
    assert_true(holds(dir, "adapter_config.json", "\"LORA\""));
    assert_true(holds(dir, "adapter_config.json", base));
    assert_true(holds(dir, "adapter_model.safetensors", "base_model.model.blocks.1.down.lora_A.weight"));
    assert_false(holds(dir, "adapter_model.safetensors", "in.weight"));
    assert_false(holds(dir, "model.safetensors", ""));

    s = open_with(classifier);
    ok(s, pl_set(s, "model.path", base));
    ok(s, pl_set(s, "adapter.path", dir));
    start_on(s, &d);
    ok(s, pl_evaluate(s, &again));
    assert_true(again == after);
    ok(s, pl_step(s, NULL, NULL));
    pl_close(s);

    s = open_with(classifier);
    ok(s, pl_set(s, "model.path", dir));
    refused(s, pl_start(s), "adapter");
    ok(s, pl_set(s, "model.path", base));
    ok(s, pl_set(s, "adapter.target_modules", "[gates]"));
    refused(s, pl_start(s), "blocks.0.gate");
    ok(s, pl_set(s, "adapter.target_modules", "all-linear"));
    ok(s, pl_set(s, "memory.quantize", "nf4"));
    ok(s, pl_plan(s, NULL));
    pl_close(s);
}

TEST(test_parameters)
{
    struct pl_session *s = open_with(classifier);
    struct pl_parameter p = PL_INIT(pl_parameter);
    refused(s, pl_parameter_at(s, 0, &p), "call pl_plan first");
    ok(s, pl_set(s, "model.freeze", "[in.*]"));
    ok(s, pl_plan(s, NULL));
    ok(s, pl_parameter_at(s, 0, &p));
    assert_string_equal(p.name, "in.weight");
    assert_int_equal(p.rank, 2);
    assert_int_equal(p.dim[0] * 1000 + p.dim[1], WIDTH * 1000 + IN);
    assert_int_equal(p.elements, WIDTH * IN);
    assert_true(p.frozen);
    int n = 0;
    while (!pl_parameter_at(s, n, &p)) n++;
    assert_int_equal(n, 2 + 4 * BLOCKS + 1);
    refused(s, pl_parameter_at(s, -1, &p), "has 15 parameters");
    pl_close(s);
}

/* --- the whole loop -------------------------------------------------------------------------- */

/* Meanwhile another session may make any call, except start a training loop of its own. */
static void use_another_session(void)
{
    struct pl_session *s = open_with(classifier);
    struct batch d;
    make_batch(&d);
    start_on(s, &d);
    ok(s, pl_step(s, NULL, NULL));
    pl_close(s);
    s = open_with(tokens);
    refused(s, pl_train(s), "one at a time");
    pl_close(s);
}

static int count_steps(const struct pl_step_info *info, void *user)
{
    int *left = user;
    if (info->step == 1) use_another_session();
    assert_int_equal(info->steps, 6);
    assert_true(info->loss > 0 && info->gradient_norm > 0 && info->seconds > 0 && info->learning_rate > 0);
    return --*left == 0;
}

static struct pl_session *token_run(const char *out)
{
    char data[128], path[160];
    snprintf(data, sizeof data, "%s/text", folder);
    FILE *f = fopen(data, "w");
    for (int i = 0; i < 4000; i++) fputc("the quick brown fox "[i % 20], f);
    fclose(f);
    snprintf(path, sizeof path, "%s/%s", folder, out);
    struct pl_session *s = open_with(tokens);
    ok(s, pl_set(s, "train.effective_batch", "4"));
    ok(s, pl_set(s, "data.sequence", "32"));
    ok(s, pl_set(s, "data.format", "bytes"));
    ok(s, pl_set(s, "data.train", data));
    ok(s, pl_set(s, "train.steps", "6"));
    ok(s, pl_set(s, "train.out", path));
    return s;
}

static void read_model(const char *dir, char *to, size_t room, size_t *n)
{
    char path[4400];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    *n = fread(to, 1, room, f);
    fclose(f);
}

/* A run that a callback stopped resumes bit for bit. */
TEST(test_train)
{
    static char whole[100000], parts[100000];
    size_t a, b;
    int left = 100;
    struct pl_session *s = token_run("whole");
    ok(s, pl_on_step(s, count_steps, &left));
    ok(s, pl_train(s));
    assert_int_equal(left, 94);
    read_model(pl_model_path(s), whole, sizeof whole, &a);
    refused(s, pl_train(s), "holds a run already");
    pl_close(s);

    s = token_run("parts");
    left = 2;
    ok(s, pl_on_step(s, count_steps, &left));
    assert_int_equal(pl_train(s), PL_STOPPED);
    stopped_after(s, 2);
    read_model(pl_model_path(s), parts, sizeof parts, &b);
    assert_int_equal(a, b);
    ok(s, pl_on_step(s, NULL, NULL));
    ok(s, pl_resume(s));
    read_model(pl_model_path(s), parts, sizeof parts, &b);
    assert_memory_equal(whole, parts, a);
    pl_close(s);
}

/* A model whose inputs are not tokens cannot train on token files. */
TEST(test_train_needs_tokens)
{
    struct pl_session *s = token_run("other");
    ok(s, pl_define(s, classifier, NULL, NULL));
    refused(s, pl_train(s), "input_ids");
    ok(s, pl_define(s, tokens, NULL, NULL));
    ok(s, pl_set(s, "data.sequence", "16"));
    refused(s, pl_train(s), "data.sequence = 16");
    ok(s, pl_set(s, "data.sequence", "32"));
    ok(s, pl_set(s, "train.out", "null"));
    refused(s, pl_train(s), "train.out");
    pl_close(s);
}

/* --- calls that are rejected ----------------------------------------------------------------- */

TEST(test_order_of_calls)
{
    struct pl_session *s = open_f32();
    double x;
    float y = 0;
    refused(s, pl_plan(s, NULL), "pl_define");
    assert_null(pl_plan_json(s));
    assert_null(pl_plan_table(s));
    refused(s, pl_start(s), "there is no model");
    refused(s, pl_train(s), "model");
    ok(s, pl_define(s, classifier, NULL, NULL));
    refused(s, pl_step(s, &x, &x), "pl_step: the session is not started; call pl_start first");
    refused(s, pl_evaluate(s, &x), "pl_start first");
    refused(s, pl_write_input(s, "x", &x, 8), "pl_start first");
    refused(s, pl_read_output(s, "loss", &y, 4), "pl_start first");
    refused(s, pl_read_parameter(s, "w", &y, 4), "pl_start first");
    refused(s, pl_write_parameter(s, "w", &y, 4), "pl_start first");
    refused(s, pl_save(s, "/tmp/nowhere"), "pl_start first");
    ok(s, pl_set(s, "train.schedule", "cosine"));
    refused(s, pl_start(s), "train.steps");
    ok(s, pl_set(s, "train.steps", "10"));
    ok(s, pl_start(s));
    refused(s, pl_start(s), "already");
    refused(s, pl_step(s, &x, &x), "input x was never written");
    refused(s, pl_evaluate(s, &x), "never written");
    refused(s, pl_set(s, "train.effective_batch", "3"), "the session is started");
    refused(s, pl_set_memory(s, "1GiB"), "the session is started");
    refused(s, pl_define(s, regression, NULL, NULL), "the session is started");
    refused(s, pl_read_yaml(s, "run.yaml"), "the session is started");
    refused(s, pl_train(s), "the session is started");
    ok(s, pl_plan(s, NULL));
    assert_string_equal(pl_message(s), "");
    pl_close(s);

    assert_int_equal(pl_set(NULL, "a", "b"), PL_USAGE);
    assert_int_equal(pl_step(NULL, NULL, NULL), PL_USAGE);
    assert_int_equal(pl_train(NULL), PL_USAGE);
    assert_int_equal(pl_plan(NULL, NULL), PL_USAGE);
    assert_null(pl_plan_json(NULL));
    assert_non_null(pl_message(NULL));
    pl_close(NULL);
}

TEST(test_names_and_sizes)
{
    struct batch d;
    float y[4];
    struct pl_session *s = open_with(classifier);
    make_batch(&d);
    refused(s, pl_set(s, "train.lerning_rate", "1"), "did you mean train.learning_rate");
    refused(s, pl_set(s, "train.steps", "many"), "expected a whole number");
    refused(s, pl_set(s, NULL, "1"), "NULL");
    refused(s, pl_set_memory(s, "much"), "memory.budget");
    refused(s, pl_set_count(s, -1), "expected a number above 0");
    refused(s, pl_define(s, classifier, NULL, "[1]"), "config_json");
    refused(s, pl_read_yaml(s, "/nowhere/run.yaml"), "/nowhere/run.yaml");
    ok(s, pl_set(s, "model.preset", "llama-tiny"));
    refused(s, pl_plan(s, NULL), "model.preset");
    ok(s, pl_set(s, "model.preset", "null"));
    start_on(s, &d);
    refused(s, pl_write_input(s, "z", d.x, sizeof d.x), "no input z; it has: x, labels");
    refused(s, pl_write_input(s, "x", d.x, 5), "5 bytes, expected 288: 24 for each of 12 samples");
    refused(s, pl_write_input(s, NULL, d.x, 5), "NULL");
    d.labels[7] = CLASSES;
    refused(s, pl_write_input(s, "labels", d.labels, sizeof d.labels),
            "element 7 of labels is 5, expected 0 to 4, or -100");
    d.labels[7] = -100;
    ok(s, pl_write_input(s, "labels", d.labels, sizeof d.labels));
    refused(s, pl_read_output(s, "nothing", y, sizeof y), "it has: logits, loss");
    refused(s, pl_read_output(s, "loss", y, 8), "the buffer has 8 bytes, expected 4");
    refused(s, pl_read_parameter(s, "nothing", y, 4), "no parameter nothing");
    refused(s, pl_read_parameter(s, "in.bias", y, 4), "4 bytes, expected 64");
    refused(s, pl_save(s, ""), "no name");
    refused(s, pl_save(s, "/dev/null"), "not a folder");
    pl_close(s);
}

static struct pl_session *reentered;

static void reentrant_build(struct pl_builder *b, int64_t batch, void *user)
{
    assert_int_equal(pl_set(reentered, "train.steps", "3"), PL_USAGE);
    assert_int_equal(pl_start(reentered), PL_USAGE);
    pl_close(reentered);
    classifier(b, batch, user);
}

/* A loss that depends on no weight, and a callback that makes calls that are not allowed there. */
static void loss_without_weights(struct pl_builder *b, int64_t batch, void *user)
{
    (void)user;
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, 4));
    pl_param(b, "w", PL_SHAPE(2, 4), PL_NORMAL, 1);
    pl_output(b, "loss", pl_sum(b, x));
}

/* Computed ids, which nothing could validate. */
static void computed_ids(struct pl_builder *b, int64_t batch, void *user)
{
    (void)user;
    pl_tensor ids = pl_input(b, "ids", PL_I32, PL_SHAPE(batch, 4)),
              table = pl_param(b, "table", PL_SHAPE(10, 8), PL_NORMAL, 1);
    pl_output(b, "loss", pl_sum(b, pl_embedding(b, pl_add(b, ids, ids), table)));
}

TEST(test_odd_models)
{
    struct pl_session *c = open_f32();
    ok(c, pl_define(c, computed_ids, NULL, NULL));
    refused(c, pl_plan(c, NULL), "takes its ids from ADD");
    pl_close(c);

    reentered = open_f32();
    ok(reentered, pl_define(reentered, reentrant_build, NULL, NULL));
    ok(reentered, pl_plan(reentered, NULL));
    assert_string_equal(pl_message(reentered), "");
    pl_close(reentered);

    struct pl_session *s = open_f32();
    ok(s, pl_define(s, loss_without_weights, NULL, NULL));
    refused(s, pl_plan(s, NULL), "no parameter");
    pl_close(s);
}

TEST(test_two_sessions)
{
    double a[4], b[4];
    struct batch d;
    make_batch(&d);
    struct pl_session *s = losses(NULL, NULL, NULL, a, 2), *t = losses(NULL, NULL, NULL, b, 4);
    for (int i = 2; i < 4; i++) ok(s, pl_step(s, &a[i], NULL));
    assert_memory_equal(a, b, sizeof a);
    pl_close(t);
    pl_close(s);
}

MAIN(make_folder, remove_folder)
