/*
 * test_reference.c: checks the reference kernels, the oracle of every other test, against central
 * differences in f64, values computed by hand, and on strided views against dense copies.
 */
#include "trial.h"

/* <dy, F(x + h u)> as a function of h, by the reference in f64: input `i` of the trial moves along
 * u. */
static double along(const struct trial *t, int i, const double *u, double h, const double *dy)
{
    struct trial moved = *t;
    moved.memory = (struct bump){0};
    moved.in[i].data = bump_alloc(&moved.memory, operand_bytes(&t->in[i]));
    for (int64_t k = 0; k < operand_elements(&t->in[i]); k++)
        ((double *)moved.in[i].data)[k] = ((const double *)t->in[i].data)[k] + h * u[k];
    run_oracle(&moved);
    double sum = 0;
    for (int64_t k = 0; k < operand_elements(&t->out[0]); k++) sum += dy[k] * moved.oracle[0][k];
    bump_free(&moved.memory);
    return sum;
}

/* Compares the gradient of input i from a reference kernel with central differences along a random
 * direction: the error is O(h^2) with h = 1e-5. */
static void check_gradient(const struct trial *forward, int i, const double *dy, const double *gradient)
{
    const int64_t n = operand_elements(&forward->in[i]);
    const double h = 1e-5;
    double *u = mem_alloc((size_t)n * sizeof *u), want = 0, size = 1;
    char text[512];
    for (int64_t k = 0; k < n; k++) {
        u[k] = normal();
        want += u[k] * gradient[k];
        size += fabs(u[k] * gradient[k]);
    }
    double got = (along(forward, i, u, h, dy) - along(forward, i, u, -h, dy)) / (2 * h);
    mem_free(u);
    if (!(fabs(got - want) <= 1e-8 * size))
        fail_msg("%s: gradient of input %d: %.12g by differences, %.12g by the kernel", describe(forward, text), i,
                 got, want);
}

static void oracle_attention(const struct heads *n)
{
    struct trial forward, t;
    attention_forward(&forward, DT_F64, DT_F64, n);
    run_oracle(&forward);
    attention_backward(&t, &forward, DT_F64, DT_F64, n);
    run_oracle(&t);
    for (int i = 0; i < 3; i++) check_gradient(&forward, i, t.in[0].data, t.oracle[i]);
    bump_free(&t.memory);
    bump_free(&forward.memory);
}

TEST(test_rmsnorm)
{
    struct trial forward, t = trial_of(OP_RMSNORM_BWD);
    rmsnorm_forward(&forward, DT_F64, 5, 9);
    run_oracle(&forward);
    input_normal(&t, DT_F64, DIM(5, 9));
    t.in[t.nin++] = forward.in[0];
    t.in[t.nin++] = forward.in[1];
    input_values(&t, forward.oracle[1], DT_F64, DIM(5));
    output(&t, DT_F64, DIM(5, 9));
    output(&t, DT_F64, DIM(9));
    run_oracle(&t);
    check_gradient(&forward, 0, t.in[0].data, t.oracle[0]);
    check_gradient(&forward, 1, t.in[0].data, t.oracle[1]);
    bump_free(&t.memory);
    bump_free(&forward.memory);
}

/* With unit_offset the weights w count as 1 + w. */
TEST(test_rmsnorm_unit_offset)
{
    struct trial t;
    rmsnorm_forward(&t, DT_F64, 5, 9);
    run_oracle(&t);
    double *w = t.in[1].data, want[45];
    memcpy(want, t.oracle[0], sizeof want);
    for (int c = 0; c < 9; c++) w[c] -= 1;
    t.attr.rmsnorm.unit_offset = 1;
    run_oracle(&t);
    for (int i = 0; i < 45; i++) assert_true(fabs(t.oracle[0][i] - want[i]) <= 1e-14 * (1 + fabs(want[i])));
    bump_free(&t.memory);
}

TEST(test_silu_gate)
{
    struct trial forward = trial_of(OP_SILU_GATE), t = trial_of(OP_SILU_GATE_BWD);
    for (int i = 0; i < 2; i++) input_normal(&forward, DT_F64, DIM(40));
    output(&forward, DT_F64, DIM(40));
    input_normal(&t, DT_F64, DIM(40));
    for (int i = 0; i < 2; i++) t.in[t.nin++] = forward.in[i];
    for (int i = 0; i < 2; i++) output(&t, DT_F64, DIM(40));
    run_oracle(&t);
    for (int i = 0; i < 2; i++) check_gradient(&forward, i, t.in[0].data, t.oracle[i]);
    bump_free(&t.memory);
    bump_free(&forward.memory);
}

TEST(test_xent)
{
    struct trial forward = trial_of(OP_XENT), t = trial_of(OP_XENT_BWD);
    const double dloss = 0.7;
    input_normal(&forward, DT_F64, DIM(6, 11));
    input_ids(&forward, 6, 11, true);
    input_inv_count(&forward, 5);
    output(&forward, DT_F64, 0, NULL);
    output(&forward, DT_F64, DIM(6));
    run_oracle(&forward);
    for (int i = 0; i < 3; i++) t.in[t.nin++] = forward.in[i];
    input_values(&t, forward.oracle[1], DT_F64, DIM(6));
    input_values(&t, &dloss, DT_F64, 0, NULL);
    output(&t, DT_F64, DIM(6, 11));
    run_oracle(&t);
    check_gradient(&forward, 0, &dloss, t.oracle[0]);
    bump_free(&t.memory);
    bump_free(&forward.memory);
}

/* A rotation preserves lengths, and its inverse is its gradient. */
TEST(test_rope)
{
    struct trial forward = trial_of(OP_ROPE), t = trial_of(OP_ROPE);
    forward.attr.rope.scale = t.attr.rope.scale = 0.5f;
    t.attr.rope.inverse = true;
    input_normal(&forward, DT_F64, DIM(2, 5, 3, 8));
    input_square(&forward, DT_F64, DIM(4));
    output(&forward, DT_F64, DIM(2, 5, 3, 8));
    input_normal(&t, DT_F64, DIM(2, 5, 3, 8));
    t.in[t.nin++] = forward.in[1];
    output(&t, DT_F64, DIM(2, 5, 3, 8));
    run_oracle(&t);
    check_gradient(&forward, 0, t.in[0].data, t.oracle[0]);
    bump_free(&t.memory);
    bump_free(&forward.memory);
}

/* x [3,4] through its transposed view is x^T: the reference must follow the strides. */
TEST(test_strides)
{
    float x[12], y[12];
    for (int i = 0; i < 12; i++) x[i] = (float)i;
    union attr attr = {.scale = {.value = 2}};
    struct launch l = {.attr = &attr, .nin = 1, .nout = 1, .threads = 1};
    l.in[0] = (struct operand){.data = x, .dtype = DT_F32, .rank = 2, .dim = {4, 3}, .stride = {1, 4}};
    l.out[0] = shape(DT_F32, DIM(4, 3));
    l.out[0].data = y;
    ref_kernels[OP_SCALE]->run(&l);
    for (int i = 0; i < 12; i++) assert_true(y[i] == 2 * x[i % 3 * 4 + i / 3]);

    struct planned p;
    plan_launch(&p, &l);
    assert_false(cpu_kernels[OP_SCALE]->match(&p.query));
}

/* A query before the first key sees no key: o is 0, lse -inf, and no gradient flows. */
TEST(test_no_keys)
{
    const struct heads n = {1, 3, 1, 1, 1, 2, true};
    struct trial forward, t;
    attention_forward(&forward, DT_F64, DT_F64, &n);
    run_oracle(&forward);
    for (int i = 0; i < 4; i++) assert_true(forward.oracle[0][i] == 0);
    for (int i = 0; i < 2; i++) assert_true(forward.oracle[0][4 + i] == ((double *)forward.in[2].data)[i]);
    assert_true(forward.oracle[1][0] == -INFINITY && forward.oracle[1][1] == -INFINITY);
    attention_backward(&t, &forward, DT_F64, DT_F64, &n);
    run_oracle(&t);
    for (int i = 0; i < 4; i++) assert_true(t.oracle[0][i] == 0);
    bump_free(&t.memory);
    bump_free(&forward.memory);
}

/* A window of one key gives the value itself; masking this key leaves the query with none. */
TEST(test_window)
{
    const struct heads n = {1, 4, 4, 1, 1, 2, true, .masked = true, .window = 1};
    struct trial forward, t;
    attention_forward(&forward, DT_F64, DT_F64, &n);
    run_oracle(&forward);
    for (int i = 0; i < 8; i++)
        assert_true(forward.oracle[0][i] == (i / 2 == 2 ? 0 : ((double *)forward.in[2].data)[i]));
    assert_true(forward.oracle[1][2] == -INFINITY && isfinite(forward.oracle[1][3]));
    attention_backward(&t, &forward, DT_F64, DT_F64, &n);
    run_oracle(&t);
    for (int i = 0; i < 8; i++) assert_true(t.oracle[2][i] == (i / 2 == 2 ? 0 : ((double *)t.in[0].data)[i]));
    for (int i = 4; i < 6; i++) assert_true(t.oracle[0][i] == 0 && t.oracle[1][i] == 0);
    bump_free(&t.memory);
    bump_free(&forward.memory);
}

/* The first step of Adam moves by lr times the gradient's sign, independent of its magnitude. */
TEST(test_adamw)
{
    struct trial t = trial_of(OP_ADAMW);
    t.attr.adamw.beta1 = 0.9f;
    t.attr.adamw.beta2 = 0.999f;
    t.attr.adamw.weight_decay = 0.5f;
    t.attr.adamw.lr_scale = 1;
    input_values(&t, (double[]){1, -2}, DT_F64, DIM(2));
    input_values(&t, (double[]){1e-3, -50}, DT_F64, DIM(2));
    input_values(&t, (double[]){0, 0}, DT_F64, DIM(2));
    input_values(&t, (double[]){0, 0}, DT_F64, DIM(2));
    input_step(&t);
    ((struct step_block *)t.in[4].data)->adam_t = 1;
    for (int o = 0; o < 3; o++) output_in_place(&t, o ? o + 1 : 0);
    run_oracle(&t);
    const double lr = 1e-2f, b2 = 0.999f;
    assert_true(fabs(t.oracle[0][0] - (1 - lr * 0.5 - lr)) < 1e-14);
    assert_true(fabs(t.oracle[0][1] - (-2 * (1 - lr * 0.5) + lr)) < 1e-14);
    assert_true(fabs(t.oracle[2][1] - (1 - b2) * 2500) < 1e-12);
    bump_free(&t.memory);
}

/* One small product by hand, in all four combinations of transposes. */
TEST(test_matmul)
{
    for (int bits = 0; bits < 4; bits++) {
        struct trial t = trial_of(OP_MATMUL);
        const bool ta = bits & 1, tb = bits & 2;
        t.attr.matmul.ta = ta;
        t.attr.matmul.tb = tb;
        /* a = [1 2 3], b = [4 5; 6 7; 8 9], acc = [100 200] */
        if (ta) input_values(&t, (double[]){1, 2, 3}, DT_F64, DIM(3, 1));
        else input_values(&t, (double[]){1, 2, 3}, DT_F64, DIM(1, 3));
        if (tb) input_values(&t, (double[]){4, 6, 8, 5, 7, 9}, DT_F64, DIM(2, 3));
        else input_values(&t, (double[]){4, 5, 6, 7, 8, 9}, DT_F64, DIM(3, 2));
        input_values(&t, (double[]){100, 200}, DT_F64, DIM(1, 2));
        output_in_place(&t, 2);
        run_oracle(&t);
        assert_true(t.oracle[0][0] == 140 && t.oracle[0][1] == 246);
        bump_free(&t.memory);
    }
}

/* Each batch is a separate product. */
TEST(test_bmm)
{
    for (int bits = 0; bits < 4; bits++) {
        struct trial t = trial_of(OP_BMM);
        const bool ta = bits & 1, tb = bits & 2;
        t.attr.matmul.ta = ta;
        t.attr.matmul.tb = tb;
        /* batch 0: [1 2] [4 5; 6 7], batch 1: [3 0] [1 1; 0 9]; acc = [100 200], [0 1] */
        if (ta) input_values(&t, (double[]){1, 2, 3, 0}, DT_F64, DIM(2, 2, 1));
        else input_values(&t, (double[]){1, 2, 3, 0}, DT_F64, DIM(2, 1, 2));
        if (tb) input_values(&t, (double[]){4, 6, 5, 7, 1, 0, 1, 9}, DT_F64, DIM(2, 2, 2));
        else input_values(&t, (double[]){4, 5, 6, 7, 1, 1, 0, 9}, DT_F64, DIM(2, 2, 2));
        input_values(&t, (double[]){100, 200, 0, 1}, DT_F64, DIM(2, 1, 2));
        output_in_place(&t, 2);
        run_oracle(&t);
        assert_true(t.oracle[0][0] == 116 && t.oracle[0][1] == 219 && t.oracle[0][2] == 3 && t.oracle[0][3] == 4);
        bump_free(&t.memory);
    }
}

TEST(test_attention)
{
    oracle_attention(&(struct heads){2, 4, 4, 4, 2, 6, true});
    oracle_attention(&(struct heads){1, 3, 7, 2, 1, 4, true});
    oracle_attention(&(struct heads){1, 5, 3, 2, 2, 4, false});
    oracle_attention(&(struct heads){2, 5, 5, 2, 1, 4, true, .window = 2});
    oracle_attention(&(struct heads){1, 4, 6, 2, 2, 4, true, .masked = true});
    oracle_attention(&(struct heads){2, 5, 7, 2, 1, 4, false, .masked = true, .window = 4});
    oracle_attention(&(struct heads){2, 5, 7, 2, 1, 4, true, .masked = true, .window = 4, .cap = 0.75f});
}

/* Two keys with the products 3 and -1 and a cap of 2:
 * lse = log(e^(2 tanh 1.5) + e^(2 tanh -0.5)). */
TEST(test_attention_cap)
{
    struct trial t = trial_of(OP_ATTENTION);
    t.attr.attention.scale = 0.5f, t.attr.attention.cap = 2;
    input_values(&t, (double[]){2}, DT_F64, DIM(1, 1, 1, 1));
    input_values(&t, (double[]){3, -1}, DT_F64, DIM(1, 2, 1, 1));
    input_values(&t, (double[]){1, 5}, DT_F64, DIM(1, 2, 1, 1));
    output(&t, DT_F64, DIM(1, 1, 1, 1));
    output(&t, DT_F64, DIM(1, 1, 1));
    run_oracle(&t);
    assert_true(fabs(t.oracle[1][0] - log(exp(2 * tanh(1.5)) + exp(2 * tanh(-0.5)))) < 1e-14);
    assert_true(fabs(t.oracle[0][0] - (1 + 4 / (1 + exp(2 * tanh(1.5) - 2 * tanh(-0.5))))) < 1e-14);
    bump_free(&t.memory);
}

MAIN(NULL, NULL)
