/*
 * plan_attention.c: attention, plain and over a grid, forward and backward: which kernel takes which
 * operands.
 *
 *     hopper           9.0: WGMMA, tiles by TMA; head dimensions 64, 80, 128; nothing is added to the
 *                      scores, or the terms of a grid of 64 columns
 *     dense            8.0 and 7.5: mma.sync; nothing is added to the scores
 *     grid64           the same, over a grid of 64 columns
 *     fast             the same with a mask, a bias or any other grid
 *     the others       any GPU: any head dimension up to 256, and f32 too
 *
 * Tensor cores multiply bf16 from 8.0 on and f16 from 7.5 on; there the head dimension is one that
 * the kernels are compiled for, and rows begin at multiples of 16 bytes. All kernels accept strided
 * heads, such as a slice of a joint projection.
 */
#include "cuda/attention/shared.h"
#include "cuda/plan.h"

enum { HEAD_MAX = 256 };

static bool is_heads(const struct tensor *t, enum dtype dtype)
{
    return t && t->rank == 4 && t->dtype == dtype && (t->stride[3] == 1 || t->dim[3] == 1) && t->dim[3] <= HEAD_MAX &&
           (dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_F16);
}

/* Rows consist of 16-byte chunks of 8 elements; storages begin at multiples of 256. */
static bool has_aligned_rows(const struct tensor *t)
{
    for (int i = 0; i < 3; i++)
        if (t->dim[i] > 1 && t->stride[i] % 8) return false;
    return t->stride[3] == 1 && t->offset % 16 == 0 && (!t->loop || t->advance % 16 == 0);
}

/* Whether sizes and strides fit the int counters of the kernels. */
static bool is_countable(const struct tensor *q, const struct tensor *k)
{
    return q->dim[1] < INT32_MAX / 4 && k->dim[1] < INT32_MAX / 4 && q->dim[0] * q->dim[2] < INT32_MAX;
}

/* The first `heads` inputs and `outputs` outputs are heads, all of one dtype. */
static bool heads_match(const struct query *q, int heads, int outputs, bool even)
{
    const enum dtype dtype = q->in[0]->dtype;
    for (int i = 0; i < heads; i++)
        if (!is_heads(q->in[i], dtype) || (even && !has_aligned_rows(q->in[i]))) return false;
    for (int i = 0; i < outputs; i++)
        if (!is_heads(q->out[i], dtype) || (even && !has_aligned_rows(q->out[i]))) return false;
    return true;
}

static bool is_table(const struct tensor *t)
{
    return t && t->rank == 2 && (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16);
}

/* --- the operands and the form of an attention -------------------------------------------------- */

struct form {
    const struct tensor *q, *k, *v, *dout, *mask; /* dout: in the backward */
    enum attention_mode mode;
    bool backward;
    double scale;
    int height, width;                            /* of the grid; 1 if there is none */
};

static struct form form_of(const struct query *q, enum attention_mode mode, bool backward)
{
    const int first = backward ? 1 : 0;
    struct form f = {.q = q->in[first], .k = q->in[first + 1], .v = q->in[first + 2], .mode = mode, .backward = backward, .height = 1, .width = 1};
    if (backward) f.dout = q->in[0];
    if (mode == ATTENTION_PLAIN) f.mask = given(q, backward ? 6 : 3), f.scale = q->attr->attention.scale;
    else f.scale = q->attr->relative.scale, f.height = q->attr->relative.height, f.width = q->attr->relative.width;
    return f;
}

/* Whether scores are products and nothing is added to them. */
static bool has_no_score_bias(const struct form *f) { return f->mode == ATTENTION_PLAIN && !f->mask && f->scale > 0; }

/* Any head dimension and dtype; `even`: rows at multiples of 16 bytes. */
static bool form_matches(const struct query *q, const struct form *f, bool even)
{
    const int table = f->backward ? 6 : 3;
    if (!heads_match(q, f->backward ? 5 : 3, f->backward ? 3 : 1, even)) return false;
    if (!is_countable(f->q, f->k) || (f->backward ? q->in[5] : q->out[1])->dtype != DT_F32) return false;
    if (f->mode == ATTENTION_PLAIN) return !f->mask || f->mask->dtype == DT_F32;
    for (int i = table; i < q->nin; i++)
        if (!is_table(q->in[i]) || (f->backward && !is_dense(q->out[i - table + 3], DT_F32))) return false;
    return true;
}

/* Whether both tables have the heads' dtype. */
static bool has_narrow_tables(const struct query *q, const struct form *f)
{
    const int table = f->backward ? 6 : 3;
    return q->in[table]->dtype == f->q->dtype && q->in[table + 1]->dtype == f->q->dtype;
}

/* --- tensor cores ------------------------------------------------------------------------------- */

/* The limits of the kernels of 8.0 and later, whatever is added to the scores. */
static bool form_is_fast(const struct query *q, const struct form *f)
{
    const int64_t D = f->q->dim[3];
    if (!has_tensor_cores(q, f->q->dtype) || (D != 32 && D != 64 && D != 80 && D != 96 && D != 128)) return false;
    return f->height + f->width <= ATTENTION_GRID && form_matches(q, f, true);
}

/* 7.5 has less shared memory. */
static bool fits_shared(const struct query *q, const struct form *f)
{
    const int D = (int)f->q->dim[3], T = (int)f->q->dim[1];
    const size_t most = ATTENTION_SHARED_SM75;
    const enum score_terms added = f->mode == ATTENTION_PLAIN ? ADDS_MASK : f->mode == ATTENTION_BY_TABLES ? ADDS_TABLES : ADDS_BIAS;
    if (q->profile->capability >= 80) return true;
    if (fast_bytes(D, added, position_stride(forward_columns(f->height) + f->width), T) > most) return false;
    return !f->backward || (fast_dkv_bytes(D, added, position_stride(dkv_columns(f->height, f->width) + f->width), T) <= most &&
                            fast_dq_bytes(D, added, position_stride(f->height + f->width), T) <= most);
}

static bool dense_match(const struct query *q, bool backward)
{
    const struct form f = form_of(q, ATTENTION_PLAIN, backward);
    if (!form_is_fast(q, &f) || !has_no_score_bias(&f)) return false;
    return !backward || q->profile->capability >= 80 || f.q->dim[3] <= ATTENTION_SMALL;
}

static bool is_grid64(const struct query *q, const struct form *f)
{
    return f->width == ATTENTION_GRID64_WIDTH && f->height <= ATTENTION_GRID64_WIDTH && has_narrow_tables(q, f);
}

static bool grid64_match(const struct query *q, bool backward)
{
    const struct form f = form_of(q, ATTENTION_BY_TABLES, backward);
    if (!form_is_fast(q, &f) || !is_grid64(q, &f)) return false;
    const struct form forward = {.q = f.q, .mode = f.mode, .height = f.height, .width = f.width};
    return q->profile->capability >= 80 || (f.q->dim[3] <= ATTENTION_SMALL && fits_shared(q, &forward));
}

static bool fast_match(const struct query *q, enum attention_mode mode, bool backward)
{
    const struct form f = form_of(q, mode, backward);
    if (!form_is_fast(q, &f) || has_no_score_bias(&f) || (mode == ATTENTION_BY_TABLES && is_grid64(q, &f))) return false;
    if (mode == ATTENTION_BY_TABLES && backward && !has_narrow_tables(q, &f)) return false; /* the kernels round the tables to the heads' dtype */
    if (mode == ATTENTION_BY_BIAS && backward && f.q->dim[1] > ATTENTION_BIASES) return false; /* five rows of biases are in shared memory */
    return fits_shared(q, &f);
}

/* --- Hopper: WGMMA and TMA ---------------------------------------------------------------------- */

/* TMA strides over samples, tokens and heads must not be zero. */
static bool has_strides(const struct tensor *t)
{
    for (int i = 0; i < 3; i++)
        if (t->dim[i] > 1 && t->stride[i] <= 0) return false;
    return true;
}

static bool hopper_match(const struct query *q, enum attention_mode mode, bool backward)
{
    const struct form f = form_of(q, mode, backward);
    const int64_t D = f.q->dim[3];
    if (!form_is_fast(q, &f) || (D != 64 && D != 80 && D != 128) || f.mask || f.scale <= 0) return false;
    if (mode == ATTENTION_BY_TABLES && !is_grid64(q, &f)) return false;
    if (f.q->dim[1] < ATTENTION_HOPPER_LEAST || f.k->dim[1] < ATTENTION_HOPPER_LEAST) return false; /* tiles would be mostly empty */
    return has_strides(f.q) && has_strides(f.k) && has_strides(f.v) && (!backward || has_strides(f.dout));
}

/* --- by row ------------------------------------------------------------------------------------- */

static bool plain_match(const struct query *q, enum attention_mode mode, bool backward)
{
    const struct form f = form_of(q, mode, backward);
    return form_matches(q, &f, false);
}

static bool match_hopper(const struct query *q) { return hopper_match(q, ATTENTION_PLAIN, false); }
static bool match_hopper_bwd(const struct query *q) { return hopper_match(q, ATTENTION_PLAIN, true); }
static bool match_hopper_grid64(const struct query *q) { return hopper_match(q, ATTENTION_BY_TABLES, false); }
static bool match_hopper_grid64_bwd(const struct query *q) { return hopper_match(q, ATTENTION_BY_TABLES, true); }
static bool match_dense(const struct query *q) { return dense_match(q, false); }
static bool match_dense_bwd(const struct query *q) { return dense_match(q, true); }
static bool match_grid64(const struct query *q) { return grid64_match(q, false); }
static bool match_grid64_bwd(const struct query *q) { return grid64_match(q, true); }
static bool match_fast(const struct query *q) { return fast_match(q, ATTENTION_PLAIN, false); }
static bool match_fast_bwd(const struct query *q) { return fast_match(q, ATTENTION_PLAIN, true); }
static bool match_fast_rel(const struct query *q) { return fast_match(q, ATTENTION_BY_TABLES, false); }
static bool match_fast_rel_bwd(const struct query *q) { return fast_match(q, ATTENTION_BY_TABLES, true); }
static bool match_fast_bias(const struct query *q) { return fast_match(q, ATTENTION_BY_BIAS, false); }
static bool match_fast_bias_bwd(const struct query *q) { return fast_match(q, ATTENTION_BY_BIAS, true); }
static bool match_forward(const struct query *q) { return plain_match(q, ATTENTION_PLAIN, false); }
static bool match_backward(const struct query *q) { return plain_match(q, ATTENTION_PLAIN, true); }
static bool match_grid(const struct query *q) { return plain_match(q, ATTENTION_BY_TABLES, false); }
static bool match_grid_bwd(const struct query *q) { return plain_match(q, ATTENTION_BY_TABLES, true); }

/* --- workspace -------------------------------------------------------------------------- */

static uint64_t bytes(const struct query *q, enum attention_mode mode, bool backward)
{
    const int64_t *dim = q->in[backward ? 1 : 0]->dim;
    struct attention_sizes n = {.B = dim[0], .T = dim[1], .H = dim[2], .D = dim[3], .mode = mode, .backward = backward};
    if (mode != ATTENTION_PLAIN) n.height = q->attr->relative.height, n.width = q->attr->relative.width;
    return attention_work_of(&n).total;
}

static uint64_t work_bwd(const struct query *q) { return bytes(q, ATTENTION_PLAIN, true); }
static uint64_t work_rel(const struct query *q) { return bytes(q, ATTENTION_BY_TABLES, false); }
static uint64_t work_rel_bwd(const struct query *q) { return bytes(q, ATTENTION_BY_TABLES, true); }
static uint64_t work_bias(const struct query *q) { return bytes(q, ATTENTION_BY_BIAS, false); }
static uint64_t work_bias_bwd(const struct query *q) { return bytes(q, ATTENTION_BY_BIAS, true); }

const struct kernel cuda_plan_attention[] = {
#include "cuda/attention/attention.def"
    {.op = OP_NONE},
};
