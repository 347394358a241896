/*
 * shape.c: the column `rule` of ops.def: what signatures cannot say about shapes. A rule runs after
 * its signature (signature.c): it checks more, and sets dtype, rank and dimensions of the outputs
 * that the signature leaves open (strides and offset too for views). A kernel may rely on exactly
 * what signature and rule check.
 *
 * Statistics (rstd of norms, log-sum-exp, losses, gradients of weights) are f32 for any dtype of
 * the activations; only an f64 graph keeps them in f64.
 */
#include "base/nf4.h"
#include "graph/rules.h"
#include "graph/sizes.h"

/* --- views ------------------------------------------------------------------ */

void infer_reshape(struct infer *f)
{
    const struct tensor *x = f->in[0];
    REQUIRE(tensor_is_dense(x), "only a dense tensor can be reshaped");
    int64_t dim[MAX_RANK], known = 1, total = tensor_elements(x);
    int open = -1, rank = f->attr->reshape.rank;
    for (int i = 0; i < rank; i++) {
        dim[i] = f->attr->reshape.dim[i];
        REQUIRE(dim[i] >= 0 || open < 0, "two dimensions are -1");
        if (dim[i] < 0) open = i;
        else known *= dim[i];
    }
    if (open >= 0) {
        REQUIRE(known > 0 && total % known == 0, "%lld elements are not divisible by %lld", (long long)total,
                (long long)known);
        dim[open] = total / known;
        known = total;
    }
    REQUIRE(known == total, "%lld elements, the new shape has %lld", (long long)total, (long long)known);
    set(&f->out[0], x->dtype, rank, dim);
    f->out[0].offset = x->offset;
    tensor_dense_strides(&f->out[0]);
}

void infer_slice(struct infer *f)
{
    const struct tensor *x = f->in[0];
    int axis = f->attr->slice.axis;
    int64_t start = f->attr->slice.start, length = f->attr->slice.length;
    REQUIRE(axis < x->rank && start >= 0 && length > 0 && start + length <= x->dim[axis],
            "slice %lld+%lld of axis %d is outside", (long long)start, (long long)length, axis);
    like(&f->out[0], x);
    f->out[0].dim[axis] = length;
    memcpy(f->out[0].stride, x->stride, sizeof x->stride);
    f->out[0].offset = x->offset + (uint64_t)(start * x->stride[axis]) * dtype_size(x->dtype);
}

void infer_permute(struct infer *f)
{
    const struct tensor *x = f->in[0];
    const uint8_t *axes = f->attr->permute.axes;
    unsigned seen = 0;
    like(&f->out[0], x);
    f->out[0].offset = x->offset;
    for (int i = 0; i < x->rank; i++) {
        REQUIRE(axes[i] < x->rank && !(seen >> axes[i] & 1), "axis %d at index %d: each of the %d axes must occur once",
                axes[i], i, x->rank);
        seen |= 1u << axes[i];
        f->out[0].dim[i] = x->dim[axes[i]];
        f->out[0].stride[i] = x->stride[axes[i]];
    }
}

void infer_enter(struct infer *f)
{
    like(&f->out[0], f->in[0]);
    memcpy(f->out[0].stride, f->in[0]->stride, sizeof f->in[0]->stride);
    f->out[0].offset = f->in[0]->offset;
}

/* --- matrix products ------------------------------------------------------------ */

void infer_matmul(struct infer *f)
{
    const struct tensor *a = f->in[0], *b = f->in[1];
    bool ta = f->attr->matmul.ta, tb = f->attr->matmul.tb;
    REQUIRE(a->rank >= 2 && b->rank >= 2, "both need two dimensions");
    int64_t m = ta ? tensor_last(a) : tensor_rows(a), k = ta ? tensor_rows(a) : tensor_last(a);
    int64_t kb = tb ? tensor_last(b) : tensor_rows(b), n = tb ? tensor_rows(b) : tensor_last(b);
    REQUIRE(k == kb, "inner dimensions %lld and %lld differ", (long long)k, (long long)kb);
    set(&f->out[0], f->attr->matmul.dtype, ta ? 2 : a->rank, ta ? (int64_t[]){m, n} : a->dim);
    f->out[0].dim[f->out[0].rank - 1] = n;
}

void infer_bmm(struct infer *f)
{
    const struct tensor *a = f->in[0], *b = f->in[1];
    bool ta = f->attr->matmul.ta, tb = f->attr->matmul.tb;
    int rank = a->rank;
    REQUIRE(rank >= 2 && b->rank == rank, "both need two dimensions or more, and equally many; they have %d and %d",
            rank, b->rank);
    for (int i = 0; i < rank - 2; i++)
        REQUIRE(a->dim[i] == b->dim[i], "leading dimension %d is %lld in a and %lld in b", i, (long long)a->dim[i],
                (long long)b->dim[i]);
    int64_t k = a->dim[ta ? rank - 2 : rank - 1], kb = b->dim[tb ? rank - 1 : rank - 2];
    REQUIRE(k == kb, "inner dimensions %lld and %lld differ", (long long)k, (long long)kb);
    set(&f->out[0], f->attr->matmul.dtype, rank, a->dim);
    f->out[0].dim[rank - 2] = a->dim[ta ? rank - 1 : rank - 2];
    f->out[0].dim[rank - 1] = b->dim[tb ? rank - 2 : rank - 1];
}

/* Checks that the target's dimensions, from the last one on, equal x's or are 1. */
void infer_sum_to(struct infer *f)
{
    const struct tensor *x = f->in[0];
    int rank = f->attr->sum_to.rank;
    const int64_t *dim = f->attr->sum_to.dim;
    REQUIRE(rank <= x->rank, "rank %d cannot be summed to rank %d", x->rank, rank);
    for (int i = 0; i < rank; i++) {
        int64_t from = x->dim[x->rank - rank + i];
        REQUIRE(dim[i] == from || dim[i] == 1, "a dimension of %lld cannot be summed to %lld", (long long)from,
                (long long)dim[i]);
    }
    set(&f->out[0], f->attr->sum_to.dtype, rank, dim);
}

/* --- position, activation, attention -------------------------------------------------- */

void infer_rope(struct infer *f)
{
    const struct tensor *x = f->in[0], *p = f->in[op_table[f->op].max_in - 1];
    REQUIRE(!p || p->rank == 2 || (p->rank == 3 && p->dim[2] == 3),
            "positions must be i32 [B,T] or [B,T,3] = [%lld,%lld,3]", (long long)x->dim[0], (long long)x->dim[1]);
    const int64_t *sections = f->attr->rope.sections, pairs = p && p->rank == 3 ? x->dim[3] / 2 : 0;
    REQUIRE(sections[0] >= 0 && sections[1] >= 0 && sections[2] >= 0 &&
                sections[0] + sections[1] + sections[2] == pairs,
            "sections %lld,%lld,%lld must add up to %lld: D/2 with positions [B,T,3], else 0", (long long)sections[0],
            (long long)sections[1], (long long)sections[2], (long long)pairs);
}

void infer_act(struct infer *f)
{
    REQUIRE(f->attr->act.kind < ACT_KINDS, "activation %d is not known", f->attr->act.kind);
}

void infer_attention(struct infer *f)
{
    REQUIRE(!f->in[op_table[f->op].max_in - 1] || !f->attr->attention.causal,
            "ranges already say which keys a query sees: causal must be 0");
}

/* Checks the groups of CONV, CONV_DX and CONV_DW: convolutions are dense or depthwise. */
void infer_conv(struct infer *f)
{
    const bool dw = f->op == OP_CONV_DW;
    const int64_t C = dw ? f->in[1]->dim[3] : f->op == OP_CONV ? f->in[0]->dim[3] : f->out[0].dim[3];
    const int64_t O = dw ? f->in[0]->dim[3] : f->in[1]->dim[0];
    const int groups = f->attr->conv.groups;
    REQUIRE(groups == 1 || (groups == C && O == C),
            "groups is %d: it must be 1, or equal to the channels of x, %lld, and to the channels of the result, %lld",
            groups, (long long)C, (long long)O);
}

/* --- elementwise --------------------------------------------------------------------------- */

/* Returns the size of dimension i, counted from the last one; 1 for dimensions that x does not
 * have. */
static int64_t from_last(const struct tensor *x, int i) { return i < x->rank ? x->dim[x->rank - 1 - i] : 1; }

void infer_broadcast(struct infer *f)
{
    const struct tensor *a = f->in[0], *b = f->in[1];
    int rank = a->rank > b->rank ? a->rank : b->rank;
    int64_t dim[MAX_RANK];
    for (int i = 0; i < rank; i++) {
        int64_t n = from_last(a, i), m = from_last(b, i);
        REQUIRE(n == m || n == 1 || m == 1, "dimensions %lld and %lld, %d from the last, neither agree nor broadcast",
                (long long)n, (long long)m, i);
        dim[rank - 1 - i] = n == 1 ? m : n;
    }
    REQUIRE(a->dtype == b->dtype, "dtypes differ");
    set(&f->out[0], a->dtype, rank, dim);
}

void infer_fill(struct infer *f) { set(&f->out[0], f->attr->fill.dtype, f->attr->fill.rank, f->attr->fill.dim); }

void infer_dequantize(struct infer *f)
{
    const union attr *a = f->attr;
    set(&f->out[0], a->dequantize.dtype, a->dequantize.rank, a->dequantize.dim);
    const int64_t first = a->dequantize.first, all = a->dequantize.all;
    const uint64_t bytes = nf4_layout(all, a->dequantize.nested).bytes;
    REQUIRE(first >= 0 && first % NF4_BLOCK == 0 && first + tensor_elements(&f->out[0]) <= all,
            "weights from %lld on are not a range of %lld", (long long)first, (long long)all);
    REQUIRE(f->in[0]->dim[0] == (int64_t)bytes, "x must be u8 [%llu]", (unsigned long long)bytes);
    REQUIRE(dtype_is_float(a->dequantize.dtype), "the result must have a floating-point dtype");
}

void infer_scaled_linear(struct infer *f)
{
    REQUIRE(!f->in[5] || f->in[5]->dtype == f->out[0].dtype, "add must be %s, as the result is",
            dtype_name(f->out[0].dtype));
}

void infer_quantize_columns(struct infer *f)
{
    REQUIRE((f->in[0]->dtype == DT_E4M3) == (f->in[1] != NULL), "x has scales if it is e4m3, and only then");
}

/* --- moving elements ---------------------------------------------------------- */

void infer_concat(struct infer *f)
{
    const struct tensor *x = f->in[0];
    const int axis = f->attr->concat.axis;
    REQUIRE(axis < x->rank, "there is no axis %d", axis);
    like(&f->out[0], x);
    for (int i = 1; i < f->nin; i++) {
        const struct tensor *y = f->in[i];
        REQUIRE(y && y->rank == x->rank && y->dtype == x->dtype, "input %d differs from the first in rank or dtype", i);
        for (int d = 0; d < x->rank; d++)
            REQUIRE(d == axis || y->dim[d] == x->dim[d], "input %d differs from the first in axis %d", i, d);
        f->out[0].dim[axis] += y->dim[axis];
    }
}

void infer_pad(struct infer *f)
{
    const struct tensor *x = f->in[0];
    like(&f->out[0], x);
    for (int d = 0; d < x->rank; d++) {
        int64_t before = f->attr->pad.before[d], after = f->attr->pad.after[d];
        REQUIRE(before >= 0 && after >= 0, "padding of %lld before and %lld after axis %d", (long long)before,
                (long long)after, d);
        f->out[0].dim[d] += before + after;
    }
}

void infer_replace_rows(struct infer *f)
{
    const struct tensor *x = f->in[0], *y = f->in[2];
    REQUIRE(!y || y->rank == 2 || (y->rank == 3 && y->dim[0] == x->dim[0]), "y must be [N,%lld] or [%lld,N,%lld]",
            (long long)x->dim[2], (long long)x->dim[0], (long long)x->dim[2]);
}

void infer_repeat(struct infer *f)
{
    const struct tensor *x = f->in[0], *target = f->in[1];
    REQUIRE(target->rank > 0 && x->rank < MAX_RANK,
            "like needs at least one dimension, and x fewer than the maximum");
    REQUIRE(target->dim[0] % x->dim[0] == 0, "%lld rows are not a multiple of %lld", (long long)target->dim[0],
            (long long)x->dim[0]);
    like(&f->out[0], x);
    f->out[0].dim[0] = target->dim[0];
}

/* --- maps --------------------------------------------------------------------- */

/* Returns the number of windows over n pixels of axis 0 or 1; 0: none. */
static int64_t pooled(const struct attr_avgpool *a, int axis, int64_t n)
{
    int64_t room = n + 2 * a->pad[axis] - a->k[axis];
    return a->adaptive ? axis ? a->W : a->H : room < 0 ? 0 : room / a->stride[axis] + 1;
}

/* Infers the map after pooling. In AVGPOOL_BWD the attribute's H and W are the size of dx, which
 * the signature sets, and only the windows are checked. */
void infer_avgpool(struct infer *f)
{
    const struct tensor *x = f->in[0];
    const struct attr_avgpool *a = &f->attr->avgpool;
    REQUIRE(!a->adaptive || (a->H > 0 && a->W > 0), "to %lld x %lld", (long long)a->H, (long long)a->W);
    for (int i = 0; i < 2 && !a->adaptive; i++)
        REQUIRE(a->k[i] > 0 && a->stride[i] > 0 && a->pad[i] >= 0 && 2 * a->pad[i] <= a->k[i],
                "window %lld, stride %lld, padding %lld: the padding is at most half the window", (long long)a->k[i],
                (long long)a->stride[i], (long long)a->pad[i]);
    if (f->out[0].rank) {
        REQUIRE(a->adaptive || (pooled(a, 0, a->H) == x->dim[1] && pooled(a, 1, a->W) == x->dim[2]),
                "not the windows of a map of %lld x %lld", (long long)a->H, (long long)a->W);
        return;
    }
    like(&f->out[0], x);
    for (int i = 0; i < 2; i++) {
        f->out[0].dim[1 + i] = pooled(a, i, x->dim[1 + i]);
        REQUIRE(f->out[0].dim[1 + i] > 0, "the window is larger than the map");
    }
}

void infer_batchnorm_update(struct infer *f)
{
    REQUIRE(f->attr->batchnorm_update.count > 1,
            "the variance of one element is undefined: use more images or larger maps");
}

/* --- update, shares and ranks ---------------------------------------------------------------- */

void infer_adafactor(struct infer *f)
{
    const struct tensor *p = f->in[0], *r = f->in[2], *c = f->in[6];
    const int n = p->rank;
    REQUIRE(c || same(p, r), "without c, r must have p's shape");
    REQUIRE(!c || (n >= 2 && r->rank == n - 1 && c->rank == n - 1), "for p [...,R,C], r must be [...,R] and c [...,C]");
    for (int i = 0; i < n - 1 && c; i++)
        REQUIRE(r->dim[i] == p->dim[i] && c->dim[i] == p->dim[i == n - 2 ? n - 1 : i], "r or c does not fit p");
    like(&f->out[1], r);
    if (c) like(&f->out[3], c);
}

void infer_squares(struct infer *f)
{
    const int64_t part = f->attr->squares.part, cell = f->attr->squares.cell, elements = tensor_elements(f->in[0]);
    REQUIRE(f->attr->squares.at + ceil_div(part ? f->attr->squares.n : elements, cell) <= f->in[1]->dim[0],
            "the cells of x are not within cells");
    REQUIRE(!part || (part == elements && part % cell == 0), "x is not a shard of whole cells");
}

void infer_fold(struct infer *f)
{
    REQUIRE(f->in[1]->dim[0] == fold_levels(f->attr->fold.shares), "partials must have %d levels for %d shares",
            fold_levels(f->attr->fold.shares), f->attr->fold.shares);
}

/* --- paired gradients ---------------------------------------------------------------------------
 *
 * Where the gradient of an op is a single op, it is the row that follows:
 *
 *     OP(NAME,     ..., "x w -> y",       rule,        paired, reads, ...)
 *     OP(NAME_BWD, ..., "dy x w -> dx dw", like_inputs, none,   NONE,  ..., OPF_GRAD, ...)
 *
 * NAME_BWD has NAME's attributes. Its inputs are the gradient dy of output 0, then the tensors that
 * `reads` names: inputs in order, then outputs in order. Its outputs are the gradients of NAME's
 * inputs, from the first on; inputs after the last output have none. An input that the gradient
 * does not read has the shape of the input before it (a bias that of its weight), and the first
 * input that of dy. If NAME_BWD has one more optional input and it is given, it is added to the
 * first gradient and has its shape.
 *
 * The shapes of the forward's inputs therefore follow from the backward's inputs, and the forward's
 * own signature and rule check them: a kernel of NAME_BWD may rely on everything that a kernel of
 * NAME may rely on. */

void infer_like_inputs(struct infer *f)
{
    const struct op_row *row = &op_table[f->op - 1]; /* the forward */
    const size_t n = strlen(row->name);
    CHECK(!strncmp(op_table[f->op].name, row->name, n) && !strcmp(op_table[f->op].name + n, "_BWD"),
          "%s follows %s, which is not its forward", op_table[f->op].name, row->name);
    struct infer forward = {.op = f->op - 1, .attr = f->attr, .nin = row->max_in};
    const struct tensor *last = f->in[0];
    int at = 1;
    for (int i = 0; i < row->max_in; i++) {
        if (row->reads >> i & 1) last = f->in[at++];
        forward.in[i] = last;
    }
    op_infer(&forward);
    REQUIRE(!forward.error[0], "%.*s", (int)sizeof f->error - 1, forward.error);
    bool agree = same(f->in[0], &forward.out[0]);
    for (int o = 0; o < row->outs; o++)
        if (row->reads >> (16 + o) & 1) agree &= tensor_elements(f->in[at++]) == tensor_elements(&forward.out[o]);
    REQUIRE(agree, "dy or an output of %s has the wrong shape", row->name);
    const struct tensor *add = at < op_table[f->op].max_in ? f->in[at] : NULL, *x = forward.in[0];
    REQUIRE(!add || (same(add, x) && add->dtype == x->dtype),
            "the tensor added to a gradient differs from it in shape or dtype");
    for (int o = 0; o < op_table[f->op].outs; o++) like(&f->out[o], forward.in[o]);
}

/* Does as infer_like_inputs, but the inputs after the first are weights: their gradients are sums,
 * in f32. */
void infer_like_weights(struct infer *f)
{
    infer_like_inputs(f);
    for (int o = 1; o < op_table[f->op].outs; o++) f->out[o].dtype = statistic(f->in[0]);
}
