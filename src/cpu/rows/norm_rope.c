/*
 * norm_rope.c: RMSNORM_ROPE and its gradient, token by token: what is between the norm and the
 * rotation stays in the cache. The bits are those of the two ops: the same functions run on the
 * same rows, and what is between them is rounded as a tensor would be.
 */
#include "cpu/cpu.h"
#include "cpu/rows/row_parts.h"
#include "run/norm_rope.h"

static bool rmsnorm_rope_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is_fast(q->in[1]) && tensor_is(q->in[2], DT_F32) &&
           tensor_is_fast(q->out[0]) && tensor_is(q->out[1], DT_F32);
}

static void rmsnorm_rope_run(const struct launch *l)
{
    const struct operand *x = &l->in[0]; // [B,T,H,D]
    const int64_t B = x->dim[0], T = x->dim[1], H = x->dim[2];
    struct norm_rope n;
    norm_rope_apart(&n, l);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (operand_elements(x) > 4096)
    for (int64_t t = 0; t < T; t++) {
        for (int64_t row = 0; row < B * H; row++)
            rmsnorm_row(&n.norm, x, &l->in[1], (row / H * T + t) * H + row % H);
        rope_place(&n.rope, t);
    }
}

static bool rmsnorm_rope_bwd_match(const struct query *q)
{
    for (int i = 0; i < 3; i++)
        if (!tensor_is_fast(q->in[i])) return false;
    return tensor_is(q->in[3], DT_F32) && tensor_is(q->in[4], DT_F32) && tensor_is_fast(q->out[0]) &&
           tensor_is(q->out[1], DT_F32);
}

static uint64_t rmsnorm_rope_bwd_workspace(const struct query *q)
{
    return (uint64_t)(row_blocks(tensor_rows(q->in[1])).n * tensor_last(q->in[1])) * sizeof(float);
}

/* Walks the blocks of rows that RMSNORM_BWD has, so that dw is the same sum. */
static void rmsnorm_rope_bwd_run(const struct launch *l)
{
    const struct operand *x = &l->in[1]; // [B,T,H,D]
    const int64_t H = x->dim[2], D = x->dim[3], rows = operand_rows(x);
    const struct row_blocks blocks = launch_row_blocks(l, rows);
    float *partial = l->work; // [blocks, D]
    struct norm_rope n;
    norm_rope_bwd_apart(&n, l);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (rows * D > 4096)
    for (int64_t b = 0; b < blocks.n; b++) {
        float *dw = partial + b * D;
        memset(dw, 0, (size_t)D * sizeof *dw);
        const int64_t end = min_i64(rows, (b + 1) * blocks.each);
        for (int64_t row = b * blocks.each, next; row < end; row = next) {
            next = min_i64(end, (row / H + 1) * H);
            rope_heads(&n.rope, row, next);
            rmsnorm_bwd_rows(&n.norm, row, next, dw);
        }
    }
    row_combine(&l->out[1], partial, blocks.n, false, l->threads);
}

CPU_KERNEL(RMSNORM_ROPE, rmsnorm_rope);
CPU_KERNEL_WORK(RMSNORM_ROPE_BWD, rmsnorm_rope_bwd);
