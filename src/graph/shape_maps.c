/*
 * shape_maps.c: shape rules of the ops that move elements (permute, concatenate, pad, gather) and
 * of the ops on maps, which are images with channels last: [B,H,W,C].
 */
#include "graph/infer.h"
#include "graph/ops.h"

/* --- moving elements ---------------------------------------------------------- */

void infer_permute(struct infer *f)
{
    const struct tensor *x = f->in[0];
    const uint8_t *axes = f->attr->permute.axes;
    unsigned seen = 0;
    for (int i = 0; i < x->rank; i++) {
        REQUIRE(axes[i] < x->rank && !(seen >> axes[i] & 1), "axis %d at index %d: each of the %d axes must occur once",
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
        REQUIRE(before >= 0 && after >= 0, "padding of %lld before and %lld after axis %d", (long long)before,
                (long long)after, d);
        f->out[0].dim[d] += before + after;
    }
}

/* Checks that x [B,?,C] and index i32 [B,M] match. */
static void infer_index(struct infer *f, int64_t rows)
{
    const struct tensor *x = f->in[0], *index = f->in[1];
    REQUIRE(x->rank == 3, "x must be [B,N,C]");
    REQUIRE(index->dtype == DT_I32 && index->rank == 2 && index->dim[0] == x->dim[0], "the index must be i32 [%lld,M]",
            (long long)x->dim[0]);
    set(&f->out[0], x->dtype, 3, (int64_t[]){x->dim[0], rows, x->dim[2]});
}

void infer_topk(struct infer *f)
{
    const struct tensor *x = f->in[0];
    REQUIRE(x->rank >= 1 && dtype_is_float(x->dtype), "x must be real numbers");
    const int64_t k = f->attr->topk.k, N = tensor_last(x);
    REQUIRE(k >= 1 && k <= N && N <= INT32_MAX, "%lld of %lld are asked for", (long long)k, (long long)N);
    set(&f->out[0], DT_I32, x->rank, x->dim);
    f->out[0].dim[x->rank - 1] = k;
}

void infer_gather(struct infer *f)
{
    const struct tensor *x = f->in[0], *inverse = f->in[2];
    infer_index(f, f->in[1]->rank == 2 ? f->in[1]->dim[1] : 0);
    if (f->error[0] || !inverse) return;
    REQUIRE(inverse->dtype == DT_I32 && inverse->rank == 2 && inverse->dim[0] == x->dim[0] &&
                inverse->dim[1] == x->dim[1],
            "the inverse index must be i32 [%lld,%lld]", (long long)x->dim[0], (long long)x->dim[1]);
}

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

void infer_replace_rows(struct infer *f)
{
    const struct tensor *x = f->in[0], *index = f->in[1], *y = f->in[2];
    REQUIRE(x->rank == 3, "x must be [B,T,C]");
    REQUIRE(index->dtype == DT_I32 && index->rank == 2 && index->dim[0] == x->dim[0] && index->dim[1] == x->dim[1],
            "the index must be i32 [%lld,%lld]", (long long)x->dim[0], (long long)x->dim[1]);
    REQUIRE(!y || (y->dtype == x->dtype && tensor_last(y) == x->dim[2] &&
                   (y->rank == 2 || (y->rank == 3 && y->dim[0] == x->dim[0]))),
            "the other rows must be [N,%lld] or [%lld,N,%lld], in x's dtype", (long long)x->dim[2],
            (long long)x->dim[0], (long long)x->dim[2]);
    like(&f->out[0], x);
}

void infer_cache_write(struct infer *f)
{
    const struct tensor *cache = f->in[0], *rows = f->in[1], *at = f->in[2];
    REQUIRE(cache->rank >= 2 && rows->rank == cache->rank && cache->dtype == rows->dtype,
            "the cache [B,S,...] and the rows [B,T,...] must have one rank and one dtype");
    for (int i = 0; i < cache->rank; i++)
        REQUIRE(i == 1 || rows->dim[i] == cache->dim[i], "dimension %d is %lld in the cache and %lld in the rows", i,
                (long long)cache->dim[i], (long long)rows->dim[i]);
    REQUIRE(tensor_is_dense(cache), "the cache must be dense");
    REQUIRE(at->dtype == DT_I32 && at->rank == 2 && at->dim[0] == rows->dim[0] && at->dim[1] == rows->dim[1],
            "positions must be i32 [%lld,%lld]", (long long)rows->dim[0], (long long)rows->dim[1]);
    like(&f->out[0], cache);
}

/* --- maps --------------------------------------------------------------------- */

void infer_resize(struct infer *f)
{
    const struct tensor *x = f->in[0];
    int64_t H = f->attr->resize.H, W = f->attr->resize.W;
    REQUIRE(x->rank == 4, "x must be [B,H,W,C]");
    REQUIRE(H > 0 && W > 0, "to %lld x %lld", (long long)H, (long long)W);
    set(&f->out[0], x->dtype, 4, (int64_t[]){x->dim[0], H, W, x->dim[3]});
}

/* Here the attribute's H and W are those of dx. */
void infer_resize_bwd(struct infer *f) { infer_resize(f); }

/* Number of windows over n pixels of axis 0 or 1; 0: none. */
static int64_t pooled(const struct attr_avgpool *a, int axis, int64_t n)
{
    int64_t room = n + 2 * a->pad[axis] - a->k[axis];
    return room < 0 ? 0 : room / a->stride[axis] + 1;
}

static void check_windows(struct infer *f)
{
    const struct attr_avgpool *a = &f->attr->avgpool;
    REQUIRE(f->in[0]->rank == 4, "x must be [B,H,W,C]");
    REQUIRE(!a->adaptive || (a->H > 0 && a->W > 0), "to %lld x %lld", (long long)a->H, (long long)a->W);
    for (int i = 0; i < 2 && !a->adaptive; i++)
        REQUIRE(a->k[i] > 0 && a->stride[i] > 0 && a->pad[i] >= 0 && 2 * a->pad[i] <= a->k[i],
                "window %lld, stride %lld, padding %lld: the padding is at most half the window", (long long)a->k[i],
                (long long)a->stride[i], (long long)a->pad[i]);
}

void infer_avgpool(struct infer *f)
{
    const struct tensor *x = f->in[0];
    const struct attr_avgpool *a = &f->attr->avgpool;
    check_windows(f);
    if (f->error[0]) return;
    int64_t H = a->adaptive ? a->H : pooled(a, 0, x->dim[1]), W = a->adaptive ? a->W : pooled(a, 1, x->dim[2]);
    REQUIRE(H > 0 && W > 0, "the window is larger than the map");
    set(&f->out[0], x->dtype, 4, (int64_t[]){x->dim[0], H, W, x->dim[3]});
}

/* Here the attribute's H and W are those of dx. */
void infer_avgpool_bwd(struct infer *f)
{
    const struct tensor *dy = f->in[0];
    const struct attr_avgpool *a = &f->attr->avgpool;
    check_windows(f);
    if (f->error[0]) return;
    REQUIRE(a->adaptive || (pooled(a, 0, a->H) == dy->dim[1] && pooled(a, 1, a->W) == dy->dim[2]),
            "not the windows of a map of %lld x %lld", (long long)a->H, (long long)a->W);
    set(&f->out[0], dy->dtype, 4, (int64_t[]){dy->dim[0], a->H, a->W, dy->dim[3]});
}

/* --- batch normalisation -------------------------------------------------------- */

void infer_batchnorm(struct infer *f)
{
    const struct tensor *x = f->in[0], *w = f->in[1], *b = f->in[2];
    const int64_t group = f->attr->batchnorm.group;
    REQUIRE(x->rank == 4, "x must be [B,H,W,C]");
    REQUIRE(is_vector(w, x->dim[3]) && is_vector(b, x->dim[3]), "w and b must have %lld elements",
            (long long)x->dim[3]);
    REQUIRE(group > 0 && x->dim[0] % group == 0, "%lld images are not divisible into groups of %lld",
            (long long)x->dim[0], (long long)group);
    like(&f->out[0], x);
    set(&f->out[1], statistic(x), 2, (int64_t[]){x->dim[0] / group, x->dim[3]});
    f->out[2] = f->out[1];
}

void infer_batchnorm_frozen(struct infer *f)
{
    const struct tensor *x = f->in[0];
    REQUIRE(x->rank == 4, "x must be [B,H,W,C]");
    for (int i = 1; i < 5; i++)
        REQUIRE(is_vector(f->in[i], x->dim[3]), "w, b, mean and var must have %lld elements", (long long)x->dim[3]);
    like(&f->out[0], x);
}

void infer_batchnorm_update(struct infer *f)
{
    const struct tensor *mean = f->in[0];
    REQUIRE(mean->rank == 2 && same(mean, f->in[1]), "mean and rstd must be [groups,C]");
    for (int i = 2; i < 4; i++) {
        REQUIRE(is_vector(f->in[i], mean->dim[1]), "running mean and var must have %lld elements",
                (long long)mean->dim[1]);
        REQUIRE(f->in[i]->dtype == DT_F32 || f->in[i]->dtype == DT_F64, "running statistics must be f32");
        like(&f->out[i - 2], f->in[i]);
    }
    REQUIRE(f->attr->batchnorm_update.count > 1,
            "the variance of one element is undefined: use more images or larger maps");
}
