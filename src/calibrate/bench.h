/*
 * bench.h: training steps on synthetic inputs, measured and compared with the predicted times.
 *
 * A bench is a run without data, folder and checkpoints: the same plan, the same tape. The weights
 * are the model's own (those of a preset are random). The inputs are generated from the seed: ids
 * below the vocabulary size, normally distributed numbers for pixels; for a promptable mask model
 * random colours, a point on each mask, and random target bits.
 */
#pragma once

#include "base/progress.h"
#include "cost/calibration.h"
#include "engine/ticket.h"

enum { BENCH_STEPS_MOST = 10000 };

struct bench {
    struct run run;
    struct tickets tickets;    /* of all steps, warm-up included */
    double *seconds;           /* time of each measured step (ticket.h); their sum is the total time */
    uint32_t steps, room;      /* room: capacity of `seconds`, in steps */
    struct progress *progress; /* of the steps, shown while they run; NULL: none */
    struct timing now, fastest; /* times by node: of this step, of the fastest step timed by node */
    /* device memory after the measured steps, all processes; 0: the device has no memory of its
     * own */
    uint64_t device_used, device_total;
};

/* Time of all nodes of one op in the fastest step. */
struct bench_op {
    enum op op;
    enum dtype dtype;          /* of its first operand */
    uint64_t calls;
    double seconds, predicted, ideal, flops, bytes;
};

/* Time of all nodes of one class: nodes that are alike to a GPU (cost/calibration.h), and run in
 * one form of their kernel. */
struct bench_class {
    struct op_class of;        /* its curve is not filled */
    const char *form;          /* "": the kernel has one */
    uint64_t calls;
    double seconds, predicted;
};

/* Time of one kernel at one shape in the fastest step (bench.c). */
struct bench_kernel {
    enum op op;
    const struct kernel *kernel;
    int form;
    const struct tensor *in, *out; /* first input and output; NULL: there is none */
    uint64_t calls;
    double seconds, ideal, flops, bytes;
};

/* Plans and starts; the first step is retired when this returns. PL_NOFIT as run_plan. */
int bench_open(struct bench *b, const struct config *c, const struct run_options *o, struct error *e);
int bench_run(struct bench *b, int64_t steps, struct error *e);
/* Does as bench_run, but shows the progress of the steps on stderr. */
int bench_run_shown(struct bench *b, int64_t steps, struct error *e);
/* Begins to time every step by node. On a GPU the host then waits after each node, so that
 * such steps are slower than the measured ones. Without this call, a device that replays whole
 * programs is measured during replay; the CPU always times its nodes in the same steps. */
void bench_by_node(struct bench *b);
/* Runs one more step by node, which is not among the measured steps; does nothing if those were
 * timed by node already. */
int bench_time_nodes(struct bench *b, struct error *e);
/* Reports whether the measured steps were replayed as whole programs. */
bool bench_replays(const struct bench *b);
void bench_close(struct bench *b);

/* Times of a rank, a step. */
struct rank_times {
    char host[RANK_HOST];
    double seconds, exchanges; /* of them in exchanges, with the wait for others; on a GPU with NCCL not known: 0 */
};
/* Gathers the times of all ranks in each[n]. */
int rank_times_gather(struct ranks *r, const struct bench *b, double exchanges, struct rank_times *each,
                      struct error *e);
/* Returns the time of all measured steps: from the submission of the first to the end of the
 * last. */
double bench_total(const struct bench *b);
/* Returns bench_total divided by the number of steps. */
double bench_mean(const struct bench *b);
double bench_median(const struct bench *b);
/* Lists ops by time, the largest first; returns their number. `out` has room for 2 * OP_COUNT. */
uint32_t bench_ops(const struct bench *b, struct bench_op *out);
/* Lists the `most` slowest kernels, the slowest first; returns their number. */
uint32_t bench_kernels(const struct bench *b, struct bench_kernel *out, uint32_t most);

/* Lists classes by the error of the prediction in seconds, the largest first; returns their number.
 * The caller frees them. */
uint32_t bench_classes(const struct bench *b, struct bench_class **out);

/* Returns the peak resident memory of this process; 0 if the system does not report it. */
uint64_t bench_peak_resident(void);
