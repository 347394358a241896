/*
 * quantize.c: QUANTIZE_ROWS, QUANTIZE_COLUMNS and DEQUANTIZE_ROWS: numbers in e4m3 with a scale for
 * each row, or for each column of a block of rows (base/e4m3.h). The reference and the fast kernels
 * have the same bits: a maximum has no order, and each number is rounded by itself.
 */
#include "base/e4m3.h"
#include "cpu/cpu.h"
#include "cpu/reference/ref.h"

/* --- the reference ---------------------------------------------------------------------------- */

static uint32_t magnitude(float x) { return shared_bits(x) & 0x7fffffffu; }

/* Returns element i of x, which has a scale for each row if it is e4m3. */
static float value_at(const struct launch *l, int64_t i)
{
    const float x = (float)ref_get(&l->in[0], i);
    return launch_has(l, 1) ? x * (float)ref_get(&l->in[1], i / operand_last(&l->in[0])) : x;
}

/* Finds the scale of `n` elements of x from element `from` on, `step` apart. */
static struct e4m3_scale scale_at(const struct launch *l, int64_t from, int64_t step, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t x = magnitude(value_at(l, from + i * step));
        most = x > most ? x : most;
    }
    return e4m3_scale_of(most);
}

static void ref_quantize_rows(const struct launch *l)
{
    const int64_t K = operand_last(&l->in[0]);
    for (int64_t row = 0; row < operand_rows(&l->in[0]); row++) {
        const struct e4m3_scale s = scale_at(l, row * K, 1, K);
        ref_put(&l->out[1], row, s.scale);
        for (int64_t k = 0; k < K; k++)
            ref_put(&l->out[0], row * K + k, e4m3_to_f32(e4m3_from_f32(value_at(l, row * K + k) * s.factor)));
    }
}

static void ref_quantize_columns(const struct launch *l)
{
    const int64_t K = operand_last(&l->in[0]), M = operand_rows(&l->in[0]), each = l->attr->quantize_columns.rows;
    for (int64_t m = 0; m < M; m += each)
        for (int64_t k = 0; k < K; k++) {
            const struct e4m3_scale s = scale_at(l, m * K + k, K, each);
            ref_put(&l->out[1], m / each * K + k, s.scale);
            for (int64_t i = m; i < m + each; i++)
                ref_put(&l->out[0], k * M + i, e4m3_to_f32(e4m3_from_f32(value_at(l, i * K + k) * s.factor)));
        }
}

static void ref_dequantize_rows(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->in[0]); i++) ref_put(&l->out[0], i, value_at(l, i));
}

/* --- fast ------------------------------------------------------------------------------------- */

/* Columns of QUANTIZE_COLUMNS that are transposed at a time. */
enum { STRIP = 64 };
_Static_assert((int)STRIP <= (int)TILE, "a strip of a row is a tile");

/* Returns elements at .. at+n of a row of x as f32: x's own memory, or decoded into `scratch`. */
static const float *view_row(const struct launch *l, int64_t row, int64_t at, int n, float scratch[TILE])
{
    const struct operand *x = &l->in[0];
    const int64_t from = row * operand_last(x) + at;
    if (x->dtype != DT_E4M3) return row_view(x, from, n, scratch);
    const float scale = ((const float *)l->in[1].data)[row];
    const uint8_t *codes = (const uint8_t *)x->data + from;
#pragma omp simd
    for (int i = 0; i < n; i++) scratch[i] = e4m3_to_f32(codes[i]) * scale;
    return scratch;
}

static void quantize_row(const struct launch *l, int64_t row)
{
    const int64_t K = operand_last(&l->in[0]);
    uint8_t *to = (uint8_t *)l->out[0].data + row * K;
    float scratch[TILE];
    uint32_t most = 0;
    for (int64_t at = 0; at < K; at += TILE) {
        const int n = row_tile(K - at);
        const float *x = view_row(l, row, at, n, scratch);
#pragma omp simd reduction(max : most)
        for (int i = 0; i < n; i++) most = magnitude(x[i]) > most ? magnitude(x[i]) : most;
    }
    const struct e4m3_scale s = e4m3_scale_of(most);
    ((float *)l->out[1].data)[row] = s.scale;
    for (int64_t at = 0; at < K; at += TILE) {
        const int n = row_tile(K - at);
        const float *x = view_row(l, row, at, n, scratch);
#pragma omp simd
        for (int i = 0; i < n; i++) to[at + i] = e4m3_from_f32(x[i] * s.factor);
    }
}

static void quantize_rows_run(const struct launch *l)
{
    const int64_t rows = operand_rows(&l->in[0]);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows > 1)
    for (int64_t row = 0; row < rows; row++) quantize_row(l, row);
}

/* Quantizes columns k .. k+n of the block of rows that begins with m. */
static void quantize_strip(const struct launch *l, int64_t m, int64_t k, int n)
{
    const int64_t K = operand_last(&l->in[0]), M = operand_rows(&l->in[0]), each = l->attr->quantize_columns.rows;
    uint8_t *to = (uint8_t *)l->out[0].data;
    float scratch[TILE], factor[STRIP];
    uint32_t most[STRIP] = {0};
    for (int64_t i = m; i < m + each; i++) {
        const float *x = view_row(l, i, k, n, scratch);
#pragma omp simd
        for (int c = 0; c < n; c++) most[c] = magnitude(x[c]) > most[c] ? magnitude(x[c]) : most[c];
    }
    for (int c = 0; c < n; c++) {
        const struct e4m3_scale s = e4m3_scale_of(most[c]);
        ((float *)l->out[1].data)[m / each * K + k + c] = s.scale;
        factor[c] = s.factor;
    }
    for (int64_t i = m; i < m + each; i++) {
        const float *x = view_row(l, i, k, n, scratch);
        for (int c = 0; c < n; c++) to[(k + c) * M + i] = e4m3_from_f32(x[c] * factor[c]);
    }
}

static void quantize_columns_run(const struct launch *l)
{
    const int64_t K = operand_last(&l->in[0]), M = operand_rows(&l->in[0]), each = l->attr->quantize_columns.rows;
    const int64_t strips = ceil_div(K, STRIP), blocks = M / each;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (strips * blocks > 1)
    for (int64_t i = 0; i < strips * blocks; i++) {
        const int64_t k = i % strips * STRIP;
        quantize_strip(l, i / strips * each, k, (int)min_i64(STRIP, K - k));
    }
}

static void dequantize_rows_run(const struct launch *l)
{
    const int64_t rows = operand_rows(&l->in[0]), K = operand_last(&l->in[0]);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows > 1)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t at = 0; at < K; at += TILE) {
            float scratch[TILE];
            const int n = row_tile(K - at);
            row_store(&l->out[0], row * K + at, n, view_row(l, row, at, n, scratch));
        }
}

/* --- matching --------------------------------------------------------------------------------- */

/* Reports whether the fast kernels read x: dense numbers, or dense codes with their scales. */
static bool is_readable(const struct query *q)
{
    const struct tensor *scale = query_in(q, 1);
    return tensor_is_fast(q->in[0]) || (tensor_is(q->in[0], DT_E4M3) && scale && tensor_is(scale, DT_F32));
}

static bool quantize_rows_match(const struct query *q)
{
    return is_readable(q) && tensor_is(q->out[0], DT_E4M3) && tensor_is(q->out[1], DT_F32);
}
static bool quantize_columns_match(const struct query *q) { return quantize_rows_match(q); }
static bool dequantize_rows_match(const struct query *q) { return is_readable(q) && tensor_is_fast(q->out[0]); }

REF_KERNEL(QUANTIZE_ROWS, quantize_rows);
REF_KERNEL(QUANTIZE_COLUMNS, quantize_columns);
REF_KERNEL(DEQUANTIZE_ROWS, dequantize_rows);
CPU_KERNEL(QUANTIZE_ROWS, quantize_rows);
CPU_KERNEL(QUANTIZE_COLUMNS, quantize_columns);
CPU_KERNEL(DEQUANTIZE_ROWS, dequantize_rows);
