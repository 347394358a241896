/*
 * vjp.c: the gradient of each op, as ordinary nodes.
 *
 * A vjp reads only the tensors that its row in ops.def lists (autodiff checks this), so the planner
 * knows what each forward tensor is kept for. din[i] is left 0 where no gradient is needed. Weight
 * gradients are f32 (f64 in an f64 graph; passes/techniques/gradients.c). Ops whose gradient is a
 * single op need no vjp here (paired.c).
 */
#include <string.h>

#include "graph/rules.h"

static id emit(struct vjp *v, enum op op, const union attr *attr, const id *in, int nin, int out)
{
    id n = graph_emit(v->g, op, attr, in, nin);
    return n ? node_at(v->g, n)->out[out] : 0;
}

/* The dtype of the gradient of `x`: gradients of weights accumulate in f32. */
static enum dtype gradient_dtype(struct vjp *v, id x)
{
    enum dtype t = tensor_at(v->g, x)->dtype;
    bool weight = storage_of(v->g, x)->kind == KIND_PARAM;
    return weight && t != DT_F64 ? DT_F32 : t;
}

/* Sums `gradient`, which has x's broadcast shape, to x's own shape. */
id vjp_sum_to(struct vjp *v, id gradient, id x)
{
    struct tensor to = *tensor_at(v->g, x);
    const struct tensor *from = tensor_at(v->g, gradient);
    if (!gradient || (from->rank == to.rank && !memcmp(from->dim, to.dim, to.rank * sizeof *to.dim))) return gradient;
    if (tensor_elements(from) == tensor_elements(&to)) return op_reshape(v->g, gradient, to.rank, to.dim);
    union attr a = {.sum_to = {.dtype = gradient_dtype(v, x), .rank = to.rank}};
    memcpy(a.sum_to.dim, to.dim, sizeof to.dim);
    return emit(v, OP_SUM_TO, &a, &gradient, 1, 0);
}

void vjp_reshape(struct vjp *v)
{
    const struct tensor *x = tensor_at(v->g, v->in[0]);
    int64_t dim[MAX_RANK];
    for (int i = 0; i < x->rank; i++) dim[i] = x->dim[i];
    v->din[0] = op_reshape(v->g, v->dout[0], x->rank, dim);
}

/* The gradient of a slice is zero around it. */
void vjp_slice(struct vjp *v)
{
    const struct tensor x = *tensor_at(v->g, v->in[0]);
    int64_t before[MAX_RANK] = {0}, after[MAX_RANK] = {0};
    int axis = v->attr->slice.axis;
    before[axis] = v->attr->slice.start;
    after[axis] = x.dim[axis] - v->attr->slice.start - v->attr->slice.length;
    v->din[0] = op_pad(v->g, v->dout[0], before, after);
}

/* y = x w^T + b + r: dx = dy w, dw = dy^T x, db = sum of dy's rows, dr = dy. dx is computed last: x
 * may be dead by then, and its bytes free. */
void vjp_linear(struct vjp *v)
{
    id dy = v->dout[0], x = v->in[0], w = v->in[1];
    if (v->need[1]) v->din[1] = op_matmul(v->g, dy, x, true, false, gradient_dtype(v, w));
    if (v->need[2]) v->din[2] = vjp_sum_to(v, dy, v->in[2]);
    if (v->need[0]) v->din[0] = op_matmul(v->g, dy, w, false, false, tensor_at(v->g, x)->dtype);
    if (v->need[3]) v->din[3] = dy;
}

/* y = f(z), z = x w^T + b: dz = dy f'(z), then as LINEAR. RELU's derivative can be taken from y,
 * which is positive where z is, so z need not be kept. */
void vjp_linear_act(struct vjp *v)
{
    id like = v->attr->act.kind == ACT_RELU ? v->out[0] : v->out[1];
    v->dout[0] = emit(v, OP_ACT_BWD, v->attr, (id[]){v->dout[0], like}, 2, 0);
    if (v->dout[0]) vjp_linear(v);
}

/* y = op(a) op(b). With A = op(a), B = op(b):  dA = dy B^T,  dB = A^T dy; where an
 * operand was transposed its gradient is the transpose of that. */
void vjp_matmul(struct vjp *v)
{
    id dy = v->dout[0], a = v->in[0], b = v->in[1];
    bool ta = v->attr->matmul.ta, tb = v->attr->matmul.tb;
    if (v->need[0])
        v->din[0] = ta ? op_matmul(v->g, b, dy, tb, true, gradient_dtype(v, a))
                       : op_matmul(v->g, dy, b, false, !tb, gradient_dtype(v, a));
    if (v->need[1])
        v->din[1] = tb ? op_matmul(v->g, dy, a, true, ta, gradient_dtype(v, b))
                       : op_matmul(v->g, a, dy, !ta, false, gradient_dtype(v, b));
    if (v->need[2]) v->din[2] = dy;
}

/* As MATMUL, for each leading index. */
void vjp_bmm(struct vjp *v)
{
    id dy = v->dout[0], a = v->in[0], b = v->in[1];
    bool ta = v->attr->matmul.ta, tb = v->attr->matmul.tb;
    if (v->need[0])
        v->din[0] = ta ? op_bmm(v->g, b, dy, tb, true, gradient_dtype(v, a))
                       : op_bmm(v->g, dy, b, false, !tb, gradient_dtype(v, a));
    if (v->need[1])
        v->din[1] = tb ? op_bmm(v->g, dy, a, true, ta, gradient_dtype(v, b))
                       : op_bmm(v->g, a, dy, !ta, false, gradient_dtype(v, b));
    if (v->need[2]) v->din[2] = dy;
}

/* The transpose of a rotation is the inverse rotation. */
void vjp_rope(struct vjp *v)
{
    union attr a = *v->attr;
    a.rope.inverse = !a.rope.inverse;
    v->din[0] = emit(v, OP_ROPE, &a, (id[]){v->dout[0], v->in[1], v->in[2]}, v->in[2] ? 3 : 2, 0);
}

/* With P = exp(scale q k^T + mask - lse) recomputed per tile and D = rowsum(do o):
 *   dv = P^T do,  dS = P (do v^T - D),  dq = scale dS k,  dk = scale dS^T q.
 * The mask and the ranges are inputs, not learned, and have no gradient. */
void vjp_attention(struct vjp *v)
{
    id mask = v->in[3], ranges = v->in[4];
    id n = graph_emit(v->g, OP_ATTENTION_BWD, v->attr,
                      (id[]){v->dout[0], v->in[0], v->in[1], v->in[2], v->out[0], v->out[1], mask, ranges},
                      ranges ? 8
                      : mask ? 7
                             : 6);
    for (int i = 0; n && i < 3; i++) v->din[i] = node_at(v->g, n)->out[i];
}

void vjp_embedding(struct vjp *v)
{
    union attr a = {.embedding_dw = {tensor_at(v->g, v->in[1])->dim[0], v->attr->embedding.padding}};
    v->din[1] = emit(v, OP_EMBEDDING_DW, &a, (id[]){v->in[0], v->dout[0]}, 2, 0);
}

/* loss = k sum(lse - l[y]):  dl = k dloss (softmax(l) - onehot(y)). */
void vjp_xent(struct vjp *v)
{
    v->din[0] = emit(v, OP_XENT_BWD, NULL, (id[]){v->in[0], v->in[1], v->in[2], v->out[1], v->dout[0]}, 5, 0);
}

/* The gradient of a broadcast operand is summed over the broadcast dimensions. */
void vjp_add(struct vjp *v)
{
    for (int i = 0; i < 2; i++)
        if (v->need[i]) v->din[i] = vjp_sum_to(v, v->dout[0], v->in[i]);
}

void vjp_mul(struct vjp *v)
{
    for (int i = 0; i < 2; i++)
        if (v->need[i]) v->din[i] = vjp_sum_to(v, op_mul(v->g, v->dout[0], v->in[1 - i]), v->in[i]);
}

/* y = k x with k either 0 or 1/(1-p): dx = k dy; the same key gives the same k. */
void vjp_dropout(struct vjp *v)
{
    v->din[0] = emit(v, OP_DROPOUT, v->attr, (id[]){v->dout[0], v->in[1], v->in[2]}, 3, 0);
}

void vjp_scale(struct vjp *v) { v->din[0] = op_scale(v->g, v->dout[0], v->attr->scale.value); }

void vjp_cast(struct vjp *v) { v->din[0] = op_cast(v->g, v->dout[0], gradient_dtype(v, v->in[0])); }

void vjp_sum(struct vjp *v) { v->din[0] = emit(v, OP_SPREAD, NULL, (id[]){v->dout[0], v->in[0]}, 2, 0); }

/* acc' = acc + x: the gradient passes to both unchanged. */
void vjp_accumulate(struct vjp *v) { v->din[0] = v->din[1] = v->dout[0]; }

/* Another layout of the same elements has the same gradient; if the memory space differs, the
 * gradient is copied to the input's space. */
void vjp_copy(struct vjp *v)
{
    enum space space = storage_of(v->g, v->in[0])->space;
    bool here = storage_of(v->g, v->dout[0])->space == space;
    v->din[0] = here ? v->dout[0] : op_copy(v->g, v->dout[0], space);
}
