/*
 * survey_jobs.h: many surveys at once, in the order in which their graphs share the most phases, on
 * all threads.
 */
#ifndef SURVEY_JOBS_H
#define SURVEY_JOBS_H

#include "plan/survey.h"

struct survey_job {
    struct settings s;
    struct survey *to;
    bool blocks;                 /* survey its blocks too */
    uint32_t number;             /* in the order in which jobs are added */
    int64_t rows[PROGRAM_COUNT]; /* rows of a chunk of the head */
    bool done;                   /* surveyed without an error */
};
struct survey_jobs {
    VEC(struct survey_job) list; /* free with vec_free */
    const struct survey_limits *placed; /* of all surveys; NULL: nothing is placed */
};

void survey_jobs_add(struct survey_jobs *jobs, const struct settings *s, bool blocks, struct survey *to);
/* Makes all surveys; with an error, that of the job that was added first. */
int survey_jobs_run(struct survey_jobs *jobs, struct plan_space *x, struct error *e);

#endif
