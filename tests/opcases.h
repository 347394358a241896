/*
 * opcases.h: one test case for every row of ops.def: a function that emits the op on parameters,
 * and its shapes: small odd ones, realistic ones, and the shape for timing. All tests of test_ops.c
 * and the lines of bench_ops.c come from this table. Each of them is a program of its own, so the
 * functions are static.
 *
 * The table is generated from ops.def: a row without a case does not compile.
 */
#pragma once

#include "base/nf4.h"
#include "graph/shard.h"
#include "optest.h"

/* --- scenes: a case in one dtype ------------------------------------------------------------- */

struct scene {
    struct graph g;
    enum dtype f;
    bool forward;    /* compares outputs; otherwise the loss and its gradients */
    double length;   /* of the longest reduction, forward or backward */
    double unit;     /* natural magnitude of results that may cancel to 0 */
    int roundings;   /* number of roundings to f from a parameter to a result, the last one included */
    int watched;
};

enum { SMALL = 11, LARGE = 8, GPU = 72 }; /* most shapes of a case: small, large, for GPUs only */
enum { SIZES = 9 };                       /* most numbers of a shape */

struct opcase {
    /* Emits the op; returns the tensor that enters the loss (0: the op has no gradient). */
    id (*build)(struct scene *s, const int64_t *n);
    bool no_gradient;
    int64_t small[SMALL][SIZES], large[LARGE][SIZES]; /* shapes; a row of 0 ends the list */
    int64_t bench[SIZES];                             /* shape for timing; a view has none, because no kernel runs */
    int64_t gpu[GPU][SIZES];                          /* shapes for GPU kernels only */
};

struct row {
    enum op op;
    const struct opcase *c;
};

static id param(struct scene *s, const char *name, int rank, const int64_t *dim)
{
    return graph_param(&s->g, name, s->f, rank, dim, (struct init){INIT_NORMAL, 1, 0});
}

/* For tensors that are f32 by definition: statistics, master weights, optimizer state. */
static id param_f32(struct scene *s, const char *name, int rank, const int64_t *dim)
{
    return graph_param(&s->g, name, DT_F32, rank, dim, (struct init){INIT_NORMAL, 1, 0});
}

static enum dtype wide(const struct scene *s) { return s->f == DT_F64 ? DT_F64 : DT_F32; }

static id constant(struct scene *s, const char *name, enum dtype type, int rank, const int64_t *dim)
{
    struct tensor x = {.dtype = (uint8_t)type, .rank = (uint8_t)rank};
    for (int i = 0; i < rank; i++) x.dim[i] = dim[i];
    char *data = mem_alloc(tensor_bytes(&x));
    const int64_t n = tensor_elements(&x);
    float *value = first_values(name, n);
    for (int64_t i = 0; i < n; i++) dtype_store(data, type, i, rounded(value[i]));
    id t = graph_const(&s->g, name, type, rank, dim, data);
    mem_free(value);
    mem_free(data);
    return t;
}

static id constant_ids(struct scene *s, const char *name, int64_t V, bool ignored, int rank, const int64_t *dim)
{
    struct tensor x = {.dtype = DT_I32, .rank = (uint8_t)rank};
    for (int i = 0; i < rank; i++) x.dim[i] = dim[i];
    int32_t *data = mem_alloc(tensor_bytes(&x));
    for (int64_t i = 0; i < tensor_elements(&x); i++) data[i] = id_of(name, i, V, ignored);
    id t = graph_const(&s->g, name, DT_I32, rank, dim, data);
    mem_free(data);
    return t;
}

/* Marks `t` as an output that the forward test compares. */
static id watch(struct scene *s, id t)
{
    char name[32];
    snprintf(name, sizeof name, "out%d", s->watched++);
    if (s->forward) graph_output(&s->g, name, t);
    return t;
}

static void watch_all(struct scene *s, id node)
{
    for (int o = 0; node && o < node_at(&s->g, node)->nout; o++)
        if (node_at(&s->g, node)->out[o]) watch(s, node_at(&s->g, node)->out[o]);
}

static id out_of(struct scene *s, id node, int o) { return node ? node_at(&s->g, node)->out[o] : 0; }

/* NAME_BWD of a row whose gradient is `paired`, where `build` emits NAME. The forward test emits
 * the backward op directly; the gradient tests reach it through the vjp. */
static id build_backward(struct scene *s, const int64_t *n, id (*build)(struct scene *, const int64_t *))
{
    if (!s->forward) return build(s, n);
    s->forward = false;
    id y = build(s, n);
    s->forward = true;
    const struct node f = *node_at(&s->g, tensor_at(&s->g, y)->node);
    const struct tensor like = *tensor_at(&s->g, y);
    const uint32_t reads = op_table[f.op].reads;
    id in[MAX_IN] = {op_cast(&s->g, param(s, "dy", like.rank, like.dim), like.dtype)};
    int nin = 1;
    for (int i = 0; i < f.nin; i++)
        if (reads >> i & 1) in[nin++] = f.in[i];
    for (int o = 0; o < f.nout; o++)
        if (reads >> (16 + o) & 1) in[nin++] = f.out[o];
    watch_all(s, graph_emit(&s->g, f.op + 1, &f.attr, in, nin));
    return 0;
}

/* --- views and products ------------------------------------------------------------------ */

static id build_reshape(struct scene *s, const int64_t *n)
{
    return watch(s, op_reshape(&s->g, param(s, "x", DIM(n[0], n[1], n[2])), DIM(n[2], -1)));
}
/* The constant is multiplied by 0, so that finite differences see what the gradient is: that of x
 * by itself. */
static id build_detach(struct scene *s, const int64_t *n)
{
    id x = param(s, "x", DIM(n[0], n[1]));
    return watch(s, op_add(&s->g, x, op_scale(&s->g, op_detach(&s->g, x), 0)));
}
static id build_enter(struct scene *s, const int64_t *n)
{
    return watch(s, op_apply(&s->g, OP_ENTER, NULL, (id[]){param(s, "x", DIM(n[0], n[1]))}, 1));
}
static const struct opcase case_ENTER = {build_enter, .small = {{1, 1}, {3, 5}}, .large = {{64, 65}}};
static const struct opcase case_DETACH = {build_detach, .small = {{1, 1}, {3, 5}}, .large = {{64, 65}}};

static const struct opcase case_RESHAPE = {build_reshape, .small = {{1, 1, 1}, {3, 5, 7}, {2, 9, 4}},
                                           .large = {{64, 65, 33}}};

static id build_slice(struct scene *s, const int64_t *n)
{
    return watch(s, op_slice(&s->g, param(s, "x", DIM(n[0], n[1], n[2])), (int)n[3], n[4], n[5]));
}
static const struct opcase case_SLICE = {
    build_slice,
    .small = {{1, 1, 1, 0, 0, 1}, {3, 5, 7, 0, 1, 2}, {3, 5, 7, 1, 4, 1}, {3, 5, 7, 2, 2, 3}, {2, 3, 4, 2, 0, 4}},
    .large = {{31, 65, 33, 1, 7, 50}}};

/* n: rows, K, N, has a bias, has an addend. */
/* A vector that begins behind three others, so that it is not aligned to 16 bytes. */
static id unaligned_vector(struct scene *s, const char *name, int64_t n)
{
    return op_slice(&s->g, param(s, name, DIM(n + 3)), 0, 3, n);
}

/* n[6]: the bias is not aligned, which the GPU's library does not support. */
static id build_linear(struct scene *s, const int64_t *n)
{
    const int64_t rows = n[0] * n[1], K = n[2], N = n[3];
    id in[] = {param(s, "x", DIM(n[0], n[1], K)), param(s, "w", DIM(N, K)),
               n[6]   ? unaligned_vector(s, "b", N)
               : n[4] ? param(s, "b", DIM(N))
                      : 0,
               n[5] ? param(s, "r", DIM(n[0], n[1], N)) : 0};
    s->length = (double)max_i64(rows, max_i64(K, N));
    return watch(s, op_apply(&s->g, OP_LINEAR, NULL, in, n[5] ? 4 : n[4] ? 3 : 2));
}
static const struct opcase case_LINEAR =
    {build_linear,
     .small = {{1, 1, 1, 1, 1},
               {2, 3, 5, 7, 0},
               {3, 1, 4, 9, 1},
               {1, 7, 2, 3, 1},
               {2, 3, 5, 7, 0, 1},
               {3, 1, 4, 9, 1, 1},
               {1, 5, 7, 8, 0, 1}},
     .large = {{3, 43, 150, 65, 1}, {1, 65, 300, 17, 0}, {3, 43, 150, 65, 1, 1}, {2, 64, 768, 96, 0, 1}},
     .bench = {2, 512, 768, 768, 1},
     .gpu = {{1, 128, 2048, 256, 0, 1}, {1, 100, 1280, 320, 1, 1}, {2, 33, 72, 72, 1, 1}, {2, 33, 72, 72, 1, 0, 1}}};

/* n: as for LINEAR, then the activation kind. */
static id build_linear_act(struct scene *s, const int64_t *n)
{
    const int64_t rows = n[0] * n[1], K = n[2], N = n[3];
    union attr a = {.act = {(uint8_t)n[5]}};
    id in[] = {param(s, "x", DIM(n[0], n[1], K)), param(s, "w", DIM(N, K)),
               n[6] ? unaligned_vector(s, "b", N) : n[4] ? param(s, "b", DIM(N)) : 0};
    s->length = (double)max_i64(rows, max_i64(K, N));
    s->unit = 1;      /* the activation's derivative has zeros */
    s->roundings = 3; /* z and its gradient are stored in f */
    id node = graph_emit(&s->g, OP_LINEAR_ACT, &a, in, n[4] ? 3 : 2);
    watch_all(s, node);
    return out_of(s, node, 0);
}
static const struct opcase case_LINEAR_ACT = {build_linear_act,
                                              .small = {{1, 1, 1, 1, 1, ACT_GELU},
                                                        {2, 3, 5, 7, 0, ACT_GELU_TANH},
                                                        {3, 1, 4, 9, 1, ACT_QUICK_GELU},
                                                        {1, 7, 2, 3, 1, ACT_RELU},
                                                        {2, 2, 3, 5, 1, ACT_SIGMOID},
                                                        {1, 3, 5, 4, 0, ACT_SILU},
                                                        {3, 2, 4, 3, 1, ACT_TANH}},
                                              .large = {{3, 43, 150, 65, 1, ACT_GELU},
                                                        {1, 65, 300, 17, 0, ACT_GELU_TANH}},
                                              .bench = {2, 512, 768, 3072, 1, ACT_GELU},
                                              .gpu = {{2, 33, 72, 72, 1, ACT_GELU, 1}}};

/* n: M, N, K, ta, tb, has an accumulator, wide result. */
static id build_matmul(struct scene *s, const int64_t *n)
{
    const bool ta = n[3], tb = n[4];
    id a = param(s, "a", DIM(ta ? n[2] : n[0], ta ? n[0] : n[2]));
    id b = param(s, "b", DIM(tb ? n[1] : n[2], tb ? n[2] : n[1]));
    enum dtype type = n[6] ? wide(s) : s->f;
    s->length = (double)max_i64(n[0], max_i64(n[1], n[2]));
    if (!n[5]) return watch(s, op_matmul(&s->g, a, b, ta, tb, type));
    union attr t = {.matmul = {ta, tb, type}};
    id acc = op_cast(&s->g, param(s, "c", DIM(1, n[0], n[1])), type); /* a different shape with the same elements */
    return watch(s, out_of(s, graph_emit(&s->g, OP_MATMUL, &t, (id[]){a, b, acc}, 3), 0));
}
static const struct opcase case_MATMUL = {build_matmul,
                                          .small = {{1, 1, 1},
                                                    {3, 5, 7, 0, 0, 1},
                                                    {4, 2, 9, 1, 0},
                                                    {5, 3, 2, 0, 1, 1, 1},
                                                    {2, 7, 3, 1, 1, 1},
                                                    {3, 4, 5, 1, 1, 0, 1}},
                                          .large = {{65, 33, 129, 1, 0, 1, 1}, {33, 70, 150, 0, 1}},
                                          .bench = {768, 768, 1024, 1, 0, 0, 1}};

/* n: batches, M, N, K, 1 ta + 2 tb, 1 has an accumulator + 2 wide result, a's last dimension and
 * b's middle one are slices. */
static id build_bmm(struct scene *s, const int64_t *n)
{
    const bool ta = n[4] & 1, tb = n[4] & 2;
    const int64_t extra = n[6];
    id a = param(s, "a", DIM(n[0], 2, ta ? n[3] : n[1], (ta ? n[1] : n[3]) + extra));
    id b = param(s, "b", DIM(n[0], 2, (tb ? n[2] : n[3]) + extra, tb ? n[3] : n[2]));
    if (extra) a = op_slice(&s->g, a, 3, extra, ta ? n[1] : n[3]), b = op_slice(&s->g, b, 2, extra, tb ? n[2] : n[3]);
    enum dtype type = n[5] & 2 ? wide(s) : s->f;
    s->length = (double)max_i64(n[1], max_i64(n[2], n[3]));
    if (!(n[5] & 1)) return watch(s, op_bmm(&s->g, a, b, ta, tb, type));
    union attr t = {.matmul = {ta, tb, type}};
    id acc = op_cast(&s->g, param(s, "c", DIM(n[0], 2, n[1], n[2])), type);
    return watch(s, out_of(s, graph_emit(&s->g, OP_BMM, &t, (id[]){a, b, acc}, 3), 0));
}
static const struct opcase case_BMM =
    {build_bmm,
     .small = {{1, 1, 1, 1},
               {2, 3, 5, 7, 0, 1},
               {1, 4, 2, 9, 1},
               {2, 5, 3, 2, 2, 3},
               {3, 2, 4, 3, 3, 1},
               {1, 3, 4, 5, 3, 2, 1},
               {2, 3, 2, 4, 0, 0, 2}},
     .large = {{3, 65, 33, 70, 1, 3}, {1, 33, 70, 150, 2, 0, 3}, {1, 3, 1300, 32, 2, 2}, {1, 1, 257, 64, 2, 1}},
     .bench = {6, 512, 512, 64, 2}};

/* --- norms, position, activation ------------------------------------------------------------ */

/* n[3]: the norm's input is not a parameter itself, so its gradient may be stored anywhere. n[4]:
 * RMSNORM with unit_offset. */
static id norm_input(struct scene *s, const int64_t *n)
{
    id x = param(s, "x", DIM(n[0], n[1], n[2]));
    return n[3] ? op_scale(&s->g, x, 1) : x;
}

static id build_rmsnorm(struct scene *s, const int64_t *n)
{
    union attr a = {.rmsnorm = {1e-3f, n[4]}};
    s->length = (double)max_i64(n[0] * n[1], n[2]);
    s->unit = 1; /* with one column y is x / |x|: the terms of dx cancel */
    id node = graph_emit(&s->g, OP_RMSNORM, &a, (id[]){norm_input(s, n), param(s, "w", DIM(n[2]))}, 2);
    watch_all(s, node);
    return out_of(s, node, 0);
}
#define NORM_SHAPES                                                                                                    \
    .small = {{1, 1, 1}, {2, 3, 5}, {3, 1, 17}, {1, 7, 2}, {2, 3, 64}, {2, 3, 5, 0, 1}},                               \
    .large = {{3, 43, 129}, {1, 9, 296}, {3, 43, 129, 0, 1}},                                                          \
    .gpu = {{1, 37, 256}, {3, 50, 1280}, {1, 9, 768}, {1, 6, 4160}, {64, 33, 64}, {1, 37, 256, 0, 1}},                 \
    .bench = {2, 512, 768}
static const struct opcase case_RMSNORM = {build_rmsnorm, NORM_SHAPES};

/* n[3]: LAYERNORM. n[4]: RMSNORM with unit_offset. */
static id build_add_norm(struct scene *s, const int64_t *n)
{
    union attr a = {0};
    id in[4] = {param(s, "a", DIM(n[0], n[1], n[2])), param(s, "b", DIM(n[0], n[1], n[2])), param(s, "w", DIM(n[2]))};
    if (n[3]) a.layernorm.eps = 1e-1f, in[3] = param(s, "c", DIM(n[2]));
    else a.rmsnorm.eps = 1e-3f, a.rmsnorm.unit_offset = n[4];
    s->length = (double)n[2];
    s->unit = 4;
    s->roundings = 2; /* the sum is stored in f */
    watch_all(s, graph_emit(&s->g, n[3] ? OP_ADD_LAYERNORM : OP_ADD_RMSNORM, &a, in, n[3] ? 4 : 3));
    return 0;
}
static const struct opcase case_ADD_RMSNORM =
    {build_add_norm,
     .no_gradient = true,
     .small = {{1, 1, 1}, {2, 3, 5}, {2, 3, 64}, {2, 3, 5, 0, 1}},
     .large = {{3, 43, 129}, {1, 9, 296}, {3, 43, 129, 0, 1}},
     .gpu = {{1, 37, 256}, {3, 50, 1280}, {1, 6, 4160}, {64, 33, 64}, {1, 5, 9000}, {1, 600, 2048}, {1, 9, 64, 0, 1}},
     .bench = {2, 512, 768}};
static const struct opcase case_ADD_LAYERNORM =
    {build_add_norm,
     .no_gradient = true,
     .small = {{1, 1, 1, 1}, {2, 3, 5, 1}, {2, 3, 64, 1}},
     .large = {{3, 43, 129, 1}, {1, 9, 296, 1}},
     .gpu = {{1, 37, 256, 1}, {3, 50, 1280, 1}, {1, 6, 4160, 1}, {64, 33, 64, 1}, {1, 5, 9000, 1}, {1, 600, 2048, 1}},
     .bench = {2, 512, 768, 1}};

/* n[3]: another gradient is added to the norm's. The forward test passes it as an operand. In the
 * gradient tests x also bypasses the norm, and pass_residual passes the bypass gradient as that
 * operand. */
static id build_norm_bwd(struct scene *s, const int64_t *n, id (*build)(struct scene *, const int64_t *))
{
    id y = build_backward(s, n, build), x = y ? node_at(&s->g, tensor_at(&s->g, y)->node)->in[0] : 0;
    if (!n[3]) return y;
    s->roundings = 4; /* y and the sum, and their gradients */
    if (y) return op_add(&s->g, y, x);
    id add = param(s, "add", DIM(n[0], n[1], n[2]));
    struct node *last = node_at(&s->g, s->g.nodes.n - 1);
    last->in[last->nin++] = add;
    return 0;
}
#define NORM_BWD_SHAPES                                                                                                \
    .small = {{1, 1, 1}, {2, 3, 5}, {3, 1, 17}, {1, 7, 2}, {2, 3, 64}, {2, 3, 5, 1}, {1, 2, 64, 1}, {3, 1, 1, 1},      \
              {2, 3, 5, 1, 1}, {1, 2, 64, 0, 1}},                                                                      \
    .large = {{3, 43, 129}, {1, 9, 296}, {3, 43, 129, 1}, {1, 9, 296, 1}, {3, 43, 129, 1, 1}},                         \
    .gpu = {{1, 37, 256},      {3, 50, 1280},     {1, 9, 768},        {1, 6, 4160},      {64, 33, 64},                 \
            {1, 37, 256, 1},   {3, 50, 1280, 1},  {1, 6, 4160, 1},    {64, 33, 64, 1},   {1, 5, 9000, 1},              \
            {1, 600, 2048, 1}, {1, 1, 2048, 1},   {1, 1061, 2048, 1}, {1, 2901, 768, 1}, {1, 1000, 2560},              \
            {1, 700, 4160, 1}, {1, 40001, 16, 1}, {1, 3, 13000, 1},  {1, 600, 2048, 1, 1}},                            \
    .bench = {2, 512, 768}

static id build_rmsnorm_bwd(struct scene *s, const int64_t *n)
{
    id y = build_norm_bwd(s, n, build_rmsnorm);
    if (s->forward) s->unit = 4 / sqrt((double)n[2]);
    return y;
}
static const struct opcase case_RMSNORM_BWD = {build_rmsnorm_bwd, NORM_BWD_SHAPES};

/* Sets the attributes and makes inv_freq and positions, 0 where there are none, of a rotation. n:
 * B, T, H, D/2, 1 inverse + 2 positions + 4 three positions per token + 16 of these interleaved
 * + 32 x is a part of a wider tensor, such as q of q, k and v. */
static void rope_inputs(struct scene *s, const int64_t *n, union attr *a, id in[2])
{
    const int64_t per = n[4] & 4 ? 3 : 1, dim[] = {n[0], n[1], per};
    a->rope.scale = 0.75f, a->rope.inverse = n[4] & 1, a->rope.interleaved = n[4] >> 4 & 1;
    in[1] = n[4] & 6 ? constant_ids(s, "positions", 700, false, per == 3 ? 3 : 2, dim) : 0;
    if (per == 3)
        a->rope.sections[0] = n[3] / 4, a->rope.sections[1] = n[3] / 3,
        a->rope.sections[2] = n[3] - n[3] / 4 - n[3] / 3;
    /* The table is f32 by definition: the angles are the same in every dtype. */
    float *table = mem_alloc((size_t)n[3] * sizeof *table);
    for (int64_t i = 0; i < n[3]; i++) table[i] = powf(10000, -(float)i / (float)n[3]);
    in[0] = graph_const(&s->g, "inv_freq", DT_F32, 1, &n[3], table);
    mem_free(table);
}

static id build_rope(struct scene *s, const int64_t *n)
{
    union attr a = {0};
    const int64_t wide = n[4] & 32 ? n[2] * 3 : n[2];
    id x = param(s, "x", DIM(n[0], n[1], wide, 2 * n[3]));
    id in[3] = {n[4] & 32 ? op_slice(&s->g, x, 2, n[2], n[2]) : x};
    rope_inputs(s, n, &a, in + 1);
    s->length = 2;
    return watch(s, op_apply(&s->g, OP_ROPE, &a, in, in[2] ? 3 : 2));
}
static const struct opcase case_ROPE =
    {build_rope,
     .small = {{1, 1, 1, 1, 0}, {2, 3, 1, 2, 0}, {1, 5, 3, 4, 1}, {2, 3, 2, 2, 2}, {2, 2, 1, 7, 5}, {2, 3, 1, 8, 20}},
     .large = {{2, 65, 3, 16, 0}, {1, 130, 2, 9, 1}, {2, 33, 2, 140, 4}, {2, 33, 2, 64, 20}, {2, 33, 2, 64, 34}},
     .gpu = {{1, 2003, 32, 32, 1},
             {1, 37, 300, 8, 0},
             {1, 5, 600, 8, 1},
             {1, 3, 2, 2056, 0},
             {3, 67, 5, 36, 1},
             {3, 67, 5, 36, 2},
             {2, 131, 12, 64, 4},
             {2, 131, 12, 64, 21},
             {2, 35, 2, 13, 5}},
     .bench = {2, 512, 12, 32}};

/* n: as ROPE, + 8 unit_offset. */
static id build_rmsnorm_rope(struct scene *s, const int64_t *n)
{
    union attr a = {0};
    id in[4] = {param(s, "x", DIM(n[0], n[1], n[2], 2 * n[3])), param(s, "w", DIM(2 * n[3]))};
    rope_inputs(s, n, &a, in + 2);
    a.rmsnorm_rope.eps = 1e-3f, a.rmsnorm_rope.unit_offset = n[4] >> 3 & 1;
    s->length = (double)max_i64(n[0] * n[1] * n[2], 2 * n[3]);
    s->unit = 4;
    s->roundings = 2; /* the norm is rounded before it is turned */
    const id node = graph_emit(&s->g, OP_RMSNORM_ROPE, &a, in, in[3] ? 4 : 3);
    watch_all(s, node);
    return out_of(s, node, 0);
}

/* The gradient tests reach it through the vjp. */
static id build_rmsnorm_rope_bwd(struct scene *s, const int64_t *n)
{
    const bool forward = s->forward;
    s->forward = false;
    const id y = build_rmsnorm_rope(s, n);
    s->forward = forward;
    if (!forward) return y;
    const struct node f = *node_at(&s->g, tensor_at(&s->g, y)->node);
    const id dy = param(s, "dy", DIM(n[0], n[1], n[2], 2 * n[3]));
    watch_all(s, graph_emit(&s->g, OP_RMSNORM_ROPE_BWD, &f.attr,
                            (id[]){dy, f.in[0], f.in[1], f.out[1], f.in[2], f.nin > 3 ? f.in[3] : 0},
                            f.nin > 3 ? 6 : 5));
    return 0;
}
#define NORM_ROPE_SHAPES                                                                                               \
    .small = {{1, 1, 1, 1, 0}, {2, 3, 1, 2, 8}, {1, 5, 3, 4, 1}, {2, 3, 2, 2, 10}, {2, 2, 1, 7, 4}},                   \
    .large = {{2, 65, 3, 16, 0}, {1, 130, 2, 9, 10}, {2, 33, 2, 140, 4}},                                              \
    .gpu = {{1, 203, 32, 64, 0}, {2, 131, 4, 128, 8}, {1, 37, 300, 8, 2}, {3, 67, 5, 36, 2},                           \
            {2, 35, 2, 64, 12},  {1, 2003, 8, 32, 1}, {1, 9, 3, 256, 0},  {2, 1000, 1, 16, 2}, {1, 3, 1, 6100, 0}},    \
    .bench = {2, 512, 12, 32}
static const struct opcase case_RMSNORM_ROPE = {build_rmsnorm_rope, NORM_ROPE_SHAPES},
                           case_RMSNORM_ROPE_BWD = {build_rmsnorm_rope_bwd, NORM_ROPE_SHAPES};

/* A matrix; columns of a wider one, if `strided`; one that begins an element behind a multiple of
 * 16 bytes, if `unaligned`. */
static id plane(struct scene *s, const char *name, const int64_t *n, bool strided, bool unaligned)
{
    if (strided) return op_slice(&s->g, param(s, name, DIM(n[0], n[1] + 3)), 1, 3, n[1]);
    return unaligned ? op_reshape(&s->g, op_slice(&s->g, param(s, name, DIM(1 + n[0] * n[1])), 0, 1, n[0] * n[1]),
                                  DIM(n[0], n[1]))
                     : param(s, name, DIM(n[0], n[1]));
}

/* n[3]: strided. */
#define STRIDED_SHAPES .gpu = {{65, 130, 0, 1}}
static id build_silu_gate(struct scene *s, const int64_t *n)
{
    s->unit = 1; /* the derivative of silu has a zero near -1.28 */
    id gate = plane(s, "gate", n, n[3], false), up = param(s, "up", DIM(n[0], n[1]));
    return watch(s, op_silu_gate(&s->g, gate, up));
}
#define PLANE_SHAPES .small = {{1, 1}, {3, 5}, {7, 9}}, .large = {{65, 130}, {3, 1001}}, \
    .bench = {1024, 768}
/* n[3]: gate is columns of a wider matrix. */
#define GATE_SHAPES .small = {{1, 1}, {3, 5}, {7, 9}}, .large = {{65, 130}, {3, 1001}, {65, 130, 0, 1}}, \
    .bench = {1024, 768}
static const struct opcase case_SILU_GATE = {build_silu_gate, GATE_SHAPES};

static id build_silu_gate_bwd(struct scene *s, const int64_t *n) { return build_backward(s, n, build_silu_gate); }
static const struct opcase case_SILU_GATE_BWD = {build_silu_gate_bwd, GATE_SHAPES};

/* dy, gate and up are operands. */
static id build_silu_gate_bwd_y(struct scene *s, const int64_t *n)
{
    const id in[3] = {param(s, "dy", DIM(n[0], n[1])), plane(s, "gate", n, n[3], false),
                      param(s, "up", DIM(n[0], n[1]))};
    s->unit = 1;
    watch_all(s, graph_emit(&s->g, OP_SILU_GATE_BWD_Y, NULL, in, 3));
    return 0;
}
static const struct opcase case_SILU_GATE_BWD_Y = {build_silu_gate_bwd_y, .no_gradient = true, GATE_SHAPES};

/* --- attention ------------------------------------------------------------------------------- */

/* One bias per key. The last key is masked; any window of more than one key also has an unmasked
 * one. */
static id key_mask(struct scene *s, int64_t B, int64_t S)
{
    float *data = mem_alloc((size_t)(B * S) * sizeof *data);
    for (int64_t i = 0; i < B * S; i++) data[i] = i % S == S - 1 ? -INFINITY : (float)value_of("mask", i);
    id t = graph_const(&s->g, "mask", DT_F32, DIM(B, S), data);
    mem_free(data);
    return t;
}

/* The keys of each query: rows of documents, some causal, some seen as a whole, some without keys,
 * and one query that sees the keys of the document before its own. */
static id key_ranges(struct scene *s, int64_t B, int64_t T, int64_t S)
{
    int32_t (*data)[2] = mem_alloc((size_t)(B * T) * sizeof *data);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0, n, kind = b; t < T; t += n, kind = (kind + 1) % 4) {
            n = min_i64(T - t, 1 + (7 * b + 5 * t + T) % (T / 2 + 1));
            const int32_t begin = (int32_t)(t * S / T), end = (int32_t)((t + n) * S / T);
            for (int64_t i = 0; i < n; i++) {
                int32_t *range = data[b * T + t + i];
                range[0] = kind == 3 ? end : begin;
                range[1] = kind == 1 ? end : kind == 3 ? begin : begin + (int32_t)((i + 1) * (end - begin) / n);
                if (t && i == n - 1 && n > 2) range[0] = 0, range[1] = begin;
            }
        }
    id t = graph_const(&s->g, "ranges", DT_I32, DIM(B, T, 2), data);
    mem_free(data);
    return t;
}

/* A range at random for each query: values beyond 0 .. S, and ranges that are empty or end before
 * they begin. The first quarter of the queries is padding to the left: it sees nothing. */
static id random_ranges(struct scene *s, int64_t B, int64_t T, int64_t S)
{
    int32_t (*data)[2] = mem_alloc((size_t)(B * T) * sizeof *data);
    for (int64_t i = 0; i < B * T; i++) {
        data[i][0] = i % T < T / 4 ? (int32_t)S : (int32_t)(fabs(value_of("range", 2 * i)) * (double)S) - 3;
        data[i][1] = data[i][0] + (int32_t)(fabs(value_of("range", 2 * i + 1)) * (double)S / 2) - 1;
    }
    id t = graph_const(&s->g, "ranges", DT_I32, DIM(B, T, 2), data);
    mem_free(data);
    return t;
}

/* Causal, as ranges. */
static id causal_ranges(struct scene *s, int64_t B, int64_t T, int64_t S)
{
    int32_t (*data)[2] = mem_alloc((size_t)(B * T) * sizeof *data);
    for (int64_t i = 0; i < B * T; i++) data[i][1] = (int32_t)(i % T + 1 + S - T);
    id t = graph_const(&s->g, "ranges", DT_I32, DIM(B, T, 2), data);
    mem_free(data);
    return t;
}

/* Documents of several lengths in a row, the last tokens padding without keys: -1. */
static int64_t document_at(int64_t t, int64_t T, int64_t *begin)
{
    static const int64_t LENGTHS[] = {50, 1, 139, 3, 64, 200, 7, 128};
    int64_t at = 0, which = 0;
    while (at + LENGTHS[which % 8] <= t) at += LENGTHS[which++ % 8];
    *begin = at;
    return t < T - T / 16 ? which : -1;
}
static id document_ranges(struct scene *s, int64_t B, int64_t T)
{
    int32_t (*data)[2] = mem_alloc((size_t)(B * T) * sizeof *data);
    for (int64_t i = 0, begin; i < B * T; i++)
        if (document_at(i % T, T, &begin) >= 0) data[i][0] = (int32_t)begin, data[i][1] = (int32_t)(i % T + 1);
    id t = graph_const(&s->g, "ranges", DT_I32, DIM(B, T, 2), data);
    mem_free(data);
    return t;
}

enum { RANGES_PACKED = 4, RANGES_RANDOM = 8, RANGES_CAUSAL = 16, RANGES_DOCUMENTS = 32 };
static id ranges_of_case(struct scene *s, const int64_t *n)
{
    if (n[6] & RANGES_PACKED) return key_ranges(s, n[0], n[1], n[2]);
    if (n[6] & RANGES_RANDOM) return random_ranges(s, n[0], n[1], n[2]);
    if (n[6] & RANGES_CAUSAL) return causal_ranges(s, n[0], n[1], n[2]);
    return n[6] & RANGES_DOCUMENTS ? document_ranges(s, n[0], n[1]) : 0;
}

/* n: B, T, S, H, G, D, 1 causal + 2 masked + ranges, window, cap. */
static id build_attention(struct scene *s, const int64_t *n)
{
    union attr a = {.attention = {(float)(1 / sqrt((double)n[5])), n[6] & 1, n[7], (float)n[8]}};
    id q = param(s, "q", DIM(n[0], n[1], n[3], n[5]));
    id k = param(s, "k", DIM(n[0], n[2], n[4], n[5])), v = param(s, "v", DIM(n[0], n[2], n[4], n[5]));
    s->length = (double)(n[2] + n[5] + n[1] * n[3] / n[4]);
    s->unit = 1;      /* with one key the softmax is constant and dq, dk are 0 */
    s->roundings = 2; /* o is stored in f, and dq, dk are computed from it */
    id mask = n[6] & 2 ? key_mask(s, n[0], n[2]) : 0;
    id ranges = ranges_of_case(s, n);
    id node = graph_emit(&s->g, OP_ATTENTION, &a, (id[]){q, k, v, mask, ranges}, ranges ? 5 : mask ? 4 : 3);
    watch_all(s, node);
    return out_of(s, node, 0);
}
#define HEAD_SHAPES                                                                                                    \
    .small = {{1, 1, 1, 1, 1, 2, 1}, {2, 3, 3, 2, 1, 4, 1},    {1, 2, 5, 4, 2, 2, 1}, {1, 3, 4, 1, 1, 6, 0},           \
              {1, 5, 3, 2, 2, 2, 0}, {1, 6, 6, 2, 1, 2, 1, 2}, {2, 3, 4, 2, 2, 2, 2}, {1, 4, 5, 1, 1, 4, 3, 3},        \
              {2, 7, 7, 2, 1, 2, 4}, {1, 5, 8, 1, 1, 4, 6, 2}, {2, 5, 7, 2, 1, 4, 3, 4, 1}},                       \
    .large = {{1, 65, 65, 4, 2, 16, 3, 30},                                                                            \
              {1, 17, 70, 2, 1, 32, 0},                                                                                \
              {2, 130, 130, 2, 1, 16, 4, 25},                                                                          \
              {1, 70, 140, 2, 2, 8, 6},                                                                                \
              {5, 1, 70, 4, 2, 16, RANGES_RANDOM},                                                                     \
              {1, 65, 90, 2, 1, 56, 3, 30, 1},                                                                         \
              {2, 130, 130, 2, 1, 16, 4, 25, 2},                                                                       \
              {3, 1, 70, 4, 2, 256, RANGES_RANDOM, 0, 1}},                                                             \
    .bench = {1, 512, 512, 12, 12, 64, 1},                                                                             \
    .gpu = {{2, 64, 64, 2, 2, 64, 0},                                                                                  \
            {1, 197, 197, 2, 1, 64, 1},                                                                                \
            {1, 130, 200, 4, 2, 80, 1},                                                                                \
            {2, 300, 300, 2, 2, 128, 1, 100},                                                                          \
            {1, 256, 256, 1, 1, 64, 0},                                                                                \
            {1, 320, 320, 2, 2, 80, 0},                                                                                \
            {1, 129, 129, 3, 3, 128, 0},                                                                               \
            {3, 100, 260, 8, 2, 64, 0},                                                                                \
            {2, 7, 70, 8, 8, 16, 0},                                                                                   \
            {1, 90, 7, 2, 2, 32, 2},                                                                                   \
            {1, 42, 130, 8, 8, 16, 0},                                                                                 \
            {1, 150, 7, 8, 8, 16, 2},                                                                                  \
            {1, 90, 13, 9, 9, 16, 2},                                                                                  \
            {1, 13, 90, 9, 9, 16, 2},                                                                                  \
            {1, 150, 150, 2, 1, 96, 1},                                                                                \
            {1, 70, 140, 2, 2, 32, 1, 40},                                                                             \
            {2, 90, 130, 4, 2, 64, 3},                                                                                 \
            {1, 70, 140, 2, 1, 128, 2},                                                                                \
            {2, 300, 300, 4, 2, 64, 4},                                                                                \
            {1, 700, 700, 2, 2, 128, 4},                                                                               \
            {2, 257, 257, 2, 1, 80, 4, 90},                                                                            \
            {1, 130, 200, 2, 1, 96, 4},                                                                                \
            {1, 150, 150, 2, 2, 32, 6},                                                                                \
            {1, 90, 13, 2, 2, 16, 4},                                                                                  \
            {1, 13, 90, 2, 2, 64, 4},                                                                                  \
            {1, 200, 333, 4, 2, 128, 8},                                                                               \
            {2, 333, 200, 2, 1, 64, 8},                                                                                \
            {1, 150, 150, 2, 1, 80, 8, 31},                                                                            \
            {1, 150, 300, 2, 2, 96, 8},                                                                                \
            {1, 300, 150, 2, 1, 32, 8},                                                                                \
            {1, 100, 170, 2, 1, 128, 10},                                                                              \
            {2, 100, 170, 2, 1, 64, 10},                                                                               \
            {1, 1, 300, 4, 2, 128, 8},                                                                                 \
            {1, 520, 520, 1, 1, 128, 32},                                                                              \
            {1, 390, 390, 2, 1, 64, 32},                                                                               \
            {1, 260, 260, 1, 1, 200, 32},                                                                              \
            {2, 729, 729, 2, 2, 72, 0},                                                                                \
            {1, 200, 200, 4, 2, 72, 1},                                                                                \
            {1, 130, 200, 2, 1, 72, 4},                                                                                \
            {2, 90, 130, 2, 2, 72, 2},                                                                                 \
            {1, 40, 50, 2, 1, 72, 1},                                                                                  \
            {1, 300, 300, 2, 1, 72, 32},                                                                               \
            {257, 64, 64, 1, 1, 64, RANGES_RANDOM},                                                                    \
            {9, 1, 300, 4, 2, 128, RANGES_RANDOM},                                                                     \
            {33, 1, 130, 2, 1, 64, RANGES_RANDOM},                                                                     \
            {1, 150, 900, 2, 1, 128, RANGES_RANDOM, 150},                                                              \
            {1, 40, 640, 2, 1, 64, RANGES_RANDOM, 80},                                                                 \
            {1, 130, 200, 4, 2, 256, 1},                                                                               \
            {2, 300, 300, 2, 1, 256, 1, 100},                                                                          \
            {1, 129, 129, 1, 1, 256, 0},                                                                               \
            {1, 300, 300, 4, 1, 256, RANGES_DOCUMENTS},                                                                \
            {1, 150, 900, 2, 1, 256, RANGES_RANDOM, 150},                                                              \
            {9, 1, 300, 4, 2, 256, RANGES_RANDOM},                                                                     \
            {1, 70, 140, 2, 1, 256, 2},                                                                                \
            {1, 130, 200, 4, 2, 256, 1, 0, 1},                                                                         \
            {1, 150, 150, 2, 1, 256, 1, 50, 2},                                                                        \
            {1, 260, 260, 2, 1, 256, RANGES_DOCUMENTS, 0, 1},                                                          \
            {1, 200, 333, 2, 1, 256, RANGES_RANDOM, 70, 1},                                                            \
            {5, 1, 300, 4, 2, 256, RANGES_RANDOM, 0, 1},                                                               \
            {2, 300, 300, 2, 1, 128, 1, 100, 1},                                                                       \
            {1, 390, 390, 2, 1, 128, RANGES_DOCUMENTS, 0, 2},                                                          \
            {1, 70, 140, 2, 1, 64, 3, 40, 1},                                                                          \
            {2, 196, 196, 2, 2, 56, 0},                                                                                \
            {1, 130, 200, 4, 2, 56, RANGES_PACKED},                                                                    \
            {1, 40, 50, 2, 1, 56, 1},                                                                                  \
            {2, 90, 130, 2, 2, 56, 2},                                                                                 \
            {1, 150, 300, 2, 1, 56, RANGES_RANDOM, 31}}
static const struct opcase case_ATTENTION = {build_attention, HEAD_SHAPES};

static id build_attention_bwd(struct scene *s, const int64_t *n)
{
    if (!s->forward) return build_attention(s, n);
    s->forward = false;
    id o = build_attention(s, n);
    s->forward = true;
    const struct node f = *node_at(&s->g, tensor_at(&s->g, o)->node);
    id dO = param(s, "do", DIM(n[0], n[1], n[3], n[5]));
    id in[8] = {dO, f.in[0], f.in[1], f.in[2], f.out[0], f.out[1], f.in[3], f.in[4]};
    watch_all(s, graph_emit(&s->g, OP_ATTENTION_BWD, &f.attr, in, f.in[4] ? 8 : f.in[3] ? 7 : 6));
    return 0;
}
static const struct opcase case_ATTENTION_BWD = {build_attention_bwd, HEAD_SHAPES};

/* --- convolution ----------------------------------------------------------------------------- */

/* n: B, H, W, C, O, k, 10 stride + pad, options: 1 a bias, 2 depthwise. */
static union attr conv_attr(const int64_t *n)
{
    union attr a = {.conv = {.stride = (int32_t)n[6] / 10,
                             .pad = (int32_t)n[6] % 10,
                             .groups = n[7] & 2 ? (int32_t)n[3] : 1,
                             .kh = (int32_t)n[5],
                             .kw = (int32_t)n[5],
                             .H = n[1],
                             .W = n[2]}};
    return a;
}

static int64_t conv_size(const int64_t *n, int64_t size) { return (size + 2 * (n[6] % 10) - n[5]) / (n[6] / 10) + 1; }

static id conv_kernel(struct scene *s, const int64_t *n)
{
    return param(s, "w", DIM(n[4], n[7] & 2 ? 1 : n[3], n[5], n[5]));
}

static id build_conv(struct scene *s, const int64_t *n)
{
    const union attr a = conv_attr(n);
    id x = param(s, "x", DIM(n[0], n[1], n[2], n[3])), w = conv_kernel(s, n);
    s->length = (double)max_i64(n[5] * n[5] * max_i64(n[3], n[4]), n[0] * n[1] * n[2]);
    return watch(s, op_conv(&s->g, x, w, n[7] & 1 ? param(s, "b", DIM(n[4])) : 0, a.conv.stride, a.conv.pad,
                            a.conv.groups));
}
#define CONV_SHAPES                                                                                                    \
    .small = {{1, 1, 1, 1, 1, 1, 10, 1}, {2, 3, 2, 3, 5, 1, 10, 0}, {1, 4, 6, 3, 2, 2, 20, 1},                         \
              {1, 5, 4, 2, 3, 3, 11, 0}, {2, 5, 3, 2, 2, 3, 21, 1}, {1, 4, 4, 3, 2, 4, 21, 1},                         \
              {1, 4, 5, 3, 3, 3, 11, 3}, {1, 5, 4, 5, 5, 3, 21, 2}},                                                   \
    .large = {{2, 13, 10, 33, 20, 3, 11, 1},                                                                           \
              {1, 15, 18, 20, 20, 3, 21, 3},                                                                           \
              {1, 25, 40, 136, 136, 3, 11, 2},                                                                         \
              {2, 6, 64, 16, 24, 2, 20, 1}},                                                                           \
    .gpu = {{2, 24, 28, 32, 64, 2, 20, 1},                                                                             \
            {1, 64, 80, 64, 256, 2, 20, 0},                                                                            \
            {3, 10, 20, 32, 64, 2, 20, 0},                                                                             \
            {1, 128, 128, 32, 64, 2, 20, 1}},                                                                          \
    .bench = {1, 64, 64, 256, 256, 3, 11, 1}
static const struct opcase case_CONV = {build_conv, CONV_SHAPES};

/* A transposed convolution where the stride divides the sizes, otherwise CONV_DX itself; x has the
 * shape of n's y. */
static id build_conv_dx(struct scene *s, const int64_t *n)
{
    union attr a = conv_attr(n);
    const int64_t H2 = conv_size(n, n[1]), W2 = conv_size(n, n[2]);
    id x = param(s, "x", DIM(n[0], H2, W2, n[4])), w = conv_kernel(s, n),
       bias = n[7] & 1 ? param(s, "b", DIM(n[3])) : 0;
    s->length = (double)max_i64(n[5] * n[5] * max_i64(n[3], n[4]), n[0] * n[1] * n[2]);
    if (!(n[7] & 2) && (n[1] - n[5] + 2 * (n[6] % 10)) % (n[6] / 10) == 0 &&
        (n[2] - n[5] + 2 * (n[6] % 10)) % (n[6] / 10) == 0)
        return watch(s, op_conv_transpose(&s->g, x, w, bias, a.conv.stride, a.conv.pad));
    return watch(s, out_of(s, graph_emit(&s->g, OP_CONV_DX, &a, (id[]){x, w, bias}, bias ? 3 : 2), 0));
}
static const struct opcase case_CONV_DX = {build_conv_dx, CONV_SHAPES};

static id build_conv_dw(struct scene *s, const int64_t *n)
{
    if (!s->forward) return build_conv(s, n);
    const union attr a = conv_attr(n);
    id dy = param(s, "dy", DIM(n[0], conv_size(n, n[1]), conv_size(n, n[2]), n[4]));
    id x = param(s, "x", DIM(n[0], n[1], n[2], n[3])), acc = op_cast(&s->g, conv_kernel(s, n), wide(s));
    s->length = (double)(n[0] * n[1] * n[2]);
    watch_all(s, graph_emit(&s->g, OP_CONV_DW, &a, (id[]){dy, x, acc}, n[7] & 1 ? 3 : 2));
    return 0;
}
static const struct opcase case_CONV_DW = {build_conv_dw, CONV_SHAPES};

/* --- tokens ---------------------------------------------------------------------------------- */

static id build_embedding(struct scene *s, const int64_t *n)
{
    id ids = constant_ids(s, "ids", n[2], false, DIM(n[0], n[1]));
    s->length = (double)(n[0] * n[1]) / (double)n[2] + 1;
    return watch(s, op_embedding(&s->g, ids, param(s, "table", DIM(n[2], n[3]))));
}
#define TOKEN_SHAPES .small = {{1, 1, 1, 1}, {2, 3, 5, 4}, {3, 5, 2, 3}, {1, 7, 9, 1}}, .large = {{4, 65, 23, 70}}, \
    .bench = {2, 512, 8192, 768}
static const struct opcase case_EMBEDDING = {build_embedding, TOKEN_SHAPES};

static id build_embedding_dw(struct scene *s, const int64_t *n)
{
    if (!s->forward) return build_embedding(s, n);
    union attr a = {.embedding_dw = {n[2], n[2] > 2 ? 1 + n[2] / 2 : 0}};
    id ids = constant_ids(s, "ids", n[2], false, DIM(n[0], n[1]));
    id in[3] = {ids, param(s, "dy", DIM(n[0], n[1], n[3])), op_cast(&s->g, param(s, "acc", DIM(n[2], n[3])), wide(s))};
    s->length = (double)(n[0] * n[1]) / (double)n[2] + 1;
    watch_all(s, graph_emit(&s->g, OP_EMBEDDING_DW, &a, in, n[0] % 2 ? 2 : 3));
    return 0;
}
static const struct opcase case_EMBEDDING_DW = {build_embedding_dw, TOKEN_SHAPES};

/* Labels [B,T], shifted, for logits [B*T,V]. */
static id build_shift_labels(struct scene *s, const int64_t *n)
{
    id labels = watch(s, op_shift_labels(&s->g, constant_ids(s, "labels", n[2], true, DIM(n[0], n[1]))));
    s->unit = 1;
    s->length = (double)n[2];
    id logits = param(s, "logits", DIM(n[0], n[1], n[2]));
    return op_xent(&s->g, logits, op_reshape(&s->g, labels, DIM(-1)), NULL);
}
static const struct opcase case_SHIFT_LABELS = {build_shift_labels, .small = {{1, 1, 3}, {2, 3, 5}, {3, 4, 2}},
                                                .large = {{4, 17, 23}}, .bench = {32, 1024, 2}};

/* The labelled rows of logits [n0,n1] by itself: the gradient of the others is 0. */
static id build_labelled_first(struct scene *s, const int64_t *n)
{
    struct graph *g = &s->g;
    id labels = constant_ids(s, "labels", n[1], true, 1, n), node = graph_emit(g, OP_LABELLED_FIRST, NULL, &labels, 1);
    watch_all(s, node);
    s->unit = 1;
    s->length = (double)max_i64(n[0], n[1]);
    id logits = op_reshape(g, param(s, "logits", DIM(n[0], n[1])), DIM(1, n[0], n[1]));
    logits = op_gather_unique(g, logits, op_reshape(g, out_of(s, node, 1), DIM(1, n[0])),
                              op_reshape(g, out_of(s, node, 2), DIM(1, n[0])));
    return op_xent(g, op_reshape(g, logits, DIM(n[0], n[1])), out_of(s, node, 0), NULL);
}
static const struct opcase case_LABELLED_FIRST = {build_labelled_first, .small = {{1, 3}, {5, 2}, {9, 4}},
                                                  .large = {{65, 23}, {3000, 5}}, .bench = {8192, 2}};

static id build_xent(struct scene *s, const int64_t *n)
{
    id logits = param(s, "logits", DIM(n[0], n[1])), labels = constant_ids(s, "labels", n[1], true, 1, n);
    s->length = (double)max_i64(n[0], n[1]);
    s->unit = 1; /* with one class loss and gradient are 0 */
    id node = graph_emit(&s->g, OP_XENT, NULL, (id[]){logits, labels, graph_count(&s->g, NULL)}, 3);
    watch_all(s, node);
    return out_of(s, node, 0);
}
#define CLASS_SHAPES .small = {{1, 1}, {3, 5}, {7, 2}, {2, 17}}, .large = {{33, 300}, {5, 1001}}, \
    .bench = {1024, 4096}
static const struct opcase case_XENT = {build_xent, CLASS_SHAPES};

static id build_xent_bwd(struct scene *s, const int64_t *n)
{
    if (!s->forward) return build_xent(s, n);
    s->forward = false;
    id loss = build_xent(s, n);
    s->forward = true;
    const struct node f = *node_at(&s->g, tensor_at(&s->g, loss)->node);
    id scale = op_cast(&s->g, param(s, "dloss", 0, NULL), wide(s));
    /* Softmax and one-hot cancel; lse, of magnitude log V, carries an f32 rounding. */
    s->unit = 0.125 * (1 + log((double)n[1])) * fmax(1, fabs(value_of("dloss", 0)));
    watch_all(s, graph_emit(&s->g, OP_XENT_BWD, NULL, (id[]){f.in[0], f.in[1], f.in[2], f.out[1], scale}, 5));
    return 0;
}
static const struct opcase case_XENT_BWD = {build_xent_bwd, CLASS_SHAPES};

/* The third of four parts of a vocabulary; its last column is padding if it has several. */
static const int32_t third[3] = {2, 4, 1};

static id part_of_ids(struct scene *s, const int64_t *n, bool labels)
{
    union attr a = {.part_ids = {n[1], 4 * n[1], labels}};
    memcpy(a.part_ids.of, third, sizeof third);
    return op_apply(&s->g, OP_PART_IDS, &a, (id[]){constant_ids(s, "labels", 4 * n[1], labels, 1, n)}, 1);
}

/* Rows of a part's table: zeros for the ids of other parts. */
static id build_part_ids(struct scene *s, const int64_t *n)
{
    const id ids = watch(s, part_of_ids(s, n, false));
    watch(s, part_of_ids(s, n, true));
    s->length = (double)n[0];
    return watch(s, op_embedding(&s->g, ids, param(s, "table", DIM(n[1], 3))));
}
static const struct opcase case_PART_IDS = {build_part_ids, CLASS_SHAPES};

static id build_xent_part(struct scene *s, const int64_t *n)
{
    union attr a = {.xent_part = {4, 2 * n[1] + max_i64(1, n[1] - 1)}};
    const id logits = param(s, "logits", DIM(n[0], n[1]));
    memcpy(a.xent_part.of, third, sizeof third);
    s->length = (double)max_i64(n[0], n[1]);
    s->unit = 1 + log((double)n[1]); /* of the log-sum-exp */
    return watch(s, op_apply(&s->g, OP_XENT_PART, &a, (id[]){logits, part_of_ids(s, n, true)}, 2));
}
static id build_xent_part_bwd(struct scene *s, const int64_t *n) { return build_backward(s, n, build_xent_part); }
static const struct opcase case_XENT_PART = {build_xent_part, CLASS_SHAPES};
static const struct opcase case_XENT_PART_BWD = {build_xent_part_bwd, CLASS_SHAPES};

/* The stats of n[1] parts: log-sum-exps, and logits of labels. */
static id build_xent_join(struct scene *s, const int64_t *n)
{
    const id stats = op_cast(&s->g, param(s, "stats", DIM(n[0], 2 * n[1])), wide(s)),
             labels = constant_ids(s, "labels", n[1], true, 1, n);
    s->length = (double)max_i64(n[0], n[1]);
    s->unit = 1;
    return watch(s, op_apply(&s->g, OP_XENT_JOIN, NULL, (id[]){stats, labels, graph_count(&s->g, NULL)}, 3));
}
static id build_xent_join_bwd(struct scene *s, const int64_t *n) { return build_backward(s, n, build_xent_join); }
static const struct opcase case_XENT_JOIN = {build_xent_join, CLASS_SHAPES};
static const struct opcase case_XENT_JOIN_BWD = {build_xent_join_bwd, CLASS_SHAPES};

/* --- elementwise ----------------------------------------------------------------------------- */

static id build_scale(struct scene *s, const int64_t *n)
{
    return watch(s, op_scale(&s->g, plane(s, "a", n, n[3], false), -0.3));
}
static const struct opcase case_SCALE = {build_scale, PLANE_SHAPES, STRIDED_SHAPES};

/* Casts to bf16 and back; an f64 graph stays exact. */
static id build_cast(struct scene *s, const int64_t *n)
{
    return watch(s, op_cast(&s->g, param(s, "a", DIM(n[0], n[1])), s->f == DT_F32 ? DT_BF16 : wide(s)));
}
static const struct opcase case_CAST = {build_cast, PLANE_SHAPES};

static id build_sum(struct scene *s, const int64_t *n)
{
    s->length = (double)(n[0] * n[1]);
    s->unit = sqrt(s->length);
    return watch(s, op_sum(&s->g, plane(s, "a", n, n[3], false)));
}
static const struct opcase case_SUM = {build_sum, PLANE_SHAPES, STRIDED_SHAPES};

static id build_spread(struct scene *s, const int64_t *n)
{
    if (!s->forward) return build_sum(s, n);
    id in[2] = {op_cast(&s->g, param(s, "ds", 0, NULL), wide(s)), param(s, "a", DIM(n[0], n[1]))};
    watch_all(s, graph_emit(&s->g, OP_SPREAD, NULL, in, 2));
    return 0;
}
static const struct opcase case_SPREAD = {build_spread, PLANE_SHAPES};

/* Accumulates into a wider dtype; not into the parameter itself, which must keep its values. */
static id build_accumulate(struct scene *s, const int64_t *n)
{
    id acc = op_cast(&s->g, param(s, "acc", DIM(n[0], n[1])), wide(s));
    return watch(s, op_accumulate(&s->g, plane(s, "a", n, n[3], false), acc));
}
static const struct opcase case_ACCUMULATE = {build_accumulate, PLANE_SHAPES, STRIDED_SHAPES};

static id build_fill(struct scene *s, const int64_t *n)
{
    id filled = watch(s, op_fill(&s->g, s->f, 2, n, 0.3));
    return op_add(&s->g, filled, param(s, "a", DIM(n[0], n[1])));
}
static const struct opcase case_FILL = {build_fill, PLANE_SHAPES};

/* Copies to host memory and back, and into another layout. */
static id build_copy(struct scene *s, const int64_t *n)
{
    id away = op_copy(&s->g, param(s, "a", DIM(n[0], n[1])), SPACE_HOST), here = op_copy(&s->g, away, SPACE_DEVICE);
    return watch(s, op_copy(&s->g, op_permute(&s->g, here, (int[]){1, 0}), SPACE_DEVICE));
}
static const struct opcase case_COPY = {build_copy, PLANE_SHAPES};

#include "ops_shapes.inc"
#include "ops_experts.inc"

/* --- update ---------------------------------------------------------------------------------- */

static id sum_of_squares(struct scene *s, id x)
{
    id zero = op_fill(&s->g, DT_F64, 0, NULL, 0.25);
    return out_of(s, graph_emit(&s->g, OP_SUMSQ, NULL, (id[]){x, zero}, 2), 0);
}

static id build_sumsq(struct scene *s, const int64_t *n)
{
    s->length = (double)(n[0] * n[1]);
    watch(s, sum_of_squares(s, param(s, "x", DIM(n[0], n[1]))));
    return 0;
}
static const struct opcase case_SUMSQ = {build_sumsq, .no_gradient = true, PLANE_SHAPES,
                                         .gpu = {{1, 1000003}, {2500, 2001}}};

static id build_clip(struct scene *s, const int64_t *n)
{
    s->length = (double)(n[0] * n[1]);
    id sum = sum_of_squares(s, param(s, "x", DIM(n[0], n[1])));
    watch_all(s, graph_emit(&s->g, OP_CLIP, NULL, (id[]){sum, graph_step(&s->g)}, 2));
    return 0;
}
static const struct opcase case_CLIP = {build_clip, .no_gradient = true, PLANE_SHAPES};

static id build_scaler(struct scene *s, const int64_t *n)
{
    id sum = sum_of_squares(s, param(s, "x", DIM(n[0], n[1])));
    id step = out_of(s, graph_emit(&s->g, OP_SCALER, NULL, (id[]){sum, graph_step(&s->g)}, 2), 0);
    s->length = (double)(n[0] * n[1]);
    watch_all(s, graph_emit(&s->g, OP_CLIP, NULL, (id[]){sum, step}, 2));
    return 0;
}
static const struct opcase case_SCALER = {build_scaler, .no_gradient = true, PLANE_SHAPES};

/* The sum is finite, so the step is unchanged. */
static id build_guard(struct scene *s, const int64_t *n)
{
    id sum = sum_of_squares(s, param(s, "x", DIM(n[0], n[1])));
    id step = out_of(s, graph_emit(&s->g, OP_GUARD, NULL, (id[]){sum, graph_step(&s->g)}, 2), 0);
    s->length = (double)(n[0] * n[1]);
    watch_all(s, graph_emit(&s->g, OP_CLIP, NULL, (id[]){sum, step}, 2));
    return 0;
}
static const struct opcase case_GUARD = {build_guard, .no_gradient = true, PLANE_SHAPES};

#include "ops_acts.inc"
#include "ops_fp8.inc"
#include "ops_masks.inc"
#include "ops_prompts.inc"
#include "ops_update.inc"

/* --- all rows -------------------------------------------------------------------------------- */

static const struct row rows[] = {
    {OP_NONE, NULL},
#define OP(NAME, ...) {OP_##NAME, &case_##NAME},
#include "graph/ops.def"
#undef OP
};
_Static_assert(COUNT(rows) == OP_COUNT, "one case per row");

/* --- building ---------------------------------------------------------------------------- */

/* Multiplies `y` by constant weights and sums; a scalar is only scaled. */
static id weighted_sum(struct scene *s, id y)
{
    if (!y) return 0;
    struct tensor x = *tensor_at(&s->g, y);
    id product = op_mul(&s->g, y, constant(s, "weights", x.dtype, x.rank, x.dim));
    return x.rank ? op_sum(&s->g, product) : product;
}

static struct scene scene_of(const struct row *row, const int64_t *n, enum dtype f, bool forward)
{
    struct scene s = {.f = f, .forward = forward, .length = 1, .roundings = 1};
    graph_init(&s.g);
    id y = row->c->build(&s, n);
    if (!forward) {
        id loss = weighted_sum(&s, y);
        graph_output(&s.g, "loss", loss);
        graph_verify(&s.g, "build");
        graph_differentiate(&s.g, PROGRAM_STEP, loss);
        pass_residual(&s.g, NULL);
    }
    graph_verify(&s.g, "differentiate");
    return s;
}
