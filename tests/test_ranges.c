/*
 * test_ranges.c: the two inputs that rows of several documents need: ATTENTION's ranges, the keys
 * that each query sees, and ROPE's positions.
 *
 *     the kernels     against the reference, for documents, windows, prefixes, padding and ranges at
 *                     random, at sizes around the blocks of the kernels, on one to three threads
 *     the reference   against finite differences in f64
 *     the same bits   a causal row written as ranges; positions 0, 1, 2, ...
 *     documents       a NaN in one changes no bit of another
 */
#include "trial.h"

#include "cpu/cpu.h"

static const enum dtype FLOATS[] = {DT_F32, DT_BF16, DT_F16};

/* --- ranges ----------------------------------------------------------------------------------- */

enum pattern { PACKED, WHOLE, PREFIX, LEFT_PADDED, RIGHT_PADDED, RANDOM, PATTERNS };

static int32_t below(int64_t n) { return (int32_t)(uniform() * (double)n); }

/* A document of queries t .. t+n and as many keys, or its share of S keys. */
static void document(enum pattern kind, int32_t (*row)[2], int64_t t, int64_t n, int64_t T, int64_t S)
{
    const int32_t begin = (int32_t)(t * S / T), end = (int32_t)((t + n) * S / T),
                  prefix = begin + below(end - begin + 1);
    for (int64_t i = t; i < t + n; i++) {
        const int32_t own = (int32_t)((i + 1) * S / T);
        row[i][0] = begin;
        row[i][1] = kind == WHOLE ? end : kind == PREFIX && own < prefix ? prefix : own;
    }
}

/* Values beyond 0 .. S are allowed and mean nothing more than 0 and S. */
static void at_random(int32_t (*row)[2], int64_t T, int64_t S)
{
    for (int64_t t = 0; t < T; t++) row[t][0] = below(S + 20) - 10, row[t][1] = row[t][0] + below(S / 2 + 2) - 1;
}

static void padded(bool left, int32_t (*row)[2], int64_t T, int64_t S)
{
    const int32_t n = below(S) + 1; /* keys that are no padding */
    for (int64_t t = 0; t < T; t++) {
        const int32_t own = (int32_t)((t + 1) * S / T);
        row[t][0] = left ? (int32_t)S - n : 0;
        row[t][1] = left || own < n ? own : n;
    }
}

/* ranges [B,T,2]; the caller frees them. */
static int32_t *ranges_of(enum pattern kind, int64_t B, int64_t T, int64_t S)
{
    int32_t (*all)[2] = mem_alloc((size_t)(B * T) * sizeof *all);
    for (int64_t b = 0; b < B; b++) {
        int32_t (*row)[2] = all + b * T;
        if (kind == RANDOM) at_random(row, T, S);
        else if (kind == LEFT_PADDED || kind == RIGHT_PADDED) padded(kind == LEFT_PADDED, row, T, S);
        else
            for (int64_t t = 0, n; t < T; t += n)
                document(kind, row, t, n = min_i64(T - t, 1 + below(T / 2 + 1)), T, S);
    }
    return &all[0][0];
}

static int32_t *causal_ranges(int64_t B, int64_t T)
{
    int32_t *r = mem_alloc((size_t)(B * T) * 2 * sizeof *r);
    for (int64_t i = 0; i < B * T; i++) r[2 * i] = 0, r[2 * i + 1] = (int32_t)(i % T + 1);
    return r;
}

/* --- the kernels against the reference -------------------------------------------------------- */

static void check_attention(enum dtype f, struct heads n, enum pattern kind)
{
    struct trial forward, t;
    int32_t *ranges = ranges_of(kind, n.B, n.T, n.S);
    n.ranges = ranges;
    attention_forward(&forward, f, DT_F32, &n);
    run_oracle(&forward);
    attention_backward(&t, &forward, f, DT_F32, &n);
    trial_check(&t);
    trial_check(&forward);
    mem_free(ranges);
}

TEST(test_attention)
{
    static const struct heads SHAPES[] = {
        {1, 1, 1, 1, 1, 2},
        {2, 7, 7, 4, 2, 6},
        {1, 65, 65, 3, 1, 16},
        {2, 3, 9, 2, 2, 64},
        {1, 70, 33, 1, 1, 12, .window = 5},
        {1, 97, 97, 2, 2, 8},
        {2, 193, 193, 2, 1, 4},
        {1, 300, 300, 1, 1, 8, .window = 40},
        {1, 40, 200, 2, 1, 8, .masked = true},
        {2, 130, 130, 1, 1, 4, .masked = true, .window = 30},
    };
    for (size_t i = 0; i < COUNT(SHAPES); i++)
        for (int kind = 0; kind < PATTERNS; kind++)
            check_attention(FLOATS[(i + (size_t)kind) % COUNT(FLOATS)], SHAPES[i], kind);
    for (int kind = 0; kind < PATTERNS; kind++) check_attention(DT_F32, (struct heads){1, 401, 401, 2, 1, 8}, kind);
}

/* --- the reference against finite differences ------------------------------------------------- */

/* sum(dy * o) with input i moved by h along u. */
static double along(struct trial *t, int i, const double *u, double h, const double *dy)
{
    const int64_t n = operand_elements(&t->in[i]);
    double *x = t->in[i].data, *before = mem_alloc((size_t)n * sizeof *before), sum = 0;
    memcpy(before, x, (size_t)n * sizeof *x);
    for (int64_t k = 0; k < n; k++) x[k] += h * u[k];
    run_oracle(t);
    for (int64_t k = 0; k < operand_elements(&t->out[0]); k++) sum += dy[k] * t->oracle[0][k];
    memcpy(x, before, (size_t)n * sizeof *x);
    mem_free(before);
    return sum;
}

static void check_gradient(struct trial *forward, int i, const double *dy, const double *gradient)
{
    const int64_t n = operand_elements(&forward->in[i]);
    const double h = 1e-5;
    double *u = mem_alloc((size_t)n * sizeof *u), want = 0, size = 0;
    char text[512];
    for (int64_t k = 0; k < n; k++) u[k] = normal(), want += u[k] * gradient[k], size += fabs(u[k] * gradient[k]);
    const double got = (along(forward, i, u, h, dy) - along(forward, i, u, -h, dy)) / (2 * h);
    mem_free(u);
    if (!(fabs(got - want) <= 1e-8 * (size + 1e-3)))
        fail_msg("%s: gradient of input %d: %.12g by differences, %.12g by the kernel", describe(forward, text), i, got,
                 want);
}

TEST(test_differences)
{
    static const struct heads SHAPES[] = {{2, 9, 9, 2, 1, 4},
                                          {1, 5, 12, 2, 2, 2, .window = 3},
                                          {1, 12, 12, 1, 1, 3, .masked = true}};
    for (size_t s = 0; s < COUNT(SHAPES); s++)
        for (int kind = 0; kind < PATTERNS; kind++) {
            struct trial forward, t;
            struct heads n = SHAPES[s];
            int32_t *ranges = ranges_of(kind, n.B, n.T, n.S);
            n.ranges = ranges;
            attention_forward(&forward, DT_F64, DT_F64, &n);
            run_oracle(&forward);
            attention_backward(&t, &forward, DT_F64, DT_F64, &n);
            run_oracle(&t);
            for (int i = 0; i < 3; i++) check_gradient(&forward, i, t.in[0].data, t.oracle[i]);
            bump_free(&t.memory);
            bump_free(&forward.memory);
            mem_free(ranges);
        }
}

/* --- the same bits ---------------------------------------------------------------------------- */

/* The results of a kernel on the trial's inputs; guarded_free_all frees them. */
static void results_of(struct trial *t, const char *kernel, void *out[MAX_OUT])
{
    run_fast(t, cpu_kernel_named(t->op, kernel), t->alias, 2, out);
}

static void assert_same(const struct trial *t, void *const *a, void *const *b)
{
    char text[512];
    for (int o = 0; o < t->nout; o++)
        if (memcmp(a[o], b[o], operand_bytes(&t->out[o])))
            fail_msg("%s: the bits of output %d differ", describe(t, text), o);
}

/* Makes the ranges an input of a trial that has none, and lifts its causal mask. */
static void add_ranges(struct trial *t, struct heads n, const int32_t *ranges)
{
    n.ranges = ranges;
    input_ranges(t, &n);
    t->attr.attention.causal = false;
}

TEST(test_causal_bits)
{
    static const struct heads SHAPES[] = {{2, 65, 65, 4, 2, 16, true},
                                          {1, 401, 401, 2, 1, 20, true},
                                          {1, 350, 350, 1, 1, 8, true, .window = 70},
                                          {1, 300, 300, 1, 1, 8, true, .masked = true}};
    for (size_t s = 0; s < COUNT(SHAPES); s++)
        for (size_t f = 0; f < COUNT(FLOATS); f++) {
            const struct heads n = SHAPES[s];
            struct trial forward, t;
            void *causal[MAX_OUT], *ranged[MAX_OUT];
            int32_t *ranges = causal_ranges(n.B, n.T);
            attention_forward(&forward, FLOATS[f], DT_F32, &n);
            run_oracle(&forward);
            attention_backward(&t, &forward, FLOATS[f], DT_F32, &n);
            results_of(&forward, "cpu_attention", causal);
            add_ranges(&forward, n, ranges);
            results_of(&forward, "cpu_attention", ranged);
            assert_same(&forward, causal, ranged);
            guarded_free_all(causal), guarded_free_all(ranged);
            results_of(&t, "cpu_attention_bwd", causal);
            add_ranges(&t, n, ranges);
            results_of(&t, "cpu_attention_bwd", ranged);
            assert_same(&t, causal, ranged);
            guarded_free_all(causal), guarded_free_all(ranged);
            bump_free(&t.memory);
            bump_free(&forward.memory);
            mem_free(ranges);
        }
}

/* --- documents -------------------------------------------------------------------------------- */

/* Documents of these lengths in a row of ROW tokens; the last tokens are padding without keys. */
enum { ROW = 420, HEADS = 2, WIDTH = 8 };
static const int64_t LENGTHS[] = {50, 1, 139, 3, 200, 7};

static int32_t *row_of_documents(int64_t document[ROW])
{
    int32_t *r = mem_alloc(ROW * 2 * sizeof *r);
    int64_t t = 0;
    for (size_t i = 0; i < COUNT(LENGTHS); i++)
        for (int64_t begin = t; t < begin + LENGTHS[i]; t++)
            r[2 * t] = (int32_t)begin, r[2 * t + 1] = (int32_t)t + 1, document[t] = (int64_t)i;
    for (; t < ROW; t++) r[2 * t] = r[2 * t + 1] = 0, document[t] = -1;
    return r;
}

static void poison(const struct operand *x, const int64_t document[ROW], int64_t bad)
{
    const int64_t row = operand_elements(x) / ROW;
    for (int64_t i = 0; i < operand_elements(x); i++)
        if (document[i / row] == bad) dtype_store(x->data, x->dtype, i, i % 3 ? NAN : INFINITY);
}

/* Outside the document `bad`, results a and b have the same bits. Tokens are dimension `axis`. */
static void assert_apart(const struct trial *t, int o, int axis, const int64_t document[ROW], int64_t bad,
                         const void *a, const void *b)
{
    const struct operand *x = &t->out[o];
    const size_t size = dtype_size(x->dtype);
    char text[512];
    for (int64_t i = 0; i < operand_elements(x); i++) {
        const int64_t token = i / x->stride[axis] % ROW;
        if (document[token] != bad &&
            memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)i * size, size))
            fail_msg("%s: a NaN in document %lld changes output %d at token %lld", describe(t, text), (long long)bad, o,
                     (long long)token);
        if (document[token] < 0 && axis == 1) assert_true(dtype_load(a, x->dtype, i) == 0);
    }
}

static void check_documents(struct trial *t, const char *kernel, const int64_t document[ROW])
{
    void *clean[MAX_OUT], *spoilt[MAX_OUT];
    results_of(t, kernel, clean);
    for (int64_t bad = -1; bad < (int64_t)COUNT(LENGTHS); bad++) {
        struct trial other = *t;
        for (int i = 0; i < t->nin; i++) {
            if (!t->in[i].data || !dtype_is_float(t->in[i].dtype)) continue;
            other.in[i].data = mem_alloc(operand_bytes(&t->in[i]));
            memcpy(other.in[i].data, t->in[i].data, operand_bytes(&t->in[i]));
            if (t->in[i].rank == 4) poison(&other.in[i], document, bad); /* q, k, v, o, do; not lse */
        }
        results_of(&other, kernel, spoilt);
        for (int o = 0; o < t->nout; o++)
            assert_apart(t, o, t->out[o].rank == 3 ? 2 : 1, document, bad, clean[o], spoilt[o]);
        guarded_free_all(spoilt);
        for (int i = 0; i < t->nin; i++)
            if (other.in[i].data != t->in[i].data) mem_free(other.in[i].data);
    }
    guarded_free_all(clean);
}

TEST(test_documents)
{
    int64_t document[ROW];
    int32_t *ranges = row_of_documents(document);
    for (size_t f = 0; f < COUNT(FLOATS); f++)
        for (int windowed = 0; windowed < 2; windowed++) {
            const struct heads n = {1, ROW, ROW, HEADS, 1, WIDTH, .window = windowed ? 30 : 0, .ranges = ranges};
            struct trial forward, t;
            attention_forward(&forward, FLOATS[f], DT_F32, &n);
            run_oracle(&forward);
            attention_backward(&t, &forward, FLOATS[f], DT_F32, &n);
            check_documents(&forward, "cpu_attention", document);
            check_documents(&t, "cpu_attention_bwd", document);
            bump_free(&t.memory);
            bump_free(&forward.memory);
        }
    mem_free(ranges);
}

/* --- positions -------------------------------------------------------------------------------- */

static struct trial rope(enum dtype f, int64_t B, int64_t T, int64_t half)
{
    struct trial t = trial_of(OP_ROPE);
    t.attr.rope.scale = 0.75f;
    t.attr.rope.inverse = T % 2;
    input_normal(&t, f, DIM(B, T, 3, 2 * half));
    struct operand *freq = input(&t, DT_F32, DIM(half));
    for (int64_t i = 0; i < half; i++) ((float *)freq->data)[i] = powf(10000, -(float)i / (float)half);
    output(&t, f, DIM(B, T, 3, 2 * half));
    return t;
}

TEST(test_positions)
{
    for (size_t f = 0; f < COUNT(FLOATS); f++)
        for (int three = 0; three < 2; three++) {
            struct trial t = rope(FLOATS[f], 2, 33 + three, 140);
            struct operand *p = three ? input(&t, DT_I32, DIM(2, 34, 3)) : input(&t, DT_I32, DIM(2, 33));
            for (int64_t i = 0; i < operand_elements(p); i++) ((int32_t *)p->data)[i] = below(3000);
            if (three) t.attr.rope.sections[0] = 40, t.attr.rope.sections[1] = 0, t.attr.rope.sections[2] = 100;
            trial_check_in_place(&t, (const int[]){0, -1, -1, -1});
        }
}

/* Positions 0, 1, 2, ... and three times the same position are ROPE without positions. */
TEST(test_position_bits)
{
    for (int three = 0; three < 2; three++) {
        enum { B = 2, T = 40 };
        struct trial t = rope(DT_F32, B, T, 9);
        void *plain[MAX_OUT], *given[MAX_OUT];
        results_of(&t, "cpu_rope", plain);
        struct operand *p = three ? input(&t, DT_I32, DIM(B, T, 3)) : input(&t, DT_I32, DIM(B, T));
        for (int64_t i = 0; i < operand_elements(p); i++) ((int32_t *)p->data)[i] = (int32_t)(i / (three ? 3 : 1) % T);
        if (three) t.attr.rope.sections[0] = 2, t.attr.rope.sections[1] = 3, t.attr.rope.sections[2] = 4;
        results_of(&t, "cpu_rope", given);
        assert_same(&t, plain, given);
        guarded_free_all(plain), guarded_free_all(given);
        bump_free(&t.memory);
    }
}

MAIN(NULL, NULL)
