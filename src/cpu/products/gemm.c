/*
 * gemm.c: packed, blocked matrix products, and the kernels LINEAR, LINEAR_ACT and MATMUL.
 *
 * C is partitioned into tiles, one thread each. A thread iterates over K in blocks. For each block
 * it packs a slab of B, then block after block of A's rows, and multiplies panel by panel
 * (micro.h). This keeps each operand in the cache level that can feed it:
 *
 *                 n                     B panel     [KC][nr]    L1 cache
 *            +---------+                A block     [MC][KC]    L2 cache
 *          k | B  slab |                B slab      [KC][NC]    L2 or L3
 *            +---------+
 *        k
 *     +-----+----------+
 *   m |  A  |  C  tile | MC rows at a time
 *     +-----+----------+
 *
 * Bit-identical for any thread count: the sum of an element runs over the K blocks in order, the
 * blocks depend only on K, and threads only share the tiles. Between K blocks the sum stays f32: in
 * C itself when C is f32, in a scratch tile otherwise.
 *
 * If both operands are bf16 and the processor has bf16 multiply instructions, panels stay bf16
 * (micro_bf16.h): half the bytes, so K blocks are twice as long, and the last bits differ.
 *
 * A product of at most DOT_ROWS rows with a weight [N,K] is bound by reading the weight, and
 * packing would only add traffic: it is computed as dot products. These have other last bits, so a
 * part of a product with more rows is computed as the whole is.
 *
 *     work: thread 0 [A block | B slab | f32 tile] thread 1 [...] ...
 */
#include <omp.h>
#include <stdatomic.h>

#include "cpu/cpu.h"
#include "cpu/products/gemm.h"
#include "cpu/products/micro.h"
#include "cpu/products/micro_bf16.h"
#include "cpu/products/onednn.h"
#include "cpu/products/pack.h"
#include "cpu/rows/activations.h"

/* Multiples of PANEL_A, TILE_ROWS, PANEL_B and 8. KC of both panels takes a third of a 64 KiB
 * cache: without huge pages a larger block would evict itself. SCRATCH_ROWS bounds the f32 tile of
 * a C in lower precision. An epilogue gets up to EPILOGUE columns of a block of rows: enough for an
 * efficient loop, and together well within the L2 cache. */
enum { KC = 256, KC_BF16 = 2 * KC, MC = 192, NC = 768, SCRATCH_ROWS = 384, DOT_CHUNK = 1024, EPILOGUE = 256 };

static int64_t round_to(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

static void *element(const struct matrix *m, int64_t i, int64_t j)
{
    return (char *)m->data + (i * m->row + j * m->column) * dtype_size(m->dtype);
}

/* Returns the length of equal blocks of K, each of at most `most`. */
static int64_t block_of(int64_t K, int64_t most)
{
    return K <= most ? K : round_to(ceil_div(K, ceil_div(K, most)), 8);
}

/* Returns the inner loop of a product that stays in bf16; NULL: it uses f32 panels. Gathered
 * operands do, because gatherers return f32, and so do scattered results. */
static const struct micro_bf16 *bf16_loop(const struct gemm *g)
{
    if (g->a.gather || g->b.gather || g->scatter) return NULL;
    return g->a.dtype == DT_BF16 && g->b.dtype == DT_BF16 ? micro_bf16_best() : NULL;
}

/* --- workspace ------------------------------------------------------------------------ */

/* Floats of each section of a thread's workspace. */
struct slots {
    int64_t a, b, partial;
};

static bool needs_partial(int64_t K, enum dtype c, int64_t block) { return c != DT_F32 && K > block; }

/* Returns the dtype into which a product's sums are stored, for needs_partial: sums can accumulate
 * in C itself only when it is an f32 matrix. */
static enum dtype result_type(const struct gemm *g) { return g->scatter ? DT_NONE : g->c.dtype; }

/* Returns the terms of the whole sums, which decide the blocks of K. */
static int64_t depth_of(const struct gemm *g) { return g->depth ? g->depth : g->K; }

static struct slots slots_of(int64_t M, int64_t N, int64_t K, enum dtype c)
{
    /* Enough for panels of every kind: a plan does not depend on the instruction set. */
    int64_t kc = block_of(K, KC), half = round_to(block_of(K, KC_BF16), TILE_DEPTH) / 2;
    int64_t m = min_i64(M, MC), n = round_to(min_i64(N, NC), PANEL_B);
    int64_t rows = round_to(m, PANEL_A), tiles = round_to(m, TILE_ROWS);
    struct slots s = {
        .a = round_to(max_i64(rows * kc, max_i64(rows, tiles) * half), 16),
        .b = round_to(n * max_i64(kc, half), 16),
        .partial = needs_partial(K, c, KC) ? round_to(min_i64(M, SCRATCH_ROWS), PANEL_A) * n : 0,
    };
    return s;
}

/* Returns the threads worth using. Waking a thread costs about a microsecond, so each thread gets
 * at least 2^16 multiplications; and a tile is not smaller than the smallest of any ISA. */
static int useful_threads(int64_t M, int64_t N, int64_t K, int threads)
{
    int64_t most = min_i64(ceil_div(M, 4) * ceil_div(N, 8), M * N * K >> 16);
    return (int)max_i64(1, min_i64(threads, most));
}

uint64_t gemm_workspace(int64_t M, int64_t N, int64_t K, enum dtype c, int threads)
{
    struct slots s = slots_of(M, N, K, c);
    uint64_t each = (uint64_t)(s.a + s.b + s.partial), dots = M <= DOT_ROWS ? (uint64_t)(M * K) : 0;
    uint64_t packed = each * (uint64_t)useful_threads(M, N, K, threads);
    return (packed > dots ? packed : dots) * sizeof(float);
}

/* --- finishing a sum ---------------------------------------------------------------------- */

/* Converts four f32 to bf16, as f32_to_bf16 does. */
static inline void store_bf16(uint16_t *to, const float *from)
{
    typedef uint32_t quad __attribute__((vector_size(16)));
    typedef uint16_t half __attribute__((vector_size(8)));
    quad u, nan;
    memcpy(&u, from, sizeof u);
    nan = (quad)((u & 0x7fffffffu) > 0x7f800000u);
    u = (nan & (u | 0x400000u)) | (~nan & (u + 0x7fffu + (u >> 16 & 1)));
    half h = __builtin_convertvector(u >> 16, half);
    memcpy(to, &h, sizeof h);
}

/* Stores n values in c's dtype. bf16 has its own loop because it is the common case and n is
 * small. */
static inline void store_row(void *to, enum dtype t, const float *from, int64_t n)
{
    uint16_t *h = to;
    if (t == DT_F32) {
        memcpy(to, from, (size_t)n * sizeof *from);
    } else if (t == DT_BF16) {
        for (; n >= 4; n -= 4, h += 4, from += 4) store_bf16(h, from);
        for (; n > 0; n--) *h++ = f32_to_bf16(*from++);
    } else {
        dtype_convert(to, t, from, DT_F32, n);
    }
}

/* Adds the elements that C holds, which is not f32, to n sums; n is small. */
static inline void add_held(float *sum, const void *c, enum dtype t, int64_t n)
{
    float held[NR_MAX];
    if (t == DT_BF16)
        for (int64_t x = 0; x < n; x++) held[x] = bf16_to_f32(((const uint16_t *)c)[x]);
    else
        dtype_convert(held, DT_F32, c, t, n);
    for (int64_t x = 0; x < n; x++) sum[x] = held[x] + sum[x];
}

/* Completes a sum after its last product: adds the earlier K blocks (`partial`, NULL: none), the
 * bias, and the previous value of C. Row by row, n columns. */
static void finish_row(const struct gemm *g, float *sum, const float *partial, const float *bias, int64_t i, int64_t j,
                       int64_t n)
{
    if (partial)
        for (int64_t x = 0; x < n; x++) sum[x] = partial[x] + sum[x];
    if (bias)
        for (int64_t x = 0; x < n; x++) sum[x] += bias[x];
    if (g->scatter) {
        g->scatter->store(g->scatter, i, j, n, sum);
        return;
    }
    void *c = element(&g->c, i, j);
    if (g->add && g->c.dtype != DT_F32) add_held(sum, c, g->c.dtype, n);
    store_row(c, g->c.dtype, sum, n);
}

/* --- one tile of C ---------------------------------------------------------------------- */

/* A tile, its current K block, and the thread's memory. */
struct tile {
    const struct gemm *g;
    const struct micro *u;
    const struct micro_bf16 *h; /* NULL: panels are f32 */
    int mr, nr;
    int64_t m0, mn, n0, nn;  /* rows and columns of C */
    int64_t k0, kn;
    bool last;               /* this is the last K block */
    void *a, *b;             /* packed */
    float *sum;              /* f32 sums [mn][nn]: in C or in scratch */
    int64_t ld;
};

/* Packs `n` rows of an operand into panels, from the element at `from`; `group` is for bf16. */
static void tile_pack(const struct tile *t, void *to, int width, int group, const void *from, enum dtype type,
                      int64_t across, int64_t along, int64_t n)
{
    if (t->h) pack_panels_bf16(to, width, group, t->h->group, from, across, along, n, t->kn);
    else pack_panels(to, width, from, type, across, along, n, t->kn);
}

/* Multiplies the panels of A's packed row i and of B's packed column j. */
static void tile_product(const struct tile *t, int64_t i, int64_t j, float *c, int64_t ldc, bool add)
{
    if (t->h) {
        int64_t groups = ceil_div(t->kn, t->h->group), long_k = groups * t->h->group;
        t->h->product(groups, (const uint16_t *)t->a + i * long_k, (const uint16_t *)t->b + j * long_k, c, ldc, add);
    } else {
        t->u->product(t->kn, (const float *)t->a + i * t->kn, (const float *)t->b + j * t->kn, c, ldc, add);
    }
}

/* Computes one micro-tile: packed row a and column j, at rows i.. and columns j.. of the tile.
 * Complete micro-tiles of an f32 sum are computed in place, the others in a buffer. */
static void tile_micro(const struct tile *t, int64_t a, const float *bias, int64_t i, int64_t j)
{
    const struct gemm *g = t->g;
    int64_t m = min_i64(t->mr, t->mn - i), n = min_i64(t->nr, t->nn - j);
    bool in_c = result_type(g) == DT_F32, add = t->k0 > 0 || (g->add && in_c);
    float *sum = t->sum + i * t->ld + j;
    if (m == t->mr && n == t->nr && (!t->last || (in_c && !bias))) {
        tile_product(t, a, j, sum, t->ld, add);
        return;
    }
    float buffer[TILE_ROWS * NR_MAX] __attribute__((aligned(64)));
    if (m == t->mr && n == t->nr && t->h && g->c.dtype == DT_BF16 && !bias) {
        float *to = add ? sum : buffer;
        int64_t ld = add ? t->ld : t->nr;
        tile_product(t, a, j, to, ld, add);
        for (int64_t r = 0; r < m && g->add; r++)
            add_held(to + r * ld, element(&g->c, t->m0 + i + r, t->n0 + j), DT_BF16, n);
        t->h->narrow(element(&g->c, t->m0 + i, t->n0 + j), g->c.row, to, ld);
        return;
    }
    tile_product(t, a, j, buffer, t->nr, false);
    for (int64_t r = 0; r < m; r++) {
        float *row = buffer + r * t->nr, *so_far = sum + r * t->ld;
        if (t->last) {
            finish_row(g, row, add ? so_far : NULL, bias, t->m0 + i + r, t->n0 + j, n);
        } else {
            for (int64_t x = 0; x < n; x++) so_far[x] = add ? so_far[x] + row[x] : row[x];
        }
    }
}

/* Multiplies rows i0.. of the tile, with their A block packed, with the whole slab of B. */
static void tile_block(const struct tile *t, int64_t i0, int64_t in)
{
    const struct gemm *g = t->g;
    int64_t applied = 0; /* columns already passed to the epilogue */
    for (int64_t j = 0; j < t->nn; j += t->nr) {
        float values[NR_MAX], *bias = NULL;
        if (g->bias && t->last) {
            const char *from = (const char *)g->bias + (t->n0 + j) * dtype_size(g->bias_dtype);
            dtype_convert(values, DT_F32, from, g->bias_dtype, min_i64(t->nr, t->nn - j));
            bias = values;
        }
        for (int64_t i = 0; i < in; i += t->mr) tile_micro(t, i, bias, i0 + i, j);
        int64_t made = min_i64(j + t->nr, t->nn);
        if (!g->epilogue || !t->last || (made - applied + t->nr <= EPILOGUE && made < t->nn)) continue;
        g->epilogue->apply(g->epilogue, t->m0 + i0, in, t->n0 + applied, made - applied);
        applied = made;
    }
}

static void tile_pack_b(const struct tile *t)
{
    const struct matrix *b = &t->g->b;
    if (b->gather) pack_gathered(t->b, t->nr, b->gather, b->row == 1, t->n0, t->k0, t->nn, t->kn);
    else
        tile_pack(t, t->b, t->nr, t->h ? t->h->group_b : 1, element(b, t->k0, t->n0), b->dtype, b->column, b->row,
                  t->nn);
}

static void tile_pack_a(const struct tile *t, int64_t i0, int64_t in)
{
    const struct matrix *a = &t->g->a;
    if (a->gather) pack_gathered(t->a, t->mr, a->gather, a->column == 1, t->m0 + i0, t->k0, in, t->kn);
    else
        tile_pack(t, t->a, t->mr, t->h ? t->h->group : 1, element(a, t->m0 + i0, t->k0), a->dtype, a->row, a->column,
                  in);
}

static void tile_run(struct tile *t)
{
    const struct gemm *g = t->g;
    int64_t kc = block_of(depth_of(g), t->h ? KC_BF16 : KC);
    if (result_type(g) == DT_F32) t->sum = element(&g->c, t->m0, t->n0), t->ld = g->c.row;
    else t->ld = round_to(t->nn, t->nr);
    if (t->h && t->h->begin) t->h->begin();
    /* At least once: an empty sum is 0. */
    for (t->k0 = 0; t->k0 == 0 || t->k0 < g->K; t->k0 += kc) {
        t->kn = min_i64(kc, g->K - t->k0);
        t->last = t->k0 + t->kn >= g->K;
        tile_pack_b(t);
        for (int64_t i = 0; i < t->mn; i += MC) {
            int64_t in = min_i64(MC, t->mn - i);
            tile_pack_a(t, i, in);
            tile_block(t, i, in);
        }
        if (t->last) break;
    }
    if (t->h && t->h->end) t->h->end();
}

/* --- distributing tiles -------------------------------------------------------------------- */

/* C as rows x columns tiles of m x n. */
struct tiling {
    int64_t rows, columns, m, n;
};

static struct tiling tiling_of(const struct gemm *g, const struct tile *t, int64_t rows, int64_t columns)
{
    struct tiling x = {.m = round_to(ceil_div(g->M, rows), t->mr), .n = round_to(ceil_div(g->N, columns), t->nr)};
    x.rows = ceil_div(g->M, x.m);
    x.columns = ceil_div(g->N, x.n);
    return x;
}

/* Returns the time of a tiling, in units of one multiplication per element of C and step of k: the
 * number of rounds of the threads, times a tile's products and its packing. Packing an element
 * costs about 16 multiplications. */
static double tiling_cost(const struct tiling *x, int threads)
{
    double tile = (double)x->m * (double)x->n + 16.0 * (double)(x->m + x->n);
    return (double)ceil_div(x->rows * x->columns, threads) * tile;
}

/* Returns the cheapest tiling that fits the workspace: from as few tiles as possible to about four
 * per thread, all column counts. The choice does not affect the result's bits. */
static struct tiling tiling_choose(const struct gemm *g, const struct tile *t, int threads)
{
    bool partial = needs_partial(depth_of(g), result_type(g), t->h ? KC_BF16 : KC);
    int64_t min_columns = ceil_div(g->N, NC), min_rows = partial ? ceil_div(g->M, SCRATCH_ROWS) : 1;
    struct tiling best = tiling_of(g, t, min_rows, min_columns);
    for (int64_t columns = min_columns; columns <= min_columns + threads; columns++)
        for (int64_t tiles = threads; threads > 1 && tiles <= 4 * threads; tiles += threads) {
            struct tiling x = tiling_of(g, t, max_i64(min_rows, ceil_div(tiles, columns)), columns);
            if (tiling_cost(&x, threads) < tiling_cost(&best, threads)) best = x;
        }
    return best;
}

/* Makes tiles, whichever is next, until there are no more. */
static void take_tiles(const struct tile *any, const struct tiling *x, const struct slots *s, float *at,
                       atomic_int_fast64_t *next)
{
    const struct gemm *g = any->g;
    for (int64_t i; (i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed)) < x->rows * x->columns;) {
        int64_t m0 = i % x->rows * x->m, n0 = i / x->rows * x->n;
        struct tile t = *any;
        t.m0 = m0, t.mn = min_i64(x->m, g->M - m0);
        t.n0 = n0, t.nn = min_i64(x->n, g->N - n0);
        t.a = at, t.b = at + s->a, t.sum = at + s->a + s->b;
        tile_run(&t);
    }
}

/* Runs a product's tiles: at most `workers` of the team's threads take tiles, each in its own slot
 * of the workspace. The team has the plan's size in every region: OpenMP's runtime ends the threads
 * that a smaller team leaves out and starts them again for the next, which costs more than the
 * product and takes memory in a step. */
static void run_tiles(const struct gemm *g, float *work, int workers, int team)
{
    struct tile any = {.g = g, .u = micro_best(), .h = bf16_loop(g)};
    any.mr = any.h ? any.h->mr : any.u->mr;
    any.nr = any.h ? any.h->nr : any.u->nr;
    struct tiling x = tiling_choose(g, &any, workers);
    struct slots s = slots_of(g->M, g->N, depth_of(g), result_type(g));
    int64_t each = s.a + s.b + s.partial;
    atomic_int_fast64_t next = 0;
    if (workers == 1 || x.rows * x.columns == 1) {
        take_tiles(&any, &x, &s, work, &next);
        return;
    }
#pragma omp parallel num_threads(team)
    if (omp_get_thread_num() < workers) take_tiles(&any, &x, &s, work + omp_get_thread_num() * each, &next);
}

/* --- few rows ------------------------------------------------------------------------------ */

/* Computes column j of C: its dot products with the rows of A (f32, [M,K]), a chunk at a time. */
static void dot_column(const struct gemm *g, const struct micro *u, const float *a, int64_t j)
{
    float sum[DOT_ROWS] = {0}, chunk[DOT_CHUNK], bias = 0;
    for (int64_t k = 0; k < g->K; k += DOT_CHUNK) {
        int64_t n = min_i64(DOT_CHUNK, g->K - k);
        const void *at = element(&g->b, k, j);
        if (g->b.dtype != DT_F32) dtype_convert(chunk, DT_F32, at, g->b.dtype, n);
        u->dots((int)g->M, a + k, g->K, g->b.dtype == DT_F32 ? at : chunk, n, sum);
    }
    if (g->bias) bias = (float)dtype_load(g->bias, g->bias_dtype, j);
    for (int64_t i = 0; i < g->M; i++)
        finish_row(g, &sum[i], g->add && g->c.dtype == DT_F32 ? element(&g->c, i, j) : NULL, g->bias ? &bias : NULL, i,
                   j, 1);
}

static void run_dots(const struct gemm *g, float *work, int workers, int team)
{
    const struct micro *u = micro_best();
    for (int64_t i = 0; i < g->M; i++)
        for (int64_t k = 0; k < g->K; k += DOT_CHUNK) {
            int64_t n = min_i64(DOT_CHUNK, g->K - k);
            if (g->a.column == 1) {
                dtype_convert(work + i * g->K + k, DT_F32, element(&g->a, i, k), g->a.dtype, n);
                continue;
            }
            for (int64_t x = k; x < k + n; x++)
                work[i * g->K + x] = (float)dtype_load(g->a.data, g->a.dtype, i * g->a.row + x * g->a.column);
        }
    /* Neighbouring columns of a narrow C share cache lines: each thread gets whole runs of 64. */
#pragma omp parallel for num_threads(team) schedule(dynamic, 1) if (workers > 1)
    for (int64_t run = 0; run < ceil_div(g->N, 64); run++) {
        int64_t from = run * 64, to = min_i64(g->N, from + 64);
        for (int64_t j = from; j < to; j++) dot_column(g, u, work, j);
        if (g->epilogue) g->epilogue->apply(g->epilogue, 0, g->M, from, to - from);
    }
}

void gemm_run(const struct gemm *g, void *work, uint64_t work_bytes, int threads)
{
    CHECK(g->c.column == 1, "C has a column stride of %lld", (long long)g->c.column);
    CHECK(!g->scatter || !g->add, "a scattered C cannot be added to");
    CHECK(!g->scatter || !g->epilogue, "a scattered C has no epilogue");
    CHECK(work_bytes >= gemm_workspace(g->M, g->N, depth_of(g), result_type(g), threads),
          "%llu bytes of workspace for [%lld,%lld,%lld]", (unsigned long long)work_bytes, (long long)g->M,
          (long long)g->N, (long long)g->K);
    if (g->M == 0 || g->N == 0) return;
    int workers = useful_threads(g->M, g->N, g->K, threads);
    /* With bf16 only a single row: more rows are faster with bf16 multiply instructions than with
     * f32 dot products. */
    bool few = max_i64(g->M, g->rows) <= (bf16_loop(g) ? 1 : DOT_ROWS);
    if (few && g->b.row == 1 && !g->a.gather && !g->b.gather) run_dots(g, work, workers, threads);
    else run_tiles(g, work, workers, threads);
}

/* --- LINEAR and MATMUL --------------------------------------------------------------------- */

/* Reports whether matrix_of takes a tensor: a dense one, or the transpose of a dense matrix, as
 * GPT-2 has its weights. */
static bool is_matrix(const struct tensor *t)
{
    struct tensor turned = *t;
    if (t->rank != 2 || t->stride[0] != 1) return tensor_is_fast(t);
    turned.dim[0] = t->dim[1], turned.dim[1] = t->dim[0];
    turned.stride[0] = t->stride[1], turned.stride[1] = t->stride[0];
    return tensor_is_fast(t) || tensor_is_fast(&turned);
}

/* Returns a tensor that is_matrix takes as the matrix [rows x last], or its transpose. */
static struct matrix matrix_of(const struct operand *x, bool transposed)
{
    const bool turned = x->rank == 2 && x->stride[1] != 1 && x->dim[1] > 1;
    const int64_t row = turned ? 1 : operand_last(x), column = turned ? x->stride[1] : 1;
    return (struct matrix){x->data, x->dtype, transposed ? column : row, transposed ? row : column};
}

/* Reports whether the kernel runs LINEAR, y = x w^T + bias + add, of x [rows x K], w [N,K], bias
 * [N]?, add?. */
static bool linear_match(const struct query *q)
{
    const struct tensor *bias = query_in(q, 2), *add = query_in(q, 3);
    return tensor_is_fast(q->in[0]) && is_matrix(q->in[1]) && tensor_is_fast(q->out[0]) &&
           (!bias || tensor_is_fast(bias)) && (!add || tensor_is_fast(add));
}

static uint64_t linear_workspace(const struct query *q)
{
    const struct tensor *x = q->in[0], *w = q->in[1], *y = q->out[0];
    return gemm_workspace(tensor_rows(x), w->dim[0], tensor_last(x), y->dtype, q->profile->threads);
}

/* Returns the product x w^T + bias, stored into `to`. */
static struct gemm linear_product(const struct launch *l, const struct operand *to)
{
    const struct operand *x = &l->in[0], *w = &l->in[1];
    return (struct gemm){.M = operand_rows(x), .N = w->dim[0], .K = operand_last(x),
                         .rows = launch_whole(l, operand_rows(x)),
                         .a = matrix_of(x, false), .b = matrix_of(w, true), .c = matrix_of(to, false),
                         .bias = l->nin > 2 ? l->in[2].data : NULL,
                         .bias_dtype = l->nin > 2 ? l->in[2].dtype : DT_NONE};
}

/* Runs LINEAR. The added tensor is copied to the destination of the sum, unless it is there
 * already: same bits. */
static void linear_run(const struct launch *l)
{
    struct gemm g = linear_product(l, &l->out[0]);
    g.add = launch_has(l, 3);
    if (g.add) row_copy(&l->out[0], &l->in[3], l->threads);
    gemm_run(&g, l->work, l->work_bytes, l->threads);
}

/* Reports whether the kernel runs MATMUL of a, b, acc?: op(a) op(b) + acc, the sum in place in
 * acc. */
static bool matmul_match(const struct query *q)
{
    const struct tensor *acc = q->nin > 2 ? q->in[2] : NULL;
    return tensor_is_fast(q->in[0]) && is_matrix(q->in[1]) && tensor_is_fast(q->out[0]) &&
           (!acc || (tensor_is_fast(acc) && acc->dtype == q->out[0]->dtype));
}

static uint64_t matmul_workspace(const struct query *q)
{
    const struct tensor *a = q->in[0], *b = q->in[1];
    bool ta = q->attr->matmul.ta, tb = q->attr->matmul.tb;
    int64_t M = ta ? tensor_last(a) : tensor_rows(a);
    int64_t K = ta ? portion_whole(q->portion, tensor_rows(a)) : tensor_last(a);
    int64_t N = tb ? tensor_rows(b) : tensor_last(b);
    return gemm_workspace(M, N, K, q->out[0]->dtype, q->profile->threads);
}

static void matmul_run(const struct launch *l)
{
    const struct operand *a = &l->in[0], *b = &l->in[1];
    bool ta = l->attr->matmul.ta, tb = l->attr->matmul.tb;
    struct gemm g = {
        .M = ta ? operand_last(a) : operand_rows(a), .N = tb ? operand_rows(b) : operand_last(b),
        .K = ta ? operand_rows(a) : operand_last(a), .rows = ta ? 0 : launch_whole(l, operand_rows(a)),
        .depth = ta ? launch_whole(l, operand_rows(a)) : 0,
        .a = matrix_of(a, ta), .b = matrix_of(b, tb), .c = matrix_of(&l->out[0], false),
        .add = l->nin > 2 && l->in[2].data,
    };
    /* The result's leading shape may differ from [M,N]; its rows are dense either way. */
    g.c.row = g.N;
    CHECK(!g.add || l->in[2].data == l->out[0].data, "the result is not in the accumulator's bytes");
    gemm_run(&g, l->work, l->work_bytes, l->threads);
}

/* The library's kernel comes first: it matches if the profile enables it. */
CPU_KERNELS(LINEAR, {0, "onednn_linear", onednn_linear_match, onednn_linear_workspace, onednn_linear_run},
            KERNEL_WORK(linear));
CPU_KERNELS(MATMUL, {0, "onednn_matmul", onednn_matmul_match, onednn_matmul_workspace, onednn_matmul_run},
            KERNEL_WORK(matmul));

/* --- LINEAR_ACT: a matrix product with an activation as its epilogue --------------------------
 *
 *     x w^T + bias --round--> z --f--> y
 *
 * The product is LINEAR's, stored into z, or into y if z is not read. The epilogue then reads the
 * stored, rounded elements while they are in cache. The result is therefore bit-identical to LINEAR
 * followed by ACT, and z is not read from memory a second time.
 *
 * oneDNN's products have no epilogue of ours: there the function follows the product, as ACT would.
 * Whether oneDNN computes the product is decided as for LINEAR: fusing changes no bit. */

struct apply {
    struct epilogue epilogue;
    enum act_kind kind;
    const struct operand *y, *z; /* [rows x N] */
    int64_t N;
};

static void apply_take(const struct epilogue *e, int64_t i, int64_t m, int64_t j, int64_t n)
{
    const struct apply *a = (const struct apply *)e;
    for (int64_t r = i; r < i + m; r++)
        for (int64_t c = j; c < j + n; c += TILE) act_tile(a->kind, a->y, a->z, r * a->N + c, row_tile(j + n - c));
}

/* Returns the destination of the product: y if z is not read. */
static const struct operand *stored(const struct launch *l) { return l->out[1].data ? &l->out[1] : &l->out[0]; }

static void linear_act_run(const struct launch *l)
{
    struct gemm g = linear_product(l, stored(l));
    const struct apply apply = {{apply_take}, l->attr->act.kind, &l->out[0], stored(l), g.N};
    g.epilogue = &apply.epilogue;
    gemm_run(&g, l->work, l->work_bytes, l->threads);
}

void onednn_linear_act_run(const struct launch *l)
{
    struct launch product = *l;
    product.out[0] = *stored(l);
    onednn_linear_run(&product);
    act_all(l->attr->act.kind, &l->out[0], stored(l), l->threads);
}

CPU_KERNELS(LINEAR_ACT, {0, "onednn_linear_act", onednn_linear_match, onednn_linear_workspace, onednn_linear_act_run},
            {0, "cpu_linear_act", query_is_fast, linear_workspace, linear_act_run});
