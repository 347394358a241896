/*
 * cpu.h: what every file of CPU kernels uses: how it registers them, and how they access memory.
 *
 * A kernel X consists of X_match, X_workspace if it needs scratch memory (both are called when
 * planning), and X_run. If X_match returns false (strided views, f64, integers), the op's next
 * kernel is tried, and the reference kernel last. At its end a file registers its kernels for an op
 * with one of
 *
 *     CPU_KERNEL(LAYERNORM, layernorm);                    without a workspace
 *     CPU_KERNEL_WORK(LINEAR, linear);                     with one
 *     CPU_KERNEL_DENSE(SOFTMAX, softmax);                  matches dense operands: query_is_fast
 *     CPU_KERNEL_DENSE_WORK(SUM_TO, sum_to);               the same with a workspace
 *     CPU_KERNELS(LINEAR, KERNEL(tiny), KERNEL_WORK(linear));
 *                                                          several, preferred first
 *
 * No other registration is needed: the table (cpu.c) is generated from ops.def.
 *
 * Kernels read dense rows of f32, bf16 or f16 as f32, in tiles of at most TILE elements:
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
 * or its rows are partitioned into blocks by row_blocks(), a function of only the shape, and the
 * blocks' partial sums are added in order.
 *
 * In place. An output may share an input's bytes exactly (never shifted), so loops over tiles are
 * marked `omp simd`: lane i reads and writes element i only.
 */
#pragma once

#include "run/kernel.h"

/* --- registering ------------------------------------------------------------------------------ */

#define KERNEL(name) {0, "cpu_" #name, name##_match, NULL, name##_run}
#define KERNEL_WORK(name) {0, "cpu_" #name, name##_match, name##_workspace, name##_run}
#define CPU_KERNELS(OP, ...) const struct kernel cpu_##OP[] = {__VA_ARGS__, {0}}
#define CPU_KERNEL(OP, name) CPU_KERNELS(OP, KERNEL(name))
#define CPU_KERNEL_WORK(OP, name) CPU_KERNELS(OP, KERNEL_WORK(name))
#define CPU_KERNEL_DENSE(OP, name) CPU_KERNELS(OP, {0, "cpu_" #name, query_is_fast, NULL, name##_run})
#define CPU_KERNEL_DENSE_WORK(OP, name) CPU_KERNELS(OP, {0, "cpu_" #name, query_is_fast, name##_workspace, name##_run})

/* Finds one of an op's kernels by name, whatever the preference: for tests and benchmarks. */
const struct kernel *cpu_kernel_named(uint16_t op, const char *name);

/* Reports whether the optional input i is given. */
static inline bool launch_has(const struct launch *l, int i) { return i < l->nin && l->in[i].data; }
static inline const struct tensor *query_in(const struct query *q, int i)
{
    return i < q->nin ? q->in[i] : NULL;
}

/* Reports whether a tensor is dense and of this dtype. */
bool tensor_is(const struct tensor *t, enum dtype dtype);
/* Reports whether tiles have elements of a dtype: f32, bf16 or f16. */
static inline bool dtype_is_fast(enum dtype dtype) { return dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F16; }
/* Reports whether tiles can read a tensor: it is dense, and dtype_is_fast holds. */
bool tensor_is_fast(const struct tensor *t);
/* Reports whether tensor_is_fast holds for every given input and output. */
bool query_is_fast(const struct query *q);

/* --- tiles of rows ---------------------------------------------------------------------------- */

enum { TILE = 256 };

static inline int row_tile(int64_t left) { return left < TILE ? (int)left : TILE; }
static inline int64_t row_tiles(int64_t n) { return (n + TILE - 1) / TILE; }

/* Returns elements at .. at+n of a dense operand as f32: the operand's own memory for f32,
 * otherwise converted into scratch. */
const float *row_view(const struct operand *x, int64_t at, int n, float scratch[TILE]);
/* Returns the destination of a tile's f32 results: the operand itself for f32, else scratch. */
float *row_place(const struct operand *x, int64_t at, float scratch[TILE]);
/* Stores a written tile: converts it, or does nothing if it is in place already. */
void row_store(const struct operand *x, int64_t at, int n, const float *from);

/* Computes r = a + b, n elements from `at` on; r may be a or b. */
void row_add(const struct operand *r, const struct operand *a, const struct operand *b, int64_t at, int64_t n);
/* Copies the elements of a dense operand to another of the same dtype; does nothing if both are the
 * same. */
void row_copy(const struct operand *to, const struct operand *from, int threads);

/* Return sums over n elements from `at` on: of x, and of a b. Both sum in f32 within a tile and in
 * double across tiles. */
double row_sum(const struct operand *x, int64_t at, int64_t n);
double row_dot(const struct operand *a, const struct operand *b, int64_t at, int64_t n);

/* A partition of rows into n blocks of `each` rows (the last may be shorter). */
struct row_blocks {
    int64_t n, each;
};
struct row_blocks row_blocks(int64_t rows);
/* Returns the blocks of a launch that has the first `rows` of its rows: these are as for all. */
struct row_blocks launch_row_blocks(const struct launch *l, int64_t rows);

/* Sums n rows of f32 partial sums [n, C] into out [C], in order, in double; adds to the value of
 * out if `accumulate`. */
void row_combine(const struct operand *out, const float *partial, int64_t n, bool accumulate, int threads);

/* Returns the sum of a dense operand's elements, or of their squares, in double: chunks of a fixed
 * length, added in order. `work` holds reduce_workspace() bytes. */
uint64_t reduce_workspace(int64_t elements);
double reduce_sum(const struct operand *x, bool squares, double *work, int threads);

/* --- peak rates of this machine (peak.c) ------------------------------------------------------ */

/* Measures multiply-adds, in flops per second; of f32 if the processor has no instruction for t. */
double peak_measure(enum dtype t, int threads);
/* Measures bytes per second of adding two arrays into a third, `bytes` in all; 0: out of memory. */
double peak_stream(uint64_t bytes, int threads);
