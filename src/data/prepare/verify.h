/*
 * verify.h: reads every sample of a dataset once, with the loader's own code and its limits.
 * Training rejects exactly the samples that are bad here.
 */
#ifndef VERIFY_H
#define VERIFY_H

#include "base/base.h"

struct samples;
struct verified {
    uint64_t masks, left_out; /* that can be used; malformed ones, which training leaves out */
    uint64_t bad, differ;     /* samples: unusable; with a note: training uses them */
    uint64_t broken;          /* shards with damage or unpaired files */
};
/* Prints a line for each bad sample, each note and each broken shard, in order, and counts them.
 * `room`: bytes for a sample, data.sample_memory; 0: the default. */
void verify_samples(const struct samples *all, uint64_t room, struct verified *out);

#endif
