/*
 * norms.cuh: the pieces of a launch of RMSNORM or LAYERNORM and of their gradients, for norms.cu,
 * norm_packs.cu and norm_rope.cu.
 */
#pragma once

#include "cuda/device/kernel.cuh"

/* mean nullptr: RMSNORM, which has no b either. */
struct norm_stats {
    float *mean, *rstd; /* [rows] */
    float offset;       /* added to the weights w: 1 with unit_offset, else 0 */
};

static inline norm_stats norm_stats_of(const struct launch *l, const struct operand *mean, const struct operand *rstd)
{
    return {mean ? (float *)mean->data : nullptr, (float *)rstd->data,
            !mean && l->attr->rmsnorm.unit_offset ? 1.0f : 0.0f};
}

/* y = the norm of x [rows, C]. w and b have types of their own. */
struct norm_pieces {
    void *y;
    const void *x;
    norm_stats stats;
    typed_ptr w, b;
    enum store type;
    int64_t rows, C;
    float eps;
};

/* Returns the pieces of a launch. `added`: x is the sum of two inputs, which becomes output
 * norm_sum_at. */
static inline int norm_sum_at(bool centred) { return centred ? 3 : 2; }
static inline norm_pieces norm_of(const struct launch *l, bool centred, bool added)
{
    const struct operand *x = &l->in[0];
    const int at = added ? 2 : 1;
    return {l->out[0].data,
            added ? l->out[norm_sum_at(centred)].data : x->data,
            norm_stats_of(l, centred ? &l->out[1] : nullptr, &l->out[centred ? 2 : 1]),
            typed_of(&l->in[at]),
            centred ? typed_of(&l->in[at + 1]) : typed_ptr{nullptr, STORE_F32},
            store_of(x->dtype),
            operand_rows(x),
            operand_last(x),
            centred ? l->attr->layernorm.eps : l->attr->rmsnorm.eps};
}

/* The gradients. `add` has the rows' type or is nullptr; it is added to dx, which may alias any
 * input. The rows are the first of `whole`, which decide the order of the sums. */
struct norm_bwd_pieces {
    void *dx;
    float *dw, *db; /* db: nullptr if stats.mean is */
    const void *dy, *x, *add;
    norm_stats stats;
    typed_ptr w;
    enum store type;
    int64_t rows, whole, C;
};

/* Returns the pieces of a launch: inputs from 3 on are rstd, or mean and rstd, then the gradient
 * to add. */
static inline norm_bwd_pieces norm_bwd_of(const struct launch *l, bool centred)
{
    const struct operand *x = &l->in[1];
    return {l->out[0].data,
            out_as<float>(l, 1),
            centred ? out_as<float>(l, 2) : nullptr,
            l->in[0].data,
            x->data,
            data_in(l, centred ? 5 : 4),
            norm_stats_of(l, centred ? &l->in[3] : nullptr, &l->in[centred ? 4 : 3]),
            typed_of(&l->in[2]),
            store_of(x->dtype),
            operand_rows(x),
            launch_whole(l, operand_rows(x)),
            operand_last(x)};
}

/* norms.cu: any rows. The workspace has norm_partial floats. */
int norm_run(const struct launch *l, const norm_pieces &n, struct error *e);
int norm_bwd_run(const struct launch *l, const norm_bwd_pieces &n, struct error *e);
