/*
 * test_library.c: the library as an external program sees it. This file includes plimsoll.h and no
 * other header of the project, and links with the shared library.
 *
 * The model is a gated network on random points. The tests check that the loss falls; that two runs
 * give the same bits, also with the recomputation that a budget needs, and agree within 1e-6 for
 * any split into micro-batches; that saved parameters are read back; that the model can be adapted
 * (LoRA); and that any wrong order of calls, name or size returns PL_USAGE with a message that states the error.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <plimsoll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { E = 12, IN = 6, WIDTH = 16, INNER = 24, CLASSES = 5, BLOCKS = 3 };

static char folder[] = "/tmp/plimsoll-library-XXXXXX";

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
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, IN)), labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch));
    /* One call per line: C does not fix the order of argument evaluation, and parameters are in the
     * order of the calls. */
    pl_tensor w = pl_param(b, "in.weight", PL_SHAPE(WIDTH, IN), PL_NORMAL, 0.5f), bias = pl_param(b, "in.bias", PL_SHAPE(WIDTH), PL_ZEROS, 0);
    x = pl_linear(b, x, w, bias);
    for (int i = 0; i < BLOCKS; i++) x = block(b, x, i);
    pl_tensor logits = pl_linear(b, x, pl_param(b, "out.weight", PL_SHAPE(CLASSES, WIDTH), PL_NORMAL, 0.2f), 0);
    pl_output(b, "logits", logits);
    pl_output(b, "loss", pl_cross_entropy(b, logits, labels));
}

/* Ops through their own functions, or (with `user`) by name: the same model. */
static void two_spellings(struct pl_builder *b, int64_t batch, void *user)
{
    const int named = *(int *)user;
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, IN)), labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch));
    pl_tensor k = pl_param(b, "k", PL_SHAPE(4, 4, 3, 3), PL_NORMAL, 0.2f), ones = pl_param(b, "ones", PL_SHAPE(32), PL_ONES, 0);
    pl_tensor zeros = pl_param(b, "zeros", PL_SHAPE(32), PL_ZEROS, 0);
    x = pl_linear(b, x, pl_param(b, "in", PL_SHAPE(64, IN), PL_NORMAL, 0.5f), 0);
    x = pl_reshape(b, x, PL_SHAPE(batch, 4, 4, 4));
    x = named ? pl_op(b, "conv", PL_TENSORS(x, k), "stride=1 pad=1 groups=1") : pl_conv(b, x, k, 0, 1, 1, 1);
    x = named ? pl_op(b, "Resize", PL_TENSORS(x), "H=8 W=8") : pl_resize(b, x, 8, 8, 0);
    x = named ? pl_op(b, "avgpool", PL_TENSORS(x), "k=4,4 stride=4,4 count_pad=1") : pl_avgpool(b, x, 2, 2);
    x = named ? pl_op(b, "permute", PL_TENSORS(x), "axes=0,3,1,2") : pl_permute(b, x, 4, (int[]){0, 3, 1, 2});
    x = named ? pl_op(b, "copy", PL_TENSORS(x), NULL) : x;
    x = pl_reshape(b, x, PL_SHAPE(batch, 16));
    x = named ? pl_op(b, "concat", PL_TENSORS(x, x), "axis=1") : pl_concat(b, PL_TENSORS(x, x), 1);
    x = named ? pl_op(b, "LAYERNORM", PL_TENSORS(x, ones, zeros), " eps=0.01 ") : pl_layernorm(b, x, ones, zeros, 0.01f);
    x = named ? pl_op(b, "act", PL_TENSORS(x), "kind=5") : pl_activate(b, x, PL_SILU);
    x = pl_drop_path(b, pl_dropout(b, x, 0.1f), 0.1f);
    pl_tensor head = pl_param(b, "out", PL_SHAPE(CLASSES, 32), PL_NORMAL, 0.2f);
    x = named ? pl_op(b, "matmul", PL_TENSORS(x, head), "tb=1") : pl_matmul(b, x, head, 0, 1);
    x = named ? pl_op(b, "softmax", PL_TENSORS(x), "") : pl_softmax(b, x);
    pl_output(b, "loss", pl_cross_entropy(b, x, labels));
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

/* A class and a number from one layer; a loss for each, with a count of its own. `weights` selects the
 * samples that have a number. */
static void class_and_number(struct pl_builder *b, int64_t batch, void *user)
{
    (void)user;
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, IN)), labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch));
    pl_tensor y = pl_input(b, "y", PL_F32, PL_SHAPE(batch, 1)), weights = pl_input(b, "weights", PL_F32, PL_SHAPE(batch, 1));
    pl_tensor logits = pl_linear(b, x, pl_param(b, "classes", PL_SHAPE(CLASSES, IN), PL_ZEROS, 0), 0);
    pl_tensor d = pl_add(b, pl_linear(b, x, pl_param(b, "number", PL_SHAPE(1, IN), PL_ZEROS, 0), 0), pl_scale(b, y, -1));
    d = pl_mul(b, weights, pl_mul(b, d, d));
    pl_tensor by_class = pl_cross_entropy_of(b, logits, labels, "labels"), by_number = pl_per_count_of(b, pl_sum(b, d), "numbers");
    pl_output(b, "loss.labels", by_class);
    pl_output(b, "loss.numbers", by_number);
    pl_output(b, "loss", pl_add(b, by_class, by_number));
}

/* Two losses over tokens, for pl_train: one per token, one per sample. `user`: the second count. */
static void token_losses(struct pl_builder *b, int64_t batch, void *user)
{
    enum { T = 32, C = 8 };
    pl_tensor ids = pl_input(b, "input_ids", PL_I32, PL_SHAPE(batch, T)), labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch, T));
    pl_tensor table = pl_param(b, "table", PL_SHAPE(256, C), PL_ZEROS, 0), head = pl_param(b, "head", PL_SHAPE(256, C), PL_ZEROS, 0);
    pl_tensor logits = pl_linear(b, pl_reshape(b, pl_embedding(b, ids, table), PL_SHAPE(-1, C)), head, 0);
    labels = pl_reshape(b, pl_shift_labels(b, labels), PL_SHAPE(-1));
    pl_output(b, "loss", pl_add(b, pl_cross_entropy_of(b, logits, labels, "tokens"), pl_cross_entropy_of(b, logits, labels, user)));
}

/* A byte-level model with attention; its inputs are tokens, as pl_train needs. `user` not NULL: rows of
 * several documents, whose positions and ranges are inputs, too. */
static void tokens(struct pl_builder *b, int64_t batch, void *user)
{
    enum { T = 32, C = 16 };
    pl_tensor positions = user ? pl_input(b, "positions", PL_I32, PL_SHAPE(batch, T)) : 0, ranges = user ? pl_input(b, "ranges", PL_I32, PL_SHAPE(batch, T, 2)) : 0;
    pl_tensor ids = pl_input(b, "input_ids", PL_I32, PL_SHAPE(batch, T)), labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch, T));
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
    pl_tensor seen = user ? pl_attention_ranges(b, w[0], w[1], w[2], ranges, 0.35f, 0) : pl_attention(b, w[0], w[1], w[2], 0.35f, 1);
    x = pl_add(b, x, pl_reshape(b, seen, PL_SHAPE(batch, T, C)));
    pl_tensor logits = pl_linear(b, pl_reshape(b, x, PL_SHAPE(-1, C)), table, 0);
    pl_output(b, "loss", pl_cross_entropy(b, logits, pl_reshape(b, pl_shift_labels(b, labels), PL_SHAPE(-1))));
}

/* Operands that are views of all kinds, forward and backward: channels-first images, a first token,
 * slices of one product, the ids without their last and the labels without their first. */
static void views(struct pl_builder *b, int64_t batch, void *user)
{
    enum { SIDE = 8, T = 6, C = 16, V = 50 };
    (void)user;
    static const float inv_freq[2] = {1, 0.1f};
    pl_tensor freq = pl_constant(b, "inv_freq", PL_SHAPE(2), inv_freq), table = pl_param(b, "table", PL_SHAPE(V, C), PL_NORMAL, 1);
    pl_tensor image = pl_input(b, "image", PL_F32, PL_SHAPE(batch, 3, SIDE, SIDE)), ids = pl_input(b, "ids", PL_I32, PL_SHAPE(batch, T));
    pl_tensor map = pl_permute(b, image, 4, (int[]){0, 2, 3, 1}), ones = pl_param(b, "ones", PL_SHAPE(C), PL_ONES, 0), zeros = pl_param(b, "zeros", PL_SHAPE(C), PL_ZEROS, 0);

    pl_tensor sum = pl_avgpool(b, pl_conv(b, map, pl_param(b, "c0", PL_SHAPE(C, 3, 3, 3), PL_NORMAL, 0.2f), 0, 1, 1, 1), 1, 1);
    pl_tensor pooled = pl_avgpool(b, map, 1, 1), c1 = pl_param(b, "c1", PL_SHAPE(C, 3, 1, 1), PL_NORMAL, 0.2f);
    sum = pl_add(b, sum, pl_conv(b, pooled, c1, 0, 1, 0, 1));
    pl_tensor resized = pl_resize(b, map, 1, 1, 0), c2 = pl_param(b, "c2", PL_SHAPE(C, 3, 1, 1), PL_NORMAL, 0.2f);
    sum = pl_add(b, sum, pl_conv(b, resized, c2, 0, 1, 0, 1));
    sum = pl_reshape(b, sum, PL_SHAPE(batch, 1, C));

    pl_tensor x = pl_embedding(b, pl_slice(b, ids, 1, 0, T - 1), table);
    sum = pl_add(b, sum, pl_layernorm(b, pl_slice(b, x, 1, 0, 1), ones, zeros, 1e-5f));
    pl_tensor qkv = pl_reshape(b, pl_linear(b, x, pl_param(b, "qkv", PL_SHAPE(3 * C, C), PL_NORMAL, 0.2f), 0), PL_SHAPE(batch, T - 1, 12, 4));
    pl_tensor q = pl_rope(b, pl_slice(b, qkv, 2, 0, 4), freq, 1), k = pl_rope(b, pl_slice(b, qkv, 2, 4, 4), freq, 1);
    x = pl_add(b, x, pl_reshape(b, pl_attention(b, q, k, pl_slice(b, qkv, 2, 8, 4), 0.5f, 1), PL_SHAPE(batch, T - 1, C)));
    pl_tensor both = pl_linear(b, x, pl_param(b, "both", PL_SHAPE(4 * C, C), PL_NORMAL, 0.2f), 0);
    pl_tensor gate = pl_slice(b, both, 2, 0, 2 * C), up = pl_slice(b, both, 2, 2 * C, 2 * C);
    both = pl_silu_gate(b, gate, up);
    x = pl_add(b, x, pl_linear(b, both, pl_param(b, "down", PL_SHAPE(C, 2 * C), PL_NORMAL, 0.2f), 0));
    /* Gradients flow back through these. */
    pl_tensor act = pl_activate(b, pl_linear(b, x, pl_param(b, "w", PL_SHAPE(C, C), PL_NORMAL, 0.2f), zeros), PL_GELU);
    act = pl_permute(b, pl_softmax(b, pl_permute(b, pl_rmsnorm(b, act, ones, 1e-5f), 3, (int[]){0, 2, 1})), 3, (int[]){0, 2, 1});
    pl_tensor with_act = pl_add(b, x, act), joined = pl_concat(b, PL_TENSORS(sum, x), 1);
    x = pl_add(b, with_act, pl_dropout(b, pl_slice(b, joined, 1, 0, T - 1), 0.1f));
    pl_tensor logits = pl_reshape(b, pl_linear(b, x, table, 0), PL_SHAPE(-1, V));
    pl_output(b, "loss", pl_cross_entropy(b, logits, pl_reshape(b, pl_slice(b, ids, 1, 1, T - 1), PL_SHAPE(-1))));
}

/* The tests compare numbers, so the precision is fixed and does not depend on the processor. */
static struct pl_session *open_f32(void)
{
    struct pl_session *s = pl_open();
    assert_int_equal(pl_set(s, "memory.precision", "f32"), PL_OK);
    return s;
}

/* --- helpers -------------------------------------------------------------------------- */

struct batch {
    float x[E][IN], y[E];
    int32_t labels[E];
};

static void make_batch(struct batch *d)
{
    uint32_t r = 12345;
    for (int i = 0; i < E; i++) {
        for (int k = 0; k < IN; k++) {
            r = r * 1664525u + 1013904223u;
            d->x[i][k] = (float)(r >> 8) / (float)(1 << 23) - 1;
        }
        d->labels[i] = i % CLASSES;
        d->y[i] = 2 * d->x[i][0] - d->x[i][3];
    }
}

#define ok(s, call)                                                     \
    do {                                                                \
        if ((call) != PL_OK) fail_msg("%s: %s", #call, pl_message(s));  \
    } while (0)

/* The call fails with PL_USAGE, and its message contains `part`. */
#define refused(s, call, part)                                                                  \
    do {                                                                                        \
        int code_ = (call);                                                                     \
        if (code_ != PL_USAGE) fail_msg("%s gave %d: %s", #call, code_, pl_message(s));         \
        assert_int_equal(pl_code(s), PL_USAGE);                                                 \
        if (!strstr(pl_message(s), part)) fail_msg("%s: no '%s' in: %s", #call, part, pl_message(s)); \
    } while (0)

static struct pl_session *open_with(pl_build build)
{
    struct pl_session *s = open_f32();
    ok(s, pl_define(s, build, NULL, NULL));
    ok(s, pl_set(s, "train.effective_batch", "12"));
    ok(s, pl_set(s, "train.learning_rate", "1e-2"));
    ok(s, pl_set(s, "device.threads", "1"));
    return s;
}

static void start_on(struct pl_session *s, const struct batch *d)
{
    ok(s, pl_start(s));
    ok(s, pl_write_input(s, "x", d->x, sizeof d->x));
    ok(s, pl_write_input(s, "labels", d->labels, sizeof d->labels));
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

static void test_version(void **state)
{
    (void)state;
    assert_string_equal(pl_version(), PL_VERSION);
    assert_string_equal(pl_kind_name(PL_ACTIVATIONS), "activations");
    assert_string_equal(pl_kind_name((enum pl_kind)99), "none");
}

static void test_plan(void **state)
{
    (void)state;
    struct pl_session *s = open_with(classifier);
    struct pl_plan_info free, tight, none;
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
static void test_plan_is_kept(void **state)
{
    (void)state;
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

static void test_splits_are_whole(void **state)
{
    (void)state;
    struct pl_session *s = open_with(classifier);
    struct pl_plan_info p;
    ok(s, pl_set(s, "memory.micro_batch", "5"));
    refused(s, pl_plan(s, &p), "does not divide");
    ok(s, pl_set(s, "memory.micro_batch", "4"));
    ok(s, pl_plan(s, &p));
    assert_int_equal(p.accumulation, 3);
    pl_close(s);
}

/* --- steps ---------------------------------------------------------------------------------- */

static void test_loss_falls(void **state)
{
    (void)state;
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

static void test_same_bits(void **state)
{
    (void)state;
    double a[8], b[8];
    pl_close(losses(NULL, NULL, NULL, a, 8));
    pl_close(losses(NULL, NULL, NULL, b, 8));
    assert_memory_equal(a, b, sizeof a);
    pl_close(losses(NULL, "memory.recompute", "all", b, 8));
    assert_memory_equal(a, b, sizeof a);
    pl_close(losses(NULL, "memory.offload", "optimizer", b, 8));
    assert_memory_equal(a, b, sizeof a);
}

static void test_split_changes_nothing(void **state)
{
    (void)state;
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

static void test_unused_input(void **state)
{
    (void)state;
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

/* --- inputs whose batch is not the first dimension ------------------------------------ */

enum { STEPS_LONG = 5, FEATURES = 3 };

/* A classifier of time series. With `user` the batch is the second dimension of the series and the
 * positions are shared by all samples; else both are batch first. The same numbers either way. */
static void series(struct pl_builder *b, int64_t batch, void *user)
{
    const int second = *(int *)user;
    pl_tensor x, at;
    if (second) {
        x = pl_input_along(b, "series", PL_F32, 1, PL_SHAPE(STEPS_LONG, batch, FEATURES));
        x = pl_op(b, "copy", PL_TENSORS(pl_permute(b, x, 3, (int[]){1, 0, 2})), NULL);
        at = pl_input_along(b, "positions", PL_F32, PL_SHARED, PL_SHAPE(STEPS_LONG, FEATURES));
    } else {
        x = pl_input(b, "series", PL_F32, PL_SHAPE(batch, STEPS_LONG, FEATURES));
        at = pl_input(b, "positions", PL_F32, PL_SHAPE(batch, STEPS_LONG, FEATURES));
    }
    pl_tensor labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch));
    x = pl_reshape(b, pl_add(b, x, at), PL_SHAPE(batch, STEPS_LONG * FEATURES));
    pl_tensor w = pl_param(b, "w", PL_SHAPE(CLASSES, STEPS_LONG * FEATURES), PL_NORMAL, 0.3f);
    pl_tensor logits = pl_linear(b, x, w, 0);
    pl_output(b, "logits", logits);
    pl_output(b, "loss", pl_cross_entropy(b, logits, labels));
}

struct series_batch {
    float first[E][STEPS_LONG][FEATURES], second[STEPS_LONG][E][FEATURES];
    float each[E][STEPS_LONG][FEATURES], shared[STEPS_LONG][FEATURES];
    int32_t labels[E];
};

static void make_series(struct series_batch *d)
{
    for (int t = 0; t < STEPS_LONG; t++)
        for (int f = 0; f < FEATURES; f++) {
            d->shared[t][f] = (float)sin(t * 3 + f);
            for (int i = 0; i < E; i++) {
                d->first[i][t][f] = d->second[t][i][f] = (float)cos(i * 100 + t * 10 + f);
                d->each[i][t][f] = d->shared[t][f];
            }
        }
    for (int i = 0; i < E; i++) d->labels[i] = i % CLASSES;
}

/* Three steps, the loss after them, and the logits of the whole batch. */
static void run_series(int second, const char *micro_batch, const struct series_batch *d, double out[4], float logits[E][CLASSES])
{
    struct pl_session *s = open_with(series);
    ok(s, pl_define(s, series, &second, NULL));
    ok(s, pl_set(s, "memory.micro_batch", micro_batch));
    ok(s, pl_start(s));
    ok(s, pl_write_input(s, "series", second ? (const void *)d->second : d->first, sizeof d->first));
    ok(s, second ? pl_write_input(s, "positions", d->shared, sizeof d->shared) : pl_write_input(s, "positions", d->each, sizeof d->each));
    ok(s, pl_write_input(s, "labels", d->labels, sizeof d->labels));
    for (int i = 0; i < 3; i++) ok(s, pl_step(s, &out[i], NULL));
    ok(s, pl_evaluate(s, &out[3]));
    ok(s, pl_read_output(s, "logits", logits, sizeof(float) * E * CLASSES));
    if (second) {
        assert_int_equal(pl_write_input(s, "positions", d->each, sizeof d->each), PL_USAGE);
        assert_non_null(strstr(pl_message(s), "once for all samples"));
    }
    pl_close(s);
}

static void test_batch_second(void **state)
{
    (void)state;
    static const char *const splits[] = {"1", "2", "3", "6", "12"};
    struct series_batch d;
    make_series(&d);
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        double a[4], b[4];
        float first[E][CLASSES], second[E][CLASSES];
        run_series(0, splits[i], &d, a, first);
        run_series(1, splits[i], &d, b, second);
        assert_memory_equal(a, b, sizeof a);
        assert_memory_equal(first, second, sizeof first);
        assert_true(a[3] < a[0]);
    }
}

static void odd_axis(struct pl_builder *b, int64_t batch, void *user)
{
    const int axis = *(int *)user;
    pl_tensor x = pl_input_along(b, "x", PL_F32, axis, PL_SHAPE(IN, 2 * batch + (axis == 1)));
    pl_output(b, "loss", pl_per_count(b, pl_sum(b, x)));
}

static void test_axis_of_an_input(void **state)
{
    (void)state;
    static const struct {
        int axis;
        const char *message;
    } bad[] = {{1, "input x: the second dimension is"}, {2, "input x: the third dimension is 0"}, {-2, "axis -2, expected a dimension from 0, or PL_SHARED"}, {99, "axis 99"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int axis = bad[i].axis;
        struct pl_session *s = open_f32();
        ok(s, pl_define(s, odd_axis, &axis, NULL));
        assert_int_equal(pl_plan(s, NULL), PL_USAGE);
        if (!strstr(pl_message(s), bad[i].message)) fail_msg("%s", pl_message(s));
        pl_close(s);
    }
}

static void test_bf16(void **state)
{
    (void)state;
    double l[40];
    struct pl_session *s = losses(NULL, "memory.precision", "bf16", l, 40);
    struct pl_plan_info p;
    ok(s, pl_plan(s, &p));
    assert_string_equal(pl_technique_value(&p, "precision"), "bf16");
    assert_true(p.bytes[PL_MASTERS] > 0);
    assert_true(l[39] < 0.5 * l[0]);
    pl_close(s);
}

/* In a started session the learning rate and the clipping may change, as the plan does not depend
 * on them. */
static void test_change_while_started(void **state)
{
    (void)state;
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
static void test_count(void **state)
{
    (void)state;
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
static void test_counts(void **state)
{
    (void)state;
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
            for (int c = 0; c < CLASSES; c++) g[c] += has_label(i) ? d.x[i][k] * (1.0 / CLASSES - (d.labels[i] == c)) / labels : 0;
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
        /* A count is a divisor of its own loss alone. */
        ok(s, pl_set(s, "train.learning_rate", "0"));
        ok(s, pl_set_count_of(s, "numbers", 2 * numbers));
        double less;
        ok(s, pl_evaluate(s, &less));
        ok(s, pl_read_output(s, "loss.numbers", &part[1], sizeof part[1]));
        assert_true(fabs(less + part[1] - after) < 1e-5);
        refused(s, pl_set_count_of(s, "boxes", 3), "no loss of the model is divided by a count boxes; it has: labels, numbers");
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

/* The data sets the counts: the same cross-entropy, log(256) a token, once per token and once per sample. */
static void test_train_counts(void **state)
{
    (void)state;
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
        else refused(s, pl_train(s), "divided by the count boxes, which this data does not have; it has: tokens, samples");
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
static void test_preset(void **state)
{
    (void)state;
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

/* The loss of 4 rows of 32 tokens, each of documents of `length` tokens. Of several documents the first
 * one has no labels. */
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
static void test_rows_of_documents(void **state)
{
    (void)state;
    assert_true(loss_of_rows(32, 1, 7) == loss_of_rows(32, 0, 7));
    assert_true(loss_of_rows(16, 1, 7) == loss_of_rows(16, 1, 90));
    assert_true(loss_of_rows(16, 0, 7) != loss_of_rows(16, 0, 90));
}

/* --- parameters and folders ------------------------------------------------------------------ */

static void test_save_and_read_back(void **state)
{
    (void)state;
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
static void test_parts(void **state)
{
    (void)state;
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

/* LoRA on a model of the user's own, by the names of its modules: the base stays as it is, and the saved
 * folder is an adapter that another session reads beside the base. */
static void test_adapter(void **state)
{
    (void)state;
    enum { R = 2 };
    char base[128], dir[128];
    double l[5], before, first, after, again;
    static float was[INNER * WIDTH], is[INNER * WIDTH], B[INNER * R];
    struct batch d;
    struct pl_parameter p;
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

static void test_parameters(void **state)
{
    (void)state;
    struct pl_session *s = open_with(classifier);
    struct pl_parameter p;
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
static void test_train(void **state)
{
    (void)state;
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
    assert_non_null(strstr(pl_message(s), "after step 2 of 6; saved"));
    assert_int_equal(pl_steps(s), 2);
    read_model(pl_model_path(s), parts, sizeof parts, &b);
    assert_int_equal(a, b);
    ok(s, pl_on_step(s, NULL, NULL));
    ok(s, pl_resume(s));
    read_model(pl_model_path(s), parts, sizeof parts, &b);
    assert_memory_equal(whole, parts, a);
    pl_close(s);
}

/* A model whose inputs are not tokens cannot train on token files. */
static void test_train_needs_tokens(void **state)
{
    (void)state;
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

static void test_order_of_calls(void **state)
{
    (void)state;
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

static void test_names_and_sizes(void **state)
{
    (void)state;
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
    refused(s, pl_write_input(s, "labels", d.labels, sizeof d.labels), "element 7 of labels is 5, expected 0 to 4, or -100");
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

/* Broken models, each with one error; `user` selects it. */
static void broken(struct pl_builder *b, int64_t batch, void *user)
{
    int way = *(int *)user;
    static const float table[2] = {1, 2};
    char name[400];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, 4)), w = pl_param(b, "w", PL_SHAPE(2, 4), PL_NORMAL, 1);
    pl_tensor y = pl_linear(b, x, w, 0), loss = pl_sum(b, y);
    switch (way) {
    case 0: pl_linear(b, w, x, y); break;
    case 1: pl_add(b, x, 0); break;
    case 2: pl_add(b, x, 12345); break;
    case 3: pl_output(b, "loss", y); break;
    case 4: pl_output(b, "loss", w); break;
    case 5: break; /* no loss */
    case 6: pl_scope_end(b); break;
    case 7: pl_scope_begin(b, "open", 0); break;
    case 8: pl_param(b, "w", PL_SHAPE(4, 4), PL_ONES, 0); break;
    case 9: pl_input(b, "w", PL_F32, PL_SHAPE(batch)); break;
    case 10: pl_input(b, "z", PL_F32, PL_SHAPE(batch + 1)); break;
    case 11: pl_input(b, "z", (enum pl_dtype)7, PL_SHAPE(batch)); break;
    case 12: pl_param(b, "z", 9, NULL, PL_ONES, 0); break;
    case 13: pl_param(b, "z", PL_SHAPE(1 << 30, 1 << 30, 1 << 30), PL_ONES, 0); break;
    case 14: pl_param(b, "z", PL_SHAPE(2), PL_NORMAL, -1); break;
    case 15: pl_param(b, name, PL_SHAPE(2), PL_ONES, 0); break;
    case 16: pl_param(b, NULL, PL_SHAPE(2), PL_ONES, 0); break;
    case 17: pl_constant(b, "c", PL_SHAPE(2), NULL); break;
    case 18: pl_reshape(b, x, 99, NULL); break;
    case 19: pl_slice(b, x, -1, 0, 1); break;
    case 20: pl_slice(b, x, 1, 3, 2); break;
    case 21: pl_fail(b, "this is mine"); break;
    case 22:
        for (int i = 0; i < 40; i++) pl_scope_begin(b, "deep", 0);
        break;
    case 23: pl_output(b, "part", pl_slice(b, y, 1, 0, 1)); break;
    case 24: pl_per_count(b, y); break;
    case 25: pl_embedding(b, x, w); break;
    case 26: pl_attention(b, x, x, x, 1, 0); break;
    case 27: pl_constant(b, "x", PL_SHAPE(2), table); break;
    case 28: pl_output(b, "loss", loss); break; /* a second time, with the one below */
    case 29: pl_matmul(b, x, 0, 0, 0); break;
    case 30: pl_op(b, "rmsnrom", PL_TENSORS(x, w), ""); break;
    case 31: pl_op(b, "rmsnorm", PL_TENSORS(x), "eps=1e-6"); break;
    case 32: pl_op(b, "RMSNORM_BWD", PL_TENSORS(x, x, x, x), NULL); break;
    case 33: pl_op(b, "adamw", PL_TENSORS(w, w, w, w, w), NULL); break;
    case 34: pl_op(b, "accumulate", PL_TENSORS(x, w), NULL); break;
    case 35: pl_op(b, "softmax", PL_TENSORS(x), "eps=1"); break;
    case 36: pl_op(b, "conv", PL_TENSORS(x, w), "stride=1.5"); break;
    case 37: pl_op(b, "scale", PL_TENSORS(x), "value=2 value"); break;
    case 38: pl_op(b, "scale", PL_TENSORS(x), "value=2,3"); break;
    case 39: pl_op(b, "xent", PL_TENSORS(y, x, w), ""); break;
    case 40: pl_op(b, "cast", PL_TENSORS(x), "dtype=1"); break;
    case 41: pl_op(b, "fill", 0, NULL, ""); break;
    case 42: pl_op(b, NULL, PL_TENSORS(x), ""); break;
    case 43: pl_op(b, "softmax", PL_TENSORS(54321), ""); break;
    case 44: pl_op(b, "avgpool", PL_TENSORS(pl_reshape(b, x, PL_SHAPE(batch, 2, 2, 1))), "k=3,x"); break;
    case 45: pl_op(b, "matmul", PL_TENSORS(x, w), "dtype=1"); break;
    case 46: pl_permute(b, x, 2, (int[]){0, 2}); break;
    case 47: pl_concat(b, 0, NULL, 0); break;
    case 48: pl_dropout(b, x, 1); break;
    case 49: pl_activate(b, x, (enum pl_activation)99); break;
    case 50: pl_per_count_of(b, loss, ""); break;
    case 51: pl_cross_entropy_of(b, y, x, NULL); break;
    case 52:
        for (int i = 0; i < 8; i++) pl_per_count_of(b, loss, (char[]){(char)('a' + i), 0});
        break;
    case 53: pl_per_count_of(b, loss, "a count with a name that is far longer than a name of a count may be"); break;
    case 54: pl_per_count_of(b, y, "rows"); break;
    case 55: /* a tensor leaves a scope of rows */
        pl_scope_begin(b, "rows", PL_ROWS);
        y = pl_scale(b, y, 2);
        pl_scope_end(b);
        loss = pl_sum(b, y);
        break;
    case 56: /* the rows are not first */
        pl_scope_begin(b, "rows", PL_ROWS);
        y = pl_permute(b, pl_reshape(b, y, PL_SHAPE(batch, 2)), 2, (int[]){1, 0});
        loss = pl_sum(b, pl_op(b, "copy", PL_TENSORS(y), NULL));
        pl_scope_end(b);
        break;
    case 57: /* dropout is by sample, and a row is less than one */
        y = pl_reshape(b, y, PL_SHAPE(2 * batch, -1));
        pl_scope_begin(b, "rows", PL_ROWS);
        loss = pl_sum(b, pl_dropout(b, y, 0.5f));
        pl_scope_end(b);
        break;
    case 58: /* in two pieces */
        pl_scope_begin(b, "rows", PL_ROWS);
        loss = pl_sum(b, y);
        pl_scope_end(b);
        y = pl_scale(b, y, 2);
        pl_scope_begin(b, "rows", PL_ROWS);
        loss = pl_add(b, loss, pl_sum(b, y));
        pl_scope_end(b);
        break;
    case 59: /* rows of different number */
        y = pl_concat(b, PL_TENSORS(y, pl_slice(b, y, 0, 0, 1)), 0);
        pl_scope_begin(b, "rows", PL_ROWS);
        loss = pl_add(b, pl_sum(b, y), pl_sum(b, x));
        pl_scope_end(b);
        break;
    case 60: /* divided after the scope */
        pl_scope_begin(b, "rows", PL_ROWS);
        loss = pl_sum(b, y);
        pl_scope_end(b);
        loss = pl_per_count(b, pl_scale(b, loss, 2));
        break;
    default: break;
    }
    if (way != 3 && way != 4 && way != 5) pl_output(b, "loss", loss);
}

static void test_broken_models(void **state)
{
    (void)state;
    static const char *const says[] = {"LINEAR", "0, which is not a tensor", "no call of this builder", "must be a scalar", "scalar",
                                       "no output loss", "pl_scope_end without", "scopes open", "used twice", "used twice", "the batch",
                                       "dtype 7", "rank 9", "elements", "std is -1", "bytes, at most", "without a name", "data is NULL",
                                       "rank 99", "axis -1", "outside", "this is mine", "scopes", "slice", "takes a scalar", "i32",
                                       "[B,T,H,D]", "used twice", "two outputs", "not a tensor",
                                       "no op rmsnrom", "takes 2 to 2 inputs", "the backward", "the update", "write to its input",
                                       "name=number of: none", "stride=1.5", "name=number of: value", "value=2,3", "reads a count", "name=number of: none",
                                       "0 to 0 inputs", "no op NULL", "no call of this builder", "for each axis", "name=number of: ta, tb",
                                       "axis 1 is 2", "0 tensors", "probability", "kind 99", "a count without a name", "a count without a name",
                                       "at most 7 counts", "bytes, at most 63", "pl_per_count_of takes a scalar",
                                       "leaves it; expected scalars", "rows first", "one for each of x's first dimension", "is opened twice", "as another input has", "pl_per_count within the scope"};
    for (int way = 0; way < (int)(sizeof says / sizeof *says); way++) {
        struct pl_session *s = open_f32();
        ok(s, pl_define(s, broken, &way, NULL));
        refused(s, pl_plan(s, NULL), says[way]);
        refused(s, pl_start(s), says[way]);
        pl_close(s);
    }
}

/* A head with dropout and its loss, in a scope of rows; logits are an output of the evaluation. */
static void row_head(struct pl_builder *b, int64_t batch, void *user)
{
    (void)user;
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, IN)), labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch));
    pl_tensor w = pl_param(b, "in.weight", PL_SHAPE(WIDTH, IN), PL_NORMAL, 0.5f);
    x = pl_activate(b, pl_linear(b, x, w, 0), PL_GELU);
    pl_tensor scale = pl_param(b, "scale", PL_SHAPE(WIDTH), PL_ONES, 0), head = pl_param(b, "head.weight", PL_SHAPE(CLASSES, WIDTH), PL_NORMAL, 0.2f);
    pl_scope_begin(b, "head", PL_ROWS);
    pl_tensor logits = pl_linear(b, pl_reshape(b, pl_rmsnorm(b, x, scale, 1e-5f), PL_SHAPE(batch, 1, WIDTH)), head, 0);
    logits = pl_dropout(b, pl_reshape(b, logits, PL_SHAPE(batch, CLASSES)), 0.4f);
    pl_tensor loss = pl_cross_entropy(b, logits, labels), squares = pl_per_count(b, pl_sum(b, pl_mul(b, logits, logits)));
    pl_output(b, "logits", pl_op(b, "copy", PL_TENSORS(logits), NULL));
    pl_scope_end(b);
    pl_output(b, "loss", pl_add(b, loss, pl_scale(b, squares, 0.01)));
}

static void test_rows_in_chunks(void **state)
{
    static const char *const chunks[] = {"1", "3", "5", "2"}, *const rows[] = {"12", "12", "12", "6"}; /* 5 leave a ragged end */
    (void)state;
    double loss[4][4];
    float logits[4][E][CLASSES];
    struct batch d;
    make_batch(&d);
    for (int i = 0; i < 4; i++) {
        struct pl_plan_info plan;
        struct pl_session *s = open_with(row_head);
        ok(s, pl_set(s, "memory.head_chunks", chunks[i]));
        ok(s, pl_set(s, "memory.micro_batch", rows[i]));
        ok(s, pl_plan(s, &plan));
        assert_string_equal(pl_technique_value(&plan, "head_chunks"), chunks[i]);
        start_on(s, &d);
        for (int k = 0; k < 4; k++) ok(s, pl_step(s, &loss[i][k], NULL));
        ok(s, pl_read_output(s, "logits", logits[i], sizeof logits[i]));
        pl_close(s);
        for (int k = 0; k < 4; k++) assert_true(fabs(loss[i][k] - loss[0][k]) < 1e-5 * loss[0][k]);
        for (int k = 0; k < E * CLASSES; k++) assert_true(fabsf((&logits[i][0][0])[k] - (&logits[0][0][0])[k]) < 1e-4f);
    }
    assert_true(loss[0][3] < loss[0][0]);
}

static void test_ops_by_name(void **state)
{
    (void)state;
    double loss[2][4];
    struct batch d;
    make_batch(&d);
    for (int i = 0; i < 2; i++) {
        int named = i;
        struct pl_session *s = open_with(two_spellings);
        ok(s, pl_define(s, two_spellings, &named, NULL));
        start_on(s, &d);
        for (int k = 0; k < 4; k++) ok(s, pl_step(s, &loss[i][k], NULL));
        pl_close(s);
    }
    assert_memory_equal(loss[0], loss[1], sizeof loss[0]);
    assert_true(loss[0][3] < loss[0][0]);
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
    pl_tensor ids = pl_input(b, "ids", PL_I32, PL_SHAPE(batch, 4)), table = pl_param(b, "table", PL_SHAPE(10, 8), PL_NORMAL, 1);
    pl_output(b, "loss", pl_sum(b, pl_embedding(b, pl_add(b, ids, ids), table)));
}

static void test_odd_models(void **state)
{
    (void)state;
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

static void test_views_on_a_gpu(void **state)
{
    (void)state;
    static const char *const precisions[] = {"f32", "bf16", "f16", "bf16-pure"};
    for (size_t i = 0; i < sizeof precisions / sizeof *precisions; i++) {
        struct pl_session *s = open_with(views);
        struct pl_plan_info p;
        ok(s, pl_set(s, "device", "cuda"));
        ok(s, pl_set(s, "memory.precision", precisions[i]));
        ok(s, pl_plan(s, &p));
        const char *missing = strstr(pl_plan_table(s), "no kernel");
        if (missing) fail_msg("%s: %.120s", precisions[i], missing);
        pl_close(s);
    }
}

static void test_two_sessions(void **state)
{
    (void)state;
    double a[4], b[4];
    struct batch d;
    make_batch(&d);
    struct pl_session *s = losses(NULL, NULL, NULL, a, 2), *t = losses(NULL, NULL, NULL, b, 4);
    for (int i = 2; i < 4; i++) ok(s, pl_step(s, &a[i], NULL));
    assert_memory_equal(a, b, sizeof a);
    pl_close(t);
    pl_close(s);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

/* Text to ids and back, without a session. */
static void test_tokenizer(void **state)
{
    (void)state;
    struct pl_tokenizer *t = pl_tokenizer_open("tests/golden/tokenizers/llama3");
    const struct pl_token *tokens = NULL;
    const char *text = NULL;
    size_t count = 0, n = 0;
    assert_int_equal(pl_tokenizer_code(t), PL_OK);
    assert_string_equal(pl_tokenizer_message(t), "");
    assert_int_equal(pl_encode(t, "the then", 8, 1, &tokens, &count), PL_OK);
    assert_true(count >= 3 && pl_token_count(t) > 300);
    assert_int_equal(tokens[0].id, pl_token_id(t, "<s>"));
    assert_int_equal(tokens[0].begin, tokens[0].end);
    assert_int_equal(tokens[count - 1].id, pl_token_id(t, "</s>"));
    assert_int_equal(tokens[count - 2].end, 8);
    assert_string_equal(pl_token_content(t, tokens[0].id), "<s>");
    int32_t ids[16];
    for (size_t i = 0; i < count; i++) ids[i] = tokens[i].id;
    assert_int_equal(pl_decode(t, ids, count, 1, &text, &n), PL_OK);
    assert_string_equal(text, "the then");
    assert_int_equal(n, 8);
    assert_int_equal(pl_decode(t, ids, count, 0, &text, &n), PL_OK);
    assert_string_equal(text, "<s>the then</s>");
    assert_int_equal(pl_encode(t, "", 0, 0, &tokens, &count), PL_OK);
    assert_int_equal(count, 0);
    assert_int_equal(pl_encode(t, "\xff", 1, 0, &tokens, &count), PL_USAGE);
    assert_string_equal(pl_tokenizer_message(t), "byte 0 of the text is not UTF-8");
    assert_int_equal(pl_decode(t, (int32_t[]){1 << 20}, 1, 0, &text, &n), PL_USAGE);
    assert_int_equal(pl_encode(t, NULL, 3, 0, &tokens, &count), PL_USAGE);
    assert_int_equal(pl_token_id(t, "no such token"), -1);
    assert_null(pl_token_content(t, -1));
    pl_tokenizer_close(t);
    t = pl_tokenizer_open("no/such/folder");
    assert_int_equal(pl_tokenizer_code(t), PL_USAGE);
    assert_int_equal(pl_encode(t, "a", 1, 0, &tokens, &count), PL_USAGE);
    assert_non_null(strstr(pl_tokenizer_message(t), "no/such/folder"));
    assert_int_equal(pl_token_count(t), 0);
    pl_tokenizer_close(t);
    assert_int_equal(pl_encode(NULL, "a", 1, 0, &tokens, &count), PL_USAGE);
}

/* Tokens as they come; the answer ends after `most` of them. */
struct heard {
    int32_t id[64];
    size_t n, most;
    struct pl_session *session;
    int code; /* of a call on the same session */
};
static int hear(int32_t id, void *user)
{
    struct heard *h = user;
    struct pl_answer a;
    h->id[h->n++] = id;
    h->code = pl_generate(h->session, &id, 1, NULL, NULL, NULL, &a);
    return h->n >= h->most;
}

static struct pl_session *language_model(const char *path)
{
    struct pl_session *s = pl_open();
    ok(s, pl_set(s, "model.path", path));
    ok(s, pl_set(s, "memory.precision", "f32"));
    ok(s, pl_set(s, "device.kind", "cpu"));
    return s;
}

/* The answers of transformers, with a callback for each token. */
static void test_generate(void **state)
{
    (void)state;
    const int32_t prompt[] = {2, 16, 32, 31, 25}, want[] = {52, 52, 52, 4, 45, 25, 55, 7, 33, 25, 25, 55};
    struct pl_session *s = language_model("tests/golden/basic");
    struct heard h = {.most = 64, .session = s};
    struct pl_generation o;
    struct pl_answer a;
    ok(s, pl_generation_defaults(s, &o));
    assert_true(o.max_new == 256 && o.temperature == 0 && o.top_k == 50 && o.top_p == 1 && o.repetition_penalty == 1 && !o.n_ends && !o.n_stops);
    o.max_new = 12;
    ok(s, pl_generate(s, prompt, 5, &o, hear, &h, &a));
    assert_int_equal(a.count, 12);
    assert_memory_equal(a.ids, want, sizeof want);
    assert_memory_equal(h.id, want, sizeof want);
    assert_int_equal(a.end, PL_END_LENGTH);
    assert_string_equal(a.text, ""); /* the folder has no tokenizer */
    assert_true(a.bytes == 0 && h.code == PL_USAGE); /* a callback cannot call functions on its session */
    assert_true(a.kv_cache_bytes == 4 * 1024 && a.arena_bytes > a.kv_cache_bytes); /* 17 tokens of 48 bytes, for k and v of 2 layers */

    o.ends = (int32_t[]){4}, o.n_ends = 1;
    ok(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a));
    assert_true(a.count == 4 && a.end == PL_END_EOS);
    o.n_ends = 0;
    h = (struct heard){.most = 3, .session = s};
    ok(s, pl_generate(s, prompt, 5, &o, hear, &h, &a));
    assert_true(a.count == 3 && a.end == PL_END_CALLBACK);

    /* The same draws with the same seed, in a longer context too. */
    int32_t first[12];
    o.temperature = 2;
    o.seed = 7;
    ok(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a));
    memcpy(first, a.ids, a.count * sizeof *first);
    o.context = 100;
    const size_t n = a.count;
    ok(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a));
    assert_true(a.count == n && a.kv_cache_bytes == 4 * 4864);
    assert_memory_equal(a.ids, first, n * sizeof *first);
    pl_close(s);
}

static void test_generate_text(void **state)
{
    (void)state;
    struct pl_session *s = language_model("tests/golden/chat/model");
    struct pl_tokenizer *t = pl_tokenizer_open("tests/golden/chat/model");
    const struct pl_token *tokens;
    int32_t ids[16];
    size_t count, n;
    const char *text;
    struct pl_generation o;
    struct pl_answer a;
    assert_int_equal(pl_encode(t, "hello", 5, 1, &tokens, &count), PL_OK);
    for (size_t i = 0; i < count; i++) ids[i] = tokens[i].id;
    ok(s, pl_generation_defaults(s, &o));
    o.max_new = 8;
    ok(s, pl_generate(s, ids, count, &o, NULL, NULL, &a));
    assert_int_equal(pl_decode(t, a.ids, a.count, 1, &text, &n), PL_OK);
    assert_int_equal(a.bytes, n);
    assert_memory_equal(a.text, text, n + 1);
    /* It ends before a stop text. */
    char stop[8] = {0};
    assert_true(n >= 3);
    size_t at = n / 2, end = at + 1; /* a whole code point */
    while (at && ((unsigned char)a.text[at] & 0xc0) == 0x80) at--;
    while (((unsigned char)a.text[end] & 0xc0) == 0x80) end++;
    memcpy(stop, a.text + at, end - at);
    o.stops = (const char *const[]){stop}, o.n_stops = 1;
    ok(s, pl_generate(s, ids, count, &o, NULL, NULL, &a));
    assert_true(a.end == PL_END_STOP && a.bytes <= at && !strstr(a.text, stop));
    pl_tokenizer_close(t);
    pl_close(s);
}

/* The only frame of a video, a folder, whose features are not pooled: the answer about it as an image. */
static void test_generate_video(struct pl_session *s, const struct pl_generation *o)
{
    const char *const image[] = {"tests/golden/llava_text/images/large.png"}, *const video[] = {"video:tests/golden/llava_text/images"};
    int32_t want[8];
    struct pl_answer a;
    ok(s, pl_generate_images(s, "What is this?", image, 1, o, NULL, NULL, &a));
    assert_true(a.count <= 8);
    memcpy(want, a.ids, a.count * sizeof *want);
    const size_t count = a.count;
    refused(s, pl_generate_images(s, "What is this?", video, 1, o, NULL, NULL, &a), "set data.max_frames");
    ok(s, pl_set(s, "data.max_frames", "1"));
    ok(s, pl_generate_images(s, "What is this?", video, 1, o, NULL, NULL, &a));
    assert_int_equal(a.count, count);
    assert_memory_equal(a.ids, want, count * sizeof *want);
}

/* A text about an image: the ids of transformers (tests/golden/llava_text). */
static void test_generate_images(void **state)
{
    (void)state;
    static const int32_t want[] = {32, 307, 296, 73, 296, 73, 296, 307};
    const char *const images[] = {"tests/golden/llava_text/images/small.png", "tests/golden/llava_text/images/large.png"};
    struct pl_session *s = language_model("tests/golden/llava_text/llava");
    struct pl_generation o;
    struct pl_answer a;
    ok(s, pl_generation_defaults(s, &o));
    o.max_new = 8;
    ok(s, pl_generate_images(s, "USER: <image>\nWhat is this? ASSISTANT: ", images, 1, &o, NULL, NULL, &a));
    assert_int_equal(a.count, 8);
    assert_memory_equal(a.ids, want, sizeof want);
    ok(s, pl_generate_images(s, "What is this?", images, 2, &o, NULL, NULL, &a)); /* more images: another plan */
    ok(s, pl_generate_images(s, "What is this?", NULL, 0, &o, NULL, NULL, &a));
    ok(s, pl_generate_images(s, "USER: <image>\nWhat is this? ASSISTANT: ", images, 1, &o, NULL, NULL, &a));
    assert_memory_equal(a.ids, want, sizeof want);
    assert_int_equal(pl_generate_images(NULL, "", NULL, 0, NULL, NULL, NULL, &a), PL_USAGE);
    refused(s, pl_generate_images(s, NULL, NULL, 0, &o, NULL, NULL, &a), "the text is NULL");
    refused(s, pl_generate_images(s, "x", NULL, 1, &o, NULL, NULL, &a), "the images are NULL");
    refused(s, pl_generate_images(s, "x", images, 1, &o, NULL, NULL, NULL), "the result is NULL");
    refused(s, pl_generate_images(s, "<image>", images, 2, &o, NULL, NULL, &a), "1 <image>, and 2 images are given");
    refused(s, pl_generate_images(s, "x", (const char *const[]){"none.png"}, 1, &o, NULL, NULL, &a), "none.png");
    test_generate_video(s, &o);
    pl_close(s);
    s = language_model("tests/golden/chat/model");
    refused(s, pl_generate_images(s, "x", images, 1, NULL, NULL, NULL, &a), "takes text alone");
    pl_close(s);
    s = language_model("tests/golden/llava_clip_llama");
    refused(s, pl_generate_images(s, "x", images, 1, NULL, NULL, NULL, &a), "tokenizer");
    pl_close(s);
}

static void test_generate_refuses(void **state)
{
    (void)state;
    const int32_t prompt[] = {2, 16, 32, 31, 25};
    struct pl_session *s = language_model("tests/golden/basic");
    struct pl_generation o;
    struct pl_answer a;
    assert_int_equal(pl_generate(NULL, prompt, 5, NULL, NULL, NULL, &a), PL_USAGE);
    refused(s, pl_generate(s, prompt, 5, NULL, NULL, NULL, NULL), "the result is NULL");
    refused(s, pl_generate(s, NULL, 5, NULL, NULL, NULL, &a), "the ids are NULL");
    refused(s, pl_generate(s, prompt, 0, NULL, NULL, NULL, &a), "the prompt has no tokens");
    refused(s, pl_generate(s, (int32_t[]){61}, 1, NULL, NULL, NULL, &a), "has the id 61");
    ok(s, pl_generation_defaults(s, &o));
    o.top_p = 2;
    refused(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a), "top-p is 2");
    o.top_p = 1, o.context = 5;
    refused(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a), "leaves no room");
    o.context = 0, o.max_new = 0;
    refused(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a), "max_new is 0");
    o.max_new = 4, o.stops = (const char *const[]){"x"}, o.n_stops = 1;
    refused(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a), "stops need a tokenizer");
    o.n_stops = 0;
    ok(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a)); /* nothing of that broke it */
    ok(s, pl_set(s, "data.tokenizer", "no/such/tokenizer.json")); /* one that was asked for must be there */
    refused(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a), "pl_generate: data.tokenizer");
    ok(s, pl_set(s, "data.tokenizer", "null"));
    ok(s, pl_set_memory(s, "10KiB"));
    assert_int_equal(pl_generate(s, prompt, 5, &o, NULL, NULL, &a), PL_NOFIT);
    ok(s, pl_set_memory(s, "1MiB"));
    ok(s, pl_generate(s, prompt, 5, &o, NULL, NULL, &a));
    assert_true(a.arena_bytes <= 1 << 20);
    pl_close(s);
    s = pl_open();
    refused(s, pl_generation_defaults(s, &o), "model");
    ok(s, pl_set(s, "model.preset", "sam-tiny"));
    refused(s, pl_generate(s, prompt, 5, NULL, NULL, NULL, &a), "generates no text");
    pl_close(s);
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version),        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_plan_is_kept),   cmocka_unit_test(test_splits_are_whole),
        cmocka_unit_test(test_loss_falls),     cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_split_changes_nothing), cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_count), cmocka_unit_test(test_counts), cmocka_unit_test(test_train_counts),          cmocka_unit_test(test_preset),
        cmocka_unit_test(test_save_and_read_back), cmocka_unit_test(test_parts), cmocka_unit_test(test_adapter), cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_train),          cmocka_unit_test(test_train_needs_tokens),
        cmocka_unit_test(test_order_of_calls), cmocka_unit_test(test_names_and_sizes),
        cmocka_unit_test(test_broken_models),  cmocka_unit_test(test_odd_models),
        cmocka_unit_test(test_two_sessions),   cmocka_unit_test(test_ops_by_name),
        cmocka_unit_test(test_rows_in_chunks),
        cmocka_unit_test(test_unused_input), cmocka_unit_test(test_rows_of_documents), cmocka_unit_test(test_batch_second), cmocka_unit_test(test_axis_of_an_input), cmocka_unit_test(test_views_on_a_gpu), cmocka_unit_test(test_change_while_started), cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_generate), cmocka_unit_test(test_generate_text), cmocka_unit_test(test_generate_images), cmocka_unit_test(test_generate_refuses),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
