/*
 * bench.h: training steps on made-up inputs, measured, beside what was predicted.
 *
 * A bench is a run without data, folder and saves: the same plan, the same tape. The
 * weights are the model's own (a preset's are random), the inputs come from the seed:
 * ids below the vocabulary, normal numbers for pixels; for a model that is prompted
 * colours, a point on each mask, and targets of any bits.
 */
#ifndef BENCH_H
#define BENCH_H

#include "run/calibration.h"
#include "train/ticket.h"

enum { BENCH_STEPS_MOST = 10000 };

struct bench {
    struct run run;
    struct tickets tickets;    /* of all steps, warm-up included */
    double *seconds;           /* of each measured step (ticket.h); their sum is the time that all of them took */
    uint32_t steps, room;      /* room: of `seconds`, in steps */
    struct timing now, fastest; /* by node; of the fastest step that was timed so */
    uint64_t device_used, device_total; /* of the device's own memory after the measured steps, whoever uses it; 0: it has none */
};

/* What all nodes of one op took in the fastest step. */
struct bench_op {
    enum op op;
    enum dtype dtype;          /* of its first operand */
    uint64_t calls;
    double seconds, predicted, ideal, flops, bytes;
};

/* The same of nodes that are alike to a GPU (run/calibration.h). */
struct bench_class {
    struct op_class of;        /* its curve is not filled */
    uint64_t calls;
    double seconds, predicted;
};

/* What one kernel took there at one shape (bench_kernels.c). */
struct bench_kernel {
    enum op op;
    const struct kernel *kernel;
    const struct tensor *in, *out; /* the first ones; NULL: there is none */
    uint64_t calls;
    double seconds, ideal, flops, bytes;
};

/* Plans and starts; the first step has been taken when this returns. PL_NOFIT as run_plan. */
int bench_open(struct bench *b, const struct config *c, const struct run_options *o, struct error *e);
int bench_run(struct bench *b, int64_t steps, struct error *e);
/* A device that replays whole programs is measured doing that; the CPU times its nodes in the
 * same steps. From this call on every step is timed by node, where that means that the GPU
 * is waited for behind each: such steps are slower than the measured ones. */
void bench_by_node(struct bench *b);
/* One step by node, which is none of the measured; nothing where those were. */
int bench_time_nodes(struct bench *b, struct error *e);
/* The measured steps were replayed whole. */
bool bench_replays(const struct bench *b);
void bench_close(struct bench *b);

/* Of all measured steps: from the submission of the first to the end of the last. */
double bench_total(const struct bench *b);
/* bench_total by the steps. */
double bench_mean(const struct bench *b);
double bench_median(const struct bench *b);
/* Ops by time, the largest first; returns how many. `out` has room for 2 * OP_COUNT. */
uint32_t bench_ops(const struct bench *b, struct bench_op *out);
/* Kernels by time, the largest first, `most` of them; returns how many. */
uint32_t bench_kernels(const struct bench *b, struct bench_kernel *out, uint32_t most);

/* Classes by how many seconds the prediction is off, the largest first; returns how many. The caller frees them. */
uint32_t bench_classes(const struct bench *b, struct bench_class **out);

/* The peak of this process's resident memory; 0 where the system does not say. */
uint64_t bench_peak_resident(void);

#endif
