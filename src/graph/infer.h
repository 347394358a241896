/*
 * infer.h: helpers shared by the files of shape rules.
 */
#ifndef INFER_H
#define INFER_H

#include <stdio.h>
#include <string.h>

#include "graph/rules.h"

/* Writes the error message and returns from the rule. */
#define REQUIRE(cond, ...)                                 \
    do {                                                   \
        if (!(cond)) {                                     \
            snprintf(f->error, sizeof f->error, __VA_ARGS__); \
            return;                                        \
        }                                                  \
    } while (0)

static inline void set(struct tensor *out, enum dtype t, int rank, const int64_t *dim)
{
    out->dtype = t;
    out->rank = rank;
    memcpy(out->dim, dim, rank * sizeof *dim);
}

static inline void like(struct tensor *out, const struct tensor *x) { set(out, x->dtype, x->rank, x->dim); }

static inline enum dtype statistic(const struct tensor *x) { return x->dtype == DT_F64 ? DT_F64 : DT_F32; }

static inline bool same(const struct tensor *a, const struct tensor *b)
{
    return a->rank == b->rank && !memcmp(a->dim, b->dim, a->rank * sizeof *a->dim);
}

/* True for the step block only: kernels read it as struct step_block. */
static inline bool is_step(const struct tensor *x)
{
    return x->dtype == DT_U8 && x->rank == 1 && x->dim[0] == (int64_t)sizeof(struct step_block);
}

static inline bool is_scalar(const struct tensor *x) { return x->rank == 0; }
static inline bool is_vector(const struct tensor *x, int64_t n) { return x->rank == 1 && x->dim[0] == n; }

#endif
