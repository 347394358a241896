/*
 * plan_attention.c: attention, plain and over a grid, forward and backward.
 *
 * There are two kernels per op. With tensor cores: bf16 or f16 throughout, the head dimensions that
 * those kernels are compiled for, rows that begin at multiples of 16 bytes. Without: any head
 * dimension up to 256, and f32 too. Both accept strided heads, such as a slice of a joint
 * projection, and need the same workspace, so the running half can fall back to the plain kernel on
 * a GPU whose tensor cores do not support bf16.
 */
#include "cuda/attention/work.h"
#include "cuda/plan.h"

enum { HEAD_MAX = 256 };

/* --- matching -------------------------------------------------------------------------- */

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

static bool is_fast(const struct query *q)
{
    const struct tensor *t = q->in[0]; /* q in the forward, do in the backward */
    const int64_t D = t->dim[3];
    return (t->dtype == DT_BF16 || t->dtype == DT_F16) && (D == 32 || D == 64 || D == 80 || D == 96 || D == 128);
}

static bool forward_match(const struct query *q, bool fast)
{
    const struct tensor *mask = given(q, 3);
    return (!fast || is_fast(q)) && heads_match(q, 3, 1, fast) && is_countable(q->in[0], q->in[1]) &&
           q->out[1]->dtype == DT_F32 && (!mask || mask->dtype == DT_F32);
}

static bool backward_match(const struct query *q, bool fast)
{
    const struct tensor *mask = given(q, 6);
    return (!fast || is_fast(q)) && heads_match(q, 5, 3, fast) && is_countable(q->in[1], q->in[2]) &&
           q->in[5]->dtype == DT_F32 && (!mask || mask->dtype == DT_F32);
}

/* Attention over a grid; the grid's sides decide how much shared memory the positions of a tile
 * need. */
static bool grid_match(const struct query *q, bool backward, bool fast)
{
    const int first = backward ? 6 : 3;
    if (fast && (!is_fast(q) || q->attr->relative.height + q->attr->relative.width > ATTENTION_GRID)) return false;
    if (!heads_match(q, backward ? 5 : 3, backward ? 3 : 1, fast)) return false;
    if (!is_countable(q->in[0], q->in[0])) return false;
    if ((backward ? q->in[5] : q->out[1])->dtype != DT_F32) return false;
    for (int i = first; i < q->nin; i++)
        if (!is_table(q->in[i]) || (backward && !is_dense(q->out[i - first + 3], DT_F32))) return false;
    return true;
}

static bool match_forward(const struct query *q) { return forward_match(q, false); }
static bool match_backward(const struct query *q) { return backward_match(q, false); }
static bool match_grid(const struct query *q) { return grid_match(q, false, false); }
static bool match_grid_bwd(const struct query *q) { return grid_match(q, true, false); }

static bool match_fast(const struct query *q) { return forward_match(q, true); }
static bool match_fast_bwd(const struct query *q) { return backward_match(q, true); }
static bool match_fast_grid(const struct query *q) { return grid_match(q, false, true); }
/* These kernels round the tables to the heads' type; tables of higher precision use the plain
 * kernel. */
static bool match_fast_rel_bwd(const struct query *q)
{
    return grid_match(q, true, true) && q->in[6]->dtype == q->in[0]->dtype && q->in[7]->dtype == q->in[0]->dtype;
}
/* Five rows of biases are in shared memory. */
static bool match_fast_bias_bwd(const struct query *q) { return grid_match(q, true, true) && q->in[0]->dim[1] <= ATTENTION_BIASES; }

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
    {OP_ATTENTION, "cuda_attention_fast", match_fast, NULL, NULL},
    {OP_ATTENTION_BWD, "cuda_attention_fast_bwd", match_fast_bwd, work_bwd, NULL},
    {OP_ATTENTION_REL, "cuda_attention_fast_rel", match_fast_grid, work_rel, NULL},
    {OP_ATTENTION_REL_BWD, "cuda_attention_fast_rel_bwd", match_fast_rel_bwd, work_rel_bwd, NULL},
    {OP_ATTENTION_BIAS, "cuda_attention_fast_bias", match_fast_grid, work_bias, NULL},
    {OP_ATTENTION_BIAS_BWD, "cuda_attention_fast_bias_bwd", match_fast_bias_bwd, work_bias_bwd, NULL},
    {OP_ATTENTION, "cuda_attention", match_forward, NULL, NULL},
    {OP_ATTENTION_BWD, "cuda_attention_bwd", match_backward, work_bwd, NULL},
    {OP_ATTENTION_REL, "cuda_attention_rel", match_grid, work_rel, NULL},
    {OP_ATTENTION_REL_BWD, "cuda_attention_rel_bwd", match_grid_bwd, work_rel_bwd, NULL},
    {OP_ATTENTION_BIAS, "cuda_attention_bias", match_grid, work_bias, NULL},
    {OP_ATTENTION_BIAS_BWD, "cuda_attention_bias_bwd", match_grid_bwd, work_bias_bwd, NULL},
    {.op = OP_NONE},
};
