/*
 * calibration.h: what was measured of this machine's kernels, beyond its ceilings.
 *
 * The time of a node is launch + ideal * factor. The ideal is the roofline's: its
 * arithmetic or its bytes at the profile's ceilings, whichever is longer. The factor is
 * read from a curve over the ideal, one for each op, variant (a transpose, an activation's
 * kind) and class of dtype:
 *
 *     factor ^
 *            |  *                    short nodes: threads start, edges of tiles
 *            |     *    *
 *            |             *   *  *  long nodes: out of the caches, steady
 *            +-----------------------> log ideal
 *
 * between points the factor's logarithm is linear in the ideal's; beyond them it is that of
 * the last one. So small and large sizes differ as they do on the machine, and no size is
 * singled out.
 *
 * Of a CPU that is enough. On a GPU one op is several kernels, and one kernel may reach
 * 5 % of a ceiling with 7 queries and 60 % with 4096 of the same product of sizes. So a
 * GPU's nodes are sorted into classes (classes.c), each with a curve of its own: what has the
 * same kernel, variant, class of dtype and, to a factor of 1.4, the same extents that decide how well a tile is
 * filled. How many such tiles there are, the batch's part, is left to the curve.
 */
#ifndef CALIBRATION_H
#define CALIBRATION_H

#include "run/kernel.h"

enum { CURVE_POINTS = 16, OP_VARIANTS = 8, CLASSES_MOST = 1024, EXTENTS = 3 };

struct curve_point {
    double ideal, factor;
};

struct curve {
    int n;                      /* 0: not measured */
    struct curve_point at[CURVE_POINTS]; /* ideals ascend */
};

enum dtype_class { CLASS_FULL, CLASS_HALF, CLASS_COUNT }; /* HALF: some operand has 16 bits */

/* Nodes of a GPU that share a curve. */
struct op_class {
    enum op op;
    int variant, half;
    int extent[EXTENTS];        /* twice the logarithm to base 2, rounded; 0: it does not matter */
    char kernel[48];
    struct curve curve;
};

struct calibration {
    char cpu[96], isa[64], date[32]; /* cpu: of a GPU its name; isa: "sm_90" */
    struct curve curve[OP_COUNT][OP_VARIANTS][CLASS_COUNT];
    int classes;                     /* 0 for a CPU */
    int first[OP_COUNT + 1];         /* by op: its first class; those of op end where the next begin */
    struct op_class class[CLASSES_MOST];
};

/* Which curve a node belongs to. */
int op_variant(enum op op, const union attr *attr);
enum dtype_class query_class(const struct query *q);
/* "tn" of a MATMUL, "relu" of an ACT; "" where an op has one variant only, NULL beyond the last. */
const char *op_variant_name(enum op op, int variant);

/* The class of a node, without a curve (classes.c). */
void class_of(struct op_class *x, const struct query *q, enum op op);
/* Ascending by op, then kernel, variant, dtype and extents; 0: the same class. */
int class_order(const void *a, const void *b);
/* Sorts them and fills `first`. */
void calibration_sort(struct calibration *c);
/* The nearest class that was measured: rather of the same kernel, then of the same variant, then of near extents and ideal.
 * NULL: the op was not measured with such dtypes. */
const struct op_class *class_find(const struct calibration *c, const struct query *q, enum op op, double ideal);

double curve_factor(const struct curve *c, double ideal);
/* The ideal, corrected. What was not measured is like what was: another class, variant or dtype
 * of the op, else a long product for products and an addition for everything else. */
double calibration_apply(const struct calibration *c, const struct query *q, enum op op, double ideal);

/* --- profiles as files (profile_file.c) ------------------------------------------------- */

void profile_write(const struct profile *p, struct text *out);
/* Fills a profile and its calibration, which must live as long as the profile. PL_USAGE says
 * what is wrong; every number is checked. */
int profile_parse(const char *bytes, size_t n, struct profile *p, struct calibration *c, struct error *e);
int profile_read(const char *path, struct profile *p, struct calibration *c, struct error *e);
/* Where the profile of this machine and so many threads is kept: in $XDG_DATA_HOME/plimsoll
 * or ~/.local/share/plimsoll. False: there is no such place. */
bool profile_path(int threads, char *out, size_t room);
/* The same of a GPU, by the name of its profile. */
bool profile_gpu_path(const char *name, char *out, size_t room);

#endif
