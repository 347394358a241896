/*
 * calibrate.h: measures this machine: peak rates, and how close each op comes to them.
 *
 * The same for a GPU (calibrate_gpu.c) and for the links between ranks (calibrate_links.c).
 */
#pragma once

#include "config/config.h"
#include "cost/calibration.h"
#include "engine/run.h"
#include "models/model.h"
#include "planning/planned.h"
#include "run/kernel.h"
#include "run/ranks.h"

/* Fills `p` and `c`, which `p` points to. threads 0: all. Takes about a minute and 2 GiB. */
int calibrate(struct profile *p, struct calibration *c, int threads, struct error *e);

/* A small convolutional network of `image` pixels and `channels` channels that uses the ops on
 * feature maps and every activation function (calibrate.c). */
struct maps_config {
    int64_t image, channels;
};
extern const struct family calibrate_maps_family;

/* --- from times of nodes to a curve over the ideal time (cost/calibration.h). Nodes whose
 * ideal times are within a factor of four make one point, at their mean: the sum of their times is
 * preserved. */

struct curve_fit {
    struct curve_bucket {
        double n, ideal, seconds;
    } bucket[CURVE_POINTS];
};

/* Adds one launch: its ideal time, and its measured time beyond the launch cost. */
void curve_fit_add(struct curve_fit *f, double ideal, double seconds);
void curve_fit_end(const struct curve_fit *f, struct curve *c);

/* --- a GPU's profile, measured on training steps, to predict the times of other runs.
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
 * events. Both are folded into the curves and the launch cost, so that nothing else is stored. */

struct gpu_sample {
    struct op_class of;
    bool crosses, host;
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

/* Fills workload i: a configuration and options to open it with. False: there are no more. `half`:
 * the 16-bit dtype of the GPU's matrix products. Errors are in `e`. */
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

/* --- measures what connects ranks, on the collectives of training steps, to predict
 * the times of other runs.
 *
 *     a gather of weights = its kernel's other work + latency + peers * (peer + part / bandwidth)      (cost/links.h)
 *
 * The ranks of a host are measured as a group, all hosts at the same time; then one rank of every
 * host, all such groups at the same time, because they share a network. Groups of two tell what a
 * peer costs. */

/* A size of collectives of measured steps. */
struct link_sample {
    int peers;
    double part;       /* bytes to each peer */
    double seconds;    /* of a collective of one exchange... */
    double rest;       /* ...and of them, as predicted, what its kernel does besides */
};

/* Fits the link with which the predicted collectives are nearest to the measured ones. With one
 * number of peers the fixed cost is that of peers. */
void links_fit(const struct link_sample *list, int n, struct link *out);

/* Measures the links; all ranks call it. On rank 0 the links that are there replace those of `p`,
 * and `out` gets a table of them. `c` has the device; it is the same on all ranks. */
int calibrate_links(struct ranks *all, const struct config *c, struct profile *p, struct text *out, struct error *e);

/* Measures the machine of the configuration's device, or the links of `ranks` (NULL: this is the
 * only process), prints the rates, and stores the profile at a path (NULL: the default one). */
int calibrate_profile(const struct config *c, const char *output, struct ranks *ranks, struct error *e);

/* --- times on this CPU ------------------------------------------------------------------------ */

/* Returns the factor for the predicted times of a planned run when they are shown: the time of a
 * small training step on this CPU, in the run's precision and with its threads, over its predicted
 * time. It is measured once in a process and takes a fraction of a second. It is 0 where nothing is
 * measured: the plan is for a GPU or several ranks, has a measured profile or one that the
 * configuration names, or the environment variable PLIMSOLL_MEASURE is 0. Choices and files do not
 * depend on it. */
double time_factor(const struct planned *r);
/* Does as time_factor, but returns 1 where nothing is measured. */
double time_scale(const struct planned *r);

/* --- leaks ----------------------------------------------------------------------------------- */

/* Growth of memory, allocations, descriptors and threads over steps. */
struct leaks {
    int64_t steps, resident, device, allocations;
    int descriptors, threads;
};
/* Runs steps of a configuration on synthetic inputs. Writes no files. */
int leaks_measure(const struct config *c, int64_t steps, struct leaks *out, struct error *e);
/* Returns the number of steps that run, those before the first reading included. */
int64_t leaks_steps(int64_t steps);
/* Runs one step. */
int leaks_try_step(const struct config *c, struct error *e);
