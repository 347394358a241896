/*
 * gemm_shape.h: a matrix product c = a b, and which products cuBLASLt supports: one dtype
 * throughout, or an f32 result; strides in only one dimension; a bias of c's dtype, aligned to 16
 * bytes. Operands in e4m3 have results in another dtype; both are dense along K, and N and K are
 * multiples of 16. The plan chooses by it between the library and our own kernels.
 */
#pragma once

#include "base/base.h"
#include "base/dtype.h"

/* Element (i,j) of batch n is at n batch + i row + j column, in elements. */
struct view {
    enum dtype dtype;
    int64_t row, column, batch;
    uint32_t align; /* a power of two that divides the addresses of all batches */
};

/* The scales of operands in e4m3: each operand has one for each of its rows (those of b are the
 * columns of b), or for each row and block of GEMM_BLOCK terms; or none. */
enum gemm_scales { SCALES_NONE, SCALES_ROWS, SCALES_BLOCKS };
enum { GEMM_BLOCK = 128 };

struct gemm_shape {
    int64_t M, N, K, batches;
    /* 0: M, batches; else this is a part of a larger product, and computed by the algorithm of that
     * one */
    int64_t whole_M, whole_batches;
    /* the fewest rows M, or with `sums` terms K, that a launch of the product has; 0: all. A sum of
     * the first terms is as all of it with zeros behind: K is not split */
    int64_t least;
    bool sums;
    struct view a, b, c;
    bool bias;
    enum dtype bias_dtype;
    uint32_t bias_align;
    uint32_t from_align; /* alignment of a separate addend; 0: there is none */
    enum gemm_scales scales;
};

enum { GEMM_BIAS_ALIGN = 16 };

/* Returns the product for which the algorithm is chosen. */
static inline struct gemm_shape gemm_whole(const struct gemm_shape *s)
{
    struct gemm_shape whole = *s;
    whole.M = s->whole_M ? s->whole_M : s->M;
    whole.batches = s->whole_batches ? s->whole_batches : s->batches;
    whole.whole_M = whole.whole_batches = 0;
    return whole;
}

/* The storage of a matrix: [rows, columns] with leading dimension ld, or transposed. */
struct matrix_storage {
    bool transposed;
    int64_t ld;
};

/* Finds how a view is stored; false: the library cannot read it. The stride of a dimension of one
 * element has no meaning and is replaced by one that fits. A dense column is a transposed row,
 * whose leading dimension is then its length and not 1. */
static inline bool storage_of_view(const struct view *v, int64_t rows, int64_t columns, struct matrix_storage *s)
{
    const int64_t row = rows == 1 ? max_i64(columns, 1) : v->row, column = columns == 1 ? max_i64(rows, 1) : v->column;
    const bool column_is_dense = columns == 1 && rows > 1 && v->row == 1;
    if ((v->column == 1 || columns == 1) && row >= columns && !column_is_dense) {
        *s = (struct matrix_storage){false, row};
        return true;
    }
    *s = (struct matrix_storage){true, column};
    return (v->row == 1 || rows == 1) && column >= rows;
}

/* Reports whether the library's dtype table has the product: one dtype throughout, or an f32
 * result. */
static inline bool library_has_dtypes(const struct gemm_shape *s)
{
    if (s->a.dtype == DT_E4M3) return s->b.dtype == DT_E4M3 && s->c.dtype != DT_E4M3;
    return s->a.dtype == s->b.dtype && (s->c.dtype == s->a.dtype || s->c.dtype == DT_F32);
}

/* Reports whether the library multiplies e4m3 stored like this: a [M,K] and b [N,K], in rows of
 * whole 16 bytes, into rows of whole 16 results, with a bias of 16 bits. */
static inline bool library_has_e4m3(const struct gemm_shape *s, const struct matrix_storage *a,
                                    const struct matrix_storage *b)
{
    return !a->transposed && b->transposed && a->ld % 16 == 0 && b->ld % 16 == 0 && s->K % 16 == 0 &&
           s->N % 16 == 0 && !(s->bias && s->c.dtype == DT_F32);
}

static inline bool gemm_library_supports(const struct gemm_shape *s, struct matrix_storage *a, struct matrix_storage *b,
                                         struct matrix_storage *c)
{
    if (!library_has_dtypes(s) || !storage_of_view(&s->a, s->M, s->K, a) || !storage_of_view(&s->b, s->K, s->N, b))
        return false;
    if (s->a.dtype == DT_E4M3 && !library_has_e4m3(s, a, b)) return false;
    *c = (struct matrix_storage){false, s->M == 1 ? s->N : s->c.row};
    if ((s->c.column != 1 && s->N > 1) || c->ld < s->N) return false;
    return !s->bias || (s->bias_dtype == s->c.dtype && s->bias_align >= GEMM_BIAS_ALIGN);
}

/* --- leading dimensions as rows of one stride ------------------------------------------------- */

/* Reports whether all dimensions but the last form rows with one stride, which is stored in *row.
 * With a single row the stride is the row's length. */
static inline bool rows_have_one_stride(int rank, const int64_t *dim, const int64_t *stride, int64_t *row)
{
    int64_t next = 0; /* 0: only dimensions of one element so far */
    *row = rank ? dim[rank - 1] : 1;
    for (int i = rank - 2; i >= 0; i--) {
        if (dim[i] == 1) continue;
        if (next && stride[i] != next) return false;
        if (!next) *row = stride[i];
        next = stride[i] * dim[i];
    }
    return true;
}
