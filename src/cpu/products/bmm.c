/*
 * bmm.c: batched matrix products: BMM, BMM_ACT and BMM_ACT_BWD.
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
#include "cpu/rows/activations.h"

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

/* Reports whether n products are enough for threads with whole products to finish at about the same
 * time. */
static bool are_many(int64_t n, int threads) { return n % threads == 0 || n >= 4 * (int64_t)threads; }

static uint64_t product_bytes(const struct products *p, enum dtype c, int threads)
{
    return align_up(gemm_workspace(p->M, p->N, p->K, c, threads), 64);
}

/* Reports whether the kernel runs BMM: the result's rows are contiguous; everything else may be
 * strided. */
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
    if (!are_many(p.n, threads)) return product_bytes(&p, c->dtype, threads);
    return product_bytes(&p, c->dtype, 1) * (uint64_t)threads;
}

/* Returns batch n of an operand, or its transpose. */
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
    struct gemm g = {.M = p->M, .N = p->N, .K = p->K, .a = batch_of(&l->in[0], n, l->attr->matmul.ta),
                     .b = batch_of(&l->in[1], n, l->attr->matmul.tb), .c = batch_of(&l->out[0], n, false),
                     .add = launch_has(l, 2)};
    g.c.column = 1; /* also for a single column, which has an arbitrary stride */
    gemm_run(&g, work, bytes, threads);
}

/* Computes op(a) op(b) + acc for each batch, in place in acc, of inputs a, b, acc?. */
static void bmm_run(const struct launch *l)
{
    const struct operand *c = &l->out[0];
    struct products p = products_of(c->rank, l->in[0].dim, c->dim, l->attr->matmul.ta);
    CHECK(!launch_has(l, 2) || l->in[2].data == c->data, "the result is not in the accumulator's bytes");
    if (!are_many(p.n, l->threads)) {
        for (int64_t n = 0; n < p.n; n++) product_run(l, &p, n, l->work, l->work_bytes, l->threads);
        return;
    }
    uint64_t bytes = product_bytes(&p, c->dtype, 1);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (p.n * p.M * p.N * p.K > 1 << 16)
    for (int64_t n = 0; n < p.n; n++)
        product_run(l, &p, n, (char *)l->work + (uint64_t)omp_get_thread_num() * bytes, bytes, 1);
}

CPU_KERNEL_WORK(BMM, bmm);

/* --- BMM_ACT: a product that computes the activation of its second operand as it reads it -----
 *
 *     y = a f(z)^T          da = dy f(z)          dz = (dy^T a) f'(z)
 *
 * The scratch memory holds f(z) of one batch at a time, in z's dtype. In the backward it also holds
 * f'(z), computed together with f(z); later the gradient before the multiplication by f'(z)
 * replaces f(z). The result is bit-identical to ACT, BMM and their gradients in sequence, and takes
 * the same time: value and derivative together cost as much as the derivative.
 *
 *     work: many batches   thread 0 [f(z) | f'(z) | a product's] thread 1 [f(z) | f'(z) | a product's] ...
 *           few batches    [f(z) | f'(z) | a product's on all threads] */

struct filters {
    int64_t n, M, N, K;
    enum dtype type; /* of z */
    int workers, each; /* batches at a time, and threads per batch */
    /* bytes of a worker's f(z), of f(z) and f'(z) together, and of a product's workspace */
    uint64_t values, scratch, product;
};

static uint64_t filter_bytes(const struct filters *x, enum dtype y, bool backward)
{
    if (!backward) return align_up(gemm_workspace(x->M, x->N, x->K, y, x->each), 64);
    const uint64_t da = gemm_workspace(x->M, x->K, x->N, y, x->each),
                   dz = gemm_workspace(x->N, x->K, x->M, x->type, x->each);
    return align_up(da > dz ? da : dz, 64);
}

/* Plans the products and their scratch memory from the dimensions of a and z; `to`: the dtype of y,
 * or of da. */
static struct filters filters_of(int rank, const int64_t *a, const int64_t *z, enum dtype type, enum dtype to,
                                 int threads, bool backward)
{
    struct filters x = {.n = 1, .M = a[rank - 2], .N = z[rank - 2], .K = a[rank - 1], .type = type};
    for (int i = 0; i + 2 < rank; i++) x.n *= a[i];
    const bool many = are_many(x.n, threads);
    x.workers = many ? threads : 1, x.each = many ? 1 : threads;
    x.values = align_up((uint64_t)(x.N * x.K) * dtype_size(type), 64);
    x.scratch = x.values + (backward ? align_up((uint64_t)(x.N * x.K) * sizeof(float), 64) : 0);
    x.product = filter_bytes(&x, to, backward);
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

/* Returns batch `b` of a dense operand as `rows` x `columns`. */
static struct operand filter_batch(const struct operand *x, int64_t b, int64_t rows, int64_t columns)
{
    return (struct operand){(char *)x->data + (uint64_t)(b * rows * columns) * dtype_size(x->dtype), x->dtype, 2,
                            {rows, columns}, {columns, 1}};
}

static struct matrix filter_matrix(const struct operand *x, bool transposed)
{
    const int64_t wide = x->dim[1];
    return (struct matrix){x->data, x->dtype, transposed ? 1 : wide, transposed ? wide : 1, NULL};
}

static void forward_batch(const struct launch *l, const struct filters *x, int64_t b, char *work)
{
    const struct operand a = filter_batch(&l->in[0], b, x->M, x->K), z = filter_batch(&l->in[1], b, x->N, x->K),
                         y = filter_batch(&l->out[0], b, x->M, x->N);
    struct operand f = z;
    f.data = work;
    act_all(l->attr->act.kind, &f, &z, x->each);
    const struct gemm g = {.M = x->M, .N = x->N, .K = x->K, .a = filter_matrix(&a, false),
                      .b = filter_matrix(&f, true), .c = filter_matrix(&y, false)};
    gemm_run(&g, work + x->scratch, x->product, x->each);
}

/* Computes dz = f slope. */
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

/* Computes da and dz of a batch. z is read before dz is written, which may be in place of z. */
static void backward_batch(const struct launch *l, const struct filters *x, int64_t b, char *work)
{
    const struct operand dy = filter_batch(&l->in[0], b, x->M, x->N), a = filter_batch(&l->in[1], b, x->M, x->K),
                         z = filter_batch(&l->in[2], b, x->N, x->K);
    const struct operand da = filter_batch(&l->out[0], b, x->M, x->K), dz = filter_batch(&l->out[1], b, x->N, x->K);
    struct operand f = z;
    float *slope = (float *)(work + x->values);
    f.data = work;
    act_both(l->attr->act.kind, &f, slope, &z, x->each);
    const struct gemm first = {.M = x->M, .N = x->K, .K = x->N, .a = filter_matrix(&dy, false),
                      .b = filter_matrix(&f, false), .c = filter_matrix(&da, false)};
    gemm_run(&first, work + x->scratch, x->product, x->each);
    const struct gemm second = {.M = x->N, .N = x->K, .K = x->M, .a = filter_matrix(&dy, true),
                      .b = filter_matrix(&a, false), .c = filter_matrix(&f, false)};
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

static uint64_t bmm_act_workspace(const struct query *q) { return filters_bytes(q, false); }
static void bmm_act_run(const struct launch *l) { run_batches(l, false); }

static uint64_t bmm_act_bwd_workspace(const struct query *q) { return filters_bytes(q, true); }
static void bmm_act_bwd_run(const struct launch *l) { run_batches(l, true); }

CPU_KERNEL_DENSE_WORK(BMM_ACT, bmm_act);
CPU_KERNEL_DENSE_WORK(BMM_ACT_BWD, bmm_act_bwd);
