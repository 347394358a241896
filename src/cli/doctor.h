/*
 * doctor.h: what the files of `plimsoll doctor` share.
 */
#ifndef DOCTOR_H
#define DOCTOR_H

#include "cli/cli.h"
#include "train/run.h"

enum { ADVICE_MOST = 32 };

struct doctor {
    const struct options *options;
    struct run run;            /* the plan that is examined */
    uint64_t budget;           /* given, or what is free */
    int64_t batch, batch_most; /* largest by the plan's techniques, by any */
    bool given, confirm, confirmed;
};

/* Bytes alive at the fullest moment of each. */
struct doctor_peaks {
    uint64_t forward_alone, forward, backward, update;
};

/* What changed over so many steps. */
struct doctor_leaks {
    int64_t steps, resident, device, allocations;
    int descriptors, threads;
};

/* One change to the configuration, planned. */
struct advice {
    char change[96];           /* "memory.recompute=selective": as --set takes it */
    const char *note;          /* what it does besides; NULL: nothing */
    int64_t saves;             /* bytes of the arena */
    double costs;              /* seconds of a step */
};

/* The run's configuration again, without a budget; pinned: at the plan's techniques. */
int doctor_config(const struct doctor *d, struct config *c, bool pinned, struct error *e);
void doctor_peaks(const struct run *r, struct doctor_peaks *out);
/* Changes that save memory, the best trade first; returns how many. */
uint32_t doctor_advice(const struct doctor *d, struct advice out[ADVICE_MOST]);
void advice_print(const struct doctor *d, const struct advice *a, uint32_t n, struct text *out);
void doctor_json(const struct doctor *d, const struct doctor_peaks *p, const struct doctor_leaks *l, const struct advice *a, uint32_t n, struct text *out);

#endif
