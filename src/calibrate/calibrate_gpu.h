/*
 * calibrate_gpu.h: a GPU's profile, measured on training steps, to predict the times of other runs.
 *
 * Workloads have the widths of real models and few layers: SAM's encoders with their decoder,
 * language models, vision towers, each at several batch sizes. A step of each workload is replayed
 * as in training, and is also timed node by node.
 *
 *     a node's time   = launch + ideal * factor      by the curve of its class (cost/calibration.h)
 *     a replay's time = speed * (all nodes' times) + gap * nodes
 *
 * The second line is fitted over all workloads, short ones with small nodes and long ones with
 * large nodes. `speed` is the slowdown of a GPU under load compared with one that waits for the
 * host after each node. `gap` is the time between two nodes of a replay that is not between two
 * events. Both are folded into the curves and the launch cost, so that nothing else is stored.
 */
#ifndef CALIBRATE_GPU_H
#define CALIBRATE_GPU_H

#include "cost/calibration.h"
#include "config/config.h"
#include "engine/run.h"

struct gpu_sample {
    struct op_class of;
    bool crosses;
    double calls, ideal, seconds; /* per launch */
};

/* Totals of a workload. */
struct gpu_whole {
    const char *name;
    double nodes, launches, replay; /* seconds of all nodes, their number, and seconds of a replayed step */
    bool lanes;                     /* copies ran in parallel, so that the replay time says nothing about launches */
};

struct gpu_samples {
    VEC(struct gpu_sample) list;
    VEC(struct gpu_whole) wholes;
    double speed, gap;              /* fitted by gpu_fit */
};

/* Workload i as a configuration and options to open it with; false: there are no more. `half`: the
 * 16-bit dtype of the GPU's matrix products. Errors are in `e`. */
bool gpu_workload(int i, enum dtype half, struct config *c, struct run_options *o, const char **name, struct error *e);
/* Adds the node times of a run and the time of a replayed step; ideal times are computed from
 * `p`. */
void gpu_add_samples(struct gpu_samples *s, const char *name, const struct run *r, const struct timing *t,
                     double replay, const struct profile *p);
/* Computes curves and launch cost from all samples; p->measured becomes c. */
void gpu_fit(struct gpu_samples *s, struct profile *p, struct calibration *c);
void gpu_free(struct gpu_samples *s);

/* Measures the GPU of this machine in less than a minute. */
int calibrate_gpu(struct profile *p, struct calibration *c, struct error *e);

#endif
