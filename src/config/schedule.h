/*
 * schedule.h: the learning rate over the steps. Constant, linear and cosine are
 * the transformers library's get_*_schedule_with_warmup, with its min_lr_rate; step is torch's
 * StepLR or MultiStepLR after the same warmup.
 */
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include <stdint.h>

/* In the order of the choices of train.schedule (config.def). */
enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_STEP };

struct schedule {
    enum schedule_kind kind;
    int64_t warmup;             /* steps of the rise from 0 */
    int64_t total;              /* steps of the whole run: linear and cosine end there */
    double floor;               /* linear and cosine: the factor at the end */
    double gamma;               /* step: the factor of each drop, at... */
    int64_t every;              /* ...multiples of this, counted from the end of the warmup; 0: */
    const int64_t *milestones;  /* at these steps of the run, ascending */
    uint32_t n_milestones;
};

/* The factor on train.learning_rate in optimizer step `step`, counted from 0. The first step of a
 * warmup has factor 0, as in the transformers library. A pure function, so a resumed run needs no
 * state for it. */
double schedule_factor(const struct schedule *s, int64_t step);

#endif
