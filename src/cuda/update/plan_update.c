/*
 * plan_update.c: the norm of the gradients, and the optimizers.
 */
#include "cuda/plan_kernels.h"
#include "cuda/update/collective.h"
#include "cuda/update/update_blocks.h"
#include "graph/ops.h"

static bool match_sumsq(const struct query *q)
{
    return is_storable(q->in[0]) && is_dense(q->in[1], DT_F64) && is_dense(q->out[0], DT_F64);
}
static uint64_t work_sumsq(const struct query *q)
{
    (void)q;
    return (uint64_t)UPDATE_BLOCKS * sizeof(double);
}

static bool match_squares(const struct query *q) { return is_storable(q->in[0]) && is_dense(q->in[1], DT_F64); }
static bool match_total(const struct query *q) { return is_dense(q->in[0], DT_F64) && is_dense(q->out[0], DT_F64); }
static bool match_fold(const struct query *q) { return is_storable(q->in[0]) && is_dense(q->in[1], q->in[0]->dtype); }

static bool match_summed(const struct query *q) { return is_storable(q->in[0]) || is_dense(q->in[0], DT_F64); }
static bool match_gather(const struct query *q) { return tensor_is_dense(q->in[0]) && tensor_is_dense(q->out[0]); }
/* Returns the bytes that a rank receives in a round. */
static uint64_t work_round(const struct query *q, int64_t part)
{
    const int64_t size = (int64_t)dtype_size(q->in[0]->dtype), ranks = q->attr->group.ranks;
    return (uint64_t)(ranks * piece_elements(part, (int)ranks, size) * size);
}
static uint64_t work_all_reduce(const struct query *q)
{
    return work_round(q, part_elements(tensor_elements(q->in[0]), q->attr->group.ranks));
}
static uint64_t work_reduce_scatter(const struct query *q) { return work_round(q, q->attr->group.part); }

static bool match_clip(const struct query *q) { return is_dense(q->in[0], DT_F64) && is_dense(q->out[0], DT_F32); }

static bool match_scaler(const struct query *q)
{
    return is_dense(q->in[0], DT_F64) && is_dense(q->in[1], DT_U8) && (!given(q, 2) || is_storable(given(q, 2)));
}

/* Matches an update: p is f32 or bf16; g and w have any storage dtype; the input indices of clip
 * and w differ by op. */
static bool match_update(const struct query *q, int clip, int w)
{
    const struct tensor *p = q->in[0];
    return (is_dense(p, DT_F32) || is_dense(p, DT_BF16)) && is_storable(q->in[1]) &&
           (!given(q, clip) || is_dense(given(q, clip), DT_F32)) && (!given(q, w) || is_storable(given(q, w)));
}

static bool match_adamw(const struct query *q)
{
    const struct tensor *m = q->in[2];
    return (is_dense(m, DT_F32) || is_dense(m, DT_BF16)) && is_dense(q->in[3], m->dtype) && match_update(q, 5, 6);
}

static bool match_adamw_8bit(const struct query *q)
{
    return is_dense(q->in[2], DT_U8) && is_dense(q->in[3], DT_U8) && is_dense(q->in[4], DT_F32) &&
           match_update(q, 6, 7);
}

static bool match_sgd(const struct query *q)
{
    return (!given(q, 5) || is_dense(given(q, 5), DT_F32)) && match_update(q, 3, 4);
}

/* Matches ADAFACTOR of at most 65535 chunks, which a CUDA grid has. */
static bool match_adafactor(const struct query *q)
{
    const struct tensor *p = q->in[0], *c = given(q, 6);
    if (c && (p->rank < 2 || factor_chunks(p->dim[p->rank - 2]) > 65535)) return false;
    return is_dense(q->in[2], DT_F32) && (!c || is_dense(c, DT_F32)) && match_update(q, 4, 5);
}

static uint64_t work_adafactor(const struct query *q)
{
    const struct tensor *p = q->in[0];
    const int64_t C = tensor_last(p), R = p->rank >= 2 ? p->dim[p->rank - 2] : 1;
    return factor_work(tensor_elements(p) / (R * C), R, C, given(q, 6) != NULL);
}

/* --- widths and forms ------------------------------------------------------------------------- */

static int access_sumsq(const struct query *q) { return access_wide(q, IN(0), 0, (int)dtype_size(q->in[0]->dtype)); }
/* Returns the access of the weight, its gradient, the optimizer's state and the working weight. */
static int access_update(const struct query *q, unsigned operands)
{
    return access_wide(q, IN(0) | IN(1) | operands, 0, (int)dtype_size(q->in[0]->dtype));
}
static int access_adamw(const struct query *q) { return access_update(q, IN(2) | IN(3) | IN(6)); }
static int access_adamw_8bit(const struct query *q) { return access_update(q, IN(2) | IN(3) | IN(7)); }
static int access_sgd(const struct query *q) { return access_update(q, IN(4) | IN(5)); }
/* Returns the access; with factors, rows of four elements at a time. */
static int access_adafactor(const struct query *q)
{
    const int wide = access_update(q, IN(2) | IN(5));
    return given(q, 6) && tensor_last(q->in[0]) % 4 ? (int)dtype_size(q->in[0]->dtype) : wide;
}

static int form_adafactor(const struct query *q)
{
    const struct tensor *p = q->in[0];
    return factor_form(p->rank >= 2 ? p->dim[p->rank - 2] : 1, given(q, 6) != NULL);
}
static const struct forms forms_adafactor =
    {form_adafactor,
     {[FACTOR_NONE] = "not factored", [FACTOR_COLUMNS] = "a thread per column", [FACTOR_CHUNKS] = "chunks of rows"}};

const struct kernel cuda_plan_update[] = {
#include "cuda/update/update.def"
    {.op = OP_NONE},
};
