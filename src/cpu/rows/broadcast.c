/*
 * broadcast.c: elementwise ops with broadcasting, and SUM_TO, which sums over the broadcast
 * dimensions.
 *
 *     b [T,1] with a [B,T,C]      loops, innermost first: C (a 1, b 0), T (C, 1), B (TC, 0)
 *
 * Invariant: an element of SUM_TO is a sum over blocks of the repeated positions, partitioned by
 * row_blocks(), a function of the shape alone; the blocks' partial sums are in the workspace and
 * are added in order. So the bits do not depend on the thread count.
 */
#include "cpu/rows/broadcast.h"

#include <string.h>

#include "cpu/cpu.h"
#include "cpu/rows.h"

/* --- loops over shapes ---------------------------------------------------------- */

/* Adds an outer dimension: merges it with the outermost loop if both tensors are contiguous across
 * the two. */
static void walk_push(struct walk *w, int64_t size, int64_t a, int64_t b)
{
    int last = w->loops - 1;
    if (size == 1) return;
    if (w->loops && a == w->a[last] * w->size[last] && b == w->b[last] * w->size[last]) {
        w->size[last] *= size;
        return;
    }
    w->size[w->loops] = size;
    w->a[w->loops] = a;
    w->b[w->loops] = b;
    w->loops++;
}

struct walk walk_of(int rank, const int64_t *dim, int a_rank, const int64_t *a_dim, int b_rank, const int64_t *b_dim)
{
    struct walk w = {0};
    int64_t a_stride = 1, b_stride = 1;
    for (int d = rank - 1, i = a_rank - 1, j = b_rank - 1; d >= 0; d--, i--, j--) {
        int64_t in_a = i >= 0 ? a_dim[i] : 1, in_b = j >= 0 ? b_dim[j] : 1;
        walk_push(&w, dim[d], in_a == 1 ? 0 : a_stride, in_b == 1 ? 0 : b_stride);
        a_stride *= in_a;
        b_stride *= in_b;
    }
    if (!w.loops) { /* one element */
        w.loops = 1;
        w.size[0] = w.a[0] = w.b[0] = 1;
    }
    return w;
}

/* --- two inputs, one output -------------------------------------------------------- */

/* Elements from `at` on; with stride 0 the element at `at`, repeated n times. */
static const float *view_repeated(const struct operand *x, int64_t at, int64_t stride, int n, float scratch[TILE])
{
    if (stride) return row_view(x, at, n, scratch);
    const float value = *row_view(x, at, 1, scratch);
    for (int i = 0; i < n; i++) scratch[i] = value;
    return scratch;
}

void broadcast_run(const struct launch *l, void (*tile)(float *, const float *, const float *, int))
{
    const struct operand *a = &l->in[0], *b = &l->in[1], *y = &l->out[0];
    const struct walk w = walk_of(y->rank, y->dim, a->rank, a->dim, b->rank, b->dim);
    const int64_t n = operand_elements(y), L = w.size[0], each = row_tiles(L), units = n / L * each;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 16384)
    for (int64_t u = 0; u < units; u++) {
        float as[TILE], bs[TILE];
        int64_t row = u / each, from = u % each * TILE, at = row * L + from;
        int64_t in_a = from * w.a[0], in_b = from * w.b[0];
        for (int k = 1; k < w.loops; row /= w.size[k], k++) {
            in_a += row % w.size[k] * w.a[k];
            in_b += row % w.size[k] * w.b[k];
        }
        int width = row_tile(L - from);
        const float *av = view_repeated(a, in_a, w.a[0], width, as), *bv = view_repeated(b, in_b, w.b[0], width, bs);
        float *yv = row_place(y, at, as);
        tile(yv, av, bv, width);
        row_store(y, at, width, yv);
    }
}

/* --- SUM_TO ---------------------------------------------------------------------------
 *
 * The loops over x are of two kinds: kept, which advance in the result, and summed, which do not.
 * The innermost loop is special: if kept, it is a row of C results that x's rows are added to; if
 * summed, it is split into chunks of CHUNK elements and there is one result at a time (C = 1). */

enum { CHUNK = 1024 };

struct loops {
    int n;
    int64_t size[MAX_RANK + 1], stride[MAX_RANK + 1];
    int64_t count; /* product of sizes */
};

struct summing {
    struct loops kept, summed; /* `kept` excludes the innermost loop; `summed` includes its chunks */
    int64_t C;                 /* adjacent results */
    int64_t length;            /* of the innermost loop if it is summed; else 0 */
    struct row_blocks blocks;  /* of the summed positions */
};

static void loops_push(struct loops *l, int64_t size, int64_t stride)
{
    l->size[l->n] = size;
    l->stride[l->n++] = stride;
    l->count *= size;
}

/* The offset in x of position i of the loops. The outermost one needs no division. */
static int64_t loops_at(const struct loops *l, int64_t i)
{
    int64_t at = 0;
    for (int k = 0; k < l->n; k++) {
        int64_t here = k + 1 < l->n ? i % l->size[k] : i;
        at += here * l->stride[k];
        i /= k + 1 < l->n ? l->size[k] : 1;
    }
    return at;
}

static struct summing summing_of(int rank, const int64_t *dim, int to_rank, const int64_t *to)
{
    struct walk w = walk_of(rank, dim, rank, dim, to_rank, to);
    struct summing s = {.kept = {.count = 1}, .summed = {.count = 1}, .C = 1};
    if (w.b[0]) s.C = w.size[0];
    else s.length = w.size[0];
    if (s.length) loops_push(&s.summed, (s.length + CHUNK - 1) / CHUNK, CHUNK);
    for (int k = 1; k < w.loops; k++) loops_push(w.b[k] ? &s.kept : &s.summed, w.size[k], w.a[k]);
    s.blocks = row_blocks(s.summed.count);
    return s;
}

static bool sum_to_match(const struct query *q) { return query_is_fast(q); }

static uint64_t sum_to_workspace(const struct query *q)
{
    const struct tensor *x = q->in[0], *y = q->out[0];
    struct summing s = summing_of(x->rank, x->dim, y->rank, y->dim);
    return (uint64_t)(s.blocks.n * tensor_elements(y)) * sizeof(float);
}

/* Adds n elements of x to `sum`. */
static void add_row(float *sum, const struct operand *x, int64_t at, int64_t n)
{
    float scratch[TILE];
    for (int64_t c = 0; c < n; c += TILE) {
        int width = row_tile(n - c);
        const float *v = row_view(x, at + c, width, scratch);
        float *to = sum + c;
#pragma omp simd
        for (int i = 0; i < width; i++) to[i] += v[i];
    }
}

static double sum_chunk(const struct operand *x, int64_t at, int64_t n)
{
    float scratch[TILE];
    double total = 0;
    for (int64_t c = 0; c < n; c += TILE) {
        int width = row_tile(n - c);
        const float *v = row_view(x, at + c, width, scratch);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < width; i++) sum += v[i];
        total += sum;
    }
    return total;
}

/* The sum over one block of the summed positions, from x at kept position `from`. */
static void sum_block(float *sum, const struct summing *s, const struct operand *x, int64_t from, int64_t block)
{
    const int64_t first = block * s->blocks.each, end = min_i64(s->summed.count, first + s->blocks.each);
    double total = 0;
    memset(sum, 0, (size_t)s->C * sizeof *sum);
    for (int64_t r = first; r < end; r++) {
        int64_t at = from + loops_at(&s->summed, r);
        if (!s->length) {
            add_row(sum, x, at, s->C);
        } else {
            int64_t chunk = r % s->summed.size[0];
            total += sum_chunk(x, at, min_i64(CHUNK, s->length - chunk * CHUNK));
        }
    }
    if (s->length) *sum = (float)total;
}

/* Adds the blocks' sums [n, N] in order, in double, to y's value if `accumulate`. */
static void combine(const struct operand *y, const float *partial, int64_t n, bool accumulate, int threads)
{
    const int64_t N = operand_elements(y);
#pragma omp parallel for num_threads(threads) schedule(static) if (n * N > 65536)
    for (int64_t at = 0; at < N; at += TILE) {
        double sum[TILE];
        float scratch[TILE];
        int width = row_tile(N - at);
        const float *have = accumulate ? row_view(y, at, width, scratch) : NULL;
        for (int i = 0; i < width; i++) sum[i] = have ? have[i] : 0.0;
        for (int64_t b = 0; b < n; b++)
            for (int i = 0; i < width; i++) sum[i] += partial[b * N + at + i];
        float *to = row_place(y, at, scratch);
        for (int i = 0; i < width; i++) to[i] = (float)sum[i];
        row_store(y, at, width, to);
    }
}

static void sum_to_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const struct summing s = summing_of(x->rank, x->dim, y->rank, y->dim);
    const int64_t K = s.kept.count, N = operand_elements(y);
    const bool accumulate = launch_has(l, 1);
    float *partial = l->work; // [blocks, N]
    CHECK(!accumulate || l->in[1].data == y->data, "the accumulator is updated in place");
#pragma omp parallel for num_threads(l->threads) schedule(static) if (operand_elements(x) > 8192)
    for (int64_t task = 0; task < s.blocks.n * K; task++) {
        int64_t block = task / K, k = task % K;
        sum_block(partial + block * N + k * s.C, &s, x, loops_at(&s.kept, k), block);
    }
    combine(y, partial, s.blocks.n, accumulate, l->threads);
}

CPU_KERNEL_WORK(SUM_TO, sum_to);
