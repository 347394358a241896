/*
 * elementwise.c: the running half of elementwise.cu, act_sums.cu, strided.cu and sums.cu.
 *
 * Dense, aligned operands of one shape use elementwise.cu; ADD and MUL with strides, and everything
 * else in any layout and dtypes, use strided.cu.
 */
#include "cuda/rows/operand_loops.h"

#include "cpu/dropout.h"

_Static_assert(ACT_GELU == 0 && ACT_GELU_TANH == 1 && ACT_QUICK_GELU == 2 && ACT_RELU == 3 && ACT_SIGMOID == 4 && ACT_SILU == 5 &&
                   ACT_TANH == 6 && ACT_KINDS == 7,
               "the functions of elements.cuh are in this order");

/* Whether the nest is a single loop that traverses every operand element by element. */
static bool is_flat(const struct loop_nest *f, bool pair) { return f->loops == 1 && f->y[0] == 1 && f->a[0] == 1 && (!pair || f->b[0] == 1); }

/* f of one or two inputs; b is NULL for one. */
static int launch_any(const struct launch *l, enum function f, const struct operand *a, const struct operand *b, float value, struct error *e)
{
    const struct operand *y = &l->out[0];
    const struct any_types types = {any_of(y->dtype), any_of(a->dtype), b ? any_of(b->dtype) : ANY_F32};
    TRY_CUDA(cuda_any(f, y->data, a->data, b ? b->data : NULL, types, loop_nest_of(y, a, b), value, l->stream));
    return PL_OK;
}

static int launch_pair(const struct launch *l, enum function f, struct error *e)
{
    const struct operand *y = &l->out[0], *a = &l->in[0], *b = &l->in[1];
    const struct loop_nest nest = loop_nest_of(y, a, b);
    const enum store type = store_of(y->dtype);
    if (is_flat(&nest, true) && is_wide(y) && is_wide(a) && is_wide(b))
        TRY_CUDA(cuda_pair(f, y->data, a->data, b->data, type, nest.size[0], l->stream));
    else if (f == FUNCTION_ADD || f == FUNCTION_MUL) TRY_CUDA(cuda_pair_strided(f, y->data, a->data, b->data, type, nest, l->stream));
    else return launch_any(l, f, a, b, 0, e);
    return PL_OK;
}

static int launch_add(const struct launch *l, struct error *e) { return launch_pair(l, FUNCTION_ADD, e); }
static int launch_mul(const struct launch *l, struct error *e) { return launch_pair(l, FUNCTION_MUL, e); }
static int launch_silu_gate(const struct launch *l, struct error *e) { return launch_pair(l, FUNCTION_SILU_GATE, e); }
static int launch_act_bwd(const struct launch *l, struct error *e) { return launch_pair(l, (enum function)(FUNCTION_SLOPE + l->attr->act.kind), e); }

static int launch_map(const struct launch *l, enum function f, float value, struct error *e)
{
    const struct operand *y = &l->out[0], *a = &l->in[0];
    const struct loop_nest nest = loop_nest_of(y, a, NULL);
    if (!is_flat(&nest, false) || !is_wide(y) || !is_wide(a)) return launch_any(l, f, a, NULL, value, e);
    TRY_CUDA(cuda_map(f, y->data, a->data, store_of(y->dtype), nest.size[0], value, l->stream));
    return PL_OK;
}

static int launch_scale(const struct launch *l, struct error *e) { return launch_map(l, FUNCTION_SCALE, (float)l->attr->scale.value, e); }
static int launch_act(const struct launch *l, struct error *e) { return launch_map(l, (enum function)(FUNCTION_ACT + l->attr->act.kind), 0, e); }

static bool has_store(const struct operand *x) { return x->dtype == DT_F32 || x->dtype == DT_BF16 || x->dtype == DT_F16; }

static int launch_cast(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0], *a = &l->in[0];
    const struct loop_nest nest = loop_nest_of(y, a, NULL);
    if (!is_flat(&nest, false) || !is_wide(y) || !is_wide(a) || !has_store(y) || !has_store(a)) return launch_any(l, FUNCTION_CAST, a, NULL, 0, e);
    TRY_CUDA(cuda_cast(y->data, a->data, store_of(y->dtype), store_of(a->dtype), nest.size[0], l->stream));
    return PL_OK;
}

static int launch_accumulate(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0], *x = &l->in[0], *acc = &l->in[1];
    const struct loop_nest nest = loop_nest_of(y, x, acc);
    CHECK(acc->data == y->data, "the accumulator is updated in place");
    if (!is_flat(&nest, true) || !is_wide(y) || !is_wide(x)) return launch_any(l, FUNCTION_ADD, x, acc, 0, e);
    TRY_CUDA(cuda_accumulate(y->data, x->data, store_of(y->dtype), store_of(x->dtype), nest.size[0], l->stream));
    return PL_OK;
}

/* The leading launches on short vectors: the gradients of norms and biases, which follow each other
 * at the end of a micro-batch. */
static bool is_vector(const struct operand *x)
{
    return x->dtype == DT_F32 && operand_elements(x) <= VECTOR_LONGEST && (x->rank == 0 || (x->rank == 1 && x->stride[0] == 1));
}

static uint32_t collect_vectors(struct vectors *v, const struct launch *l, uint32_t n)
{
    for (uint32_t i = 0; i < n && v->count < VECTORS_MOST; i++) {
        const struct operand *y = &l[i].out[0], *x = l[i].nin ? &l[i].in[0] : NULL;
        if (!is_vector(y) || (x && (!is_vector(x) || l[i].in[1].data != y->data)) || (!x && l[i].attr->fill.value != l->attr->fill.value)) break;
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
    TRY_CUDA(cuda_silu_gate_bwd(l->out[0].data, l->out[1].data, y, l->in[0].data, l->in[1].data, l->in[2].data, store_of(l->in[0].dtype),
                                operand_elements(&l->in[0]), l->stream));
    return PL_OK;
}

/* Repeats one element up to eight bytes: the size of every dtype divides eight. */
static int launch_fill(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0];
    const uint32_t size = dtype_size(y->dtype);
    uint64_t pattern = 0;
    for (uint32_t i = 0; i < sizeof pattern / size; i++) dtype_store(&pattern, y->dtype, i, l->attr->fill.value);
    TRY_CUDA(cuda_fill(y->data, pattern, operand_elements(y) * size, l->stream));
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
    TRY_CUDA(cuda_spread(y->data, l->in[0].data, any_of(l->in[0].dtype), store_of(y->dtype), operand_elements(y), l->stream));
    return PL_OK;
}

static int launch_dropout(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    const float p = l->attr->dropout.p;
    TRY_CUDA(cuda_dropout(l->out[0].data, x->data, l->in[1].data, l->in[2].data, store_of(x->dtype), x->dim[0], operand_elements(x) / x->dim[0],
                          l->attr->dropout.key, dropout_threshold(p), 1.0f / (1.0f - p), l->attr->dropout.per_sample, l->stream));
    return PL_OK;
}

static int launch_sum(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_sum(l->out[0].data, l->work, x->data, store_of(x->dtype), loop_nest_of(x, x, NULL), l->stream));
    return PL_OK;
}

static int sum_columns(const struct launch *l, const struct operand *x, const struct operand *y, bool add, struct error *e)
{
    const struct summing s = summing_of(x->rank, x->dim, x->stride, y->rank, y->dim, (int)dtype_size(x->dtype));
    const struct typed_ptr to = {y->data, store_of(y->dtype)};
    TRY_CUDA(cuda_sum_to(to, l->work, x->data, store_of(x->dtype), s, operand_elements(y), add, l->stream));
    return PL_OK;
}

static int launch_sum_to(const struct launch *l, struct error *e)
{
    CHECK(!has(l, 1) || l->in[1].data == l->out[0].data, "the accumulator is updated in place");
    return sum_columns(l, &l->in[0], &l->out[0], has(l, 1), e);
}

static int launch_act_bwd_sum(const struct launch *l, struct error *e)
{
    const struct operand *dx = &l->out[0], *dy = &l->in[0], *x = &l->in[1], *y = l->nout > 2 ? &l->out[2] : NULL;
    const int size = (int)dtype_size(dx->dtype), kind = l->attr->act.kind;
    const enum store type = store_of(dx->dtype);
    const struct act_sums s = act_sums_of(operand_rows(dx), operand_last(dx), size);
    if (act_sums_fit(s.C, size) && is_wide(dx) && is_wide(dy) && is_wide(x) && (!y || is_wide(y))) {
        TRY_CUDA(cuda_act_sums(kind, dx->data, y ? y->data : NULL, l->out[1].data, l->work, dy->data, x->data, type, s, l->stream));
        return PL_OK;
    }
    if (y) TRY_CUDA(cuda_act_both(kind, dx->data, y->data, dy->data, x->data, type, operand_elements(dx), l->stream));
    else TRY(launch_act_bwd(l, e));
    return sum_columns(l, dx, &l->out[1], false, e);
}

const struct cuda_kernel cuda_run_elementwise[] = {
    {"cuda_add", NULL, launch_add, NULL},
    {"cuda_mul", NULL, launch_mul, NULL},
    {"cuda_silu_gate", NULL, launch_silu_gate, NULL},
    {"cuda_silu_gate_bwd", NULL, launch_silu_gate_bwd, NULL},
    {"cuda_silu_gate_bwd_y", NULL, launch_silu_gate_bwd, NULL},
    {"cuda_scale", NULL, launch_scale, NULL},
    {"cuda_cast", NULL, launch_cast, NULL},
    {"cuda_act", NULL, launch_act, NULL},
    {"cuda_act_bwd", NULL, launch_act_bwd, NULL},
    {"cuda_act_bwd_sum", NULL, launch_act_bwd_sum, NULL},
    {"cuda_accumulate", NULL, launch_accumulate, NULL, batch_accumulate},
    {"cuda_fill", NULL, launch_fill, NULL, batch_fill},
    {"cuda_spread", NULL, launch_spread, NULL},
    {"cuda_dropout", NULL, launch_dropout, NULL},
    {"cuda_sum", NULL, launch_sum, NULL},
    {"cuda_sum_to", NULL, launch_sum_to, NULL},
    {0},
};
