/*
 * bench.h: what `plimsoll bench` and `plimsoll profile` share.
 */
#pragma once

#include "cli/cli.h"
#include "dist/agree.h"

struct bench_options {
    struct options o;
    bool calibrate;
    const char *threads;
};
/* Measures this machine, or what connects ranks, and stores the profile: bench --calibrate
 * (calibrate.c). */
int bench_calibrate(struct bench_options *o, struct error *e);

/* Times of a rank, a step. */
struct rank_times {
    char host[RANK_HOST];
    double seconds, exchanges; /* of them in exchanges, with the wait for others; on a GPU with NCCL not known: 0 */
};
/* Gathers the times of all ranks in each[n]. */
struct bench;
int rank_times_gather(struct ranks *r, const struct bench *b, double exchanges, struct rank_times *each,
                      struct error *e);
/* Reads the configuration and --steps, and opens a bench of it on all ranks. The caller closes the
 * bench, also after a failure. */
int bench_start(struct options *o, int64_t most, int64_t *steps, struct bench *b, struct error *e);
