/*
 * activations.c: ACT and ACT_BWD: an elementwise function, and dy times its derivative.
 *
 * A kind is one line of the list below: its value and its derivative at x. Each line expands to two
 * loops over a tile, so the kind is selected once per tile and not per element. Every element is
 * read before it is written: an output may be an input.
 *
 * These functions are bound by the latency of their dependency chains, not by memory: a
 * multiplication and the addition after it are contracted to one FMA if the processor has it.
 */
#pragma GCC optimize("fp-contract=fast")
#include "cpu/rows/activations.h"

#include "cpu/cpu.h"
#include "cpu/math.h"

/* Below this many elements waking the threads costs more than it saves. */
enum { SERIAL = 16384 };

/* --- values and derivatives -------------------------------------------------------
 *
 * With s = sigmoid(k x): (x s)' = s + k x s (1 - s) serves SILU and QUICK_GELU. GELU is x P(x), P
 * the normal distribution function, which has the density as derivative. GELU_TANH: (1 + tanh u) /
 * 2 = sigmoid(2u), which does not cancel for negative u. */

static inline float swish(float x, float k) { return x * sigmoid_fast(k * x); }
static inline float swish_slope(float x, float k)
{
    float s = sigmoid_fast(k * x);
    return s + k * x * s * (1.0f - s);
}

/*
 * The normal distribution beyond a >= 0, from e = exp(-a^2/2): e times a polynomial of degree 9 in
 * t = (a - 3) / (a + 3), fitted by least squares to the ratio of both up to 14 (relative error
 * 8e-9), where e is 0. It is evaluated in pairs, because a chain of ten has a long latency. Value
 * and derivative share e, and nothing cancels for negative x.
 */
static inline float normal_tail(float a, float e)
{
    const float t = 1.0f - 6.0f / (a + 3.0f), z = t * t, w = z * z;
    const float low = (-0.0462133121f * t + 0.12322503f) * z + (-0.206402618f * t + 0.121513948f);
    const float high = (-0.000339747706f * t + -0.000983847357f) * z + (0.00290467761f * t + 0.00613208864f);
    return e * (low + w * high + w * w * (5.3874903e-05f * t + 0.000115652397f));
}
static inline float normal_cdf(float x, float e)
{
    const float q = normal_tail(float_of_bits(bits_of_float(x) & 0x7fffffffu), e);
    return bits_of_float(x) >> 31 ? q : 1.0f - q;
}
static inline float gelu(float x) { return x * normal_cdf(x, exp_down(-0.5f * x * x)); }
static inline float gelu_slope(float x)
{
    const float e = exp_down(-0.5f * x * x);
    return normal_cdf(x, e) + x * 0.398942280f * e;
}

/* Returns 2u, and its derivative, for u = sqrt(2/pi) (x + 0.044715 x^3). */
static inline float gelu_inner(float x) { return 1.59576912f * x * (1.0f + 0.044715f * x * x); }
static inline float gelu_inner_slope(float x) { return 1.59576912f * (1.0f + 0.134145f * x * x); }
static inline float gelu_tanh_slope(float x)
{
    float s = sigmoid_fast(gelu_inner(x));
    return s + x * gelu_inner_slope(x) * s * (1.0f - s);
}

static inline float sigmoid_slope(float x)
{
    float s = sigmoid_fast(x);
    return s * (1.0f - s);
}
static inline float tanh_slope(float x)
{
    float t = tanh_fast(x);
    return 1.0f - t * t;
}

/* RELU of NaN is NaN; its derivative at 0 is 0. */
#define ACTIVATIONS(A)                                                             \
    A(GELU, gelu(x), gelu_slope(x))                                                \
    A(GELU_TANH, x * sigmoid_fast(gelu_inner(x)), gelu_tanh_slope(x))              \
    A(QUICK_GELU, swish(x, 1.702f), swish_slope(x, 1.702f))                        \
    A(RELU, (x < 0.0f ? 0.0f : x), (x > 0.0f ? 1.0f : 0.0f))                       \
    A(SIGMOID, sigmoid_fast(x), sigmoid_slope(x))                                  \
    A(SILU, swish(x, 1.0f), swish_slope(x, 1.0f))                                  \
    A(TANH, tanh_fast(x), tanh_slope(x))                                           \
    A(EXP, exp_fast(x), exp_fast(x))

#define LOOPS(KIND, VALUE, SLOPE)                                                  \
    static void value_##KIND(float *y, const float *in, int n)                     \
    {                                                                              \
        _Pragma("omp simd") for (int i = 0; i < n; i++)                            \
        {                                                                          \
            const float x = in[i];                                                 \
            y[i] = VALUE;                                                          \
        }                                                                          \
    }                                                                              \
    static void slope_##KIND(float *dx, const float *dy, const float *in, int n)   \
    {                                                                              \
        _Pragma("omp simd") for (int i = 0; i < n; i++)                            \
        {                                                                          \
            const float x = in[i];                                                 \
            dx[i] = dy[i] * (SLOPE);                                               \
        }                                                                          \
    }                                                                              \
    static void both_##KIND(float *y, float *slope, const float *in, int n)        \
    {                                                                              \
        _Pragma("omp simd") for (int i = 0; i < n; i++)                            \
        {                                                                          \
            const float x = in[i];                                                 \
            y[i] = VALUE;                                                          \
            slope[i] = SLOPE;                                                      \
        }                                                                          \
    }
ACTIVATIONS(LOOPS)

static const struct {
    void (*value)(float *, const float *, int);
    void (*slope)(float *, const float *, const float *, int);
    void (*both)(float *, float *, const float *, int);
} tiles[ACT_KINDS] = {
#define TILES(KIND, VALUE, SLOPE) [ACT_##KIND] = {value_##KIND, slope_##KIND, both_##KIND},
    ACTIVATIONS(TILES)
};

/* --- the kernels --------------------------------------------------------------------- */

void act_tile(enum act_kind kind, const struct operand *y, const struct operand *x, int64_t at, int n)
{
    float scratch[TILE];
    const float *xv = row_view(x, at, n, scratch);
    float *yv = row_place(y, at, scratch);
    tiles[kind].value(yv, xv, n);
    row_store(y, at, n, yv);
}

void act_all(enum act_kind kind, const struct operand *y, const struct operand *x, int threads)
{
    const int64_t n = operand_elements(y);
#pragma omp parallel for num_threads(threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) act_tile(kind, y, x, at, row_tile(n - at));
}

static void act_run(const struct launch *l) { act_all(l->attr->act.kind, &l->out[0], &l->in[0], l->threads); }

void act_both(enum act_kind kind, const struct operand *y, float *slope, const struct operand *x, int threads)
{
    const int64_t n = operand_elements(y);
#pragma omp parallel for num_threads(threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float xs[TILE], ys[TILE];
        const int width = row_tile(n - at);
        const float *xv = row_view(x, at, width, xs);
        float *yv = row_place(y, at, ys);
        tiles[kind].both(yv, slope + at, xv, width);
        row_store(y, at, width, yv);
    }
}

static void act_bwd_run(const struct launch *l)
{
    const struct operand *dx = &l->out[0];
    const int64_t n = operand_elements(dx);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float ds[TILE], xs[TILE];
        int width = row_tile(n - at);
        const float *dy = row_view(&l->in[0], at, width, ds), *xv = row_view(&l->in[1], at, width, xs);
        float *to = row_place(dx, at, ds);
        tiles[l->attr->act.kind].slope(to, dy, xv, width);
        row_store(dx, at, width, to);
    }
}

CPU_KERNEL_DENSE(ACT, act);
CPU_KERNEL_DENSE(ACT_BWD, act_bwd);

/* --- ACT_BWD_SUM: ACT_BWD, then SUM_TO of its result; and ACT of x, if that output is given
 * ----------- */

extern const struct kernel cpu_SUM_TO[];

static uint64_t act_bwd_sum_workspace(const struct query *q)
{
    struct query sum = *q;
    sum.in[0] = q->out[0], sum.nin = 1;
    sum.out[0] = q->out[1], sum.nout = 1;
    return cpu_SUM_TO->workspace(&sum);
}

/* Uses the forward's loop, for identical bits. dx and y may be in place of dy and x, in either
 * order. */
static void act_bwd_y(const struct launch *l)
{
    const struct operand *dx = &l->out[0], *y = &l->out[2];
    const int64_t n = operand_elements(dx);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float ds[TILE], xs[TILE], ys[TILE];
        const int width = row_tile(n - at);
        const float *dy = row_view(&l->in[0], at, width, ds), *xv = row_view(&l->in[1], at, width, xs);
        float *to = row_place(dx, at, ds);
        tiles[l->attr->act.kind].value(ys, xv, width);
        tiles[l->attr->act.kind].slope(to, dy, xv, width);
        row_store(dx, at, width, to);
        row_store(y, at, width, ys);
    }
}

static void act_bwd_sum_run(const struct launch *l)
{
    struct launch sum = *l;
    sum.in[0] = l->out[0], sum.nin = 1;
    sum.out[0] = l->out[1], sum.nout = 1;
    if (l->nout > 2) act_bwd_y(l);
    else act_bwd_run(l);
    cpu_SUM_TO->run(&sum);
}

CPU_KERNEL_DENSE_WORK(ACT_BWD_SUM, act_bwd_sum);
