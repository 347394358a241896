/*
 * ref.c: the reference kernels: one for every op that is not a view, for any dtype and any strides,
 * on one thread, with every sum in double.
 *
 * They are the oracle of all tests and the CPU's fallback, so they are written for clarity, not for
 * speed. With f64 operands everything is f64, statistics too: outputs are stored in their own
 * dtype.
 *
 * Invariant: an element is read before it is overwritten, for the aliases that ops.def allows. This
 * file holds the elementwise ops, the update and the table; layers, attention and tokens have their
 * own files.
 */
#include <math.h>

#include "cpu/reference/ref.h"
#include "graph/ops.h"

/* --- elements ------------------------------------------------------------------ */

/* Returns the offset of element i in row-major order, in elements from `data`. Dimensions that
 * follow each other in memory count as one, because divisions take most of the time of a test. */
static int64_t ref_offset(const struct operand *x, int64_t i)
{
    int64_t offset = 0;
    for (int d = x->rank - 1; d >= 0;) {
        int64_t stride = x->stride[d], n = x->dim[d];
        for (d--; d >= 0 && x->stride[d] == n * stride; d--) n *= x->dim[d];
        if (d < 0) return offset + i * stride;
        offset += i % n * stride;
        i /= n;
    }
    return offset;
}

double ref_get(const struct operand *x, int64_t i) { return dtype_load(x->data, x->dtype, ref_offset(x, i)); }

void ref_put(const struct operand *x, int64_t i, double value)
{
    dtype_store(x->data, x->dtype, ref_offset(x, i), value);
}

struct ref_row ref_row(const struct operand *x, int64_t i)
{
    return (struct ref_row){x->data, x->dtype, ref_offset(x, i), x->rank ? x->stride[x->rank - 1] : 0};
}

double ref_dot(const struct operand *x, int64_t i, const struct operand *y, int64_t j, int64_t n)
{
    const struct ref_row a = ref_row(x, i), b = ref_row(y, j);
    double sum = 0;
    for (int64_t k = 0; k < n; k++) sum += ref_at(&a, k) * ref_at(&b, k);
    return sum;
}

double ref_get_acc(const struct launch *l, int input, int64_t i)
{
    return launch_has(l, input) ? ref_get(&l->in[input], i) : 0;
}

/* --- elementwise ----------------------------------------------------------------- */

/* Returns input `input`, broadcast to output 0, at the output's element i. */
static double ref_get_broadcast(const struct launch *l, int input, int64_t i)
{
    const struct operand *x = &l->in[input], *y = &l->out[0];
    int64_t at = 0, stride = 1;
    if (operand_elements(x) == operand_elements(y)) return ref_get(x, i);
    for (int d = y->rank - 1, k = x->rank - 1; k >= 0; i /= y->dim[d], stride *= x->dim[k], d--, k--)
        if (x->dim[k] != 1) at += i % y->dim[d] * stride;
    return ref_get(x, at);
}

static void ref_add(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++)
        ref_put(&l->out[0], i, ref_get_broadcast(l, 0, i) + ref_get_broadcast(l, 1, i));
}

static void ref_accumulate(const struct launch *l) { ref_add(l); }

static void ref_mul(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++)
        ref_put(&l->out[0], i, ref_get_broadcast(l, 0, i) * ref_get_broadcast(l, 1, i));
}

static void ref_scale(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++)
        ref_put(&l->out[0], i, ref_get(&l->in[0], i) * l->attr->scale.value);
}

static void ref_cast(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) ref_put(&l->out[0], i, ref_get(&l->in[0], i));
}

static void ref_sum(const struct launch *l)
{
    double sum = 0;
    for (int64_t i = 0; i < operand_elements(&l->in[0]); i++) sum += ref_get(&l->in[0], i);
    ref_put(&l->out[0], 0, sum);
}

static void ref_spread(const struct launch *l)
{
    double value = ref_get(&l->in[0], 0);
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) ref_put(&l->out[0], i, value);
}

static void ref_fill(const struct launch *l)
{
    for (int64_t i = 0; i < operand_elements(&l->out[0]); i++) ref_put(&l->out[0], i, l->attr->fill.value);
}

/* Copies bytes, not values: a double does not preserve 64-bit integers or NaN payloads. */
static void ref_copy(const struct launch *l)
{
    const struct operand *from = &l->in[0], *to = &l->out[0];
    const int64_t size = dtype_size(from->dtype);
    CHECK(from->dtype == to->dtype, "copy of %s into %s", dtype_name(from->dtype), dtype_name(to->dtype));
    for (int64_t i = 0; i < operand_elements(from); i++)
        memmove((char *)to->data + ref_offset(to, i) * size,
                (const char *)from->data + ref_offset(from, i) * size, (size_t)size);
}

/* --- update ------------------------------------------------------------------------ */

static void ref_sumsq(const struct launch *l)
{
    double sum = 0;
    for (int64_t i = 0; i < operand_elements(&l->in[0]); i++) {
        double x = ref_get(&l->in[0], i);
        sum += x * x;
    }
    ref_put(&l->out[0], 0, ref_get(&l->in[1], 0) + sum);
}

static void ref_clip(const struct launch *l)
{
    const struct step_block *step = l->in[1].data;
    double norm = sqrt(ref_get(&l->in[0], 0)) / step->loss_scale, factor = 1;
    if (step->clip_norm > 0) factor = step->clip_norm / (norm + 1e-6);
    ref_put(&l->out[0], 0, norm);
    ref_put(&l->out[0], 1, (factor > 1 ? 1 : factor) / step->loss_scale);
}

REF_KERNEL(ADD, add);
REF_KERNEL(MUL, mul);
REF_KERNEL(SCALE, scale);
REF_KERNEL(CAST, cast);
REF_KERNEL(SUM, sum);
REF_KERNEL(SPREAD, spread);
REF_KERNEL(ACCUMULATE, accumulate);
REF_KERNEL(FILL, fill);
REF_KERNEL(COPY, copy);
REF_KERNEL(SUMSQ, sumsq);
REF_KERNEL(CLIP, clip);

/* --- the table ------------------------------------------------------------------------ */

#define VIEW(NAME, ...)
#define OP(NAME, ...) extern const struct kernel ref_##NAME[];
#include "graph/ops.def"
#undef OP

const struct kernel *const ref_kernels[OP_COUNT] = {
#define VIEW(NAME, ...)
#define OP(NAME, ...) [OP_##NAME] = ref_##NAME,
#include "graph/ops.def"
#undef OP
};
