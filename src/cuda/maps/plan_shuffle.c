/*
 * plan_shuffle.c: ops that move elements, and ops on maps.
 */
#include "cuda/rows/loop_nest.h"
#include "cuda/plan_kernels.h"
#include "graph/ops.h"

/* Matches any dtype and strides; the copy engine takes what is dense. */
static bool match_copy_strided(const struct query *q) { return q->in[0]->dtype == q->out[0]->dtype; }
static bool match_copy(const struct query *q)
{
    return tensor_is_dense(q->in[0]) && is_dense(q->out[0], q->in[0]->dtype);
}

/* Matches any strides, an input at a time; dense ones are one launch. */
static bool match_concat_strided(const struct query *q)
{
    for (int i = 0; i < q->nin; i++)
        if (q->in[i]->dtype != q->out[0]->dtype) return false;
    return true;
}

static bool match_concat(const struct query *q)
{
    bool dense = match_concat_strided(q) && tensor_is_dense(q->out[0]);
    for (int i = 0; i < q->nin; i++) dense = dense && tensor_is_dense(q->in[i]);
    return dense;
}

/* Matches a dense result: zeros first, then x between them. Where x is one piece of y, and
 * everything begins at a multiple of 16 bytes, both are written at once. */
static bool match_pad_strided(const struct query *q) { return is_dense(q->out[0], q->in[0]->dtype); }

static bool match_pad(const struct query *q)
{
    const struct tensor *y = q->out[0], *x = q->in[0];
    if (!match_pad_strided(q) || !tensor_is_dense(x) || !is_aligned(y) || !is_aligned(x)) return false;
    const int64_t size = dtype_size(x->dtype);
    int64_t first = 0, before = 0;
    while (first < y->rank && y->dim[first] == 1) first++;
    for (int64_t d = first + 1; d < y->rank; d++)
        if (y->dim[d] != x->dim[d]) return false;
    if (first < y->rank) before = q->attr->pad.before[first] * y->stride[first] * size;
    return before % 16 == 0 && tensor_elements(x) * size % 16 == 0 && tensor_elements(y) * size % 16 == 0;
}

/* Matches dense operands of one dtype: REPEAT, windows. */
static bool match_dense(const struct query *q)
{
    return tensor_is_dense(q->in[0]) && is_dense(q->out[0], q->in[0]->dtype);
}
static bool match_gather(const struct query *q) { return match_dense(q) && is_dense(q->in[1], DT_I32); }

static bool match_scatter_add(const struct query *q)
{
    const struct tensor *acc = given(q, 2);
    return is_storable(q->in[0]) && is_dense(q->in[1], DT_I32) && is_storable(q->out[0]) &&
           (!acc || is_dense(acc, q->out[0]->dtype));
}

static bool match_shift_labels(const struct query *q)
{
    return is_dense(q->in[0], DT_I32) && is_dense(q->out[0], DT_I32);
}
static bool match_labelled_first(const struct query *q)
{
    return match_shift_labels(q) && is_dense(q->out[1], DT_I32) && is_dense(q->out[2], DT_I32);
}

static bool match_image(const struct query *q)
{
    return is_dense(q->in[0], DT_U8) && is_dense(q->in[1], DT_I32) && is_storable(q->out[0]);
}
static bool match_pixels(const struct query *q)
{
    return is_dense(q->in[0], DT_U8) && is_dense(q->in[1], DT_F32) && is_storable(q->out[0]);
}
static bool match_fourier(const struct query *q)
{
    return tensor_is_dense(q->in[0]) && tensor_is_dense(q->in[1]) && tensor_is_dense(q->out[0]);
}
static bool match_map(const struct query *q) { return is_storable(q->in[0]) && is_dense(q->out[0], q->in[0]->dtype); }

/* --- widths and forms ------------------------------------------------------------------------- */

static int64_t size_of(const struct tensor *t) { return (int64_t)dtype_size(t->dtype); }

/* Returns the loops of COPY, CONCAT and PAD with strides: each input x goes to a part of y of its
 * shape. */
static struct loop_nest loops_to(const struct tensor *y, const struct tensor *x)
{
    return loop_nest_over((struct strides){x->rank, x->dim, y->stride}, (struct strides){x->rank, x->dim, x->stride},
                          (struct strides){-1, NULL, NULL});
}

/* Chooses tiles if they pay off for all inputs. */
static int form_strided(const struct query *q)
{
    for (int i = 0; i < q->nin; i++) {
        const struct loop_nest f = loops_to(q->out[0], q->in[i]);
        if (!transposed_loop(&f)) return MOVE_ROWS;
    }
    return MOVE_TRANSPOSED;
}
static const struct forms forms_strided = {form_strided, {[MOVE_ROWS] = "by rows", [MOVE_TRANSPOSED] = "transposed"}};

/* Returns the access; `starts`: the bits of the bytes at which the parts of y begin. */
static int access_parts(const struct query *q, uint64_t starts)
{
    const int size = (int)size_of(q->out[0]);
    int64_t unit = 16;
    if (form_strided(q) == MOVE_TRANSPOSED) return size;
    for (int i = 0; i < q->nin; i++) {
        const struct loop_nest f = loops_to(q->out[0], q->in[i]);
        unit = min_i64(unit, move_unit(&f, address_bits(q, ALL_IN | OUT(0)) | starts, size));
    }
    return (int)unit;
}
static int access_copy_strided(const struct query *q) { return access_parts(q, 0); }

static int access_concat_strided(const struct query *q)
{
    const int axis = q->attr->concat.axis;
    uint64_t starts = 0;
    int64_t at = 0;
    for (int i = 0; i < q->nin; at += q->in[i++]->dim[axis])
        starts |= (uint64_t)(at * q->out[0]->stride[axis] * size_of(q->out[0]));
    return access_parts(q, starts);
}

static int access_pad_strided(const struct query *q)
{
    const struct tensor *y = q->out[0];
    int64_t start = 0;
    for (int d = 0; d < y->rank; d++) start += q->attr->pad.before[d] * y->stride[d];
    return access_parts(q, (uint64_t)(start * size_of(y)));
}

/* Returns the access: it divides the bytes of every input within one index of the dimensions before
 * the axis. */
static int access_concat(const struct query *q)
{
    const struct tensor *y = q->out[0];
    const int axis = q->attr->concat.axis;
    int64_t inner = size_of(y), rows = 0;
    for (int d = axis + 1; d < y->rank; d++) inner *= y->dim[d];
    for (int i = 0; i < q->nin; i++) rows |= q->in[i]->dim[axis] * inner;
    return access_unit(q, ALL_IN | OUT(0), rows);
}
static int access_gather(const struct query *q)
{
    return access_unit(q, IN(0) | OUT(0), q->in[0]->dim[2] * size_of(q->in[0]));
}
static int access_repeat(const struct query *q)
{
    return access_unit(q, IN(0) | OUT(0), tensor_elements(q->in[0]) / q->in[0]->dim[0] * size_of(q->in[0]));
}
static int access_window(const struct query *q)
{
    return access_unit(q, IN(0) | OUT(0), tensor_last(q->in[0]) * size_of(q->in[0]));
}
static int form_windows(const struct query *q)
{
    return window_form(tensor_last(q->in[0]) * size_of(q->in[0]) / access_window(q));
}
static const struct forms forms_windows =
    {form_windows, {[WINDOW_UNITS] = "a thread per unit", [WINDOW_PIXELS] = "a warp per pixel"}};
static bool match_maxpool_bwd(const struct query *q) { return match_map(q) && is_dense(q->in[1], q->out[0]->dtype); }
static int access_maxpool_bwd(const struct query *q)
{
    return access_rows(q, IN(0) | IN(1) | OUT(0), q->in[0]);
}

static int access_map(const struct query *q) { return access_rows(q, IN(0) | OUT(0), q->in[0]); }

const struct kernel cuda_plan_shuffle[] = {
#include "cuda/maps/shuffle.def"
    {.op = OP_NONE},
};
