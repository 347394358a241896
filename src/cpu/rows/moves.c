/*
 * moves.c: ops that move elements as they are, in any dtype: COPY, between two operands with any
 * strides; CONCAT and PAD, which copy into slices of their output; GATHER, REPLACE_ROWS,
 * CACHE_WRITE, REPEAT, WINDOW and UNWINDOW, which move rows; and SCATTER_ADD, the gradient of
 * GATHER. For some of them the reference is here too.
 *
 * For COPY an operand of up to six dimensions is first normalised: dimensions of 1 are dropped, the
 * others are sorted by the target's strides, and neighbours that are contiguous in both operands
 * are merged. Three cases remain:
 *
 *     rows      the last dimension is contiguous in both operands: memcpy
 *     tiles     contiguous in another dimension of the source: a transposition, done in square
 *               tiles that fit the L1 cache, so both sides move whole cache lines
 *     strided   contiguous nowhere: one by one
 *
 * Elements are moved as integers of their size; their values are not interpreted. Each is written
 * once, by one thread.
 */
#include "cpu/cpu.h"
#include "cpu/reference/ref.h"

enum {
    SERIAL_BYTES = 1 << 17, /* below it waking the threads costs more than it saves */
    SIDE = 32,              /* of a tile, in elements */
    RUN = 1 << 15,          /* maximum bytes of a row that one unit of work copies */
    BATCH = 64              /* rows per unit of work */
};

struct geometry {
    int rank;
    int64_t dim[MAX_RANK], to[MAX_RANK], from[MAX_RANK]; /* strides in elements */
};

/* --- normalisation --------------------------------------------------------------- */

static void geometry_swap(struct geometry *f, int i, int j)
{
    int64_t *const rows[] = {f->dim, f->to, f->from};
    for (int k = 0; k < 3; k++) {
        int64_t held = rows[k][i];
        rows[k][i] = rows[k][j];
        rows[k][j] = held;
    }
}

static struct geometry geometry_of(const struct operand *to, const struct operand *from)
{
    struct geometry f = {0};
    for (int d = 0; d < to->rank; d++) {
        if (to->dim[d] == 1) continue;
        int at = f.rank++;
        f.dim[at] = to->dim[d];
        f.to[at] = to->stride[d];
        f.from[at] = from->stride[d];
        for (; at > 0 && f.to[at - 1] < f.to[at]; at--) geometry_swap(&f, at - 1, at);
    }
    int n = 0;
    for (int d = 0; d < f.rank; d++) {
        bool joins = n && f.to[n - 1] == f.to[d] * f.dim[d] && f.from[n - 1] == f.from[d] * f.dim[d];
        f.dim[joins ? n - 1 : n] = joins ? f.dim[n - 1] * f.dim[d] : f.dim[d];
        f.to[joins ? n - 1 : n] = f.to[d];
        f.from[joins ? n - 1 : n] = f.from[d];
        n += !joins;
    }
    f.rank = n;
    return f;
}

/* --- iterating over the outer dimensions -------------------------------------------- */

struct offsets {
    int64_t index[MAX_RANK], to, from; /* offsets in elements */
};

/* Returns the offsets of index combination `at` of the first `rank` dimensions. */
static struct offsets offsets_at(const struct geometry *f, int rank, int64_t at)
{
    struct offsets w = {0};
    for (int d = rank - 1; d >= 0; d--) {
        w.index[d] = at % f->dim[d];
        at /= f->dim[d];
        w.to += w.index[d] * f->to[d];
        w.from += w.index[d] * f->from[d];
    }
    return w;
}

static void offsets_next(struct offsets *w, const struct geometry *f, int rank)
{
    for (int d = rank - 1; d >= 0; d--) {
        w->to += f->to[d];
        w->from += f->from[d];
        if (++w->index[d] < f->dim[d]) return;
        w->to -= f->dim[d] * f->to[d];
        w->from -= f->dim[d] * f->from[d];
        w->index[d] = 0;
    }
}

static int64_t geometry_elements(const struct geometry *f, int rank)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++) n *= f->dim[d];
    return n;
}

/* --- the three cases ------------------------------------------------------------------- */

/* Copies contiguous rows; a long one is split into runs. */
static void copy_rows(char *to, const char *from, const struct geometry *f, int64_t size, int threads)
{
    const int outer = f->rank - 1;
    const int64_t length = f->dim[outer] * size, rows = geometry_elements(f, outer), runs = (length + RUN - 1) / RUN;
    const int64_t batch = runs > 1 ? 1 : BATCH, batches = (rows + batch - 1) / batch;
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (rows * length > SERIAL_BYTES)
    for (int64_t b = 0; b < batches; b++)
        for (int64_t r = 0; r < runs; r++) {
            struct offsets w = offsets_at(f, outer, b * batch);
            const size_t n = (size_t)min_i64(RUN, length - r * RUN);
            for (int64_t k = min_i64(batch, rows - b * batch); k-- > 0; offsets_next(&w, f, outer))
                memcpy(to + w.to * size + r * RUN, from + w.from * size + r * RUN, n);
        }
}

/* to[i][j] = from[j][i] of an n x m tile: rows of the target are `ts` apart, of the source `fs`. */
#define TILE_OF(type)                                                                                           \
    static void tile_##type(type *restrict to, const type *restrict from, int64_t ts, int64_t fs, int n, int m) \
    {                                                                                                           \
        for (int i = 0; i < n; i++)                                                                             \
            for (int j = 0; j < m; j++) to[i * ts + j] = from[i + j * fs];                                      \
    }
TILE_OF(uint8_t)
TILE_OF(uint16_t)
TILE_OF(uint32_t)
TILE_OF(uint64_t)

/* Transposes a square tile in registers, with a side of 16 bytes. Interleaving row i with row i +
 * side/2 moves the upper bit of the row index below the column's bits; after log2(side) rounds rows
 * and columns are exchanged. */
typedef uint16_t lanes16 __attribute__((vector_size(16)));
typedef uint32_t lanes32 __attribute__((vector_size(16)));
#define LOW16(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH16(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW32(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH32(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)

#define SQUARE_OF(bits, SIDES)                                                                      \
    static inline void square_##bits(uint##bits##_t *to, const uint##bits##_t *from, int64_t ts, int64_t fs) \
    {                                                                                               \
        lanes##bits row[SIDES], next[SIDES];                                                        \
        for (int i = 0; i < SIDES; i++) memcpy(&row[i], from + i * fs, sizeof row[i]);              \
        for (int round = 1; round < SIDES; round *= 2) {                                            \
            for (int i = 0; i < SIDES / 2; i++) {                                                   \
                next[2 * i] = LOW##bits(row[i], row[i + SIDES / 2]);                                \
                next[2 * i + 1] = HIGH##bits(row[i], row[i + SIDES / 2]);                           \
            }                                                                                       \
            for (int i = 0; i < SIDES; i++) row[i] = next[i];                                       \
        }                                                                                           \
        for (int i = 0; i < SIDES; i++) memcpy(to + i * ts, &row[i], sizeof row[i]);                \
    }                                                                                               \
    /* Moves whole square tiles, and single elements at the edges. */                              \
    static void transpose_##bits(uint##bits##_t *to, const uint##bits##_t *from, int64_t ts, int64_t fs, int n, int m) \
    {                                                                                               \
        const int in = n / SIDES * SIDES, jn = m / SIDES * SIDES;                                   \
        for (int i = 0; i < in; i += SIDES)                                                         \
            for (int j = 0; j < jn; j += SIDES) square_##bits(to + i * ts + j, from + i + j * fs, ts, fs); \
        tile_uint##bits##_t(to + jn, from + jn * fs, ts, fs, in, m - jn);                           \
        tile_uint##bits##_t(to + in * ts, from + in, ts, fs, n - in, m);                            \
    }
SQUARE_OF(16, 8)
SQUARE_OF(32, 4)

static void copy_tile(void *to, const void *from, int64_t size, int64_t ts, int64_t fs, int n, int m)
{
    if (size == 4) transpose_32(to, from, ts, fs, n, m);
    else if (size == 2) transpose_16(to, from, ts, fs, n, m);
    else if (size == 8) tile_uint64_t(to, from, ts, fs, n, m);
    else tile_uint8_t(to, from, ts, fs, n, m);
}

/* Transposes dimension `d`, contiguous in the source, with the last, contiguous in the target. */
static void copy_tiles(char *to, const char *from, struct geometry f, int d, int64_t size, int threads)
{
    for (; d < f.rank - 2; d++) geometry_swap(&f, d, d + 1);
    const int outer = f.rank - 2;
    const int64_t N = f.dim[outer], M = f.dim[outer + 1], ts = f.to[outer], fs = f.from[outer + 1];
    const int64_t planes = geometry_elements(&f, outer), across = (N + SIDE - 1) / SIDE;
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (planes * N * M * size > SERIAL_BYTES)
    for (int64_t p = 0; p < planes; p++)
        for (int64_t a = 0; a < across; a++) {
            const struct offsets w = offsets_at(&f, outer, p);
            const int64_t i = a * SIDE;
            const int n = (int)min_i64(SIDE, N - i);
            for (int64_t j = 0; j < M; j += SIDE)
                copy_tile(to + (w.to + i * ts + j) * size, from + (w.from + i + j * fs) * size, size, ts, fs, n,
                          (int)min_i64(SIDE, M - j));
        }
}

static void copy_strided(char *to, const char *from, const struct geometry *f, int64_t size, int threads)
{
    const int64_t n = geometry_elements(f, f->rank);
#pragma omp parallel for num_threads(threads) schedule(static) if (n * size > SERIAL_BYTES)
    for (int64_t at = 0; at < n; at += BATCH) {
        struct offsets w = offsets_at(f, f->rank, at);
        for (int64_t k = min_i64(BATCH, n - at); k-- > 0; offsets_next(&w, f, f->rank)) {
            /* Constant sizes, so that each is a load and a store. */
            if (size == 4) memcpy(to + w.to * 4, from + w.from * 4, 4);
            else if (size == 2) memcpy(to + w.to * 2, from + w.from * 2, 2);
            else memcpy(to + w.to * size, from + w.from * size, (size_t)size);
        }
    }
}

/* --- the kernel ---------------------------------------------------------------------------- */

/* Copies between operands of one dtype and shape. */
static void copy_elements(const struct operand *to, const struct operand *from, int threads)
{
    const struct geometry f = geometry_of(to, from);
    const int64_t size = dtype_size(to->dtype);
    const int last = f.rank - 1;
    if (operand_elements(to) == 0) return;
    if (f.rank == 0) {
        memcpy(to->data, from->data, (size_t)size);
        return;
    }
    int d = last; /* the dimension in which the source is contiguous */
    while (d >= 0 && f.from[d] != 1) d--;
    if (f.to[last] != 1 || d < 0) copy_strided(to->data, from->data, &f, size, threads);
    else if (d == last) copy_rows(to->data, from->data, &f, size, threads);
    else copy_tiles(to->data, from->data, f, d, size, threads);
}

static bool copy_match(const struct query *q) { return q->in[0]->dtype == q->out[0]->dtype; }

static void copy_run(const struct launch *l)
{
    if (l->out[0].data != l->in[0].data) copy_elements(&l->out[0], &l->in[0], l->threads);
}

/* --- into slices ----------------------------------------------------------------------------- */

static bool concat_match(const struct query *q)
{
    for (int i = 0; i < q->nin; i++)
        if (q->in[i]->dtype != q->out[0]->dtype) return false;
    return true;
}

static void concat_run(const struct launch *l)
{
    const int axis = l->attr->concat.axis;
    struct operand part = l->out[0];
    for (int i = 0; i < l->nin; i++) {
        part.dim[axis] = l->in[i].dim[axis];
        copy_elements(&part, &l->in[i], l->threads);
        part.data = (char *)part.data + part.dim[axis] * part.stride[axis] * dtype_size(part.dtype);
    }
}

/* Zeroes an operand with contiguous rows. */
static void clear_elements(const struct operand *x, int threads)
{
    const struct geometry f = geometry_of(x, x);
    const int64_t size = dtype_size(x->dtype);
    if (operand_elements(x) == 0) return;
    const bool single = f.rank == 0 || f.to[f.rank - 1] != 1; /* then a row is one element */
    const int outer = single ? f.rank : f.rank - 1;
    const int64_t rows = geometry_elements(&f, outer), length = (single ? 1 : f.dim[outer]) * size;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * length > SERIAL_BYTES)
    for (int64_t at = 0; at < rows; at += BATCH) {
        struct offsets w = offsets_at(&f, outer, at);
        for (int64_t k = min_i64(BATCH, rows - at); k-- > 0; offsets_next(&w, &f, outer))
            memset((char *)x->data + w.to * size, 0, (size_t)length);
    }
}

/* Returns the slice of x from `start` on along an axis. */
static struct operand slice_of(const struct operand *x, int axis, int64_t start, int64_t length)
{
    struct operand part = *x;
    part.data = (char *)x->data + start * x->stride[axis] * dtype_size(x->dtype);
    part.dim[axis] = length;
    return part;
}

static bool pad_match(const struct query *q) { return q->in[0]->dtype == q->out[0]->dtype; }

/* Clears, axis by axis, what is before and after, and continues with the middle, which it copies.
 * All bits 0 is the zero of every dtype. */
static void pad_run(const struct launch *l)
{
    struct operand middle = l->out[0];
    for (int d = 0; d < middle.rank; d++) {
        const int64_t before = l->attr->pad.before[d], n = l->in[0].dim[d], after = middle.dim[d] - before - n;
        const struct operand first = slice_of(&middle, d, 0, before), last = slice_of(&middle, d, before + n, after);
        clear_elements(&first, l->threads);
        clear_elements(&last, l->threads);
        middle = slice_of(&middle, d, before, n);
    }
    copy_elements(&middle, &l->in[0], l->threads);
}

CPU_KERNEL(COPY, copy);
CPU_KERNEL(CONCAT, concat);
CPU_KERNEL(PAD, pad);

/* --- GATHER ----------------------------------------------------------------------------------- */

/* Reports whether the kernel runs GATHER, in which an index outside 0..N-1 reads zeros. */
static bool gather_match(const struct query *q)
{
    return tensor_is_dense(q->in[0]) && tensor_is(q->in[1], DT_I32) && tensor_is(q->out[0], q->in[0]->dtype);
}

static void gather_run(const struct launch *l)
{
    const int64_t N = l->in[0].dim[1], M = l->out[0].dim[1], rows = l->out[0].dim[0] * M;
    const size_t bytes = (size_t)l->in[0].dim[2] * dtype_size(l->in[0].dtype);
    const int32_t *index = l->in[1].data; // [B,M]
    const char *from = l->in[0].data;     // [B,N,C]
    char *to = l->out[0].data;            // [B,M,C]
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * (int64_t)bytes > 65536)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t n = index[r];
        if (n < 0 || n >= N) memset(to + (size_t)r * bytes, 0, bytes);
        else memcpy(to + (size_t)r * bytes, from + (size_t)(r / M * N + n) * bytes, bytes);
    }
}

/* --- SCATTER_ADD: sums of rows by index -------------------------------------------------------
 *
 * Indices repeat, so the terms of each sum must be found before threads can share the sums: the
 * indices of each image are sorted by counting into
 *
 *     first [N+1]   where the list of row n begins
 *     order [M]     the rows of y, listed by the index they have, in order
 *
 * Each row of the result is then computed by one thread, in f32, its terms in order. An index
 * outside 0..N-1 adds nothing. */

static bool scatter_add_match(const struct query *q)
{
    const struct tensor *acc = query_in(q, 2);
    return tensor_is_fast(q->in[0]) && tensor_is(q->in[1], DT_I32) && tensor_is_fast(q->out[0]) &&
           (!acc || tensor_is(acc, q->out[0]->dtype));
}

/* Returns the numbers of an image's lists: first [N+1], order [M]. */
static int64_t lists_length(int64_t N, int64_t M) { return N + 1 + M; }

static uint64_t scatter_add_workspace(const struct query *q)
{
    const struct tensor *x = q->out[0];
    return (uint64_t)(x->dim[0] * lists_length(x->dim[1], q->in[1]->dim[1])) * sizeof(int32_t);
}

/* Sorts the indices of one image; first[n] .. first[n+1] is then the list of row n. */
static void sort_by_row(int32_t *first, int32_t *order, const int32_t *index, int64_t N, int64_t M)
{
    memset(first, 0, (size_t)(N + 1) * sizeof *first);
    for (int64_t m = 0; m < M; m++)
        if (index[m] >= 0 && index[m] < N) first[index[m]]++;
    int32_t end = 0;
    for (int64_t n = 0; n <= N; n++) first[n] = end += n < N ? first[n] : 0;
    /* Iterates backwards, so each list fills from its end: afterwards first[n] is its beginning. */
    for (int64_t m = M; m-- > 0;)
        if (index[m] >= 0 && index[m] < N) order[--first[index[m]]] = (int32_t)m;
}

/* Computes row n of an image: the sum of the rows of y in its list, added to acc. */
static void sum_row(const struct launch *l, int64_t b, int64_t n, const int32_t *first, const int32_t *order)
{
    const struct operand *y = &l->in[0], *x = &l->out[0];
    const int64_t C = y->dim[2], row = (b * x->dim[1] + n) * C;
    for (int64_t c = 0; c < C; c += TILE) {
        float sum[TILE] = {0}, scratch[TILE];
        const int width = row_tile(C - c);
        if (launch_has(l, 2)) memcpy(sum, row_view(x, row + c, width, scratch), (size_t)width * sizeof *sum);
        for (int32_t k = first[n]; k < first[n + 1]; k++) {
            const float *v = row_view(y, (b * y->dim[1] + order[k]) * C + c, width, scratch);
#pragma omp simd
            for (int i = 0; i < width; i++) sum[i] += v[i];
        }
        row_store(x, row + c, width, sum);
    }
}

static void scatter_add_run(const struct launch *l)
{
    const int64_t B = l->out[0].dim[0], N = l->out[0].dim[1], M = l->in[1].dim[1], C = l->out[0].dim[2];
    const int64_t each = lists_length(N, M);
    int32_t *lists = l->work; // [B, each]
    CHECK(!launch_has(l, 2) || l->in[2].data == l->out[0].data, "the accumulator is updated in place");
#pragma omp parallel for num_threads(l->threads) schedule(static) if (B * M > 8192)
    for (int64_t b = 0; b < B; b++)
        sort_by_row(lists + b * each, lists + b * each + N + 1, (const int32_t *)l->in[1].data + b * M, N, M);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (B * (M + N) * C > 8192)
    for (int64_t r = 0; r < B * N; r++) {
        const int32_t *first = lists + r / N * each;
        sum_row(l, r / N, r % N, first, first + N + 1);
    }
}

CPU_KERNEL(GATHER, gather);
CPU_KERNEL_WORK(SCATTER_ADD, scatter_add);

/* --- REPLACE_ROWS: rows of one tensor, and rows of another where an index says so ------------- */

/* Reports whether the kernel runs REPLACE_ROWS. The result may be x itself: then the rows that stay
 * are not touched. */
static bool replace_rows_match(const struct query *q)
{
    const struct tensor *y = query_in(q, 2);
    return tensor_is_dense(q->in[0]) && tensor_is(q->in[1], DT_I32) && (!y || tensor_is_dense(y)) &&
           tensor_is(q->out[0], q->in[0]->dtype);
}

/* Returns N, 0 without y; and how far the rows of two samples lie apart, 0 if they share them. */
static int64_t other_rows(const struct launch *l) { return launch_has(l, 2) ? l->in[2].dim[l->in[2].rank - 2] : 0; }
static int64_t rows_each(const struct launch *l)
{
    return launch_has(l, 2) && l->in[2].rank == 3 ? l->in[2].dim[1] : 0;
}

static void replace_rows_run(const struct launch *l)
{
    const struct operand *x = &l->in[0];  // [B,T,C]
    const int32_t *index = l->in[1].data; // [B,T]
    const int64_t T = x->dim[1], rows = x->dim[0] * T, N = other_rows(l), each = rows_each(l);
    const size_t bytes = (size_t)x->dim[2] * dtype_size(x->dtype);
    const char *from = x->data, *other = N ? l->in[2].data : NULL; // [N,C] or [B,N,C]
    char *to = l->out[0].data;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * (int64_t)bytes > 65536)
    for (int64_t r = 0; r < rows; r++) {
        char *row = to + (size_t)r * bytes;
        if (index[r] >= 0 && index[r] < N) memcpy(row, other + (size_t)(r / T * each + index[r]) * bytes, bytes);
        else if (index[r] >= 0) memset(row, 0, bytes);
        else if (to != from) memcpy(row, from + (size_t)r * bytes, bytes);
    }
}

static void ref_replace_rows(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t T = x->dim[1], C = x->dim[2], N = other_rows(l), each = rows_each(l);
    for (int64_t i = 0; i < operand_elements(x); i++) {
        const int64_t n = (int64_t)ref_get(&l->in[1], i / C);
        ref_put(&l->out[0], i,
                n < 0   ? ref_get(x, i)
                : n < N ? ref_get(&l->in[2], (i / C / T * each + n) * C + i % C)
                        : 0);
    }
}

REF_KERNEL(REPLACE_ROWS, replace_rows);
CPU_KERNEL(REPLACE_ROWS, replace_rows);

/* --- CACHE_WRITE: rows into a cache, each at the position of its token ------------------------ */

static bool cache_write_match(const struct query *q)
{
    return tensor_is_dense(q->in[1]) && tensor_is_dense(q->in[2]);
}

/* Returns the elements of a row of the cache, of which a row that follows a sequence has the
 * first. */
static int64_t cache_row(const struct operand *cache)
{
    return operand_elements(cache) / (cache->dim[0] * cache->dim[1]);
}

static void cache_write_run(const struct launch *l)
{
    const struct operand *x = &l->in[1];     // [B,T,...]
    const int32_t *position = l->in[2].data; // [B,T]
    const int64_t S = l->out[0].dim[1], T = x->dim[1], rows = x->dim[0] * T;
    const size_t bytes = rows ? (size_t)(operand_elements(x) / rows) * dtype_size(x->dtype) : 0;
    const size_t stride = (size_t)cache_row(&l->out[0]) * dtype_size(x->dtype);
    CHECK(l->in[0].data == l->out[0].data, "the cache is updated in place");
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * (int64_t)bytes > 65536)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t s = position[r];
        if (s >= 0 && s < S)
            memcpy((char *)l->out[0].data + (size_t)(r / T * S + s) * stride, (const char *)x->data + (size_t)r * bytes,
                   bytes);
    }
}

static void ref_cache_write(const struct launch *l)
{
    const struct operand *x = &l->in[1];
    const int64_t S = l->out[0].dim[1], T = x->dim[1], each = operand_elements(x) / (x->dim[0] * T);
    for (int64_t i = 0; i < operand_elements(x); i++) {
        const int64_t r = i / each, s = (int64_t)ref_get(&l->in[2], r);
        if (s >= 0 && s < S)
            ref_put(&l->out[0], (r / T * S + s) * cache_row(&l->out[0]) + i % each, ref_get(x, i));
    }
}

REF_KERNEL(CACHE_WRITE, cache_write);
CPU_KERNEL(CACHE_WRITE, cache_write);

/* --- REPEAT: repeats rows consecutively. Its gradient is SUM_TO ------------------------------- */

static bool repeat_match(const struct query *q)
{
    return tensor_is_dense(q->in[0]) && tensor_is_dense(q->out[0]) && q->in[0]->dtype == q->out[0]->dtype;
}

static void repeat_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const int64_t rows = y->dim[0], n = rows / x->dim[0];
    const size_t bytes = (size_t)(operand_elements(x) / x->dim[0]) * dtype_size(x->dtype);
#pragma omp parallel for num_threads(l->threads) schedule(static) if ((size_t)rows * bytes > 16384)
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)y->data + (size_t)r * bytes, (const char *)x->data + (size_t)(r / n) * bytes, bytes);
}

static void ref_repeat(const struct launch *l)
{
    const int64_t each = operand_elements(&l->in[0]) / l->in[0].dim[0], n = l->out[0].dim[0] / l->in[0].dim[0];
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++)
        ref_put(&l->out[0], i, ref_get(&l->in[0], i / each / n * each + i % each));
}

CPU_KERNEL(REPEAT, repeat);
REF_KERNEL(REPEAT, repeat);

/* --- WINDOW and UNWINDOW: window partition of a map and its inverse ---------------------------
 *
 *     map      [B,H,W,C]                rows of a window, of size x C elements, are segments of
 *     windows  [B nh nw,size,size,C]    the map's rows: one copy in each direction
 *
 * Window positions beyond the map are zeros, and are dropped in the inverse. */

static bool window_match(const struct query *q) { return tensor_is_dense(q->in[0]) && tensor_is_dense(q->out[0]); }
static bool unwindow_match(const struct query *q) { return window_match(q); }

/* Row r of all windows' rows: the index of its first element in the map, and how many of its pixels
 * are in the map. */
struct segment {
    int64_t at, pixels;
};

static struct segment piece_of(const struct operand *map, int64_t size, int64_t r)
{
    const int64_t H = map->dim[1], W = map->dim[2], C = map->dim[3];
    const int64_t across = (W + size - 1) / size, down = (H + size - 1) / size, window = r / size;
    int64_t x = window % across * size, y = window / across % down * size + r % size, b = window / across / down;
    return (struct segment){((b * H + y) * W + x) * C, y < H ? min_i64(size, W - x) : 0};
}

static void window_run(const struct launch *l)
{
    const struct operand *map = &l->in[0], *windows = &l->out[0];
    const int64_t size = windows->dim[1], rows = windows->dim[0] * size, element = dtype_size(map->dtype);
    const int64_t pixel = map->dim[3] * element;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        struct segment p = piece_of(map, size, r);
        char *to = (char *)windows->data + r * size * pixel;
        if (p.pixels) memcpy(to, (const char *)map->data + p.at * element, (size_t)(p.pixels * pixel));
        memset(to + p.pixels * pixel, 0, (size_t)((size - p.pixels) * pixel));
    }
}

static void unwindow_run(const struct launch *l)
{
    const struct operand *map = &l->out[0], *windows = &l->in[0];
    const int64_t size = windows->dim[1], rows = windows->dim[0] * size, element = dtype_size(map->dtype);
    const int64_t pixel = map->dim[3] * element;
#pragma omp parallel for num_threads(l->threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        struct segment p = piece_of(map, size, r);
        const char *from = (const char *)windows->data + r * size * pixel;
        if (p.pixels) memcpy((char *)map->data + p.at * element, from, (size_t)(p.pixels * pixel));
    }
}

CPU_KERNEL(WINDOW, window);
CPU_KERNEL(UNWINDOW, unwindow);
