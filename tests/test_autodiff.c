/*
 * test_autodiff.c: differentiation and the passes around it, on random graphs.
 *
 * A generator draws a model from a seed: an embedding, a few blocks of layers, views, products and
 * residuals over a pool of tensors (so that tensors fan out, weights are shared and some results
 * are never used), a head of independent rows, and a loss. The same draw is built for any batch,
 * dtype and setting, with the same values, so the tests can compare:
 *
 *     gradient      with the slope of the loss along random directions, f64
 *     chunk         any number of head chunks: the same gradients
 *     accumulate    any split of the batch: the same gradients
 *     recompute     per block and selective, with reuse on or off: the same bits
 *     frozen        weights get no gradient, cost nothing, change no other gradient
 *
 * All random choices come from `pick`, a hash of seed and draw number; a failure prints the seed.
 */
#include "optest.h"

#include "passes/passes.h"

/* --- the generator ------------------------------------------------------------------------ */

enum { BATCH = 6, T = 3, HEADS = 2, D = 2, C = HEADS * D, POOL = 24 };

/* What a draw may contain. */
enum {
    MIXES_ROWS = 1, /* products over the whole batch, which cannot be split */
    HAS_LOSS_TERMS = 2, /* the loss has more terms than the head's */
};

struct draw {
    struct graph *g;
    enum dtype f;
    int64_t B;
    int may;
    uint64_t number, draws;
    id pool[POOL];
    int n;
    id table;
    int weights; /* number so far; a new weight may reuse an old one */
    int outer, block;
};

static uint64_t pick(struct draw *d, uint64_t below)
{
    return random_bits(random_key(seed, "draw") + d->number * 0x9E3779B97F4A7C15u, d->draws++) % below;
}

static id any(struct draw *d) { return d->pool[pick(d, (uint64_t)d->n)]; }

/* The newest tensor in three of four cases: chains, with an occasional long skip connection. */
static id recent(struct draw *d) { return pick(d, 4) ? d->pool[d->n - 1] : any(d); }

/* Weights are scaled down so that values keep magnitude 1 through many layers. */
static id weight(struct draw *d, int64_t rows, int64_t cols)
{
    char name[32];
    bool shared = d->weights && pick(d, 5) == 0;
    snprintf(name, sizeof name, "w%lld.%lld.%d", (long long)rows, (long long)cols,
             shared ? (int)pick(d, (uint64_t)d->weights) : d->weights++);
    return graph_param(d->g, name, d->f, cols ? 2 : 1, (int64_t[]){rows, cols}, (struct init){INIT_NORMAL, 1, 0});
}

static id vector(struct draw *d) { return weight(d, C, 0); }

static id linear(struct draw *d, id x, int64_t rows)
{
    int64_t cols = tensor_last(tensor_at(d->g, x));
    id w = weight(d, rows, cols), bias = pick(d, 2) ? weight(d, rows, 0) : 0;
    return op_scale(d->g, op_linear(d->g, x, w, bias), 0.5);
}

static id norm(struct draw *d, id x) { return op_rmsnorm(d->g, x, vector(d), 1e-2f); }

static id constant(struct draw *d, const char *name, int64_t n)
{
    double wide[16];
    char data[16 * sizeof(double)];
    for (int64_t i = 0; i < n; i++) wide[i] = pow(10, -(double)i / (double)n);
    dtype_convert(data, d->f == DT_F64 ? DT_F64 : DT_F32, wide, DT_F64, n);
    return graph_const(d->g, name, d->f == DT_F64 ? DT_F64 : DT_F32, 1, &n, data);
}

/* --- layers: each maps [B,T,C] to [B,T,C] --------------------------------------------------- */

static id draw_linear(struct draw *d) { return linear(d, recent(d), C); }
static id draw_norm(struct draw *d) { return norm(d, recent(d)); }
static id draw_add(struct draw *d) { id x = recent(d), y = any(d); return op_scale(d->g, op_add(d->g, x, y), 0.7); }
static id draw_residual(struct draw *d) { id x = recent(d); return op_add(d->g, x, linear(d, norm(d, x), C)); }
static id draw_mul(struct draw *d) { id x = norm(d, recent(d)), y = any(d); return op_mul(d->g, x, y); }
static id draw_square(struct draw *d) { id x = norm(d, recent(d)); return op_mul(d->g, x, x); }
static id draw_double(struct draw *d) { id x = recent(d); return op_scale(d->g, op_add(d->g, x, x), 0.5); }
static id draw_scale(struct draw *d) { return op_scale(d->g, recent(d), -0.8); }
static id draw_cast(struct draw *d) { return op_cast(d->g, recent(d), d->f); }
static id draw_copy(struct draw *d)
{
    id x = recent(d);
    return op_copy(d->g, x, pick(d, 2) ? SPACE_DEVICE : SPACE_HOST);
}

static id draw_gate(struct draw *d)
{
    id x = recent(d);
    if (pick(d, 3) == 0) return op_silu_gate(d->g, x, x);
    id gate = linear(d, x, 3), up = linear(d, any(d), 3);
    return linear(d, op_silu_gate(d->g, gate, up), C);
}

static id draw_reshape(struct draw *d)
{
    id flat = op_reshape(d->g, recent(d), DIM(-1, C / 2));
    return op_reshape(d->g, op_scale(d->g, flat, 1.1), DIM(d->B, T, C));
}

/* The same view twice, and its source a third time. */
static id draw_views(struct draw *d)
{
    id x = recent(d), a = op_reshape(d->g, x, DIM(-1, C)), b = op_reshape(d->g, x, DIM(-1, C));
    id y = op_reshape(d->g, op_mul(d->g, a, b), DIM(d->B, T, C));
    return norm(d, op_add(d->g, y, x));
}

/* Views of two tensors that share one gradient. */
static id draw_view_sum(struct draw *d)
{
    id a = op_reshape(d->g, recent(d), DIM(-1, C)), b = op_reshape(d->g, any(d), DIM(-1, C));
    return op_reshape(d->g, op_add(d->g, a, b), DIM(d->B, T, C));
}

/* Two overlapping slices of the last dimension, multiplied. */
static id draw_slices(struct draw *d)
{
    id x = recent(d);
    id a = op_slice(d->g, x, 2, 0, 3), b = op_slice(d->g, x, 2, (int64_t)pick(d, 2), 3);
    return linear(d, op_mul(d->g, op_copy(d->g, a, SPACE_DEVICE), b), C);
}

/* A weight that is read through a slice, and one that is used elementwise. */
static id draw_weight_views(struct draw *d)
{
    id whole = weight(d, C + 2, C), w = op_slice(d->g, whole, 0, (int64_t)pick(d, 3), C);
    id x = recent(d), product = op_mul(d->g, w, weight(d, C, C));
    return op_scale(d->g, op_linear(d->g, x, product, 0), 0.5);
}

/* Two weights with one gradient, which a third weight's gradient reads. */
static id draw_weight_sum(struct draw *d)
{
    id a = weight(d, C, C), b = weight(d, C, C), w = op_add(d->g, a, b);
    if (pick(d, 2)) w = op_add(d->g, w, op_scale(d->g, weight(d, C, C), 0.3));
    return op_scale(d->g, op_linear(d->g, recent(d), w, 0), 0.5);
}

/* A sum that is updated in place. */
static id draw_accumulate(struct draw *d)
{
    id acc = op_scale(d->g, recent(d), 0.6);
    return op_accumulate(d->g, any(d), acc);
}

static id heads(struct draw *d, id x, int64_t n) { return op_reshape(d->g, x, DIM(d->B, T, n, D)); }

static id draw_attention(struct draw *d)
{
    int64_t groups = pick(d, 2) ? HEADS : 1;
    bool causal = pick(d, 2);
    id x = norm(d, recent(d)), freq = constant(d, "inv_freq", D / 2);
    id q = op_rope(d->g, heads(d, linear(d, x, C), HEADS), freq, 1, false);
    id k = heads(d, linear(d, any(d), groups * D), groups);
    k = op_rope(d->g, k, freq, 0.9f, pick(d, 2));
    id v = heads(d, linear(d, x, groups * D), groups);
    return op_reshape(d->g, op_attention(d->g, q, k, v, 0.7f, causal), DIM(d->B, T, C));
}

/* x (x^T y) with every combination of transpose flags. */
static id draw_matmul(struct draw *d)
{
    if (!(d->may & MIXES_ROWS)) return draw_linear(d);
    id x = norm(d, recent(d)), y = any(d);
    bool tb = pick(d, 2);
    if (pick(d, 2)) x = op_reshape(d->g, x, DIM(-1, C)); /* otherwise the product flattens it itself */
    if (pick(d, 2)) y = op_reshape(d->g, y, DIM(-1, C));
    id inner = tb ? op_matmul(d->g, y, x, true, false, d->f) : op_matmul(d->g, x, y, true, false, d->f); /* [C,C] */
    id first = weight(d, 3, C), second = weight(d, C, 3);
    id w = op_matmul(d->g, first, second, true, true, d->f); /* [C,C] */
    id z = op_matmul(d->g, x, op_add(d->g, inner, w), false, tb, d->f);
    return op_reshape(d->g, op_scale(d->g, z, 0.1), DIM(d->B, T, C));
}

static id draw_layernorm(struct draw *d)
{
    id x = recent(d), w = vector(d);
    return op_layernorm(d->g, x, w, vector(d), 1e-1f);
}

/* RELU has a kink, which finite differences may step over. */
static id draw_act(struct draw *d)
{
    static const enum act_kind SMOOTH[] = {ACT_GELU, ACT_GELU_TANH, ACT_QUICK_GELU, ACT_SIGMOID, ACT_SILU, ACT_TANH};
    id x = recent(d);
    return op_act(d->g, x, SMOOTH[pick(d, COUNT(SMOOTH))]);
}

static id draw_softmax(struct draw *d) { id x = op_softmax(d->g, recent(d)), y = any(d); return op_mul(d->g, x, y); }

static id draw_mlp(struct draw *d)
{
    id x = recent(d);
    static const enum act_kind KINDS[] = {ACT_GELU, ACT_RELU, ACT_SILU};
    id normed = norm(d, x), w = weight(d, 3, C), bias = pick(d, 2) ? weight(d, 3, 0) : 0;
    id z = op_linear(d->g, normed, w, bias);
    return op_add(d->g, x, linear(d, op_act(d->g, z, KINDS[pick(d, COUNT(KINDS))]), C));
}

static id draw_dropout(struct draw *d)
{
    id samples = op_samples(d->g, d->B);
    bool elements = pick(d, 3);
    id x = recent(d);
    return elements ? op_dropout(d->g, x, samples, 0.3f) : op_drop_path(d->g, x, samples, 0.3f);
}

/* Weights broadcast over samples, positions or columns; one position of a tensor broadcast over
 * all. */
static id draw_broadcast(struct draw *d)
{
    id x = norm(d, recent(d));
    switch (pick(d, 5)) {
    case 0: return op_scale(d->g, op_add(d->g, x, weight(d, T, C)), 0.7);
    case 1: return op_mul(d->g, vector(d), x);
    case 2: {
        id y = any(d);
        return op_mul(d->g, x, op_slice(d->g, y, 1, (int64_t)pick(d, T), 1));
    }
    case 3: return op_mul(d->g, x, weight(d, T, 1));
    default: return op_scale(d->g, op_add(d->g, x, op_copy(d->g, op_slice(d->g, any(d), 1, 0, 1), SPACE_DEVICE)), 0.7);
    }
}

/* Returns a strided view for later layers; its source has other readers, too. */
static id draw_permute(struct draw *d)
{
    const int swap[] = {0, 2, 1};
    id across = op_scale(d->g, op_permute(d->g, recent(d), swap), 0.9); // [B,C,T]
    return op_permute(d->g, across, swap);
}

/* The same through a dense copy, to which a sum returns through the views. */
static id draw_transposed(struct draw *d)
{
    const int swap[] = {2, 0, 1}, back[] = {1, 2, 0};
    id x = recent(d), across = op_dense(d->g, op_permute(d->g, x, swap)); // [C,B,T]
    return op_add(d->g, op_dense(d->g, op_permute(d->g, across, back)), x);
}

/* A weight that is used both transposed and not transposed. */
static id draw_weight_transposed(struct draw *d)
{
    id w = weight(d, C, C), turned = op_dense(d->g, op_permute(d->g, w, (int[]){1, 0}));
    return op_scale(d->g, op_linear(d->g, op_linear(d->g, recent(d), turned, 0), w, 0), 0.3);
}

/* Slices of two tensors side by side, or a weight's rows before a tensor's. */
static id draw_concat(struct draw *d)
{
    id x = recent(d), left = op_slice(d->g, x, 2, 0, C / 2), right = op_slice(d->g, any(d), 2, C / 2, C / 2);
    if (pick(d, 2)) return op_concat(d->g, (id[]){left, right}, 2, 2);
    id first = weight(d, 1, C), rest = weight(d, C - 1, C), w = op_concat(d->g, (id[]){first, rest}, 2, 0);
    return op_scale(d->g, op_linear(d->g, x, w, 0), 0.5);
}

static id draw_pad(struct draw *d)
{
    id x = recent(d), wide = op_pad(d->g, x, (int64_t[]){0, 1, 0}, (int64_t[]){0, 0, 1}); // [B,T+1,C+1]
    return op_add(d->g, op_dense(d->g, op_slice(d->g, op_slice(d->g, wide, 1, 0, T), 2, 1, C)), x);
}

/* Tokens by index, some of them twice and some out of range. */
static id draw_gather(struct draw *d)
{
    id ids = graph_input(d->g, "ids", DT_I32, DIM(d->B, T)), x = recent(d), many[] = {x, any(d), x};
    return op_add(d->g, op_gather(d->g, op_concat(d->g, many, 3, 1), ids), x);
}

static id (*const layers[])(struct draw *) = {
    draw_linear,
    draw_norm,
    draw_add,
    draw_residual,
    draw_mul,
    draw_square,
    draw_double,
    draw_scale,
    draw_cast,
    draw_copy,
    draw_gate,
    draw_reshape,
    draw_views,
    draw_view_sum,
    draw_slices,
    draw_weight_views,
    draw_weight_sum,
    draw_accumulate,
    draw_attention,
    draw_matmul,
    draw_residual,
    draw_attention,
    draw_layernorm,
    draw_act,
    draw_mlp,
    draw_broadcast,
    draw_softmax,
    draw_dropout,
    draw_permute,
    draw_transposed,
    draw_weight_transposed,
    draw_concat,
    draw_pad,
    draw_gather,
};

/* Accumulation ends the life of a tensor: its other names must leave the pool. Only fresh tensors
 * are accumulated into, so keeping the returned tensor is enough. */
static void add_layer(struct draw *d)
{
    id x = layers[pick(d, COUNT(layers))](d);
    if (d->n < POOL) d->pool[d->n++] = x;
    else d->pool[pick(d, POOL)] = x;
}

/* A head of independent rows; the ops before the loss are random, too. */
static id head(struct draw *d, id x)
{
    struct graph *g = d->g;
    uint64_t kind = pick(d, 7);
    id rows = op_reshape(g, x, DIM(-1, C)), second = op_reshape(g, any(d), DIM(-1, C));
    id labels = graph_input(g, "labels", DT_I32, DIM(d->B, T));
    id targets = op_reshape(g, op_shift_labels(g, labels), DIM(-1));
    id w = pick(d, 2) ? d->table : graph_param(g, "head", d->f, DIM(VOCABULARY, C), (struct init){INIT_NORMAL, 1, 0});
    id v = weight(d, C, 0), u = weight(d, C, C);
    if (kind == 6) { /* rows that are columns in storage */
        id turned = op_scale(g, op_permute(g, rows, (int[]){1, 0}), 1.1);
        rows = op_permute(g, turned, (int[]){1, 0});
    }
    id outer = graph_scope_push(g, "head", SCOPE_ROWS);
    if (kind == 1) rows = op_rmsnorm(g, rows, v, 1e-2f);
    if (kind == 2) rows = op_add(g, rows, op_linear(g, rows, u, 0)); /* a residual: the slice has two readers */
    if (kind == 3) rows = op_add(g, rows, second);                   /* two slices share a gradient */
    if (kind == 4) rows = op_mul(g, rows, second);
    if (kind == 5) { /* slices along the columns, beside the whole row */
        id half = op_copy(g, op_slice(g, rows, 1, 1, C / 2), SPACE_DEVICE);
        rows = op_add(g, rows, op_linear(g, half, weight(d, C, C / 2), 0));
    }
    id logits = op_linear(g, rows, w, 0);
    id loss = op_xent(g, logits, targets, NULL);
    graph_scope_pop(g, outer);
    return loss;
}

static id weighted_sum(struct draw *d, id x)
{
    id weights = graph_input(d->g, "weights", d->f, DIM(d->B, T, C));
    return op_sum(d->g, op_mul(d->g, x, weights));
}

/* Builds draw `number` for a batch of B. */
static void build(struct graph *g, uint64_t number, enum dtype f, int64_t B, int may)
{
    struct draw d = {.g = g, .f = f, .B = B, .may = may, .number = number};
    id ids = graph_input(g, "ids", DT_I32, DIM(B, T));
    d.table = graph_param(g, "table", f, DIM(VOCABULARY, C), (struct init){INIT_NORMAL, 1, 0});
    d.pool[d.n++] = op_embedding(g, ids, d.table);
    for (int blocks = 1 + (int)pick(&d, 3), b = 0; b < blocks; b++) {
        char name[32];
        snprintf(name, sizeof name, "block%d", b);
        id outer = graph_scope_push(g, name, SCOPE_BLOCK);
        for (int n = 1 + (int)pick(&d, 4); n > 0; n--) add_layer(&d);
        graph_scope_pop(g, outer);
    }
    id x = norm(&d, d.pool[d.n - 1]), loss = head(&d, x);
    if (may & HAS_LOSS_TERMS && pick(&d, 2)) {
        id scaled = op_scale(g, loss, 0.9), term = weighted_sum(&d, any(&d));
        loss = op_add(g, scaled, term);
    }
    graph_output(g, "loss", loss);
}

/* --- compiling -------------------------------------------------------------------------------- */

struct variant {
    uint64_t number;
    enum dtype f;
    int may;
    int micro_batch, chunks;
    enum recompute_kind recompute;
    bool reuse, fuse;
};

static void run_pass(struct graph *g, const char *name, pass_fn *pass, const struct settings *s)
{
    pass(g, s);
    graph_verify(g, name);
}

static void make(struct rig *r, const struct variant *m, enum device_kind kind)
{
    struct graph *g = &r->graph;
    struct settings s = {.micro_batch = m->micro_batch,
                         .accumulation = BATCH / m->micro_batch,
                         .precision = PRECISION_F32,
                         .recompute = {m->recompute},
                         .head_chunks = m->chunks};
    memset(r, 0, sizeof *r);
    graph_init(g);
    build(g, m->number, m->f, m->micro_batch, m->may);
    graph_prune(g, PROGRAM_STEP);
    graph_verify(g, "build");
    struct settings all = s;
    all.forward = m->number % 8 > 1; /* every variant, not only those that pay off with a backward */
    if (m->fuse) run_pass(g, "fuse", pass_fuse, &all);
    run_pass(g, "chunk", pass_chunk, &s);
    run_pass(g, "differentiate", pass_differentiate, &s);
    run_pass(g, "join", pass_join, &s);
    run_pass(g, "accumulate", pass_accumulate, &s);
    run_pass(g, "recompute", pass_recompute, &s);
    run_pass(g, "selective", pass_selective, &s);
    if (m->fuse) run_pass(g, "trim", pass_trim, &s);
    run_pass(g, "handover", pass_handover, &s);
    if (m->reuse) run_pass(g, "reuse", pass_reuse, &s);
    rig_open(r, kind);
    for (uint32_t i = 0; i < g->params.n; i++) /* gradients of weights are never narrower than f32 */
        if (g->params.at[i].grad)
            assert_int_equal(tensor_at(g, g->params.at[i].grad)->dtype, m->f == DT_F64 ? DT_F64 : DT_F32);
}

static struct variant plain(uint64_t number)
{
    return (struct variant){.number = number, .f = DT_F64, .micro_batch = BATCH, .chunks = 1};
}

/* --- gradients ------------------------------------------------------------------------------- */

TEST(test_slopes)
{
    for (uint64_t number = 0; number < 400; number++) {
        struct variant m = plain(number);
        m.micro_batch = BATCH;
        m.may = MIXES_ROWS | HAS_LOSS_TERMS;
        struct rig r;
        make(&r, &m, DEVICE_REF);
        for (int i = 0; i < 2; i++) {
            struct slope s = rig_slope(&r, i ? "first" : "second");
            if (!(fabs(s.difference - s.product) <= 1e-6 * (s.size + 1e-3)))
                fail_msg("draw %llu, seed %llu: the slope is %.12g, the gradient gives %.12g",
                         (unsigned long long)number, (unsigned long long)seed, s.difference, s.product);
        }
        rig_close(&r);
    }
}

/* --- the same gradients ---------------------------------------------------------------------- */

static double norm_of(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* The norm of all gradients together. */
static double gradient_size(const struct rig *r)
{
    double sum = 0;
    for (uint32_t i = 0; i < r->graph.params.n; i++) {
        if (!r->graph.params.at[i].grad) continue;
        double *x = rig_read(r, r->graph.params.at[i].grad);
        sum += pow(norm_of(x, tensor_elements(tensor_at(&r->graph, r->graph.params.at[i].grad))), 2);
        mem_free(x);
    }
    return sqrt(sum);
}

/* Compares loss and all gradients. The bound is relative to the norm of all gradients, because
 * rounding is relative to the values that flow, and some gradients cancel (a bias before a softmax
 * has gradient 0). 0: bit-equal. */
static void compare(const struct rig *a, const struct rig *b, double allowed, const struct variant *m, const char *what)
{
    char text[200];
    snprintf(text, sizeof text, "draw %llu, seed %llu, %s, %s: micro-batch %d, %d chunks",
             (unsigned long long)m->number, (unsigned long long)seed, what, dtype_name(m->f), m->micro_batch,
             m->chunks);
    if (!(fabs(rig_loss(a) - rig_loss(b)) <= allowed * fmax(1, fabs(rig_loss(b)))))
        fail_msg("%s: the loss is %.17g, it was %.17g", text, rig_loss(a), rig_loss(b));
    double size = gradient_size(b);
    for (uint32_t i = 0; i < b->graph.params.n; i++) {
        const struct param *q = &b->graph.params.at[i], *p = rig_param(a, name_of(b, q->tensor));
        assert_non_null(p);
        if (!p->grad != !q->grad) fail_msg("%s: %s has a gradient in one of the two", text, name_of(b, q->tensor));
        if (!p->grad) continue;
        int64_t n = tensor_elements(tensor_at(&a->graph, p->grad));
        double *x = rig_read(a, p->grad), *y = rig_read(b, q->grad);
        for (int64_t k = 0; k < n; k++) x[k] -= y[k];
        if (!(norm_of(x, n) <= allowed * size))
            fail_msg("%s: the gradient of %s differs by %.3g of %.3g", text, name_of(b, q->tensor),
                     norm_of(x, n) / size, size);
        mem_free(x);
        mem_free(y);
    }
}

/* Runs a draw with plain settings and with other settings, and compares. */
static void check_same(const struct variant *m, enum device_kind kind, double allowed, const char *what)
{
    struct variant p = plain(m->number);
    struct rig a, b;
    p.f = m->f;
    p.may = m->may;
    make(&a, m, kind);
    make(&b, &p, kind);
    rig_run(&a);
    rig_run(&b);
    compare(&a, &b, allowed, m, what);
    rig_close(&a);
    rig_close(&b);
}

/* Sums have other lengths, so rounding differs: a few eps per term. */
static double rounding(enum dtype f) { return 64 * dtype_table[f].epsilon * sqrt(BATCH * T); }

TEST(test_chunks)
{
    static const int CHUNKS[] = {2, 3, 4, 5, 7, 18, 100}; /* of 18 rows: even, ragged, one row each, more than rows */
    for (uint64_t number = 0; number < 60; number++)
        for (size_t i = 0; i < COUNT(CHUNKS); i++) {
            struct variant m = plain(number);
            m.chunks = CHUNKS[i];
            m.f = number % 4 ? DT_F64 : DT_F32;
            m.may = HAS_LOSS_TERMS | MIXES_ROWS;
            m.reuse = number % 2;
            check_same(&m, m.f == DT_F64 ? DEVICE_REF : DEVICE_CPU, rounding(m.f), "chunk");
        }
}

TEST(test_accumulation)
{
    static const int MICRO[] = {1, 2, 3};
    for (uint64_t number = 0; number < 60; number++)
        for (size_t i = 0; i < COUNT(MICRO); i++) {
            struct variant m = plain(number);
            m.micro_batch = MICRO[i];
            m.chunks = number % 3 ? 1 : 2;
            m.f = number % 4 ? DT_F64 : DT_F32;
            m.may = HAS_LOSS_TERMS;
            m.reuse = number % 2;
            check_same(&m, m.f == DT_F64 ? DEVICE_REF : DEVICE_CPU, rounding(m.f), "accumulate");
        }
}

/* With block recompute a block's backward reads no result of the block's original forward, so none
 * is kept. */
static void check_recomputed(const struct graph *g, uint64_t number)
{
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        id block = graph_block_of(g, n->scope);
        for (int i = 0; i < n->nin && block && n->phase == PHASE_BACKWARD; i++) {
            const struct node *m = node_at(g, tensor_at(g, n->in[i])->node);
            if (m->phase == PHASE_FORWARD && graph_block_of(g, m->scope) == block)
                fail_msg("draw %llu, seed %llu: %s in the backward of its block reads the forward's %s",
                         (unsigned long long)number, (unsigned long long)seed, op_table[n->op].name,
                         op_table[m->op].name);
        }
    }
}

TEST(test_recompute)
{
    for (uint64_t number = 0; number < 80; number++) {
        struct variant m = plain(number);
        m.recompute = RECOMPUTE_ALL;
        m.reuse = number % 2;
        m.may = HAS_LOSS_TERMS | MIXES_ROWS;
        m.f = number % 4 ? DT_F32 : DT_F64;
        check_same(&m, m.f == DT_F64 ? DEVICE_REF : DEVICE_CPU, 0, "recompute");
        struct rig r;
        make(&r, &m, DEVICE_REF);
        check_recomputed(&r.graph, number);
        rig_close(&r);
    }
}

/* Nodes of the step that are recomputations. */
static uint32_t count_recomputed(const struct graph *g)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++)
        n += node_at(g, g->order[PROGRAM_STEP].nodes.at[k])->phase == PHASE_RECOMPUTE;
    return n;
}

/* Most graphs recompute something, never a matrix product, and no bit changes. */
TEST(test_selective)
{
    uint32_t some = 0;
    for (uint64_t number = 0; number < 80; number++) {
        struct variant m = plain(number);
        m.recompute = RECOMPUTE_SELECTIVE;
        m.reuse = number % 2;
        m.may = HAS_LOSS_TERMS | MIXES_ROWS;
        m.f = number % 4 ? DT_F32 : DT_F64;
        check_same(&m, m.f == DT_F64 ? DEVICE_REF : DEVICE_CPU, 0, "selective");
        struct rig r;
        make(&r, &m, DEVICE_REF);
        some += count_recomputed(&r.graph) > 0;
        for (uint32_t k = 0; k < r.graph.order[PROGRAM_STEP].nodes.n; k++) {
            const struct node *n = node_at(&r.graph, r.graph.order[PROGRAM_STEP].nodes.at[k]);
            assert_false(n->phase == PHASE_RECOMPUTE &&
                         (n->op == OP_LINEAR || n->op == OP_MATMUL || n->op == OP_ATTENTION));
        }
        rig_close(&r);
    }
    assert_true(some > 40);
}

/* Nodes of the step with this op and this number of results. */
static uint32_t count_op(const struct graph *g, enum op op, int results)
{
    uint32_t count = 0;
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        int have = 0;
        for (int o = 0; o < n->nout; o++) have += n->out[o] != 0;
        count += n->op == op && have == results;
    }
    return count;
}

/* Epilogues change no bit, for any recomputation; products with and without z are among them. */
TEST(test_fuse)
{
    uint32_t both = 0, alone = 0;
    for (uint64_t number = 0; number < 120; number++) {
        struct variant m = plain(number);
        m.fuse = true;
        m.recompute = (enum recompute_kind)(number % 3);
        m.reuse = number % 2;
        m.may = HAS_LOSS_TERMS | MIXES_ROWS;
        m.f = number % 4 ? DT_F32 : DT_F64;
        check_same(&m, m.f == DT_F64 ? DEVICE_REF : DEVICE_CPU, 0, "fuse");
        struct rig r;
        make(&r, &m, DEVICE_REF);
        both += count_op(&r.graph, OP_LINEAR_ACT, 2);
        alone += count_op(&r.graph, OP_LINEAR_ACT, 1);
        rig_close(&r);
    }
    assert_true(both > 5 && alone > 5);
}

TEST(test_reuse)
{
    for (uint64_t number = 0; number < 80; number++) {
        struct variant m = plain(number);
        m.reuse = true;
        m.may = HAS_LOSS_TERMS | MIXES_ROWS;
        m.f = number % 4 == 0 ? DT_F64 : number % 4 == 1 ? DT_BF16 : DT_F32;
        check_same(&m, m.f == DT_F64 ? DEVICE_REF : DEVICE_CPU, 0, "reuse");
    }
}

/* All techniques at once: nested loops, recomputed blocks, reused bytes. */
TEST(test_together)
{
    for (uint64_t number = 0; number < 60; number++) {
        struct variant m = plain(number);
        m.micro_batch = 1 + (int)(number % 3);
        m.chunks = 2 + (int)(number % 5);
        m.recompute = number % 2 ? RECOMPUTE_ALL : RECOMPUTE_SELECTIVE;
        m.reuse = true;
        m.may = HAS_LOSS_TERMS;
        m.f = number % 4 ? DT_F64 : DT_F32;
        check_same(&m, m.f == DT_F64 ? DEVICE_REF : DEVICE_CPU, rounding(m.f), "together");
    }
}

/* --- loops that a model contains ------------------------------------------------------------- */

enum { ROUNDS = 3 };

/* One round on h [B,M,C]: the mean square of a layer, times the round's number. */
static id round_loss(struct graph *g, id h, id w, id number)
{
    id y = op_linear(g, h, w, 0);
    return op_sum(g, op_mul(g, op_mul(g, y, y), number));
}

/* Sum over the rounds: in a loop that counts them in a carried scalar, or unrolled. */
static id rounds(struct graph *g, id h, id w, bool looped)
{
    id sum = op_fill(g, DT_F64, 0, NULL, 0), number = op_fill(g, DT_F64, 0, NULL, 0);
    if (looped) g->at.loop = graph_loop(g, "rounds", ROUNDS);
    for (int k = 0; k < (looped ? 1 : ROUNDS); k++) {
        number = op_accumulate(g, op_fill(g, DT_F64, 0, NULL, 1), number);
        id now = op_copy(g, number, SPACE_DEVICE);
        sum = op_accumulate(g, round_loss(g, h, w, now), sum);
    }
    g->at.loop = 0;
    return sum;
}

/* B embeddings and B x M prompts, added, then rounds; split into chunks; and a second use of the
 * embeddings outside, so that their gradient has terms from everywhere. */
static void build_rounds(struct rig *r, int64_t B, int64_t M, bool looped, int chunks)
{
    struct graph *g = &r->graph;
    struct init normal = {INIT_NORMAL, 1, 0};
    memset(r, 0, sizeof *r);
    graph_init(g);
    id w = graph_param(g, "w", DT_F64, DIM(C, C), normal), v = graph_param(g, "v", DT_F64, DIM(C, C), normal);
    /* The rows are the inputs that come from the batch. */
    id images = graph_param(g, "images", DT_F64, DIM(B, C), normal),
       of_images = graph_input(g, "of_images", DT_F64, DIM(B, C));
    images = op_mul(g, images, of_images);
    id prompts = graph_param(g, "prompts", DT_F64, DIM(B * M, C), normal),
       of_prompts = graph_input(g, "of_prompts", DT_F64, DIM(B * M, C));
    prompts = op_mul(g, prompts, of_prompts);
    images = op_linear(g, images, v, 0);
    id outer = graph_scope_push(g, "decoder", SCOPE_ROWS);
    id rows = op_reshape(g, prompts, DIM(B, M, C)), row = op_reshape(g, images, DIM(B, 1, C)), h = op_add(g, rows, row);
    id loss = rounds(g, h, w, looped);
    graph_scope_pop(g, outer);
    graph_output(g, "loss", op_add(g, loss, op_sum(g, op_scale(g, images, 3))));
    graph_verify(g, "build");
    pass_chunk(g, &(struct settings){.head_chunks = chunks});
    graph_verify(g, "chunk");
    assert_int_equal(g->loops.n - 1, looped + (chunks > 1));
    graph_differentiate(g, PROGRAM_STEP, rig_loss_tensor(r));
    graph_verify(g, "differentiate");
    rig_open(r, DEVICE_REF);
    rig_run(r);
}

static void check_rounds(int64_t B, int64_t M, int chunks)
{
    struct rig plain, looped;
    build_rounds(&plain, B, M, false, 1);
    build_rounds(&looped, B, M, true, chunks);
    assert_true(fabs(rig_loss(&plain) - rig_loss(&looped)) < 1e-9 * fabs(rig_loss(&plain)));
    for (uint32_t i = 0; i < plain.graph.params.n; i++) {
        const struct param *p = &plain.graph.params.at[i];
        double *want = rig_read(&plain, p->grad), *have = rig_read(&looped, looped.graph.params.at[i].grad);
        for (int64_t k = 0; k < tensor_elements(tensor_at(&plain.graph, p->tensor)); k++)
            if (!(fabs(want[k] - have[k]) < 1e-9 * (1 + fabs(want[k]))))
                fail_msg("B %d, M %d, %d chunks: gradient of %s at %d is %g, not %g", (int)B, (int)M, chunks,
                         name_of(&plain, p->tensor), (int)k, have[k], want[k]);
        mem_free(want);
        mem_free(have);
    }
    rig_close(&plain);
    rig_close(&looped);
}

/* Rounds inside chunks: chunks of one image's prompts, and of whole images; even and ragged. */
TEST(test_rounds)
{
    for (int chunks = 1; chunks < 6; chunks++) {
        check_rounds(1, 6, chunks);
        check_rounds(3, 2, chunks);
        check_rounds(4, 3, chunks);
    }
}

/* Two heads over the same rows, each a row-wise scope: a loop of chunks each. */
static void build_heads(struct rig *r, int64_t B, int chunks)
{
    struct graph *g = &r->graph;
    struct init normal = {INIT_NORMAL, 1, 0};
    memset(r, 0, sizeof *r);
    graph_init(g);
    id w = graph_param(g, "w", DT_F64, DIM(C, C), normal), v = graph_param(g, "v", DT_F64, DIM(2 * C, C), normal);
    id x = op_mul(g, graph_param(g, "x", DT_F64, DIM(B, C), normal), graph_input(g, "of_x", DT_F64, DIM(B, C)));
    id outer = graph_scope_push(g, "lm_head", SCOPE_ROWS);
    id first = op_linear(g, x, w, 0);
    first = op_sum(g, op_mul(g, first, first));
    graph_scope_pop(g, outer);
    outer = graph_scope_push(g, "mask_head", SCOPE_ROWS);
    id second = op_linear(g, x, v, 0);
    second = op_sum(g, op_mul(g, second, op_mul(g, second, second)));
    graph_scope_pop(g, outer);
    graph_output(g, "loss", op_add(g, first, second));
    graph_verify(g, "build");
    pass_chunk(g, &(struct settings){.head_chunks = chunks});
    graph_verify(g, "chunk");
    assert_int_equal(g->loops.n - 1, chunks > 1 ? 2 : 0);
    graph_differentiate(g, PROGRAM_STEP, rig_loss_tensor(r));
    graph_verify(g, "differentiate");
    rig_open(r, DEVICE_REF);
    rig_run(r);
}

TEST(test_two_heads)
{
    for (int chunks = 2; chunks < 6; chunks++) {
        struct rig plain, split;
        build_heads(&plain, 6, 1);
        build_heads(&split, 6, chunks);
        assert_true(fabs(rig_loss(&plain) - rig_loss(&split)) < 1e-9 * fabs(rig_loss(&plain)));
        for (uint32_t i = 0; i < plain.graph.params.n; i++) {
            const struct param *p = &plain.graph.params.at[i];
            double *want = rig_read(&plain, p->grad), *have = rig_read(&split, split.graph.params.at[i].grad);
            for (int64_t k = 0; k < tensor_elements(tensor_at(&plain.graph, p->tensor)); k++)
                if (!(fabs(want[k] - have[k]) < 1e-9 * (1 + fabs(want[k]))))
                    fail_msg("%d chunks: gradient of %s at %d is %g, not %g", chunks, name_of(&plain, p->tensor),
                             (int)k, have[k], want[k]);
            mem_free(want);
            mem_free(have);
        }
        rig_close(&plain);
        rig_close(&split);
    }
}

/* --- parameters without a gradient ----------------------------------------------------------- */

static bool is_frozen(const struct graph *g, uint32_t param, uint64_t number, uint64_t one_in)
{
    const char *name = graph_name(g, tensor_at(g, g->params.at[param].tensor)->name);
    return random_bits(random_key(seed, name), number) % one_in == 0;
}

/* Builds and differentiates a draw with one in `one_in` weights frozen; 0: none. */
static void make_frozen(struct rig *r, uint64_t number, uint64_t one_in)
{
    struct graph *g = &r->graph;
    memset(r, 0, sizeof *r);
    graph_init(g);
    build(g, number, DT_F64, 2, MIXES_ROWS | HAS_LOSS_TERMS);
    graph_prune(g, PROGRAM_STEP);
    uint32_t forward = g->order[PROGRAM_STEP].nodes.n;
    for (uint32_t i = 0; i < g->params.n; i++) g->params.at[i].frozen |= one_in && is_frozen(g, i, number, one_in);
    graph_differentiate(g, PROGRAM_STEP, rig_loss_tensor(r));
    graph_verify(g, "differentiate");
    /* No node was emitted for a frozen weight: every node leads to some gradient. */
    uint32_t all = g->order[PROGRAM_STEP].nodes.n;
    graph_prune(g, PROGRAM_STEP);
    uint32_t kept = g->order[PROGRAM_STEP].nodes.n;
    if (kept != all && kept != forward)
        fail_msg("draw %llu, seed %llu: %u nodes of the backward lead nowhere", (unsigned long long)number,
                 (unsigned long long)seed, all - kept);
    rig_open(r, DEVICE_REF);
    rig_run(r);
}

TEST(test_frozen)
{
    for (uint64_t number = 0; number < 60; number++) {
        struct rig some, none;
        make_frozen(&some, number, number % 4 + 1); /* 1: all of them */
        make_frozen(&none, number, 0);
        for (uint32_t i = 0; i < none.graph.params.n; i++) {
            const struct param *p = &some.graph.params.at[i], *q = &none.graph.params.at[i];
            if (p->frozen) assert_int_equal(p->grad, 0);
            else assert_int_equal(!p->grad, !q->grad);
            if (!p->grad) continue;
            double *x = rig_read(&some, p->grad), *y = rig_read(&none, q->grad);
            if (memcmp(x, y, (size_t)tensor_elements(tensor_at(&none.graph, q->grad)) * sizeof *x))
                fail_msg("draw %llu, seed %llu: freezing others changed the gradient of %s", (unsigned long long)number,
                         (unsigned long long)seed, name_of(&none, q->tensor));
            mem_free(x);
            mem_free(y);
        }
        rig_close(&some);
        rig_close(&none);
    }
}

/* A weight without a reader, and one whose result has no reader: no gradient, no node. */
TEST(test_unreached)
{
    struct rig r = {0};
    struct graph *g = &r.graph;
    graph_init(g);
    id a = graph_param(g, "a", DT_F64, DIM(3, 2), (struct init){0}),
       b = graph_param(g, "b", DT_F64, DIM(3, 2), (struct init){0});
    id unused = graph_param(g, "unused", DT_F64, DIM(5), (struct init){0});
    op_sum(g, op_mul(g, a, b));
    graph_output(g, "loss", op_sum(g, op_scale(g, a, 2)));
    graph_differentiate(g, PROGRAM_STEP, rig_loss_tensor(&r));
    graph_verify(g, "differentiate");
    assert_int_equal(graph_param_of(g, unused)->grad, 0);
    assert_int_equal(graph_param_of(g, b)->grad, 0);
    for (uint32_t k = 0; k < g->order[PROGRAM_STEP].nodes.n; k++) {
        const struct node *n = node_at(g, g->order[PROGRAM_STEP].nodes.at[k]);
        assert_true(n->phase != PHASE_BACKWARD || n->op != OP_MUL);
    }
    rig_open(&r, DEVICE_REF);
    rig_run(&r);
    double *grad = rig_read(&r, graph_param_of(&r.graph, a)->grad);
    for (int i = 0; i < 6; i++) assert_true(grad[i] == 2);
    mem_free(grad);
    rig_close(&r);
}

/* The builder's means: their values, and their gradients, 1/n and 2x/n. */
TEST(test_means)
{
    for (int square = 0; square < 2; square++) {
        struct rig r = {0};
        graph_init(&r.graph);
        id x = graph_param(&r.graph, "x", DT_F64, DIM(3, 2), (struct init){INIT_NORMAL, 1, 0});
        id sum = op_sum(&r.graph, square ? op_mul(&r.graph, x, x) : x);
        graph_output(&r.graph, "loss", op_scale(&r.graph, sum, 1.0 / (double)tensor_elements(tensor_at(&r.graph, x))));
        graph_differentiate(&r.graph, PROGRAM_STEP, rig_loss_tensor(&r));
        rig_open(&r, DEVICE_REF);
        rig_run(&r);
        double *v = rig_read(&r, x), *grad = rig_read(&r, graph_param_of(&r.graph, x)->grad), want = 0;
        for (int i = 0; i < 6; i++) {
            want += (square ? v[i] * v[i] : v[i]) / 6;
            assert_true(fabs(grad[i] - (square ? 2 * v[i] : 1) / 6) < 1e-15);
        }
        assert_true(fabs(rig_loss(&r) - want) < 1e-15);
        mem_free(v);
        mem_free(grad);
        rig_close(&r);
    }
}

/* --- graphs that autodiff rejects ------------------------------------------------------------ */

static void expect_refusal(struct graph *g, const char *word)
{
    struct error e;
    assert_int_equal(graph_error(g, &e), PL_USAGE);
    if (!strstr(e.text, word)) fail_msg("\"%s\" is not in: %s", word, e.text);
    graph_free(g);
}

/* The gradient of a product with the loop's sum needs the sum before the loop ends. This also holds
 * when the sum has a second path to the loss that needs no value. */
static void check_loop_exit(bool two_paths)
{
    struct graph g;
    graph_init(&g);
    id x = graph_param(&g, "x", DT_F64, DIM(6, C), (struct init){0}),
       given = graph_input(&g, "given", DT_F64, DIM(6, C));
    x = op_mul(&g, x, given);
    id w = graph_param(&g, "w", DT_F64, DIM(C, C), (struct init){0});
    id outer = graph_scope_push(&g, "head", SCOPE_ROWS);
    id sum = op_sum(&g, op_linear(&g, x, w, 0));
    graph_scope_pop(&g, outer);
    id half = op_scale(&g, sum, 0.5), square = op_mul(&g, half, half);
    graph_output(&g, "loss", two_paths ? op_add(&g, half, square) : square);
    pass_chunk(&g, &(struct settings){.head_chunks = 2});
    graph_verify(&g, "chunk");
    graph_differentiate(&g, PROGRAM_STEP, graph_find_output(&g, PROGRAM_STEP, "loss"));
    expect_refusal(&g, "leaves a loop");
}

TEST(test_loop_exit_refused)
{
    check_loop_exit(false);
    check_loop_exit(true);
}

TEST(test_statistic_refused)
{
    struct graph g;
    graph_init(&g);
    id x = graph_param(&g, "x", DT_F64, DIM(2, C), (struct init){0}),
       w = graph_param(&g, "w", DT_F64, DIM(C), (struct init){0});
    id n = graph_emit(&g, OP_RMSNORM, NULL, (id[]){x, w}, 2);
    id first = op_sum(&g, node_at(&g, n)->out[0]), second = op_sum(&g, node_at(&g, n)->out[1]);
    id loss = op_add(&g, first, second);
    graph_differentiate(&g, PROGRAM_STEP, loss);
    expect_refusal(&g, "no gradient flows");
}

MAIN(NULL, NULL)
