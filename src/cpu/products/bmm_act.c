/*
 * bmm_act.c: BMM_ACT and BMM_ACT_BWD: a matrix product that computes the activation of its second
 * operand as it reads it.
 *
 *     y = a f(z)^T          da = dy f(z)          dz = (dy^T a) f'(z)
 *
 * The scratch memory holds f(z) of one batch at a time, in z's dtype. In the backward it also holds
 * f'(z), computed together with f(z); later the gradient before the multiplication by f'(z)
 * replaces f(z). The result is bit-identical to ACT, BMM and their gradients in sequence, and takes
 * the same time: value and derivative together cost as much as the derivative.
 *
 * Many batches are shared among the threads, few are computed one after the other by all of them,
 * as in bmm.c, and as there the bits do not depend on the variant.
 *
 *     work: many batches   thread 0 [f(z) | f'(z) | a product's] thread 1 [f(z) | f'(z) | a product's] ...
 *           few batches    [f(z) | f'(z) | a product's on all threads]
 */
#include <omp.h>

#include "cpu/rows/activations.h"
#include "cpu/cpu.h"
#include "cpu/products/gemm.h"
#include "cpu/rows.h"

struct filters {
    int64_t n, M, N, K;
    enum dtype type; /* of z */
    int workers, each; /* batches at a time, and threads per batch */
    /* bytes of a worker's f(z), of f(z) and f'(z) together, and of a product's workspace */
    uint64_t values, scratch, product;
};

static uint64_t product_bytes(const struct filters *x, enum dtype y, bool backward)
{
    if (!backward) return align_up(gemm_workspace(x->M, x->N, x->K, y, x->each), 64);
    const uint64_t da = gemm_workspace(x->M, x->K, x->N, y, x->each),
                   dz = gemm_workspace(x->N, x->K, x->M, x->type, x->each);
    return align_up(da > dz ? da : dz, 64);
}

/* From the dimensions of a and z; `to`: the dtype of y, or of da. */
static struct filters filters_of(int rank, const int64_t *a, const int64_t *z, enum dtype type, enum dtype to,
                                 int threads, bool backward)
{
    struct filters x = {.n = 1, .M = a[rank - 2], .N = z[rank - 2], .K = a[rank - 1], .type = type};
    for (int i = 0; i + 2 < rank; i++) x.n *= a[i];
    const bool many = x.n % threads == 0 || x.n >= 4 * (int64_t)threads;
    x.workers = many ? threads : 1, x.each = many ? 1 : threads;
    x.values = align_up((uint64_t)(x.N * x.K) * dtype_size(type), 64);
    x.scratch = x.values + (backward ? align_up((uint64_t)(x.N * x.K) * sizeof(float), 64) : 0);
    x.product = product_bytes(&x, to, backward);
    return x;
}

static uint64_t filters_bytes(const struct query *q, bool backward)
{
    const struct tensor *a = q->in[backward], *z = q->in[backward + 1];
    const struct filters x =
        filters_of(a->rank, a->dim, z->dim, z->dtype, q->out[0]->dtype, q->profile->threads, backward);
    return (uint64_t)x.workers * (x.scratch + x.product);
}

static struct filters filters_launched(const struct launch *l, bool backward)
{
    const struct operand *a = &l->in[backward], *z = &l->in[backward + 1];
    const struct filters x = filters_of(a->rank, a->dim, z->dim, z->dtype, l->out[0].dtype, l->threads, backward);
    CHECK(l->work_bytes >= (uint64_t)x.workers * (x.scratch + x.product), "%llu bytes of workspace",
          (unsigned long long)l->work_bytes);
    return x;
}

/* Batch `b` of a dense operand as `rows` x `columns`. */
static struct operand batch_of(const struct operand *x, int64_t b, int64_t rows, int64_t columns)
{
    return (struct operand){(char *)x->data + (uint64_t)(b * rows * columns) * dtype_size(x->dtype),
                            x->dtype,
                            2,
                            {rows, columns},
                            {columns, 1}};
}

static struct matrix matrix_of(const struct operand *x, bool transposed)
{
    const int64_t wide = x->dim[1];
    return (struct matrix){x->data, x->dtype, transposed ? 1 : wide, transposed ? wide : 1, NULL};
}

static void forward_batch(const struct launch *l, const struct filters *x, int64_t b, char *work)
{
    const struct operand a = batch_of(&l->in[0], b, x->M, x->K), z = batch_of(&l->in[1], b, x->N, x->K),
                         y = batch_of(&l->out[0], b, x->M, x->N);
    struct operand f = z;
    f.data = work;
    act_all(l->attr->act.kind, &f, &z, x->each);
    const struct gemm g = {.M = x->M,
                           .N = x->N,
                           .K = x->K,
                           .a = matrix_of(&a, false),
                           .b = matrix_of(&f, true),
                           .c = matrix_of(&y, false)};
    gemm_run(&g, work + x->scratch, x->product, x->each);
}

/* dz = f slope. */
static void times_slope(const struct operand *dz, const struct operand *f, const float *slope, int threads)
{
    const int64_t n = operand_elements(dz);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t at = 0; at < n; at += TILE) {
        float own[TILE], made[TILE];
        const int width = row_tile(n - at);
        const float *from = row_view(f, at, width, own);
        float *to = row_place(dz, at, made);
        for (int i = 0; i < width; i++) to[i] = from[i] * slope[at + i];
        row_store(dz, at, width, to);
    }
}

/* z is read before dz is written, which may be in place of z. */
static void backward_batch(const struct launch *l, const struct filters *x, int64_t b, char *work)
{
    const struct operand dy = batch_of(&l->in[0], b, x->M, x->N), a = batch_of(&l->in[1], b, x->M, x->K),
                         z = batch_of(&l->in[2], b, x->N, x->K);
    const struct operand da = batch_of(&l->out[0], b, x->M, x->K), dz = batch_of(&l->out[1], b, x->N, x->K);
    struct operand f = z;
    float *slope = (float *)(work + x->values);
    f.data = work;
    act_both(l->attr->act.kind, &f, slope, &z, x->each);
    const struct gemm first = {.M = x->M,
                               .N = x->K,
                               .K = x->N,
                               .a = matrix_of(&dy, false),
                               .b = matrix_of(&f, false),
                               .c = matrix_of(&da, false)};
    gemm_run(&first, work + x->scratch, x->product, x->each);
    const struct gemm second = {.M = x->N,
                                .N = x->K,
                                .K = x->M,
                                .a = matrix_of(&dy, true),
                                .b = matrix_of(&a, false),
                                .c = matrix_of(&f, false)};
    gemm_run(&second, work + x->scratch, x->product, x->each);
    times_slope(&dz, &f, slope, x->each);
}

static void run_batches(const struct launch *l, bool backward)
{
    const struct filters x = filters_launched(l, backward);
#pragma omp parallel for num_threads(x.workers) schedule(static) if (x.workers > 1)
    for (int64_t b = 0; b < x.n; b++) {
        char *work = (char *)l->work + (x.workers > 1 ? (uint64_t)omp_get_thread_num() * (x.scratch + x.product) : 0);
        if (backward) backward_batch(l, &x, b, work);
        else forward_batch(l, &x, b, work);
    }
}

static bool bmm_act_match(const struct query *q) { return query_is_fast(q); }
static uint64_t bmm_act_workspace(const struct query *q) { return filters_bytes(q, false); }
static void bmm_act_run(const struct launch *l) { run_batches(l, false); }

static bool bmm_act_bwd_match(const struct query *q) { return query_is_fast(q); }
static uint64_t bmm_act_bwd_workspace(const struct query *q) { return filters_bytes(q, true); }
static void bmm_act_bwd_run(const struct launch *l) { run_batches(l, true); }

CPU_KERNEL_WORK(BMM_ACT, bmm_act);
CPU_KERNEL_WORK(BMM_ACT_BWD, bmm_act_bwd);
