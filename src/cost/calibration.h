/*
 * calibration.h: measured corrections of kernel times, beyond the device's ceilings.
 *
 * The time of a node is launch + ideal * factor. The ideal time is the roofline's: the node's
 * arithmetic or its bytes at the profile's ceilings, whichever takes longer. The factor is read
 * from a curve over the ideal time, one for each op, variant (a transpose, the kind of activation)
 * and dtype class:
 *
 *     factor ^
 *            |  *                    short nodes: thread start, edges of tiles
 *            |     *    *
 *            |             *   *  *  long nodes: larger than the caches, steady
 *            +-----------------------> log ideal
 *
 * Between points the factor is interpolated linearly in log-log space; beyond them it is that of
 * the last point. So small and large sizes differ as they do on the machine, and no size is a
 * special case.
 *
 * This is enough for a CPU. On a GPU one op has several kernels, and one kernel may reach 5 % of a
 * ceiling with 7 queries and 60 % with 4096, at the same product of sizes. So the nodes of a GPU
 * are sorted into classes (seconds.c), each with its own curve. A class has the same kernel,
 * variant, dtype class and, to a factor of 1.4, the same extents that decide how full a tile is.
 * The number of tiles, which depends on the batch, is left to the curve.
 */
#pragma once

#include "graph/ops.h"
#include "run/kernel.h"

enum { CURVE_POINTS = 16, OP_VARIANTS = 8, CLASSES_MOST = 1024 };

struct curve_point {
    double ideal, factor;
};

struct curve {
    int n;                      /* 0: not measured */
    struct curve_point at[CURVE_POINTS]; /* ascending by ideal */
};

enum dtype_class { CLASS_FULL, CLASS_HALF, CLASS_COUNT }; /* HALF: some operand is 16-bit */

/* GPU nodes that share a curve. */
struct op_class {
    enum op op;
    int variant, half;
    int extent[EXTENTS];        /* 2 * log2 of the extent, rounded; 0: not used */
    char kernel[48];
    struct curve curve;
};

struct calibration {
    char cpu[96], isa[64], date[32]; /* cpu: for a GPU its name; isa: for example "sm_90" */
    struct curve curve[OP_COUNT][OP_VARIANTS][CLASS_COUNT];
    int classes;                     /* 0 for a CPU */
    int first[OP_COUNT + 1];         /* by op: its first class; the last one ends where the next op begins */
    struct op_class class[CLASSES_MOST];
};

/* Returns CLASS_HALF if an input or output of the node has 16-bit floats, else CLASS_FULL. */
enum dtype_class query_class(const struct query *q);

/* Fills the class of a node, without a curve (seconds.c). */
void class_of(struct op_class *x, const struct query *q, enum op op);
/* Compares for qsort: ascending by op, kernel, variant, dtype class and extents; 0: the same
 * class. */
int class_order(const void *a, const void *b);
/* Sorts the classes and fills `first`. */
void calibration_sort(struct calibration *c);
/* Finds the nearest measured class: preferably of the same kernel, then of the same variant, then
 * of similar extents and ideal time. NULL: the op was not measured with these dtypes. */
const struct op_class *class_find(const struct calibration *c, const struct query *q, enum op op, double ideal);

double curve_factor(const struct curve *c, double ideal);
/* Returns the corrected ideal time. If the node's class was not measured, another one is used:
 * another class, variant or dtype of the op, else a long product for products and an addition for
 * all other ops. */
double calibration_apply(const struct calibration *c, const struct query *q, enum op op, double ideal);

/* --- the predicted time of a node (seconds.c) --------------------------------------------- */

/* Returns what an update on the host's processors reads and writes a second, or a guess. */
double host_rate(const struct profile *p);
/* kernel_ideal: the node's time at the profile's ceilings. kernel_seconds: the predicted time: the
 * ideal corrected by measurements, plus the cost of a launch. */
double kernel_ideal(const struct query *q, enum op op);
double kernel_seconds(const struct query *q, enum op op);
