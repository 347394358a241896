/*
 * separable.c: RESIZE, AVGPOOL and their gradients: separable sums over neighbours, along H first
 * and then along W.
 *
 * Along an axis, each pixel o of the result is a weighted sum of consecutive pixels of the map, its
 * tap: two for an interpolation, a window of equal weights for a mean. The gradient is the
 * transpose: pixel i gets a share of all results that have it in their taps, and these are
 * consecutive too, because taps advance with o. So one kernel serves all four ops. For each row of
 * the result:
 *
 *     rows of the source  --weighted sum along H-->  row [pixels of the source x C]
 *                         --weighted sum along W-->  row of the result
 *
 * Sums are f32; a row is computed by one thread, its terms in order.
 *
 *     workspace   taps of H and W | spans of H and W | per thread: row, result row
 */
#include <omp.h>

#include "cpu/cpu.h"

/* The tap of a pixel of the forward's result: pixels first .. first + count of the map, with weight
 * a for the first and b for the others. */
struct tap {
    int32_t first, count;
    float a, b;
};

/* The result pixels that have a pixel of the map in their taps. */
struct span {
    int32_t from, to;
};

/* One axis of a kernel: the tap of each result pixel; the gradient also has spans. */
struct axis {
    struct tap *taps;   // [results]
    struct span *spans; // [map]; NULL forward
    int64_t map, results;
};

struct kernel_sizes {
    int64_t H, W, H2, W2, C; /* of the map and of the forward's result */
};

/* --- taps ------------------------------------------------------------------------- */

static struct tap resize_tap(int64_t at, int64_t from, int64_t to, bool align)
{
    double scale = align ? (to > 1 ? (double)(from - 1) / (double)(to - 1) : 0) : (double)from / (double)to;
    double position = align ? scale * (double)at : scale * ((double)at + 0.5) - 0.5;
    if (position < 0) position = 0; /* before the first centre: the border is replicated */
    int32_t low = (int32_t)min_i64((int64_t)position, from - 1);
    float weight = (float)(position - (double)low);
    if (low == from - 1) return (struct tap){low, 1, 1, 0};
    return (struct tap){low, 2, 1 - weight, weight};
}

static struct tap pool_tap(const struct attr_avgpool *p, int axis, int64_t at, int64_t n, int64_t windows)
{
    int64_t from = at * p->stride[axis] - p->pad[axis], to = from + p->k[axis], count = to - from;
    if (p->adaptive) {
        from = at * n / windows;
        to = ((at + 1) * n + windows - 1) / windows;
    }
    from = max_i64(0, from);
    to = min_i64(n, to);
    if (p->adaptive || !p->count_pad) count = to - from;
    float share = (float)(1.0 / (double)count);
    return (struct tap){(int32_t)from, (int32_t)(to - from), share, share};
}

/* Fills the span of results that each pixel of the map adds to: both ends of taps are monotonic. */
static void fill_spans(struct axis *x)
{
    int32_t from = 0, to = 0;
    for (int64_t i = 0; i < x->map; i++) {
        while (from < x->results && x->taps[from].first + x->taps[from].count <= i) from++;
        while (to < x->results && x->taps[to].first <= i) to++;
        x->spans[i] = (struct span){from, to > from ? to : from};
    }
}

/* --- sums -------------------------------------------------------------------------- */

/* Returns the source pixels of target pixel `at`. */
static struct span sources(const struct axis *x, int64_t at)
{
    if (x->spans) return x->spans[at];
    return (struct span){x->taps[at].first, x->taps[at].first + x->taps[at].count};
}

/* Returns the weight of source pixel `from` in target pixel `at`. */
static float weight(const struct axis *x, int64_t at, int64_t from)
{
    const struct tap *t = &x->taps[x->spans ? from : at];
    return t->first == (x->spans ? at : from) ? t->a : t->b;
}

/* Computes, for target row `at`, the weighted sum of the source rows of image b, each of `length`
 * elements. */
static void sum_rows_of(float *row, const struct operand *x, const struct axis *vertical, int64_t b, int64_t at,
                        int64_t length)
{
    const struct span s = sources(vertical, at);
    memset(row, 0, (size_t)length * sizeof *row);
    for (int64_t k = 0; k < length; k += TILE) {
        float scratch[TILE], *to = row + k;
        const int n = row_tile(length - k);
        for (int64_t h = s.from; h < s.to; h++) {
            const float w = weight(vertical, at, h), *v = row_view(x, (b * x->dim[1] + h) * length + k, n, scratch);
#pragma omp simd
            for (int i = 0; i < n; i++) to[i] += w * v[i];
        }
    }
}

/* Computes out[at], for each target pixel, as the weighted sum over pixels of the row, C channels
 * each. */
static void sum_pixels(float *out, const float *row, const struct axis *horizontal, int64_t pixels, int64_t C)
{
    for (int64_t at = 0; at < pixels; at++) {
        const struct span s = sources(horizontal, at);
        float *to = out + at * C;
        if (C == 1) { /* a single channel: a register instead of a row of channels */
            float sum = 0;
            for (int64_t p = s.from; p < s.to; p++) sum += weight(horizontal, at, p) * row[p];
            *to = sum;
            continue;
        }
        memset(to, 0, (size_t)C * sizeof *to);
        for (int64_t p = s.from; p < s.to; p++) {
            const float w = weight(horizontal, at, p), *v = row + p * C;
#pragma omp simd
            for (int64_t c = 0; c < C; c++) to[c] += w * v[c];
        }
    }
}

/* --- the kernel ------------------------------------------------------------------------ */

static struct kernel_sizes sizes_of(const int64_t *map, const int64_t *result)
{
    return (struct kernel_sizes){map[1], map[2], result[1], result[2], map[3]};
}

static uint64_t tables_bytes(const struct kernel_sizes *n)
{
    return (uint64_t)(n->H2 + n->W2) * sizeof(struct tap) + (uint64_t)(n->H + n->W) * sizeof(struct span);
}

/* Returns the bytes of a row of the source after the sum along H, and of a row of the result, in
 * either direction. */
static uint64_t thread_bytes(const struct kernel_sizes *n)
{
    return align_up((uint64_t)((n->W + n->W2) * n->C) * sizeof(float), 64);
}

static uint64_t separable_workspace(const struct kernel_sizes *n, int threads)
{
    return align_up(tables_bytes(n), 64) + thread_bytes(n) * (uint64_t)threads;
}

/* Lays out the tables in the workspace; `fill` computes the taps. */
static void tables_of(struct axis axes[2], const struct launch *l, const struct kernel_sizes *n, bool back,
                      struct tap (*fill)(const struct launch *, int axis, int64_t at, int64_t map, int64_t results))
{
    struct tap *taps = l->work;
    struct span *spans = (struct span *)(taps + n->H2 + n->W2);
    axes[0] = (struct axis){taps, back ? spans : NULL, n->H, n->H2};
    axes[1] = (struct axis){taps + n->H2, back ? spans + n->H : NULL, n->W, n->W2};
    for (int i = 0; i < 2; i++) {
        for (int64_t at = 0; at < axes[i].results; at++)
            axes[i].taps[at] = fill(l, i, at, axes[i].map, axes[i].results);
        if (back) fill_spans(&axes[i]);
    }
}

static void separable_run(const struct launch *l, bool back,
                          struct tap (*fill)(const struct launch *, int axis, int64_t at, int64_t map, int64_t results))
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const struct kernel_sizes n = back ? sizes_of(y->dim, x->dim) : sizes_of(x->dim, y->dim);
    const int64_t length = x->dim[2] * n.C, rows = y->dim[0] * y->dim[1], width = y->dim[2] * n.C;
    struct axis axes[2];
    CHECK(l->work_bytes >= separable_workspace(&n, l->threads), "%llu bytes of workspace",
          (unsigned long long)l->work_bytes);
    tables_of(axes, l, &n, back, fill);
    char *buffers = (char *)l->work + align_up(tables_bytes(&n), 64);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * (length + width) > 16384)
    for (int64_t r = 0; r < rows; r++) {
        float *row = (float *)(buffers + (uint64_t)omp_get_thread_num() * thread_bytes(&n)), *result = row + length;
        float *to = row_place(y, r * width, result);
        sum_rows_of(row, x, &axes[0], r / y->dim[1], r % y->dim[1], length);
        sum_pixels(to, row, &axes[1], y->dim[2], n.C);
        if (to == result)
            dtype_convert((char *)y->data + r * width * dtype_size(y->dtype), y->dtype, result, DT_F32, width);
    }
}

/* --- the four ops ------------------------------------------------------------------------- */

static struct tap fill_resize(const struct launch *l, int axis, int64_t at, int64_t map, int64_t results)
{
    (void)axis;
    return resize_tap(at, map, results, l->attr->resize.align_corners);
}

static struct tap fill_pool(const struct launch *l, int axis, int64_t at, int64_t map, int64_t results)
{
    return pool_tap(&l->attr->avgpool, axis, at, map, results);
}

static uint64_t workspace_of(const struct query *q, const struct tensor *map, const struct tensor *result)
{
    const struct kernel_sizes n = sizes_of(map->dim, result->dim);
    return separable_workspace(&n, q->profile->threads);
}

static uint64_t resize_workspace(const struct query *q) { return workspace_of(q, q->in[0], q->out[0]); }
static uint64_t resize_bwd_workspace(const struct query *q) { return workspace_of(q, q->out[0], q->in[0]); }
static uint64_t avgpool_workspace(const struct query *q) { return workspace_of(q, q->in[0], q->out[0]); }
static uint64_t avgpool_bwd_workspace(const struct query *q) { return workspace_of(q, q->out[0], q->in[0]); }

static void resize_run(const struct launch *l) { separable_run(l, false, fill_resize); }
static void resize_bwd_run(const struct launch *l) { separable_run(l, true, fill_resize); }
static void avgpool_run(const struct launch *l) { separable_run(l, false, fill_pool); }
static void avgpool_bwd_run(const struct launch *l) { separable_run(l, true, fill_pool); }

CPU_KERNEL_DENSE_WORK(RESIZE, resize);
CPU_KERNEL_DENSE_WORK(RESIZE_BWD, resize_bwd);
CPU_KERNEL_DENSE_WORK(AVGPOOL, avgpool);
CPU_KERNEL_DENSE_WORK(AVGPOOL_BWD, avgpool_bwd);
