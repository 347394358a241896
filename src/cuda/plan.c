/*
 * plan.c: the planning half of the CUDA kernels: which nodes they take and what
 * workspace they need. Pure C, in every build, a function of shapes, dtypes and
 * the profile: a plan made where there is no card is the plan made on the card.
 *
 * Invariant: a name in this table is a name in the table of the running halves
 * (bind.c), which the device checks when it is opened.
 *
 * Storage is f32, bf16 or f16, dense; the arithmetic is f32 throughout.
 */
#include "run/kernel.h"

static const struct tensor *given(const struct query *q, int i) { return i < q->nin ? q->in[i] : NULL; }

static bool is_dense(const struct tensor *t, enum dtype dtype) { return t && t->dtype == dtype && tensor_is_dense(t); }

static bool is_storable(const struct tensor *t)
{
    return t && (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16) && tensor_is_dense(t);
}

/* --- matrix products: cuBLASLt ------------------------------------------------- */

/* The library reads a bias in 16-byte pieces; storages lie at multiples of 256. */
static bool is_bias(const struct tensor *t, enum dtype dtype)
{
    return is_dense(t, dtype) && t->offset % 16 == 0 && (!t->loop || t->advance % 16 == 0);
}

/* Inputs and result share one storage dtype; sums are f32. */
static bool match_linear(const struct query *q)
{
    const struct tensor *x = q->in[0], *bias = given(q, 2);
    return is_storable(x) && is_dense(q->in[1], x->dtype) && is_dense(q->out[0], x->dtype) &&
           (!bias || is_bias(bias, x->dtype));
}

/* The library gets a fixed cap and chooses within it when the tape is recorded:
 * what it would like to have depends on its version, which a plan must not. */
static uint64_t workspace_library(const struct query *q) { return q->profile->library_workspace; }

/* --- our own kernels -------------------------------------------------------------- */

static bool match_rmsnorm(const struct query *q)
{
    const struct tensor *x = q->in[0];
    return is_storable(x) && is_dense(q->in[1], x->dtype) && is_dense(q->out[0], x->dtype) &&
           is_dense(q->out[1], DT_F32);
}

/* Two inputs and the result alike, none repeated: SILU_GATE, ADD, ACCUMULATE. */
static bool match_pair(const struct query *q)
{
    const struct tensor *a = q->in[0];
    int64_t n = tensor_elements(q->out[0]);
    return is_storable(a) && is_dense(q->in[1], a->dtype) && is_dense(q->out[0], a->dtype) && tensor_elements(a) == n &&
           tensor_elements(q->in[1]) == n;
}

static bool match_fill(const struct query *q) { return tensor_is_dense(q->out[0]); }

static bool match_copy(const struct query *q)
{
    return tensor_is_dense(q->in[0]) && is_dense(q->out[0], q->in[0]->dtype);
}

static bool match_adamw(const struct query *q)
{
    for (int i = 0; i < 4; i++)
        if (!is_dense(q->in[i], DT_F32)) return false;
    const struct tensor *clip = given(q, 5), *w = given(q, 6);
    return (!clip || is_dense(clip, DT_F32)) && (!w || is_storable(w));
}

const struct kernel cuda_kernels[] = {
    {OP_LINEAR, "cublaslt_linear", match_linear, workspace_library, NULL},
    {OP_RMSNORM, "cuda_rmsnorm", match_rmsnorm, NULL, NULL},
    {OP_SILU_GATE, "cuda_silu_gate", match_pair, NULL, NULL},
    {OP_ADD, "cuda_add", match_pair, NULL, NULL},
    {OP_ACCUMULATE, "cuda_add", match_pair, NULL, NULL},
    {OP_FILL, "cuda_fill", match_fill, NULL, NULL},
    {OP_COPY, "cuda_copy", match_copy, NULL, NULL},
    {OP_ADAMW, "cuda_adamw", match_adamw, NULL, NULL},
    {.op = OP_NONE},
};
