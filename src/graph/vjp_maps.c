/*
 * vjp_maps.c: gradients of the ops that move elements and of the ops on maps [B,H,W,C] (see vjp.c
 * for the rules of a vjp).
 */
#include "graph/rules.h"

/* --- moving elements ---------------------------------------------------------- */

/* Axis i of y is axis axes[i] of x: the gradient uses the inverse permutation. */
void vjp_permute(struct vjp *v)
{
    int inverse[MAX_RANK];
    for (int i = 0; i < tensor_at(v->g, v->in[0])->rank; i++) inverse[v->attr->permute.axes[i]] = i;
    v->din[0] = op_permute(v->g, v->dout[0], inverse);
}

/* Each input's gradient is its slice of dy: views. */
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

/* The gradient is the middle of dy: a view. */
void vjp_pad(struct vjp *v)
{
    const struct tensor x = *tensor_at(v->g, v->in[0]);
    id d = v->dout[0];
    for (int i = 0; i < x.rank; i++)
        if (v->attr->pad.before[i] || v->attr->pad.after[i]) d = op_slice(v->g, d, i, v->attr->pad.before[i], x.dim[i]);
    v->din[0] = d;
}

/* y[m] = x[index[m]]: the gradient of a row is the sum over all its reads; if there is one at most,
 * it is where the inverse index says. */
void vjp_gather(struct vjp *v)
{
    if (v->in[2]) v->din[0] = op_gather_unique(v->g, v->dout[0], v->in[2], v->in[1]);
    else v->din[0] = op_scatter_add(v->g, v->dout[0], v->in[1], tensor_at(v->g, v->in[0])->dim[1]);
}

/* Linear too: the transpose of GATHER. */
void vjp_scatter_add(struct vjp *v)
{
    if (v->need[0]) v->din[0] = op_gather(v->g, v->dout[0], v->in[1]);
    if (v->need[2]) v->din[2] = v->dout[0];
}

/* A row is a copy of one of x or of y: its gradient goes there. Rows that were replaced give x
 * zeros, and a row of y gets the sum over its reads. */
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

/* --- maps --------------------------------------------------------------------- */

/* y = A x with a matrix of interpolation weights: dx = A^T dy. */
void vjp_resize(struct vjp *v)
{
    const struct tensor *x = tensor_at(v->g, v->in[0]);
    union attr a = {.resize = {x->dim[1], x->dim[2], v->attr->resize.align_corners}};
    id n = graph_emit(v->g, OP_RESIZE_BWD, &a, v->dout, 1);
    v->din[0] = n ? node_at(v->g, n)->out[0] : 0;
}

/* y_o = sum of x_i / n_o over the window of o:
 * dx_i = sum of dy_o / n_o over the windows that i is in. */
void vjp_avgpool(struct vjp *v)
{
    const struct tensor *x = tensor_at(v->g, v->in[0]);
    union attr a = *v->attr;
    a.avgpool.H = x->dim[1];
    a.avgpool.W = x->dim[2];
    id n = graph_emit(v->g, OP_AVGPOOL_BWD, &a, v->dout, 1);
    v->din[0] = n ? node_at(v->g, n)->out[0] : 0;
}
