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
        REQUIRE(before >= 0 && after >= 0, "%lld before and %lld behind axis %d", (long long)before, (long long)after, d);
        f->out[0].dim[d] += before + after;
    }
}

/* x [B,?,C] and index i32 [B,M] belong together. */
static void infer_index(struct infer *f, int64_t rows)
{
    const struct tensor *x = f->in[0], *index = f->in[1];
    REQUIRE(x->rank == 3, "x must be [B,N,C]");
    REQUIRE(index->dtype == DT_I32 && index->rank == 2 && index->dim[0] == x->dim[0], "the index must be i32 [%lld,M]",
            (long long)x->dim[0]);
    set(&f->out[0], x->dtype, 3, (int64_t[]){x->dim[0], rows, x->dim[2]});
}

void infer_gather(struct infer *f) { infer_index(f, f->in[1]->rank == 2 ? f->in[1]->dim[1] : 0); }

void infer_scatter_add(struct infer *f)
{
    const struct tensor *y = f->in[0], *index = f->in[1], *acc = f->in[2];
    infer_index(f, f->attr->scatter_add.rows);
    if (f->error[0]) return;
    REQUIRE(y->dim[1] == index->dim[1], "%lld rows, %lld indices", (long long)y->dim[1], (long long)index->dim[1]);
    REQUIRE(f->attr->scatter_add.rows > 0, "the result needs rows");
    REQUIRE(!acc || (same(acc, &f->out[0]) && acc->dtype == y->dtype && tensor_is_dense(acc)),
            "the accumulator does not fit the sum");
}
