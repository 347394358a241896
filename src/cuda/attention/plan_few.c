/*
 * plan_few.c: attention with few queries or few keys, as in SAM's mask decoder: neither
 * causal nor windowed, as many key heads as query heads, rows that begin at multiples of 16 bytes.
 *
 * Few keys: up to 16. Few queries: up to 16, and more if the heads are too narrow for the
 * tensor-core kernels (plan_attention.c), because those would fall back to the plain kernels.
 */
#include "cuda/attention/few.h"
#include "cuda/plan.h"

enum { HEAD_MOST = 128, NARROW = 16, NARROW_QUERIES = 1024 };

/* Storages begin at multiples of 256 bytes. */
static bool is_heads(const struct tensor *t, enum dtype dtype)
{
    if (!t || t->rank != 4 || t->dtype != dtype || t->stride[3] != 1) return false;
    for (int i = 0; i < 3; i++)
        if (t->dim[i] > 1 && t->stride[i] % 8) return false;
    return t->offset % 16 == 0 && (!t->loop || t->advance % 16 == 0);
}

static bool is_few(const struct tensor *q, const struct tensor *k)
{
    const int64_t T = q->dim[1], S = k->dim[1], H = q->dim[2], D = q->dim[3];
    if (k->dim[2] != H || D % 8 || D > HEAD_MOST || T > INT32_MAX / 4 || S > INT32_MAX / 4) return false;
    if (S > FEW_MOST && T > FEW_MOST && (D > NARROW || T > NARROW_QUERIES)) return false;
    return q->dim[0] * H * (T + S) < INT32_MAX / 4; /* so the number of blocks fits an int, too */
}

static bool few_match(const struct query *q, int heads, int first, int outputs)
{
    const enum dtype dtype = q->in[first]->dtype;
    const struct tensor *lse = heads == 5 ? q->in[5] : q->out[1], *mask = given(q, heads == 5 ? 6 : 3);
    if (dtype != DT_F32 && dtype != DT_BF16 && dtype != DT_F16) return false;
    if (q->attr->attention.causal || q->attr->attention.window) return false;
    for (int i = 0; i < heads; i++)
        if (!is_heads(q->in[i], dtype)) return false;
    for (int i = 0; i < outputs; i++)
        if (!is_heads(q->out[i], dtype)) return false;
    return is_few(q->in[first], q->in[first + 1]) && lse->dtype == DT_F32 && (!mask || mask->dtype == DT_F32);
}

/* On tensor cores: heads of FEW_MMA_WIDTH in 16 bits. */
static bool is_mma(const struct tensor *q) { return q->dtype != DT_F32 && q->dim[3] == FEW_MMA_WIDTH; }

static bool match_mma(const struct query *q) { return few_match(q, 3, 0, 1) && is_mma(q->in[0]); }
static bool match_mma_bwd(const struct query *q) { return few_match(q, 5, 1, 3) && is_mma(q->in[1]); }
static bool match_forward(const struct query *q) { return few_match(q, 3, 0, 1); }
static bool match_backward(const struct query *q) { return few_match(q, 5, 1, 3); }

static uint64_t bytes(const struct tensor *q, const struct tensor *k, int backward)
{
    return few_cut_of(q->dim[0], q->dim[1], k->dim[1], q->dim[2], q->dim[3], backward).total;
}

static uint64_t work_forward(const struct query *q) { return bytes(q->in[0], q->in[1], 0); }
static uint64_t work_backward(const struct query *q) { return bytes(q->in[1], q->in[2], 1); }

const struct kernel cuda_plan_attention_few[] = {
#include "cuda/attention/few.def"
    {.op = OP_NONE},
};
