/*
 * plan_elementwise.c: elementwise ops, fills, and sums.
 */
#include "cuda/rows/loop_nest.h"
#include "cuda/plan_kernels.h"
#include "graph/ops.h"

static bool is_float(const struct tensor *t)
{
    return t && (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16);
}

/* Matches operands of one floating-point dtype, with any strides. */
static bool match_alike(const struct query *q)
{
    for (int i = 0; i < q->nin; i++)
        if (!is_float(q->in[i]) || q->in[i]->dtype != q->out[0]->dtype) return false;
    return q->nin > 0;
}

/* Reports whether all operands are dense, of the result's shape, and aligned: one loop over all
 * elements. */
static bool is_flat(const struct query *q)
{
    const struct tensor *y = q->out[0];
    bool flat = y->rank <= MAX_RANK && tensor_is_dense(y) && is_aligned(y);
    for (int i = 0; i < q->nin && flat; i++) {
        const struct tensor *x = q->in[i];
        flat = x && tensor_is_dense(x) && is_aligned(x) && tensor_elements(x) == tensor_elements(y);
    }
    return flat;
}

static bool match_flat(const struct query *q) { return match_alike(q) && is_flat(q); }
static bool match_accumulate(const struct query *q)
{
    return is_float(q->in[0]) && is_float(q->in[1]) && q->in[1]->dtype == q->out[0]->dtype;
}
static bool match_flat_accumulate(const struct query *q) { return match_accumulate(q) && is_flat(q); }
static bool match_cast(const struct query *q) { return q->in[0] && q->out[0]; }
static bool match_flat_cast(const struct query *q) { return is_float(q->in[0]) && is_float(q->out[0]) && is_flat(q); }

static bool match_dequantize(const struct query *q)
{
    return is_aligned(q->in[0]) && is_storable(q->out[0]) && is_aligned(q->out[0]);
}

/* --- numbers in e4m3 with scales (quantize.cu) ------------------------------------------------ */

/* Rows of a tile of columns; packs of 16 bytes of a row that a block of threads keeps. */
enum { QUANTIZE_TILE = 128, QUANTIZE_PACKS = 2048, QUANTIZE_GRID = 65535 };

static bool is_quantized(const struct query *q)
{
    return is_dense(q->out[0], DT_E4M3) && is_dense(q->out[1], DT_F32);
}

/* Reports whether x has dense rows of whole packs of 16 bytes, and codes are stored at multiples of
 * 16 bytes. */
static bool has_packs(const struct query *q, const struct tensor *x)
{
    return is_aligned(x) && is_aligned(q->out[0]) && tensor_last(x) * (int64_t)dtype_size(x->dtype) % 16 == 0;
}

static bool match_quantize_rows_any(const struct query *q) { return is_storable(q->in[0]) && is_quantized(q); }
static bool match_quantize_rows(const struct query *q)
{
    const struct tensor *x = q->in[0];
    return match_quantize_rows_any(q) && has_packs(q, x) &&
           tensor_last(x) * (int64_t)dtype_size(x->dtype) <= 16 * QUANTIZE_PACKS;
}

static bool match_quantize_columns_any(const struct query *q)
{
    const struct tensor *scales = given(q, 1);
    return is_quantized(q) && (is_storable(q->in[0]) || (is_dense(q->in[0], DT_E4M3) && is_dense(scales, DT_F32)));
}
/* Matches blocks of whole tiles, or all rows at once. */
static bool match_quantize_columns(const struct query *q)
{
    const int64_t M = tensor_rows(q->in[0]), rows = q->attr->quantize_columns.rows;
    return match_quantize_columns_any(q) && has_packs(q, q->in[0]) && M % 16 == 0 &&
           M / QUANTIZE_TILE < QUANTIZE_GRID && (rows % QUANTIZE_TILE == 0 || rows == M);
}
static uint64_t workspace_quantize_columns(const struct query *q)
{
    return q->attr->quantize_columns.rows == QUANTIZE_TILE ? 0 : tensor_bytes(q->out[1]);
}

static bool match_dequantize_rows_any(const struct query *q)
{
    return is_dense(q->in[0], DT_E4M3) && is_dense(q->in[1], DT_F32) && is_storable(q->out[0]);
}
static bool match_dequantize_rows(const struct query *q)
{
    return match_dequantize_rows_any(q) && has_packs(q, q->in[0]);
}

/* Matches operands that are all dense and have one dtype. */
static bool match_all_dense(const struct query *q)
{
    bool ok = is_storable(q->in[0]);
    for (int i = 1; i < q->nin; i++) ok = ok && is_dense(q->in[i], q->in[0]->dtype);
    for (int o = 0; o < q->nout; o++) ok = ok && is_dense(q->out[o], q->in[0]->dtype);
    return ok;
}

static bool match_fill(const struct query *q) { return tensor_is_dense(q->out[0]); }
static bool match_spread(const struct query *q) { return q->in[0] && is_storable(q->out[0]); }

static bool match_dropout(const struct query *q)
{
    return is_storable(q->in[0]) && is_dense(q->out[0], q->in[0]->dtype) && q->in[1] && is_dense(q->in[2], DT_I32);
}

static bool match_sum(const struct query *q) { return is_float(q->in[0]) && q->out[0]->dtype == DT_F32; }
static uint64_t workspace_sum(const struct query *q)
{
    return (uint64_t)sum_blocks(tensor_elements(q->in[0])) * sizeof(float);
}

static bool match_sum_to(const struct query *q)
{
    const struct tensor *acc = given(q, 1);
    return is_float(q->in[0]) && is_storable(q->out[0]) && (!acc || is_dense(acc, q->out[0]->dtype));
}

static uint64_t workspace_sum_to(const struct query *q)
{
    const struct tensor *x = q->in[0], *y = q->out[0];
    const int64_t blocks = summing_of(x->rank, x->dim, x->stride, y->rank, y->dim, (int)dtype_size(x->dtype)).blocks;
    return blocks > 1 ? (uint64_t)(blocks * tensor_elements(y)) * sizeof(float) : 0;
}

static bool match_act_bwd_any_then_sum(const struct query *q)
{
    return match_alike(q) && is_storable(q->out[0]) && is_dense(q->in[0], q->out[0]->dtype) &&
           is_dense(q->in[1], q->out[0]->dtype) && is_dense(q->out[1], DT_F32) &&
           (q->nout < 3 || is_dense(q->out[2], q->out[0]->dtype));
}

static bool match_act_bwd_then_sum(const struct query *q)
{
    return match_act_bwd_any_then_sum(q) && is_aligned(q->out[0]) && is_aligned(q->in[0]) && is_aligned(q->in[1]);
}

/* Matches what one kernel computes: rows must not be short. */
static bool match_act_bwd_sum(const struct query *q)
{
    const struct tensor *x = q->out[0];
    return match_act_bwd_then_sum(q) && act_sums_fit(tensor_last(x), (int)dtype_size(x->dtype)) &&
           (q->nout < 3 || is_aligned(q->out[2]));
}

static uint64_t workspace_act_bwd_sum(const struct query *q)
{
    const struct tensor *x = q->out[0], *y = q->out[1];
    const int size = (int)dtype_size(x->dtype);
    const int64_t apart = summing_of(x->rank, x->dim, x->stride, y->rank, y->dim, size).blocks, C = tensor_last(x);
    const int64_t rows = tensor_rows(x);
    return (uint64_t)(max_i64(apart, act_sums_of(rows, portion_whole(q->portion, rows), C, size).blocks) * C) *
           sizeof(float);
}

/* --- widths and forms ------------------------------------------------------------------------- */

static int size_of(const struct tensor *t) { return (int)dtype_size(t->dtype); }

static int access_all(const struct query *q)
{
    return access_wide(q, ALL_IN | OUT(0) | OUT(1) | OUT(2), 0, size_of(q->in[0]));
}
static int access_whole_packs(const struct query *q) { return access_rows(q, ALL_IN | OUT(0), q->out[0]); }
static int access_fill(const struct query *q) { return access_wide(q, OUT(0), 0, 1); }
static int access_spread(const struct query *q) { return access_wide(q, OUT(0), 0, size_of(q->out[0])); }

static int access_dropout(const struct query *q)
{
    const struct tensor *x = q->in[0];
    return access_wide(q, IN(0) | OUT(0), tensor_elements(x) / x->dim[0] * size_of(x), size_of(x));
}

static struct strides strides_of(const struct tensor *t) { return (struct strides){t->rank, t->dim, t->stride}; }

/* Returns the access. A broadcast operand is read one element at a time, from any address. */
static int access_strided(const struct query *q)
{
    const struct tensor *y = q->out[0];
    const struct loop_nest f = loop_nest_over(strides_of(y), strides_of(q->in[0]), strides_of(q->in[1]));
    const unsigned packed = OUT(0) | (f.a[0] ? IN(0) : 0) | (f.b[0] ? IN(1) : 0);
    return loop_nest_fits(&f, 16 / size_of(y)) ? access_wide(q, packed, 0, size_of(y)) : size_of(y);
}

static int form_strided(const struct query *q)
{
    const struct loop_nest f = loop_nest_over(strides_of(q->out[0]), strides_of(q->in[0]), strides_of(q->in[1]));
    return pair_form(&f, access_strided(q) == 16 ? 16 / size_of(q->out[0]) : 1);
}
static const struct forms forms_strided =
    {form_strided,
     {[PAIR_ELEMENTS] = "by element", [PAIR_PACKS] = "by pack", [PAIR_PACKS_32] = "by pack, 32-bit offsets"}};

static int form_sum(const struct query *q)
{
    const struct loop_nest f =
        loop_nest_over(strides_of(q->in[0]), strides_of(q->in[0]), (struct strides){-1, NULL, NULL});
    return sum_form(&f);
}
static const struct forms forms_sum = {form_sum, {[SUM_DENSE] = "dense", [SUM_STRIDED] = "strided"}};

static int access_sum(const struct query *q)
{
    const struct tensor *x = q->in[0];
    return tensor_is_dense(x) ? access_wide(q, IN(0), 0, size_of(x)) : size_of(x);
}

static int access_columns(const struct query *q, unsigned operands, const struct tensor *x, const struct tensor *y)
{
    const struct summing s = summing_of(x->rank, x->dim, x->stride, y->rank, y->dim, size_of(x));
    return summing_fits(&s, 16 / size_of(x)) ? access_wide(q, operands, 0, size_of(x)) : size_of(x);
}
static int access_sum_to(const struct query *q) { return access_columns(q, IN(0) | OUT(0), q->in[0], q->out[0]); }
static int access_then_sum(const struct query *q) { return access_columns(q, OUT(0) | OUT(1), q->out[0], q->out[1]); }

static int form_columns(const struct tensor *x, const struct tensor *y)
{
    const struct summing s = summing_of(x->rank, x->dim, x->stride, y->rank, y->dim, size_of(x));
    return sum_to_form(&s);
}
static int form_sum_to(const struct query *q) { return form_columns(q->in[0], q->out[0]); }
static int form_then_sum(const struct query *q) { return form_columns(q->out[0], q->out[1]); }
static const struct forms forms_sum_to = {form_sum_to,
                                          {[SUM_ROWS] = "by row",
                                           [SUM_BY_WARP] = "a warp per result",
                                           [SUM_BY_BLOCK] = "a block per result",
                                           [SUM_ROWS_OF_LOOPS] = "by row, over several dimensions"}};
static const struct forms forms_then_sum =
    {form_then_sum,
     {[SUM_ROWS] = "by row", [SUM_BY_WARP] = "a warp per result", [SUM_BY_BLOCK] = "a block per result"}};

const struct kernel cuda_plan_elementwise[] = {
#include "cuda/rows/elementwise.def"
    {.op = OP_NONE},
};
