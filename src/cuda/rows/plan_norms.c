/*
 * plan_norms.c: normalisations. Activations and their gradients have one dtype; vectors of weights
 * and statistics may have any.
 */
#include "cuda/rows/norm_blocks.h"
#include "cuda/plan_kernels.h"
#include "graph/ops.h"

enum { GROUPS_MAX = 65535 }; /* the limit of a CUDA grid's y dimension */

/* Reports whether all operands are storable, the first `main` inputs and output 0 have one dtype,
 * and the other outputs are f32. */
static bool fits(const struct query *q, int main)
{
    for (int i = 0; i < q->nin; i++)
        if (!is_storable(q->in[i])) return false;
    for (int i = 0; i < main; i++)
        if (q->in[i]->dtype != q->in[0]->dtype) return false;
    for (int o = 1; o < q->nout; o++)
        if (q->out[o] && !is_dense(q->out[o], DT_F32)) return false;
    return is_dense(q->out[0], q->in[0]->dtype);
}

static bool match_forward(const struct query *q) { return fits(q, 1); }
static bool match_backward(const struct query *q) { return fits(q, 2); }

static bool match_norm_bwd(const struct query *q, int statistics)
{
    for (int i = 3; i < 3 + statistics; i++)
        if (!is_dense(q->in[i], DT_F32)) return false;
    return fits(q, 2) &&
           (q->nin <= 3 + statistics || !q->in[3 + statistics] || is_dense(q->in[3 + statistics], q->in[0]->dtype));
}
static bool match_rmsnorm_bwd(const struct query *q) { return match_norm_bwd(q, 1); }
static bool match_layernorm_bwd(const struct query *q) { return match_norm_bwd(q, 2); }

static bool is_add_norm(const struct query *q)
{
    for (int i = 0; i < q->nin; i++)
        if (!is_storable(q->in[i])) return false;
    for (int o = 1; o < q->nout - 1; o++)
        if (!is_dense(q->out[o], DT_F32)) return false;
    const enum dtype t = q->in[0]->dtype;
    return q->in[1]->dtype == t && is_dense(q->out[0], t) && is_dense(q->out[q->nout - 1], t);
}

/* Matches a sum whose terms are added with offsets of 32 bits (PAIR_PACKS_32). */
static bool match_add_norm(const struct query *q)
{
    return is_add_norm(q) && tensor_elements(q->in[0]) <= INT32_MAX * (int64_t)2;
}

/* Matches norm_packs.cu, which reads a row once, in packs of 16 bytes. All operands of [rows,C] and
 * [C] have one dtype; the statistics, outputs and inputs of f32, are not read in packs. */
static bool packs_match(const struct query *q, const struct tensor *x, int weights, int nweights)
{
    if (!norm_in_packs(tensor_last(x), (int)dtype_size(x->dtype))) return false;
    for (int i = weights; i < weights + nweights; i++)
        if (q->in[i]->dtype != x->dtype || !is_aligned(q->in[i])) return false;
    return is_aligned(x) && is_aligned(q->out[0]);
}

static bool match_packs(const struct query *q) { return match_forward(q) && packs_match(q, q->in[0], 1, q->nin - 1); }

static bool match_add_packs(const struct query *q)
{
    return is_add_norm(q) && packs_match(q, q->in[0], 2, q->nin - 2) && is_aligned(q->in[1]) &&
           is_aligned(q->out[q->nout - 1]);
}

static bool match_packs_bwd(const struct query *q, int statistics)
{
    const struct tensor *add = given(q, 3 + statistics);
    return match_norm_bwd(q, statistics) && packs_match(q, q->in[1], 2, 1) && is_aligned(q->in[0]) &&
           (!add || is_aligned(add));
}
static bool match_rmsnorm_packs_bwd(const struct query *q) { return match_packs_bwd(q, 1); }
static bool match_layernorm_packs_bwd(const struct query *q) { return match_packs_bwd(q, 2); }

static uint64_t work_rmsnorm_bwd(const struct query *q)
{
    const struct tensor *x = q->in[1];
    const int64_t rows = portion_whole(q->portion, tensor_rows(x));
    return (uint64_t)norm_partial(rows, tensor_last(x), (int)dtype_size(x->dtype), 1) * sizeof(float);
}
static uint64_t work_layernorm_bwd(const struct query *q) { return 2 * work_rmsnorm_bwd(q); }

/* --- a head and its rotation --------------------------------------------------------------- */

static bool turns_match(const struct query *q, const struct tensor *x, int table)
{
    return x->rank == 4 && tensor_last(x) <= ROPE_WIDEST && is_dense(q->in[table], DT_F32) &&
           (!given(q, table + 1) || is_dense(given(q, table + 1), DT_I32));
}

static bool match_norm_rope_apart(const struct query *q)
{
    return is_storable(q->in[0]) && is_storable(q->in[1]) && is_dense(q->out[0], q->in[0]->dtype) &&
           is_dense(q->out[1], DT_F32) && turns_match(q, q->in[0], 2);
}

static bool match_norm_rope_bwd_apart(const struct query *q)
{
    const enum dtype t = q->in[0]->dtype;
    return is_storable(q->in[0]) && is_dense(q->in[1], t) && is_storable(q->in[2]) && is_dense(q->in[3], DT_F32) &&
           is_dense(q->out[0], t) && is_dense(q->out[1], DT_F32) && turns_match(q, q->in[0], 4);
}

static bool heads_match(const struct tensor *x, const struct tensor *w)
{
    return head_lanes(tensor_last(x), (int)dtype_size(x->dtype)) && w->dtype == x->dtype && is_aligned(x) &&
           is_aligned(w);
}

static bool match_norm_rope(const struct query *q)
{
    return match_norm_rope_apart(q) && heads_match(q->in[0], q->in[1]) && is_aligned(q->out[0]);
}

static bool match_norm_rope_bwd(const struct query *q)
{
    return match_norm_rope_bwd_apart(q) && heads_match(q->in[1], q->in[2]) && is_aligned(q->in[0]) &&
           is_aligned(q->out[0]);
}

static uint64_t work_norm_rope_bwd(const struct query *q)
{
    const struct tensor *x = q->in[1];
    const int64_t D = tensor_last(x);
    const int lanes = head_lanes(D, (int)dtype_size(x->dtype));
    return (uint64_t)(head_blocks(x->dim[0] * x->dim[1], head_tokens(x->dim[2], D, lanes)) * D) * sizeof(float);
}

/* --- maps ------------------------------------------------------------------------------- */

static bool match_batchnorm(const struct query *q) { return fits(q, 1) && q->out[1]->dim[0] <= GROUPS_MAX; }
static bool match_batchnorm_bwd(const struct query *q)
{
    return match_norm_bwd(q, 2) && q->in[3]->dim[0] <= GROUPS_MAX;
}

static bool match_batchnorm_update(const struct query *q)
{
    for (int i = 0; i < 4; i++)
        if (!is_dense(q->in[i], DT_F32)) return false;
    return true;
}

static uint64_t work_maps(const struct tensor *x, int64_t G)
{
    return (uint64_t)batch_partial(G, tensor_rows(x) / G, tensor_last(x)) * sizeof(float);
}
static uint64_t work_batchnorm(const struct query *q) { return work_maps(q->in[0], q->out[1]->dim[0]); }
static uint64_t work_batchnorm_bwd(const struct query *q)
{
    const int64_t G = q->in[3]->dim[0];
    return work_maps(q->in[1], G) + (uint64_t)(G * 2 * tensor_last(q->in[1])) * sizeof(float);
}
static uint64_t work_batchnorm_frozen_bwd(const struct query *q) { return work_maps(q->in[1], 1); }

/* --- widths and forms ------------------------------------------------------------------------- */

static int access_forward(const struct query *q) { return access_rows(q, ALL_IN | OUT(0), q->in[0]); }
static int access_backward(const struct query *q) { return access_rows(q, IN(0) | IN(1) | OUT(0), q->in[1]); }
static int access_add_norm(const struct query *q)
{
    return access_rows(q, ALL_IN | OUT(0) | OUT(q->nout - 1), q->in[0]);
}
/* Returns the access of all operands but the statistics, from input 3 on. */
static int access_rmsnorm_bwd(const struct query *q) { return access_rows(q, (ALL_IN & ~IN(3)) | OUT(0), q->in[1]); }
static int access_layernorm_bwd(const struct query *q)
{
    return access_rows(q, (ALL_IN & ~(IN(3) | IN(4))) | OUT(0), q->in[1]);
}
static int access_batchnorm(const struct query *q)
{
    return access_rows(q, ALL_IN | OUT(0) | OUT(1) | OUT(2), q->in[0]);
}
static int access_batchnorm_bwd(const struct query *q) { return access_rows(q, ALL_IN | OUT(0), q->in[1]); }

static int packs_form(const struct tensor *x)
{
    return norm_packs_form(tensor_last(x) * (int64_t)dtype_size(x->dtype) / 16);
}
static int form_packs(const struct query *q) { return packs_form(q->in[0]); }
static int form_packs_bwd(const struct query *q) { return packs_form(q->in[1]); }
#define PACKS_NAMES \
    {[NORM_LANES] = "a few lanes per row", [NORM_BLOCK] = "a block per row", [NORM_WIDE_BLOCK] = "a wide block per row"}
static const struct forms forms_packs = {form_packs, PACKS_NAMES};
static const struct forms forms_packs_bwd = {form_packs_bwd, PACKS_NAMES};

static int bwd_form(const struct query *q, int access, int sums)
{
    const struct tensor *x = q->in[1];
    return norm_bwd_form(tensor_last(x), access == 16 ? 16 / (int)dtype_size(x->dtype) : 1, sums);
}
static int form_rmsnorm_bwd(const struct query *q) { return bwd_form(q, access_rmsnorm_bwd(q), 1); }
static int form_layernorm_bwd(const struct query *q) { return bwd_form(q, access_layernorm_bwd(q), 2); }
static int access_heads(const struct query *q, unsigned operands)
{
    const int size = (int)dtype_size(q->in[0]->dtype);
    return access_wide(q, operands, tensor_last(q->in[0]) / 2 * size, size);
}
static int access_norm_rope(const struct query *q) { return access_heads(q, IN(0) | IN(1) | OUT(0)); }
static int access_norm_rope_bwd(const struct query *q) { return access_heads(q, IN(0) | IN(1) | IN(2) | OUT(0)); }
static int form_norm_rope_bwd(const struct query *q) { return bwd_form(q, access_norm_rope_bwd(q), 1); }
#define BWD_NAMES {[NORM_BWD_SHARED] = "sums in shared memory", [NORM_BWD_WORKSPACE] = "sums in the workspace"}
static const struct forms forms_rmsnorm_bwd = {form_rmsnorm_bwd, BWD_NAMES};
static const struct forms forms_norm_rope_bwd = {form_norm_rope_bwd, BWD_NAMES};
static const struct forms forms_layernorm_bwd = {form_layernorm_bwd, BWD_NAMES};

const struct kernel cuda_plan_norms[] = {
#include "cuda/rows/norms.def"
    {.op = OP_NONE},
};
