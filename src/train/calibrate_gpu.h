/*
 * calibrate_gpu.h: a GPU, measured by training steps, for predictions of others.
 *
 * Workloads have the widths of real models and few layers: SAM's encoders with their decoder, language models,
 * towers, each at several batches. Of each a step is replayed as training replays it, and taken node by node.
 *
 *     a node's time   = launch + ideal * factor      by the curve of its class (run/calibration.h)
 *     a replay's time = speed * (all nodes' times) + gap * nodes
 *
 * The second line is fitted over all workloads, short ones of small nodes and long ones of large ones: speed
 * is what a GPU under load loses to one that waits for the host behind each node, gap what lies between two nodes of a
 * replay and did not lie between two events. Both are put into the curves and the price of a launch: there is nothing
 * else to store.
 */
#ifndef CALIBRATE_GPU_H
#define CALIBRATE_GPU_H

#include "run/calibration.h"
#include "train/config.h"
#include "train/run.h"

struct gpu_sample {
    struct op_class of;
    bool crosses;
    double calls, ideal, seconds; /* of one launch */
};

/* A workload as a whole. */
struct gpu_whole {
    const char *name;
    double nodes, launches, replay; /* seconds of all nodes, how many there were, and seconds of a replayed step */
    bool lanes;                     /* copies ran beside: it tells nothing of launches */
};

struct gpu_samples {
    VEC(struct gpu_sample) list;
    VEC(struct gpu_whole) wholes;
    double speed, gap;              /* as fitted */
};

/* Workload i as a configuration and options to open it with; false: there are no more. `half`: the
 * 16-bit type that the GPU multiplies. PL errors are in `e`. */
bool gpu_workload(int i, enum dtype half, struct config *c, struct run_options *o, const char **name, struct error *e);
/* What the nodes of a run took, and a whole step replayed; ideals are `p`'s. */
void gpu_take(struct gpu_samples *s, const char *name, const struct run *r, const struct timing *t, double replay, const struct profile *p);
/* Curves and price of a launch from all that was taken; p->measured becomes c. */
void gpu_fit(struct gpu_samples *s, struct profile *p, struct calibration *c);
void gpu_free(struct gpu_samples *s);

/* Measures the GPU that is here. Takes less than a minute. */
int calibrate_gpu(struct profile *p, struct calibration *c, struct error *e);

#endif
