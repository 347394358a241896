/*
 * elementwise.c: elementwise kernels, and the sum over all elements.
 *
 * Each is a loop over tiles that threads share, so no result depends on the thread count. The inner
 * functions work on f32 tiles, for any storage dtype. Every element is read before it is written:
 * an output may be an input.
 */
#include <string.h>

#include "cpu/rows/broadcast.h"
#include "cpu/cpu.h"
#include "cpu/math.h"
#include "cpu/rows.h"

/* Below this many elements waking the threads costs more than it saves. */
enum { SERIAL = 16384 };

/* --- two inputs, one output --------------------------------------------------- */

static void tile_add(float *y, const float *a, const float *b, int n)
{
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = a[i] + b[i];
}

static void tile_mul(float *y, const float *a, const float *b, int n)
{
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = a[i] * b[i];
}

static void tile_silu_gate(float *y, const float *gate, const float *up, int n)
{
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = gate[i] * sigmoid_fast(gate[i]) * up[i];
}

static void binary_run(const struct launch *l, void (*tile)(float *, const float *, const float *, int))
{
    const struct operand *a = &l->in[0], *b = &l->in[1], *y = &l->out[0];
    const int64_t n = operand_elements(y);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float as[TILE], bs[TILE];
        int width = row_tile(n - at);
        const float *av = row_view(a, at, width, as), *bv = row_view(b, at, width, bs);
        float *yv = row_place(y, at, as);
        tile(yv, av, bv, width);
        row_store(y, at, width, yv);
    }
}

static bool add_match(const struct query *q) { return query_is_fast(q); }
static bool mul_match(const struct query *q) { return query_is_fast(q); }
static bool silu_gate_match(const struct query *q) { return query_is_fast(q); }
static bool accumulate_match(const struct query *q) { return query_is_fast(q); }

/* Both inputs have all elements, or one is broadcast. */
static void pair_run(const struct launch *l, void (*tile)(float *, const float *, const float *, int))
{
    const int64_t n = operand_elements(&l->out[0]);
    if (operand_elements(&l->in[0]) == n && operand_elements(&l->in[1]) == n) binary_run(l, tile);
    else broadcast_run(l, tile);
}

static void add_run(const struct launch *l) { pair_run(l, tile_add); }
static void mul_run(const struct launch *l) { pair_run(l, tile_mul); }
static void silu_gate_run(const struct launch *l) { binary_run(l, tile_silu_gate); }
static void accumulate_run(const struct launch *l)
{
    CHECK(l->in[1].data == l->out[0].data, "the accumulator is updated in place");
    binary_run(l, tile_add);
}

/* --- silu gate backward --------------------------------------------------------
 *
 * With s = sigmoid(g):  silu' = s (1 + g (1 - s)),
 *     dgate = dy up silu',  dup = dy g s,  and y = g s up, recomputed if that output is given.
 */

static bool silu_gate_bwd_match(const struct query *q) { return query_is_fast(q); }

static void tile_silu_gate_bwd(float *dgate, float *dup, const float *dy, const float *gate,
                               const float *up, int n)
{
#pragma omp simd
    for (int i = 0; i < n; i++) {
        float d = dy[i], g = gate[i], u = up[i], s = sigmoid_fast(g);
        dgate[i] = d * u * s * (1.0f + g * (1.0f - s));
        dup[i] = d * g * s;
    }
}

static void tile_silu_gate_bwd_y(float *dgate, float *dup, float *y, const float *dy, const float *gate,
                                 const float *up, int n)
{
#pragma omp simd
    for (int i = 0; i < n; i++) {
        float d = dy[i], g = gate[i], u = up[i], s = sigmoid_fast(g);
        dgate[i] = d * u * s * (1.0f + g * (1.0f - s));
        dup[i] = d * g * s;
        y[i] = g * s * u;
    }
}

static void silu_gate_bwd_run(const struct launch *l)
{
    const int64_t n = operand_elements(&l->in[0]);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float ds[TILE], gs[TILE], us[TILE];
        int width = row_tile(n - at);
        const float *dy = row_view(&l->in[0], at, width, ds);
        const float *gate = row_view(&l->in[1], at, width, gs);
        const float *up = row_view(&l->in[2], at, width, us);
        float *dgate = row_place(&l->out[0], at, gs), *dup = row_place(&l->out[1], at, us);
        float *y = l->nout > 2 ? row_place(&l->out[2], at, ds) : NULL;
        if (y) tile_silu_gate_bwd_y(dgate, dup, y, dy, gate, up, width);
        else tile_silu_gate_bwd(dgate, dup, dy, gate, up, width);
        row_store(&l->out[0], at, width, dgate);
        row_store(&l->out[1], at, width, dup);
        if (y) row_store(&l->out[2], at, width, y);
    }
}

/* --- one input, one output --------------------------------------------------------- */

static bool scale_match(const struct query *q) { return query_is_fast(q); }

static void scale_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const int64_t n = operand_elements(y);
    const float value = (float)l->attr->scale.value;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float scratch[TILE];
        int width = row_tile(n - at);
        const float *xv = row_view(x, at, width, scratch);
        float *yv = row_place(y, at, scratch);
#pragma omp simd
        for (int i = 0; i < width; i++) yv[i] = xv[i] * value;
        row_store(y, at, width, yv);
    }
}

static bool cast_match(const struct query *q) { return query_is_fast(q); }

static void cast_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const int64_t n = operand_elements(y);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float scratch[TILE];
        int width = row_tile(n - at);
        /* Converts directly into an f32 output; another output takes the second step. */
        row_store(y, at, width, row_view(x, at, width, row_place(y, at, scratch)));
    }
}

/* --- filling: any dtype ----------------------------------------------------- */

/* The first element is set; copies its bytes to the others. */
static void replicate(const struct operand *y, int threads)
{
    const int64_t n = operand_elements(y), size = dtype_size(y->dtype);
    char *to = y->data;
#pragma omp parallel for num_threads(threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        int width = row_tile(n - at);
        /* Constant sizes, so that each becomes a loop of plain stores. */
        for (int i = at == 0; i < width; i++) {
            char *p = to + (at + i) * size;
            if (size == 4) memcpy(p, to, 4);
            else if (size == 2) memcpy(p, to, 2);
            else memcpy(p, to, (size_t)size);
        }
    }
}

static bool fill_match(const struct query *q) { return tensor_is_dense(q->out[0]); }

static void fill_run(const struct launch *l)
{
    if (operand_elements(&l->out[0]) == 0) return;
    dtype_store(l->out[0].data, l->out[0].dtype, 0, l->attr->fill.value);
    replicate(&l->out[0], l->threads);
}

static bool spread_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is_fast(q->out[0]);
}

static void spread_run(const struct launch *l)
{
    if (operand_elements(&l->out[0]) == 0) return;
    dtype_convert(l->out[0].data, l->out[0].dtype, l->in[0].data, l->in[0].dtype, 1);
    replicate(&l->out[0], l->threads);
}

/* --- sums over everything ----------------------------------------------------------------- */

/* Elements per partial sum: a constant, so that the order of additions is fixed. */
enum { REDUCE_CHUNK = 32768 };

uint64_t reduce_workspace(int64_t elements)
{
    return (uint64_t)((elements + REDUCE_CHUNK - 1) / REDUCE_CHUNK) * sizeof(double);
}

static double reduce_chunk(const struct operand *x, bool squares, int64_t from, int64_t to)
{
    double total = 0;
    float scratch[TILE];
    for (int64_t at = from; at < to; at += TILE) {
        int n = row_tile(to - at);
        const float *v = row_view(x, at, n, scratch);
        double sum = 0;
        if (squares) {
#pragma omp simd reduction(+ : sum)
            for (int i = 0; i < n; i++) sum += (double)v[i] * (double)v[i];
        } else {
#pragma omp simd reduction(+ : sum)
            for (int i = 0; i < n; i++) sum += (double)v[i];
        }
        total += sum;
    }
    return total;
}

double reduce_sum(const struct operand *x, bool squares, double *work, int threads)
{
    const int64_t n = operand_elements(x), chunks = (n + REDUCE_CHUNK - 1) / REDUCE_CHUNK;
#pragma omp parallel for num_threads(threads) schedule(static) if (chunks > 1)
    for (int64_t c = 0; c < chunks; c++)
        work[c] = reduce_chunk(x, squares, c * REDUCE_CHUNK, min_i64(n, (c + 1) * REDUCE_CHUNK));
    double total = 0;
    for (int64_t c = 0; c < chunks; c++) total += work[c];
    return total;
}

static bool sum_match(const struct query *q) { return query_is_fast(q) && q->out[0]->dtype == DT_F32; }
static uint64_t sum_workspace(const struct query *q) { return reduce_workspace(tensor_elements(q->in[0])); }
static void sum_run(const struct launch *l)
{
    *(float *)l->out[0].data = (float)reduce_sum(&l->in[0], false, l->work, l->threads);
}

CPU_KERNEL(SILU_GATE, silu_gate);
CPU_KERNEL(SILU_GATE_BWD, silu_gate_bwd);
CPU_KERNEL(SILU_GATE_BWD_Y, silu_gate_bwd);
CPU_KERNEL(ADD, add);
CPU_KERNEL(MUL, mul);
CPU_KERNEL(SCALE, scale);
CPU_KERNEL(CAST, cast);
CPU_KERNEL_WORK(SUM, sum);
CPU_KERNEL(SPREAD, spread);
CPU_KERNEL(ACCUMULATE, accumulate);
CPU_KERNEL(FILL, fill);
