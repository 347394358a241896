/*
 * copy.c: COPY, between two operands with any strides; CONCAT and PAD, which copy into slices of
 * their output.
 *
 * An operand of up to six dimensions is first normalised: dimensions of 1 are dropped, the others
 * are sorted by the target's strides, and neighbours that are contiguous in both operands are
 * merged. Three cases remain:
 *
 *     rows      the last dimension is contiguous in both operands: memcpy
 *     tiles     contiguous in another dimension of the source: a transposition, done in square
 *               tiles that fit the L1 cache, so both sides move whole cache lines
 *     strided   contiguous nowhere: one by one
 *
 * Elements are moved as integers of their size; their values are not interpreted. Each is written
 * once, by one thread.
 */
#include <string.h>

#include "cpu/cpu.h"

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

/* The offsets of index combination `at` of the first `rank` dimensions. */
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

/* Contiguous rows; a long one is split into runs. */
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
    /* Whole square tiles, single elements at the edges. */                                         \
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

/* Dimension `d`, contiguous in the source, against the last, contiguous in the target. */
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

/* The slice of x from `start` on along an axis. */
static struct operand slice_of(const struct operand *x, int axis, int64_t start, int64_t length)
{
    struct operand part = *x;
    part.data = (char *)x->data + start * x->stride[axis] * dtype_size(x->dtype);
    part.dim[axis] = length;
    return part;
}

static bool pad_match(const struct query *q) { return q->in[0]->dtype == q->out[0]->dtype; }

/* Axis by axis: zeros before and after, then continues with the middle. All bits 0 is the zero of
 * every dtype. */
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
