/*
 * ops.h: the op table as C sees it. The rows are in ops.def. A new row recompiles what includes
 * this header: headers that many files read say uint16_t for an op, and emit.h and sizes.h know no
 * rows.
 */
#pragma once

#include "graph/emit.h"

enum op {
    OP_NONE,
#define OP(NAME, ...) OP_##NAME,
#include "graph/ops.def"
#undef OP
    OP_COUNT
};
_Static_assert((int)OP_COUNT <= OPS_MOST, "OPS_MOST of graph.h is too small");

/* OPF_HOST: the CPU's kernel has the bits of the GPU's and needs no workspace */
enum { OPF_VIEW = 1, OPF_ACCUM = 2, OPF_EFFECT = 4, OPF_GRAD = 8, OPF_COMM = 16, OPF_LOCAL = 32, OPF_HOST = 64 };

/* alias codes, per output: 0 new, i+1 must be input i, -(i+1) may be, -100 any input. */
enum { ALIAS_NEW = 0, ALIAS_ANY = -100 };

/* The inputs of a node by pointer (NULL: not given), and the outputs to fill: dtype, rank, dim. An
 * error message goes into `error` and stops the builder. */
struct infer {
    enum op op;
    const union attr *attr;
    const struct tensor *in[MAX_IN];
    struct tensor out[MAX_OUT];
    int nin;
    char error[256];
};

/* Arguments of a vjp: the forward node's tensors, the gradients of its outputs (0: none), and which
 * inputs need a gradient. The vjp emits nodes and fills din. A din that is one of the dout ids
 * means "passed through". */
struct vjp {
    struct graph *g;
    enum op op;
    const union attr *attr;
    id in[MAX_IN], out[MAX_OUT], dout[MAX_OUT], din[MAX_IN];
    bool need[MAX_IN];
};

struct cost {
    double flops; /* in the compute dtype */
    double bytes; /* bytes read and written */
};

/* What makes nodes of an op alike in time, besides their cost (cost/op_classes.c): a variant, such
 * as a transpose, and extents, such as the length of a row, which decide how full a tile is. */
enum { EXTENTS = 3 };
struct op_class_rule {
    int (*variant)(const struct tensor *const *in, const union attr *); /* NULL: one variant */
    const char *const *variants;         /* their names */
    int n_variants;
    /* NULL: none */
    void (*extents)(const struct tensor *const *in, const struct tensor *const *out, const union attr *,
                    double at[EXTENTS]);
};

/* A row of ops.def, which explains the members. */
struct op_row {
    const char *name, *attributes, *signature;
    void (*rule)(struct infer *); /* NULL: the signature says it all */
    void (*vjp)(struct vjp *);  /* NULL: "no gradient", as stated in the row */
    uint32_t reads;             /* bit i: input i; bit 16+i: output i */
    int8_t alias[MAX_OUT];
    struct cost (*cost)(const struct tensor *const *in, const struct tensor *const *out, const union attr *);
    const struct op_class_rule *alike;
    uint8_t flags;
    const char *doc;
    uint8_t min_in, max_in, outs; /* as the signature has them */
};
extern struct op_row op_table[OP_COUNT];

/* Checks the inputs of a node and fills its outputs, by the signature and the rule of the op. */
void op_infer(struct infer *f);

/* Returns the variant of a node, and a variant's name: "tn" for a MATMUL, "relu" for an ACT, "" if
 * an op has one variant only, and NULL beyond the last. */
int op_variant(enum op op, const struct tensor *const *in, const union attr *attr);
const char *op_variant_name(enum op op, int variant);
/* Returns the op whose times are used for an op that was not measured; OP_NONE: none. */
enum op op_like(enum op op);

/* Returns the dimension of the op's signature that an axis of a tensor is; -1: one without a name.
 * A slot is that of an input, or MAX_IN + that of an output. op_axis returns the axis that has a
 * dimension; -1: none. op_dimension_is compares it with a name, of n bytes, or "...". */
int op_dimension(enum op op, int slot, int rank, int axis);
int op_axis(enum op op, int slot, int rank, int dimension);
bool op_dimension_is(enum op op, int dimension, const char *name, size_t n);

/* Returns false for views and for nodes that first_sum.c silenced: they launch no kernel. */
static inline bool node_launches(const struct node *n) { return !n->silent && !(op_table[n->op].flags & OPF_VIEW); }
/* Returns the input that output `o` of this node updates in place; -1: none. */
int op_must_alias(const struct node *n, int o);

/* Returns the op of that name, in either case; OP_NONE: there is none. */
enum op op_named(const char *name);
/* Reads attributes from text, "eps=1e-6 window=128", of those that the row lists. Attributes that
 * are not named are 0. An attribute called dtype is set to `dtype`, the first input's. */
int attr_read(union attr *attr, enum op op, enum dtype dtype, const char *text, struct error *e);
/* Returns a hash of the attributes that the row lists; the padding between them does not count. */
uint64_t attr_hash(const union attr *attr, enum op op, uint64_t seed);

/* Emits any op by its row; attr NULL: no attributes. An op needs no builder function of its own. */
id op_apply(struct graph *g, enum op op, const union attr *attr, const id *in, int nin);
/* Does as op_apply, but returns all outputs; 0: an output that is not given, or an error. */
struct outputs {
    id at[MAX_OUT];
};
struct outputs op_outputs(struct graph *g, enum op op, const union attr *attr, const id *in, int nin);
