/*
 * loop_nest.h: the loop nest over up to three strided operands of one shape, as kernels traverse
 * it. Plain C, included by the host files of both halves and by the .cu files.
 *
 *     y [B,T,C], a the same, b [T,1]     innermost first: C (1, 1, 0), T (C, C, 1), B (TC, TC, 0)
 *
 * Dimensions that are contiguous with the one inside them are merged into one loop; a broadcast
 * operand has stride 0; dense operands of one shape are a single loop.
 */
#pragma once

#include <stdint.h>
#include <string.h>

enum { LOOP_NEST_DEPTH = 6 };

struct loop_nest {
    int loops;
    int64_t size[LOOP_NEST_DEPTH], y[LOOP_NEST_DEPTH], a[LOOP_NEST_DEPTH], b[LOOP_NEST_DEPTH]; /* strides in elements */
};

/* Adds a loop outside of those that are there. */
static inline void loop_nest_push(struct loop_nest *f, int64_t size, int64_t y, int64_t a, int64_t b)
{
    const int last = f->loops - 1;
    if (size == 1) return;
    if (f->loops && y == f->y[last] * f->size[last] && a == f->a[last] * f->size[last] &&
        b == f->b[last] * f->size[last]) {
        f->size[last] *= size;
        return;
    }
    f->size[f->loops] = size;
    f->y[f->loops] = y;
    f->a[f->loops] = a;
    f->b[f->loops++] = b;
}

/* Makes a nest for a single element one loop with one iteration. */
static inline void loop_nest_end(struct loop_nest *f)
{
    if (f->loops) return;
    f->loops = 1;
    f->size[0] = f->y[0] = f->a[0] = f->b[0] = 1;
}

static inline int64_t loop_nest_elements(const struct loop_nest *f)
{
    int64_t n = 1;
    for (int k = 0; k < f->loops; k++) n *= f->size[k];
    return n;
}

/* The dimensions and strides of an operand; rank -1: there is none. */
struct strides {
    int rank;
    const int64_t *dim, *stride;
};

/* Returns an operand's stride at a dimension of the result, counted from the last; 0 where the
 * operand is broadcast. */
static inline int64_t stride_from_last(struct strides x, int from_last)
{
    const int d = x.rank - 1 - from_last;
    return d >= 0 && x.dim[d] != 1 ? x.stride[d] : 0;
}

/* Returns the loop nest over y, with a and b broadcast to its shape. */
static inline struct loop_nest loop_nest_over(struct strides y, struct strides a, struct strides b)
{
    struct loop_nest f;
    memset(&f, 0, sizeof f);
    for (int i = 0; i < y.rank; i++)
        loop_nest_push(&f, y.dim[y.rank - 1 - i], y.stride[y.rank - 1 - i], stride_from_last(a, i),
                       stride_from_last(b, i));
    loop_nest_end(&f);
    return f;
}

/* Reports whether V elements of an operand with these strides can be accessed at once; a broadcast
 * operand reads one. */
static inline int strides_fit(const int64_t *stride, int loops, int V)
{
    int fits = stride[0] == 0 || stride[0] == 1;
    for (int k = 1; k < loops && stride[0]; k++) fits &= stride[k] % V == 0;
    return fits;
}

/* Reports whether strides allow V elements of all operands at a time. */
static inline int loop_nest_fits(const struct loop_nest *f, int V)
{
    return f->size[0] % V == 0 && f->y[0] == 1 && strides_fit(f->y, f->loops, V) && strides_fit(f->a, f->loops, V) &&
           strides_fit(f->b, f->loops, V);
}

/* ADD and MUL with strides (strided.cu): by element; by 16-byte packs; the latter with offsets of
 * 32 bits. */
enum pair_form { PAIR_ELEMENTS, PAIR_PACKS, PAIR_PACKS_32 };

/* Reports whether an operand's offsets, in packs, fit 31 bits. */
static inline int strides_fit_31_bits(const int64_t *stride, const struct loop_nest *f, int V)
{
    int64_t last = f->size[0] / V;
    for (int k = 1; k < f->loops; k++) {
        if (stride[k] < 0) return 0;
        last += (f->size[k] - 1) * (stride[k] / V);
    }
    return stride[0] == 1 && last <= INT32_MAX;
}

/* Reports whether y is dense, that is, its loops could be merged into one. */
static inline int loop_nest_is_dense(const struct loop_nest *f)
{
    int64_t next = 1;
    for (int k = 0; k < f->loops; next *= f->size[k++])
        if (f->y[k] != next) return 0;
    return 1;
}

/* Chooses the form. Up to three loops that all operands traverse by packs, with a dense y, are
 * cheap enough in 32 bits that computing the offset of a pack costs less than moving it. V:
 * elements of a pack; 1: no packs. */
static inline enum pair_form pair_form(const struct loop_nest *f, int V)
{
    if (V == 1) return PAIR_ELEMENTS;
    const int near = f->loops <= 3 && loop_nest_elements(f) / V <= INT32_MAX / 2 && loop_nest_is_dense(f);
    return near && strides_fit_31_bits(f->a, f, V) && strides_fit_31_bits(f->b, f, V) ? PAIR_PACKS_32 : PAIR_PACKS;
}

/* SUM (sums.cu): x is dense, or has strides. */
enum sum_form { SUM_DENSE, SUM_STRIDED };
static inline enum sum_form sum_form(const struct loop_nest *x)
{
    return x->loops > 1 || (x->a[0] != 1 && x->size[0] > 1) ? SUM_STRIDED : SUM_DENSE;
}

/* SUM_TO: the loops that the result keeps and the loops that are summed, with x's strides.
 *
 *     rows    the innermost loop is kept: C adjacent results, summed over S positions
 *     else    the innermost loop is summed (in `summed`): results are separate (C = 1)
 *
 * The S positions are split into `blocks` of `each`. The sums of the blocks are in the workspace,
 * [blocks,N]; with a single block they are the results, and there is no workspace.
 *
 * The threads of a block cover `across` columns, a pack of columns each where strides allow, in
 * SUM_THREADS / across lines; a line sums every (SUM_THREADS / across)-th position. */
struct axes {
    int n;
    int64_t size[LOOP_NEST_DEPTH], stride[LOOP_NEST_DEPTH];
    int64_t count;
};
struct summing {
    struct axes kept, summed;
    int rows;
    int64_t C, stride; /* size and stride of the innermost kept loop */
    int64_t blocks, each;
    int across;
};

/* Blocks in total: two for each SM of a large GPU. A line has at least SUM_LEAST positions if there
 * are as many, and reads SUM_TURN of them at a time. */
enum { SUM_THREADS = 256, SUM_GRID = 264, SUM_LEAST = 16, SUM_TURN = 8 };

static inline void axes_push(struct axes *x, int64_t size, int64_t stride)
{
    x->size[x->n] = size;
    x->stride[x->n++] = stride;
    x->count *= size;
}

static inline int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Returns the number of threads across a row of `packs` packs. It exceeds a warp only if rows of
 * that width fill the GPU, or columns are short. */
static inline int across_of(int64_t packs, int64_t kept, int64_t positions)
{
    int across = 1;
    while (across < packs && across < 32) across *= 2;
    while (across < packs && across < SUM_THREADS &&
           (packs / (2 * across) * kept >= SUM_GRID || positions * across / SUM_THREADS < SUM_LEAST))
        across *= 2;
    return across;
}

/* Reports whether strides allow rows to be read V columns at a time. */
static inline int summing_fits(const struct summing *s, int V)
{
    int fits = s->rows && s->C % V == 0 && s->stride == 1;
    for (int k = 0; k < s->kept.n; k++) fits &= s->kept.stride[k] % V == 0;
    for (int k = 0; k < s->summed.n; k++) fits &= s->summed.stride[k] % V == 0;
    return fits;
}

/* Returns the split of a sum: a function of only shapes, strides and the element size, so that the
 * workspace and the order of additions are functions of these too. The positions may be the first
 * `part` of every `whole`: the blocks are those of the whole, and the last have none. */
static inline struct summing summing_of_part(int rank, const int64_t *dim, const int64_t *stride, int to_rank,
                                             const int64_t *to, int size, int64_t part, int64_t whole)
{
    struct loop_nest f;
    struct summing s;
    int64_t at = 1;
    memset(&f, 0, sizeof f);
    memset(&s, 0, sizeof s);
    s.kept.count = s.summed.count = s.C = s.stride = 1;
    for (int d = rank - 1, k = to_rank - 1; d >= 0; d--, k--) {
        const int kept = k >= 0 && to[k] == dim[d];
        loop_nest_push(&f, dim[d], kept ? at : 0, stride[d], 0);
        if (kept) at *= dim[d];
    }
    loop_nest_end(&f);
    s.rows = f.y[0] != 0;
    if (s.rows) s.C = f.size[0], s.stride = f.a[0];
    for (int k = s.rows; k < f.loops; k++) axes_push(f.y[k] ? &s.kept : &s.summed, f.size[k], f.a[k]);
    const int64_t packs = s.C / (summing_fits(&s, 16 / size) ? 16 / size : 1);
    const int64_t positions = s.summed.count * whole / part;
    s.across = s.rows ? across_of(packs, s.kept.count, positions) : 1;
    const int64_t lines = SUM_THREADS / s.across, turn = s.rows ? lines * SUM_TURN : 1;
    const int64_t tiles = s.kept.count * ceiling(packs, s.across), least = s.rows ? lines * SUM_LEAST : 2048;
    int64_t blocks = SUM_GRID / tiles, most = ceiling(positions, least);
    if (blocks > most) blocks = most;
    if (blocks < 1) blocks = 1;
    s.each = ceiling(ceiling(positions, blocks), turn) * turn;
    s.blocks = ceiling(positions, s.each);
    return s;
}
static inline struct summing summing_of(int rank, const int64_t *dim, const int64_t *stride, int to_rank,
                                        const int64_t *to, int size)
{
    return summing_of_part(rank, dim, stride, to_rank, to, size, 1, 1);
}

/* Rows of adjacent results; separate results, each by a warp or by a block; rows that are summed
 * over several loops. */
enum sum_to_form { SUM_ROWS, SUM_BY_WARP, SUM_BY_BLOCK, SUM_ROWS_OF_LOOPS };
static inline enum sum_to_form sum_to_form(const struct summing *s)
{
    if (s->rows) return s->summed.n <= 1 ? SUM_ROWS : SUM_ROWS_OF_LOOPS;
    return s->each <= 1024 ? SUM_BY_WARP : SUM_BY_BLOCK;
}

/* Returns the block size of SUM in elements. */
static inline int64_t sum_each(int64_t n)
{
    const int64_t least = 8192, each = (n + 1023) / 1024;
    return each <= least ? least : (each + 2047) / 2048 * 2048;
}
static inline int64_t sum_blocks(int64_t n) { return n > 0 ? (n + sum_each(n) - 1) / sum_each(n) : 1; }

/* --- forms of the kernels that move elements (shuffle.cu) ------------------------------------- */

/* Strided copies: along the rows of y, or through tiles in shared memory. */
enum move_form { MOVE_ROWS, MOVE_TRANSPOSED };

/* Returns the loop along which a is contiguous, if y is contiguous along another one and tiles pay
 * off; else 0. */
static inline int transposed_loop(const struct loop_nest *f)
{
    if (f->y[0] != 1 || f->a[0] == 1 || f->size[0] < 8) return 0;
    for (int k = 1; k < f->loops; k++)
        if (f->a[k] == 1 && f->size[k] >= 8) return k;
    return 0;
}

/* Returns the bytes that a copy along rows moves at a time: `size`, an element, unless rows are
 * contiguous on both sides; then the widest unit that divides all rows and strides, and the
 * addresses, whose bits are given. */
static inline int move_unit(const struct loop_nest *f, uint64_t addresses, int size)
{
    uint64_t bits = addresses | (uint64_t)(f->size[0] * size) | 16;
    if (f->y[0] != 1 || f->a[0] != 1) return size;
    for (int k = 1; k < f->loops; k++) bits |= (uint64_t)(f->y[k] * size) | (uint64_t)(f->a[k] * size);
    const int unit = (int)(bits & -bits);
    return unit > size ? unit : size;
}

/* Windows of a map: a thread for each unit, or a warp for each pixel. */
enum window_form { WINDOW_UNITS, WINDOW_PIXELS };

static inline enum window_form window_form(int64_t units_of_pixel)
{
    return units_of_pixel >= 32 ? WINDOW_PIXELS : WINDOW_UNITS;
}

/* --- the rows of ACT_BWD_SUM in blocks (act_sums.cu) ------------------------------------------ */

/* The split of ACT_BWD_SUM's rows into blocks (act_sums.cu), shared by the planning
 * half and the launcher; a function of the shape.
 *
 * A block covers ACT_ACROSS 16-byte packs of each of its rows. Its threads form ACT_LINES lines of
 * ACT_ACROSS threads, and a line takes every ACT_LINES-th row. The grid has tiles of columns,
 * innermost, then `blocks` of `each` rows; the blocks' sums are in the workspace, [blocks,C]. */

enum { ACT_THREADS = 256, ACT_ACROSS = 32, ACT_LINES = ACT_THREADS / ACT_ACROSS, ACT_TURN = 4, ACT_GRID = 528 };

struct act_sums {
    int64_t rows, C, tiles, blocks, each;
};

/* Splits rows, the first of `whole`: these decide the blocks, of which the last may have none. */
static inline struct act_sums act_sums_of(int64_t rows, int64_t whole, int64_t C, int size)
{
    const int64_t width = ACT_ACROSS * (16 / size), tiles = (C + width - 1) / width, turn = ACT_LINES * ACT_TURN;
    int64_t blocks = tiles < ACT_GRID ? ACT_GRID / tiles : 1;
    const int64_t each = ((whole + blocks - 1) / blocks + turn - 1) / turn * turn;
    blocks = each > 0 ? (whole + each - 1) / each : 1;
    return (struct act_sums){rows, C, tiles, blocks, each};
}

/* Reports whether rows are whole packs, and long enough that few threads of a tile are idle. */
static inline int act_sums_fit(int64_t C, int size) { return C * size % 16 == 0 && C * size >= 2 * 16 * ACT_ACROSS; }
