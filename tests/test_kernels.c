/*
 * test_kernels.c: every fast CPU kernel against the reference, at odd shapes, in
 * every storage type, on one, two and three threads, and in place (see trial.h).
 * An op without a trial here fails the last test.
 */
#include "trial.h"

/* The sizes that every kernel of rows goes through. The last ones cross the tile,
 * the block and the chunk lengths of the fast kernels. */
static const int64_t ROWS[] = {1, 2, 7, 65, 129}, COLS[] = {1, 3, 17, 64, 100, 300};
static const enum dtype FLOATS[] = {DT_F32, DT_BF16, DT_F16};

static void for_each_shape(void (*check)(enum dtype, int64_t, int64_t))
{
    for (size_t f = 0; f < COUNT(FLOATS); f++)
        for (size_t r = 0; r < COUNT(ROWS); r++)
            for (size_t c = 0; c < COUNT(COLS); c++) check(FLOATS[f], ROWS[r], COLS[c]);
}
/* --- elementwise --------------------------------------------------------------------------------- */

static void check_binary(enum op op, enum dtype f, int64_t R, int64_t C)
{
    struct trial t = trial_of(op);
    input_normal(&t, f, DIM(R, C));
    input_normal(&t, f, DIM(R, C));
    output(&t, f, DIM(R, C));
    trial_check_in_place(&t, op == OP_SILU_GATE ? NULL : (const int[]){uniform() < 0.5 ? 0 : 1, -1, -1, -1});
}

static void check_elementwise(enum dtype f, int64_t R, int64_t C)
{
    check_binary(OP_ADD, f, R, C);
    check_binary(OP_MUL, f, R, C);
    check_binary(OP_SILU_GATE, f, R, C);

    struct trial t = trial_of(OP_SILU_GATE_BWD);
    for (int i = 0; i < 3; i++) input_normal(&t, f, DIM(R, C));
    output(&t, f, DIM(R, C));
    output(&t, f, DIM(R, C));
    trial_check_in_place(&t, (const int[]){1, 2, -1, -1});

    t = trial_of(OP_SCALE);
    t.attr.scale.value = -0.375;
    input_normal(&t, f, DIM(R, C));
    output(&t, f, DIM(R, C));
    trial_check_in_place(&t, (const int[]){0, -1, -1, -1});

    t = trial_of(OP_ACCUMULATE);
    input_normal(&t, f, DIM(R, C));
    input_normal(&t, R % 2 ? DT_F32 : f, DIM(R, C));
    output_in_place(&t, 1);
    trial_check(&t);

    for (size_t to = 0; to < COUNT(FLOATS); to++) {
        t = trial_of(OP_CAST);
        t.attr.cast.dtype = (uint8_t)FLOATS[to];
        input_normal(&t, f, DIM(R, C));
        output(&t, FLOATS[to], DIM(R, C));
        trial_check(&t);
    }
}

static void check_moves(enum dtype f, int64_t R, int64_t C)
{
    struct trial t = trial_of(OP_FILL);
    t.attr.fill.value = 0.1;
    output(&t, f, DIM(R, C));
    trial_check(&t);

    t = trial_of(OP_FILL);
    t.attr.fill.value = -100;
    output(&t, C % 2 ? DT_I32 : DT_I64, DIM(R, C));
    trial_check(&t);

    t = trial_of(OP_SPREAD);
    input_normal(&t, DT_F32, 0, NULL);
    input_normal(&t, f, DIM(R, C));
    output(&t, f, DIM(R, C));
    trial_check(&t);

    t = trial_of(OP_COPY);
    input_normal(&t, f, DIM(R, C));
    output(&t, f, DIM(R, C));
    trial_check(&t);

    t = trial_of(OP_SUM);
    input_normal(&t, f, DIM(R, C));
    output(&t, DT_F32, 0, NULL);
    trial_check(&t);
}

static void test_elementwise(void **state)
{
    (void)state;
    for_each_shape(check_elementwise);
    for_each_shape(check_moves);
}

/* --- norms, position ---------------------------------------------------------------------------------- */

static double largest(const double *x, int64_t n)
{
    double max = 0;
    for (int64_t i = 0; i < n; i++) max = fmax(max, fabs(x[i]));
    return max;
}

static void check_norm(enum dtype f, int64_t R, int64_t C)
{
    struct trial forward, t;
    rmsnorm_forward(&forward, f, R, C);
    run_oracle(&forward);

    t = trial_of(OP_RMSNORM_BWD);
    t.length = (double)max_i64(R, C);
    input_normal(&t, f, DIM(R, C));
    input(&t, f, DIM(R, C));
    memcpy(t.in[1].data, forward.in[0].data, operand_bytes(&t.in[1]));
    input_normal(&t, f, DIM(C));
    input_values(&t, forward.oracle[1], DT_F32, DIM(R));
    output(&t, f, DIM(R, C));
    output(&t, DT_F32, DIM(C));
    /* The two terms of dx cancel (wholly when C is 1): their size is that of each. */
    t.unit[0] = largest(forward.oracle[1], R) * 4;
    t.unit[1] = sqrt((double)R);
    trial_check(&t);
    trial_check(&forward);

    for (int acc = 0; acc < 2; acc++) {
        t = trial_of(OP_SUM_ROWS);
        t.length = (double)R;
        t.unit[0] = sqrt((double)R);
        input_normal(&t, f, DIM(R, C));
        if (acc) input_normal(&t, DT_F32, DIM(C));
        if (acc) output_in_place(&t, 1);
        else output(&t, DT_F32, DIM(C));
        trial_check(&t);
    }
}

static void check_rope(enum dtype f, int64_t T, int64_t half)
{
    struct trial t = trial_of(OP_ROPE);
    t.attr.rope.scale = 0.75f;
    t.attr.rope.inverse = T % 2;
    input_normal(&t, f, DIM(2, T, 3, 2 * half));
    struct operand *freq = input(&t, DT_F32, DIM(half));
    for (int64_t i = 0; i < half; i++) ((float *)freq->data)[i] = powf(10000, -(float)i / (float)half);
    output(&t, f, DIM(2, T, 3, 2 * half));
    trial_check_in_place(&t, (const int[]){0, -1, -1, -1});
}

static void test_rows(void **state)
{
    (void)state;
    for_each_shape(check_norm);
    for_each_shape(check_rope);
}

/* --- tokens -------------------------------------------------------------------------------------------- */

static void check_embedding(enum dtype f, int64_t R, int64_t C)
{
    const int64_t V = 23; /* fewer than rows: ids repeat */
    struct trial t = trial_of(OP_EMBEDDING);
    input_ids(&t, R, V, false);
    input_normal(&t, f, DIM(V, C));
    output(&t, f, DIM(R, C));
    trial_check(&t);

    for (int acc = 0; acc < 2; acc++) {
        t = trial_of(OP_EMBEDDING_DW);
        t.attr.embedding_dw.rows = V;
        t.length = (double)R;
        t.unit[0] = 1;
        input_ids(&t, R, V, false);
        input_normal(&t, f, DIM(R, C));
        if (acc) input_normal(&t, DT_F32, DIM(V, C));
        if (acc) output_in_place(&t, 2);
        else output(&t, DT_F32, DIM(V, C));
        trial_check(&t);
    }

    t = trial_of(OP_SHIFT_LABELS);
    struct operand *labels = input_ids(&t, R * C, V, true);
    *labels = (struct operand){.data = labels->data, .dtype = DT_I32, .rank = 2, .dim = {R, C}, .stride = {C, 1}};
    output(&t, DT_I32, DIM(R, C));
    trial_check(&t);
}

static void check_xent(enum dtype f, int64_t R, int64_t V)
{
    struct trial forward = trial_of(OP_XENT), t = trial_of(OP_XENT_BWD);
    forward.length = (double)V;
    forward.unit[0] = forward.unit[1] = 1; /* with one class loss and lse are differences near 0 */
    input_normal(&forward, f, DIM(R, V));
    if (V > 1) dtype_store(forward.in[0].data, f, 0, -INFINITY); /* a masked class */
    input_ids(&forward, R, V, true);
    ((int32_t *)forward.in[1].data)[0] = (int32_t)V - 1;
    input_step(&forward, (double)R);
    output(&forward, DT_F32, 0, NULL);
    output(&forward, DT_F32, DIM(R));
    run_oracle(&forward);

    input(&t, f, DIM(R, V));
    memcpy(t.in[0].data, forward.in[0].data, operand_bytes(&t.in[0]));
    input_ids(&t, R, V, true);
    input_step(&t, (double)R);
    input_values(&t, forward.oracle[1], DT_F32, DIM(R));
    input_values(&t, (double[]){3}, DT_F32, 0, NULL);
    output(&t, f, DIM(R, V));
    /* softmax and onehot cancel; lse, as large as log V + max, carries an f32 rounding. */
    t.unit[0] = 3.0 / (double)R * fmax(1, largest(forward.oracle[1], R));
    trial_check_in_place(&t, (const int[]){0, -1, -1, -1});
    trial_check(&forward);
}

static void test_tokens(void **state)
{
    (void)state;
    for_each_shape(check_embedding);
    for_each_shape(check_xent);
}

/* --- products and attention ------------------------------------------------------------------------------- */

static void check_linear(enum dtype f, int64_t R, int64_t K)
{
    const int64_t N = (R * 7 + K * 3) % 90 + 1;
    for (int bias = 0; bias < 2; bias++) {
        struct trial t = trial_of(OP_LINEAR);
        t.length = (double)K;
        t.unit[0] = sqrt((double)K);
        input_normal(&t, f, DIM(R, K));
        input_normal(&t, f, DIM(N, K));
        if (bias) input_normal(&t, f, DIM(N));
        output(&t, f, DIM(R, N));
        trial_check(&t);
    }
}

static void check_matmul(enum dtype f, int64_t M, int64_t K)
{
    const int64_t N = (M * 5 + K * 11) % 70 + 1;
    for (int bits = 0; bits < 8; bits++) {
        const bool ta = bits & 1, tb = bits & 2, acc = bits & 4;
        struct trial t = trial_of(OP_MATMUL);
        t.attr.matmul.ta = ta;
        t.attr.matmul.tb = tb;
        t.attr.matmul.dtype = (uint8_t)(acc ? DT_F32 : f);
        t.length = (double)K;
        t.unit[0] = sqrt((double)K);
        input_normal(&t, f, DIM(ta ? K : M, ta ? M : K));
        input_normal(&t, f, DIM(tb ? N : K, tb ? K : N));
        if (acc) input_normal(&t, DT_F32, DIM(M, N));
        if (acc) output_in_place(&t, 2);
        else output(&t, f, DIM(M, N));
        trial_check(&t);
    }
}

static void check_products(enum dtype f, int64_t R, int64_t K)
{
    if (R * K > 10000) return; /* 65 x 100 is the largest that tells anything new */
    check_linear(f, R, K);
    check_matmul(f, R, K);
}

static void test_products(void **state)
{
    (void)state;
    for_each_shape(check_products);
}

static void check_attention(enum dtype f, const struct heads *n)
{
    struct trial forward, t;
    attention_forward(&forward, f, DT_F32, n);
    run_oracle(&forward);
    attention_backward(&t, &forward, f, DT_F32, n);
    trial_check(&t);
    trial_check(&forward);
}

static void test_attention(void **state)
{
    (void)state;
    static const struct heads SHAPES[] = {
        {1, 1, 1, 1, 1, 2, true},      {2, 7, 7, 4, 2, 6, true},   {1, 65, 65, 3, 1, 16, true},
        {2, 3, 9, 2, 2, 64, false},    {1, 5, 12, 4, 1, 10, true}, {1, 33, 70, 2, 1, 32, false},
        {1, 129, 129, 2, 2, 8, true},  {3, 17, 17, 6, 3, 4, true},
    };
    for (size_t i = 0; i < COUNT(SHAPES); i++)
        for (size_t f = 0; f < COUNT(FLOATS); f++) check_attention(FLOATS[f], &SHAPES[i]);
}

/* --- update -------------------------------------------------------------------------------------------------- */

static void adamw_trial(struct trial *t, enum dtype w, int64_t n, int options, bool found_inf)
{
    *t = trial_of(OP_ADAMW);
    t->attr.adamw.beta1 = 0.9f;
    t->attr.adamw.beta2 = 0.95f;
    t->attr.adamw.eps = 1e-8f;
    t->attr.adamw.weight_decay = 0.1f;
    t->attr.adamw.lr_scale = 0.5f;
    for (int i = 0; i < 3; i++) input_normal(t, DT_F32, DIM(n)); // p, g, m
    input_square(t, DT_F32, DIM(n));                             // v
    input_step(t, 1);
    ((struct step_block *)t->in[4].data)->found_inf = found_inf;
    if (options & 1) input_values(t, (double[]){4, 0.25}, DT_F32, DIM(2));
    else t->nin++;
    if (options & 2) input_normal(t, w, DIM(n));
    const int places[] = {0, 2, 3, 6};
    for (int o = 0; o < (options & 2 ? 4 : 3); o++) output_in_place(t, places[o]);
}

static void check_update(enum dtype f, int64_t R, int64_t C)
{
    struct trial t = trial_of(OP_SUMSQ);
    input_normal(&t, f, DIM(R, C));
    input_square(&t, DT_F64, 0, NULL);
    output_in_place(&t, 1);
    trial_check(&t);

    for (int options = 0; options < 4; options++) {
        adamw_trial(&t, f, R * C, options, false);
        trial_check(&t);
        if (options < 3) continue;
        /* Predicated off: p, m, v and w keep their bits. */
        void *results[MAX_OUT];
        adamw_trial(&t, f, R * C, options, true);
        run_fast(&t, t.alias, 2, results);
        for (int o = 0; o < t.nout; o++) {
            assert_memory_equal(results[o], t.in[t.alias[o]].data, operand_bytes(&t.out[o]));
            free(results[o]);
        }
        bump_free(&t.memory);
    }
}

static void test_update(void **state)
{
    (void)state;
    for_each_shape(check_update);
    for (int i = 0; i < 4; i++) {
        struct trial t = trial_of(OP_CLIP);
        input_values(&t, (double[]){i % 2 ? 0.04 : 90}, DT_F64, 0, NULL);
        input_step(&t, 1);
        if (i >= 2) ((struct step_block *)t.in[1].data)->clip_norm = 0;
        output(&t, DT_F32, DIM(2));
        trial_check(&t);
    }
}

#include "kernels_shapes.inc"

/* Runs last: an op without a trial, or without a reference kernel, fails here. */
static void test_coverage(void **state)
{
    (void)state;
    for (int op = OP_NONE + 1; op < OP_COUNT; op++) {
        if (op_table[op].flags & OPF_VIEW) continue;
        if (!find(ref_kernels, op)) fail_msg("%s has no reference kernel", op_table[op].name);
        if (!find(cpu_kernels, op)) fail_msg("%s has no CPU kernel", op_table[op].name);
        if (!covered[op]) fail_msg("%s has no trial in this file", op_table[op].name);
    }
}

int main(void)
{
    seed_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elementwise), cmocka_unit_test(test_rows),   cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_products),    cmocka_unit_test(test_attention), cmocka_unit_test(test_update),
        cmocka_unit_test(test_layouts),      cmocka_unit_test(test_maps),
        cmocka_unit_test(test_coverage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
