/*
 * gemm.h: one matrix product on the GPU, batched or not, for products.c and conv.c.
 *
 *     c [M,N]  =  a [M,K] b [K,N]  (+ bias [N] in every row)  (+ c, or a tensor of c's layout)
 *
 * A transpose is a pair of strides and nothing else: a caller that needs a^T passes the strides of
 * its element (i,k). The library's own conventions (column-major, leading dimensions, transposed
 * operands) are confined to gemm.c.
 */
#pragma once

#include "cuda/device/host.h"
#include "cuda/products/gemm_shape.h"

struct gemm {
    struct gemm_shape shape;
    bool library;               /* false: gemm_generic.cu computes it */
    bool timed;                 /* the algorithm is a stored choice by timing (matmul_autotune.h) */
    cublasLtHandle_t blas;      /* the device's */
    const float *one;           /* 1, in the GPU's memory */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
};

/* The addresses of the operands at one launch. bias is NULL if the shape has none. `from`, with c's
 * layout, is added in f32 and rounded once: it is c itself, or, if the shape has from_align,
 * another tensor. NULL: nothing is added. */
struct gemm_at {
    void *c;
    const void *a, *b, *bias, *from;
    const float *a_scale, *b_scale; /* shape.scales; of blocks [blocks,M] and [blocks,N]; NULL: none */
};

/* Selects the algorithm, within `workspace` bytes; of a part, that of the whole (gemm_whole), so
 * that a row has the same bits. p must be zero; gemm_end frees what it holds, after a failure
 * too. */
int gemm_begin(struct gemm *p, const struct cuda_state *s, const struct gemm_shape *shape, uint64_t workspace,
               struct error *e);
/* The same by our own kernel, which takes any strides and dtypes. */
void gemm_begin_generic(struct gemm *p, const struct gemm_shape *shape);
int gemm_run(const struct gemm *p, const struct gemm_at *at, void *work, uint64_t bytes, cudaStream_t stream,
             struct error *e);
void gemm_end(struct gemm *p);
/* Describes another shape to the library in place of the one before; the algorithm stays. */
int gemm_describe(struct gemm *p, const struct gemm_shape *shape, struct error *e);

/* Prints a line: the product and its algorithm; nothing if gemm_generic.cu computes it. */
void gemm_list(const struct gemm *p, struct text *out);

/* Returns the largest power of two, up to 256, that divides a number of bytes; 256 for 0. */
uint32_t gemm_align(uint64_t bytes);
/* Returns it for the operand's address over all iterations. slot: i of in[i], MAX_IN + o of
 * out[o]. */
uint32_t gemm_align_operand(const struct entry *entry, int slot);
