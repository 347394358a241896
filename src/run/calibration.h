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
 */
#ifndef CALIBRATION_H
#define CALIBRATION_H

#include "run/kernel.h"

enum { CURVE_POINTS = 16, OP_VARIANTS = 8 };

struct curve_point {
    double ideal, factor;
};

struct curve {
    int n;                      /* 0: not measured */
    struct curve_point at[CURVE_POINTS]; /* ideals ascend */
};

enum dtype_class { CLASS_FULL, CLASS_HALF, CLASS_COUNT }; /* HALF: some operand has 16 bits */

struct calibration {
    char cpu[96], isa[64], date[32];
    struct curve curve[OP_COUNT][OP_VARIANTS][CLASS_COUNT];
};

/* Which curve a node belongs to. */
int op_variant(enum op op, const union attr *attr);
enum dtype_class query_class(const struct query *q);
/* "tn" of a MATMUL, "relu" of an ACT; "" where an op has one variant only, NULL beyond the last. */
const char *op_variant_name(enum op op, int variant);

double curve_factor(const struct curve *c, double ideal);
/* The ideal, corrected. What was not measured is like what was: another variant or class
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

#endif
