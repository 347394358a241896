/*
 * rows.c: tiles of f32 over dense rows of any float dtype (see rows.h).
 *
 * dtype_convert rounds to nearest even and its loops vectorise; f32 operands are never copied.
 */
#include "cpu/rows.h"

#include <string.h>

/* Element `at` of a dense operand. */
static void *row_at(const struct operand *x, int64_t at)
{
    return (char *)x->data + at * dtype_size(x->dtype);
}

const float *row_view(const struct operand *x, int64_t at, int n, float scratch[TILE])
{
    if (x->dtype == DT_F32) return row_at(x, at);
    dtype_convert(scratch, DT_F32, row_at(x, at), x->dtype, n);
    return scratch;
}

float *row_place(const struct operand *x, int64_t at, float scratch[TILE])
{
    return x->dtype == DT_F32 ? row_at(x, at) : scratch;
}

void row_store(const struct operand *x, int64_t at, int n, const float *from)
{
    if (row_at(x, at) != (const void *)from) dtype_convert(row_at(x, at), x->dtype, from, DT_F32, n);
}

void row_sum(const struct operand *r, const struct operand *a, const struct operand *b, int64_t at, int64_t n)
{
    float as[TILE], bs[TILE];
    for (int64_t c = 0; c < n; c += TILE) {
        const int m = row_tile(n - c);
        const float *av = row_view(a, at + c, m, as), *bv = row_view(b, at + c, m, bs);
        float *to = row_place(r, at + c, as);
#pragma omp simd
        for (int i = 0; i < m; i++) to[i] = av[i] + bv[i];
        row_store(r, at + c, m, to);
    }
}

void row_copy(const struct operand *to, const struct operand *from, int threads)
{
    enum { RUN = 1 << 15 }; /* bytes */
    const int64_t bytes = operand_elements(to) * dtype_size(to->dtype);
    if (to->data == from->data) return;
#pragma omp parallel for num_threads(threads) schedule(static) if (bytes > 4 * RUN)
    for (int64_t at = 0; at < bytes; at += RUN)
        memcpy((char *)to->data + at, (const char *)from->data + at, (size_t)min_i64(RUN, bytes - at));
}

/* At least 32 rows per block, so that combining is cheap compared with the rows; at most 64 blocks,
 * so that the partial sums are small compared with the tensor. */
struct row_blocks row_blocks(int64_t rows)
{
    int64_t each = max_i64(32, (rows + 63) / 64);
    return (struct row_blocks){.n = max_i64(1, (rows + each - 1) / each), .each = each};
}

void row_combine(float *out, const float *partial, int64_t n, int64_t C, bool accumulate, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (n * C > 65536)
    for (int64_t tile = 0; tile < row_tiles(C); tile++) {
        int64_t at = tile * TILE;
        int width = row_tile(C - at);
        double sum[TILE];
        for (int i = 0; i < width; i++) sum[i] = accumulate ? out[at + i] : 0.0;
        for (int64_t b = 0; b < n; b++) {
            const float *row = partial + b * C + at;
            for (int i = 0; i < width; i++) sum[i] += row[i];
        }
        for (int i = 0; i < width; i++) out[at + i] = (float)sum[i];
    }
}

bool tensor_is(const struct tensor *t, enum dtype dtype)
{
    return t && t->dtype == dtype && tensor_is_dense(t);
}

bool tensor_is_fast(const struct tensor *t)
{
    return tensor_is(t, DT_F32) || tensor_is(t, DT_BF16) || tensor_is(t, DT_F16);
}

bool query_is_fast(const struct query *q)
{
    for (int i = 0; i < q->nin; i++)
        if (q->in[i] && !tensor_is_fast(q->in[i])) return false;
    for (int i = 0; i < q->nout; i++)
        if (q->out[i] && !tensor_is_fast(q->out[i])) return false;
    return true;
}
