/*
 * tokens.c: EMBEDDING and its gradient, the label shift, the cross-entropy over the vocabulary,
 * and TOPK with its reference.
 *
 * Ids and labels are in range: the loader has checked them. A label of IGNORED adds nothing to the
 * loss and gets a gradient of zero.
 *
 * The logits are the largest activation of a language model, so they are read once in the forward
 * (an online log-sum-exp) and once in the backward, where the gradient may replace them in place.
 */
#include <math.h>

#include "cpu/cpu.h"
#include "cpu/math.h"
#include "cpu/reference/ref.h"

enum { IGNORED = -100 };

/* --- embedding --------------------------------------------------------------- */

static bool embedding_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_I32) && tensor_is_fast(q->in[1]) &&
           tensor_is(q->out[0], q->in[1]->dtype);
}

static void embedding_run(const struct launch *l)
{
    const int32_t *ids = l->in[0].data;
    const int64_t rows = operand_elements(&l->in[0]);
    const size_t bytes = (size_t)operand_last(&l->in[1]) * dtype_size(l->in[1].dtype);
    const char *table = l->in[1].data;
    char *out = l->out[0].data;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * bytes > 65536)
    for (int64_t r = 0; r < rows; r++) {
        if (ids[r] < 0) memset(out + (size_t)r * bytes, 0, bytes);
        else memcpy(out + (size_t)r * bytes, table + (size_t)ids[r] * bytes, bytes);
    }
}

/* --- embedding gradient ----------------------------------------------------------
 *
 * Ids repeat, so threads cannot share the rows. They share the columns: a strip of columns goes
 * through all rows in order, in one thread. */

enum { STRIP = 64 };

static bool embedding_dw_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_I32) && tensor_is_fast(q->in[1]) && tensor_is(q->out[0], DT_F32) &&
           (!query_in(q, 2) || tensor_is(query_in(q, 2), DT_F32));
}

static void clear(float *x, int64_t n, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (n > 65536)
    for (int64_t at = 0; at < n; at += 65536)
        memset(x + at, 0, (size_t)min_i64(65536, n - at) * sizeof *x);
}

static void embedding_dw_run(const struct launch *l)
{
    const int32_t *ids = l->in[0].data;
    const struct operand *dy = &l->in[1];
    const int64_t rows = operand_elements(&l->in[0]), C = operand_last(dy);
    const int32_t padding = (int32_t)launch_padding(l); /* below 0: none */
    float *dw = l->out[0].data; // [V,C]
    if (launch_has(l, 2)) CHECK(l->in[2].data == dw, "the accumulator is updated in place");
    else clear(dw, operand_elements(&l->out[0]), l->threads);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * C > 8192)
    for (int64_t c = 0; c < C; c += STRIP) {
        float scratch[TILE];
        int n = (int)min_i64(STRIP, C - c);
        for (int64_t r = 0; r < rows; r++) {
            if (ids[r] == padding || ids[r] < 0) continue;
            const float *d = row_view(dy, r * C + c, n, scratch);
            float *to = dw + ids[r] * C + c;
#pragma omp simd
            for (int i = 0; i < n; i++) to[i] += d[i];
        }
    }
}

/* --- labels ------------------------------------------------------------------------- */

static bool shift_labels_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_I32) && tensor_is(q->out[0], DT_I32);
}

static void shift_labels_run(const struct launch *l)
{
    const int32_t *in = l->in[0].data;
    int32_t *out = l->out[0].data;
    const int64_t B = operand_rows(&l->in[0]), T = operand_last(&l->in[0]);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++) out[b * T + t] = t + 1 < T ? in[b * T + t + 1] : IGNORED;
}

static bool labelled_first_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_I32) && tensor_is(q->out[0], DT_I32) && tensor_is(q->out[1], DT_I32) &&
           tensor_is(q->out[2], DT_I32);
}

static void labelled_first_run(const struct launch *l)
{
    const int32_t *in = l->in[0].data;
    int32_t *labels = l->out[0].data, *index = l->out[1].data, *position = l->out[2].data;
    const int32_t rows = (int32_t)operand_elements(&l->in[0]);
    int32_t n = 0;
    for (int32_t r = 0; r < rows; r++) {
        position[r] = in[r] == IGNORED ? -1 : n;
        if (in[r] == IGNORED) continue;
        labels[n] = in[r];
        index[n++] = r;
    }
    for (; n < rows; n++) {
        labels[n] = IGNORED;
        index[n] = -1;
    }
}

static bool used_first_match(const struct query *q)
{
    return tensor_is(q->in[0], DT_I32) && tensor_is(q->out[0], DT_I32);
}

static void used_first_run(const struct launch *l)
{
    const int32_t *index = l->in[0].data; // [B,T]
    int32_t *used = l->out[0].data, n = 0; // marks, which the numbers then replace from the first one on
    const int64_t B = operand_rows(&l->in[0]), T = operand_last(&l->in[0]), blocks = l->attr->used_first.blocks;
    const struct attr_used_first *a = &l->attr->used_first;
    const struct feature_blocks of = {a->rows, a->first, a->first_rows};
    const int32_t room = (int32_t)l->attr->used_first.room;
    for (int32_t i = 0; i < room; i++) used[i] = 0;
    for (int64_t i = 0; i < B * T; i++) {
        const int64_t block = index[i] < 0 ? blocks : shared_block_of(of, index[i]);
        if (block < blocks) used[i / T * blocks + block] = 1;
    }
    for (int32_t i = 0; i < room; i++)
        if (used[i]) used[n++] = i;
    for (; n < room; n++) used[n] = -1;
}

/* --- cross entropy -------------------------------------------------------------------- */

static bool xent_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_I32) && tensor_is(q->out[0], DT_F32) &&
           tensor_is(q->out[1], DT_F32);
}

/* Returns the bytes of one f64 loss per row; they are summed in row order. */
static uint64_t xent_workspace(const struct query *q)
{
    return (uint64_t)tensor_rows(q->in[0]) * sizeof(double);
}

static float tile_max(const float *x, int n)
{
    float max = -INFINITY;
#pragma omp simd reduction(max : max)
    for (int i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    return max;
}

static float tile_sum_exp(const float *x, float shift, int n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) sum += exp_fast(x[i] - shift);
    return sum;
}

/* Returns log(sum(exp)) of a row in one pass: `sum` is relative to the maximum so far, and is
 * rescaled when the maximum grows. A NaN anywhere propagates to the sum. */
static double row_log_sum_exp(const struct operand *x, int64_t at, int64_t V)
{
    float max = -INFINITY, scratch[TILE];
    double sum = 0;
    for (int64_t v = 0; v < V; v += TILE) {
        int n = row_tile(V - v);
        const float *tile = row_view(x, at + v, n, scratch);
        float top = tile_max(tile, n);
        if (top > max) {
            sum *= exp((double)max - (double)top);
            max = top;
        }
        /* Only -inf so far: with any finite shift exp() of each of them is 0. */
        sum += tile_sum_exp(tile, max == -INFINITY ? 0.0f : max, n);
    }
    return (double)max + log(sum);
}

static void xent_run(const struct launch *l)
{
    const struct operand *logits = &l->in[0];
    const int32_t *labels = l->in[1].data;
    const float inv_count = *(const float *)l->in[2].data;
    const int64_t rows = operand_rows(logits), V = operand_last(logits);
    float *lse = l->out[1].data;
    double *loss = l->work; // [rows]
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * V > 4096)
    for (int64_t r = 0; r < rows; r++) {
        float scratch[TILE];
        double value = row_log_sum_exp(logits, r * V, V);
        lse[r] = (float)value;
        loss[r] = labels[r] == IGNORED ? 0 : value - *row_view(logits, r * V + labels[r], 1, scratch);
    }
    double total = 0;
    for (int64_t r = 0; r < rows; r++) total += loss[r];
    *(float *)l->out[0].data = (float)(total * inv_count);
}

static bool xent_bwd_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_I32) && tensor_is(q->in[3], DT_F32) &&
           tensor_is(q->in[4], DT_F32) && tensor_is_fast(q->out[0]);
}

/* Writes one row: (softmax - onehot) * factor; zeros if the label is ignored. */
static void xent_row_bwd(const struct operand *out, const struct operand *logits, int64_t at, int64_t V,
                         int32_t label, float lse, float factor)
{
    float scratch[TILE];
    for (int64_t v = 0; v < V; v += TILE) {
        int n = row_tile(V - v);
        float *d = row_place(out, at + v, scratch);
        if (label == IGNORED) {
            memset(d, 0, (size_t)n * sizeof *d);
        } else {
            const float *x = row_view(logits, at + v, n, scratch);
#pragma omp simd
            for (int i = 0; i < n; i++) d[i] = exp_fast(x[i] - lse) * factor;
            if (label >= v && label < v + n) d[label - v] -= factor;
        }
        row_store(out, at + v, n, d);
    }
}

static void xent_bwd_run(const struct launch *l)
{
    const struct operand *logits = &l->in[0];
    const int32_t *labels = l->in[1].data;
    const float *lse = l->in[3].data, factor = *(const float *)l->in[2].data * *(const float *)l->in[4].data;
    const int64_t rows = operand_rows(logits), V = operand_last(logits);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * V > 4096)
    for (int64_t r = 0; r < rows; r++)
        xent_row_bwd(&l->out[0], logits, r * V, V, labels[r], lse[r], factor);
}

CPU_KERNEL(EMBEDDING, embedding);
CPU_KERNEL(EMBEDDING_DW, embedding_dw);
CPU_KERNEL(SHIFT_LABELS, shift_labels);
CPU_KERNEL(LABELLED_FIRST, labelled_first);
CPU_KERNEL(USED_FIRST, used_first);
CPU_KERNEL_WORK(XENT, xent);
CPU_KERNEL(XENT_BWD, xent_bwd);

/* --- TOPK -------------------------------------------------------------------------------------
 *
 * An element is kept if fewer than k others come before it, where x[j] comes before x[i] if it
 * is larger, or equal and earlier. Comparing all pairs finds the same elements in any order of
 * work. */

/* Reports whether a is larger than b; a NaN is larger than any number. */
static bool is_larger(double a, double b) { return a > b || (a != a && b == b); }

static void ref_topk(const struct launch *l)
{
    const int64_t rows = operand_rows(&l->in[0]), N = operand_last(&l->in[0]), k = l->attr->topk.k;
    for (int64_t r = 0; r < rows; r++) {
        const struct ref_row x = ref_row(&l->in[0], r * N);
        int64_t kept = 0;
        for (int64_t i = 0; i < N; i++) {
            int64_t before = 0;
            for (int64_t j = 0; j < N && before < k; j++)
                before +=
                    is_larger(ref_at(&x, j), ref_at(&x, i)) || (j < i && !is_larger(ref_at(&x, i), ref_at(&x, j)));
            if (before < k) ref_put(&l->out[0], r * k + kept++, (double)i);
        }
    }
}

static bool topk_match(const struct query *q) { return tensor_is_fast(q->in[0]) && tensor_is(q->out[0], DT_I32); }

/* Counts those of n elements that come before `one`; `equal`: those that are equal do. */
static int count_before(const float *x, int n, float one, bool equal)
{
    int count = 0;
    if (one != one) {
        for (int j = 0; j < n && equal; j++) count += x[j] != x[j];
        return count;
    }
#pragma omp simd reduction(+ : count)
    for (int j = 0; j < n; j++) count += (x[j] > one) | (x[j] != x[j]) | (equal & (x[j] == one));
    return count;
}

/* Reports whether element i of the row that begins at `row` is kept. */
static bool is_kept(const struct operand *x, int64_t row, int64_t N, int64_t i, int64_t k)
{
    float scratch[TILE];
    const float one = *row_view(x, row + i, 1, scratch);
    int64_t before = 0;
    for (int64_t j = 0; j < N && before < k;) {
        const int n = row_tile((j <= i ? i + 1 : N) - j); /* no tile is on both sides of i; i itself is on neither */
        const float *v = row_view(x, row + j, n, scratch);
        before += count_before(v, j + n == i + 1 ? n - 1 : n, one, j <= i);
        j += n;
    }
    return before < k;
}

static void topk_run(const struct launch *l)
{
    const int64_t rows = operand_rows(&l->in[0]), N = operand_last(&l->in[0]), k = l->attr->topk.k;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows > 1)
    for (int64_t r = 0; r < rows; r++) {
        int32_t *index = (int32_t *)l->out[0].data + r * k;
        for (int64_t i = 0; i < N; i++)
            if (is_kept(&l->in[0], r * N, N, i, k)) *index++ = (int32_t)i;
    }
}

REF_KERNEL(TOPK, topk);
CPU_KERNEL(TOPK, topk);
