/*
 * trial.h: runs one node with its tensors on the reference and on the CPU kernels. test_kernels.c
 * and test_reference.c share this harness. Each of them is a program of its own, so the functions
 * are static inline.
 *
 * A trial holds the node's attributes, its inputs as bytes, and the dtypes of its outputs. The
 * oracle is the reference kernel on the same values in f64 with f64 outputs, so it rounds nothing.
 * The fast kernel then runs on copies between guards (guarded.h). Its outputs and workspace start
 * as NaN. It must leave the guards and its inputs unchanged, come within
 *     c * (eps(output) / 2 + eps(f32) * sqrt(length))
 * of the oracle, relative to the larger of the output's largest element and its natural magnitude,
 * and give the same bits for any thread count and in place.
 */
#pragma once

#include "graph/ops.h"
#include "graph/sizes.h"
#include "run/kernel.h"
#include "guarded.h"
#include "harness.h"

/* --- trials ---------------------------------------------------------------------------- */

struct trial {
    enum op op;
    union attr attr;
    struct operand in[MAX_IN], out[MAX_OUT]; /* inputs own their bytes; outputs have dtypes and shapes only */
    int nin, nout;
    int alias[MAX_OUT];                      /* index of the input that an output overwrites, or -1 */
    double length;                           /* of the longest reduction */
    double unit[MAX_OUT];                    /* natural magnitude of an output's elements */
    double *oracle[MAX_OUT];                 /* f64 results */
    struct bump memory;
};

static inline struct operand shape(enum dtype dtype, int rank, const int64_t *dim)
{
    struct operand x = {.dtype = dtype, .rank = rank};
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        x.dim[i] = dim[i];
        x.stride[i] = stride;
        stride *= dim[i];
    }
    return x;
}

static inline size_t operand_bytes(const struct operand *x)
{
    return (size_t)operand_elements(x) * dtype_size(x->dtype);
}

static inline struct trial trial_of(enum op op)
{
    return (struct trial){.op = op, .alias = {-1, -1, -1, -1, -1, -1}, .length = 1};
}

/* Adds an input without values; returns it. */
static inline struct operand *input(struct trial *t, enum dtype dtype, int rank, const int64_t *dim)
{
    struct operand *x = &t->in[t->nin++];
    *x = shape(dtype, rank, dim);
    x->data = bump_alloc(&t->memory, operand_bytes(x) + 1);
    return x;
}

static inline struct operand *input_normal(struct trial *t, enum dtype dtype, int rank, const int64_t *dim)
{
    struct operand *x = input(t, dtype, rank, dim);
    for (int64_t i = 0; i < operand_elements(x); i++) dtype_store(x->data, dtype, i, normal());
    return x;
}

/* Squared values, for inputs that are never negative, such as Adam's v. */
static inline struct operand *input_square(struct trial *t, enum dtype dtype, int rank, const int64_t *dim)
{
    struct operand *x = input_normal(t, dtype, rank, dim);
    for (int64_t i = 0; i < operand_elements(x); i++)
        dtype_store(x->data, dtype, i, pow(dtype_load(x->data, dtype, i), 2));
    return x;
}

/* Ids below n; with `ignored` every fifth one is ignored. */
static inline struct operand *input_ids(struct trial *t, int64_t count, int64_t n, bool ignored)
{
    struct operand *x = input(t, DT_I32, DIM(count));
    for (int64_t i = 0; i < count; i++)
        ((int32_t *)x->data)[i] = ignored && i % 5 == 3 ? -100 : (int32_t)(uniform() * (double)n);
    return x;
}

/* 1 / count, as a loss gets it. */
static inline void input_inv_count(struct trial *t, double count)
{
    struct operand *x = input(t, DT_F32, 0, NULL);
    *(float *)x->data = (float)(1 / count);
}

static inline void input_step(struct trial *t)
{
    struct operand *x = input(t, DT_U8, DIM(sizeof(struct step_block)));
    *(struct step_block *)x->data =
        (struct step_block){.learning_rate = 1e-2f, .clip_norm = 1, .loss_scale = 1, .step = 3, .adam_t = 3};
}

/* An input with the values of another trial's oracle, rounded to a dtype. */
static inline void input_values(struct trial *t, const double *values, enum dtype dtype, int rank, const int64_t *dim)
{
    struct operand *x = input(t, dtype, rank, dim);
    for (int64_t i = 0; i < operand_elements(x); i++) dtype_store(x->data, dtype, i, values[i]);
}

static inline void output(struct trial *t, enum dtype dtype, int rank, const int64_t *dim)
{
    t->out[t->nout++] = shape(dtype, rank, dim);
}

/* Output o is input i, updated in place. */
static inline void output_in_place(struct trial *t, int i)
{
    t->alias[t->nout] = i;
    t->out[t->nout++] = shape(t->in[i].dtype, t->in[i].rank, t->in[i].dim);
}

/* --- running ------------------------------------------------------------------------------ */

/* The planner's tensor for an operand. */
static inline struct tensor tensor_of(const struct operand *x)
{
    struct tensor t = {.dtype = (uint8_t)x->dtype, .rank = (uint8_t)x->rank};
    memcpy(t.dim, x->dim, sizeof t.dim);
    memcpy(t.stride, x->stride, sizeof t.stride);
    return t;
}

struct planned {
    struct tensor in[MAX_IN], out[MAX_OUT];
    struct profile profile;
    struct query query;
};

static inline void plan_launch(struct planned *p, const struct launch *l)
{
    *p = (struct planned){.profile = {.kind = DEVICE_CPU, .threads = l->threads}};
    p->query = (struct query){.attr = l->attr, .nin = l->nin, .nout = l->nout, .profile = &p->profile};
    for (int i = 0; i < l->nin; i++) {
        p->in[i] = tensor_of(&l->in[i]);
        p->query.in[i] = l->in[i].data ? &p->in[i] : NULL;
    }
    for (int i = 0; i < l->nout; i++) {
        p->out[i] = tensor_of(&l->out[i]);
        p->query.out[i] = &p->out[i];
    }
}

/* A kernel without a match function accepts every launch. */
static inline bool kernel_takes(const struct kernel *k, const struct planned *p)
{
    return !k->match || k->match(&p->query);
}

/* Runs a kernel on guarded copies of a launch's operands; guarded_free_all frees `out`. */
static inline void run_kernel(const struct kernel *k, const struct launch *l, const int alias[MAX_OUT], int threads,
                              void *out[MAX_OUT])
{
    struct planned p;
    struct launch asked = *l;
    asked.threads = threads;
    plan_launch(&p, &asked);
    if (!kernel_takes(k, &p)) fail_msg("%s does not match its own trial", k->name);
    memset(out, 0, MAX_OUT * sizeof *out);
    guarded_launch(k->name, k, l, k->workspace ? k->workspace(&p.query) : 0, threads, alias, NULL, out);
}

/* Runs the reference on f64 copies of every float operand; fills t->oracle. */
static inline void run_oracle(struct trial *t)
{
    struct launch l = {.attr = &t->attr, .nin = t->nin, .nout = t->nout, .threads = 1};
    for (int i = 0; i < t->nin; i++) {
        l.in[i] = t->in[i];
        if (!t->in[i].data) continue;
        /* An f32 table makes f32 angles: their rounding belongs to the op. */
        bool angles = t->op == OP_ROPE && i == 1;
        if (dtype_is_float(t->in[i].dtype) && !angles) l.in[i].dtype = DT_F64;
        l.in[i].data = bump_alloc(&t->memory, operand_bytes(&l.in[i]) + 1);
        dtype_convert(l.in[i].data, l.in[i].dtype, t->in[i].data, t->in[i].dtype, operand_elements(&t->in[i]));
    }
    for (int i = 0; i < t->nout; i++) {
        l.out[i] = t->out[i];
        if (t->op != OP_COPY) l.out[i].dtype = DT_F64;
        l.out[i].data = t; /* not NULL: the output exists */
        if (t->alias[i] >= 0) l.out[i].dtype = l.in[t->alias[i]].dtype;
    }
    if (t->op == OP_COPY) l.in[0] = t->in[0]; /* copies bytes of any dtype */
    void *results[MAX_OUT];
    run_kernel(ref_kernels[t->op], &l, t->alias, 1, results);
    for (int i = 0; i < t->nout; i++) {
        t->oracle[i] = bump_alloc(&t->memory, (size_t)operand_elements(&l.out[i]) * sizeof(double));
        dtype_convert(t->oracle[i], DT_F64, results[i], l.out[i].dtype, operand_elements(&l.out[i]));
    }
    guarded_free_all(results);
}

/* Runs a fast kernel on guarded copies; guarded_free_all frees `results`. */
static inline void run_fast(struct trial *t, const struct kernel *k, const int alias[MAX_OUT], int threads,
                            void *results[MAX_OUT])
{
    struct launch l = {.attr = &t->attr, .nin = t->nin, .nout = t->nout};
    memcpy(l.in, t->in, sizeof l.in);
    memcpy(l.out, t->out, sizeof l.out);
    for (int i = 0; i < t->nout; i++) l.out[i].data = t; /* not NULL: the output exists */
    run_kernel(k, &l, alias, threads, results);
}

/* --- comparing -------------------------------------------------------------------------------- */

static const char *describe(const struct trial *t, char text[512])
{
    int n = snprintf(text, 512, "%s (seed %llu)", op_table[t->op].name, (unsigned long long)seed);
    for (int i = 0; i < t->nin; i++) {
        n += snprintf(text + n, 512 - (size_t)n, " %s[", dtype_name(t->in[i].dtype));
        for (int d = 0; d < t->in[i].rank; d++)
            n += snprintf(text + n, 512 - (size_t)n, "%s%lld", d ? "," : "", (long long)t->in[i].dim[d]);
        n += snprintf(text + n, 512 - (size_t)n, "]");
    }
    return text;
}

static inline void compare(const struct trial *t, int o, const void *got)
{
    const struct operand *out = &t->out[o];
    const double eps = dtype_table[out->dtype].epsilon, c = 4;
    const double tolerance = c * (eps / 2 + dtype_table[DT_F32].epsilon * sqrt(t->length));
    double size = t->unit[o];
    char text[512];
    for (int64_t i = 0; i < operand_elements(out); i++)
        if (isfinite(t->oracle[o][i])) size = fmax(size, fabs(t->oracle[o][i]));
    for (int64_t i = 0; i < operand_elements(out); i++) {
        double x = dtype_load(got, out->dtype, i), want = t->oracle[o][i];
        /* a log-sum-exp may be -inf */
        bool close = x == want || (dtype_is_float(out->dtype) && fabs(x - want) <= tolerance * size);
        if (!close)
            fail_msg("%s: output %d[%lld] is %.9g, the oracle gives %.9g, off by %.3g of %.3g allowed",
                     describe(t, text), o, (long long)i, x, want, fabs(x - want), tolerance * size);
    }
}

/* Checks one kernel: on one thread, on several, and in place as `may` allows. */
static inline void kernel_check(struct trial *t, const struct kernel *k, const int *may)
{
    void *one[MAX_OUT], *other[MAX_OUT];
    char text[512];
    run_fast(t, k, t->alias, 1, one);
    for (int o = 0; o < t->nout; o++) compare(t, o, one[o]);
    for (int round = 0; round < (may ? 4 : 2); round++) {
        int threads = round % 2 ? 3 : 2;
        run_fast(t, k, round < 2 ? t->alias : may, threads, other);
        for (int o = 0; o < t->nout; o++) {
            if (memcmp(one[o], other[o], operand_bytes(&t->out[o])))
                fail_msg("%s, %s: output %d differs on %d threads%s", describe(t, text), k->name, o, threads,
                         round < 2 ? "" : " in place");
        }
        guarded_free_all(other);
    }
    guarded_free_all(one);
}

/* Runs the whole trial: the oracle, then each kernel of the op that accepts the launch. At least
 * one must accept it. */
static inline void trial_check_in_place(struct trial *t, const int *may)
{
    char text[512];
    struct launch l = {.attr = &t->attr, .nin = t->nin, .nout = t->nout};
    struct planned p;
    int taken = 0;
    run_oracle(t);
    memcpy(l.in, t->in, sizeof l.in);
    memcpy(l.out, t->out, sizeof l.out);
    plan_launch(&p, &l);
    for (const struct kernel *k = cpu_kernels[t->op]; k->name; k++)
        if (kernel_takes(k, &p)) kernel_check(t, k, may), taken++;
    if (!taken) fail_msg("%s: no fast kernel takes its own trial", describe(t, text));
    bump_free(&t->memory);
}

static inline void trial_check(struct trial *t) { trial_check_in_place(t, NULL); }

/* --- trials that both programs use ----------------------------------------------------------- */

static inline void rmsnorm_forward(struct trial *t, enum dtype f, int64_t R, int64_t C)
{
    *t = trial_of(OP_RMSNORM);
    t->attr.rmsnorm.eps = 1e-5f;
    t->length = (double)C;
    input_normal(t, f, DIM(R, C));
    input_normal(t, f, DIM(C));
    output(t, f, DIM(R, C));
    output(t, DT_F32, DIM(R));
}

struct heads {
    int64_t B, T, S, H, G, D;
    bool causal, masked;
    int64_t window;
    const int32_t *ranges; /* [B,T,2]; NULL: none */
    float cap;             /* 0: none */
};

/* The ranges, the input behind the mask. */
static inline void input_ranges(struct trial *t, const struct heads *n)
{
    if (!n->ranges) return;
    if (!n->masked) t->nin++; /* no mask */
    struct operand *x = input(t, DT_I32, DIM(n->B, n->T, 2));
    memcpy(x->data, n->ranges, operand_bytes(x));
}

/* One bias per key; every fourth key is masked. */
static inline void input_mask(struct trial *t, enum dtype f, const struct heads *n)
{
    struct operand *x = input_normal(t, f, DIM(n->B, n->S));
    for (int64_t i = 0; i < n->B * n->S; i++)
        if (i % n->S % 4 == 2) dtype_store(x->data, f, i, -INFINITY);
}

static inline void attention_forward(struct trial *t, enum dtype f, enum dtype statistic, const struct heads *n)
{
    *t = trial_of(OP_ATTENTION);
    t->attr.attention.scale = (float)(1 / sqrt((double)n->D));
    t->attr.attention.causal = n->causal;
    t->attr.attention.window = n->window;
    t->attr.attention.cap = n->cap;
    t->length = (double)(n->S + n->D);
    t->unit[0] = t->unit[1] = 1;
    input_normal(t, f, DIM(n->B, n->T, n->H, n->D));
    input_normal(t, f, DIM(n->B, n->S, n->G, n->D));
    input_normal(t, f, DIM(n->B, n->S, n->G, n->D));
    if (n->masked) input_mask(t, statistic, n);
    input_ranges(t, n);
    output(t, f, DIM(n->B, n->T, n->H, n->D));
    output(t, statistic, DIM(n->B, n->H, n->T));
}

/* The backward trial, on the forward trial's tensors and oracle. */
static inline void attention_backward(struct trial *t, const struct trial *forward, enum dtype f, enum dtype statistic,
                               const struct heads *n)
{
    *t = trial_of(OP_ATTENTION_BWD);
    t->attr = forward->attr;
    t->length = (double)(n->S + n->D + n->T * n->H / n->G);
    input_normal(t, f, DIM(n->B, n->T, n->H, n->D));
    for (int i = 0; i < 3; i++) {
        input(t, f, forward->in[i].rank, forward->in[i].dim);
        memcpy(t->in[i + 1].data, forward->in[i].data, operand_bytes(&forward->in[i]));
    }
    input_values(t, forward->oracle[0], f, DIM(n->B, n->T, n->H, n->D));
    input_values(t, forward->oracle[1], statistic, DIM(n->B, n->H, n->T));
    if (n->masked) {
        struct operand *mask = input(t, statistic, DIM(n->B, n->S));
        memcpy(mask->data, forward->in[3].data, operand_bytes(mask));
    }
    input_ranges(t, n);
    for (int i = 0; i < 3; i++) output(t, f, forward->in[i].rank, forward->in[i].dim);
    /* With one key the softmax is constant: dq and dk are differences near 0. */
    for (int i = 0; i < 3; i++) t->unit[i] = 1;
}
