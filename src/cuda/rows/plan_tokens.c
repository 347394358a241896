/*
 * plan_tokens.c: embeddings, rotary position embedding, the KV cache, the rows of experts, cross
 * entropy.
 */
#include "base/allocation.h"
#include "cuda/plan_kernels.h"
#include "cuda/rows/expert_blocks.h"
#include "cuda/rows/norm_blocks.h"
#include "graph/ops.h"

enum { TOPK_LONGEST = 12000 };

static bool match_embedding(const struct query *q)
{
    return is_dense(q->in[0], DT_I32) && is_storable(q->in[1]) && is_dense(q->out[0], q->in[1]->dtype);
}

/* Matches rows that are counted in 32 bits, and are the blocks of one CUDA grid. */
static bool match_embedding_dw(const struct query *q)
{
    return is_dense(q->in[0], DT_I32) && tensor_elements(q->in[0]) <= INT32_MAX / 2 && is_storable(q->in[1]) &&
           is_dense(q->out[0], DT_F32) && (!given(q, 2) || is_dense(given(q, 2), DT_F32));
}

static uint64_t work_embedding_dw(const struct query *q)
{
    return (uint64_t)tensor_elements(q->in[0]) * sizeof(int32_t);
}

static bool match_rope(const struct query *q)
{
    const struct tensor *x = q->in[0];
    return is_storable(x) && x->rank == 4 && x->dim[3] <= ROPE_WIDEST &&
           (!given(q, 2) || is_dense(given(q, 2), DT_I32)) && is_dense(q->in[1], DT_F32) &&
           is_dense(q->out[0], x->dtype);
}

static bool match_cache_write(const struct query *q)
{
    return is_storable(q->in[0]) && is_dense(q->in[1], q->in[0]->dtype) && is_dense(q->in[2], DT_I32) &&
           is_dense(q->out[0], q->in[0]->dtype);
}

static bool match_replace_rows(const struct query *q)
{
    const enum dtype t = q->in[0]->dtype;
    return is_storable(q->in[0]) && is_dense(q->in[1], DT_I32) && (!given(q, 2) || is_dense(given(q, 2), t)) &&
           is_dense(q->out[0], t);
}

/* Matches rows that fit shared memory. */
static bool match_topk(const struct query *q)
{
    return is_storable(q->in[0]) && tensor_last(q->in[0]) <= TOPK_LONGEST && tensor_rows(q->in[0]) <= INT32_MAX &&
           is_dense(q->out[0], DT_I32);
}

/* Matches rows of which everything is counted in 32 bits. */
static bool match_allocate(const struct query *q)
{
    for (int i = 1; i < 5; i++)
        if (!is_dense(q->in[i], DT_I32) || tensor_elements(q->in[i]) > INT32_MAX) return false;
    return is_storable(q->in[0]) && is_dense(q->out[0], DT_I32) && is_dense(q->out[1], DT_I32) &&
           tensor_elements(q->out[0]) <= INT32_MAX && q->attr->allocate.most <= ALLOCATION_MOST;
}

/* Matches choices that are counted in 32 bits. */
static bool match_expert_rows(const struct query *q)
{
    return is_dense(q->in[0], DT_I32) && tensor_elements(q->in[0]) <= INT32_MAX / 2 &&
           q->attr->expert_rows.experts <= EXPERTS_MOST && is_dense(q->out[0], DT_I32) && is_dense(q->out[1], DT_I32);
}

static uint64_t work_expert_rows(const struct query *q)
{
    return (uint64_t)(expert_blocks(tensor_elements(q->in[0])) * q->attr->expert_rows.experts) * sizeof(int32_t);
}

static bool match_dispatch(const struct query *q)
{
    return is_storable(q->in[0]) && is_dense(q->in[1], DT_I32) && is_dense(q->out[0], q->in[0]->dtype);
}

static bool match_combine(const struct query *q)
{
    const enum dtype t = q->in[0]->dtype;
    return is_storable(q->in[0]) && is_dense(q->in[1], DT_I32) && (!given(q, 2) || is_dense(given(q, 2), t)) &&
           is_dense(q->out[0], t);
}

static bool match_combine_bwd(const struct query *q)
{
    const enum dtype t = q->in[0]->dtype;
    return is_storable(q->in[0]) && is_dense(q->in[1], t) && is_dense(q->in[2], DT_I32) && is_dense(q->in[3], t) &&
           is_dense(q->out[0], t) && is_dense(q->out[1], t);
}

static bool has_ranges(const struct query *q) { return !given(q, 2) || is_dense(given(q, 2), DT_I32); }

/* Matches groups that are a dimension of one CUDA grid. */
static bool match_expert_load(const struct query *q)
{
    return is_storable(q->in[0]) && is_dense(q->in[1], DT_I32) && has_ranges(q) && q->in[0]->dim[1] <= EXPERTS_MOST &&
           q->out[0]->dim[0] <= GROUPS_MOST && is_dense(q->out[0], DT_F32) && is_dense(q->out[1], DT_F32);
}

static uint64_t work_expert_load(const struct query *q)
{
    return load_work(q->in[0]->dim[0], q->attr->expert_load.rows, q->in[0]->dim[1]);
}

static bool match_expert_load_bwd(const struct query *q)
{
    return is_dense(q->in[0], DT_F32) && is_storable(q->in[1]) && has_ranges(q) && q->in[1]->dim[1] <= EXPERTS_MOST &&
           is_dense(q->out[0], q->in[1]->dtype);
}

static bool match_balance(const struct query *q)
{
    return is_dense(q->in[0], DT_F32) && is_dense(q->in[1], DT_F32) && is_dense(q->out[0], DT_F32) &&
           q->in[0]->dim[0] <= GROUPS_MOST && q->in[0]->dim[1] <= EXPERTS_MOST;
}

static bool match_xent(const struct query *q)
{
    return is_storable(q->in[0]) && tensor_rows(q->in[0]) <= INT32_MAX && is_dense(q->in[1], DT_I32) &&
           is_dense(q->out[0], DT_F32) && is_dense(q->out[1], DT_F32);
}

static uint64_t work_xent(const struct query *q) { return (uint64_t)tensor_rows(q->in[0]) * sizeof(double); }

static bool match_xent_bwd(const struct query *q)
{
    return is_storable(q->in[0]) && tensor_rows(q->in[0]) <= INT32_MAX && is_dense(q->in[1], DT_I32) &&
           is_dense(q->in[3], DT_F32) && is_dense(q->in[4], DT_F32) && is_dense(q->out[0], q->in[0]->dtype);
}

static bool match_part_ids(const struct query *q) { return is_dense(q->in[0], DT_I32) && is_dense(q->out[0], DT_I32); }
static bool match_xent_part(const struct query *q)
{
    return is_storable(q->in[0]) && tensor_rows(q->in[0]) <= INT32_MAX && is_dense(q->in[1], DT_I32) &&
           is_dense(q->out[0], DT_F32);
}
static bool match_xent_part_bwd(const struct query *q)
{
    return is_dense(q->in[0], DT_F32) && is_storable(q->in[1]) && tensor_rows(q->in[1]) <= INT32_MAX &&
           is_dense(q->in[2], DT_I32) && is_dense(q->in[3], DT_F32) && is_dense(q->out[0], q->in[1]->dtype);
}
static bool match_xent_join(const struct query *q)
{
    return is_dense(q->in[0], DT_F32) && is_dense(q->in[1], DT_I32) && is_dense(q->out[0], DT_F32);
}
static bool match_xent_join_bwd(const struct query *q)
{
    return is_dense(q->in[0], DT_F32) && is_dense(q->in[1], DT_F32) && is_dense(q->in[2], DT_I32) &&
           is_dense(q->out[0], DT_F32);
}

/* --- widths ------------------------------------------------------------------------------- */

enum { BYTES_LEAST = 2 }; /* rows that are moved as bytes: no element is smaller */

static int64_t bytes_of(const struct tensor *x, int64_t elements) { return elements * (int64_t)dtype_size(x->dtype); }

static int access_embedding(const struct query *q)
{
    return access_wide(q, IN(1) | OUT(0), bytes_of(q->in[1], tensor_last(q->in[1])), BYTES_LEAST);
}
static int access_embedding_dw(const struct query *q)
{
    const int size = (int)dtype_size(q->in[1]->dtype);
    return access_wide(q, IN(1) | OUT(0), q->out[0]->dim[1] * size, size);
}
static int access_rope(const struct query *q)
{
    const int size = (int)dtype_size(q->in[0]->dtype);
    return access_wide(q, IN(0) | OUT(0), q->in[0]->dim[3] / 2 * size, size);
}
static int access_cache_write(const struct query *q)
{
    const struct tensor *x = q->in[1];
    return access_wide(q, IN(1) | OUT(0), bytes_of(x, tensor_elements(x) / (x->dim[0] * x->dim[1])), BYTES_LEAST);
}
static int access_replace_rows(const struct query *q)
{
    return access_wide(q, IN(0) | IN(2) | OUT(0), bytes_of(q->in[0], q->in[0]->dim[2]), BYTES_LEAST);
}
static int access_dispatch(const struct query *q)
{
    return access_wide(q, IN(0) | OUT(0), bytes_of(q->in[0], tensor_last(q->in[0])), BYTES_LEAST);
}
static int access_combine(const struct query *q) { return access_rows(q, IN(0) | OUT(0), q->in[0]); }
static int access_combine_bwd(const struct query *q) { return access_rows(q, IN(0) | IN(1) | OUT(0), q->in[0]); }
static int access_xent(const struct query *q) { return access_rows(q, IN(0), q->in[0]); }
static int access_xent_bwd(const struct query *q) { return access_rows(q, IN(0) | OUT(0), q->in[0]); }

const struct kernel cuda_plan_tokens[] = {
#include "cuda/rows/tokens.def"
    {.op = OP_NONE},
};
