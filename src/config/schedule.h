/*
 * schedule.h: the learning rate over the steps. Constant, linear and cosine are
 * the transformers library's get_*_schedule_with_warmup, with its min_lr_rate; step is torch's
 * StepLR or MultiStepLR after the same warmup. With `deepspeed` the first three are
 * WarmupLR, WarmupDecayLR and WarmupCosineLR of DeepSpeed.
 */
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

/* In the order of the choices of train.schedule (config.def). */
enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_STEP };

struct schedule {
    enum schedule_kind kind;
    int64_t warmup;             /* steps of the rise to 1... */
    double start;               /* ...from this factor */
    bool log;                   /* the rise is a logarithm instead of a line */
    bool deepspeed;             /* DeepSpeed's count of the steps: warmup and line come one step later */
    int64_t total;              /* steps of the whole run: linear and cosine end there */
    double floor;               /* linear and cosine: the factor at the end */
    double gamma;               /* step: the factor of each drop, at... */
    int64_t every;              /* ...multiples of this, counted from the end of the warmup; 0: */
    const int64_t *milestones;  /* at these steps of the run, ascending */
    uint32_t n_milestones;
};

/* Returns the factor on train.learning_rate in optimizer step `step`, counted from 0. The first
 * step of a warmup has the factor `start`. A pure function, so a resumed run needs no state for
 * it. */
double schedule_factor(const struct schedule *s, int64_t step);

#endif
