/*
 * bmm.c: the kernel BMM: batched matrix products.
 *
 * Each batch is a product of its own (gemm.h), so the strides of the last two dimensions are
 * handled by packing, and leading strides by the start address of a batch:
 *
 *     a [..., M, K]   element (i,k) of batch n is at  begin(n) + i * stride + k * stride
 *
 * With many batches each thread computes whole products; few batches are computed one after the
 * other by all threads. A product's bits do not depend on the number of threads, so both variants
 * give the same result.
 *
 *     work: many batches   thread 0 [a product's] thread 1 [a product's] ...
 *           few batches    [a product's on all threads]
 */
#include <omp.h>

#include "cpu/cpu.h"
#include "cpu/products/gemm.h"

static bool is_float(const struct tensor *t) { return t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16; }

/* The shape of all products, from a's and the result's dimensions. */
struct products {
    int64_t M, N, K, n;
};

static struct products products_of(int rank, const int64_t *a, const int64_t *c, bool ta)
{
    struct products p = {.M = c[rank - 2], .N = c[rank - 1], .K = a[ta ? rank - 2 : rank - 1], .n = 1};
    for (int i = 0; i < rank - 2; i++) p.n *= c[i];
    return p;
}

/* True for so many products that threads with whole products finish at about the same time. */
static bool products_are_many(const struct products *p, int threads)
{
    return p->n % threads == 0 || p->n >= 4 * (int64_t)threads;
}

static uint64_t product_bytes(const struct products *p, enum dtype c, int threads)
{
    return align_up(gemm_workspace(p->M, p->N, p->K, c, threads), 64);
}

/* The result's rows are contiguous; everything else may be strided. */
static bool bmm_match(const struct query *q)
{
    const struct tensor *c = q->out[0], *acc = q->nin > 2 ? q->in[2] : NULL;
    return is_float(q->in[0]) && is_float(q->in[1]) && is_float(c) &&
           (c->stride[c->rank - 1] == 1 || tensor_last(c) == 1) && (!acc || acc->dtype == c->dtype);
}

static uint64_t bmm_workspace(const struct query *q)
{
    const struct tensor *c = q->out[0];
    struct products p = products_of(c->rank, q->in[0]->dim, c->dim, q->attr->matmul.ta);
    int threads = q->profile->threads;
    if (!products_are_many(&p, threads)) return product_bytes(&p, c->dtype, threads);
    return product_bytes(&p, c->dtype, 1) * (uint64_t)threads;
}

/* Batch n of an operand, or its transpose. */
static struct matrix batch_of(const struct operand *x, int64_t n, bool transposed)
{
    int64_t at = 0, row = x->stride[x->rank - 2], column = x->stride[x->rank - 1];
    for (int d = x->rank - 3; d >= 0; d--) {
        at += n % x->dim[d] * x->stride[d];
        n /= x->dim[d];
    }
    return (struct matrix){(char *)x->data + at * dtype_size(x->dtype), x->dtype, transposed ? column : row,
                           transposed ? row : column};
}

static void product_run(const struct launch *l, const struct products *p, int64_t n, void *work, uint64_t bytes,
                        int threads)
{
    struct gemm g = {
        .M = p->M, .N = p->N, .K = p->K,
        .a = batch_of(&l->in[0], n, l->attr->matmul.ta), .b = batch_of(&l->in[1], n, l->attr->matmul.tb),
        .c = batch_of(&l->out[0], n, false), .add = l->nin > 2 && l->in[2].data,
    };
    g.c.column = 1; /* also for a single column, which has an arbitrary stride */
    gemm_run(&g, work, bytes, threads);
}

/* a, b, acc?: op(a) op(b) + acc for each batch, in place in acc. */
static void bmm_run(const struct launch *l)
{
    const struct operand *c = &l->out[0];
    struct products p = products_of(c->rank, l->in[0].dim, c->dim, l->attr->matmul.ta);
    CHECK(l->nin <= 2 || !l->in[2].data || l->in[2].data == c->data, "the result is not in the accumulator's bytes");
    if (!products_are_many(&p, l->threads)) {
        for (int64_t n = 0; n < p.n; n++) product_run(l, &p, n, l->work, l->work_bytes, l->threads);
        return;
    }
    uint64_t bytes = product_bytes(&p, c->dtype, 1);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (p.n * p.M * p.N * p.K > 1 << 16)
    for (int64_t n = 0; n < p.n; n++)
        product_run(l, &p, n, (char *)l->work + (uint64_t)omp_get_thread_num() * bytes, bytes, 1);
}

CPU_KERNEL_WORK(BMM, bmm);
