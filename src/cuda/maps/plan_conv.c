/*
 * plan_conv.c: matches convolutions and computes their workspace (plan_conv.h).
 */
#include "cuda/maps/plan_conv.h"

#include "cuda/plan_kernels.h"
#include "graph/ops.h"

enum {
    PATCH_BYTES = 32 << 20, /* of patches at a time: they stay in the cache between write and read */
    PATCH_ROWS = 128,       /* at least one tile of the matmul */
    PARTIAL_PIXELS = 512, PARTIALS_MAX = 256,
};


/* --- the algorithm ------------------------------------------------------------------------ */

static bool is_plain(const struct conv *n) { return n->kh == 1 && n->kw == 1 && n->stride == 1 && n->pad == 0; }

static enum conv_algo algo_of(enum op op, const struct conv *n)
{
    if (conv_is_depthwise(n)) return CONV_DEPTHWISE;
    if (is_plain(n)) return CONV_PLAIN;
    if (op != OP_CONV_DX) return CONV_PATCHES;
    return conv_is_tiling(n) ? CONV_TILES : CONV_PHASES;
}

/* --- workspace ----------------------------------------------------------------------------- */

static void reserve(struct conv_layout *l, uint64_t *at, int64_t bytes)
{
    *at = l->bytes;
    l->bytes = align_up(l->bytes + (uint64_t)bytes, 256);
}

int64_t conv_rows_at_once(int64_t results, int64_t bytes)
{
    int64_t most = PATCH_BYTES / bytes / PATCH_ROWS * PATCH_ROWS;
    return min_i64(results, max_i64(most, PATCH_ROWS));
}

static void layout_depthwise(struct conv_layout *l, enum op op)
{
    const int64_t taps = conv_taps(&l->n) * (int64_t)sizeof(float), results = conv_results(&l->n);
    l->rows = max_i64(PARTIAL_PIXELS, ceil_div(results, PARTIALS_MAX));
    reserve(l, &l->weights, op == OP_CONV_DW ? 0 : l->n.C * taps);
    reserve(l, &l->patches, op == OP_CONV_DW ? ceil_div(results, l->rows) * l->n.C * taps : 0);
}

/* Lays out patches and tiles: a row has every tap of every channel of x. */
static void layout_patches(struct conv_layout *l, enum op op, int64_t size)
{
    const int64_t K = conv_taps(&l->n) * l->n.C;
    l->rows = conv_rows_at_once(conv_results(&l->n), K * size);
    reserve(l, &l->weights, l->n.O * K * (op == OP_CONV_DW ? (int64_t)sizeof(float) : size));
    reserve(l, &l->patches, l->rows * K * size);
    reserve(l, &l->stage, l->algo == CONV_TILES ? K * size : 0); /* the bias, once per tap */
}

/* Lays out phases: phase 0 has the most taps, so it sets the size. */
static void layout_phases(struct conv_layout *l, int64_t size)
{
    const struct conv *n = &l->n;
    const int64_t taps = ceil_div(n->kh, n->stride) * ceil_div(n->kw, n->stride);
    l->rows = conv_rows_at_once(n->B * ceil_div(n->H, n->stride) * ceil_div(n->W, n->stride), taps * n->O * size);
    reserve(l, &l->weights, taps * n->O * n->C * size);
    reserve(l, &l->patches, l->rows * taps * n->O * size);
    reserve(l, &l->stage, n->stride > 1 ? l->rows * n->C * size : 0);
}

struct conv_layout conv_layout(enum op op, const union attr *attr, const int64_t *x, const int64_t *y, const int64_t *w,
                               enum dtype type, uint64_t library)
{
    struct conv_layout l = {.n = {.B = x[0], .H = x[1], .W = x[2], .C = x[3], .H2 = y[1], .W2 = y[2], .O = y[3],
                                  .depth = w[1], .kh = w[2], .kw = w[3], .stride = attr->conv.stride,
                                  .pad = attr->conv.pad}};
    l.algo = algo_of(op, &l.n);
    l.library = l.algo == CONV_DEPTHWISE ? 0 : library;
    l.bytes = align_up(l.library, 256);
    if (l.algo == CONV_DEPTHWISE) layout_depthwise(&l, op);
    else if (l.algo == CONV_PHASES) layout_phases(&l, dtype_size(type));
    else if (l.algo != CONV_PLAIN) layout_patches(&l, op, dtype_size(type));
    return l;
}

static struct conv_layout layout_of(const struct query *q, enum op op)
{
    const struct tensor *first = q->in[0], *second = q->in[1], *out = q->out[0];
    const struct tensor *x = op == OP_CONV ? first : op == OP_CONV_DX ? out : second;
    const struct tensor *y = op == OP_CONV ? out : first, *w = op == OP_CONV_DW ? out : second;
    return conv_layout(op, q->attr, x->dim, y->dim, w->dim, first->dtype, workspace_library(q));
}

static uint64_t workspace_conv(const struct query *q) { return layout_of(q, OP_CONV).bytes; }
static uint64_t workspace_conv_dx(const struct query *q) { return layout_of(q, OP_CONV_DX).bytes; }
static uint64_t workspace_conv_dw(const struct query *q) { return layout_of(q, OP_CONV_DW).bytes; }

/* --- matching --------------------------------------------------------------------------------- */

/* Reports whether a dense map has offsets of 31 bits. */
static bool is_map(const struct tensor *t, enum dtype type)
{
    return is_dense(t, type) && tensor_elements(t) <= INT32_MAX;
}

/* Matches CONV and CONV_DX of one dtype throughout. The library adds the bias, and reads it in
 * packs. */
static bool is_conv(const struct query *q)
{
    const struct tensor *x = q->in[0], *bias = given(q, 2);
    return is_storable(x) && is_map(x, x->dtype) && is_dense(q->in[1], x->dtype) && is_map(q->out[0], x->dtype) &&
           (!bias || (is_dense(bias, x->dtype) && is_aligned(bias)));
}

static bool is_conv_dw(const struct query *q)
{
    const struct tensor *dy = q->in[0], *acc = given(q, 2);
    return is_storable(dy) && is_map(dy, dy->dtype) && is_map(q->in[1], dy->dtype) && is_dense(q->out[0], DT_F32) &&
           (!acc || is_dense(acc, DT_F32));
}

static bool all_aligned(const struct query *q)
{
    bool all = is_aligned(q->out[0]);
    for (int i = 0; i < q->nin; i++) all &= !q->in[i] || is_aligned(q->in[i]);
    return all;
}

/* Reports whether conv_tiles.cu has kernels for it: 2 x 2 tiles in 16 bits. The partial sums of
 * CONV_DW use the workspace of the patches. */
static bool has_tile_kernels(const struct query *q, enum op op)
{
    const struct conv_layout at = layout_of(q, op);
    const enum dtype t = q->in[0]->dtype;
    if ((t != DT_BF16 && t != DT_F16) || at.n.stride != 2 || !conv_is_tiling(&at.n) || !all_aligned(q)) return false;
    const struct conv_tiles n = conv_tiles_of(&at.n);
    if (conv_tiles_form(&n) == CONV_TILES_NONE || n.P > INT32_MAX / 2) return false;
    if (shared_limit(q) < (conv_tiles_form(&n) == CONV_TILES_64_128 ? CONV_TILES_SMALL : CONV_TILES_LARGE))
        return false;
    return op != OP_CONV_DW || conv_tiles_parts(&n, at.bytes - at.patches) > 0;
}

static bool conv_match(const struct query *q, enum op op, enum conv_algo algo)
{
    return (op == OP_CONV_DW ? is_conv_dw(q) : is_conv(q)) && layout_of(q, op).algo == algo;
}

static bool match_depthwise(const struct query *q) { return conv_match(q, OP_CONV, CONV_DEPTHWISE); }
static bool match_plain(const struct query *q) { return conv_match(q, OP_CONV, CONV_PLAIN); }
static bool match_tiles(const struct query *q)
{
    return conv_match(q, OP_CONV, CONV_PATCHES) && has_tile_kernels(q, OP_CONV);
}
static bool match_patches(const struct query *q) { return conv_match(q, OP_CONV, CONV_PATCHES); }
static bool match_dx_depthwise(const struct query *q) { return conv_match(q, OP_CONV_DX, CONV_DEPTHWISE); }
static bool match_dx_plain(const struct query *q) { return conv_match(q, OP_CONV_DX, CONV_PLAIN); }
static bool match_dx_tiles(const struct query *q)
{
    return conv_match(q, OP_CONV_DX, CONV_TILES) && has_tile_kernels(q, OP_CONV_DX);
}
static bool match_dx_lines(const struct query *q)
{
    if (!conv_match(q, OP_CONV_DX, CONV_TILES)) return false;
    const struct conv_layout at = layout_of(q, OP_CONV_DX);
    return conv_is_lines(&at.n);
}
static bool match_dx_patches(const struct query *q) { return conv_match(q, OP_CONV_DX, CONV_TILES); }
static bool match_dx_phases(const struct query *q) { return conv_match(q, OP_CONV_DX, CONV_PHASES); }
static bool match_dw_depthwise(const struct query *q) { return conv_match(q, OP_CONV_DW, CONV_DEPTHWISE); }
/* Matches 3 x 3 filters, of which depthwise.cu reads 4 channels at a time. */
static bool match_dw_depthwise_3x3(const struct query *q)
{
    const int64_t *w = q->out[0]->dim;
    return match_dw_depthwise(q) && w[2] == 3 && w[3] == 3 && w[0] % 4 == 0 && is_aligned(q->in[0]) &&
           is_aligned(q->in[1]);
}
static bool match_dw_plain(const struct query *q) { return conv_match(q, OP_CONV_DW, CONV_PLAIN); }
static bool match_dw_tiles(const struct query *q)
{
    return conv_match(q, OP_CONV_DW, CONV_PATCHES) && has_tile_kernels(q, OP_CONV_DW);
}
static bool match_dw_patches(const struct query *q) { return conv_match(q, OP_CONV_DW, CONV_PATCHES); }

/* --- widths and forms ------------------------------------------------------------------------- */

/* Returns the bytes of an element. Depthwise kernels access packs of channels, the others words of
 * what is copied; the workspace is aligned. */
static int size_of(const struct query *q) { return (int)dtype_size(q->in[0]->dtype); }
static int access_depthwise(const struct query *q) { return access_rows(q, IN(0) | OUT(0), q->in[0]); }

/* Reports whether patches of CONV and CONV_DW, of the map that is input `map`, are copied by
 * lines. */
static bool lines_fit(const struct query *q, enum op op, int map)
{
    const struct conv_layout at = layout_of(q, op);
    const struct sweep s = sweep_forward(&at.n);
    const struct conv_patches g = patch_grid_of(&s, at.n.C);
    return patch_lines_fit(&g, size_of(q)) && access_wide(q, IN(map), 0, 1) == 16;
}
static int access_patches(const struct query *q, enum op op, int map)
{
    return lines_fit(q, op, map) ? 16 : access_wide(q, IN(map), q->in[map]->dim[3] * size_of(q), size_of(q));
}
static int access_conv(const struct query *q) { return access_patches(q, OP_CONV, 0); }
static int access_dw(const struct query *q) { return access_patches(q, OP_CONV_DW, 1); }
static int form_conv(const struct query *q) { return lines_fit(q, OP_CONV, 0) ? PATCH_LINES : PATCH_TAPS; }
static int form_dw(const struct query *q) { return lines_fit(q, OP_CONV_DW, 1) ? PATCH_LINES : PATCH_TAPS; }

/* Returns the access of whole patches of dx, which are copied by line. */
static int access_dx_patches(const struct query *q)
{
    return access_wide(q, OUT(0), q->attr->conv.stride * q->out[0]->dim[3] * size_of(q), size_of(q));
}

/* Returns the access of patches of dy, by tap: most reach beyond the map. With a stride, it is that
 * of pixels of dx or of the bias too. */
static int access_dx_phases(const struct query *q)
{
    const int64_t pixel = q->attr->conv.stride > 1 ? q->out[0]->dim[3] : 0;
    return access_wide(q, IN(0) | IN(2) | OUT(0), (q->in[0]->dim[3] | pixel) * size_of(q), size_of(q));
}

#define PATCH_NAMES {[PATCH_TAPS] = "patches by tap", [PATCH_LINES] = "patches by line"}
static const struct forms forms_conv = {form_conv, PATCH_NAMES};
static const struct forms forms_dw = {form_dw, PATCH_NAMES};

static int tiles_form(const struct query *q, enum op op)
{
    const struct conv_layout at = layout_of(q, op);
    const struct conv_tiles n = conv_tiles_of(&at.n);
    return conv_tiles_form(&n);
}
static int form_tiles(const struct query *q) { return tiles_form(q, OP_CONV); }
static int form_dx_tiles(const struct query *q) { return tiles_form(q, OP_CONV_DX); }
static int form_dw_tiles(const struct query *q) { return tiles_form(q, OP_CONV_DW); }
#define TILES_NAMES {[CONV_TILES_64_128] = "weights of 64 x 128", [CONV_TILES_256_256] = "weights of 256 x 256"}
static const struct forms forms_tiles = {form_tiles, TILES_NAMES};
static const struct forms forms_dx_tiles = {form_dx_tiles, TILES_NAMES};
static const struct forms forms_dw_tiles = {form_dw_tiles, TILES_NAMES};

const struct kernel cuda_plan_conv[] = {
#include "cuda/maps/conv.def"
    {.op = OP_NONE},
};
