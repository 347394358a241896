/*
 * product.h: one matrix product on the GPU, batched or not, as products.c and conv.c ask for it.
 *
 *     c [M,N]  =  a [M,K] b [K,N]  (+ bias [N] in every row)  (+ c, or what lies elsewhere as c does)
 *
 * A transpose is a pair of strides and nothing else: whoever wants a^T says where element (i,k)
 * of it lies. The library's own notions (column-major, leading dimensions, transposed
 * operands) exist in product.c alone.
 */
#ifndef CUDA_PRODUCT_H
#define CUDA_PRODUCT_H

#include "cuda/host.h"

/* Element (i,j) of batch n lies at n batch + i row + j column, counted in elements. */
struct view {
    enum dtype dtype;
    int64_t row, column, batch;
    uint32_t align; /* a power of two that divides all its batches' addresses */
};

struct product_shape {
    int64_t M, N, K, batches;
    struct view a, b, c;
    bool bias;
    enum dtype bias_dtype;
    uint32_t bias_align;
    uint32_t from_align; /* of what is added from elsewhere; 0: there is nothing */
};

struct product {
    struct product_shape shape;
    bool library;               /* else our own kernel makes it (product.cu) */
    cublasLtHandle_t blas;      /* the device's */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algorithm;
};

/* Where a product's operands lie at one launch. bias is NULL where the shape has none. What lies at
 * `from`, as c does, is added in f32 and rounded once: c itself, or something else, where the
 * shape says so. NULL: nothing is added. */
struct product_at {
    void *c;
    const void *a, *b, *bias, *from;
};

/* Chooses the algorithm, within so many bytes of workspace. p must be zero; product_end frees
 * what it holds, after a failure too. */
int product_begin(struct product *p, const struct cuda_state *s, const struct product_shape *shape, uint64_t workspace,
                  struct error *e);
int product_run(const struct product *p, const struct product_at *at, void *work, uint64_t bytes, cudaStream_t stream,
                struct error *e);
void product_end(struct product *p);

/* The largest power of two, up to 256, that divides a number of bytes; of 0: 256. */
uint32_t product_align(uint64_t bytes);
/* The same of the operand's address in every iteration. slot: i of in[i], MAX_IN + o of out[o]. */
uint32_t product_align_operand(const struct entry *entry, int slot);

#endif
