/*
 * conv.c: the running half of CONV, CONV_DX and CONV_DW: the algorithms of plan_conv.h, built from
 * matrix products (gemm.h) with the copies of conv.cu, from the direct sums of depthwise.cu, or
 * from conv_tiles.cu.
 *
 *     CONV     y [P,O]          = patches(x) [P,K] by_tap [O,K]^T        K = taps C
 *     CONV_DW  by_tap [O,K]     = dy [P,O]^T patches(x) [P,K]
 *     CONV_DX  tiles: [P,K]     = dy [P,O] by_tap [O,K]
 *              lines: line a of every row of tiles, [W2, side C] = dy [W2,O] by_tap_a [O, side C]
 *              phases: [P,C]    = patches(dy) [P,taps O] by_tap [taps O,C]
 *
 * Lines are tiles without the copy. In each row of tiles, line a is one matrix, W2 pixels of dy by
 * `side` pixels of dx, stored in dx as it is. The rows of tiles are the library's batch, and `side`
 * products compute all lines. dy is read `side` times, so this pays off for a small side.
 *
 * Patches are written and multiplied a chunk of rows at a time. Only the last chunk may be shorter,
 * so a sweep needs at most two prepared products, a full one and a rest. CONV computes both by one
 * algorithm; CONV_DW adds up its chunks in f32, in order.
 */
#include "cuda/maps/plan_conv.h"

#include "cuda/maps/launch_conv.h"
#include "cuda/products/gemm.h"
#include "graph/ops.h"

struct pair {
    struct gemm full, rest;
};

/* How a row of conv.def computes its algorithm. */
enum conv_by {
    BY_PRODUCTS, /* as plan_conv.h says */
    BY_LINES,    /* tiles line by line; the product is pair[0].full */
    BY_TILES,    /* by the kernels of conv_tiles.cu; there are no products */
    BY_3X3,      /* depthwise: all 9 taps at a time */
};

struct convolution {
    struct conv_layout at;
    int sweeps;          /* stride^2 for phases, else 1 */
    enum conv_by by;
    int64_t parts;       /* the partial sums of those kernels' CONV_DW */
    struct pair pair[];  /* one per sweep */
};

/* --- layouts and addresses -------------------------------------------------------------------- */

static struct conv_layout layout_of(const struct launch *l, enum op op)
{
    const int64_t *first = l->in[0].dim, *second = l->in[1].dim, *out = l->out[0].dim;
    const int64_t *x = op == OP_CONV ? first : op == OP_CONV_DX ? out : second;
    const int64_t *y = op == OP_CONV ? out : first, *w = op == OP_CONV_DW ? out : second;
    struct conv_layout at = conv_layout(op, l->attr, x, y, w, l->in[0].dtype, 0);
    /* The library's share is the planned workspace minus the rest. */
    CHECK(l->work_bytes >= at.bytes, "%llu bytes of workspace", (unsigned long long)l->work_bytes);
    return at.algo == CONV_DEPTHWISE ? at : conv_layout(op, l->attr, x, y, w, l->in[0].dtype, l->work_bytes - at.bytes);
}

static void *work_at(const struct launch *l, uint64_t offset) { return (char *)l->work + offset; }

static int size_of(const struct launch *l) { return (int)dtype_size(l->in[0].dtype); }

/* Returns the address of row `first` of a matrix with rows of `elements` elements. */
static void *row_at(const struct operand *x, int64_t first, int64_t elements)
{
    return (char *)x->data + first * elements * (int64_t)dtype_size(x->dtype);
}

/* --- products --------------------------------------------------------------------------------- */

static struct view view_work(enum dtype t, int64_t row, int64_t column)
{
    return (struct view){.dtype = t, .row = row, .column = column, .align = 256};
}

/* Returns a view of an operand where each product begins at a multiple of `rows` rows. */
static struct view view_rows(const struct entry *entry, int slot, int64_t rows, int64_t row, int64_t column)
{
    const struct operand *x = slot < MAX_IN ? &entry->launch.in[slot] : &entry->launch.out[slot - MAX_IN];
    const int64_t length = max_i64(row, column);
    const uint32_t step = gemm_align((uint64_t)(rows * length) * dtype_size(x->dtype));
    return (struct view){.dtype = x->dtype, .row = row, .column = column,
                         .align = (uint32_t)min_i64(step, gemm_align_operand(entry, slot))};
}

static void set_bias(struct gemm_shape *s, const struct entry *entry)
{
    if (!has(&entry->launch, 2)) return;
    s->bias = true;
    s->bias_dtype = entry->launch.in[2].dtype;
    s->bias_align = gemm_align_operand(entry, 2);
}

/* Returns the rows of the product whose algorithm computes every chunk of CONV: a pixel has the
 * same bits in each, and in a part of the images too. */
static int64_t whole_rows(const struct launch *l, const struct conv_layout *at, int64_t K)
{
    const int64_t results = portion_whole(l->portion, conv_results(&at->n));
    return at->algo == CONV_PLAIN ? results : conv_rows_at_once(results, K * size_of(l));
}

static struct gemm_shape shape_conv(const struct entry *entry, const struct conv_layout *at)
{
    const struct conv *n = &at->n;
    const int64_t K = conv_taps(n) * n->C;
    const enum dtype t = entry->launch.in[0].dtype;
    const bool plain = at->algo == CONV_PLAIN;
    struct gemm_shape s = {.N = n->O, .K = K, .batches = 1, .whole_M = whole_rows(&entry->launch, at, K),
                              .a = plain ? view_rows(entry, 0, 0, K, 1) : view_work(t, K, 1),
                              .b = plain ? view_rows(entry, 1, 0, 1, K) : view_work(t, 1, K),
                              .c = view_rows(entry, MAX_IN, at->rows, n->O, 1)};
    set_bias(&s, entry);
    return s;
}

static struct gemm_shape shape_dw(const struct entry *entry, const struct conv_layout *at)
{
    const struct conv *n = &at->n;
    const int64_t K = conv_taps(n) * n->C;
    const bool plain = at->algo == CONV_PLAIN;
    return (struct gemm_shape){.M = n->O, .N = K, .batches = 1, .a = view_rows(entry, 0, at->rows, 1, n->O),
                               .b = plain ? view_rows(entry, 1, 0, K, 1) : view_work(entry->launch.in[1].dtype, K, 1),
                               .c = plain ? view_rows(entry, MAX_IN, 0, K, 1) : view_work(DT_F32, K, 1)};
}

/* Returns the product of plain and tiles: a row of dy gives a pixel of dx, or a patch of it. */
static struct gemm_shape shape_dx(const struct entry *entry, const struct conv_layout *at)
{
    const struct conv *n = &at->n;
    const int64_t N = conv_taps(n) * n->C;
    const enum dtype t = entry->launch.in[0].dtype;
    const bool plain = at->algo == CONV_PLAIN;
    struct gemm_shape s = {.N = N, .K = n->O, .batches = 1, .a = view_rows(entry, 0, at->rows, n->O, 1),
                              .b = plain ? view_rows(entry, 1, 0, N, 1) : view_work(t, N, 1),
                              .c = plain ? view_rows(entry, MAX_IN, 0, N, 1) : view_work(t, N, 1)};
    set_bias(&s, entry);
    if (!plain) s.bias_align = 256; /* the bias is repeated in the workspace */
    return s;
}

static struct gemm_shape shape_phase(const struct entry *entry, const struct conv_layout *at, const struct sweep *phase)
{
    const struct conv *n = &at->n;
    const int64_t K = phase->ky * phase->kx * n->O;
    const enum dtype t = entry->launch.in[0].dtype;
    struct gemm_shape s = {.N = n->C, .K = K, .batches = 1, .a = view_work(t, K, 1), .b = view_work(t, n->C, 1),
                              .c = n->stride > 1 ? view_work(t, n->C, 1) : view_rows(entry, MAX_IN, at->rows, n->C, 1)};
    set_bias(&s, entry);
    return s;
}

/* Returns the product of tiles by lines: line 0 and the others are the same, each one line further
 * on. */
static struct gemm_shape shape_lines(const struct entry *entry, const struct conv_layout *at)
{
    const struct conv *n = &at->n;
    const int64_t N = n->stride * n->C, size = dtype_size(entry->launch.in[0].dtype);
    struct gemm_shape s = {.M = n->W2, .N = N, .K = n->O, .batches = n->B * n->H2,
                           .a = view_rows(entry, 0, n->W2, n->O, 1),
                           .b = view_work(entry->launch.in[0].dtype, n->stride * N, 1),
                           .c = view_rows(entry, MAX_IN, n->W2, N, 1)};
    s.b.align = gemm_align((uint64_t)(N * size));
    s.a.batch = n->W2 * n->O;
    s.c.batch = n->stride * n->W2 * N;
    set_bias(&s, entry);
    s.bias_align = 256; /* the bias is repeated in the workspace */
    return s;
}

/* Begins the products of full chunks and of the rest. The dimension of length `results` is M, or K
 * in CONV_DW. It is split into chunks of at->rows; 0: it is not split. */
static int pair_begin(struct pair *p, const struct cuda_state *s, struct gemm_shape shape, const struct conv_layout *at,
                      int64_t results, struct error *e)
{
    int64_t *cut = shape.M ? &shape.K : &shape.M;
    if (at->rows && results >= at->rows) {
        *cut = at->rows;
        TRY(gemm_begin(&p->full, s, &shape, at->library, e));
    }
    *cut = at->rows ? results % at->rows : results;
    return *cut ? gemm_begin(&p->rest, s, &shape, at->library, e) : PL_OK;
}

static int pair_run(const struct pair *p, const struct launch *l, const struct conv_layout *at, int64_t rows,
                    const struct gemm_at *operands, struct error *e)
{
    return gemm_run(rows == at->rows ? &p->full : &p->rest, operands, l->work, at->library, l->stream, e);
}

/* --- preparing -------------------------------------------------------------------------------- */

static int begin(const struct cuda_state *s, struct entry *entry, enum op op, enum conv_by by, struct error *e)
{
    CHECK((uintptr_t)entry->launch.work % 256 == 0, "cuBLASLt needs a workspace aligned to 256 bytes");
    const struct conv_layout at = layout_of(&entry->launch, op);
    const int64_t sweeps = at.algo == CONV_PHASES ? at.n.stride * at.n.stride : 1;
    struct convolution *c = mem_alloc(sizeof *c + (size_t)sweeps * sizeof c->pair[0]);
    entry->launch.state = c;
    c->at = at;
    c->sweeps = (int)sweeps;
    c->by = by;
    if (at.algo == CONV_DEPTHWISE) return PL_OK;
    if (by == BY_TILES) {
        const struct conv_tiles t = conv_tiles_of(&at.n);
        c->parts = op == OP_CONV_DW ? conv_tiles_parts(&t, entry->launch.work_bytes - at.patches) : 0;
        return PL_OK;
    }
    for (int64_t r = 0; at.algo == CONV_PHASES && r < sweeps; r++) {
        const struct sweep phase = sweep_backward(&at.n, r / at.n.stride, r % at.n.stride);
        if (!phase.ky || !phase.kx || !sweep_results(&phase)) continue;
        TRY(pair_begin(&c->pair[r], s, shape_phase(entry, &at, &phase), &at, sweep_results(&phase), e));
    }
    if (at.algo == CONV_PHASES) return PL_OK;
    if (by == BY_LINES) {
        const struct gemm_shape lines = shape_lines(entry, &at);
        return gemm_begin(&c->pair[0].full, s, &lines, at.library, e);
    }
    const struct gemm_shape shape = op == OP_CONV      ? shape_conv(entry, &at)
                                       : op == OP_CONV_DX ? shape_dx(entry, &at)
                                                          : shape_dw(entry, &at);
    return pair_begin(&c->pair[0], s, shape, &at, conv_results(&at.n), e);
}

#define PREPARE(NAME, OP, BY) \
    static int NAME(const struct cuda_state *s, struct entry *entry, struct error *e) \
    { \
        return begin(s, entry, OP, BY, e); \
    }
PREPARE(conv_prepare, OP_CONV, BY_PRODUCTS)
PREPARE(conv_prepare_tiles, OP_CONV, BY_TILES)
PREPARE(conv_dx_prepare, OP_CONV_DX, BY_PRODUCTS)
PREPARE(conv_dx_prepare_tiles, OP_CONV_DX, BY_TILES)
PREPARE(conv_dx_prepare_lines, OP_CONV_DX, BY_LINES)
PREPARE(conv_dw_prepare, OP_CONV_DW, BY_PRODUCTS)
PREPARE(conv_dw_prepare_tiles, OP_CONV_DW, BY_TILES)
PREPARE(conv_dw_prepare_3x3, OP_CONV_DW, BY_3X3)

static void conv_release(void *state)
{
    struct convolution *c = state;
    for (int r = 0; r < c->sweeps; r++) {
        gemm_end(&c->pair[r].full);
        gemm_end(&c->pair[r].rest);
    }
    mem_free(c);
}

static void conv_list(const void *state, struct text *out)
{
    const struct convolution *c = state;
    for (int r = 0; r < c->sweeps; r++) {
        gemm_list(&c->pair[r].full, out);
        gemm_list(&c->pair[r].rest, out);
    }
}

/* --- copies ----------------------------------------------------------------------------------- */

static int copy_patches(const struct launch *l, const struct conv_layout *at, const struct operand *map,
                        const struct sweep *s, int64_t first, int64_t rows, struct error *e)
{
    const struct conv_patches g = patch_grid_of(s, map->dim[3]);
    TRY_CUDA(cuda_conv_patches(work_at(l, at->patches), map->data, &g, first, rows, size_of(l), l->access,
                               (enum patch_form)l->form, l->stream));
    return PL_OK;
}

static int copy_weights(const struct launch *l, const struct conv_layout *at, const struct sweep *s, int64_t o_step,
                        int64_t t_step, struct error *e)
{
    const struct tap_grid g = {.O = at->n.O, .depth = at->n.depth, .kh = at->n.kh, .kw = at->n.kw, .ky = s->ky,
                               .kx = s->kx, .tap_y = s->tap_y, .tap_x = s->tap_x, .tap_step = s->tap_step,
                               .o_step = o_step, .t_step = t_step};
    TRY_CUDA(cuda_conv_weights(work_at(l, at->weights), l->in[1].data, &g, size_of(l), l->stream));
    return PL_OK;
}

static struct depthwise depthwise_of(const struct conv *n)
{
    return (struct depthwise){n->B, n->H, n->W, n->C, n->H2, n->W2, n->kh, n->kw, n->stride, n->pad};
}

static void *bias_of(const struct launch *l) { return has(l, 2) ? l->in[2].data : NULL; }

/* --- CONV ------------------------------------------------------------------------------------- */

static int conv_launch(const struct launch *l, struct error *e)
{
    const struct convolution *c = l->state;
    const struct conv_layout *at = &c->at;
    const struct conv *n = &at->n;
    const struct depthwise d = depthwise_of(n);
    if (at->algo == CONV_DEPTHWISE) {
        TRY_CUDA(cuda_depthwise(l->out[0].data, l->in[0].data, l->in[1].data, bias_of(l), work_at(l, at->weights), &d,
                                store_of(l->in[0].dtype), l->access, l->stream));
        return PL_OK;
    }
    if (at->algo == CONV_PLAIN) {
        const struct gemm_at all = {l->out[0].data, l->in[0].data, l->in[1].data, bias_of(l), NULL};
        return pair_run(&c->pair[0], l, at, conv_results(n), &all, e);
    }
    const struct sweep s = sweep_forward(n);
    TRY(copy_weights(l, at, &s, conv_taps(n) * n->C, n->C, e));
    if (c->by == BY_TILES) {
        const struct conv_tiles t = conv_tiles_of(n);
        TRY_CUDA(cuda_conv_tiles(l->out[0].data, l->in[0].data, work_at(l, at->weights), bias_of(l), &t,
                                 store_of(l->in[0].dtype), (enum conv_tiles_form)l->form, l->stream));
        return PL_OK;
    }
    for (int64_t p = 0, rows; p < conv_results(n); p += rows) {
        rows = min_i64(at->rows, conv_results(n) - p);
        const struct gemm_at some = {row_at(&l->out[0], p, n->O), work_at(l, at->patches), work_at(l, at->weights),
                                     bias_of(l), NULL};
        TRY(copy_patches(l, at, &l->in[0], &s, p, rows, e));
        TRY(pair_run(&c->pair[0], l, at, rows, &some, e));
    }
    return PL_OK;
}

/* --- CONV_DX ---------------------------------------------------------------------------------- */

static int dx_lines(const struct launch *l, const struct convolution *c, struct error *e)
{
    const struct conv_layout *at = &c->at;
    const struct conv *n = &at->n;
    const int64_t N = n->stride * n->C;
    for (int64_t a = 0; a < n->stride; a++) {
        const struct gemm_at line = {row_at(&l->out[0], a * n->W2, N), l->in[0].data,
                                        work_at(l, at->weights + (uint64_t)(a * N * size_of(l))),
                                        has(l, 2) ? work_at(l, at->stage) : NULL, NULL};
        TRY(gemm_run(&c->pair[0].full, &line, l->work, at->library, l->stream, e));
    }
    return PL_OK;
}

static int dx_tiles(const struct launch *l, const struct convolution *c, struct error *e)
{
    const struct conv_layout *at = &c->at;
    const struct conv *n = &at->n;
    const struct sweep s = sweep_forward(n);
    TRY(copy_weights(l, at, &s, conv_taps(n) * n->C, n->C, e));
    if (has(l, 2))
        TRY_CUDA(cuda_conv_repeat(work_at(l, at->stage), l->in[2].data, conv_taps(n), n->C, size_of(l), l->stream));
    if (c->by == BY_TILES) {
        const struct conv_tiles t = conv_tiles_of(n);
        TRY_CUDA(cuda_conv_tiles_dx(l->out[0].data, l->in[0].data, work_at(l, at->weights),
                                    has(l, 2) ? work_at(l, at->stage) : NULL, &t, store_of(l->in[0].dtype),
                                    (enum conv_tiles_form)l->form, l->stream));
        return PL_OK;
    }
    if (c->by == BY_LINES) return dx_lines(l, c, e);
    for (int64_t p = 0, rows; p < conv_results(n); p += rows) {
        rows = min_i64(at->rows, conv_results(n) - p);
        const struct gemm_at some = {work_at(l, at->patches), row_at(&l->in[0], p, n->O), work_at(l, at->weights),
                                        has(l, 2) ? work_at(l, at->stage) : NULL, NULL};
        TRY(pair_run(&c->pair[0], l, at, rows, &some, e));
        TRY_CUDA(cuda_conv_untile(l->out[0].data, work_at(l, at->patches), n->W2, n->stride, n->C, p, rows, size_of(l),
                                  l->access, l->stream));
    }
    return PL_OK;
}

/* Computes a phase. One without taps reads nothing of dy: its pixels are the bias. */
static int dx_phase(const struct launch *l, const struct convolution *c, int64_t r, struct error *e)
{
    const struct conv_layout *at = &c->at;
    const struct conv *n = &at->n;
    const struct sweep s = sweep_backward(n, r / n->stride, r % n->stride);
    const struct pixel_grid g =
        {.H = n->H, .W = n->W, .C = n->C, .ny = s.ny, .nx = s.nx, .step = s.out_step, .oy = s.oy, .ox = s.ox};
    const int64_t results = sweep_results(&s);
    if (!results) return PL_OK;
    if (!s.ky || !s.kx) {
        TRY_CUDA(cuda_conv_scatter(l->out[0].data, bias_of(l), &g, 0, results, true, size_of(l), l->access, l->stream));
        return PL_OK;
    }
    TRY(copy_weights(l, at, &s, n->C, n->O * n->C, e));
    for (int64_t p = 0, rows; p < results; p += rows) {
        rows = min_i64(at->rows, results - p);
        void *to = n->stride > 1 ? work_at(l, at->stage) : row_at(&l->out[0], p, n->C);
        const struct gemm_at some = {to, work_at(l, at->patches), work_at(l, at->weights), bias_of(l), NULL};
        TRY(copy_patches(l, at, &l->in[0], &s, p, rows, e));
        TRY(pair_run(&c->pair[r], l, at, rows, &some, e));
        if (n->stride > 1)
            TRY_CUDA(cuda_conv_scatter(l->out[0].data, to, &g, p, rows, false, size_of(l), l->access, l->stream));
    }
    return PL_OK;
}

static int conv_dx_launch(const struct launch *l, struct error *e)
{
    const struct convolution *c = l->state;
    const struct conv_layout *at = &c->at;
    const struct depthwise d = depthwise_of(&at->n);
    if (at->algo == CONV_DEPTHWISE) {
        TRY_CUDA(cuda_depthwise_dx(l->out[0].data, l->in[0].data, l->in[1].data, bias_of(l), work_at(l, at->weights),
                                   &d, store_of(l->in[0].dtype), l->access, l->stream));
        return PL_OK;
    }
    if (at->algo == CONV_PLAIN) {
        const struct gemm_at all = {l->out[0].data, l->in[0].data, l->in[1].data, bias_of(l), NULL};
        return pair_run(&c->pair[0], l, at, conv_results(&at->n), &all, e);
    }
    if (at->algo == CONV_TILES) return dx_tiles(l, c, e);
    for (int64_t r = 0; r < c->sweeps; r++) TRY(dx_phase(l, c, r, e));
    return PL_OK;
}

/* --- CONV_DW ---------------------------------------------------------------------------------- */

static int dw_patches(const struct launch *l, const struct convolution *c, struct error *e)
{
    const struct conv_layout *at = &c->at;
    const struct conv *n = &at->n;
    const struct sweep s = sweep_forward(n);
    const struct conv_tiles t = conv_tiles_of(n);
    if (c->by == BY_TILES)
        TRY_CUDA(cuda_conv_tiles_dw(work_at(l, at->weights), l->in[0].data, l->in[1].data, work_at(l, at->patches),
                                    c->parts, &t, store_of(l->in[0].dtype), (enum conv_tiles_form)l->form, l->stream));
    for (int64_t p = 0, rows; c->by != BY_TILES && p < conv_results(n); p += rows) {
        rows = min_i64(at->rows, conv_results(n) - p);
        const struct gemm_at some = {work_at(l, at->weights), row_at(&l->in[0], p, n->O), work_at(l, at->patches), NULL,
                                        p ? work_at(l, at->weights) : NULL};
        TRY(copy_patches(l, at, &l->in[1], &s, p, rows, e));
        TRY(pair_run(&c->pair[0], l, at, rows, &some, e));
    }
    TRY_CUDA(cuda_conv_weights_back(l->out[0].data, work_at(l, at->weights), n->O, n->C, conv_taps(n), has(l, 2),
                                    l->stream));
    return PL_OK;
}

static int conv_dw_launch(const struct launch *l, struct error *e)
{
    const struct convolution *c = l->state;
    const struct conv_layout *at = &c->at;
    const struct depthwise d = depthwise_of(&at->n);
    CHECK(!has(l, 2) || l->in[2].data == l->out[0].data, "the result is not in the accumulator's bytes");
    if (at->algo == CONV_DEPTHWISE) {
        TRY_CUDA(cuda_depthwise_dw(l->out[0].data, l->in[0].data, l->in[1].data, work_at(l, at->patches), &d, at->rows,
                                   has(l, 2), c->by == BY_3X3, store_of(l->in[0].dtype), l->stream));
        return PL_OK;
    }
    if (at->algo == CONV_PATCHES) return dw_patches(l, c, e);
    const struct gemm_at all = {l->out[0].data, l->in[0].data, l->in[1].data, NULL, has(l, 2) ? l->in[2].data : NULL};
    return pair_run(&c->pair[0], l, at, conv_results(&at->n), &all, e);
}

CUDA_KERNEL(cuda_conv_depthwise, .prepare = conv_prepare, .launch = conv_launch, .release = conv_release);
CUDA_KERNEL(cublaslt_conv_1x1, .prepare = conv_prepare, .launch = conv_launch, .list = conv_list,
            .release = conv_release);
CUDA_KERNEL(cuda_conv_tiles, .prepare = conv_prepare_tiles, .launch = conv_launch, .release = conv_release);
CUDA_KERNEL(cublaslt_conv_patches, .prepare = conv_prepare, .launch = conv_launch, .list = conv_list,
            .release = conv_release);
CUDA_KERNEL(cuda_conv_dx_depthwise, .prepare = conv_dx_prepare, .launch = conv_dx_launch, .release = conv_release);
CUDA_KERNEL(cublaslt_conv_dx_1x1, .prepare = conv_dx_prepare, .launch = conv_dx_launch, .list = conv_list,
            .release = conv_release);
CUDA_KERNEL(cuda_conv_dx_tiles, .prepare = conv_dx_prepare_tiles, .launch = conv_dx_launch, .release = conv_release);
CUDA_KERNEL(cublaslt_conv_dx_lines, .prepare = conv_dx_prepare_lines, .launch = conv_dx_launch, .list = conv_list,
            .release = conv_release);
CUDA_KERNEL(cublaslt_conv_dx_patches, .prepare = conv_dx_prepare, .launch = conv_dx_launch, .list = conv_list,
            .release = conv_release);
CUDA_KERNEL(cublaslt_conv_dx_phases, .prepare = conv_dx_prepare, .launch = conv_dx_launch, .list = conv_list,
            .release = conv_release);
CUDA_KERNEL(cuda_conv_dw_depthwise_3x3, .prepare = conv_dw_prepare_3x3, .launch = conv_dw_launch,
            .release = conv_release);
CUDA_KERNEL(cuda_conv_dw_depthwise, .prepare = conv_dw_prepare, .launch = conv_dw_launch, .release = conv_release);
CUDA_KERNEL(cublaslt_conv_dw_1x1, .prepare = conv_dw_prepare, .launch = conv_dw_launch, .list = conv_list,
            .release = conv_release);
CUDA_KERNEL(cuda_conv_dw_tiles, .prepare = conv_dw_prepare_tiles, .launch = conv_dw_launch, .release = conv_release);
CUDA_KERNEL(cublaslt_conv_dw_patches, .prepare = conv_dw_prepare, .launch = conv_dw_launch, .list = conv_list,
            .release = conv_release);
