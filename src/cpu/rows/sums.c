/*
 * sums.c: sums over rows and over everything (see cpu.h), in an order that the shape fixes. They
 * are apart from row_view in cpu.c: a compiler that inlines it splits the loops by dtype and may
 * sum in another order.
 */
#include "cpu/cpu.h"

double row_sum(const struct operand *x, int64_t at, int64_t n)
{
    double total = 0;
    float scratch[TILE];
    for (int64_t c = 0; c < n; c += TILE) {
        const int m = row_tile(n - c);
        const float *v = row_view(x, at + c, m, scratch);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < m; i++) sum += v[i];
        total += sum;
    }
    return total;
}

double row_dot(const struct operand *a, const struct operand *b, int64_t at, int64_t n)
{
    double total = 0;
    float as[TILE], bs[TILE];
    for (int64_t c = 0; c < n; c += TILE) {
        const int m = row_tile(n - c);
        const float *av = row_view(a, at + c, m, as), *bv = a == b ? av : row_view(b, at + c, m, bs);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < m; i++) sum += av[i] * bv[i];
        total += sum;
    }
    return total;
}

/* Takes at least 32 rows per block, so that combining is cheap compared with the rows; at most 64
 * blocks, so that the partial sums are small compared with the tensor. */
struct row_blocks row_blocks(int64_t rows)
{
    int64_t each = max_i64(32, (rows + 63) / 64);
    return (struct row_blocks){.n = max_i64(1, (rows + each - 1) / each), .each = each};
}

struct row_blocks launch_row_blocks(const struct launch *l, int64_t rows)
{
    struct row_blocks b = row_blocks(launch_whole(l, rows));
    b.n = max_i64(1, ceil_div(rows, b.each));
    return b;
}

void row_combine(const struct operand *out, const float *partial, int64_t n, bool accumulate, int threads)
{
    const int64_t C = operand_elements(out);
#pragma omp parallel for num_threads(threads) schedule(static) if (n * C > 65536)
    for (int64_t at = 0; at < C; at += TILE) {
        double sum[TILE];
        float scratch[TILE];
        const int width = row_tile(C - at);
        const float *have = accumulate ? row_view(out, at, width, scratch) : NULL;
        for (int i = 0; i < width; i++) sum[i] = have ? have[i] : 0.0;
        for (int64_t b = 0; b < n; b++) {
            const float *row = partial + b * C + at;
            for (int i = 0; i < width; i++) sum[i] += row[i];
        }
        float *to = row_place(out, at, scratch);
        for (int i = 0; i < width; i++) to[i] = (float)sum[i];
        row_store(out, at, width, to);
    }
}

/* --- sums over everything --------------------------------------------------------------------- */

/* Elements per partial sum: a constant, so that the order of additions is fixed. */
enum { REDUCE_CHUNK = 32768 };

uint64_t reduce_workspace(int64_t elements) { return (uint64_t)ceil_div(elements, REDUCE_CHUNK) * sizeof(double); }

static double reduce_chunk(const struct operand *x, bool squares, int64_t from, int64_t to)
{
    double total = 0;
    float scratch[TILE];
    for (int64_t at = from; at < to; at += TILE) {
        const int n = row_tile(to - at);
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
    const int64_t n = operand_elements(x), chunks = ceil_div(n, REDUCE_CHUNK);
#pragma omp parallel for num_threads(threads) schedule(static) if (chunks > 1)
    for (int64_t c = 0; c < chunks; c++)
        work[c] = reduce_chunk(x, squares, c * REDUCE_CHUNK, min_i64(n, (c + 1) * REDUCE_CHUNK));
    double total = 0;
    for (int64_t c = 0; c < chunks; c++) total += work[c];
    return total;
}
