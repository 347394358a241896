/*
 * random_graph.h: random forward graphs with a loss, for test_random_passes.c.
 *
 *     ids, numbers or a small image -> [B,T,C] -> blocks of random layers -> head -> loss
 *     images of a sample -> a tower -> rows of [B,T,C]
 *
 * A graph is a function of a seed. The number of samples B changes dimensions only, so one seed
 * gives the same function for every micro-batch size. T is a grid of rows x columns, for the image
 * layers, windows and relative positions.
 */
#pragma once

#include "optest.h"

/* A stream of random numbers: a key and a counter. */
struct dice {
    uint64_t key, thrown;
};

static inline int64_t throw_dice(struct dice *d, int64_t n)
{
    return (int64_t)(random_bits(d->key, d->thrown++) >> 16) % n;
}
static inline bool chance(struct dice *d, int percent) { return throw_dice(d, 100) < percent; }

struct builder {
    struct graph *g;
    struct dice dice;
    int64_t B, T, C, rows, columns, heads, D;
    bool f32;            /* computes in f32: ops that have their own dtype are possible */
    id samples, index;
    id skip[8];          /* earlier results, all [B,T,C] */
    int skips, weights;  /* counts */
    int block;
};

static inline bool maybe(struct builder *m, int percent) { return chance(&m->dice, percent); }
static inline int64_t pick(struct builder *m, int64_t n) { return throw_dice(&m->dice, n); }

/* A weight of its own, or one shared with other layers of this shape. */
static inline id weight(struct builder *m, int rank, const int64_t *dim, double std)
{
    char name[64] = "shared";
    if (!maybe(m, 15)) snprintf(name, sizeof name, "layers.%d.weight%d", m->block, m->weights++);
    int n = (int)strlen(name);
    for (int i = 0; i < rank; i++)
        n += snprintf(name + n, sizeof name - (size_t)n, "%c%lld", i ? 'x' : '.', (long long)dim[i]);
    return graph_param(m->g, name, DT_F32, rank, dim, (struct init){INIT_NORMAL, (float)std, 0});
}

static inline id linear(struct builder *m, id x, int64_t out)
{
    const int64_t in = tensor_last(tensor_at(m->g, x));
    const id w = weight(m, DIM(out, in), sqrt(1.0 / (double)in));
    const id bias = maybe(m, 60) ? weight(m, DIM(out), 0.1) : 0;
    return op_linear(m->g, x, w, bias);
}

/* without EXP, which overflows in chains */
static inline id activation(struct builder *m, id x)
{
    return op_act(m->g, x, maybe(m, 40) ? ACT_RELU : (enum act_kind)pick(m, ACT_EXP));
}

static inline id ones(struct builder *m, const char *which, int64_t n)
{
    char name[64];
    snprintf(name, sizeof name, "layers.%d.%s%d", m->block, which, m->weights++);
    return graph_param(m->g, name, DT_F32, DIM(n), (struct init){INIT_ONE, 0, 0});
}

static inline id norm(struct builder *m, id x)
{
    const int64_t kind = pick(m, 7), C = tensor_last(tensor_at(m->g, x));
    if (kind == 6) return op_apply(m->g, OP_L2NORM, &(union attr){.rmsnorm = {1e-6f}}, &x, 1);
    if (kind >= 3) return op_rmsnorm(m->g, x, ones(m, "norm", C), 1e-6f);
    const id w = ones(m, "norm", C);
    return op_layernorm(m->g, x, w, weight(m, DIM(C), 0.1), 1e-6f);
}

static inline id drop(struct builder *m, id x)
{
    if (!maybe(m, 20) || !m->samples) return x;
    return maybe(m, 50) ? op_dropout(m->g, x, m->samples, 0.25f) : op_drop_path(m->g, x, m->samples, 0.25f);
}

/* --- layers: [B,T,C] to [B,T,C] ------------------------------------------------------------- */

static inline id mlp(struct builder *m, id x)
{
    const int64_t inner = m->C * (1 + pick(m, 4));
    id h = linear(m, x, inner);
    if (maybe(m, 40)) h = op_silu_gate(m->g, h, linear(m, x, inner));
    else h = activation(m, h);
    return linear(m, drop(m, h), m->C);
}

/* Query, key and value: from three projections, or slices of one. */
static inline void project(struct builder *m, id x, int64_t groups, id part[3])
{
    const int64_t all[] = {m->B, m->T, m->heads + 2 * groups, m->D};
    if (maybe(m, 50)) {
        const id qkv = op_reshape(m->g, linear(m, x, all[2] * m->D), 4, all);
        for (int i = 0; i < 3; i++)
            part[i] = op_slice(m->g, qkv, 2, i ? m->heads + (i - 1) * groups : 0, i ? groups : m->heads);
        return;
    }
    for (int i = 0; i < 3; i++)
        part[i] = op_reshape(m->g, linear(m, x, (i ? groups : m->heads) * m->D),
                             DIM(m->B, m->T, i ? groups : m->heads, m->D));
}

static inline id rotated(struct builder *m, id x)
{
    struct builder norm = *m;
    norm.dice.key = random_key(m->dice.key, "head norm"); /* its own dice: other seeds keep their graphs */
    if (maybe(&norm, 30)) {
        x = op_rmsnorm_with(m->g, x, weight(&norm, DIM(m->D), 0.3), 1e-5f, maybe(&norm, 50));
        m->weights = norm.weights;
    }
    const float table[] = {1, 0.5f, 0.25f, 0.125f, 0.1f, 0.05f, 0.02f, 0.01f};
    const id freq = graph_const(m->g, "inv_freq", DT_F32, DIM(m->D / 2), table);
    return op_rope_at(m->g, x, freq, maybe(m, 25) ? graph_input(m->g, "positions", DT_I32, DIM(m->B, m->T)) : 0, NULL,
                      1);
}

static inline id attend(struct builder *m, const id part[3], int64_t kind)
{
    const float scale = 0.5f;
    const int64_t side = kind == 2 ? 2 : 0, high = side ? side : m->rows, wide = side ? side : m->columns;
    if (kind == 3)
        return op_attention_bias(m->g, part[0], part[1], part[2], weight(m, DIM(m->heads, m->T), 0.5), (int)m->rows,
                                 scale);
    if (kind == 1 || kind == 2) {
        const id h = weight(m, DIM(2 * high - 1, m->D), 0.5), w = weight(m, DIM(2 * wide - 1, m->D), 0.5);
        if (kind == 1) return op_attention_rel(m->g, part[0], part[1], part[2], h, w, (int)high, (int)wide, scale);
        const struct window_options o = {(int)m->rows, (int)m->columns, (int)side, scale};
        return op_attention_window(m->g, part[0], part[1], part[2], h, w,
                                   maybe(m, 50) ? weight(m, DIM(2, m->heads, m->D), 0.5) : 0, o);
    }
    struct attention_options o = {.scale = scale, .causal = maybe(m, 50), .window = maybe(m, 25) ? 3 : 0};
    if (maybe(m, 25)) o.ranges = graph_input(m->g, "ranges", DT_I32, DIM(m->B, m->T, 2)), o.causal = false;
    const id mask = m->f32 && maybe(m, 25) ? graph_input(m->g, "mask", DT_F32, DIM(m->B, m->T)) : 0;
    return op_attention_with(m->g, part[0], part[1], part[2], mask, o);
}

static inline id attention(struct builder *m, id x)
{
    int64_t kind = pick(m, 6);
    if (kind > 3 || (kind == 3 && m->rows != m->columns)) kind = 0;
    const int64_t groups = kind || maybe(m, 50) ? m->heads : 1;
    id part[3];
    project(m, x, groups, part);
    for (int i = 0; i < 2 && kind == 0 && m->D % 2 == 0; i++)
        if (maybe(m, 40)) part[i] = rotated(m, part[i]);
    const id y = attend(m, part, kind);
    return linear(m, op_reshape(m->g, y, DIM(m->B, m->T, m->heads * m->D)), m->C);
}

static inline id map_norm(struct builder *m, id x)
{
    const int64_t C = m->C, kind = pick(m, 4);
    if (kind == 3) return x;
    const id w = ones(m, "norm", C), b = weight(m, DIM(C), 0.1);
    if (kind == 0) return op_instancenorm(m->g, x, w, b, 1e-5f);
    char name[64];
    snprintf(name, sizeof name, "layers.%d.mean%d", m->block, m->weights++);
    const id mean = graph_param(m->g, name, DT_F32, DIM(C), (struct init){INIT_NORMAL, 0.1f, 0}),
             var = ones(m, "var", C);
    if (kind == 1) {
        graph_param_of(m->g, mean)->frozen = graph_param_of(m->g, var)->frozen = true;
        return op_batchnorm_frozen(m->g, x, w, b, mean, var, 1e-5f);
    }
    return op_batchnorm(m->g, x, w, b, 1, 1e-5f, mean, var, 0.1);
}

static inline id convolution(struct builder *m, id x)
{
    const bool depthwise = maybe(m, 60);
    const int64_t size = maybe(m, 30) ? 1 : 3, C = m->C;
    id y = op_reshape(m->g, x, DIM(m->B, m->rows, m->columns, C));
    const id w =
        weight(m, DIM(C, depthwise ? 1 : C, size, size), depthwise ? 0.3 : sqrt(1.0 / (double)(C * size * size)));
    y = op_conv(m->g, y, w, maybe(m, 50) ? weight(m, DIM(C), 0.1) : 0, 1, (int)size / 2, depthwise ? (int)C : 1);
    return op_reshape(m->g, activation(m, map_norm(m, y)), DIM(m->B, m->T, C));
}

/* Permutes pixels and undoes the permutation. */
static inline id move_pixels(struct builder *m, id x)
{
    id y = op_reshape(m->g, x, DIM(m->B, m->rows, m->columns, m->C));
    const int64_t kind = pick(m, 3);
    if (kind == 0) y = op_unwindow(m->g, activation(m, op_window(m->g, y, 2)), m->rows, m->columns);
    if (kind == 1)
        y = op_resize(m->g, op_resize(m->g, y, m->rows + 1, m->columns, maybe(m, 50)), m->rows, m->columns, false);
    if (kind == 2) y = op_resize(m->g, op_avgpool_adaptive(m->g, y, 2, 2), m->rows, m->columns, false);
    return op_reshape(m->g, y, DIM(m->B, m->T, m->C));
}

/* A linear layer along T, between two permutations. */
static inline id mixing(struct builder *m, id x)
{
    static const int swap[] = {0, 2, 1};
    id y = op_permute(m->g, x, swap);
    if (maybe(m, 50)) y = op_dense(m->g, y);
    return op_permute(m->g, activation(m, linear(m, y, m->T)), swap);
}

static inline id halves(struct builder *m, id x)
{
    const int64_t half = m->C / 2;
    const id a = op_slice(m->g, x, 2, 0, half), b = op_slice(m->g, x, 2, half, m->C - half);
    const id left = activation(m, a), right = maybe(m, 50) ? b : linear(m, b, m->C - half);
    return op_concat(m->g, (id[]){left, right}, 2, 2);
}

/* Gathers T tokens by the ids of an input. */
static inline id selection(struct builder *m, id x)
{
    if (!m->index) m->index = graph_input(m->g, "index", DT_I32, DIM(m->B, m->T));
    return op_gather(m->g, x, m->index);
}

static inline id scores(struct builder *m, id x)
{
    if (!m->f32) return op_softmax(m->g, x);
    return op_bmm(m->g, op_softmax(m->g, linear(m, x, m->T)), x, false, false, DT_F32);
}

/* A learned position is added before a product. */
static inline id positioned(struct builder *m, id x)
{
    return linear(m, op_add(m->g, x, weight(m, DIM(m->T, m->C), 0.5)), m->C);
}

/* A few rows as filters over the activation of all, and back. */
static inline id filters(struct builder *m, id x)
{
    if (!m->f32) return activation(m, x);
    const int64_t n = 1 + pick(m, 2);
    /* A copy for any B: the number of nodes keys the random numbers of those that follow. */
    const id a = op_copy(m->g, op_slice(m->g, x, 1, 0, n), SPACE_DEVICE), z = linear(m, x, m->C);
    const id y = op_bmm(m->g, a, activation(m, z), false, true, DT_F32); /* [B,n,T] */
    static const int swap[] = {0, 2, 1};
    return linear(m, op_dense(m->g, op_permute(m->g, y, swap)), m->C);
}

static inline id layer(struct builder *m, id x)
{
    switch (pick(m, 18)) {
    case 0: case 1: case 2: case 3: return mlp(m, x);
    case 4: case 5: case 6: case 7: return attention(m, x);
    case 8: return convolution(m, x);
    case 9: return move_pixels(m, x);
    case 10: return mixing(m, x);
    case 11: return halves(m, x);
    case 12: return selection(m, x);
    case 13: return scores(m, x);
    case 15: return positioned(m, x);
    case 16: return filters(m, x);
    case 14: return op_mul(m->g, x, op_act(m->g, linear(m, x, m->C), ACT_SIGMOID));
    default: return op_scale(m->g, activation(m, linear(m, x, m->C)), 0.75);
    }
}

/* --- blocks ---------------------------------------------------------------------------------- */

/* A norm, a layer and a residual; norm and residual are optional. */
static inline id sublayer(struct builder *m, id x)
{
    const bool before = maybe(m, 70);
    id y = drop(m, layer(m, before ? norm(m, x) : x));
    if (maybe(m, 10)) y = op_mul(m->g, op_add(m->g, x, y), op_act(m->g, y, ACT_SIGMOID)); /* y has two readers */
    else if (maybe(m, 75)) y = maybe(m, 80) ? op_add(m->g, x, y) : op_add(m->g, y, x);
    else if (m->skips && maybe(m, 50)) y = op_add(m->g, m->skip[pick(m, m->skips)], y);
    return before ? y : norm(m, y);
}

static inline id block(struct builder *m, id x, const char *chain, int number)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%d", chain, number);
    m->block++;
    const id outer = graph_scope_push(m->g, name, SCOPE_BLOCK);
    for (int64_t i = 1 + pick(m, 3); i > 0; i--) {
        const bool scoped = maybe(m, 60);
        const id inner = scoped ? graph_scope_push(m->g, i % 2 ? "attn" : "mlp", 0) : 0;
        x = sublayer(m, x);
        if (scoped) graph_scope_pop(m->g, inner);
    }
    graph_scope_pop(m->g, outer);
    return m->skips < (int)COUNT(m->skip) ? m->skip[m->skips++] = x : x;
}

static inline id stem(struct builder *m, id *table)
{
    const int64_t kind = pick(m, 3);
    *table = 0;
    if (kind == 0) {
        const id ids = graph_input(m->g, "ids", DT_I32, DIM(m->B, m->T));
        *table = graph_param(m->g, "embed", DT_F32, DIM(VOCABULARY, m->C), (struct init){INIT_NORMAL, 0.5f, 0});
        return op_embedding(m->g, ids, *table);
    }
    if (kind == 1) return linear(m, graph_input(m->g, "x", DT_F32, DIM(m->B, m->T, 5)), m->C);
    const id x = graph_input(m->g, "image", DT_F32, DIM(m->B, 2 * m->rows, 2 * m->columns, 3));
    const id w = weight(m, DIM(m->C, 3, 2, 2), 0.3);
    return op_reshape(m->g, op_conv(m->g, x, w, 0, 2, 0, 1), DIM(m->B, m->T, m->C));
}

/* --- images ---------------------------------------------------------------------------------- */

static inline id encoder_layer(struct builder *t, id x, int number)
{
    struct graph *g = t->g;
    char name[32];
    id part[3];
    snprintf(name, sizeof name, "layers.%d", number);
    t->block++;
    const id outer = graph_scope_push(g, name, SCOPE_BLOCK);
    project(t, norm(t, x), t->heads, part);
    const id y = op_attention(g, part[0], part[1], part[2], 0.5f, false);
    x = op_add(g, x, linear(t, op_reshape(g, y, DIM(t->B, t->T, t->heads * t->D)), t->C));
    x = op_add(g, x, mlp(t, norm(t, x)));
    graph_scope_pop(g, outer);
    return x;
}

/* Some models have up to three images in each sample, and their features replace rows. The tower is
 * frozen as a whole, but for weights that it shares with other layers, with or without the layer
 * after it. */
static inline id with_images(struct builder *m, uint64_t seed, id h)
{
    enum { SIDE = 3, TOKENS = SIDE * SIDE };
    struct graph *g = m->g;
    struct builder t = *m;
    t.dice = (struct dice){random_key(seed, "images"), 0}; /* its own dice: other seeds keep their graphs */
    if (!maybe(&t, 30)) return h;
    const int64_t n = 1 + pick(&t, 3), layers = 1 + pick(&t, 2);
    const bool frozen = maybe(&t, 80), projector = maybe(&t, 50);
    const uint32_t before = g->params.n;
    t.B = m->B * n, t.T = TOKENS, t.rows = t.columns = SIDE, t.block = 100, t.samples = t.index = 0;
    const id outer = graph_scope_push(g, "encoder", SCOPE_IMAGES);
    id x = op_conv(g, graph_input(g, "pixels", DT_F32, DIM(t.B, 2 * SIDE, 2 * SIDE, 3)),
                   weight(&t, DIM(t.C, 3, 2, 2), 0.3), 0, 2, 0, 1);
    x = op_reshape(g, x, DIM(t.B, TOKENS, t.C));
    for (int i = 0; i < layers; i++) x = encoder_layer(&t, x, i);
    const uint32_t tower = g->params.n;
    x = linear(&t, x, t.C);
    graph_scope_pop(g, outer);
    for (uint32_t i = before; i < g->params.n; i++) g->params.at[i].frozen = frozen && (i < tower || projector);
    return op_replace_rows(g, h, graph_input(g, "image_index", DT_I32, DIM(m->B, m->T)),
                           op_reshape(g, x, DIM(m->B, n * TOKENS, m->C)));
}

/* From rows to classes; the planner may split its scope by rows. */
static inline id head(struct builder *m, const char *name, id rows, id targets, id table)
{
    struct graph *g = m->g;
    const id outer = graph_scope_push(g, name, SCOPE_ROWS);
    id y = rows;
    if (maybe(m, 40)) y = activation(m, linear(m, y, m->C));
    if (maybe(m, 30)) y = op_add(g, rows, linear(m, y, m->C));
    y = table && maybe(m, 70) ? op_linear(g, y, table, 0) : linear(m, y, VOCABULARY);
    struct builder cap = *m;
    cap.dice.key = random_key(m->dice.key, "softcap"); /* its own dice: other seeds keep their graphs */
    if (maybe(&cap, 20)) y = op_softcap(g, y, 3);
    const id loss = op_xent(g, y, targets, NULL);
    graph_scope_pop(g, outer);
    return loss;
}

/* A head without a cross-entropy, as a mask head is: a row of zeros adds nothing. */
static inline id sum_head(struct builder *m, const char *name, id rows)
{
    const id outer = graph_scope_push(m->g, name, SCOPE_ROWS);
    const id loss =
        op_scale(m->g, op_sum(m->g, op_mul(m->g, rows, op_act(m->g, linear(m, rows, m->C), ACT_TANH))), 0.01);
    graph_scope_pop(m->g, outer);
    return loss;
}

/* The parts of one seed's model that do not depend on the split into micro-batches. */
struct random_model {
    uint64_t seed;
    bool f32;
};

static inline void freeze_some(struct builder *m)
{
    if (!maybe(m, 30)) return;
    for (uint32_t i = 0; i < m->g->params.n; i++) {
        const char *name = graph_name(m->g, tensor_at(m->g, m->g->params.at[i].tensor)->name);
        if (hash_bytes(name, strlen(name), m->dice.key) % 4 == 0 && m->g->params.n > 4)
            m->g->params.at[i].frozen = true;
    }
}

static inline void build_random(void *model, struct graph *g, int micro_batch)
{
    const struct random_model *x = model;
    struct builder m = {.g = g, .dice = {random_key(x->seed, "graph"), 0}, .B = micro_batch, .f32 = x->f32};
    m.rows = 2 + pick(&m, 3);
    m.columns = maybe(&m, 40) ? m.rows : 2 + pick(&m, 3);
    m.T = m.rows * m.columns;
    m.heads = 1 + pick(&m, 3);
    m.D = (int64_t[]){4, 8, 16, 3}[pick(&m, 4)];
    m.C = (int64_t[]){8, 16, 24, 12, 64, 20}[pick(&m, 6)];
    m.samples = op_samples(g, m.B);
    id table, h = stem(&m, &table);
    if (maybe(&m, 50)) h = op_add(g, h, weight(&m, DIM(m.T, m.C), 0.5));
    h = with_images(&m, x->seed, h);
    const int64_t first = 1 + pick(&m, 5), second = maybe(&m, 25) ? 1 + pick(&m, 3) : 0;
    for (int i = 0; i < first; i++) h = block(&m, h, "layers", i);
    for (int i = 0; i < second; i++) h = block(&m, h, "tower", i);
    if (maybe(&m, 70)) h = norm(&m, h);
    const id labels = op_shift_labels(g, graph_input(g, "labels", DT_I32, DIM(m.B, m.T)));
    const id targets = op_reshape(g, labels, 1, (int64_t[]){-1}), rows = op_reshape(g, h, 2, (int64_t[]){-1, m.C});
    id loss = head(&m, "head", rows, targets, table);
    struct builder other = m;
    other.dice = (struct dice){random_key(x->seed, "second head"), 0}; /* its own dice: other seeds keep their graphs */
    if (maybe(&other, 30)) loss = op_add(g, loss, op_scale(g, head(&other, "second_head", rows, targets, table), 0.5));
    if (maybe(&other, 30)) loss = op_add(g, loss, sum_head(&other, "sum_head", rows));
    for (int64_t i = pick(&m, 3); i > 0; i--) { /* more outputs, and more inputs to the loss */
        char name[16];
        snprintf(name, sizeof name, "extra%d", (int)i);
        const id y = m.skip[pick(&m, m.skips)],
                 extra = op_scale(g, op_sum(g, maybe(&m, 50) ? op_act(g, y, ACT_TANH) : op_mul(g, y, y)), 0.01);
        graph_output(g, name, extra);
        if (maybe(&m, 60)) loss = op_add(g, loss, extra);
    }
    graph_output(g, "loss", loss);
    freeze_some(&m);
}
