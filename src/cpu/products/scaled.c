/*
 * scaled.c: SCALED_LINEAR and SCALED_DW: products of numbers in e4m3 with scales, which a CPU
 * emulates.
 *
 *     x, xs  --decode-->  bf16 [M,K]  \
 *                                       product (gemm.c), sums in f32  --> y
 *     w, ws  --decode-->  bf16 [N,K]  /
 *
 * A code times its scale, a power of two, is exact in bf16. So the product is that of the decoded
 * numbers, which is what a GPU computes to the rounding of its sums.
 *
 *     work: x decoded | w decoded | workspace of the product
 */
#include "base/e4m3.h"
#include "cpu/cpu.h"
#include "cpu/products/gemm.h"
#include "cpu/reference/ref.h"

enum { WORK_ALIGN = 64 };

/* The operands of a product: a [M,K] b^T [N,K] with a scale for each row, or, where sums have
 * blocks, for each row and block. */
struct scaled {
    const struct operand *a, *as, *b, *bs;
    int64_t M, N, K, blocks;
};

/* Returns the decoded bytes of [rows,K]. */
static uint64_t decoded_bytes(int64_t rows, int64_t K)
{
    return align_up((uint64_t)(rows * K) * sizeof(uint16_t), WORK_ALIGN);
}

static uint64_t scaled_workspace(int64_t M, int64_t N, int64_t K, enum dtype c, int threads)
{
    return decoded_bytes(M, K) + decoded_bytes(N, K) + gemm_workspace(M, N, K, c, threads);
}

/* --- the reference ---------------------------------------------------------------------------- */

/* Returns element (i,k) of [rows,K] with its scale, one of [blocks,rows]. */
static double decoded(const struct operand *x, const struct operand *scale, int64_t i, int64_t k, int64_t rows,
                      int64_t K, int64_t blocks)
{
    return ref_get(x, i * K + k) * ref_get(scale, k / (K / blocks) * rows + i);
}

static double ref_sum(const struct scaled *p, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t k = 0; k < p->K; k++)
        sum += decoded(p->a, p->as, i, k, p->M, p->K, p->blocks) * decoded(p->b, p->bs, j, k, p->N, p->K, p->blocks);
    return sum;
}

static struct scaled linear_of(const struct launch *l)
{
    return (struct scaled){&l->in[0], &l->in[1], &l->in[2], &l->in[3], operand_rows(&l->in[0]), l->in[2].dim[0],
                           operand_last(&l->in[0]), 1};
}

static struct scaled dw_of(const struct launch *l)
{
    return (struct scaled){&l->in[0], &l->in[1], &l->in[2], &l->in[3], l->in[0].dim[0], l->in[2].dim[0],
                           operand_last(&l->in[0]), l->in[1].dim[0]};
}

static void ref_scaled_linear(const struct launch *l)
{
    const struct scaled p = linear_of(l);
    for (int64_t i = 0; i < p.M; i++)
        for (int64_t j = 0; j < p.N; j++) {
            const double bias = launch_has(l, 4) ? ref_get(&l->in[4], j) : 0;
            ref_put(&l->out[0], i * p.N + j, ref_sum(&p, i, j) + bias + ref_get_acc(l, 5, i * p.N + j));
        }
}

static void ref_scaled_dw(const struct launch *l)
{
    const struct scaled p = dw_of(l);
    for (int64_t i = 0; i < p.M; i++)
        for (int64_t j = 0; j < p.N; j++)
            ref_put(&l->out[0], i * p.N + j, ref_sum(&p, i, j) + ref_get_acc(l, 4, i * p.N + j));
}

/* --- fast ------------------------------------------------------------------------------------- */

/* Decodes [rows,K] to bf16, exactly. */
static void decode(uint16_t *to, const struct operand *x, const struct operand *scales, int64_t rows, int64_t K,
                   int64_t blocks, int threads)
{
    const uint8_t *codes = x->data;
    const float *scale = scales->data;
    const int64_t each = K / blocks;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows > 1)
    for (int64_t i = 0; i < rows; i++)
        for (int64_t b = 0; b < blocks; b++) {
            const float s = scale[b * rows + i];
            const int64_t from = i * K + b * each;
#pragma omp simd
            for (int64_t k = 0; k < each; k++) to[from + k] = f32_to_bf16(e4m3_to_f32(codes[from + k]) * s);
        }
}

/* Computes the product of the decoded operands into `to`, which it is added to if `add`. */
static void run_product(const struct launch *l, const struct scaled *p, const struct operand *to,
                        const struct operand *bias, bool add)
{
    char *work = l->work;
    const uint64_t a = decoded_bytes(p->M, p->K), b = decoded_bytes(p->N, p->K);
    decode((uint16_t *)(void *)work, p->a, p->as, p->M, p->K, p->blocks, l->threads);
    decode((uint16_t *)(void *)(work + a), p->b, p->bs, p->N, p->K, p->blocks, l->threads);
    const struct gemm g = {.M = p->M, .N = p->N, .K = p->K, .rows = launch_whole(l, p->M),
                           .a = {work, DT_BF16, p->K, 1, NULL}, .b = {work + a, DT_BF16, 1, p->K, NULL},
                           .c = {to->data, to->dtype, p->N, 1, NULL}, .bias = bias ? bias->data : NULL,
                           .bias_dtype = bias ? bias->dtype : DT_NONE, .add = add};
    gemm_run(&g, work + a + b, l->work_bytes - a - b, l->threads);
}

static bool is_coded(const struct query *q, int i)
{
    return tensor_is(q->in[i], DT_E4M3) && tensor_is(q->in[i + 1], DT_F32);
}

static bool scaled_linear_match(const struct query *q)
{
    const struct tensor *bias = query_in(q, 4), *add = query_in(q, 5);
    return is_coded(q, 0) && is_coded(q, 2) && tensor_is_fast(q->out[0]) && (!bias || tensor_is_fast(bias)) &&
           (!add || tensor_is_fast(add));
}

static uint64_t scaled_linear_workspace(const struct query *q)
{
    return scaled_workspace(tensor_rows(q->in[0]), q->in[2]->dim[0], tensor_last(q->in[0]), q->out[0]->dtype,
                            q->profile->threads);
}

static void scaled_linear_run(const struct launch *l)
{
    const struct scaled p = linear_of(l);
    const bool add = launch_has(l, 5);
    if (add) row_copy(&l->out[0], &l->in[5], l->threads);
    run_product(l, &p, &l->out[0], launch_has(l, 4) ? &l->in[4] : NULL, add);
}

static bool scaled_dw_match(const struct query *q)
{
    const struct tensor *acc = query_in(q, 4);
    return is_coded(q, 0) && is_coded(q, 2) && tensor_is_fast(q->out[0]) &&
           (!acc || (tensor_is_fast(acc) && acc->dtype == q->out[0]->dtype));
}

static uint64_t scaled_dw_workspace(const struct query *q)
{
    return scaled_workspace(q->in[0]->dim[0], q->in[2]->dim[0], tensor_last(q->in[0]), q->out[0]->dtype,
                            q->profile->threads);
}

static void scaled_dw_run(const struct launch *l)
{
    const struct scaled p = dw_of(l);
    CHECK(!launch_has(l, 4) || l->in[4].data == l->out[0].data, "the result is not in the accumulator's bytes");
    run_product(l, &p, &l->out[0], NULL, launch_has(l, 4));
}

REF_KERNEL(SCALED_LINEAR, scaled_linear);
REF_KERNEL(SCALED_DW, scaled_dw);
CPU_KERNEL_WORK(SCALED_LINEAR, scaled_linear);
CPU_KERNEL_WORK(SCALED_DW, scaled_dw);
