/*
 * linear_act.c: LINEAR_ACT: a matrix product with an activation as its epilogue.
 *
 *     x w^T + bias --round--> z --f--> y
 *
 * The product is LINEAR's, stored into z, or into y if z is not read. The epilogue then reads the
 * stored, rounded elements while they are in cache. The result is therefore bit-identical to LINEAR
 * followed by ACT, and z is not read from memory a second time.
 *
 * oneDNN's products have no epilogue of ours: there the function follows the product, as ACT would.
 * Whether oneDNN computes the product is decided as for LINEAR: fusing changes no bit.
 */
#include "cpu/rows/activations.h"
#include "cpu/cpu.h"
#include "cpu/products/gemm.h"
#include "cpu/products/onednn.h"
#include "cpu/rows.h"

struct apply {
    struct epilogue epilogue;
    enum act_kind kind;
    const struct operand *y, *z; /* [rows x N] */
    int64_t N;
};

static void apply_take(const struct epilogue *e, int64_t i, int64_t m, int64_t j, int64_t n)
{
    const struct apply *a = (const struct apply *)e;
    for (int64_t r = i; r < i + m; r++)
        for (int64_t c = j; c < j + n; c += TILE) act_tile(a->kind, a->y, a->z, r * a->N + c, row_tile(j + n - c));
}

/* The destination of the product: y if z is not read. */
static const struct operand *stored(const struct launch *l) { return l->out[1].data ? &l->out[1] : &l->out[0]; }

static bool linear_act_match(const struct query *q) { return query_is_fast(q); }

static uint64_t linear_act_workspace(const struct query *q)
{
    const struct tensor *x = q->in[0], *w = q->in[1], *y = q->out[0];
    return gemm_workspace(tensor_rows(x), w->dim[0], tensor_last(x), y->dtype, q->profile->threads);
}

static void linear_act_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *w = &l->in[1], *z = stored(l);
    const int64_t M = operand_rows(x), N = w->dim[0], K = operand_last(x);
    struct apply apply = {{apply_take}, l->attr->act.kind, &l->out[0], z, N};
    struct gemm g = {
        .M = M,
        .N = N,
        .K = K,
        .rows = portion_whole(l->portion, M),
        .a = {x->data, x->dtype, K, 1, NULL},
        .b = {w->data, w->dtype, 1, K, NULL},
        .c = {z->data, z->dtype, N, 1, NULL},
        .bias = launch_has(l, 2) ? l->in[2].data : NULL,
        .bias_dtype = launch_has(l, 2) ? l->in[2].dtype : DT_NONE,
        .epilogue = &apply.epilogue,
    };
    gemm_run(&g, l->work, l->work_bytes, l->threads);
}

void onednn_linear_act_run(const struct launch *l)
{
    struct launch product = *l;
    product.out[0] = *stored(l);
    onednn_linear_run(&product);
    act_all(l->attr->act.kind, &l->out[0], stored(l), l->threads);
}

CPU_KERNELS(LINEAR_ACT, {0, "onednn_linear_act", onednn_linear_match, onednn_linear_workspace, onednn_linear_act_run},
            KERNEL_WORK(linear_act));
