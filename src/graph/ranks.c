/*
 * ranks.c: shape rules and costs of the ops by which shares and ranks become one step: SQUARES,
 * TOTAL, FOLD, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER.
 */
#include "graph/infer.h"
#include "graph/rules.h"
#include "graph/sizes.h"

void infer_squares(struct infer *f)
{
    const struct tensor *cells = f->in[1];
    const int64_t at = f->attr->squares.at, cell = f->attr->squares.cell, part = f->attr->squares.part,
                  elements = tensor_elements(f->in[0]);
    const int64_t n = part ? f->attr->squares.n : elements;
    REQUIRE(cells->dtype == DT_F64 && cells->rank == 1, "cells must be f64 [M]");
    REQUIRE(cell > 0 && at >= 0 && at + ceil_div(n, cell) <= cells->dim[0], "the cells of x are not within cells");
    REQUIRE(!part || (part == elements && part % cell == 0), "x is not a shard of whole cells");
    like(&f->out[0], cells);
}

void infer_total(struct infer *f)
{
    REQUIRE(f->in[0]->dtype == DT_F64 && f->in[0]->rank == 1, "cells must be f64 [M]");
    set(&f->out[0], DT_F64, 0, f->in[0]->dim);
}

void infer_fold(struct infer *f)
{
    const struct tensor *x = f->in[0], *partials = f->in[1];
    REQUIRE(f->attr->fold.shares > 1 && dtype_is_float(x->dtype), "x is not floating-point, or there is one share");
    REQUIRE(partials->dtype == x->dtype && partials->rank == 2 &&
                partials->dim[0] == fold_levels(f->attr->fold.shares) && partials->dim[1] == tensor_elements(x),
            "partials must be [levels, elements of x] in x's dtype");
    like(&f->out[0], x);
    like(&f->out[1], partials);
}

void infer_all_reduce(struct infer *f)
{
    REQUIRE(f->attr->group.ranks > 0 && dtype_is_float(f->in[0]->dtype),
            "x is not floating-point, or there are no ranks");
    like(&f->out[0], f->in[0]);
}

void infer_reduce_scatter(struct infer *f)
{
    const int64_t part = f->attr->group.part, ranks = f->attr->group.ranks;
    REQUIRE(ranks > 0 && dtype_is_float(f->in[0]->dtype) && tensor_elements(f->in[0]) <= ranks * part,
            "x is not floating-point, or the parts of all ranks do not cover it");
    REQUIRE(!f->in[1] || (f->in[1]->dtype == f->in[0]->dtype && is_vector(f->in[1], part)),
            "acc must be [part] in x's dtype");
    set(&f->out[0], f->in[0]->dtype, 1, &part);
}

void infer_all_gather(struct infer *f)
{
    const int64_t part = f->attr->group.part, all = f->attr->group.ranks * part;
    REQUIRE(part > 0 && is_vector(f->in[0], part), "x must be [part]");
    REQUIRE(!f->in[1] || (f->in[1]->dtype == f->in[0]->dtype && is_vector(f->in[1], all)),
            "into must be [ranks x part] in x's dtype");
    set(&f->out[0], f->in[0]->dtype, 1, &all);
}

/* x is read, and its cells are written. */
struct cost cost_squares(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)out;
    const double n = (double)tensor_elements(in[0]);
    return (struct cost){2 * n, (double)tensor_bytes(in[0]) + 8 * n / (double)attr->squares.cell};
}

/* An iteration adds one partial sum on average, and writes x and a partial sum. */
struct cost cost_fold(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)out, (void)attr;
    return (struct cost){(double)tensor_elements(in[0]), 4 * (double)tensor_bytes(in[0])};
}

/* Of memory alone: every rank sends and receives x twice, in parts, and adds its part. What
 * connects the ranks is not known here. */
struct cost cost_all_reduce(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)out, (void)attr;
    return (struct cost){(double)tensor_elements(in[0]), 6 * (double)tensor_bytes(in[0])};
}

/* Likewise: x is sent in parts, and as much is received and added. */
struct cost cost_reduce_scatter(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)attr;
    return (struct cost){(double)tensor_elements(in[0]),
                         3 * (double)tensor_bytes(in[0]) + (double)tensor_bytes(out[0])};
}

/* Likewise: what all ranks send is written. */
struct cost cost_all_gather(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    (void)attr;
    return (struct cost){0, (double)tensor_bytes(in[0]) + (double)tensor_bytes(out[0])};
}
