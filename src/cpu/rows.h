/*
 * rows.h: how the CPU kernels access memory: dense rows of f32, bf16 or f16, processed as f32 in
 * tiles of at most TILE elements.
 *
 *     f32 operand     [.....tile.....]        row_view and row_place return the operand's memory
 *     bf16, f16       [.....tile.....]
 *                        | row_view  ^ row_store
 *                        v           |
 *                     scratch (stack, f32, TILE elements)
 *
 * A tile is small enough that a kernel's scratch fits the stack and the L1 cache, so
 * lower-precision storage needs no workspace.
 *
 * Bit-identical for any number of threads: the sum of an element is either computed by one thread,
 * or its rows are partitioned into blocks by row_blocks(), a function of the shape alone, and the
 * blocks' partial sums are added in order.
 *
 * In place. An output may share an input's bytes exactly (never shifted), so loops over tiles are
 * marked `omp simd`: lane i reads and writes element i only.
 */
#ifndef CPU_ROWS_H
#define CPU_ROWS_H

#include "run/kernel.h"

enum { TILE = 256 };

/* Elements at .. at+n of a dense operand as f32: the operand's own memory for f32, otherwise
 * converted into scratch. */
const float *row_view(const struct operand *x, int64_t at, int n, float scratch[TILE]);
/* The destination of a tile's f32 results: the operand itself for f32, else scratch. */
float *row_place(const struct operand *x, int64_t at, float scratch[TILE]);
/* Stores a written tile: converts it, or does nothing if it is in place already. */
void row_store(const struct operand *x, int64_t at, int n, const float *from);

/* r = a + b, n elements from `at` on; r may be a or b. */
void row_sum(const struct operand *r, const struct operand *a, const struct operand *b, int64_t at, int64_t n);

/* Copies the elements of a dense operand to another of the same dtype; does nothing if both are the
 * same. */
void row_copy(const struct operand *to, const struct operand *from, int threads);

/* A partition of rows into n blocks of `each` rows (the last may be shorter). */
struct row_blocks {
    int64_t n, each;
};
struct row_blocks row_blocks(int64_t rows);

/* Sums n rows of f32 partial sums [n, C] into out [C], in order, in double; adds to the value of
 * out if `accumulate`. */
void row_combine(float *out, const float *partial, int64_t n, int64_t C, bool accumulate, int threads);

static inline int row_tile(int64_t left) { return left < TILE ? (int)left : TILE; }
static inline int64_t row_tiles(int64_t n) { return (n + TILE - 1) / TILE; }

/* True if the optional input i is given. */
static inline bool launch_has(const struct launch *l, int i) { return i < l->nin && l->in[i].data; }
static inline const struct tensor *query_in(const struct query *q, int i)
{
    return i < q->nin ? q->in[i] : NULL;
}

/* True for the storage that these kernels support: dense, and f32, bf16 or f16. */
bool tensor_is_fast(const struct tensor *t);
/* True if tensor_is_fast holds for every given input and output. */
bool query_is_fast(const struct query *q);
/* Dense and of this dtype. */
bool tensor_is(const struct tensor *t, enum dtype dtype);

#endif
