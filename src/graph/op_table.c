/*
 * op_table.c: the table of ops.def. It names every rule, and no rule calls it.
 */
#include "graph/rules.h"

#define I(n) (1u << (n))
#define O(n) (1u << (16 + (n)))
#define NONE 0u
#define NEW ALIAS_NEW
#define MUST(i) ((i) + 1)
#define MAY(i) (-(i) - 1)
#define MAY_ANY ALIAS_ANY
#define ALIAS(...) {__VA_ARGS__}
#define vjp_none NULL   /* "no gradient", as stated in the row */
#define infer_none NULL /* the signature says it all */

struct op_row op_table[OP_COUNT] = {
    [OP_NONE] = {.name = "none"},
#define OP(NAME, ATTRIBUTES, SIGNATURE, RULE, VJP, READS, ALIASES, COST, CLASS, FLAGS, DOC)                            \
    [OP_##NAME] = {#NAME,   ATTRIBUTES,  SIGNATURE,      infer_##RULE, vjp_##VJP, READS,                               \
                   ALIASES, cost_##COST, &class_##CLASS, FLAGS,        DOC},
#include "graph/ops.def"
#undef OP
};
