/*
 * test_kernels.c: compares fast CPU kernels with the reference at many more odd shapes, values and
 * options than test_ops.c, in every storage dtype, on one, two and three threads, and in place (see
 * trial.h). For kernels that have their own tiles and tails.
 */
#include "trial.h"

#include "cpu/math.h"

/* The sizes for every row-wise kernel. The last ones exceed the tile, block and chunk lengths of
 * the fast kernels. */
static const int64_t ROWS[] = {1, 2, 7, 65, 129}, COLS[] = {1, 3, 17, 64, 100, 300};
static const enum dtype FLOATS[] = {DT_F32, DT_BF16, DT_F16};

static void for_each_shape(void (*check)(enum dtype, int64_t, int64_t))
{
    for (size_t f = 0; f < COUNT(FLOATS); f++)
        for (size_t r = 0; r < COUNT(ROWS); r++)
            for (size_t c = 0; c < COUNT(COLS); c++) check(FLOATS[f], ROWS[r], COLS[c]);
}
/* --- elementwise ----------------------------------------------------------------------------- */

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

    t = trial_of(OP_SILU_GATE_BWD_Y);
    for (int i = 0; i < 3; i++) input_normal(&t, f, DIM(R, C));
    for (int i = 0; i < 3; i++) output(&t, f, DIM(R, C));
    trial_check_in_place(&t, (const int[]){1, 2, 0, -1});

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

/* Values up to 12 standard deviations: where an exponential overflows and where a tail ends. */
static void check_activations(enum dtype f, int64_t R, int64_t C)
{
    for (int kind = 0; kind < ACT_KINDS; kind++) {
        struct trial t = trial_of(OP_ACT);
        t.attr.act.kind = (uint8_t)kind;
        struct operand *x = input_normal(&t, f, DIM(R, C));
        for (int64_t i = 0; i < R * C && kind != ACT_EXP; i += 3)
            dtype_store(x->data, f, i, 4 * dtype_load(x->data, f, i));
        output(&t, f, DIM(R, C));
        t.unit[0] = 1;
        trial_check_in_place(&t, (const int[]){0, -1, -1, -1});

        t = trial_of(OP_ACT_BWD);
        t.attr.act.kind = (uint8_t)kind;
        for (int i = 0; i < 2; i++) input_normal(&t, f, DIM(R, C));
        output(&t, f, DIM(R, C));
        t.unit[0] = 1;
        trial_check_in_place(&t, (const int[]){(int)(C % 2), -1, -1, -1});
    }
}

static void check_dropout(enum dtype f, int64_t B, int64_t n)
{
    for (int per_sample = 0; per_sample < 2; per_sample++) {
        struct trial t = trial_of(OP_DROPOUT);
        t.attr.dropout.p = 0.3f;
        t.attr.dropout.per_sample = (uint8_t)per_sample;
        t.attr.dropout.key = 5;
        input_normal(&t, f, DIM(B, n));
        input_step(&t);
        input_ids(&t, B, 1000, false);
        output(&t, f, DIM(B, n));
        trial_check_in_place(&t, (const int[]){0, -1, -1, -1});
    }
}

/* |got - want| in units in the last place of an f32 of want's magnitude. */
static double ulps(float got, double want)
{
    int exponent;
    frexpf((float)want, &exponent);
    return fabs(got - want) / fmax(ldexp(1, exponent - 24), 0x1p-149);
}

/* The errors stated in math.h, on floats of every magnitude. */
TEST(test_functions)
{
    double t = 0, d = 0;
    for (uint32_t bits = 0; bits < 0x41200000u; bits += 1009) { /* 0 to 10 */
        float x = float_of_bits(bits);
        t = fmax(t, ulps(tanh_fast(x), tanh((double)x)));
        d = fmax(d, ulps(exp_down(-8 * x), exp(-8.0 * (double)x)));
        if (tanh_fast(-x) != -tanh_fast(x)) fail_msg("not odd at %g", (double)x);
    }
    if (t > 1.4 || d > 1.1) fail_msg("tanh is off by %.3g ulp, exp_down by %.3g", t, d);
    assert_true(exp_down(-0.0f) == 1 && exp_down(-87.7f) == 0 && exp_down(-INFINITY) == 0);
    assert_true(tanh_fast(INFINITY) == 1 && tanh_fast(-90) == -1 && isnan(tanh_fast(NAN)));
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

TEST(test_elementwise)
{
    for_each_shape(check_elementwise);
    for_each_shape(check_activations);
    for_each_shape(check_dropout);
    for_each_shape(check_moves);
}

/* --- broadcasting ---------------------------------------------------------------------------- */

/* [B,T,C] with a second operand whose shape follows from a bit mask: bit d set broadcasts dimension
 * d, and bit 3 omits the broadcast leading dimensions. */
static void broadcast_shape(const int64_t whole[3], int bits, int *rank, int64_t dim[3])
{
    *rank = 0;
    for (int d = 0; d < 3; d++)
        if (!(bits & 8) || *rank || !(bits >> d & 1)) dim[(*rank)++] = bits >> d & 1 ? 1 : whole[d];
}

static void check_broadcast(enum dtype f, int64_t B, int64_t T, int64_t C)
{
    const int64_t whole[3] = {B, T, C};
    for (int bits = 0; bits < 16; bits++) {
        int rank;
        int64_t dim[3];
        broadcast_shape(whole, bits, &rank, dim);
        for (int side = 0; side < 2; side++) {
            struct trial t = trial_of(side ? OP_MUL : OP_ADD);
            if (side) input_normal(&t, f, rank, dim);
            input_normal(&t, f, DIM(B, T, C));
            if (!side) input_normal(&t, f, rank, dim);
            output(&t, f, DIM(B, T, C));
            trial_check_in_place(&t, (const int[]){side, -1, -1, -1});
        }
        for (int acc = 0; acc < 2; acc++) {
            struct trial t = trial_of(OP_SUM_TO);
            enum dtype to = bits % 3 ? DT_F32 : f;
            double count = 1;
            for (int d = 0; d < 3; d++) count *= bits >> d & 1 ? (double)whole[d] : 1;
            t.attr.sum_to.dtype = (uint8_t)to;
            t.length = count;
            t.unit[0] = sqrt(count);
            input_normal(&t, f, DIM(B, T, C));
            if (acc) input_normal(&t, to, rank, dim);
            if (acc) output_in_place(&t, 1);
            else output(&t, to, rank, dim);
            trial_check(&t);
        }
    }
    /* Neither operand has the whole shape. */
    struct trial t = trial_of(OP_ADD);
    input_normal(&t, f, DIM(B, 1, C));
    input_normal(&t, f, DIM(T, 1));
    output(&t, f, DIM(B, T, C));
    trial_check(&t);
}

TEST(test_broadcast)
{
    static const int64_t SHAPES[][3] = {{1, 1, 1},    {2, 3, 5},    {3, 1, 17}, {1, 65, 3},
                                        {5, 37, 300}, {2, 2, 4099}, {70, 3, 64}};
    for (size_t i = 0; i < COUNT(SHAPES); i++)
        for (size_t f = 0; f < COUNT(FLOATS); f++) check_broadcast(FLOATS[f], SHAPES[i][0], SHAPES[i][1], SHAPES[i][2]);
}

/* --- norms, position ------------------------------------------------------------------------- */

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
    /* The two terms of dx cancel (wholly when C is 1): their magnitude is that of each term. */
    t.unit[0] = largest(forward.oracle[1], R) * 4;
    t.unit[1] = sqrt((double)R);
    trial_check(&t);
    trial_check(&forward);
}

static void check_layernorm(enum dtype f, int64_t R, int64_t C)
{
    struct trial forward = trial_of(OP_LAYERNORM), t = trial_of(OP_LAYERNORM_BWD);
    forward.attr.layernorm.eps = t.attr.layernorm.eps = 1e-3f;
    forward.length = (double)C;
    input_normal(&forward, f, DIM(R, C));
    for (int i = 0; i < 2; i++) input_normal(&forward, f, DIM(C));
    output(&forward, f, DIM(R, C));
    for (int i = 0; i < 2; i++) output(&forward, DT_F32, DIM(R));
    forward.unit[0] = forward.unit[1] = 1; /* a mean of values of magnitude 1 */
    run_oracle(&forward);

    t.length = (double)max_i64(R, C);
    input_normal(&t, f, DIM(R, C));
    input(&t, f, DIM(R, C));
    memcpy(t.in[1].data, forward.in[0].data, operand_bytes(&t.in[1]));
    input_normal(&t, f, DIM(C));
    for (int i = 1; i < 3; i++) input_values(&t, forward.oracle[i], DT_F32, DIM(R));
    output(&t, f, DIM(R, C));
    for (int i = 0; i < 2; i++) output(&t, DT_F32, DIM(C));
    /* The terms of dx cancel (wholly when C is 1): their magnitude is that of each term. */
    t.unit[0] = largest(forward.oracle[2], R) * 4;
    t.unit[1] = t.unit[2] = sqrt((double)R);
    trial_check_in_place(&t, (const int[]){0, -1, -1, -1});
    trial_check(&forward);
}

static void check_softmax(enum dtype f, int64_t R, int64_t C)
{
    struct trial t = trial_of(OP_SOFTMAX);
    t.length = (double)C;
    input_normal(&t, f, DIM(R, C));
    for (int64_t i = 0; i < R * C && C > 1; i += C) dtype_store(t.in[0].data, f, i, -INFINITY); /* a masked position */
    output(&t, f, DIM(R, C));
    trial_check_in_place(&t, (const int[]){0, -1, -1, -1});

    t = trial_of(OP_SOFTMAX_BWD);
    t.length = (double)C;
    t.unit[0] = 4 * sqrt((double)C); /* the sum over the row, times y */
    for (int i = 0; i < 2; i++) input_normal(&t, f, DIM(R, C));
    output(&t, f, DIM(R, C));
    trial_check_in_place(&t, (const int[]){(int)(R % 2), -1, -1, -1});
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

TEST(test_rows)
{
    for_each_shape(check_norm);
    for_each_shape(check_layernorm);
    for_each_shape(check_softmax);
    for_each_shape(check_rope);
}

/* --- tokens ---------------------------------------------------------------------------------- */

static void check_embedding(enum dtype f, int64_t R, int64_t C)
{
    const int64_t V = 23; /* fewer than rows: ids repeat */
    struct trial t = trial_of(OP_EMBEDDING);
    input_ids(&t, R, V, false);
    input_normal(&t, f, DIM(V, C));
    output(&t, f, DIM(R, C));
    trial_check(&t);

    for (int k = 0; k < 4; k++) { /* with and without an accumulator, with and without a padding id */
        const bool acc = k % 2;
        t = trial_of(OP_EMBEDDING_DW);
        t.attr.embedding_dw.rows = V;
        t.attr.embedding_dw.padding = k / 2 * 6;
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
    input_inv_count(&forward, (double)R);
    output(&forward, DT_F32, 0, NULL);
    output(&forward, DT_F32, DIM(R));
    run_oracle(&forward);

    input(&t, f, DIM(R, V));
    memcpy(t.in[0].data, forward.in[0].data, operand_bytes(&t.in[0]));
    input_ids(&t, R, V, true);
    input_inv_count(&t, (double)R);
    input_values(&t, forward.oracle[1], DT_F32, DIM(R));
    input_values(&t, (double[]){3}, DT_F32, 0, NULL);
    output(&t, f, DIM(R, V));
    /* Softmax and one-hot cancel; lse, as large as log V + max, carries an f32 rounding. */
    t.unit[0] = 3.0 / (double)R * fmax(1, largest(forward.oracle[1], R));
    trial_check_in_place(&t, (const int[]){0, -1, -1, -1});
    trial_check(&forward);
}

TEST(test_tokens)
{
    for_each_shape(check_embedding);
    for_each_shape(check_xent);
}

TEST(test_labelled_first)
{
    static const int64_t rows[] = {1, 2, 31, 1024, 3001};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct trial t = trial_of(OP_LABELLED_FIRST);
        input_ids(&t, rows[i], 23, true);
        for (int o = 0; o < 3; o++) output(&t, DT_I32, DIM(rows[i]));
        trial_check(&t);
    }
}

/* --- products and attention ------------------------------------------------------------------ */

static void check_linear(enum dtype f, int64_t R, int64_t K)
{
    const int64_t N = (R * 7 + K * 3) % 90 + 1;
    for (int bits = 0; bits < 4; bits++) {
        const bool bias = bits & 1, add = bits & 2;
        struct trial t = trial_of(OP_LINEAR);
        t.length = (double)K;
        t.unit[0] = sqrt((double)K);
        input_normal(&t, f, DIM(R, K));
        input_normal(&t, f, DIM(N, K));
        if (bias) input_normal(&t, f, DIM(N));
        else if (add) t.nin++; /* omitted operand */
        if (add) input_normal(&t, f, DIM(R, N));
        output(&t, f, DIM(R, N));
        trial_check(&t);
    }
}

static void check_linear_act(enum dtype f, int64_t R, int64_t K)
{
    const int64_t N = (R * 11 + K * 3) % 290 + 1;
    struct trial t = trial_of(OP_LINEAR_ACT);
    t.attr.act.kind = (uint8_t)((R + K) % ACT_EXP);
    t.length = (double)K;
    t.unit[0] = t.unit[1] = sqrt((double)K);
    input_normal(&t, f, DIM(R, K));
    input_normal(&t, f, DIM(N, K));
    if (K % 2) input_normal(&t, f, DIM(N));
    output(&t, f, DIM(R, N));
    output(&t, f, DIM(R, N));
    trial_check(&t);
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

static void check_bmm(enum dtype f, int64_t M, int64_t K)
{
    const int64_t N = (M * 5 + K * 11) % 30 + 1, B = (M + K) % 4 + 1;
    for (int bits = 0; bits < 8; bits++) {
        const bool ta = bits & 1, tb = bits & 2, acc = bits & 4;
        struct trial t = trial_of(OP_BMM);
        t.attr.matmul.ta = ta;
        t.attr.matmul.tb = tb;
        t.attr.matmul.dtype = (uint8_t)(acc ? DT_F32 : f);
        t.length = (double)K;
        t.unit[0] = sqrt((double)K);
        input_normal(&t, f, DIM(B, 2, ta ? K : M, ta ? M : K));
        input_normal(&t, f, DIM(B, 2, tb ? N : K, tb ? K : N));
        if (acc) input_normal(&t, DT_F32, DIM(B, 2, M, N));
        if (acc) output_in_place(&t, 2);
        else output(&t, f, DIM(B, 2, M, N));
        trial_check(&t);
    }
}

static void check_products(enum dtype f, int64_t R, int64_t K)
{
    if (R * K > 10000) return; /* 65 x 100 is the largest shape with new cases */
    check_linear(f, R, K);
    check_linear_act(f, R, K);
    check_matmul(f, R, K);
    check_bmm(f, R, K);
}

TEST(test_products)
{
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

TEST(test_attention)
{
    static const struct heads SHAPES[] = {
        {1, 1, 1, 1, 1, 2, true},
        {2, 7, 7, 4, 2, 6, true},
        {1, 65, 65, 3, 1, 16, true},
        {2, 3, 9, 2, 2, 64, false},
        {1, 5, 12, 4, 1, 10, true},
        {1, 33, 70, 2, 1, 32, false},
        {1, 129, 129, 2, 2, 8, true},
        {3, 17, 17, 6, 3, 4, true},
        /* masks and windows, none of which leaves a query without keys */
        {2, 7, 9, 4, 2, 6, false, true},
        {1, 65, 65, 3, 1, 16, true, true},
        {1, 129, 129, 2, 1, 8, true, false, 1},
        {1, 129, 129, 2, 2, 8, true, true, 20},
        {2, 33, 70, 2, 1, 32, false, true, 9},
        {1, 70, 33, 1, 1, 12, false, false, 5},
    };
    for (size_t i = 0; i < COUNT(SHAPES); i++)
        for (size_t f = 0; f < COUNT(FLOATS); f++) check_attention(FLOATS[f], &SHAPES[i]);
}

/* --- convolution ----------------------------------------------------------------------------- */

struct convolution {
    int64_t B, H, W, C, O, kh, kw;
    int stride, pad, groups;
};

static struct trial conv_trial(enum op op, const struct convolution *n)
{
    struct trial t = trial_of(op);
    t.attr.conv.stride = n->stride, t.attr.conv.pad = n->pad, t.attr.conv.groups = n->groups;
    t.attr.conv.H = n->H, t.attr.conv.W = n->W;
    t.attr.conv.kh = (int32_t)n->kh, t.attr.conv.kw = (int32_t)n->kw;
    return t;
}

/* All three ops of one convolution; `extra`: with a bias or an accumulator. */
static void check_conv(enum dtype f, const struct convolution *n, bool extra)
{
    const int64_t H2 = (n->H + 2 * n->pad - n->kh) / n->stride + 1, W2 = (n->W + 2 * n->pad - n->kw) / n->stride + 1;
    const int64_t depth = n->C / n->groups, taps = n->kh * n->kw;
    struct trial t = conv_trial(OP_CONV, n);
    t.length = (double)(taps * depth);
    t.unit[0] = sqrt(t.length);
    input_normal(&t, f, DIM(n->B, n->H, n->W, n->C));
    input_normal(&t, f, DIM(n->O, depth, n->kh, n->kw));
    if (extra) input_normal(&t, f, DIM(n->O));
    output(&t, f, DIM(n->B, H2, W2, n->O));
    trial_check(&t);

    t = conv_trial(OP_CONV_DX, n);
    t.length = (double)(taps * n->O / n->groups);
    t.unit[0] = sqrt(t.length);
    input_normal(&t, f, DIM(n->B, H2, W2, n->O));
    input_normal(&t, f, DIM(n->O, depth, n->kh, n->kw));
    if (extra) input_normal(&t, f, DIM(n->C));
    output(&t, f, DIM(n->B, n->H, n->W, n->C));
    trial_check(&t);

    t = conv_trial(OP_CONV_DW, n);
    t.length = (double)(n->B * H2 * W2);
    t.unit[0] = sqrt(t.length);
    input_normal(&t, f, DIM(n->B, H2, W2, n->O));
    input_normal(&t, f, DIM(n->B, n->H, n->W, n->C));
    if (extra) input_normal(&t, DT_F32, DIM(n->O, depth, n->kh, n->kw));
    if (extra) output_in_place(&t, 2);
    else output(&t, DT_F32, DIM(n->O, depth, n->kh, n->kw));
    trial_check(&t);
}

TEST(test_conv)
{
    static const struct convolution SHAPES[] = {
        /* a 1x1 kernel: the maps are matrices */
        {1, 1, 1, 1, 1, 1, 1, 1, 0, 1},      {2, 5, 7, 11, 13, 1, 1, 1, 0, 1},
        /* patches, the second with a remainder */
        {2, 8, 12, 3, 17, 4, 4, 4, 0, 1},    {1, 9, 14, 3, 5, 4, 4, 4, 0, 1},
        {1, 6, 4, 37, 5, 2, 2, 2, 0, 1},     {1, 33, 17, 16, 130, 1, 1, 1, 0, 1},
        {2, 7, 9, 5, 6, 3, 3, 1, 1, 1},      {1, 11, 6, 40, 30, 3, 3, 1, 1, 1},  /* K exceeds a block of the product */
        {1, 9, 12, 3, 32, 3, 3, 2, 1, 1},    {2, 8, 7, 35, 20, 3, 3, 2, 1, 1},
        /* kh and kw differ; padding larger than the kernel */
        {1, 6, 10, 33, 7, 4, 4, 2, 1, 1},    {1, 5, 8, 9, 4, 5, 2, 3, 2, 1},
        {1, 7, 7, 4, 6, 1, 1, 2, 0, 1},      {1, 8, 5, 3, 4, 2, 2, 3, 0, 1},     /* pixels that no tap covers */
        {2, 5, 21, 7, 7, 3, 3, 1, 1, 7},     {1, 20, 40, 67, 67, 3, 3, 1, 1, 67}, /* depthwise */
        {2, 9, 37, 66, 66, 3, 3, 2, 1, 66},  {1, 8, 8, 5, 5, 3, 3, 2, 0, 5},
        {1, 7, 23, 8, 8, 5, 2, 1, 2, 8},     {1, 9, 9, 4, 4, 1, 1, 2, 0, 4},
    };
    for (size_t i = 0; i < COUNT(SHAPES); i++)
        for (size_t f = 0; f < COUNT(FLOATS); f++)
            for (int extra = 0; extra < 2; extra++) check_conv(FLOATS[f], &SHAPES[i], extra);
}

/* --- update ---------------------------------------------------------------------------------- */

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
    input_step(t);
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
        run_fast(&t, cpu_kernels[t.op], t.alias, 2, results);
        for (int o = 0; o < t.nout; o++)
            assert_memory_equal(results[o], t.in[t.alias[o]].data, operand_bytes(&t.out[o]));
        guarded_free_all(results);
        /* A fresh w has no value yet: it becomes p rounded. */
        t.attr.adamw.fresh = true;
        run_fast(&t, cpu_kernels[t.op], t.alias, 2, results);
        for (int o = 0; o < 3; o++)
            assert_memory_equal(results[o], t.in[t.alias[o]].data, operand_bytes(&t.out[o]));
        void *rounded = mem_alloc(operand_bytes(&t.out[3]));
        dtype_convert(rounded, f, results[0], DT_F32, R * C);
        assert_memory_equal(results[3], rounded, operand_bytes(&t.out[3]));
        mem_free(rounded);
        guarded_free_all(results);
        bump_free(&t.memory);
    }
}

TEST(test_update)
{
    for_each_shape(check_update);
    for (int i = 0; i < 4; i++) {
        struct trial t = trial_of(OP_CLIP);
        input_values(&t, (double[]){i % 2 ? 0.04 : 90}, DT_F64, 0, NULL);
        input_step(&t);
        if (i >= 2) ((struct step_block *)t.in[1].data)->clip_norm = 0;
        output(&t, DT_F32, DIM(2));
        trial_check(&t);
    }
}

#include "kernels_shapes.inc"
#include "kernels_masks.inc"

MAIN(NULL, NULL)
