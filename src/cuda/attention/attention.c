/*
 * attention.c: the running half of attention: the operands and workspace of an entry become a
 * struct attention, and the kernels before, for and after the attention are launched
 * (launch_attention.h).
 */
#include <math.h>

#include "cuda/attention/hopper.h"
#include "cuda/device/host.h"
#include "cuda/attention/launch_attention.h"

/* --- from a launch to a struct attention ---------------------------------------------------- */

static struct head_rows rows_of(const struct operand *x)
{
    return (struct head_rows){x->data, x->stride[0], x->stride[1], x->stride[2]};
}

static struct head_table table_of(const struct operand *x)
{
    return (struct head_table){x->data, store_of(x->dtype), x->stride[0], x->stride[1]};
}

static void set_work(struct attention *a, const struct launch *l, int backward)
{
    const struct attention_sizes n = {.B = a->B, .T = a->T, .H = a->H, .D = a->D, .height = a->height, .width = a->width,
                                      .mode = a->mode, .backward = backward};
    const struct attention_work w = attention_work_of(&n);
    CHECK(w.total <= l->work_bytes, "%llu bytes of workspace", (unsigned long long)l->work_bytes);
    char *work = l->work;
    a->delta = (float *)(work + w.delta), a->lse2 = (float *)(work + w.lse2), a->tables = (float *)(work + w.tables);
    a->rel = (float *)(work + w.rel), a->drel = (float *)(work + w.drel);
    a->bias = (float *)(work + w.bias), a->partial = (float *)(work + w.partial);
}

/* q, k and v are the inputs from index `q` on; lse is passed separately. */
static struct attention attention_of(const struct launch *l, int q, const struct operand *lse, enum attention_mode mode)
{
    const struct operand *x = &l->in[q], *y = &l->in[q + 1];
    struct attention a = {
        .q = rows_of(x), .k = rows_of(y), .v = rows_of(&l->in[q + 2]), .lse = lse->data, .lse_sample = lse->stride[0],
        .lse_head = lse->stride[1], .lse_token = lse->stride[2], .type = store_of(x->dtype), .mode = mode,
        .B = (int)x->dim[0], .T = (int)x->dim[1], .S = (int)y->dim[1], .H = (int)x->dim[2], .G = (int)y->dim[2],
        .D = (int)x->dim[3], .window = INT32_MAX, .height = 1, .width = 1, .unit = 1,
    };
    if (mode == ATTENTION_PLAIN) {
        const int64_t window = l->attr->attention.window;
        a.scale = l->attr->attention.scale, a.causal = l->attr->attention.causal;
        if (window && window < INT32_MAX) a.window = (int)window;
        return a;
    }
    a.scale = l->attr->relative.scale, a.height = l->attr->relative.height, a.width = l->attr->relative.width;
    return a;
}

static void set_mask(struct attention *a, const struct launch *l, int input)
{
    if (!has(l, input)) return;
    a->mask = l->in[input].data;
    a->mask_sample = l->in[input].stride[0], a->mask_key = l->in[input].stride[1];
}

static void set_tables(struct attention *a, const struct launch *l, int input, int backward)
{
    const int tables = a->mode == ATTENTION_BY_TABLES ? 2 : a->mode == ATTENTION_BY_BIAS ? 1 : 0;
    for (int i = 0; i < tables; i++) {
        a->table[i] = table_of(&l->in[input + i]);
        if (backward) a->dtable[i] = l->out[3 + i].data;
    }
}

static struct attention forward_of(const struct launch *l, enum attention_mode mode)
{
    struct attention a = attention_of(l, 0, &l->out[1], mode);
    a.o = rows_of(&l->out[0]);
    if (mode == ATTENTION_PLAIN) set_mask(&a, l, 3);
    else set_tables(&a, l, 3, 0);
    set_work(&a, l, 0);
    return a;
}

static struct attention backward_of(const struct launch *l, enum attention_mode mode)
{
    struct attention a = attention_of(l, 1, &l->in[5], mode);
    a.dout = rows_of(&l->in[0]), a.o = rows_of(&l->in[4]);
    a.dq = rows_of(&l->out[0]), a.dk = rows_of(&l->out[1]), a.dv = rows_of(&l->out[2]);
    if (mode == ATTENTION_PLAIN) set_mask(&a, l, 6);
    else set_tables(&a, l, 6, 1);
    set_work(&a, l, 1);
    return a;
}

/* --- launching -------------------------------------------------------------------------------- */

/* Computes the terms that a tensor-core kernel adds to the scores. */
static int terms_before(struct attention *a, enum score_terms added, cudaStream_t stream, struct error *e)
{
    a->unit = (float)M_LOG2E;
    if (added != ADDS_GRID64) {
        TRY_CUDA(cuda_attention_before(a, 0, stream));
        return PL_OK;
    }
    TRY_CUDA(cuda_attention_tables(a, stream));
    TRY_CUDA(cuda_grid64_rel(a, a->unit, stream));
    return PL_OK;
}

static int tiles(const struct launch *l, enum attention_mode mode, enum score_terms added, struct error *e)
{
    struct attention a = forward_of(l, mode);
    TRY(terms_before(&a, added, l->stream, e));
    TRY_CUDA(cuda_attention_forward(&a, added, l->stream));
    return PL_OK;
}

static int tiles_bwd(const struct launch *l, enum attention_mode mode, enum score_terms added, struct error *e)
{
    struct attention a = backward_of(l, mode);
    TRY_CUDA(cuda_attention_row_stats(&a, l->stream));
    TRY(terms_before(&a, added, l->stream, e));
    TRY_CUDA(cuda_attention_dkv(&a, added, l->stream));
    TRY_CUDA(cuda_attention_dq(&a, added, l->stream));
    if (added != ADDS_GRID64) {
        TRY_CUDA(cuda_attention_after(&a, ATTENTION_FAST_TILE, l->stream));
        return PL_OK;
    }
    TRY_CUDA(cuda_grid64_dtables(&a, l->stream));
    TRY_CUDA(cuda_attention_sum_tables(&a, l->stream));
    return PL_OK;
}

static int plain(const struct launch *l, enum attention_mode mode, struct error *e)
{
    struct attention a = forward_of(l, mode);
    TRY_CUDA(cuda_attention_before(&a, 0, l->stream));
    TRY_CUDA(cuda_attention_plain(&a, l->stream));
    return PL_OK;
}

static int plain_bwd(const struct launch *l, enum attention_mode mode, struct error *e)
{
    struct attention a = backward_of(l, mode);
    TRY_CUDA(cuda_attention_before(&a, 1, l->stream));
    TRY_CUDA(cuda_attention_plain_bwd(&a, l->stream));
    TRY_CUDA(cuda_attention_after(&a, (int)attention_small_tile(a.D), l->stream));
    return PL_OK;
}

static int hopper(const struct launch *l, enum attention_mode mode, struct error *e)
{
    const struct attention a = forward_of(l, mode);
    return hopper_attention(&a, l->stream, e);
}

static int hopper_bwd(const struct launch *l, enum attention_mode mode, struct error *e)
{
    const struct attention a = backward_of(l, mode);
    return hopper_attention_bwd(&a, l->stream, e);
}

/* A kernel is a function of its launch and these arguments. */
#define LAUNCH(KERNEL, FUNCTION, ...) \
    static int launch_##KERNEL(const struct launch *l, struct error *e) { return FUNCTION(l, __VA_ARGS__, e); } \
    CUDA_KERNEL(KERNEL, .launch = launch_##KERNEL)
LAUNCH(cuda_attention_hopper, hopper, ATTENTION_PLAIN);
LAUNCH(cuda_attention_hopper_bwd, hopper_bwd, ATTENTION_PLAIN);
LAUNCH(cuda_attention_hopper_grid64, hopper, ATTENTION_BY_TABLES);
LAUNCH(cuda_attention_hopper_grid64_bwd, hopper_bwd, ATTENTION_BY_TABLES);
LAUNCH(cuda_attention_dense, tiles, ATTENTION_PLAIN, ADDS_NOTHING);
LAUNCH(cuda_attention_dense_bwd, tiles_bwd, ATTENTION_PLAIN, ADDS_NOTHING);
LAUNCH(cuda_attention_grid64, tiles, ATTENTION_BY_TABLES, ADDS_GRID64);
LAUNCH(cuda_attention_grid64_bwd, tiles_bwd, ATTENTION_BY_TABLES, ADDS_GRID64);
LAUNCH(cuda_attention_fast, tiles, ATTENTION_PLAIN, ADDS_MASK);
LAUNCH(cuda_attention_fast_bwd, tiles_bwd, ATTENTION_PLAIN, ADDS_MASK);
LAUNCH(cuda_attention_fast_rel, tiles, ATTENTION_BY_TABLES, ADDS_TABLES);
LAUNCH(cuda_attention_fast_rel_bwd, tiles_bwd, ATTENTION_BY_TABLES, ADDS_TABLES);
LAUNCH(cuda_attention_fast_bias, tiles, ATTENTION_BY_BIAS, ADDS_BIAS);
LAUNCH(cuda_attention_fast_bias_bwd, tiles_bwd, ATTENTION_BY_BIAS, ADDS_BIAS);
LAUNCH(cuda_attention, plain, ATTENTION_PLAIN);
LAUNCH(cuda_attention_bwd, plain_bwd, ATTENTION_PLAIN);
LAUNCH(cuda_attention_rel, plain, ATTENTION_BY_TABLES);
LAUNCH(cuda_attention_rel_bwd, plain_bwd, ATTENTION_BY_TABLES);
LAUNCH(cuda_attention_bias, plain, ATTENTION_BY_BIAS);
LAUNCH(cuda_attention_bias_bwd, plain_bwd, ATTENTION_BY_BIAS);
