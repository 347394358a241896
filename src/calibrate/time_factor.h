/*
 * time_factor.h: how much slower this CPU is than the built-in ceilings that a plan's times come
 * from.
 */
#ifndef TIME_FACTOR_H
#define TIME_FACTOR_H

#include "planning/planned.h"

/* Returns the factor for the predicted times of a planned run when they are shown: the time of a
 * small training step on this CPU, in the run's precision and with its threads, over its predicted
 * time. It is measured once in a process and takes a fraction of a second. It is 0 where nothing is
 * measured: the plan is for a GPU or several ranks, has a measured profile or one that the
 * configuration names, or the environment variable PLIMSOLL_MEASURE is 0. Choices and files do not
 * depend on it. */
double time_factor(const struct planned *r);
/* Does as time_factor, but returns 1 where nothing is measured. */
double time_scale(const struct planned *r);

#endif
