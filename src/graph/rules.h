/*
 * rules.h: what the rules of ops.def share. It declares every rule that ops.def names, from ops.def
 * itself, so that a row cannot name a rule that does not exist.
 */
#pragma once

#include "graph/ops.h"

#define OP(NAME, ATTRIBUTES, SIGNATURE, RULE, VJP, READS, ALIASES, COST, CLASS, FLAGS, DOC) \
    extern const struct op_class_rule class_##CLASS;                                        \
    void infer_##RULE(struct infer *);                                                      \
    void vjp_##VJP(struct vjp *);                                                           \
    struct cost cost_##COST(const struct tensor *const *, const struct tensor *const *, const union attr *);
#include "graph/ops.def"
#undef OP

/* Reads the ATTRS rows of ops.def. */
void attr_table_read(void);
/* Reports whether the op has an attribute of this name, of `n` bytes. */
bool attr_has(enum op op, const char *name, size_t n);
/* Reads an attribute as a number; false: the op has none of this name. */
bool attr_value(const union attr *attr, enum op op, const char *name, size_t n, double *value);

/* Writes the error message and returns from the rule. */
#define REQUIRE(cond, ...)                                    \
    do {                                                      \
        if (!(cond)) {                                        \
            snprintf(f->error, sizeof f->error, __VA_ARGS__); \
            return;                                           \
        }                                                     \
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
