/*
 * elementwise.c: the running half of elementwise.cu, act_sums.cu, strided.cu and sums.cu.
 *
 * Dense, aligned operands of one shape use elementwise.cu; ADD and MUL with strides, and everything
 * else in any layout and dtypes, use strided.cu: these are rows of their own (elementwise.def).
 */
#include "cuda/rows/operand_loops.h"


_Static_assert(ACT_GELU == 0 && ACT_GELU_TANH == 1 && ACT_QUICK_GELU == 2 && ACT_RELU == 3 && ACT_SIGMOID == 4 &&
                   ACT_SILU == 5 && ACT_TANH == 6 && ACT_EXP == 7 && ACT_KINDS == 8,
               "the functions of elements.cuh are in this order");

/* --- dense, aligned operands of one shape ----------------------------------------------------- */

static int launch_pair(const struct launch *l, enum function f, struct error *e)
{
    const struct operand *y = &l->out[0];
    TRY_CUDA(cuda_pair(f, y->data, l->in[0].data, l->in[1].data, store_of(y->dtype), operand_elements(y), l->stream));
    return PL_OK;
}

static int launch_map(const struct launch *l, enum function f, float value, struct error *e)
{
    const struct operand *y = &l->out[0];
    TRY_CUDA(cuda_map(f, y->data, l->in[0].data, store_of(y->dtype), operand_elements(y), value, l->stream));
    return PL_OK;
}

static enum function act_of(const struct launch *l) { return (enum function)(FUNCTION_ACT + l->attr->act.kind); }
static enum function slope_of(const struct launch *l) { return (enum function)(FUNCTION_SLOPE + l->attr->act.kind); }

static int launch_add(const struct launch *l, struct error *e) { return launch_pair(l, FUNCTION_ADD, e); }
static int launch_mul(const struct launch *l, struct error *e) { return launch_pair(l, FUNCTION_MUL, e); }
static int launch_silu_gate(const struct launch *l, struct error *e) { return launch_pair(l, FUNCTION_SILU_GATE, e); }
static int launch_act_bwd(const struct launch *l, struct error *e) { return launch_pair(l, slope_of(l), e); }
static int launch_scale(const struct launch *l, struct error *e)
{
    return launch_map(l, FUNCTION_SCALE, (float)l->attr->scale.value, e);
}
static int launch_act(const struct launch *l, struct error *e) { return launch_map(l, act_of(l), 0, e); }

static int launch_cast(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0], *a = &l->in[0];
    TRY_CUDA(cuda_cast(y->data, a->data, store_of(y->dtype), store_of(a->dtype), operand_elements(y), l->stream));
    return PL_OK;
}

static int launch_accumulate(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0], *x = &l->in[0];
    CHECK(l->in[1].data == y->data, "the accumulator is updated in place");
    TRY_CUDA(cuda_accumulate(y->data, x->data, store_of(y->dtype), store_of(x->dtype), operand_elements(y), l->stream));
    return PL_OK;
}

/* --- any strides, dtypes and alignment -------------------------------------------------------- */

static int launch_strided(const struct launch *l, enum function f, struct error *e)
{
    const struct operand *y = &l->out[0], *a = &l->in[0], *b = &l->in[1];
    TRY_CUDA(cuda_pair_strided(f, y->data, a->data, b->data, store_of(y->dtype), loop_nest_of(y, a, b), l->access,
                               (enum pair_form)l->form, l->stream));
    return PL_OK;
}

/* Launches f of one or two inputs; b is NULL for one. */
static int launch_any(const struct launch *l, enum function f, const struct operand *b, float value, struct error *e)
{
    const struct operand *y = &l->out[0], *a = &l->in[0];
    const struct any_types types = {any_of(y->dtype), any_of(a->dtype), b ? any_of(b->dtype) : ANY_F32};
    TRY_CUDA(cuda_any(f, y->data, a->data, b ? b->data : NULL, types, loop_nest_of(y, a, b), value, l->stream));
    return PL_OK;
}

static int launch_add_strided(const struct launch *l, struct error *e) { return launch_strided(l, FUNCTION_ADD, e); }
static int launch_mul_strided(const struct launch *l, struct error *e) { return launch_strided(l, FUNCTION_MUL, e); }
static int launch_silu_gate_any(const struct launch *l, struct error *e)
{
    return launch_any(l, FUNCTION_SILU_GATE, &l->in[1], 0, e);
}
static int launch_act_bwd_any(const struct launch *l, struct error *e)
{
    return launch_any(l, slope_of(l), &l->in[1], 0, e);
}
static int launch_scale_any(const struct launch *l, struct error *e)
{
    return launch_any(l, FUNCTION_SCALE, NULL, (float)l->attr->scale.value, e);
}
static int launch_act_any(const struct launch *l, struct error *e) { return launch_any(l, act_of(l), NULL, 0, e); }
static int launch_cast_any(const struct launch *l, struct error *e) { return launch_any(l, FUNCTION_CAST, NULL, 0, e); }

static int launch_accumulate_any(const struct launch *l, struct error *e)
{
    CHECK(l->in[1].data == l->out[0].data, "the accumulator is updated in place");
    return launch_any(l, FUNCTION_ADD, &l->in[1], 0, e);
}

/* --- others ----------------------------------------------------------------------------------- */

/* Reports whether a launch is on short vectors: the gradients of norms and biases, which follow
 * each other at the end of a micro-batch. */
static bool is_vector(const struct operand *x)
{
    return x->dtype == DT_F32 && operand_elements(x) <= VECTOR_LONGEST &&
           (x->rank == 0 || (x->rank == 1 && x->stride[0] == 1));
}

static uint32_t collect_vectors(struct vectors *v, const struct launch *l, uint32_t n)
{
    for (uint32_t i = 0; i < n && v->count < VECTORS_MOST; i++) {
        const struct operand *y = &l[i].out[0], *x = l[i].nin ? &l[i].in[0] : NULL;
        if (!is_vector(y) || (x && (!is_vector(x) || l[i].in[1].data != y->data)) ||
            (!x && l[i].attr->fill.value != l->attr->fill.value))
            break;
        v->y[v->count] = y->data;
        v->x[v->count] = x ? x->data : NULL;
        v->n[v->count++] = (int32_t)operand_elements(y);
    }
    return (uint32_t)v->count;
}

static int batch_accumulate(const struct launch *l, uint32_t n, uint32_t *taken, struct error *e)
{
    struct vectors v = {0};
    if (collect_vectors(&v, l, n) < 2) return launch_accumulate(l, e);
    *taken = (uint32_t)v.count;
    TRY_CUDA(cuda_vectors(v, l->stream));
    return PL_OK;
}

static int launch_silu_gate_bwd(const struct launch *l, struct error *e)
{
    void *y = l->nout > 2 ? l->out[2].data : NULL;
    TRY_CUDA(cuda_silu_gate_bwd(l->out[0].data, l->out[1].data, y, l->in[0].data, l->in[1].data, l->in[2].data,
                                store_of(l->in[0].dtype), operand_elements(&l->in[0]), l->access, l->stream));
    return PL_OK;
}

/* Repeats one element up to eight bytes: the size of every dtype divides eight. */
static int launch_fill(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0];
    const uint32_t size = dtype_size(y->dtype);
    uint64_t pattern = 0;
    for (uint32_t i = 0; i < sizeof pattern / size; i++) dtype_store(&pattern, y->dtype, i, l->attr->fill.value);
    TRY_CUDA(cuda_fill(y->data, pattern, operand_elements(y) * size, l->access, l->stream));
    return PL_OK;
}

static int batch_fill(const struct launch *l, uint32_t n, uint32_t *taken, struct error *e)
{
    struct vectors v = {.value = (float)l->attr->fill.value};
    if (collect_vectors(&v, l, n) < 2) return launch_fill(l, e);
    *taken = (uint32_t)v.count;
    TRY_CUDA(cuda_vectors(v, l->stream));
    return PL_OK;
}

static int launch_spread(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0];
    TRY_CUDA(cuda_spread(y->data, l->in[0].data, any_of(l->in[0].dtype), store_of(y->dtype), operand_elements(y),
                         l->access, l->stream));
    return PL_OK;
}

static int launch_dropout(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    const float p = l->attr->dropout.p;
    TRY_CUDA(cuda_dropout(l->out[0].data, x->data, l->in[1].data, l->in[2].data, store_of(x->dtype), x->dim[0],
                          operand_elements(x) / x->dim[0], l->attr->dropout.key, step_dropout_threshold(p),
                          1.0f / (1.0f - p), l->attr->dropout.per_sample, l->access, l->stream));
    return PL_OK;
}

static int launch_sum(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_sum(l->out[0].data, l->work, x->data, store_of(x->dtype), loop_nest_of(x, x, NULL), l->access,
                      (enum sum_form)l->form, l->stream));
    return PL_OK;
}

static int sum_columns(const struct launch *l, const struct operand *x, const struct operand *y, bool add,
                       struct error *e)
{
    const struct summing s =
        summing_of_part(x->rank, x->dim, x->stride, y->rank, y->dim, (int)dtype_size(x->dtype),
                        l->extent.part ? l->extent.part : 1, l->extent.part ? l->extent.whole : 1);
    const struct typed_ptr to = {y->data, store_of(y->dtype)};
    TRY_CUDA(cuda_sum_to(to, l->work, x->data, store_of(x->dtype), s, operand_elements(y), add, l->access,
                         (enum sum_to_form)l->form, l->stream));
    return PL_OK;
}

static int launch_sum_to(const struct launch *l, struct error *e)
{
    CHECK(!has(l, 1) || l->in[1].data == l->out[0].data, "the accumulator is updated in place");
    return sum_columns(l, &l->in[0], &l->out[0], has(l, 1), e);
}

static int launch_act_bwd_sum(const struct launch *l, struct error *e)
{
    const struct operand *dx = &l->out[0];
    const struct act_sums s = act_sums_of(operand_rows(dx), launch_whole(l, operand_rows(dx)), operand_last(dx),
                                          (int)dtype_size(dx->dtype));
    TRY_CUDA(cuda_act_sums(l->attr->act.kind, dx->data, l->nout > 2 ? l->out[2].data : NULL, l->out[1].data, l->work,
                           l->in[0].data, l->in[1].data, store_of(dx->dtype), s, l->stream));
    return PL_OK;
}

/* Launches ACT_BWD and then SUM_TO, by their own kernels. */
static int act_bwd_then_sum(const struct launch *l, int (*act_bwd)(const struct launch *, struct error *),
                            struct error *e)
{
    const struct operand *dx = &l->out[0];
    if (l->nout > 2 && l->out[2].data)
        TRY_CUDA(cuda_act_both(l->attr->act.kind, dx->data, l->out[2].data, l->in[0].data, l->in[1].data,
                               store_of(dx->dtype), operand_elements(dx), l->stream));
    else TRY(act_bwd(l, e));
    return sum_columns(l, dx, &l->out[1], false, e);
}

static int launch_act_bwd_then_sum(const struct launch *l, struct error *e)
{
    return act_bwd_then_sum(l, launch_act_bwd, e);
}
static int launch_act_bwd_any_then_sum(const struct launch *l, struct error *e)
{
    return act_bwd_then_sum(l, launch_act_bwd_any, e);
}

CUDA_KERNEL(cuda_add, .launch = launch_add);
CUDA_KERNEL(cuda_mul, .launch = launch_mul);
CUDA_KERNEL(cuda_silu_gate, .launch = launch_silu_gate);
CUDA_KERNEL(cuda_silu_gate_bwd, .launch = launch_silu_gate_bwd);
CUDA_KERNEL(cuda_silu_gate_bwd_y, .launch = launch_silu_gate_bwd);
CUDA_KERNEL(cuda_scale, .launch = launch_scale);
CUDA_KERNEL(cuda_cast, .launch = launch_cast);
CUDA_KERNEL(cuda_act, .launch = launch_act);
CUDA_KERNEL(cuda_act_bwd, .launch = launch_act_bwd);
CUDA_KERNEL(cuda_act_bwd_sum, .launch = launch_act_bwd_sum);
CUDA_KERNEL(cuda_accumulate, .launch = launch_accumulate, .batch = batch_accumulate);
CUDA_KERNEL(cuda_fill, .launch = launch_fill, .batch = batch_fill);
CUDA_KERNEL(cuda_spread, .launch = launch_spread);
CUDA_KERNEL(cuda_dropout, .launch = launch_dropout);
CUDA_KERNEL(cuda_sum, .launch = launch_sum);
CUDA_KERNEL(cuda_sum_to, .launch = launch_sum_to);
CUDA_KERNEL(cuda_add_strided, .launch = launch_add_strided);
CUDA_KERNEL(cuda_mul_strided, .launch = launch_mul_strided);
CUDA_KERNEL(cuda_silu_gate_any, .launch = launch_silu_gate_any);
CUDA_KERNEL(cuda_act_bwd_any, .launch = launch_act_bwd_any);
CUDA_KERNEL(cuda_scale_any, .launch = launch_scale_any);
CUDA_KERNEL(cuda_act_any, .launch = launch_act_any);
CUDA_KERNEL(cuda_cast_any, .launch = launch_cast_any);
CUDA_KERNEL(cuda_act_bwd_then_sum, .launch = launch_act_bwd_then_sum);
CUDA_KERNEL(cuda_act_bwd_any_then_sum, .launch = launch_act_bwd_any_then_sum);
CUDA_KERNEL(cuda_accumulate_any, .launch = launch_accumulate_any);
