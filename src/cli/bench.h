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

struct bench;
/* Reads the configuration and --steps, and opens a bench of it on all ranks. The caller closes the
 * bench, also after a failure. */
int bench_start(struct options *o, int64_t most, int64_t *steps, struct bench *b, struct error *e);
