/*
 * op_classes.c: the column `class` of ops.def: which nodes of an op are alike in time at the same
 * cost.
 *
 *     product     op(a) [M,K] op(b) [K,N]   min(M,N), K      a narrow side leaves tiles empty
 *     attention   T queries, S keys, D      T, S, D          7 queries do not fill a tile of 64
 *     convolution C to O, k x k             C of a group, O, k^2
 *     sum         to fewer elements         the row, the elements of the result
 *     rows        of any other op           the row
 *     flat        one long row              none
 */
#include <math.h>

#include "graph/rules.h"

static double elements(const struct tensor *t) { return t ? (double)tensor_elements(t) : 0; }
static double last_dim(const struct tensor *t) { return t && t->rank ? (double)t->dim[t->rank - 1] : 1; }

#define EXTENTS_OF(name)                                                              \
    static void name(const struct tensor *const *in, const struct tensor *const *out, \
                     const union attr *attr, double at[EXTENTS])
#define UNUSED (void)in, (void)out, (void)attr

/* --- variants ------------------------------------------------------------------------- */

static const char *const act_names[] = {"gelu", "gelu_tanh", "quick_gelu", "relu", "sigmoid", "silu", "tanh", "exp"};
static const char *const product_names[] = {"nn", "tn", "nt", "tt"};
static const char *const conv_names[] = {"dense", "depthwise"};
static const char *const attention_names[] = {"full", "causal"};
static const char *const copy_names[] = {"", "out", "in"}; /* out of GPU memory, into it; both for GPUs only */
_Static_assert(COUNT(act_names) == ACT_KINDS, "a name for each activation");

#define VARIANT_OF(name) static int name(const struct tensor *const *in, const union attr *a)
VARIANT_OF(act_variant) { (void)in; return a->act.kind; }
VARIANT_OF(product_variant) { (void)in; return a->matmul.ta + 2 * a->matmul.tb; }
VARIANT_OF(conv_variant) { (void)in; return a->conv.groups > 1; }
/* With ranges, about half of the pairs are computed, as in a causal row. */
VARIANT_OF(attention_variant) { return a->attention.causal || in[4]; }
VARIANT_OF(attention_bwd_variant) { return a->attention.causal || in[7]; }

/* --- extents ---------------------------------------------------------------------------- */

static void product_extents(const struct tensor *y, double m, double k, double at[EXTENTS])
{
    at[0] = fmin(m, last_dim(y));
    at[1] = k;
}

EXTENTS_OF(linear_extents)
{
    UNUSED;
    const struct tensor *y = out[0] ? out[0] : out[1];
    product_extents(y, elements(y) / last_dim(y), last_dim(in[0]), at);
}

EXTENTS_OF(matmul_extents)
{
    UNUSED;
    const double m = elements(out[0]) / last_dim(out[0]);
    product_extents(out[0], m, elements(in[0]) / m, at);
}

EXTENTS_OF(scaled_dw_extents)
{
    UNUSED;
    product_extents(out[0], (double)out[0]->dim[0], last_dim(in[0]), at);
}

/* The average rows of an expert are summed. */
EXTENTS_OF(grouped_dw_extents)
{
    UNUSED;
    const double experts = (double)out[0]->dim[0];
    product_extents(out[0], (double)out[0]->dim[1], elements(in[1]) / last_dim(in[1]) / experts, at);
}

/* The extents of one matrix of the batch. */
EXTENTS_OF(bmm_extents)
{
    UNUSED;
    product_extents(out[0], (double)out[0]->dim[out[0]->rank - 2],
                    elements(in[0]) / (elements(out[0]) / last_dim(out[0])), at);
}

static void attention_extents(const struct tensor *q, const struct tensor *k, double at[EXTENTS])
{
    at[0] = (double)q->dim[1];
    at[1] = (double)k->dim[1];
    at[2] = last_dim(q);
}
EXTENTS_OF(forward_extents) { UNUSED; attention_extents(in[0], in[1], at); }
EXTENTS_OF(backward_extents) { UNUSED; attention_extents(in[1], in[2], at); }

/* Fills the extents of windows of a grid: the window's size counts, not their number. */
static void window_extents(const struct tensor *q, const union attr *attr, double at[EXTENTS])
{
    at[0] = at[1] = (double)attr->windowed.window * attr->windowed.window;
    at[2] = last_dim(q);
}
EXTENTS_OF(windows_extents) { UNUSED; window_extents(in[0], attr, at); }
EXTENTS_OF(windows_bwd_extents) { UNUSED; window_extents(in[1], attr, at); }

/* Fills the extents of a filter [O,C/groups,kh,kw]. */
static void filter_extents(const struct tensor *w, double at[EXTENTS])
{
    at[0] = (double)w->dim[1];
    at[1] = (double)w->dim[0];
    at[2] = (double)(w->dim[2] * w->dim[3]);
}
EXTENTS_OF(conv_extents) { UNUSED; filter_extents(in[1], at); }
EXTENTS_OF(conv_dw_extents) { UNUSED; filter_extents(out[0], at); }

EXTENTS_OF(sum_to_extents)
{
    UNUSED;
    at[0] = last_dim(in[0]);
    at[1] = elements(out[0]);
}
EXTENTS_OF(rows_extents) { UNUSED; at[0] = last_dim(in[0] ? in[0] : out[0]); }

/* --- the rules ---------------------------------------------------------------------------- */

#define NAMES(of) .variants = of, .n_variants = COUNT(of)
const struct op_class_rule class_rows = {.extents = rows_extents}, class_flat = {0},
                           class_linear = {.extents = linear_extents},
                           class_matmul = {product_variant, NAMES(product_names), matmul_extents},
                           class_bmm = {product_variant, NAMES(product_names), bmm_extents},
                           class_scaled_dw = {.extents = scaled_dw_extents},
                           class_grouped_dw = {.extents = grouped_dw_extents},
                           class_attention = {attention_variant, NAMES(attention_names), forward_extents},
                           class_attention_bwd = {attention_bwd_variant, NAMES(attention_names), backward_extents},
                           class_grid = {.extents = forward_extents}, class_grid_bwd = {.extents = backward_extents},
                           class_windows = {.extents = windows_extents},
                           class_windows_bwd = {.extents = windows_bwd_extents},
                           class_conv = {conv_variant, NAMES(conv_names), conv_extents},
                           class_conv_dw = {conv_variant, NAMES(conv_names), conv_dw_extents},
                           class_sum_to = {.extents = sum_to_extents},
                           class_copy = {NULL, NAMES(copy_names), rows_extents},
                           class_act = {act_variant, NAMES(act_names)},
                           class_act_rows = {act_variant, NAMES(act_names), rows_extents};

int op_variant(enum op op, const struct tensor *const *in, const union attr *attr)
{
    const struct op_class_rule *r = op_table[op].alike;
    return r && r->variant ? r->variant(in, attr) : 0;
}

const char *op_variant_name(enum op op, int variant)
{
    const struct op_class_rule *r = op_table[op].alike;
    if (!r || !r->variants) return variant ? NULL : "";
    return variant < r->n_variants ? r->variants[variant] : NULL;
}

enum op op_like(enum op op)
{
    switch (op) {
#define OP(...)
#define VIEW(...)
#define LIKE(NAME, OTHER) case OP_##NAME: return OP_##OTHER;
#include "graph/ops.def"
    default: return OP_NONE;
    }
}
