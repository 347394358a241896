/*
 * elementwise.c: elementwise kernels with broadcasting; SUM_TO, which sums over the broadcast
 * dimensions, and SUM; DROPOUT and DEQUANTIZE, with their references.
 *
 * Each is a loop over tiles that threads share, so no result depends on the thread count. The inner
 * functions work on f32 tiles, for any storage dtype. Every element is read before it is written:
 * an output may be an input.
 */
#include "base/nf4.h"
#include "base/random.h"
#include "cpu/cpu.h"
#include "cpu/math.h"
#include "cpu/reference/ref.h"

/* Below this many elements waking the threads costs more than it saves. */
enum { SERIAL = 16384 };

/* --- loops over shapes ------------------------------------------------------------------------
 *
 *     b [T,1] with a [B,T,C]      loops, innermost first: C (a 1, b 0), T (C, 1), B (TC, 0) */

/* Loops over a shape, the innermost first, with the stride of each loop in two tensors that are
 * broadcast to the shape: 0 where the tensor is repeated. Dimensions that both tensors traverse
 * as one are merged into one loop. */
struct walk {
    int loops;
    int64_t size[MAX_RANK], a[MAX_RANK], b[MAX_RANK];
};

/* Adds an outer dimension: merges it with the outermost loop if the two are one in both tensors. */
static void walk_push(struct walk *w, int64_t size, int64_t a, int64_t b)
{
    int last = w->loops - 1;
    if (size == 1) return;
    if (w->loops && a == w->a[last] * w->size[last] && b == w->b[last] * w->size[last]) {
        w->size[last] *= size;
        return;
    }
    w->size[w->loops] = size;
    w->a[w->loops] = a;
    w->b[w->loops] = b;
    w->loops++;
}

/* A tensor's shape and strides. */
struct extent {
    int rank;
    const int64_t *dim, *stride;
};
#define EXTENT(x) ((struct extent){(x)->rank, (x)->dim, (x)->stride})

static struct walk walk_of(struct extent shape, struct extent a, struct extent b)
{
    struct walk w = {0};
    for (int d = shape.rank - 1, i = a.rank - 1, j = b.rank - 1; d >= 0; d--, i--, j--)
        walk_push(&w, shape.dim[d], i < 0 || a.dim[i] == 1 ? 0 : a.stride[i], j < 0 || b.dim[j] == 1 ? 0 : b.stride[j]);
    if (!w.loops) { /* one element */
        w.loops = 1;
        w.size[0] = w.a[0] = w.b[0] = 1;
    }
    return w;
}

/* A part of the innermost loop: `width` elements, and where they begin in the dense shape and in
 * the two tensors. */
struct walk_tile {
    int width;
    int64_t at, a, b;
};

/* Returns tile u of a walk, of which each pass of the innermost loop has `each`. */
static struct walk_tile walk_tile(const struct walk *w, int64_t u, int64_t each)
{
    int64_t row = u / each, from = u % each * TILE;
    struct walk_tile t = {row_tile(w->size[0] - from), row * w->size[0] + from, from * w->a[0], from * w->b[0]};
    for (int k = 1; k < w->loops; row /= w->size[k], k++) {
        t.a += row % w->size[k] * w->a[k];
        t.b += row % w->size[k] * w->b[k];
    }
    return t;
}

/* --- two inputs, one output ------------------------------------------------------------------- */

/* Returns elements from `at` on; with stride 0 the element at `at`, repeated n times. */
static const float *view_repeated(const struct operand *x, int64_t at, int64_t stride, int n, float scratch[TILE])
{
    if (stride) return row_view(x, at, n, scratch);
    const float value = *row_view(x, at, 1, scratch);
    for (int i = 0; i < n; i++) scratch[i] = value;
    return scratch;
}

/* Computes output 0 from inputs 0 and 1, both broadcast to its shape; `tile` computes n
 * elements. */
static void pair_run(const struct launch *l, void (*tile)(float *, const float *, const float *, int))
{
    const struct operand *a = &l->in[0], *b = &l->in[1], *y = &l->out[0];
    const struct walk w = walk_of(EXTENT(y), EXTENT(a), EXTENT(b));
    const int64_t n = operand_elements(y), L = w.size[0], each = row_tiles(L), units = n ? n / L * each : 0;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t u = 0; u < units; u++) {
        float as[TILE], bs[TILE];
        const struct walk_tile t = walk_tile(&w, u, each);
        const float *av = view_repeated(a, t.a, w.a[0], t.width, as), *bv = view_repeated(b, t.b, w.b[0], t.width, bs);
        float *yv = row_place(y, t.at, as);
        tile(yv, av, bv, t.width);
        row_store(y, t.at, t.width, yv);
    }
}

static void tile_add(float *y, const float *a, const float *b, int n)
{
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = a[i] + b[i];
}

static void tile_mul(float *y, const float *a, const float *b, int n)
{
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = a[i] * b[i];
}

static void tile_silu_gate(float *y, const float *gate, const float *up, int n)
{
#pragma omp simd
    for (int i = 0; i < n; i++) y[i] = gate[i] * sigmoid_fast(gate[i]) * up[i];
}

static void add_run(const struct launch *l) { pair_run(l, tile_add); }
static void mul_run(const struct launch *l) { pair_run(l, tile_mul); }
static void silu_gate_run(const struct launch *l) { pair_run(l, tile_silu_gate); }
static void accumulate_run(const struct launch *l)
{
    CHECK(l->in[1].data == l->out[0].data, "the accumulator is updated in place");
    pair_run(l, tile_add);
}

/* Reports whether tiles can read the innermost loop: in each input it is a row, or one element. */
static bool pair_match(const struct query *q)
{
    const struct walk w = walk_of(EXTENT(q->out[0]), EXTENT(q->in[0]), EXTENT(q->in[1]));
    return tensor_is_fast(q->out[0]) && dtype_is_fast(q->in[0]->dtype) && dtype_is_fast(q->in[1]->dtype) &&
           w.a[0] <= 1 && w.b[0] <= 1;
}

#define PAIR_KERNEL(OP, name) CPU_KERNELS(OP, {0, "cpu_" #name, pair_match, NULL, name##_run})
PAIR_KERNEL(ADD, add);
PAIR_KERNEL(MUL, mul);
PAIR_KERNEL(SILU_GATE, silu_gate);
PAIR_KERNEL(ACCUMULATE, accumulate);

/* --- the gradient of SILU_GATE ----------------------------------------------------------------
 *
 * With s = sigmoid(g):  silu' = s (1 + g (1 - s)),
 *     dgate = dy up silu',  dup = dy g s,  and y = g s up, recomputed if that output is given. */

/* Computes one tile; after inlining, whether y is NULL is a constant. */
static inline __attribute__((always_inline)) void tile_silu_gate_bwd(float *dgate, float *dup, float *y,
                                                                     const float *dy, const float *gate,
                                                                     const float *up, int n)
{
#pragma omp simd
    for (int i = 0; i < n; i++) {
        float d = dy[i], g = gate[i], u = up[i], s = sigmoid_fast(g);
        dgate[i] = d * u * s * (1.0f + g * (1.0f - s));
        dup[i] = d * g * s;
        if (y) y[i] = g * s * u;
    }
}

/* Takes gate and up that are columns of one wider matrix, as SILU_GATE does. */
static bool silu_gate_bwd_match(const struct query *q)
{
    bool fast = tensor_is_fast(q->in[0]) && dtype_is_fast(q->in[1]->dtype) && dtype_is_fast(q->in[2]->dtype);
    for (int i = 0; i < q->nout; i++) fast = fast && tensor_is_fast(q->out[i]);
    const struct walk w = walk_of(EXTENT(q->in[0]), EXTENT(q->in[1]), EXTENT(q->in[2]));
    return fast && w.a[0] == 1 && w.b[0] == 1;
}

static void silu_gate_bwd_run(const struct launch *l)
{
    const struct operand *dy = &l->in[0], *gate = &l->in[1], *up = &l->in[2];
    const struct walk w = walk_of(EXTENT(dy), EXTENT(gate), EXTENT(up));
    const int64_t n = operand_elements(dy), L = w.size[0], each = row_tiles(L), units = n ? n / L * each : 0;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t u = 0; u < units; u++) {
        float ds[TILE], gs[TILE], us[TILE];
        const struct walk_tile t = walk_tile(&w, u, each);
        const float *d = row_view(dy, t.at, t.width, ds), *g = row_view(gate, t.a, t.width, gs),
                    *x = row_view(up, t.b, t.width, us);
        float *dgate = row_place(&l->out[0], t.at, gs), *dup = row_place(&l->out[1], t.at, us);
        float *y = l->nout > 2 ? row_place(&l->out[2], t.at, ds) : NULL;
        if (y) tile_silu_gate_bwd(dgate, dup, y, d, g, x, t.width);
        else tile_silu_gate_bwd(dgate, dup, NULL, d, g, x, t.width);
        row_store(&l->out[0], t.at, t.width, dgate);
        row_store(&l->out[1], t.at, t.width, dup);
        if (y) row_store(&l->out[2], t.at, t.width, y);
    }
}

#define SILU_GATE_BWD_KERNEL(OP) CPU_KERNELS(OP, {0, "cpu_silu_gate_bwd", silu_gate_bwd_match, NULL, silu_gate_bwd_run})
SILU_GATE_BWD_KERNEL(SILU_GATE_BWD);
SILU_GATE_BWD_KERNEL(SILU_GATE_BWD_Y);

/* --- one input, one output -------------------------------------------------------------------- */

static void scale_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const int64_t n = operand_elements(y);
    const float value = (float)l->attr->scale.value;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float scratch[TILE];
        const int width = row_tile(n - at);
        const float *xv = row_view(x, at, width, scratch);
        float *yv = row_place(y, at, scratch);
#pragma omp simd
        for (int i = 0; i < width; i++) yv[i] = xv[i] * value;
        row_store(y, at, width, yv);
    }
}

static void cast_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const int64_t n = operand_elements(y);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        float scratch[TILE];
        const int width = row_tile(n - at);
        /* Converts directly into an f32 output; another output takes the second step. */
        row_store(y, at, width, row_view(x, at, width, row_place(y, at, scratch)));
    }
}

CPU_KERNEL_DENSE(SCALE, scale);
CPU_KERNEL_DENSE(CAST, cast);

/* --- filling: any dtype ----------------------------------------------------------------------- */

/* Copies the bytes of the first element, which is set, to the others. */
static void replicate(const struct operand *y, int threads)
{
    const int64_t n = operand_elements(y), size = dtype_size(y->dtype);
    char *to = y->data;
#pragma omp parallel for num_threads(threads) schedule(static) if (n > SERIAL)
    for (int64_t at = 0; at < n; at += TILE) {
        int width = row_tile(n - at);
        /* Constant sizes, so that each becomes a loop of plain stores. */
        for (int i = at == 0; i < width; i++) {
            char *p = to + (at + i) * size;
            if (size == 4) memcpy(p, to, 4);
            else if (size == 2) memcpy(p, to, 2);
            else memcpy(p, to, (size_t)size);
        }
    }
}

static bool fill_match(const struct query *q) { return tensor_is_dense(q->out[0]); }
static void fill_run(const struct launch *l)
{
    if (operand_elements(&l->out[0]) == 0) return;
    dtype_store(l->out[0].data, l->out[0].dtype, 0, l->attr->fill.value);
    replicate(&l->out[0], l->threads);
}

static bool spread_match(const struct query *q) { return tensor_is_fast(q->in[0]) && tensor_is_fast(q->out[0]); }
static void spread_run(const struct launch *l)
{
    if (operand_elements(&l->out[0]) == 0) return;
    dtype_convert(l->out[0].data, l->out[0].dtype, l->in[0].data, l->in[0].dtype, 1);
    replicate(&l->out[0], l->threads);
}

CPU_KERNEL(FILL, fill);
CPU_KERNEL(SPREAD, spread);

/* --- SUM and SUM_TO ---------------------------------------------------------------------------
 *
 * The loops of SUM_TO over x are of two kinds: kept, which advance in the result, and summed, which
 * do not. The innermost loop is special: if kept, it is a row of C results that x's rows are added
 * to; if summed, it is split into chunks of CHUNK elements and there is one result at a time (C =
 * 1).
 *
 * Invariant: an element of SUM_TO is a sum over blocks of the summed positions, partitioned by
 * row_blocks(), a function of only the shape; the blocks' partial sums are in the workspace and
 * are added in order. So the bits do not depend on the thread count. */

static bool sum_match(const struct query *q) { return query_is_fast(q) && q->out[0]->dtype == DT_F32; }
static uint64_t sum_workspace(const struct query *q) { return reduce_workspace(tensor_elements(q->in[0])); }
static void sum_run(const struct launch *l)
{
    *(float *)l->out[0].data = (float)reduce_sum(&l->in[0], false, l->work, l->threads);
}

enum { CHUNK = 1024 };

struct loops {
    int n;
    int64_t size[MAX_RANK + 1], stride[MAX_RANK + 1];
    int64_t count; /* product of sizes */
};

struct summing {
    struct loops kept, summed; /* `kept` excludes the innermost loop; `summed` includes its chunks */
    int64_t C;                 /* adjacent results */
    int64_t length;            /* of the innermost loop if it is summed; else 0 */
    struct row_blocks blocks;  /* of the summed positions */
};

static void loops_push(struct loops *l, int64_t size, int64_t stride)
{
    l->size[l->n] = size;
    l->stride[l->n++] = stride;
    l->count *= size;
}

/* Returns the offset in x of position i of the loops. The outermost one needs no division. */
static int64_t loops_at(const struct loops *l, int64_t i)
{
    int64_t at = 0;
    for (int k = 0; k < l->n; k++) {
        int64_t here = k + 1 < l->n ? i % l->size[k] : i;
        at += here * l->stride[k];
        i /= k + 1 < l->n ? l->size[k] : 1;
    }
    return at;
}

static struct summing summing_of(struct extent x, struct extent to)
{
    struct walk w = walk_of(x, x, to);
    struct summing s = {.kept = {.count = 1}, .summed = {.count = 1}, .C = 1};
    if (w.b[0]) s.C = w.size[0];
    else s.length = w.size[0];
    if (s.length) loops_push(&s.summed, ceil_div(s.length, CHUNK), CHUNK);
    for (int k = 1; k < w.loops; k++) loops_push(w.b[k] ? &s.kept : &s.summed, w.size[k], w.a[k]);
    s.blocks = row_blocks(s.summed.count);
    return s;
}

static bool sum_to_match(const struct query *q)
{
    const struct walk w = walk_of(EXTENT(q->in[0]), EXTENT(q->in[0]), EXTENT(q->out[0]));
    return dtype_is_fast(q->in[0]->dtype) && tensor_is_fast(q->out[0]) && w.a[0] == 1;
}

static uint64_t sum_to_workspace(const struct query *q)
{
    const struct summing s = summing_of(EXTENT(q->in[0]), EXTENT(q->out[0]));
    return (uint64_t)(s.blocks.n * tensor_elements(q->out[0])) * sizeof(float);
}

/* Adds n elements of x to `sum`. */
static void add_row(float *sum, const struct operand *x, int64_t at, int64_t n)
{
    float scratch[TILE];
    for (int64_t c = 0; c < n; c += TILE) {
        const int width = row_tile(n - c);
        const float *v = row_view(x, at + c, width, scratch);
        float *to = sum + c;
#pragma omp simd
        for (int i = 0; i < width; i++) to[i] += v[i];
    }
}

/* Sums one block of the summed positions, from x at kept position `from`. */
static void sum_block(float *sum, const struct summing *s, const struct operand *x, int64_t from, int64_t block)
{
    const int64_t first = block * s->blocks.each, end = min_i64(s->summed.count, first + s->blocks.each);
    double total = 0;
    memset(sum, 0, (size_t)s->C * sizeof *sum);
    for (int64_t r = first; r < end; r++) {
        const int64_t at = from + loops_at(&s->summed, r);
        if (!s->length) add_row(sum, x, at, s->C);
        else total += row_sum(x, at, min_i64(CHUNK, s->length - r % s->summed.size[0] * CHUNK));
    }
    if (s->length) *sum = (float)total;
}

static void sum_to_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    struct summing s = summing_of(EXTENT(x), EXTENT(y));
    s.blocks = launch_row_blocks(l, s.summed.count);
    const int64_t K = s.kept.count, N = operand_elements(y);
    const bool accumulate = launch_has(l, 1);
    float *partial = l->work; // [blocks, N]
    CHECK(!accumulate || l->in[1].data == y->data, "the accumulator is updated in place");
#pragma omp parallel for num_threads(l->threads) schedule(static) if (operand_elements(x) > 8192)
    for (int64_t task = 0; task < s.blocks.n * K; task++) {
        int64_t block = task / K, k = task % K;
        sum_block(partial + block * N + k * s.C, &s, x, loops_at(&s.kept, k), block);
    }
    row_combine(y, partial, s.blocks.n, accumulate, l->threads);
}

CPU_KERNEL_WORK(SUM, sum);
CPU_KERNEL_WORK(SUM_TO, sum_to);

/* --- DROPOUT: elements, or whole samples, set to 0 at random ----------------------------------
 *
 * Invariant: whether an element is kept is a pure function of the run's seed, the step, the op's
 * key, the sample and the element's index in the sample. Threads, micro-batches, recomputation in
 * the backward and a resume therefore drop the same elements; no mask is stored. */

/* Returns the random stream of one sample at one op in one step. Word i of it (random_words)
 * decides element i of the sample, which is dropped if the word is below the threshold; with
 * per_sample word 0 decides all of them. */
static uint64_t dropout_key(const struct launch *l, int32_t sample)
{
    const struct step_block *step = l->in[1].data;
    const uint64_t stream = random_bits(random_key(step->seed, "dropout"), step->rng_step);
    return random_bits(random_bits(stream, l->attr->dropout.key), (uint64_t)(uint32_t)sample);
}

static void ref_dropout(const struct launch *l)
{
    const struct operand *x = &l->in[0];
    const int64_t each = operand_elements(x) / x->dim[0], first = launch_element(l, each);
    const float p = l->attr->dropout.p;
    for (int64_t i = 0; i < operand_elements(x); i++) {
        const uint64_t key = dropout_key(l, (int32_t)ref_get(&l->in[2], i / each));
        uint32_t word;
        random_words(&word, key, l->attr->dropout.per_sample ? 0 : (uint64_t)(first + i % each), 1);
        ref_put(&l->out[0], i, word < step_dropout_threshold(p) ? 0 : ref_get(x, i) / (1 - (double)p));
    }
}

static bool dropout_match(const struct query *q)
{
    return tensor_is_fast(q->in[0]) && tensor_is_fast(q->out[0]) && tensor_is(q->in[2], DT_I32);
}

static void dropout_run(const struct launch *l)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const int32_t *samples = l->in[2].data;
    const int64_t B = x->dim[0], each = operand_elements(x) / B, tiles = row_tiles(each),
                  first = launch_element(l, each);
    const uint32_t threshold = step_dropout_threshold(l->attr->dropout.p);
    const bool per_sample = l->attr->dropout.per_sample;
    const float scale = 1.0f / (1.0f - l->attr->dropout.p);
#pragma omp parallel for num_threads(l->threads) schedule(static) if (B * each > 4096)
    for (int64_t u = 0; u < B * tiles; u++) {
        float scratch[TILE];
        uint32_t words[TILE];
        const int64_t b = u / tiles, from = u % tiles * TILE, at = b * each + from;
        const int n = row_tile(each - from);
        random_words(words, dropout_key(l, samples[b]), per_sample ? 0 : (uint64_t)(first + from), per_sample ? 1 : n);
        for (int i = 1; i < n && per_sample; i++) words[i] = words[0];
        const float *v = row_view(x, at, n, scratch);
        float *to = row_place(y, at, scratch);
#pragma omp simd
        for (int i = 0; i < n; i++) to[i] = words[i] >= threshold ? v[i] * scale : 0.0f;
        row_store(y, at, n, to);
    }
}

REF_KERNEL(DROPOUT, dropout);
CPU_KERNEL(DROPOUT, dropout);

/* --- DEQUANTIZE: weights in NF4 (base/nf4.h) to a dense tensor --------------------------------
 *
 * Threads take whole blocks of 64 weights; each weight is computed by itself, so the result does
 * not depend on their number. */

enum { RUN = 64 * NF4_BLOCK }; /* weights per unit of work */

static struct nf4_parts parts_of(const struct launch *l)
{
    const int nested = l->attr->dequantize.nested;
    const struct nf4_layout at = nf4_layout(l->attr->dequantize.all, nested);
    const uint8_t *x = l->in[0].data;
    return (struct nf4_parts){x, nested ? x + at.scales : NULL, (const float *)(const void *)(x + at.absmax),
                              nested ? (const float *)(const void *)(x + at.offset) : NULL};
}

static bool dequantize_match(const struct query *q) { return tensor_is_fast(q->out[0]); }
static void dequantize_run(const struct launch *l)
{
    const struct operand *y = &l->out[0];
    const struct nf4_parts p = parts_of(l);
    const int64_t n = operand_elements(y), first = l->attr->dequantize.first;
#pragma omp parallel for num_threads(l->threads) schedule(static) if (n > 4 * RUN)
    for (int64_t at = 0; at < n; at += RUN)
        nf4_dequantize((char *)y->data + at * dtype_size(y->dtype), y->dtype, &p, first + at, min_i64(RUN, n - at));
}

static void ref_dequantize(const struct launch *l)
{
    const struct nf4_parts p = parts_of(l);
    const int64_t n = operand_elements(&l->out[0]), first = l->attr->dequantize.first;
    for (int64_t at = 0; at < n; at += NF4_BLOCK) {
        float block[NF4_BLOCK];
        nf4_dequantize(block, DT_F32, &p, first + at, min_i64(NF4_BLOCK, n - at));
        for (int64_t i = at; i < n && i < at + NF4_BLOCK; i++) ref_put(&l->out[0], i, (double)block[i - at]);
    }
}

REF_KERNEL(DEQUANTIZE, dequantize);
CPU_KERNEL(DEQUANTIZE, dequantize);
