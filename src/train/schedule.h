/*
 * schedule.h: the learning rate over the steps, as the schedules of the
 * transformers library: get_constant_schedule_with_warmup,
 * get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup.
 */
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include <stdint.h>

/* In the order of the choices of train.schedule (config.def). */
enum schedule { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE };

/* What train.learning_rate is multiplied by in optimizer step `step`, counted
 * from 0. The first step of a warmup has factor 0: that is how the originals
 * count. `total` is the number of steps of the whole run; the constant schedule
 * does not read it. A pure function, so a resumed run needs no state for it. */
double schedule_factor(enum schedule kind, int64_t step, int64_t warmup, int64_t total);

#endif
