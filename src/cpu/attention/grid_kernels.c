/*
 * grid_kernels.c: the kernels of attention on a grid, which are attention's with relative
 * positions: ATTENTION_REL, ATTENTION_BIAS, and ATTENTION_WINDOW, within the windows of a grid: a
 * few windows at a time are gathered, processed by the tiles of ATTENTION_REL, and scattered back.
 *
 *     q, k, v [B,T,H,D]  -- gather -->  [windows,window^2,H,D]  --> o, lse  -- scatter -->
 *     [B,T,H,D]
 *
 * So the scratch memory is a chunk of windows, not the map, and no copy lives longer than its
 * chunk. Positions beyond the grid have pad's key and value; their queries are 0 and so are their
 * gradients do, so they add nothing: p = 1 times do = 0, ds = 0.
 *
 * The chunk size is a function of the shape. The sums over chunks, the gradients of tables and of
 * pad, are accumulated in order, in double: bit-identical for any thread count.
 */
#include "cpu/cpu.h"
#include "cpu/attention/attention.h"

/* --- ATTENTION_REL and ATTENTION_BIAS, and their gradients ------------------------------------ */

enum { IN_Q, IN_K, IN_V, IN_TABLE, IN_PAD = 5 };
enum { IN_DO, IN_BQ, IN_BK, IN_BV, IN_O, IN_LSE, IN_BTABLE, IN_BPAD = 8 };

static bool table_fits(const struct tensor *t)
{
    return t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16;
}

static bool attention_grid_match(const struct query *q)
{
    for (int i = 0; i < 3; i++)
        if (!heads_fit(q->in[i])) return false;
    for (int i = IN_TABLE; i < q->nin; i++)
        if (q->in[i]->rank != 2 || !table_fits(q->in[i])) return false;
    return heads_fit(q->out[0]) && q->out[1]->dtype == DT_F32;
}

static bool attention_grid_bwd_match(const struct query *q)
{
    for (int i = 0; i < 5; i++)
        if (!heads_fit(q->in[i])) return false;
    for (int i = IN_BTABLE; i < q->nin; i++)
        if (!table_fits(q->in[i]) || q->out[i - IN_BTABLE + 3]->dtype != DT_F32) return false;
    return heads_fit(q->out[0]) && heads_fit(q->out[1]) && heads_fit(q->out[2]) && q->in[IN_LSE]->dtype == DT_F32;
}

/* Returns the bytes of a launch of these dimensions. */
static uint64_t grid_bytes(const int64_t *dim, const union attr *attr, bool biased, bool backward, bool narrow,
                           int threads)
{
    const struct heads n = grid_heads(dim, attr);
    struct score_grid g = grid_of(attr, biased);
    if (!backward) return attention_bytes(&n, &g, threads);
    struct grid_bwd x = grid_bwd_of(attr, biased, &n);
    return attention_bwd_bytes(&n, &x, narrow, threads);
}

/* Runs attention on a grid, or its gradient, from the operands of `l` and two tables. */
static void grid_run(const struct launch *l, const int64_t *dim, const struct operand *tables, bool biased,
                     bool backward)
{
    const struct heads n = grid_heads(dim, l->attr);
    if (backward) {
        struct grid_bwd x = grid_bwd_of(l->attr, biased, &n);
        x.g.table[0] = &tables[0], x.g.table[1] = &tables[1];
        attention_backward(l, &n, &x, false);
    } else {
        struct score_grid g = grid_of(l->attr, biased);
        g.table[0] = &tables[0], g.table[1] = &tables[1];
        attention_forward(l, &n, &g, false);
    }
}

#define GRID_KERNELS(OP, name, biased)                                                                                \
    static uint64_t name##_workspace(const struct query *q)                                                           \
    {                                                                                                                 \
        return grid_bytes(q->in[IN_Q]->dim, q->attr, biased, false, false, q->profile->threads);                      \
    }                                                                                                                 \
    static uint64_t name##_bwd_workspace(const struct query *q)                                                       \
    {                                                                                                                 \
        return grid_bytes(q->in[IN_BQ]->dim, q->attr, biased, true, q->out[0]->dtype != DT_F32, q->profile->threads); \
    }                                                                                                                 \
    static void name##_run(const struct launch *l) { grid_run(l, l->in[IN_Q].dim, &l->in[IN_TABLE], biased, false); } \
    static void name##_bwd_run(const struct launch *l)                                                                \
    {                                                                                                                 \
        grid_run(l, l->in[IN_BQ].dim, &l->in[IN_BTABLE], biased, true);                                               \
    }                                                                                                                 \
    CPU_KERNELS(OP, {0, "cpu_" #name, attention_grid_match, name##_workspace, name##_run});                           \
    CPU_KERNELS(OP##_BWD, {0, "cpu_" #name "_bwd", attention_grid_bwd_match, name##_bwd_workspace, name##_bwd_run})

GRID_KERNELS(ATTENTION_REL, attention_rel, false);
GRID_KERNELS(ATTENTION_BIAS, attention_bias, true);

/* --- windows ---------------------------------------------------------------------------------- */

/* Minimum number of heads of windows per chunk: enough for many threads. */
enum { ITEMS = 96 };

struct windows {
    int64_t B, T, H, D, height, width, window, keys;
    int64_t across, down, count; /* number of windows in a row, in a column, in all */
    int64_t chunk;               /* windows that are gathered at a time */
    union attr inner;            /* attributes of ATTENTION_REL */
};

static struct windows windows_of(const int64_t *q, const union attr *attr)
{
    struct windows n = {.B = q[0], .T = q[1], .H = q[2], .D = q[3], .height = attr->windowed.height,
                        .width = attr->windowed.width, .window = attr->windowed.window};
    n.keys = n.window * n.window;
    n.across = (n.width + n.window - 1) / n.window, n.down = (n.height + n.window - 1) / n.window;
    n.count = n.B * n.across * n.down;
    n.chunk = max_i64(1, min_i64(n.count, (ITEMS + n.H - 1) / n.H));
    n.inner = (union attr){.relative = {attr->windowed.scale, (int32_t)n.window, (int32_t)n.window}};
    return n;
}

/* Returns the token at position s of a window; -1: it is beyond the grid. */
static int64_t token_of(const struct windows *n, int64_t window, int64_t s)
{
    int64_t in = window % (n->across * n->down);
    int64_t y = in / n->across * n->window + s / n->window, x = in % n->across * n->window + s % n->window;
    return y < n->height && x < n->width ? y * n->width + x : -1;
}

/* --- moving rows ------------------------------------------------------------------------------ */

/* Returns the operand of `windows` windows of [.,keys,H,D], dense, at `data`. */
static struct operand gathered(const struct windows *n, void *data, enum dtype t, int64_t windows)
{
    return (struct operand){data, t, 4, {windows, n->keys, n->H, n->D}, {n->keys * n->H * n->D, n->H * n->D, n->D, 1}};
}

/* Copies all heads of one position. */
static void copy_heads(const struct operand *to, int64_t tb, int64_t tt, const struct operand *from, int64_t fb,
                       int64_t ft, int64_t H, int64_t D)
{
    const size_t row = (size_t)D * (size_t)dtype_size(to->dtype);
    if (to->stride[2] == D && from->stride[2] == D) {
        memcpy(heads_row(to, tb, tt, 0), heads_row(from, fb, ft, 0), (size_t)H * row);
        return;
    }
    for (int64_t h = 0; h < H; h++) memcpy(heads_row(to, tb, tt, h), heads_row(from, fb, ft, h), row);
}

/* Gathers windows. Positions beyond the grid get pad's row `which`, or 0 without pad. */
static void gather(const struct windows *n, const struct operand *to, const struct operand *from,
                   const struct operand *pad, int64_t which, int64_t first, int threads)
{
    const int64_t places = to->dim[0] * n->keys, each = n->across * n->down;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < places; i++) {
        const int64_t window = i / n->keys, s = i % n->keys, token = token_of(n, first + window, s);
        if (token >= 0) {
            copy_heads(to, window, s, from, (first + window) / each, token, n->H, n->D);
        } else if (pad) {
            for (int64_t h = 0; h < n->H; h++)
                dtype_convert(heads_row(to, window, s, h), to->dtype,
                              (const char *)pad->data +
                                  (which * pad->stride[0] + h * pad->stride[1]) * dtype_size(pad->dtype),
                              pad->dtype, n->D);
        } else {
            memset(heads_row(to, window, s, 0), 0, (size_t)(n->H * n->D * dtype_size(to->dtype)));
        }
    }
}

static void scatter(const struct windows *n, const struct operand *to, const struct operand *from, int64_t first,
                    int threads)
{
    const int64_t places = from->dim[0] * n->keys, each = n->across * n->down;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < places; i++) {
        const int64_t window = i / n->keys, s = i % n->keys, token = token_of(n, first + window, s);
        if (token >= 0) copy_heads(to, (first + window) / each, token, from, window, s, n->H, n->D);
    }
}

/* Copies between lse [B,H,T] and a chunk's [windows,H,keys]; a position beyond the grid has 0. */
static void move_lse(const struct windows *n, const struct operand *lse, float *chunk, int64_t first, int64_t windows,
                     bool back)
{
    const int64_t each = n->across * n->down;
    for (int64_t i = 0; i < windows * n->H * n->keys; i++) {
        const int64_t window = first + i / n->keys / n->H, h = i / n->keys % n->H,
                      token = token_of(n, window, i % n->keys);
        float *at = (float *)lse->data + window / each * lse->stride[0] + h * lse->stride[1] + token * lse->stride[2];
        if (back && token >= 0) *at = chunk[i];
        if (!back) chunk[i] = token >= 0 ? *at : 0;
    }
}

static struct operand lse_operand(const struct windows *n, float *data, int64_t windows)
{
    return (struct operand){data, DT_F32, 3, {windows, n->H, n->keys}, {n->H * n->keys, n->keys, 1}};
}

/* --- memory ----------------------------------------------------------------------------------- */

static uint64_t reserve(uint64_t *at, int64_t elements, int64_t size)
{
    uint64_t here = *at;
    *at += (uint64_t)round_up(elements * size, 64);
    return here;
}

/* Offsets in bytes. */
struct layout {
    uint64_t rows[8], lse, tables, sums, pad, inner;
};

static struct layout layout_of(const struct windows *n, enum dtype t, int rows, bool backward)
{
    struct layout y = {0};
    uint64_t at = 0;
    const int64_t table = (2 * n->window - 1) * n->D;
    for (int i = 0; i < rows; i++) y.rows[i] = reserve(&at, n->chunk * n->keys * n->H * n->D, dtype_size(t));
    y.lse = reserve(&at, n->chunk * n->H * n->keys, sizeof(float));
    if (backward) y.tables = reserve(&at, 2 * table, sizeof(float)), y.sums = reserve(&at, 2 * table, sizeof(double));
    if (backward) y.pad = reserve(&at, 2 * n->H * n->D, sizeof(double));
    y.inner = at;
    return y;
}

static uint64_t inner_bytes(const struct windows *n, int64_t windows, enum dtype t, bool backward, int threads)
{
    return grid_bytes((int64_t[]){windows, n->keys, n->H, n->D}, &n->inner, false, backward, t != DT_F32, threads);
}

/* Returns the bytes of all: the last chunk may be smaller and have another layout. */
static uint64_t bytes(const struct query *q, int heads, int rows, bool backward)
{
    const struct windows n = windows_of(q->in[heads]->dim, q->attr);
    const enum dtype t = q->in[heads]->dtype;
    const int64_t rest = n.count % n.chunk;
    uint64_t most = inner_bytes(&n, n.chunk, t, backward, q->profile->threads);
    uint64_t last = rest ? inner_bytes(&n, rest, t, backward, q->profile->threads) : 0;
    return layout_of(&n, t, rows, backward).inner + (most > last ? most : last);
}

static bool fits(const struct query *q, int first, int heads, int table, int outs)
{
    for (int i = first; i < first + heads; i++)
        if (!heads_fit(q->in[i]) || q->in[i]->dtype != q->in[0]->dtype) return false;
    for (int i = 0; i < outs; i++)
        if (!heads_fit(q->out[i]) || q->out[i]->dtype != q->in[0]->dtype) return false;
    if (!table_fits(q->in[table]) || !table_fits(q->in[table + 1])) return false;
    const struct tensor *pad = table + 2 < q->nin ? q->in[table + 2] : NULL;
    return !pad || (table_fits(pad) && (pad->stride[2] == 1 || pad->dim[2] == 1));
}

/* --- forward ---------------------------------------------------------------------------------- */

static bool attention_window_match(const struct query *q)
{
    return fits(q, 0, 3, IN_TABLE, 1) && q->out[1]->dtype == DT_F32;
}

static uint64_t attention_window_workspace(const struct query *q) { return bytes(q, IN_Q, 4, false); }

static void attention_window_run(const struct launch *l)
{
    const struct windows n = windows_of(l->in[IN_Q].dim, l->attr);
    const enum dtype t = l->in[IN_Q].dtype;
    const struct layout y = layout_of(&n, t, 4, false);
    const struct operand *pad = launch_has(l, IN_PAD) ? &l->in[IN_PAD] : NULL;
    char *work = l->work;
    float *lse = (float *)(void *)(work + y.lse);
    for (int64_t first = 0; first < n.count; first += n.chunk) {
        const int64_t windows = min_i64(n.chunk, n.count - first);
        struct launch inner = {.attr = &n.inner, .nin = 5, .nout = 2, .work = work + y.inner,
                               .work_bytes = l->work_bytes - y.inner, .threads = l->threads};
        for (int i = 0; i < 3; i++) {
            inner.in[i] = gathered(&n, work + y.rows[i], t, windows);
            gather(&n, &inner.in[i], &l->in[i], i ? pad : NULL, i - 1, first, l->threads);
        }
        inner.out[0] = gathered(&n, work + y.rows[3], t, windows), inner.out[1] = lse_operand(&n, lse, windows);
        grid_run(&inner, inner.in[IN_Q].dim, &l->in[IN_TABLE], false, false);
        scatter(&n, &l->out[0], &inner.out[0], first, l->threads);
        move_lse(&n, &l->out[1], lse, first, windows, true);
    }
}

/* --- backward --------------------------------------------------------------------------------- */

static bool attention_window_bwd_match(const struct query *q)
{
    return fits(q, 0, 5, IN_BTABLE, 3) && q->in[IN_LSE]->dtype == DT_F32 && q->out[3]->dtype == DT_F32 &&
           q->out[4]->dtype == DT_F32 && q->out[5]->dtype == DT_F32;
}

static uint64_t attention_window_bwd_workspace(const struct query *q) { return bytes(q, IN_BQ, 8, true); }

/* Adds dk and dv of a chunk's positions beyond the grid to a head's sums [2,H,D]. */
static void gather_pad(const struct windows *n, double *sums, const struct operand *dk, const struct operand *dv,
                       int64_t first, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < 2 * n->H; i++) {
        const struct operand *from = i < n->H ? dk : dv;
        for (int64_t position = 0; position < from->dim[0] * n->keys; position++) {
            const int64_t window = position / n->keys, s = position % n->keys;
            if (token_of(n, first + window, s) >= 0) continue;
            float row[HEAD_MAX];
            dtype_convert(row, DT_F32, heads_row(from, window, s, i % n->H), from->dtype, n->D);
            for (int64_t d = 0; d < n->D; d++) sums[i * n->D + d] += (double)row[d];
        }
    }
}

static void store_sums(const struct operand *to, const double *sums)
{
    int64_t at[3] = {0}, n = operand_elements(to);
    for (int64_t e = 0; e < n; e++) {
        int64_t position = 0, rest = e;
        for (int i = to->rank; i-- > 0; rest /= to->dim[i])
            at[i] = rest % to->dim[i], position += at[i] * to->stride[i];
        ((float *)to->data)[position] = (float)sums[e];
    }
}

/* Computes one chunk; adds to the sums of the tables and of pad. */
static void chunk_backward(const struct launch *l, const struct windows *n, const struct layout *y, int64_t first)
{
    const int64_t windows = min_i64(n->chunk, n->count - first), rows = 2 * n->window - 1;
    const struct operand *pad = launch_has(l, IN_BPAD) ? &l->in[IN_BPAD] : NULL;
    char *work = l->work;
    float *lse = (float *)(void *)(work + y->lse), *tables = (float *)(void *)(work + y->tables);
    double *sums = (double *)(void *)(work + y->sums);
    struct launch inner = {.attr = &n->inner, .nin = 8, .nout = 5, .work = work + y->inner,
                               .work_bytes = l->work_bytes - y->inner, .threads = l->threads};
    for (int i = 0; i < 5; i++) {
        const bool other = i == IN_BK || i == IN_BV;
        inner.in[i] = gathered(n, work + y->rows[i], l->in[i].dtype, windows);
        gather(n, &inner.in[i], &l->in[i], other ? pad : NULL, i - IN_BK, first, l->threads);
    }
    inner.in[IN_LSE] = lse_operand(n, lse, windows);
    move_lse(n, &l->in[IN_LSE], lse, first, windows, false);
    for (int i = 0; i < 3; i++) inner.out[i] = gathered(n, work + y->rows[5 + i], l->out[i].dtype, windows);
    for (int i = 0; i < 2; i++)
        inner.out[3 + i] = (struct operand){tables + i * rows * n->D, DT_F32, 2, {rows, n->D}, {n->D, 1}};
    grid_run(&inner, inner.in[IN_BQ].dim, &l->in[IN_BTABLE], false, true);
    for (int i = 0; i < 3; i++) scatter(n, &l->out[i], &inner.out[i], first, l->threads);
    for (int64_t e = 0; e < 2 * rows * n->D; e++) sums[e] += (double)tables[e];
    gather_pad(n, (double *)(void *)(work + y->pad), &inner.out[1], &inner.out[2], first, l->threads);
}

static void attention_window_bwd_run(const struct launch *l)
{
    const struct windows n = windows_of(l->in[IN_BQ].dim, l->attr);
    const struct layout y = layout_of(&n, l->in[IN_BQ].dtype, 8, true);
    double *sums = (double *)(void *)((char *)l->work + y.sums), *pad = (double *)(void *)((char *)l->work + y.pad);
    memset(sums, 0, (size_t)(2 * (2 * n.window - 1) * n.D) * sizeof *sums);
    memset(pad, 0, (size_t)(2 * n.H * n.D) * sizeof *pad);
    for (int64_t first = 0; first < n.count; first += n.chunk) chunk_backward(l, &n, &y, first);
    store_sums(&l->out[3], sums);
    store_sums(&l->out[4], sums + (2 * n.window - 1) * n.D);
    store_sums(&l->out[5], pad);
}

CPU_KERNEL_WORK(ATTENTION_WINDOW, attention_window);
CPU_KERNEL_WORK(ATTENTION_WINDOW_BWD, attention_window_bwd);
