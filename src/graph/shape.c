/*
 * shape.c: the shape rules. Each rule checks its inputs and sets dtype, rank and dimensions of its
 * outputs (strides and offset too for views). A kernel may rely on exactly what its rule checks.
 *
 * Statistics (rstd of norms, log-sum-exp, losses, gradients of weights) are f32 for any dtype of
 * the activations; only an f64 graph keeps them in f64.
 */
#include "base/nf4.h"
#include "graph/infer.h"
#include "graph/ops.h"

/* An accumulator, when given, has as many elements as the result, in any shape. */
static bool takes_sum(const struct tensor *acc, const struct tensor *out)
{
    return !acc || (acc->dtype == out->dtype && tensor_elements(acc) == tensor_elements(out) && tensor_is_dense(acc));
}

/* --- views ------------------------------------------------------------------ */

void infer_reshape(struct infer *f)
{
    const struct tensor *x = f->in[0];
    REQUIRE(tensor_is_dense(x), "only a dense tensor can be reshaped");
    int64_t dim[MAX_RANK], known = 1, total = tensor_elements(x);
    int open = -1, rank = f->attr->reshape.rank;
    for (int i = 0; i < rank; i++) {
        dim[i] = f->attr->reshape.dim[i];
        if (dim[i] < 0) {
            REQUIRE(open < 0, "two dimensions are -1");
            open = i;
        } else {
            known *= dim[i];
        }
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

/* --- matrix products ------------------------------------------------------------ */

void infer_linear(struct infer *f)
{
    const struct tensor *x = f->in[0], *w = f->in[1], *bias = f->in[2], *add = f->in[3];
    REQUIRE(x->rank >= 1 && w->rank == 2, "x needs a dimension and w two");
    REQUIRE(x->dtype == w->dtype, "x and w differ in dtype");
    REQUIRE(tensor_last(x) == w->dim[1], "x ends in %lld, w expects %lld", (long long)tensor_last(x),
            (long long)w->dim[1]);
    REQUIRE(!bias || is_vector(bias, w->dim[0]), "bias must have %lld elements", (long long)w->dim[0]);
    like(&f->out[0], x);
    f->out[0].dim[x->rank - 1] = w->dim[0];
    REQUIRE(!add || (same(add, &f->out[0]) && add->dtype == x->dtype && tensor_is_dense(add)),
            "the added tensor must be dense and have the result's shape and dtype");
}

void infer_linear_act(struct infer *f)
{
    REQUIRE(f->attr->act.kind < ACT_KINDS, "activation %d is not known", f->attr->act.kind);
    infer_linear(f);
    if (!f->error[0]) f->out[1] = f->out[0];
}

void infer_matmul(struct infer *f)
{
    const struct tensor *a = f->in[0], *b = f->in[1], *acc = f->in[2];
    bool ta = f->attr->matmul.ta, tb = f->attr->matmul.tb;
    REQUIRE(a->rank >= 2 && b->rank >= 2, "both need two dimensions");
    int64_t m = ta ? tensor_last(a) : tensor_rows(a), k = ta ? tensor_rows(a) : tensor_last(a);
    int64_t kb = tb ? tensor_last(b) : tensor_rows(b), n = tb ? tensor_rows(b) : tensor_last(b);
    REQUIRE(k == kb, "inner dimensions %lld and %lld differ", (long long)k, (long long)kb);
    if (ta) {
        set(&f->out[0], f->attr->matmul.dtype, 2, (int64_t[]){m, n});
    } else {
        set(&f->out[0], f->attr->matmul.dtype, a->rank, a->dim);
        f->out[0].dim[a->rank - 1] = n;
    }
    REQUIRE(takes_sum(acc, &f->out[0]), "the accumulator does not fit the product");
}

void infer_bmm(struct infer *f)
{
    const struct tensor *a = f->in[0], *b = f->in[1], *acc = f->in[2];
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
    REQUIRE(takes_sum(acc, &f->out[0]), "the accumulator does not fit the product");
}

void infer_bmm_act(struct infer *f)
{
    const struct tensor *a = f->in[0], *z = f->in[1];
    const int rank = a->rank;
    REQUIRE(rank >= 2 && z->rank == rank, "both need two dimensions or more, and equally many; they have %d and %d",
            rank, z->rank);
    REQUIRE(f->attr->act.kind < ACT_KINDS, "activation %d", f->attr->act.kind);
    for (int i = 0; i < rank; i++)
        REQUIRE(i == rank - 2 || a->dim[i] == z->dim[i], "dimension %d is %lld in a and %lld in z", i,
                (long long)a->dim[i], (long long)z->dim[i]);
    set(&f->out[0], statistic(a), rank, a->dim);
    f->out[0].dim[rank - 1] = z->dim[rank - 2];
}

/* The target's dimensions, from the last one on, equal x's or are 1. */
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
    REQUIRE(takes_sum(f->in[1], &f->out[0]), "the accumulator does not fit the sum");
}

/* --- norms, position, activation -------------------------------------------------- */

void infer_rmsnorm(struct infer *f)
{
    const struct tensor *x = f->in[0], *w = f->in[1];
    REQUIRE(x->rank >= 1 && is_vector(w, tensor_last(x)), "w must have %lld elements", (long long)tensor_last(x));
    like(&f->out[0], x);
    set(&f->out[1], statistic(x), x->rank - 1, x->dim);
}

void infer_layernorm(struct infer *f)
{
    const struct tensor *x = f->in[0];
    REQUIRE(x->rank >= 1, "x needs a dimension");
    for (int i = 1; i < 3; i++)
        REQUIRE(is_vector(f->in[i], tensor_last(x)), "%c must have %lld elements", "wb"[i - 1],
                (long long)tensor_last(x));
    like(&f->out[0], x);
    for (int o = 1; o < 3; o++) set(&f->out[o], statistic(x), x->rank - 1, x->dim);
}

/* Inputs a, b and vectors; outputs y, statistics, and a + b. As many outputs as inputs. */
void infer_add_norm(struct infer *f)
{
    const struct tensor *a = f->in[0];
    REQUIRE(a->rank >= 1 && same(a, f->in[1]) && a->dtype == f->in[1]->dtype, "a and b differ");
    for (int i = 2; i < f->nin; i++)
        REQUIRE(is_vector(f->in[i], tensor_last(a)), "a weight must have %lld elements", (long long)tensor_last(a));
    for (int o = 1; o < f->nin - 1; o++) set(&f->out[o], statistic(a), a->rank - 1, a->dim);
    like(&f->out[0], a);
    like(&f->out[f->nin - 1], a);
}

/* Outputs dx, the sum of its rows, and y. */
void infer_act_bwd_sum(struct infer *f)
{
    const struct tensor *dy = f->in[0];
    REQUIRE(dy->rank >= 1 && same(dy, f->in[1]) && dy->dtype == f->in[1]->dtype, "dy and x differ");
    like(&f->out[0], dy);
    set(&f->out[1], statistic(dy), 1, &dy->dim[dy->rank - 1]);
    like(&f->out[2], dy);
}

void infer_silu_gate_bwd_y(struct infer *f)
{
    for (int i = 1; i < 3; i++)
        REQUIRE(same(f->in[0], f->in[i]) && f->in[0]->dtype == f->in[i]->dtype, "dy, gate and up differ");
    for (int o = 0; o < 3; o++) like(&f->out[o], f->in[0]);
}

/* One position per token, or three; or none are given. */
static bool are_positions(const struct tensor *p, const struct tensor *x)
{
    if (!p) return true;
    return p->dtype == DT_I32 && p->rank >= 2 && p->dim[0] == x->dim[0] && p->dim[1] == x->dim[1] &&
           (p->rank == 2 || (p->rank == 3 && p->dim[2] == 3));
}

void infer_rope(struct infer *f)
{
    const struct tensor *x = f->in[0], *freq = f->in[1];
    REQUIRE(x->rank == 4 && x->dim[3] % 2 == 0, "x must be [B,T,H,D] with D even");
    REQUIRE(is_vector(freq, x->dim[3] / 2), "inv_freq must have D/2 = %lld elements", (long long)x->dim[3] / 2);
    REQUIRE(are_positions(f->in[2], x), "positions must be i32 [B,T] or [B,T,3] = [%lld,%lld,3]", (long long)x->dim[0],
            (long long)x->dim[1]);
    const int64_t *sections = f->attr->rope.sections, pairs = f->in[2] && f->in[2]->rank == 3 ? x->dim[3] / 2 : 0;
    REQUIRE(sections[0] >= 0 && sections[1] >= 0 && sections[2] >= 0 &&
                sections[0] + sections[1] + sections[2] == pairs,
            "sections %lld,%lld,%lld must add up to %lld: D/2 with positions [B,T,3], else 0", (long long)sections[0],
            (long long)sections[1], (long long)sections[2], (long long)pairs);
    like(&f->out[0], x);
}

void infer_same1(struct infer *f) { like(&f->out[0], f->in[0]); }

void infer_same2(struct infer *f)
{
    REQUIRE(same(f->in[0], f->in[1]), "shapes differ");
    REQUIRE(f->in[0]->dtype == f->in[1]->dtype, "dtypes differ");
    like(&f->out[0], f->in[0]);
}

void infer_act(struct infer *f)
{
    REQUIRE(f->attr->act.kind < ACT_KINDS, "activation %d is not known", f->attr->act.kind);
    like(&f->out[0], f->in[0]);
}

/* An op on each row, along the last dimension. */
void infer_rows(struct infer *f)
{
    REQUIRE(f->in[0]->rank >= 1, "x needs a dimension");
    like(&f->out[0], f->in[0]);
}

/* --- attention ---------------------------------------------------------------------- */

/* One value per key, shared by all heads and queries; or no mask. */
static bool is_key_mask(const struct tensor *mask, const struct tensor *k)
{
    return !mask ||
           (mask->dtype == DT_F32 && mask->rank == 2 && mask->dim[0] == k->dim[0] && mask->dim[1] == k->dim[1]);
}

/* The first key and one past the last for each query; or no ranges. */
static bool are_ranges(const struct tensor *r, const struct tensor *q)
{
    return !r ||
           (r->dtype == DT_I32 && r->rank == 3 && r->dim[0] == q->dim[0] && r->dim[1] == q->dim[1] && r->dim[2] == 2);
}

void infer_attention(struct infer *f)
{
    const struct tensor *q = f->in[0], *k = f->in[1], *v = f->in[2];
    REQUIRE(q->rank == 4 && k->rank == 4 && same(k, v), "q must be [B,T,H,D], k and v [B,S,G,D]");
    REQUIRE(q->dim[0] == k->dim[0] && q->dim[3] == k->dim[3], "batch or head dimension differs");
    REQUIRE(f->attr->attention.window >= 0, "window %lld is negative", (long long)f->attr->attention.window);
    REQUIRE(is_key_mask(f->in[3], k), "the mask must be f32 [B,S] = [%lld,%lld]", (long long)k->dim[0],
            (long long)k->dim[1]);
    REQUIRE(are_ranges(f->in[4], q), "ranges must be i32 [B,T,2] = [%lld,%lld,2]", (long long)q->dim[0],
            (long long)q->dim[1]);
    REQUIRE(!f->in[4] || !f->attr->attention.causal, "ranges already say which keys a query sees: causal must be 0");
    REQUIRE(q->dim[2] % k->dim[2] == 0, "%lld query heads are not divisible by %lld key heads", (long long)q->dim[2],
            (long long)k->dim[2]);
    like(&f->out[0], q);
    set(&f->out[1], statistic(q), 3, (int64_t[]){q->dim[0], q->dim[2], q->dim[1]});
}

void infer_attention_bwd(struct infer *f)
{
    const struct tensor *dO = f->in[0], *q = f->in[1], *k = f->in[2], *v = f->in[3], *o = f->in[4];
    REQUIRE(same(dO, q) && same(o, q) && same(k, v) && is_key_mask(f->in[6], k) && are_ranges(f->in[7], q),
            "shapes do not agree");
    REQUIRE(!f->in[7] || !f->attr->attention.causal, "ranges already say which keys a query sees: causal must be 0");
    like(&f->out[0], q);
    like(&f->out[1], k);
    like(&f->out[2], v);
}

/* --- tokens ---------------------------------------------------------------------------- */

void infer_embedding(struct infer *f)
{
    const struct tensor *ids = f->in[0], *table = f->in[1];
    REQUIRE(ids->dtype == DT_I32 && ids->rank < MAX_RANK, "ids must be i32");
    REQUIRE(table->rank == 2, "the table must have two dimensions");
    REQUIRE(f->attr->embedding.padding >= 0 && f->attr->embedding.padding <= table->dim[0],
            "padding must be 0 to the number of rows");
    set(&f->out[0], table->dtype, ids->rank, ids->dim);
    f->out[0].dim[f->out[0].rank++] = table->dim[1];
}

void infer_embedding_dw(struct infer *f)
{
    const struct tensor *ids = f->in[0], *dy = f->in[1];
    REQUIRE(tensor_elements(ids) == tensor_rows(dy), "ids and dy do not agree");
    set(&f->out[0], statistic(dy), 2, (int64_t[]){f->attr->embedding_dw.rows, tensor_last(dy)});
    REQUIRE(takes_sum(f->in[2], &f->out[0]), "the accumulator does not fit the table");
}

void infer_shift_labels(struct infer *f)
{
    REQUIRE(f->in[0]->dtype == DT_I32 && f->in[0]->rank == 2, "labels must be i32 [B,T]");
    like(&f->out[0], f->in[0]);
}

void infer_labelled_first(struct infer *f)
{
    REQUIRE(f->in[0]->dtype == DT_I32 && f->in[0]->rank == 1, "labels must be i32 [rows]");
    for (int o = 0; o < 3; o++) like(&f->out[o], f->in[0]);
}

void infer_used_first(struct infer *f)
{
    const struct tensor *index = f->in[0];
    const int64_t blocks = f->attr->used_first.blocks, room = f->attr->used_first.room;
    REQUIRE(index->dtype == DT_I32 && index->rank == 2, "the index must be i32 [B,T]");
    const struct feature_blocks of = f->attr->used_first.of;
    REQUIRE(blocks > 0 && of.rows > 0 && room >= index->dim[0] * blocks && room <= INT32_MAX,
            "%lld blocks of %lld rows in each sample, room for %lld", (long long)blocks, (long long)of.rows,
            (long long)room);
    REQUIRE(of.first >= 0 && of.first <= blocks && (!of.first || of.first_rows > 0),
            "the first %lld blocks have %lld rows", (long long)of.first, (long long)of.first_rows);
    set(&f->out[0], DT_I32, 1, &room);
}

void infer_xent(struct infer *f)
{
    const struct tensor *logits = f->in[0], *labels = f->in[1];
    REQUIRE(labels->dtype == DT_I32 && tensor_elements(labels) == tensor_rows(logits), "one i32 label per row");
    REQUIRE(is_scalar(f->in[2]) && f->in[2]->dtype == DT_F32, "the third input must be 1 / count, an f32 scalar");
    set(&f->out[0], statistic(logits), 0, logits->dim);
    set(&f->out[1], statistic(logits), logits->rank - 1, logits->dim);
}

void infer_xent_bwd(struct infer *f)
{
    REQUIRE(is_scalar(f->in[4]), "dloss must be a scalar");
    like(&f->out[0], f->in[0]);
}

/* --- elementwise --------------------------------------------------------------------------- */

/* Size of dimension i, counted from the last one; 1 for dimensions that x does not have. */
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

void infer_cast(struct infer *f)
{
    like(&f->out[0], f->in[0]);
    f->out[0].dtype = f->attr->cast.dtype ? f->attr->cast.dtype : DT_F32;
}

void infer_sum(struct infer *f) { set(&f->out[0], statistic(f->in[0]), 0, f->in[0]->dim); }

void infer_spread(struct infer *f)
{
    REQUIRE(is_scalar(f->in[0]), "ds must be a scalar");
    like(&f->out[0], f->in[1]);
}

void infer_accumulate(struct infer *f)
{
    REQUIRE(same(f->in[0], f->in[1]), "shapes differ");
    like(&f->out[0], f->in[1]);
}

void infer_fill(struct infer *f) { set(&f->out[0], f->attr->fill.dtype, f->attr->fill.rank, f->attr->fill.dim); }

void infer_dequantize(struct infer *f)
{
    const union attr *a = f->attr;
    set(&f->out[0], a->dequantize.dtype, a->dequantize.rank, a->dequantize.dim);
    const uint64_t bytes = nf4_layout(tensor_elements(&f->out[0]), a->dequantize.nested).bytes;
    REQUIRE(f->in[0]->dtype == DT_U8 && is_vector(f->in[0], (int64_t)bytes) && tensor_is_dense(f->in[0]),
            "x must be u8 [%llu]", (unsigned long long)bytes);
    REQUIRE(dtype_is_float(a->dequantize.dtype), "the result must have a floating-point dtype");
}

void infer_copy(struct infer *f)
{
    REQUIRE(!f->in[1] || (same(f->in[0], f->in[1]) && f->in[0]->dtype == f->in[1]->dtype), "source and target differ");
    like(&f->out[0], f->in[0]);
}

void infer_dropout(struct infer *f)
{
    const struct tensor *x = f->in[0], *samples = f->in[2];
    float p = f->attr->dropout.p;
    REQUIRE(is_step(f->in[1]), "the second input must be the step block");
    REQUIRE(p >= 0 && p < 1, "the probability %g is not within [0, 1)", (double)p);
    REQUIRE(x->rank >= 1 && samples->dtype == DT_I32 && is_vector(samples, x->dim[0]),
            "samples must be i32, one for each of x's first dimension");
    like(&f->out[0], x);
}

/* --- update ---------------------------------------------------------------------------------- */

void infer_sumsq(struct infer *f)
{
    REQUIRE(is_scalar(f->in[1]) && f->in[1]->dtype == DT_F64, "the sum must be a scalar f64");
    like(&f->out[0], f->in[1]);
}

void infer_clip(struct infer *f)
{
    REQUIRE(is_scalar(f->in[0]) && f->in[0]->dtype == DT_F64, "the sum must be a scalar f64");
    set(&f->out[0], DT_F32, 1, (int64_t[]){2});
}

void infer_scaler(struct infer *f)
{
    REQUIRE(is_scalar(f->in[0]) && f->in[0]->dtype == DT_F64, "the sum must be a scalar f64");
    REQUIRE(is_step(f->in[1]), "the second input must be the step block");
    REQUIRE(!f->in[2] || is_scalar(f->in[2]), "the loss must be a scalar");
    like(&f->out[0], f->in[1]);
}
