/*
 * test_library_builder.c: models of the library's builder: ops in two spellings, inputs with the
 * batch in any dimension, scopes of rows, operands that are views, and every way to build a model
 * wrongly.
 */
#include "library.h"

/* --- ops ------------------------------------------------------------------------------------ */

/* Ops through their own functions, or (with `user`) by name: the same model. */
static void two_spellings(struct pl_builder *b, int64_t batch, void *user)
{
    const int named = *(int *)user;
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, IN)),
              labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch));
    pl_tensor k = pl_param(b, "k", PL_SHAPE(4, 4, 3, 3), PL_NORMAL, 0.2f),
              ones = pl_param(b, "ones", PL_SHAPE(32), PL_ONES, 0);
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
    x = named ? pl_op(b, "LAYERNORM", PL_TENSORS(x, ones, zeros), " eps=0.01 ")
              : pl_layernorm(b, x, ones, zeros, 0.01f);
    x = named ? pl_op(b, "act", PL_TENSORS(x), "kind=5") : pl_activate(b, x, PL_SILU);
    x = pl_drop_path(b, pl_dropout(b, x, 0.1f), 0.1f);
    pl_tensor head = pl_param(b, "out", PL_SHAPE(CLASSES, 32), PL_NORMAL, 0.2f);
    x = named ? pl_op(b, "matmul", PL_TENSORS(x, head), "tb=1") : pl_matmul(b, x, head, 0, 1);
    x = named ? pl_op(b, "softmax", PL_TENSORS(x), "") : pl_softmax(b, x);
    pl_output(b, "loss", pl_cross_entropy(b, x, labels));
}

TEST(test_ops_by_name)
{
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
static void run_series(int second, const char *micro_batch, const struct series_batch *d, double out[4],
                       float logits[E][CLASSES])
{
    struct pl_session *s = open_with(series);
    ok(s, pl_define(s, series, &second, NULL));
    ok(s, pl_set(s, "memory.micro_batch", micro_batch));
    ok(s, pl_start(s));
    ok(s, pl_write_input(s, "series", second ? (const void *)d->second : d->first, sizeof d->first));
    ok(s, second ? pl_write_input(s, "positions", d->shared, sizeof d->shared)
                 : pl_write_input(s, "positions", d->each, sizeof d->each));
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

TEST(test_batch_second)
{
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

TEST(test_axis_of_an_input)
{
    static const struct {
        int axis;
        const char *message;
    } bad[] = {{1, "input x: the second dimension is"},
               {2, "input x: the third dimension is 0"},
               {-2, "axis -2, expected a dimension from 0, or PL_SHARED"},
               {99, "axis 99"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int axis = bad[i].axis;
        struct pl_session *s = open_f32();
        ok(s, pl_define(s, odd_axis, &axis, NULL));
        assert_int_equal(pl_plan(s, NULL), PL_USAGE);
        if (!strstr(pl_message(s), bad[i].message)) fail_msg("%s", pl_message(s));
        pl_close(s);
    }
}

/* --- views ---------------------------------------------------------------------------------- */

/* Operands that are views of all kinds, forward and backward: channels-first images, a first token,
 * slices of one product, the ids without their last and the labels without their first. */
static void views(struct pl_builder *b, int64_t batch, void *user)
{
    enum { SIDE = 8, T = 6, C = 16, V = 50 };
    (void)user;
    static const float inv_freq[2] = {1, 0.1f};
    pl_tensor freq = pl_constant(b, "inv_freq", PL_SHAPE(2), inv_freq),
              table = pl_param(b, "table", PL_SHAPE(V, C), PL_NORMAL, 1);
    pl_tensor image = pl_input(b, "image", PL_F32, PL_SHAPE(batch, 3, SIDE, SIDE)),
              ids = pl_input(b, "ids", PL_I32, PL_SHAPE(batch, T));
    pl_tensor map = pl_permute(b, image, 4, (int[]){0, 2, 3, 1}), ones = pl_param(b, "ones", PL_SHAPE(C), PL_ONES, 0),
              zeros = pl_param(b, "zeros", PL_SHAPE(C), PL_ZEROS, 0);

    pl_tensor sum =
        pl_avgpool(b, pl_conv(b, map, pl_param(b, "c0", PL_SHAPE(C, 3, 3, 3), PL_NORMAL, 0.2f), 0, 1, 1, 1), 1, 1);
    pl_tensor pooled = pl_avgpool(b, map, 1, 1), c1 = pl_param(b, "c1", PL_SHAPE(C, 3, 1, 1), PL_NORMAL, 0.2f);
    sum = pl_add(b, sum, pl_conv(b, pooled, c1, 0, 1, 0, 1));
    pl_tensor resized = pl_resize(b, map, 1, 1, 0), c2 = pl_param(b, "c2", PL_SHAPE(C, 3, 1, 1), PL_NORMAL, 0.2f);
    sum = pl_add(b, sum, pl_conv(b, resized, c2, 0, 1, 0, 1));
    sum = pl_reshape(b, sum, PL_SHAPE(batch, 1, C));

    pl_tensor x = pl_embedding(b, pl_slice(b, ids, 1, 0, T - 1), table);
    sum = pl_add(b, sum, pl_layernorm(b, pl_slice(b, x, 1, 0, 1), ones, zeros, 1e-5f));
    pl_tensor qkv = pl_reshape(b, pl_linear(b, x, pl_param(b, "qkv", PL_SHAPE(3 * C, C), PL_NORMAL, 0.2f), 0),
                               PL_SHAPE(batch, T - 1, 12, 4));
    pl_tensor q = pl_rope(b, pl_slice(b, qkv, 2, 0, 4), freq, 1), k = pl_rope(b, pl_slice(b, qkv, 2, 4, 4), freq, 1);
    x = pl_add(b, x,
               pl_reshape(b, pl_attention(b, q, k, pl_slice(b, qkv, 2, 8, 4), 0.5f, 1), PL_SHAPE(batch, T - 1, C)));
    pl_tensor both = pl_linear(b, x, pl_param(b, "both", PL_SHAPE(4 * C, C), PL_NORMAL, 0.2f), 0);
    pl_tensor gate = pl_slice(b, both, 2, 0, 2 * C), up = pl_slice(b, both, 2, 2 * C, 2 * C);
    both = pl_silu_gate(b, gate, up);
    x = pl_add(b, x, pl_linear(b, both, pl_param(b, "down", PL_SHAPE(C, 2 * C), PL_NORMAL, 0.2f), 0));
    /* Gradients flow back through these. */
    pl_tensor act = pl_activate(b, pl_linear(b, x, pl_param(b, "w", PL_SHAPE(C, C), PL_NORMAL, 0.2f), zeros), PL_GELU);
    act = pl_permute(b, pl_softmax(b, pl_permute(b, pl_rmsnorm(b, act, ones, 1e-5f), 3, (int[]){0, 2, 1})), 3,
                     (int[]){0, 2, 1});
    pl_tensor with_act = pl_add(b, x, act), joined = pl_concat(b, PL_TENSORS(sum, x), 1);
    x = pl_add(b, with_act, pl_dropout(b, pl_slice(b, joined, 1, 0, T - 1), 0.1f));
    pl_tensor logits = pl_reshape(b, pl_linear(b, x, table, 0), PL_SHAPE(-1, V));
    pl_output(b, "loss", pl_cross_entropy(b, logits, pl_reshape(b, pl_slice(b, ids, 1, 1, T - 1), PL_SHAPE(-1))));
}

TEST(test_views_on_a_gpu)
{
    static const char *const precisions[] = {"f32", "bf16", "f16", "bf16-pure"};
    for (size_t i = 0; i < sizeof precisions / sizeof *precisions; i++) {
        struct pl_session *s = open_with(views);
        struct pl_plan_info p = PL_INIT(pl_plan_info);
        ok(s, pl_set(s, "device", "cuda"));
        ok(s, pl_set(s, "memory.precision", precisions[i]));
        ok(s, pl_plan(s, &p));
        const char *missing = strstr(pl_plan_table(s), "no kernel");
        if (missing) fail_msg("%s: %.120s", precisions[i], missing);
        pl_close(s);
    }
}

/* --- rows ----------------------------------------------------------------------------------- */

/* A head with dropout and its loss, in a scope of rows; logits are an output of the evaluation. */
static void row_head(struct pl_builder *b, int64_t batch, void *user)
{
    (void)user;
    pl_tensor x = pl_input(b, "x", PL_F32, PL_SHAPE(batch, IN)),
              labels = pl_input(b, "labels", PL_I32, PL_SHAPE(batch));
    pl_tensor w = pl_param(b, "in.weight", PL_SHAPE(WIDTH, IN), PL_NORMAL, 0.5f);
    x = pl_activate(b, pl_linear(b, x, w, 0), PL_GELU);
    pl_tensor scale = pl_param(b, "scale", PL_SHAPE(WIDTH), PL_ONES, 0),
              head = pl_param(b, "head.weight", PL_SHAPE(CLASSES, WIDTH), PL_NORMAL, 0.2f);
    pl_scope_begin(b, "head", PL_ROWS);
    pl_tensor logits = pl_linear(b, pl_reshape(b, pl_rmsnorm(b, x, scale, 1e-5f), PL_SHAPE(batch, 1, WIDTH)), head, 0);
    logits = pl_dropout(b, pl_reshape(b, logits, PL_SHAPE(batch, CLASSES)), 0.4f);
    pl_tensor loss = pl_cross_entropy(b, logits, labels),
              squares = pl_per_count(b, pl_sum(b, pl_mul(b, logits, logits)));
    pl_output(b, "logits", pl_op(b, "copy", PL_TENSORS(logits), NULL));
    pl_scope_end(b);
    pl_output(b, "loss", pl_add(b, loss, pl_scale(b, squares, 0.01)));
}

TEST(test_rows_in_chunks)
{
    /* 5 leave a ragged end */
    static const char *const chunks[] = {"1", "3", "5", "2"}, *const rows[] = {"12", "12", "12", "6"};
    enum { STEPS = 12 }; /* dropout makes single losses uneven */
    double loss[4][STEPS];
    float logits[4][E][CLASSES];
    struct batch d;
    make_batch(&d);
    for (int i = 0; i < 4; i++) {
        struct pl_plan_info plan = PL_INIT(pl_plan_info);
        struct pl_session *s = open_with(row_head);
        ok(s, pl_set(s, "memory.head_chunks", chunks[i]));
        ok(s, pl_set(s, "memory.micro_batch", rows[i]));
        ok(s, pl_plan(s, &plan));
        assert_string_equal(pl_technique_value(&plan, "head_chunks"), chunks[i]);
        start_on(s, &d);
        for (int k = 0; k < STEPS; k++) ok(s, pl_step(s, &loss[i][k], NULL));
        ok(s, pl_read_output(s, "logits", logits[i], sizeof logits[i]));
        pl_close(s);
        for (int k = 0; k < STEPS; k++) assert_true(fabs(loss[i][k] - loss[0][k]) < 1e-5 * loss[0][k]);
        for (int k = 0; k < E * CLASSES; k++) assert_true(fabsf((&logits[i][0][0])[k] - (&logits[0][0][0])[k]) < 1e-4f);
    }
    assert_true(loss[0][STEPS - 1] < loss[0][0]);
}

/* --- models that are refused ---------------------------------------------------------------- */

/* Ops by name, and counts. */
static void broken_ops(struct pl_builder *b, int64_t batch, int way, pl_tensor x, pl_tensor w, pl_tensor y)
{
    switch (way) {
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
    case 50: pl_per_count_of(b, pl_sum(b, y), ""); break;
    case 51: pl_cross_entropy_of(b, y, x, NULL); break;
    case 52:
        for (int i = 0; i < 8; i++) pl_per_count_of(b, pl_sum(b, y), (char[]){(char)('a' + i), 0});
        break;
    case 53:
        pl_per_count_of(b, pl_sum(b, y), "a count with a name that is far longer than a name of a count may be");
        break;
    case 54: pl_per_count_of(b, y, "rows"); break;
    default: break;
    }
}

/* Scopes of rows; returns the loss. */
static pl_tensor broken_rows(struct pl_builder *b, int64_t batch, int way, pl_tensor x, pl_tensor y, pl_tensor loss)
{
    switch (way) {
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
    return loss;
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
    default:
        broken_ops(b, batch, way, x, w, y);
        loss = broken_rows(b, batch, way, x, y, loss);
        break;
    }
    if (way != 3 && way != 4 && way != 5) pl_output(b, "loss", loss);
}

TEST(test_broken_models)
{
    static const char *const says[] = {"LINEAR",
                                       "0, which is not a tensor",
                                       "no call of this builder",
                                       "must be a scalar",
                                       "scalar",
                                       "no output loss",
                                       "pl_scope_end without",
                                       "scopes open",
                                       "used twice",
                                       "used twice",
                                       "the batch",
                                       "dtype 7",
                                       "rank 9",
                                       "elements",
                                       "std is -1",
                                       "bytes, at most",
                                       "without a name",
                                       "data is NULL",
                                       "rank 99",
                                       "axis -1",
                                       "outside",
                                       "this is mine",
                                       "scopes",
                                       "slice",
                                       "takes a scalar",
                                       "i32",
                                       "[B,T,H,D]",
                                       "used twice",
                                       "two outputs",
                                       "not a tensor",
                                       "no op rmsnrom",
                                       "takes 2 to 2 inputs",
                                       "the backward",
                                       "the update",
                                       "write to its input",
                                       "name=number of: none",
                                       "stride=1.5",
                                       "name=number of: value",
                                       "value=2,3",
                                       "reads a count",
                                       "name=number of: none",
                                       "0 to 0 inputs",
                                       "no op NULL",
                                       "no call of this builder",
                                       "for each axis",
                                       "name=number of: ta, tb",
                                       "axis 1 is 2",
                                       "0 tensors",
                                       "probability",
                                       "kind 99",
                                       "a count without a name",
                                       "a count without a name",
                                       "at most 7 counts",
                                       "bytes, at most 63",
                                       "pl_per_count_of takes a scalar",
                                       "leaves it; expected scalars",
                                       "rows first",
                                       "samples must be i32",
                                       "is opened twice",
                                       "as another input has",
                                       "pl_per_count within the scope"};
    for (int way = 0; way < (int)(sizeof says / sizeof *says); way++) {
        struct pl_session *s = open_f32();
        ok(s, pl_define(s, broken, &way, NULL));
        refused(s, pl_plan(s, NULL), says[way]);
        refused(s, pl_start(s), says[way]);
        pl_close(s);
    }
}

MAIN(make_folder, remove_folder)
