/*
 * bench.h: the two halves of `plimsoll bench`.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "cli/ranks.h"

/* `bench --calibrate`: measures this machine, or what connects ranks, and stores the profile
 * (calibrate.c). */
rank_command bench_calibrate;

#endif
