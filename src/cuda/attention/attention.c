/*
 * attention.c: the running half of attention: the operands and workspace of an entry become a
 * struct attention, and the kernels before, for and after the attention are launched
 * (launch_attention.h).
 */
#include <math.h>

#include "cuda/attention/hopper.h"
#include "cuda/device/gpu.h"
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

/* Whether scores are products and nothing is added to them. */
static bool has_no_score_bias(const struct attention *a) { return a->mode == ATTENTION_PLAIN && !a->mask && a->scale > 0; }

/* Whether tiles fit ATTENTION_SHARED_SM75; the kernels report their size by head dimension. */
static bool fits_sm75(const struct attention *a, bool backward)
{
    if (has_no_score_bias(a)) return !backward || a->D <= ATTENTION_SMALL;
    if (attention_is_grid64(a)) return a->D <= ATTENTION_SMALL && cuda_attention_fast_shared_bytes(a) <= ATTENTION_SHARED_SM75;
    return cuda_attention_fast_shared_bytes(a) <= ATTENTION_SHARED_SM75 &&
           (!backward || (cuda_attention_fast_dkv_shared_bytes(a) <= ATTENTION_SHARED_SM75 && cuda_attention_fast_dq_shared_bytes(a) <= ATTENTION_SHARED_SM75));
}

/* Whether the GPU's tensor cores support this attention. A plan must not depend on that. From 8.0
 * on they support bf16, and all tiles fit the shared memory. */
static bool gpu_supports(const struct attention *a, bool backward)
{
    const int capability = gpu_capability();
    return capability >= 80 || (capability >= 75 && a->type == STORE_F16 && fits_sm75(a, backward));
}

/* Computes what the tensor-core kernels need for a grid. */
static int fast_before(struct attention *a, cudaStream_t stream, struct error *e)
{
    a->unit = (float)M_LOG2E;
    if (!attention_is_grid64(a)) TRY_CUDA(cuda_attention_before(a, 0, stream));
    else {
        TRY_CUDA(cuda_attention_tables(a, stream));
        TRY_CUDA(cuda_grid64_rel(a, a->unit, stream));
    }
    return PL_OK;
}

static int fast_forward(struct attention *a, cudaStream_t stream, struct error *e)
{
    if (has_no_score_bias(a)) {
        TRY_CUDA(cuda_attention_dense(a, stream));
        return PL_OK;
    }
    TRY(fast_before(a, stream, e));
    TRY_CUDA(cuda_attention_fast(a, attention_is_grid64(a), stream));
    return PL_OK;
}

static int fast_backward(struct attention *a, cudaStream_t stream, struct error *e)
{
    TRY_CUDA(cuda_attention_row_stats(a, stream));
    if (has_no_score_bias(a)) {
        TRY_CUDA(cuda_attention_dense_dkv(a, stream));
        TRY_CUDA(cuda_attention_dense_dq(a, stream));
        return PL_OK;
    }
    TRY(fast_before(a, stream, e));
    if (!attention_is_grid64(a)) {
        TRY_CUDA(cuda_attention_fast_dkv(a, stream));
        TRY_CUDA(cuda_attention_fast_dq(a, stream));
        TRY_CUDA(cuda_attention_after(a, ATTENTION_FAST_TILE, stream));
    } else {
        TRY_CUDA(cuda_attention_grid64_dkv(a, stream));
        TRY_CUDA(cuda_attention_grid64_dq(a, stream));
        TRY_CUDA(cuda_grid64_dtables(a, stream));
        TRY_CUDA(cuda_attention_sum_tables(a, stream));
    }
    return PL_OK;
}

static int forward(const struct launch *l, enum attention_mode mode, bool fast, struct error *e)
{
    struct attention a = forward_of(l, mode);
    if (fast && hopper_supports(&a, false)) return hopper_attention(&a, l->stream, e);
    if (fast && gpu_supports(&a, false)) return fast_forward(&a, l->stream, e);
    TRY_CUDA(cuda_attention_before(&a, 0, l->stream));
    TRY_CUDA(cuda_attention_plain(&a, l->stream));
    return PL_OK;
}

static int backward(const struct launch *l, enum attention_mode mode, bool fast, struct error *e)
{
    struct attention a = backward_of(l, mode);
    if (fast && hopper_supports(&a, true)) return hopper_attention_bwd(&a, l->stream, e);
    if (fast && gpu_supports(&a, true)) return fast_backward(&a, l->stream, e);
    TRY_CUDA(cuda_attention_before(&a, 1, l->stream));
    TRY_CUDA(cuda_attention_plain_bwd(&a, l->stream));
    TRY_CUDA(cuda_attention_after(&a, (int)attention_small_tile(a.D), l->stream));
    return PL_OK;
}

static int launch_plain(const struct launch *l, struct error *e) { return forward(l, ATTENTION_PLAIN, false, e); }
static int launch_rel(const struct launch *l, struct error *e) { return forward(l, ATTENTION_BY_TABLES, false, e); }
static int launch_bias(const struct launch *l, struct error *e) { return forward(l, ATTENTION_BY_BIAS, false, e); }
static int launch_plain_bwd(const struct launch *l, struct error *e) { return backward(l, ATTENTION_PLAIN, false, e); }
static int launch_rel_bwd(const struct launch *l, struct error *e) { return backward(l, ATTENTION_BY_TABLES, false, e); }
static int launch_bias_bwd(const struct launch *l, struct error *e) { return backward(l, ATTENTION_BY_BIAS, false, e); }

static int launch_fast(const struct launch *l, struct error *e) { return forward(l, ATTENTION_PLAIN, true, e); }
static int launch_fast_rel(const struct launch *l, struct error *e) { return forward(l, ATTENTION_BY_TABLES, true, e); }
static int launch_fast_bias(const struct launch *l, struct error *e) { return forward(l, ATTENTION_BY_BIAS, true, e); }
static int launch_fast_bwd(const struct launch *l, struct error *e) { return backward(l, ATTENTION_PLAIN, true, e); }
static int launch_fast_rel_bwd(const struct launch *l, struct error *e) { return backward(l, ATTENTION_BY_TABLES, true, e); }
static int launch_fast_bias_bwd(const struct launch *l, struct error *e) { return backward(l, ATTENTION_BY_BIAS, true, e); }

const struct cuda_kernel cuda_run_attention[] = {
    {"cuda_attention", NULL, launch_plain, NULL},
    {"cuda_attention_bwd", NULL, launch_plain_bwd, NULL},
    {"cuda_attention_rel", NULL, launch_rel, NULL},
    {"cuda_attention_rel_bwd", NULL, launch_rel_bwd, NULL},
    {"cuda_attention_bias", NULL, launch_bias, NULL},
    {"cuda_attention_bias_bwd", NULL, launch_bias_bwd, NULL},
    {"cuda_attention_fast", NULL, launch_fast, NULL},
    {"cuda_attention_fast_bwd", NULL, launch_fast_bwd, NULL},
    {"cuda_attention_fast_rel", NULL, launch_fast_rel, NULL},
    {"cuda_attention_fast_rel_bwd", NULL, launch_fast_rel_bwd, NULL},
    {"cuda_attention_fast_bias", NULL, launch_fast_bias, NULL},
    {"cuda_attention_fast_bias_bwd", NULL, launch_fast_bias_bwd, NULL},
    {0},
};
