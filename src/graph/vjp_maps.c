/*
 * vjp_maps.c: gradients of the ops that move elements and of those on maps [B,H,W,C]
 * (see vjp.c for what a vjp may do).
 */
#include "graph/rules.h"

/* --- moving elements ---------------------------------------------------------- */

/* Axis i of y is axis axes[i] of x: a gradient goes back by the inverse. */
void vjp_permute(struct vjp *v)
{
    int inverse[MAX_RANK];
    for (int i = 0; i < tensor_at(v->g, v->in[0])->rank; i++) inverse[v->attr->permute.axes[i]] = i;
    v->din[0] = op_permute(v->g, v->dout[0], inverse);
}
