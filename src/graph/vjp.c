/*
 * vjp.c: the gradient of each op, as ordinary nodes.
 *
 * A vjp reads only the tensors that its row in ops.def lists (autodiff checks this), so the planner
 * knows what each forward tensor is kept for. din[i] is left 0 where no gradient is needed. Weight
 * gradients are f32 (f64 in an f64 graph; passes/techniques/gradients.c). Ops whose gradient is a
 * single op need no vjp of their own: vjp_paired, vjp_attention and vjp_loss emit the row that
 * follows.
 */
#include "graph/rules.h"

/* Reports whether `x` is a weight, or several weights one after the other. */
static bool is_weight(const struct graph *g, id x)
{
    const struct node *n = node_at(g, tensor_at(g, x)->node);
    if (storage_of(g, x)->kind == KIND_PARAM) return true;
    for (int i = 0; i < n->nin; i++)
        if (n->op != OP_CONCAT || storage_of(g, n->in[i])->kind != KIND_PARAM) return false;
    return n->op == OP_CONCAT;
}

/* Returns the dtype of the gradient of `x`: gradients of weights accumulate in f32. */
static enum dtype gradient_dtype(struct vjp *v, id x)
{
    enum dtype t = tensor_at(v->g, x)->dtype;
    return is_weight(v->g, x) && t != DT_F64 ? DT_F32 : t;
}

/* Sums `gradient`, which has x's broadcast shape, to x's own shape. */
static id sum_to(struct vjp *v, id gradient, id x)
{
    struct tensor to = *tensor_at(v->g, x);
    const struct tensor *from = tensor_at(v->g, gradient);
    if (!gradient || (from->rank == to.rank && !memcmp(from->dim, to.dim, to.rank * sizeof *to.dim))) return gradient;
    if (tensor_elements(from) == tensor_elements(&to)) return op_reshape(v->g, gradient, to.rank, to.dim);
    union attr a = {.sum_to = {.dtype = gradient_dtype(v, x), .rank = to.rank}};
    memcpy(a.sum_to.dim, to.dim, sizeof to.dim);
    return op_apply(v->g, OP_SUM_TO, &a, &gradient, 1);
}

/* Emits the row that follows and takes its outputs as the gradients of the inputs. */
static void emit_next(struct vjp *v, const id *in, int nin)
{
    const struct outputs y = op_outputs(v->g, v->op + 1, v->attr, in, nin);
    for (int i = 0; i < op_table[v->op + 1].outs; i++) v->din[i] = v->in[i] ? y.at[i] : 0;
}

/* Emits NAME_BWD(dy, what the row reads: inputs in order, then outputs in order). */
void vjp_paired(struct vjp *v)
{
    const uint32_t reads = op_table[v->op].reads;
    id in[MAX_IN] = {v->dout[0]};
    int n = 1;
    for (int i = 0; i < MAX_IN && n < MAX_IN; i++)
        if (reads >> i & 1) in[n++] = v->in[i];
    for (int o = 0; o < MAX_OUT && n < MAX_IN; o++)
        if (reads >> (16 + o) & 1) in[n++] = v->out[o];
    emit_next(v, in, n);
}

void vjp_reshape(struct vjp *v)
{
    const struct tensor *x = tensor_at(v->g, v->in[0]);
    int64_t dim[MAX_RANK];
    for (int i = 0; i < x->rank; i++) dim[i] = x->dim[i];
    v->din[0] = op_reshape(v->g, v->dout[0], x->rank, dim);
}

/* Sums the gradient over the ranks, each of which has that of its part. One rank does the same, so
 * that what is added to the sum is added in the same way. */
void vjp_enter(struct vjp *v)
{
    const bool sums = v->attr->group.ranks;
    v->din[0] = sums ? op_apply(v->g, OP_SUM_RANKS, v->attr, (id[]){op_dense(v->g, v->dout[0])}, 1) : v->dout[0];
}

void vjp_sum_ranks(struct vjp *v) { v->din[0] = v->dout[0]; }

/* Pads the gradient of a slice with zeros: it is zero around the slice. */
void vjp_slice(struct vjp *v)
{
    const struct tensor x = *tensor_at(v->g, v->in[0]);
    int64_t before[MAX_RANK] = {0}, after[MAX_RANK] = {0};
    int axis = v->attr->slice.axis;
    before[axis] = v->attr->slice.start;
    after[axis] = x.dim[axis] - v->attr->slice.start - v->attr->slice.length;
    v->din[0] = op_pad(v->g, v->dout[0], before, after);
}

/* Differentiates y = x w^T + b + r: dx = dy w, dw = dy^T x, db = sum of dy's rows, dr = dy. dx is
 * computed last: x may be dead by then, and its bytes free. */
void vjp_linear(struct vjp *v)
{
    id dy = v->dout[0], x = v->in[0], w = v->in[1];
    if (v->need[1]) v->din[1] = op_matmul(v->g, dy, x, true, false, gradient_dtype(v, w));
    if (v->need[2]) v->din[2] = sum_to(v, dy, v->in[2]);
    if (v->need[0]) v->din[0] = op_matmul(v->g, dy, w, false, false, tensor_at(v->g, x)->dtype);
    if (v->need[3]) v->din[3] = dy;
}

/* Differentiates y = f(z), z = x w^T + b: dz = dy f'(z), then as LINEAR. RELU's derivative can be
 * taken from y, which is positive where z is, so z need not be kept. */
void vjp_linear_act(struct vjp *v)
{
    id like = v->attr->act.kind == ACT_RELU ? v->out[0] : v->out[1];
    v->dout[0] = op_apply(v->g, OP_ACT_BWD, v->attr, (id[]){v->dout[0], like}, 2);
    if (v->dout[0]) vjp_linear(v);
}

/* Emits op(a) op(b) as v's op, MATMUL or BMM, in the dtype of the gradient of `like`. */
static id emit_product(struct vjp *v, id a, id b, bool ta, bool tb, id like)
{
    const union attr t = {.matmul = {ta, tb, gradient_dtype(v, like)}};
    return op_apply(v->g, v->op, &t, (id[]){a, b}, 2);
}

/* Differentiates y = op(a) op(b). With A = op(a), B = op(b): dA = dy B^T, dB = A^T dy; where an
 * operand was transposed its gradient is the transpose of that. BMM: for each leading index. */
void vjp_matmul(struct vjp *v)
{
    id dy = v->dout[0], a = v->in[0], b = v->in[1];
    bool ta = v->attr->matmul.ta, tb = v->attr->matmul.tb;
    if (v->need[0]) v->din[0] = ta ? emit_product(v, b, dy, tb, true, a) : emit_product(v, dy, b, false, !tb, a);
    if (v->need[1]) v->din[1] = tb ? emit_product(v, dy, a, true, ta, b) : emit_product(v, a, dy, !ta, false, b);
    if (v->need[2]) v->din[2] = dy;
}

/* Differentiates y = x w[e]^T, as LINEAR for each expert. dx is a grouped product with w^T. */
void vjp_grouped_linear(struct vjp *v)
{
    id dy = v->dout[0], x = v->in[0], w = v->in[1], offsets = v->in[2];
    if (v->need[1]) v->din[1] = op_apply(v->g, OP_GROUPED_DW, NULL, (id[]){dy, x, offsets}, 3);
    if (v->need[0]) v->din[0] = op_grouped_linear(v->g, dy, op_permute(v->g, w, (int[]){0, 2, 1}), offsets);
}

/* Rotates the gradient back: the transpose of a rotation is the inverse rotation. */
void vjp_rope(struct vjp *v)
{
    union attr a = *v->attr;
    a.rope.inverse = !a.rope.inverse;
    v->din[0] = op_apply(v->g, OP_ROPE, &a, (id[]){v->dout[0], v->in[1], v->in[2]}, 3);
}

void vjp_rmsnorm_rope(struct vjp *v)
{
    emit_next(v, (id[]){v->dout[0], v->in[0], v->in[1], v->out[1], v->in[2], v->in[3]}, 6);
}

/* Emits NAME_BWD(do, q, k, v, o, lse, the other inputs). With P = exp(scale q k^T + mask - lse)
 * recomputed per tile and D = rowsum(do o):
 *   dv = P^T do,  dS = P (do v^T - D),  dq = scale dS k,  dk = scale dS^T q.
 * A cap makes y = cap tanh(x / cap) of x = scale q k^T, and multiplies dS by 1 - (y / cap)^2.
 * A mask and ranges are inputs, not learned, and have no gradient. ATTENTION_REL adds R[t,s] =
 * Rh[h-kh] + Rw[w-kw] to a score, where query t = (h, w) and key s = (kh, kw) are positions of one
 * grid and q is unscaled:
 *   dq += sum over s of dS[t,s] R[t,s], with dS before it is scaled.
 * R depends only on kh and kw, so two sums of dS are enough,
 *   dH[t,kh] = sum over kw of dS,   dW[t,kw] = sum over kh of dS:
 *   dq += sum over kh of dH[t,kh] table_h[h-kh+height-1] + the same of dW,
 *   dtable_h[i] = sum over t, kh with h-kh+height-1 = i of dH[t,kh] q[t], over all heads.
 * In ATTENTION_BIAS the gradient of an entry is the sum of dS over all pairs at its distance.
 * ATTENTION_WINDOW is ATTENTION_REL window by window; the gradient of pad sums dk and dv over all
 * positions beyond the grid. */
void vjp_attention(struct vjp *v)
{
    emit_next(v, (id[]){v->dout[0], v->in[0], v->in[1], v->in[2], v->out[0], v->out[1], v->in[3], v->in[4], v->in[5]},
              op_table[v->op + 1].max_in);
}

void vjp_embedding(struct vjp *v)
{
    const struct attr_embedding *e = &v->attr->embedding;
    union attr a = {
        .embedding_dw = {tensor_at(v->g, v->in[1])->dim[0], e->padding, {e->of[0], e->of[1], e->of[2]}}};
    v->din[1] = op_apply(v->g, OP_EMBEDDING_DW, &a, (id[]){v->in[0], v->dout[0]}, 2);
}

/* Emits NAME_BWD(the inputs, the outputs after the loss, the loss's gradient). XENT, loss = k
 * sum(lse - l[y]):
 *   dl = k dloss (softmax(l) - onehot(y)).
 * MASK_LOSS, for one pixel, with z = x inside the mask and -x outside, q = sigmoid(-z) = 1 - p_t
 * and S = -log p_t = log(1 + e^-z):
 *   focal = a q^gamma S,   dq/dz = -q (1-q),  dS/dz = -q,  so
 *   dfocal/dz = -a q^gamma (gamma (1-q) S + q).
 * dice = 1 - A/B with A = 2 sum(pg) + smooth, B = sum(p) + sum(g) + smooth:
 *   ddice/dp = (A - 2 g B) / B^2,  dp/dx = p (1-p).
 * The choice of a candidate and the true IoU are constants: they are step functions of x.
 * STRUCTURE_LOSS, with W the sum of the weights w of the cross-entropy, which depend only on the
 * target, A = I + smooth and B = U - I + smooth:
 *   dbce/dx = w (p - g) / W,
 *   diou/dp = v (A (1 - g) - B g) / B^2, because dA/dp = v g and dB/dp = v (1 - g),
 *   dp/dx = p (1-p).
 * BALANCE is linear in the chances, and the choices, which the loads count, are constants. */
void vjp_loss(struct vjp *v)
{
    id in[MAX_IN];
    int n = 0;
    for (int i = 0; i < op_table[v->op].max_in; i++) in[n++] = v->in[i];
    for (int o = 1; o < op_table[v->op].outs; o++) in[n++] = v->out[o];
    in[n++] = v->dout[0];
    emit_next(v, in, n);
}

/* Multiplies the slopes of SCORE_LOSS by inv_count dloss: of each mask its derivatives by the
 * scores, then that by the object's logit. */
void vjp_score_loss(struct vjp *v)
{
    struct graph *g = v->g;
    const enum dtype wide = tensor_at(g, v->dout[0])->dtype;
    const int64_t K = tensor_at(g, v->in[1])->dim[1];
    id factor = op_mul(g, op_cast(g, v->in[5], wide), v->dout[0]), all = op_mul(g, v->out[1], factor);
    for (int i = 1; i <= 2; i++)
        if (v->need[i])
            v->din[i] = op_cast(g, op_dense(g, op_slice(g, all, 1, i == 1 ? 0 : K, i == 1 ? K : 1)),
                                gradient_dtype(v, v->in[i]));
}

/* Sums the gradient of a broadcast operand over the broadcast dimensions. */
void vjp_add(struct vjp *v)
{
    for (int i = 0; i < 2; i++)
        if (v->need[i]) v->din[i] = sum_to(v, v->dout[0], v->in[i]);
}

void vjp_mul(struct vjp *v)
{
    for (int i = 0; i < 2; i++)
        if (v->need[i]) v->din[i] = sum_to(v, op_mul(v->g, v->dout[0], v->in[1 - i]), v->in[i]);
}

/* Differentiates y = k x with k either 0 or 1/(1-p): dx = k dy; the same key gives the same k. */
void vjp_dropout(struct vjp *v)
{
    v->din[0] = op_apply(v->g, OP_DROPOUT, v->attr, (id[]){v->dout[0], v->in[1], v->in[2]}, 3);
}

void vjp_scale(struct vjp *v) { v->din[0] = op_scale(v->g, v->dout[0], v->attr->scale.value); }

void vjp_cast(struct vjp *v) { v->din[0] = op_cast(v->g, v->dout[0], gradient_dtype(v, v->in[0])); }

void vjp_sum(struct vjp *v) { v->din[0] = op_apply(v->g, OP_SPREAD, NULL, (id[]){v->dout[0], v->in[0]}, 2); }

/* acc' = acc + x: the gradient passes to both unchanged. */
void vjp_accumulate(struct vjp *v) { v->din[0] = v->din[1] = v->dout[0]; }

/* Passes the gradient through: another layout of the same elements has the same gradient; if the
 * memory space differs, the gradient is copied to the input's space. */
void vjp_copy(struct vjp *v)
{
    enum space space = storage_of(v->g, v->in[0])->space;
    bool here = storage_of(v->g, v->dout[0])->space == space;
    v->din[0] = here ? v->dout[0] : op_copy(v->g, v->dout[0], space);
}

/* --- moving elements ---------------------------------------------------------- */

/* Permutes the gradient inversely: axis i of y is axis axes[i] of x. */
void vjp_permute(struct vjp *v)
{
    int inverse[MAX_RANK];
    for (int i = 0; i < tensor_at(v->g, v->in[0])->rank; i++) inverse[v->attr->permute.axes[i]] = i;
    v->din[0] = op_permute(v->g, v->dout[0], inverse);
}

/* Cuts dy into slices, views: each input's gradient is its slice. */
void vjp_concat(struct vjp *v)
{
    const int axis = v->attr->concat.axis;
    int64_t at = 0;
    for (int i = 0; i < MAX_IN && v->in[i]; i++) {
        int64_t length = tensor_at(v->g, v->in[i])->dim[axis];
        if (v->need[i]) v->din[i] = op_slice(v->g, v->dout[0], axis, at, length);
        at += length;
    }
}

/* Cuts the padding off dy: the gradient is the middle of it, a view. */
void vjp_pad(struct vjp *v)
{
    const struct tensor x = *tensor_at(v->g, v->in[0]);
    id d = v->dout[0];
    for (int i = 0; i < x.rank; i++)
        if (v->attr->pad.before[i] || v->attr->pad.after[i]) d = op_slice(v->g, d, i, v->attr->pad.before[i], x.dim[i]);
    v->din[0] = d;
}

/* Differentiates y[m] = x[index[m]]: the gradient of a row is the sum over all its reads; if there
 * is one at most, it is where the inverse index says. */
void vjp_gather(struct vjp *v)
{
    if (v->in[2]) v->din[0] = op_gather_unique(v->g, v->dout[0], v->in[2], v->in[1]);
    else v->din[0] = op_scatter_add(v->g, v->dout[0], v->in[1], tensor_at(v->g, v->in[0])->dim[1]);
}

/* Sums the gradients of a row's copies. */
void vjp_dispatch(struct vjp *v) { v->din[0] = op_combine(v->g, v->dout[0], v->in[1], 0); }

/* Differentiates x = sum of w y: dy = w dx, dw = dx . y; without weights the rows of dx are
 * dispatched. */
void vjp_combine(struct vjp *v)
{
    if (!v->in[2]) {
        v->din[0] = op_dispatch(v->g, v->dout[0], v->in[1]);
        return;
    }
    const struct outputs d =
        op_outputs(v->g, OP_COMBINE_BWD, NULL, (id[]){v->dout[0], v->in[0], v->in[1], v->in[2]}, 4);
    v->din[0] = d.at[0];
    v->din[2] = d.at[1];
}

/* Differentiates the transpose of GATHER, which is linear too. */
void vjp_scatter_add(struct vjp *v)
{
    if (v->need[0]) v->din[0] = op_gather(v->g, v->dout[0], v->in[1]);
    if (v->need[2]) v->din[2] = v->dout[0];
}

/* Returns the gradient of a row to where the row was copied from, x or y. Rows that were replaced
 * give x zeros, and a row of y gets the sum over its reads. */
void vjp_replace_rows(struct vjp *v)
{
    id d = v->dout[0], index = v->in[1];
    if (v->need[0]) v->din[0] = op_replace_rows(v->g, d, index, 0);
    if (!v->need[2]) return;
    const struct tensor x = *tensor_at(v->g, v->in[0]), y = *tensor_at(v->g, v->in[2]);
    if (y.rank == 2) { /* all samples read one y */
        const int64_t rows = x.dim[0] * x.dim[1];
        d = op_reshape(v->g, d, 3, (int64_t[]){1, rows, x.dim[2]});
        index = op_reshape(v->g, index, 2, (int64_t[]){1, rows});
    }
    v->din[2] = op_reshape(v->g, op_scatter_add(v->g, d, index, y.dim[y.rank - 2]), y.rank, y.dim);
}

/* Sums the gradient of each row over its repetitions: dy seen as [R,n,...], summed over n. */
void vjp_repeat(struct vjp *v)
{
    const struct tensor x = *tensor_at(v->g, v->in[0]), y = *tensor_at(v->g, v->out[0]);
    int64_t wide[MAX_RANK] = {x.dim[0], y.dim[0] / x.dim[0]};
    union attr a = {.sum_to = {.dtype = y.dtype, .rank = (uint8_t)(x.rank + 1), .dim = {x.dim[0], 1}}};
    for (int i = 1; i < x.rank; i++) wide[i + 1] = a.sum_to.dim[i + 1] = x.dim[i];
    id dy = op_reshape(v->g, v->dout[0], x.rank + 1, wide);
    v->din[0] = op_reshape(v->g, op_apply(v->g, OP_SUM_TO, &a, &dy, 1), x.rank, x.dim);
}

/* --- maps --------------------------------------------------------------------- */

/* Differentiates y = A x with a matrix of interpolation weights: dx = A^T dy. */
void vjp_resize(struct vjp *v)
{
    const struct tensor *x = tensor_at(v->g, v->in[0]);
    union attr a = {.resize = {x->dim[1], x->dim[2], v->attr->resize.align_corners}};
    v->din[0] = op_apply(v->g, OP_RESIZE_BWD, &a, v->dout, 1);
}

/* Differentiates y_o = sum of x_i / n_o over the window of o: dx_i = sum of dy_o / n_o over the
 * windows that i is in. */
void vjp_avgpool(struct vjp *v)
{
    const struct tensor *x = tensor_at(v->g, v->in[0]);
    union attr a = *v->attr;
    a.avgpool.H = x->dim[1];
    a.avgpool.W = x->dim[2];
    v->din[0] = op_apply(v->g, OP_AVGPOOL_BWD, &a, v->dout, 1);
}

/* Emits the transpose: each element moves to one position; the rest is zero padding or cropped. So
 * each op is the transpose of the other. */
void vjp_window(struct vjp *v)
{
    const struct tensor *x = tensor_at(v->g, v->in[0]);
    v->din[0] = op_unwindow(v->g, v->dout[0], x->dim[1], x->dim[2]);
}

void vjp_unwindow(struct vjp *v) { v->din[0] = op_window(v->g, v->dout[0], v->attr->window.size); }

/* --- Fourier features of points -------------------------------------------------- */

/* Returns `columns` of x from `first` on, dense. */
static id columns_of(struct graph *g, id x, int64_t first, int64_t columns)
{
    return op_dense(g, op_slice(g, x, tensor_at(g, x)->rank - 1, first, columns));
}

/* Differentiates y = [sin t, cos t] with t = 2 pi (2 c - 1) G:
 *   dt = dsin cos t - dcos sin t,   dc = 4 pi dt G^T,
 *   dG = 4 pi c^T dt - 2 pi (sum of dt's rows, twice). */
void vjp_fourier(struct vjp *v)
{
    struct graph *g = v->g;
    id y = v->out[0], dy = v->dout[0], coords = v->in[0], gauss = v->in[1];
    const int64_t F = tensor_at(g, gauss)->dim[1];
    const enum dtype t = tensor_at(g, coords)->dtype;
    const double pi = 3.14159265358979323846;
    /* One statement each: compilers differ in the evaluation order of arguments. */
    id dsin = columns_of(g, dy, 0, F), cosine = columns_of(g, y, F, F);
    id dcos = columns_of(g, dy, F, F), sine = columns_of(g, y, 0, F);
    id rise = op_mul(g, dsin, cosine), fall = op_mul(g, dcos, sine);
    id angle = op_add(g, rise, op_scale(g, fall, -1));
    if (angle && tensor_at(g, angle)->dtype != t) angle = op_cast(g, angle, t);
    if (v->need[0]) v->din[0] = op_scale(g, op_matmul(g, angle, gauss, false, true, t), 4 * pi);
    if (!v->need[1]) return;
    union attr a = {.sum_to = {.dtype = t, .rank = 1, .dim = {F}}};
    id sum = op_apply(g, OP_SUM_TO, &a, &angle, 1);
    id product = op_matmul(g, coords, angle, true, false, t);
    id left = op_scale(g, product, 4 * pi), right = op_scale(g, sum, -2 * pi);
    v->din[1] = op_add(g, left, right);
}

/* --- convolutions ------------------------------------------------------------------
 *
 * Maps are channels-last, [B,H,W,C]; weights are as published, [O,C/groups,kh,kw].
 * With zeros around x, and for each group of channels on its own,
 *
 *     y[b,i,j,o] = sum over u,v,c of x[b, i s + u - p, j s + v - p, c] w[o,c,u,v]
 *
 * It is linear in x and in w. The three ops are the partial derivatives of one trilinear form, so
 * the gradients of each one are the other two:
 *
 *     F(dy, x, w) = sum of dy[b,i,j,o] x[b, i s + u - p, j s + v - p, c] w[o,c,u,v]
 *     CONV = dF/d dy,  CONV_DX = dF/dx,  CONV_DW = dF/dw.
 *
 * A transposed convolution is CONV_DX whose "dy" is its input. */

/* Returns the attributes of all three, for a map `x` and a kernel `w`. */
static union attr full_attr(struct vjp *v, id x, id w)
{
    union attr a = *v->attr;
    const struct tensor *map = tensor_at(v->g, x), *kernel = tensor_at(v->g, w);
    a.conv.H = map->dim[1], a.conv.W = map->dim[2];
    a.conv.kh = (int32_t)kernel->dim[2], a.conv.kw = (int32_t)kernel->dim[3];
    return a;
}

/* Differentiates y = dF/d dy at (x, w), so <dy, y> = F(dy, x, w): dx = dF/dx and dw = dF/dw at dy.
 * dx is computed last, as in vjp_linear: x may be dead by then. */
void vjp_conv(struct vjp *v)
{
    id dy = v->dout[0], x = v->in[0], w = v->in[1];
    const union attr a = full_attr(v, x, w);
    if (v->need[1]) v->din[1] = op_apply(v->g, OP_CONV_DW, &a, (id[]){dy, x}, 2);
    if (v->need[2]) v->din[2] = sum_to(v, dy, v->in[2]);
    if (v->need[0]) v->din[0] = op_apply(v->g, OP_CONV_DX, &a, (id[]){dy, w}, 2);
}

/* Differentiates CONV_DX, where the result is F's x and the input is F's dy. With the result's
 * gradient g, <g, y> = F(in, g, w), so d in = CONV(g, w) and dw = CONV_DW(in, g). */
void vjp_conv_dx(struct vjp *v)
{
    id g = v->dout[0], in = v->in[0], w = v->in[1];
    const union attr a = full_attr(v, g, w);
    if (v->need[1]) v->din[1] = op_apply(v->g, OP_CONV_DW, &a, (id[]){in, g}, 2);
    if (v->need[2]) v->din[2] = sum_to(v, g, v->in[2]);
    if (v->need[0]) v->din[0] = op_apply(v->g, OP_CONV, &a, (id[]){g, w}, 2);
}
