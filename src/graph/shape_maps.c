/*
 * shape_maps.c: shape rules of the ops that move elements (permute, concatenate,
 * pad, gather) and of those on maps, images with their channels last: [B,H,W,C].
 */
#include "graph/infer.h"

/* --- moving elements ---------------------------------------------------------- */

void infer_permute(struct infer *f)
{
    const struct tensor *x = f->in[0];
    const uint8_t *axes = f->attr->permute.axes;
    unsigned seen = 0;
    for (int i = 0; i < x->rank; i++) {
        REQUIRE(axes[i] < x->rank && !(seen >> axes[i] & 1), "axis %d at place %d: each of the %d axes is named once",
                axes[i], i, x->rank);
        seen |= 1u << axes[i];
        f->out[0].dim[i] = x->dim[axes[i]];
        f->out[0].stride[i] = x->stride[axes[i]];
    }
    f->out[0].dtype = x->dtype;
    f->out[0].rank = x->rank;
    f->out[0].offset = x->offset;
}
