/*
 * attention.c: the running half of attention: the operands and workspace of an entry become a
 * struct attention, and the kernels before, for and after the attention are launched
 * (launch_attention.h).
 */
#include <math.h>

#include "cuda/attention/launch_attention.h"
#include "cuda/attention/launch_hopper.h"
#include "cuda/device/host.h"

/* --- from a launch to a struct attention ---------------------------------------------------- */

static struct head_rows rows_of(const struct operand *x)
{
    return (struct head_rows){x->data, x->stride[0], x->stride[1], x->stride[2], (int)x->dim[3]};
}

static void *bytes_at(const struct launch *l, uint64_t offset) { return (char *)l->work + offset; }
static float *floats_at(const struct launch *l, uint64_t offset) { return bytes_at(l, offset); }

static void check_work(const struct launch *l, uint64_t bytes)
{
    CHECK(bytes <= l->work_bytes, "%llu bytes of workspace", (unsigned long long)l->work_bytes);
}

/* Fills what every attention has: the heads, lse, the shape. The inputs of a backward begin with
 * dout. */
static struct attention heads_of(const struct launch *l, bool backward)
{
    const struct operand *q = &l->in[backward], *k = q + 1, *lse = backward ? &l->in[5] : &l->out[1];
    struct attention a = {
        .q = rows_of(q), .k = rows_of(k), .v = rows_of(k + 1), .o = rows_of(backward ? &l->in[4] : &l->out[0]),
        .lse = lse->data, .lse_sample = lse->stride[0], .lse_head = lse->stride[1], .lse_token = lse->stride[2],
        .type = store_of(q->dtype), .B = (int)q->dim[0], .T = (int)q->dim[1], .S = (int)k->dim[1], .H = (int)q->dim[2],
        .G = (int)k->dim[2], .D = (int)q->dim[3], .window = INT32_MAX, .height = 1, .width = 1, .unit = 1,
    };
    if (!backward) return a;
    a.dout = rows_of(&l->in[0]), a.dq = rows_of(&l->out[0]), a.dk = rows_of(&l->out[1]), a.dv = rows_of(&l->out[2]);
    return a;
}

/* Sets the tables or the mask, which are the inputs behind the heads and, in the backward, lse; the
 * tables' gradients are the outputs behind those of the heads. */
static void set_tables(struct attention *a, const struct launch *l, int tables, bool backward)
{
    for (int i = 0; i < tables; i++) {
        const struct operand *t = &l->in[(backward ? 6 : 3) + i];
        a->table[i] = (struct head_table){t->data, store_of(t->dtype), t->stride[0], t->stride[1]};
        if (backward) a->dtable[i] = l->out[3 + i].data;
    }
}

static void set_mask(struct attention *a, const struct launch *l, bool backward)
{
    const int input = backward ? 6 : 3;
    a->scale = l->attr->attention.scale, a->cap = l->attr->attention.cap;
    if (has(l, input + 1)) a->ranges = l->in[input + 1].data;
    if (has(l, input))
        a->mask = l->in[input].data, a->mask_sample = l->in[input].stride[0], a->mask_key = l->in[input].stride[1];
}

static struct attention attention_of(const struct launch *l, enum attention_mode mode, bool backward)
{
    struct attention a = heads_of(l, backward);
    a.mode = mode;
    if (mode == ATTENTION_PLAIN) {
        const int64_t window = l->attr->attention.window;
        set_mask(&a, l, backward);
        a.causal = l->attr->attention.causal;
        if (window && window < INT32_MAX) a.window = (int)window;
    } else {
        a.scale = l->attr->relative.scale, a.height = l->attr->relative.height, a.width = l->attr->relative.width;
        set_tables(&a, l, mode == ATTENTION_BY_TABLES ? 2 : 1, backward);
    }
    const struct attention_sizes n = {.B = a.B, .T = a.T, .H = a.H, .D = a.D, .height = a.height, .width = a.width,
                                      .mode = mode, .backward = backward, .ranges = a.ranges != NULL, .S = a.S};
    const struct attention_work w = attention_work_of(&n);
    check_work(l, w.total);
    a.delta = floats_at(l, w.delta), a.lse2 = floats_at(l, w.lse2), a.tables = floats_at(l, w.tables),
    a.rel = floats_at(l, w.rel);
    a.drel = floats_at(l, w.drel), a.bias = floats_at(l, w.bias), a.partial = floats_at(l, w.partial);
    a.seen = bytes_at(l, w.seen), a.bounds = bytes_at(l, w.bounds), a.order = bytes_at(l, w.order),
    a.key_order = bytes_at(l, w.key_order);
    a.taken = bytes_at(l, w.taken);
    return a;
}

static struct attention few_of(const struct launch *l, bool backward)
{
    struct attention a = heads_of(l, backward);
    set_mask(&a, l, backward);
    a.cut = few_cut_of(a.B, portion_whole(l->portion, a.B), a.T, a.S, a.H, a.D, backward);
    check_work(l, a.cut.total);
    a.partial = floats_at(l, 0), a.other = floats_at(l, a.cut.other);
    return a;
}

static struct attention windows_of(const struct launch *l, bool backward)
{
    struct attention a = heads_of(l, backward);
    const int input = backward ? 8 : 5;
    a.height = l->attr->windowed.height, a.width = l->attr->windowed.width, a.window = l->attr->windowed.window,
    a.scale = l->attr->windowed.scale;
    a.across = (a.width + a.window - 1) / a.window, a.down = (a.height + a.window - 1) / a.window;
    a.access = l->access;
    set_tables(&a, l, 2, backward);
    if (has(l, input)) {
        const struct operand *pad = &l->in[input];
        a.pad = pad->data, a.pad_type = store_of(pad->dtype);
        a.pad_which = pad->stride[0], a.pad_head = pad->stride[1], a.pad_element = pad->stride[2];
    }
    if (!backward) return a;
    const struct window_work w = window_work_of((int64_t)a.B * a.across * a.down * a.H, a.window, a.D);
    check_work(l, w.total);
    a.dpad = l->out[5].data, a.tables = floats_at(l, w.tables), a.pads = floats_at(l, w.pads);
    return a;
}

/* --- launching -------------------------------------------------------------------------------- */

/* Builds, with ranges, the bounds of each tile and the order of tiles of `queries` queries and
 * `keys` keys (0: none) that the kernels read. They include a window. */
static int ranges_before(struct attention *a, int queries, int keys, enum seen_form form, cudaStream_t stream,
                         struct error *e)
{
    CHECK(!a->ranges == (form == SEEN_ALL), "the ranges are not those of the plan");
    if (form == SEEN_ALL) return PL_OK;
    TRY_CUDA(cuda_attention_ranges(a, queries, keys, form, stream));
    a->window = INT32_MAX;
    return PL_OK;
}

/* Computes the terms that a tensor-core kernel adds to the scores. */
static int terms_before(struct attention *a, enum score_terms added, cudaStream_t stream, struct error *e)
{
    a->unit = (float)M_LOG2E;
    if (added != ADDS_GRID64) {
        TRY_CUDA(cuda_attention_before(a, 0, stream));
        return PL_OK;
    }
    TRY_CUDA(cuda_attention_tables(a, stream));
    TRY_CUDA(cuda_grid64_rel(a, a->unit, stream));
    return PL_OK;
}

static int tiles(const struct launch *l, enum attention_mode mode, enum score_terms added, bool backward,
                 struct error *e)
{
    struct attention a = attention_of(l, mode, backward);
    TRY(ranges_before(&a, 0, 0, (enum seen_form)l->form, l->stream, e));
    if (backward) TRY_CUDA(cuda_attention_row_stats(&a, l->stream));
    TRY(terms_before(&a, added, l->stream, e));
    if (!backward) {
        TRY_CUDA(cuda_attention_forward(&a, added, l->stream));
        return PL_OK;
    }
    TRY_CUDA(cuda_attention_dkv(&a, added, l->stream));
    TRY_CUDA(cuda_attention_dq(&a, added, l->stream));
    if (added == ADDS_GRID64) TRY_CUDA(cuda_grid64_dtables(&a, l->stream));
    else TRY_CUDA(cuda_attention_after(&a, ATTENTION_FAST_TILE, l->stream));
    return PL_OK;
}

static int plain(const struct launch *l, enum attention_mode mode, bool backward, struct error *e)
{
    struct attention a = attention_of(l, mode, backward);
    const enum plain_form form = (enum plain_form)l->form;
    TRY(ranges_before(&a, 0, 0, form == PLAIN_64_RANGES || form == PLAIN_256_RANGES ? SEEN_RANGES : SEEN_ALL, l->stream,
                      e));
    TRY_CUDA(cuda_attention_before(&a, backward, l->stream));
    TRY_CUDA((backward ? cuda_attention_plain_bwd : cuda_attention_plain)(&a, form, l->stream));
    if (backward) TRY_CUDA(cuda_attention_after(&a, (int)attention_small_tile(a.D), l->stream));
    return PL_OK;
}

static int hopper(const struct launch *l, enum attention_mode mode, bool backward, struct error *e)
{
    struct attention a = attention_of(l, mode, backward);
    TRY(ranges_before(&a, 64 * HOPPER_GROUPS(a.D, true), backward ? HOPPER_HELD : 0, (enum seen_form)l->form, l->stream,
                      e));
    return (backward ? hopper_attention_bwd : hopper_attention)(&a, l->stream, e);
}

static int few(const struct launch *l, few_fn *kernel, bool backward, struct error *e)
{
    const struct attention a = few_of(l, backward);
    TRY_CUDA(kernel(&a, backward, (enum few_form)l->form, l->stream));
    TRY_CUDA(cuda_attention_few_join(&a, backward, l->stream));
    return PL_OK;
}

static int window(const struct launch *l, attention_fn *forward, attention_fn *gradient, bool backward, struct error *e)
{
    const struct attention a = windows_of(l, backward);
    TRY_CUDA((backward ? gradient : forward)(&a, l->stream));
    if (backward) TRY_CUDA(cuda_window_sums(&a, l->stream));
    return PL_OK;
}

/* A kernel and its backward, NAME_bwd, are a function of the launch, these arguments and which of
 * the two. */
#define LAUNCH(NAME, FUNCTION, ...) \
    static int launch_##NAME(const struct launch *l, struct error *e) { return FUNCTION(l, __VA_ARGS__, false, e); } \
    static int launch_##NAME##_bwd(const struct launch *l, struct error *e) \
    { \
        return FUNCTION(l, __VA_ARGS__, true, e); \
    } \
    CUDA_KERNEL(NAME, .launch = launch_##NAME); \
    CUDA_KERNEL(NAME##_bwd, .launch = launch_##NAME##_bwd)
LAUNCH(cuda_attention_few_mma, few, cuda_attention_few_mma);
LAUNCH(cuda_attention_few, few, cuda_attention_few);
LAUNCH(cuda_attention_window_hopper, window, cuda_window_hopper, cuda_window_hopper_bwd);
LAUNCH(cuda_attention_window_fast, window, cuda_window_fast, cuda_window_fast_bwd);
LAUNCH(cuda_attention_window_small, window, cuda_window_small, cuda_window_small_bwd);
LAUNCH(cuda_attention_window, window, cuda_window_plain, cuda_window_plain_bwd);
LAUNCH(cuda_attention_hopper, hopper, ATTENTION_PLAIN);
LAUNCH(cuda_attention_hopper_grid64, hopper, ATTENTION_BY_TABLES);
LAUNCH(cuda_attention_dense, tiles, ATTENTION_PLAIN, ADDS_NOTHING);
LAUNCH(cuda_attention_capped, tiles, ATTENTION_PLAIN, ADDS_CAP);
LAUNCH(cuda_attention_grid64, tiles, ATTENTION_BY_TABLES, ADDS_GRID64);
LAUNCH(cuda_attention_fast, tiles, ATTENTION_PLAIN, ADDS_MASK);
LAUNCH(cuda_attention_fast_rel, tiles, ATTENTION_BY_TABLES, ADDS_TABLES);
LAUNCH(cuda_attention_fast_bias, tiles, ATTENTION_BY_BIAS, ADDS_BIAS);
LAUNCH(cuda_attention, plain, ATTENTION_PLAIN);
LAUNCH(cuda_attention_rel, plain, ATTENTION_BY_TABLES);
LAUNCH(cuda_attention_bias, plain, ATTENTION_BY_BIAS);
