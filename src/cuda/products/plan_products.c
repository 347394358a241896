/*
 * plan_products.c: matrix products: by cuBLASLt where it supports the product (gemm_shape.h), else
 * by our own slower kernel, which takes any strides and dtypes; the products of experts.
 */
#include "cuda/plan_kernels.h"
#include "cuda/products/gemm_shape.h"
#include "cuda/products/grouped.h"
#include "cuda/products/thin.h"
#include "graph/ops.h"

static bool is_float(const struct tensor *t) { return t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16; }

static bool is_matrix(const struct tensor *t)
{
    int64_t row;
    return is_float(t) && rows_have_one_stride(t->rank, t->dim, t->stride, &row);
}

static bool is_bias(const struct tensor *t) { return !t || (is_float(t) && tensor_is_dense(t)); }

static bool match_linear(const struct query *q)
{
    const struct tensor *add = given(q, 3);
    return is_matrix(q->in[0]) && is_matrix(q->in[1]) && is_storable(q->out[0]) && is_bias(given(q, 2)) &&
           (!add || is_dense(add, q->out[0]->dtype));
}

static bool match_linear_act(const struct query *q)
{
    return match_linear(q) && (!q->out[1] || is_dense(q->out[1], q->out[0]->dtype));
}

static bool match_matmul(const struct query *q)
{
    const struct tensor *acc = given(q, 2);
    return is_matrix(q->in[0]) && is_matrix(q->in[1]) && is_storable(q->out[0]) &&
           (!acc || is_dense(acc, q->out[0]->dtype));
}

/* Matches batches of operands with any strides; the accumulator must be the result. */
static bool match_bmm(const struct query *q)
{
    const struct tensor *acc = given(q, 2);
    return is_float(q->in[0]) && is_float(q->in[1]) && is_float(q->out[0]) && (!acc || acc->dtype == q->out[0]->dtype);
}

/* --- what the library supports ---------------------------------------------------------------- */

/* Returns a tensor as a matrix [rows, last], or its transpose. */
static struct view matrix_of(const struct tensor *t, bool transposed)
{
    int64_t row = 0, column = t->rank ? t->stride[t->rank - 1] : 1;
    rows_have_one_stride(t->rank, t->dim, t->stride, &row);
    if (tensor_last(t) == 1) column = 1;
    return (struct view){.dtype = t->dtype, .row = transposed ? column : row, .column = transposed ? row : column};
}

/* Returns its last two dimensions, or their transpose. */
static struct view batch_of(const struct tensor *t, bool transposed)
{
    const int64_t row = t->stride[t->rank - 2], column = t->stride[t->rank - 1];
    return (struct view){.dtype = t->dtype, .row = transposed ? column : row, .column = transposed ? row : column};
}

/* Reports whether the library supports the product and the whole of which it is a part: the
 * algorithm is chosen for that one. */
static bool is_supported(const struct gemm_shape *s)
{
    const struct gemm_shape whole = gemm_whole(s);
    struct matrix_storage a, b, c;
    return gemm_library_supports(s, &a, &b, &c) && gemm_library_supports(&whole, &a, &b, &c);
}

/* Reports whether the library has the product. `result`: the output that it is written to. */
static bool library_has_linear(const struct query *q, int result)
{
    const struct tensor *bias = given(q, 2);
    struct gemm_shape s = {.M = tensor_rows(q->in[0]), .N = q->in[1]->dim[0], .K = tensor_last(q->in[0]),
                           .a = matrix_of(q->in[0], false), .b = matrix_of(q->in[1], true),
                           .c = matrix_of(q->out[result], false), .bias = bias,
                           .whole_M = portion_whole(q->portion, tensor_rows(q->in[0]))};
    if (bias) s.bias_dtype = bias->dtype, s.bias_align = is_aligned(bias) ? GEMM_BIAS_ALIGN : 1;
    return is_supported(&s);
}

static bool match_library_linear(const struct query *q) { return match_linear(q) && library_has_linear(q, 0); }

static bool match_library_linear_act(const struct query *q)
{
    return match_linear_act(q) && is_aligned(q->out[0]) && (!q->out[1] || is_aligned(q->out[1])) &&
           library_has_linear(q, q->out[1] ? 1 : 0);
}

static bool match_library_matmul(const struct query *q)
{
    if (!match_matmul(q)) return false;
    const bool ta = q->attr->matmul.ta, tb = q->attr->matmul.tb;
    const struct tensor *a = q->in[0], *b = q->in[1];
    struct gemm_shape s = {.M = ta ? tensor_last(a) : tensor_rows(a), .N = tb ? tensor_rows(b) : tensor_last(b),
                           .K = ta ? tensor_rows(a) : tensor_last(a), .a = matrix_of(a, ta), .b = matrix_of(b, tb)};
    s.c = (struct view){.dtype = q->out[0]->dtype, .row = s.N, .column = 1};
    if (!ta) s.whole_M = portion_whole(q->portion, s.M);
    return is_supported(&s);
}

static bool match_library_bmm(const struct query *q)
{
    if (!match_bmm(q)) return false;
    const bool ta = q->attr->matmul.ta, tb = q->attr->matmul.tb;
    const struct tensor *a = q->in[0], *c = q->out[0];
    const struct gemm_shape s = {.M = c->dim[c->rank - 2], .N = c->dim[c->rank - 1],
                                 .K = a->dim[a->rank - (ta ? 2 : 1)], .a = batch_of(a, ta), .b = batch_of(q->in[1], tb),
                                 .c = batch_of(c, false)};
    return is_supported(&s);
}

/* --- products of e4m3 with scales (scaled.cu) ------------------------------------------------- */

/* Reports whether inputs i and i + 1 are numbers in e4m3 and their scales. */
static bool is_coded(const struct query *q, int i)
{
    return is_dense(q->in[i], DT_E4M3) && is_dense(q->in[i + 1], DT_F32);
}

/* Reports whether the library reads inputs i and i + 1 where they are. */
static bool is_coded_aligned(const struct query *q, int i) { return is_aligned(q->in[i]) && is_aligned(q->in[i + 1]); }

static bool match_scaled_linear(const struct query *q)
{
    const struct tensor *add = given(q, 5);
    return is_coded(q, 0) && is_coded(q, 2) && is_storable(q->out[0]) && is_bias(given(q, 4)) &&
           (!add || is_dense(add, q->out[0]->dtype));
}

/* Returns the product of SCALED_LINEAR into a result of dtype c. */
static struct gemm_shape scaled_linear_of(const struct query *q, enum dtype c)
{
    const int64_t N = q->in[2]->dim[0];
    return (struct gemm_shape){.M = tensor_rows(q->in[0]), .N = N, .K = tensor_last(q->in[0]),
                               .a = matrix_of(q->in[0], false), .b = matrix_of(q->in[2], true),
                               .c = {.dtype = c, .row = N, .column = 1},
                               .whole_M = portion_whole(q->portion, tensor_rows(q->in[0]))};
}

static bool match_library_scaled_linear(const struct query *q)
{
    const struct tensor *bias = given(q, 4), *add = given(q, 5);
    if (!match_scaled_linear(q) || !is_coded_aligned(q, 0) || !is_coded_aligned(q, 2)) return false;
    struct gemm_shape s = scaled_linear_of(q, q->out[0]->dtype);
    s.scales = SCALES_ROWS;
    s.bias = bias;
    if (bias) s.bias_dtype = bias->dtype, s.bias_align = is_aligned(bias) ? GEMM_BIAS_ALIGN : 1;
    return is_supported(&s) && is_aligned(q->out[0]) && (!add || is_aligned(add));
}

/* Matches products whose result in f32 another kernel scales, with bias and addend. */
static bool match_library_scaled_apart(const struct query *q)
{
    const struct gemm_shape s = scaled_linear_of(q, DT_F32);
    return match_scaled_linear(q) && is_aligned(q->in[0]) && is_aligned(q->in[2]) && is_supported(&s);
}
static uint64_t workspace_scaled_apart(const struct query *q)
{
    return workspace_library(q) + (uint64_t)tensor_elements(q->out[0]) * sizeof(float);
}

static bool match_scaled_dw(const struct query *q)
{
    const struct tensor *acc = given(q, 4);
    return is_coded(q, 0) && is_coded(q, 2) && is_storable(q->out[0]) && (!acc || is_dense(acc, q->out[0]->dtype));
}

/* The forms of SCALED_DW: the library scales blocks of GEMM_BLOCK terms, or it multiplies one block
 * after the other and adds in f32. */
enum { DW_BLOCKS, DW_ONE_BY_ONE };
static int form_scaled_dw(const struct query *q)
{
    return tensor_last(q->in[0]) == GEMM_BLOCK * q->in[1]->dim[0] ? DW_BLOCKS : DW_ONE_BY_ONE;
}
static const struct forms forms_scaled_dw = {form_scaled_dw, {[DW_BLOCKS] = "blocks", [DW_ONE_BY_ONE] = "one by one"}};

static bool match_library_scaled_dw(const struct query *q)
{
    const int64_t T = tensor_last(q->in[0]), blocks = q->in[1]->dim[0];
    if (!match_scaled_dw(q) || !is_coded_aligned(q, 0) || !is_coded_aligned(q, 2) || !is_aligned(q->out[0]))
        return false;
    const bool one_by_one = form_scaled_dw(q) == DW_ONE_BY_ONE;
    struct gemm_shape s = {.M = q->in[0]->dim[0], .N = q->in[2]->dim[0], .K = one_by_one ? T / blocks : T,
                           .a = matrix_of(q->in[0], false), .b = matrix_of(q->in[2], true),
                           .c = {.dtype = q->out[0]->dtype, .row = q->in[2]->dim[0], .column = 1},
                           .scales = one_by_one ? SCALES_ROWS : SCALES_BLOCKS};
    /* the scales of a block begin at a multiple of 16 bytes */
    const bool aligned = s.M % 4 == 0 && s.N % 4 == 0 && s.K % 16 == 0;
    return aligned && is_supported(&s) && (!one_by_one || blocks == 1 || s.c.dtype == DT_F32);
}

/* --- the products of experts (grouped.h) ------------------------------------------------------ */

/* Matches rows that are counted in 32 bits, and w of any strides. */
static bool match_grouped_linear(const struct query *q)
{
    const struct tensor *x = q->in[0], *w = q->in[1];
    return is_storable(x) && is_float(w) && is_dense(q->in[2], DT_I32) && is_storable(q->out[0]) &&
           x->dim[0] <= INT32_MAX / 2 && w->dim[2] <= INT32_MAX / 2 &&
           grouped_blocks(x->dim[0], w->dim[0], w->dim[1], GROUPED_TILE, GROUPED_TILE) <= INT32_MAX;
}

static bool match_grouped_dw(const struct query *q)
{
    const struct tensor *acc = given(q, 3), *dw = q->out[0];
    return is_storable(q->in[0]) && is_storable(q->in[1]) && is_dense(q->in[2], DT_I32) && is_storable(dw) &&
           (!acc || is_dense(acc, dw->dtype)) && q->in[0]->dim[0] <= INT32_MAX / 2 &&
           grouped_dw_blocks(dw->dim[0], dw->dim[1], dw->dim[2], GROUPED_TILE, GROUPED_TILE) <= INT32_MAX;
}

/* Reports whether w is turned: its numbers are adjacent along N. */
static bool is_turned(const struct tensor *w) { return w->stride[2] != 1; }

/* Matches what tensor cores multiply, in rows of whole 16 bytes. */
static bool match_grouped_linear_tiles(const struct query *q)
{
    const struct tensor *x = q->in[0], *w = q->in[1], *y = q->out[0];
    const int dense = is_turned(w) ? 1 : 2;
    return match_grouped_linear(q) && has_tensor_cores(q, x->dtype) && w->dtype == x->dtype && y->dtype == x->dtype &&
           w->dim[1] % 8 == 0 && w->dim[2] % 8 == 0 && w->stride[0] % 8 == 0 && w->stride[dense] == 1 &&
           w->stride[3 - dense] % 8 == 0 && is_aligned(x) && is_aligned(w) && is_aligned(y);
}

static bool match_grouped_dw_tiles(const struct query *q)
{
    const struct tensor *dy = q->in[0], *x = q->in[1], *dw = q->out[0];
    return match_grouped_dw(q) && has_tensor_cores(q, x->dtype) && dy->dtype == x->dtype && dw->dtype == DT_F32 &&
           dw->dim[1] % 8 == 0 && dw->dim[2] % 8 == 0 && is_aligned(dy) && is_aligned(x) && is_aligned(dw);
}

static int form_grouped_linear(const struct query *q)
{
    return grouped_form(q->in[0]->dim[0], q->in[1]->dim[0], is_turned(q->in[1]));
}
static const struct forms forms_grouped_linear = {
    form_grouped_linear,
    {[GROUPED_PLAIN] = "nt, 128 rows", [GROUPED_PLAIN_FEW] = "nt, 64 rows", [GROUPED_TURNED] = "nn, 128 rows",
     [GROUPED_TURNED_FEW] = "nn, 64 rows"}};

const struct kernel cuda_plan_products[] = {
#include "cuda/products/products.def"
    {.op = OP_NONE},
};

/* --- a few rows with a long matrix (thin.h) --------------------------------------------------- */

/* Returns the product of SAM's masks from its hypernetworks, or of their gradients. Operands may
 * have different dtypes, as they do in the gradients; the library does not support that. */
static struct thin thin_query(const struct query *q)
{
    const struct tensor *a = q->in[0], *b = q->in[1], *c = q->out[0];
    return thin_of(q->attr->matmul.ta, q->attr->matmul.tb, c->rank, a->dim, b->dim, c->dim);
}

static bool match_thin(const struct query *q)
{
    const struct tensor *acc = given(q, 2);
    if (!is_storable(q->in[0]) || !is_storable(q->in[1]) || !is_storable(q->out[0])) return false;
    if (acc && !is_dense(acc, q->out[0]->dtype)) return false;
    const struct thin t = thin_query(q);
    return t.mode && is_aligned(t.mode == THIN_UP ? q->out[0] : q->in[1]);
}

static uint64_t work_thin(const struct query *q)
{
    const struct thin t = thin_query(q);
    return t.mode == THIN_ACROSS ? (uint64_t)(t.batches * t.blocks * t.m * t.K) * sizeof(float) : 0;
}

static int form_thin(const struct query *q)
{
    const struct thin t = thin_query(q);
    return thin_form(&t);
}
static const struct forms forms_thin = {
    form_thin,
    {[THIN_FORM_DOWN] = "nt, depth 32", [THIN_FORM_DOWN_ANY] = "nt", [THIN_FORM_UP] = "tn", [THIN_FORM_ACROSS] = "nn"}};

const struct kernel cuda_plan_thin[] = {
#include "cuda/products/thin.def"
    {.op = OP_NONE},
};
