/*
 * plan_attention.c: attention, forward and backward: which kernel takes which operands.
 *
 *     few_mma, few     few queries or few keys, as in SAM's mask decoder
 *     hopper           9.0: WGMMA, tiles by TMA; head dimensions 56, 64, 72, 80, 128; nothing is
 *                      added to the scores, or the terms of a grid of 64 columns
 *     dense            8.0 and 7.5: mma.sync; nothing is added to the scores; from 8.0 on also 256
 *     capped           8.0: the same with a soft cap, head dimensions 128 and 256
 *     grid64           the same, over a grid of 64 columns
 *     fast             the same with a mask, a bias or any other grid
 *     the others       any GPU: any head dimension up to 256, and f32 too
 *
 * and within the windows of a grid:
 *
 *     window_hopper    9.0: WGMMA; windows of 14 x 14, head dimensions 64 and 80
 *     window_fast      8.0 and later: mma.sync; windows up to that size, head dimensions 32, 64 and
 *                      80
 *     window_small     7.5: the same in f16, with tiles for its shared memory
 *     window           any GPU: f32 and other head dimensions too
 *
 * Each of hopper, dense and the kernel for any GPU also takes a range of keys for each query.
 *
 * Tensor cores multiply bf16 from 8.0 on and f16 from 7.5 on; there the head dimension is one that
 * the kernels are compiled for, and rows begin at multiples of 16 bytes. All kernels accept strided
 * heads, such as a slice of a joint projection.
 */
#include "cuda/attention/work.h"
#include "cuda/plan_kernels.h"
#include "graph/ops.h"

enum { HEAD_MAX = 256 };

static bool is_half(enum dtype t) { return t == DT_BF16 || t == DT_F16; }
static bool is_stored(enum dtype t) { return t == DT_F32 || is_half(t); }

static bool is_heads(const struct tensor *t, enum dtype dtype)
{
    return t && t->rank == 4 && t->dtype == dtype && (t->stride[3] == 1 || t->dim[3] == 1) && t->dim[3] <= HEAD_MAX &&
           is_stored(dtype);
}

/* Reports whether rows of the last dimension consist of 16-byte chunks of 8 elements; storages
 * begin at multiples of 256. */
static bool has_aligned_rows(const struct tensor *t)
{
    for (int i = 0; i + 1 < t->rank; i++)
        if (t->dim[i] > 1 && t->stride[i] % 8) return false;
    return t->stride[t->rank - 1] == 1 && is_aligned(t);
}

/* Reports whether q, k and v, in the backward behind dout and before o, and the results are heads
 * of one dtype, and lse is f32. `even`: rows at multiples of 16 bytes. */
static bool heads_match(const struct query *q, bool backward, bool even)
{
    const enum dtype dtype = q->in[0]->dtype;
    for (int i = 0; i < (backward ? 5 : 3); i++)
        if (!is_heads(q->in[i], dtype) || (even && !has_aligned_rows(q->in[i]))) return false;
    for (int i = 0; i < (backward ? 3 : 1); i++)
        if (!is_heads(q->out[i], dtype) || (even && !has_aligned_rows(q->out[i]))) return false;
    return (backward ? q->in[5] : q->out[1])->dtype == DT_F32;
}

/* Reports whether sizes and strides fit the int counters of the kernels. */
static bool is_countable(const struct tensor *q, const struct tensor *k)
{
    return q->dim[1] < INT32_MAX / 4 && k->dim[1] < INT32_MAX / 4 && q->dim[0] * q->dim[2] < INT32_MAX;
}

/* Returns the index of the first input behind the heads: the mask, the tables. */
static int table_of(bool backward) { return backward ? 6 : 3; }

/* --- the operands of an attention -------------------------------------------------- */

struct operands {
    const struct tensor *q, *k, *v, *dout, *mask; /* dout: in the backward */
    enum attention_mode mode;
    bool backward, capped;
    double scale;
    int height, width;                            /* of the grid; 1 if there is none */
};

static struct operands operands_of(const struct query *q, enum attention_mode mode, bool backward)
{
    const int first = backward ? 1 : 0;
    struct operands f = {.q = q->in[first], .k = q->in[first + 1], .v = q->in[first + 2], .mode = mode,
                         .backward = backward, .height = 1, .width = 1};
    if (backward) f.dout = q->in[0];
    if (mode == ATTENTION_PLAIN)
        f.mask = given(q, table_of(backward)), f.scale = q->attr->attention.scale,
        f.capped = q->attr->attention.cap > 0;
    else f.scale = q->attr->relative.scale, f.height = q->attr->relative.height, f.width = q->attr->relative.width;
    return f;
}

/* Reports whether scores are products, or capped products, and nothing is added to them. */
static bool has_no_score_bias(const struct operands *f)
{
    return f->mode == ATTENTION_PLAIN && !f->mask && f->scale > 0;
}

/* Returns the range of keys of each query, behind the mask; NULL: none. */
static const struct tensor *ranges_of(const struct query *q, bool backward) { return given(q, table_of(backward) + 1); }

/* Reports whether the operands have kernels, of any head dimension and dtype; `even`: rows at
 * multiples of 16 bytes. */
static bool operands_match(const struct query *q, const struct operands *f, bool even)
{
    const int table = table_of(f->backward);
    if (!heads_match(q, f->backward, even) || !is_countable(f->q, f->k)) return false;
    if (f->mode == ATTENTION_PLAIN) {
        const struct tensor *ranges = ranges_of(q, f->backward);
        return (!ranges || is_dense(ranges, DT_I32)) && (!f->mask || f->mask->dtype == DT_F32);
    }
    for (int i = table; i < q->nin; i++) {
        if (!q->in[i] || q->in[i]->rank != 2 || !is_stored(q->in[i]->dtype)) return false;
        if (f->backward && !is_dense(q->out[i - table + 3], DT_F32)) return false;
    }
    return true;
}

/* Reports whether both tables have the heads' dtype. */
static bool has_narrow_tables(const struct query *q, const struct operands *f)
{
    const int table = table_of(f->backward);
    return q->in[table]->dtype == f->q->dtype && q->in[table + 1]->dtype == f->q->dtype;
}

/* --- tensor cores ----------------------------------------------------------------------------- */

/* Reports whether the node is within the limits of the kernels of 8.0 and later, whatever is added
 * to the scores. Heads of 56, 72 and 256 have no position terms, and those of 256 no mask. */
static bool is_fast(const struct query *q, const struct operands *f)
{
    const int64_t D = f->q->dim[3];
    const bool other = ((D == 56 || D == 72) && f->mode == ATTENTION_PLAIN) || (D == 256 && has_no_score_bias(f));
    if (!has_tensor_cores(q, f->q->dtype) || (D != 32 && D != 64 && D != 80 && D != 96 && D != 128 && !other))
        return false;
    return f->height + f->width <= ATTENTION_GRID && operands_match(q, f, true);
}

/* Reports whether the kernel fits the shared memory, of which 7.5 has less. */
static bool fits_shared(const struct query *q, const struct operands *f)
{
    const int D = ATTENTION_PADDED((int)f->q->dim[3]), T = (int)f->q->dim[1];
    const size_t most = ATTENTION_SHARED_SM75;
    const enum score_terms added = f->mode == ATTENTION_PLAIN       ? ADDS_MASK
                                   : f->mode == ATTENTION_BY_TABLES ? ADDS_TABLES
                                                                    : ADDS_BIAS;
    if (q->profile->capability >= 80) return true;
    if (fast_bytes(D, added, position_stride(forward_columns(f->height) + f->width), T) > most) return false;
    return !f->backward ||
           (fast_dkv_bytes(D, added, position_stride(dkv_columns(f->height, f->width) + f->width), T) <= most &&
            fast_dq_bytes(D, added, position_stride(f->height + f->width), T) <= most);
}

static bool dense_match(const struct query *q, bool backward)
{
    const struct operands f = operands_of(q, ATTENTION_PLAIN, backward);
    if (!is_fast(q, &f) || !has_no_score_bias(&f) || f.capped) return false;
    if (f.q->dim[3] > 128 && q->profile->capability < 80) return false;
    if (ranges_of(q, backward) && q->profile->capability < 80 && f.q->dim[3] > ATTENTION_SMALL) return false;
    return !backward || q->profile->capability >= 80 || f.q->dim[3] <= ATTENTION_SMALL;
}

/* Matches heads of language models with a cap. */
static bool capped_match(const struct query *q, bool backward)
{
    const struct operands f = operands_of(q, ATTENTION_PLAIN, backward);
    return f.capped && (f.q->dim[3] == 128 || f.q->dim[3] == 256) && is_fast(q, &f) && has_no_score_bias(&f);
}

static bool is_grid64(const struct query *q, const struct operands *f)
{
    return f->width == ATTENTION_GRID64_WIDTH && f->height <= ATTENTION_GRID64_WIDTH && has_narrow_tables(q, f);
}

static bool grid64_match(const struct query *q, bool backward)
{
    const struct operands f = operands_of(q, ATTENTION_BY_TABLES, backward);
    if (!is_fast(q, &f) || !is_grid64(q, &f)) return false;
    const struct operands forward = {.q = f.q, .mode = f.mode, .height = f.height, .width = f.width};
    return q->profile->capability >= 80 || (f.q->dim[3] <= ATTENTION_SMALL && fits_shared(q, &forward));
}

static bool fast_match(const struct query *q, enum attention_mode mode, bool backward)
{
    const struct operands f = operands_of(q, mode, backward);
    if (!is_fast(q, &f) || has_no_score_bias(&f) || (mode == ATTENTION_BY_TABLES && is_grid64(q, &f))) return false;
    if (mode == ATTENTION_PLAIN && (f.capped || ranges_of(q, backward))) return false;
    /* the kernels round the tables to the heads' dtype */
    if (mode == ATTENTION_BY_TABLES && backward && !has_narrow_tables(q, &f)) return false;
    /* five rows of biases are in shared memory */
    if (mode == ATTENTION_BY_BIAS && backward && f.q->dim[1] > ATTENTION_BIASES) return false;
    return fits_shared(q, &f);
}

/* --- Hopper: WGMMA and TMA -------------------------------------------------------------------- */

/* Reports whether strides over samples, tokens and heads are not zero, as TMA needs. */
static bool has_strides(const struct tensor *t)
{
    for (int i = 0; i < 3; i++)
        if (t->dim[i] > 1 && t->stride[i] <= 0) return false;
    return true;
}

static bool hopper_match(const struct query *q, enum attention_mode mode, bool backward)
{
    const struct operands f = operands_of(q, mode, backward);
    const int64_t D = f.q->dim[3];
    if (!is_fast(q, &f) || (D != 56 && D != 64 && D != 72 && D != 80 && D != 128)) return false;
    if (f.mask || f.capped || f.scale <= 0) return false;
    if (mode == ATTENTION_BY_TABLES && !is_grid64(q, &f)) return false;
    /* tiles would be mostly empty */
    if (f.q->dim[1] < ATTENTION_HOPPER_LEAST || f.k->dim[1] < ATTENTION_HOPPER_LEAST) return false;
    return has_strides(f.q) && has_strides(f.k) && has_strides(f.v) && (!backward || has_strides(f.dout));
}

/* --- by row ----------------------------------------------------------------------------------- */

static bool plain_match(const struct query *q, enum attention_mode mode, bool backward)
{
    const struct operands f = operands_of(q, mode, backward);
    return operands_match(q, &f, false);
}

/* --- few queries or few keys ------------------------------------------------------------------ */

/* Matches attention that is neither causal nor windowed, with as many key heads as query heads
 * and rows at multiples of 16 bytes. Few keys: up to 16. Few queries: up to 16, and more if the
 * heads are too narrow for the tensor-core kernels, because those would fall back to the plain
 * kernels. */
static bool few_match(const struct query *q, bool backward)
{
    enum { HEAD_MOST = 128, NARROW = 16, NARROW_QUERIES = 1024 };
    const struct operands f = operands_of(q, ATTENTION_PLAIN, backward);
    const int64_t B = f.q->dim[0], T = f.q->dim[1], S = f.k->dim[1], H = f.q->dim[2], D = f.q->dim[3];
    if (!heads_match(q, backward, true) || (f.mask && f.mask->dtype != DT_F32)) return false;
    if (q->attr->attention.causal || q->attr->attention.window || ranges_of(q, backward)) return false;
    if (q->attr->attention.cap > 0) return false;
    if (f.k->dim[2] != H || D % 8 || D > HEAD_MOST || T > INT32_MAX / 4 || S > INT32_MAX / 4) return false;
    if (S > FEW_MOST && T > FEW_MOST && (D > NARROW || T > NARROW_QUERIES)) return false;
    return B * H * (T + S) < INT32_MAX / 4; /* so the number of blocks fits an int, too */
}

/* Matches few queries or keys on tensor cores: heads of FEW_MMA_WIDTH in 16 bits. */
static bool few_mma_match(const struct query *q, bool backward)
{
    return few_match(q, backward) && is_half(q->in[0]->dtype) && q->in[backward]->dim[3] == FEW_MMA_WIDTH;
}

/* --- within windows --------------------------------------------------------------------------- */

/* Matches windows; the tables and pad are the inputs behind the heads; fast: with tensor cores. */
static bool window_match(const struct query *q, bool backward, bool fast)
{
    const enum dtype dtype = q->in[0]->dtype;
    const struct tensor *t = q->in[0];
    const int64_t D = t->dim[3];
    if (!heads_match(q, backward, fast)) return false;
    for (int i = table_of(backward); i < table_of(backward) + 3; i++) {
        const struct tensor *x = given(q, i);
        if (x && (!is_stored(x->dtype) || (fast && (x->dtype != dtype || !has_aligned_rows(x))))) return false;
    }
    for (int i = 3; backward && i < 6; i++)
        if (!is_dense(q->out[i], DT_F32)) return false;
    if (q->attr->windowed.window > (fast ? WINDOW_FAST : WINDOW_PLAIN)) return false;
    if (fast && (!is_half(dtype) || (D != 32 && D != 64 && D != 80))) return false;
    /* the number of blocks and of positions fit an int */
    return t->dim[1] < INT32_MAX / 4 && t->dim[0] * t->dim[1] * t->dim[2] < INT32_MAX;
}

static bool window_hopper_match(const struct query *q, bool backward)
{
    return window_match(q, backward, true) && q->attr->windowed.window == WINDOW_FAST && q->in[0]->dim[3] != 32;
}

static bool window_small_match(const struct query *q, bool backward)
{
    return window_match(q, backward, true) && q->in[0]->dtype == DT_F16;
}

/* Reports whether rows are whole packs of 16 bytes, and begin at multiples of them. */
static bool has_packs(const struct tensor *t)
{
    const int64_t size = (int64_t)dtype_size(t->dtype);
    int64_t bytes = t->dim[t->rank - 1] * size;
    for (int i = 0; i + 1 < t->rank; i++)
        if (t->dim[i] > 1) bytes |= t->stride[i] * size;
    return bytes % 16 == 0 && t->stride[t->rank - 1] == 1 && is_aligned(t);
}

/* Returns the access without tensor cores: the forward reads keys in packs, the backward all heads,
 * and tables of their dtype. */
static int window_access(const struct query *q, bool backward)
{
    const enum dtype dtype = q->in[0]->dtype;
    bool wide = backward || has_packs(q->in[1]);
    for (int i = 0; backward && i < 4; i++) wide &= has_packs(q->in[i]);
    for (int i = table_of(true); backward && i < table_of(true) + 2; i++)
        wide &= q->in[i]->dtype != dtype || has_packs(q->in[i]);
    return wide ? 16 : (int)dtype_size(dtype);
}
static int access_window(const struct query *q) { return window_access(q, false); }
static int access_window_bwd(const struct query *q) { return window_access(q, true); }

/* --- forms ------------------------------------------------------------------------------------ */

static int few_form_of(const struct query *q, bool backward)
{
    return few_form(q->in[backward]->dim[1], q->in[backward + 1]->dim[1]);
}
static int plain_form_of(const struct query *q, bool backward, bool ranges)
{
    return plain_form(q->in[backward]->dim[3], ranges && ranges_of(q, backward));
}
static int seen_form_of(const struct query *q, bool backward, bool ordered)
{
    const int64_t *dim = q->in[backward]->dim;
    return seen_form(dim[0], dim[1], ranges_of(q, backward) != NULL, ordered);
}

#define FORMS(NAME, CHOICE, ...)                                                                                       \
    static int form_##NAME(const struct query *q)                                                                      \
    {                                                                                                                  \
        const bool backward = false;                                                                                   \
        return CHOICE;                                                                                                 \
    }                                                                                                                  \
    static int form_##NAME##_bwd(const struct query *q)                                                                \
    {                                                                                                                  \
        const bool backward = true;                                                                                    \
        return CHOICE;                                                                                                 \
    }                                                                                                                  \
    static const struct forms forms_##NAME = {form_##NAME, {__VA_ARGS__}},                                             \
                              forms_##NAME##_bwd = {form_##NAME##_bwd, {__VA_ARGS__}};
FORMS(
    few, few_form_of(q, backward), [FEW_KEYS_8] = "up to 8 keys", [FEW_KEYS_16] = "up to 16 keys",
    [FEW_QUERIES_8] = "up to 8 queries", [FEW_QUERIES_16] = "up to 16 queries", [FEW_QUERY_TILES] = "tiles of queries")
FORMS(hopper, seen_form_of(q, backward, true), [SEEN_ALL] = "all keys", [SEEN_RANGES] = "ranges of keys",
      [SEEN_RANGES_APART] = "ranges of keys, ordered apart")
FORMS(dense, seen_form_of(q, backward, false), [SEEN_ALL] = "all keys", [SEEN_RANGES] = "ranges of keys")
FORMS(plain, plain_form_of(q, backward, true), [PLAIN_64] = "heads up to 64", [PLAIN_256] = "heads up to 256",
      [PLAIN_64_RANGES] = "heads up to 64, ranges of keys", [PLAIN_256_RANGES] = "heads up to 256, ranges of keys")
FORMS(plain_terms, plain_form_of(q, backward, false), [PLAIN_64] = "heads up to 64", [PLAIN_256] = "heads up to 256")

/* --- the kernels' rows ------------------------------------------------------------------------ */

#define MATCH(NAME, MATCHES) \
    static bool match_##NAME(const struct query *q) { const bool backward = false; return MATCHES; } \
    static bool match_##NAME##_bwd(const struct query *q) { const bool backward = true; return MATCHES; }
MATCH(few_mma, few_mma_match(q, backward))
MATCH(few, few_match(q, backward))
MATCH(hopper, hopper_match(q, ATTENTION_PLAIN, backward))
MATCH(hopper_grid64, hopper_match(q, ATTENTION_BY_TABLES, backward))
MATCH(dense, dense_match(q, backward))
MATCH(capped, capped_match(q, backward))
MATCH(grid64, grid64_match(q, backward))
MATCH(fast, fast_match(q, ATTENTION_PLAIN, backward))
MATCH(fast_rel, fast_match(q, ATTENTION_BY_TABLES, backward))
MATCH(fast_bias, fast_match(q, ATTENTION_BY_BIAS, backward))
MATCH(plain, plain_match(q, ATTENTION_PLAIN, backward))
MATCH(plain_rel, plain_match(q, ATTENTION_BY_TABLES, backward))
MATCH(plain_bias, plain_match(q, ATTENTION_BY_BIAS, backward))
MATCH(window_hopper, window_hopper_match(q, backward))
MATCH(window_fast, window_match(q, backward, true))
MATCH(window_small, window_small_match(q, backward))
MATCH(window, window_match(q, backward, false))

static uint64_t bytes(const struct query *q, enum attention_mode mode, bool backward)
{
    const int64_t *dim = q->in[backward ? 1 : 0]->dim;
    struct attention_sizes n = {.B = dim[0], .T = dim[1], .H = dim[2], .D = dim[3], .mode = mode, .backward = backward};
    if (mode == ATTENTION_PLAIN) n.ranges = ranges_of(q, backward) != NULL, n.S = q->in[backward ? 2 : 1]->dim[1];
    if (mode != ATTENTION_PLAIN) n.height = q->attr->relative.height, n.width = q->attr->relative.width;
    return attention_work_of(&n).total;
}

static uint64_t work_fwd(const struct query *q) { return bytes(q, ATTENTION_PLAIN, false); }
static uint64_t work_bwd(const struct query *q) { return bytes(q, ATTENTION_PLAIN, true); }
static uint64_t work_rel(const struct query *q) { return bytes(q, ATTENTION_BY_TABLES, false); }
static uint64_t work_rel_bwd(const struct query *q) { return bytes(q, ATTENTION_BY_TABLES, true); }
static uint64_t work_bias(const struct query *q) { return bytes(q, ATTENTION_BY_BIAS, false); }
static uint64_t work_bias_bwd(const struct query *q) { return bytes(q, ATTENTION_BY_BIAS, true); }

static uint64_t few_bytes(const struct query *q, bool backward)
{
    const int64_t *dim = q->in[backward]->dim, *keys = q->in[backward + 1]->dim;
    return few_cut_of(dim[0], portion_whole(q->portion, dim[0]), dim[1], keys[1], dim[2], dim[3], backward).total;
}

static uint64_t work_few(const struct query *q) { return few_bytes(q, false); }
static uint64_t work_few_bwd(const struct query *q) { return few_bytes(q, true); }

static uint64_t work_window_bwd(const struct query *q)
{
    const int64_t *dim = q->in[1]->dim, window = q->attr->windowed.window;
    const int64_t across = (q->attr->windowed.width + window - 1) / window,
                  down = (q->attr->windowed.height + window - 1) / window;
    return window_work_of(dim[0] * across * down * dim[2], window, dim[3]).total;
}

const struct kernel cuda_plan_attention[] = {
#include "cuda/attention/attention.def"
    {.op = OP_NONE},
};
