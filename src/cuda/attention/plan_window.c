/*
 * plan_window.c: attention within the windows of a grid, forward and backward.
 *
 *     hopper       9.0: WGMMA; windows of 14 x 14, head dimensions 64 and 80
 *     fast         8.0 and later: mma.sync; windows up to that size, head dimensions 32, 64 and 80
 *     small        7.5: the same in f16, with tiles for its shared memory
 *     the others   any GPU: f32 and other head dimensions too
 */
#include "cuda/attention/window_work.h"
#include "cuda/plan.h"

enum { HEAD_MOST = 256 };

static bool is_half(enum dtype t) { return t == DT_BF16 || t == DT_F16; }
static bool is_stored(enum dtype t) { return t == DT_F32 || is_half(t); }

static bool is_heads(const struct tensor *t, enum dtype dtype)
{
    return t && t->rank == 4 && t->dtype == dtype && (t->stride[3] == 1 || t->dim[3] == 1) && t->dim[3] <= HEAD_MOST && is_stored(dtype);
}

/* Rows of the last dimension consist of 16-byte chunks of 8 elements; storages begin at multiples
 * of 256. */
static bool has_aligned_rows(const struct tensor *t)
{
    for (int i = 0; i + 1 < t->rank; i++)
        if (t->dim[i] > 1 && t->stride[i] % 8) return false;
    return t->stride[t->rank - 1] == 1 && t->offset % 16 == 0 && (!t->loop || t->advance % 16 == 0);
}

/* The first `inputs` inputs and `outputs` outputs are heads; the tables and pad are inputs from
 * `table` on. */
static bool heads_match(const struct query *q, int inputs, int outputs, int table, bool fast)
{
    const enum dtype dtype = q->in[0]->dtype;
    const struct tensor *t = q->in[0];
    for (int i = 0; i < inputs; i++)
        if (!is_heads(q->in[i], dtype) || (fast && !has_aligned_rows(q->in[i]))) return false;
    for (int i = 0; i < outputs; i++)
        if (!is_heads(q->out[i], dtype) || (fast && !has_aligned_rows(q->out[i]))) return false;
    for (int i = table; i < table + 3; i++) {
        const struct tensor *x = given(q, i);
        if (x && !is_stored(x->dtype)) return false;
        if (x && fast && (x->dtype != dtype || !has_aligned_rows(x))) return false;
    }
    if (q->attr->windowed.window > (fast ? WINDOW_FAST : WINDOW_PLAIN)) return false;
    if (fast && (!is_half(dtype) || (t->dim[3] != 32 && t->dim[3] != 64 && t->dim[3] != 80))) return false;
    return t->dim[1] < INT32_MAX / 4 && t->dim[0] * t->dim[1] * t->dim[2] < INT32_MAX; /* the number of blocks and of positions fit an int */
}

static bool forward_match(const struct query *q, bool fast) { return heads_match(q, 3, 1, 3, fast) && q->out[1]->dtype == DT_F32; }

static bool backward_match(const struct query *q, bool fast)
{
    return heads_match(q, 5, 3, 6, fast) && q->in[5]->dtype == DT_F32 && is_dense(q->out[3], DT_F32) && is_dense(q->out[4], DT_F32) &&
           is_dense(q->out[5], DT_F32);
}

static bool is_hopper(const struct query *q) { return q->attr->windowed.window == WINDOW_FAST && q->in[0]->dim[3] != 32; }

static bool match_hopper(const struct query *q) { return forward_match(q, true) && is_hopper(q); }
static bool match_hopper_bwd(const struct query *q) { return backward_match(q, true) && is_hopper(q); }
static bool match_small(const struct query *q) { return forward_match(q, true) && q->in[0]->dtype == DT_F16; }
static bool match_small_bwd(const struct query *q) { return backward_match(q, true) && q->in[0]->dtype == DT_F16; }
static bool match_forward(const struct query *q) { return forward_match(q, false); }
static bool match_backward(const struct query *q) { return backward_match(q, false); }
static bool match_fast(const struct query *q) { return forward_match(q, true); }
static bool match_fast_bwd(const struct query *q) { return backward_match(q, true); }

static uint64_t work_bwd(const struct query *q)
{
    const int64_t *dim = q->in[1]->dim, window = q->attr->windowed.window;
    const int64_t across = (q->attr->windowed.width + window - 1) / window, down = (q->attr->windowed.height + window - 1) / window;
    return window_work_of(dim[0] * across * down * dim[2], window, dim[3]).total;
}

const struct kernel cuda_plan_attention_window[] = {
#include "cuda/attention/window.def"
    {.op = OP_NONE},
};
