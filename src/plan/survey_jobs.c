/*
 * survey_jobs.c: see survey_jobs.h.
 */
#include "plan/survey_jobs.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

void survey_jobs_add(struct survey_jobs *jobs, const struct settings *s, bool blocks, struct survey *to)
{
    vec_push(&jobs->list, ((struct survey_job){.s = *s, .to = to, .blocks = blocks, .number = jobs->list.n}));
}

/* Jobs whose graphs share most phases follow each other. */
static int by_sharing(const void *a, const void *b)
{
    const struct survey_job *x = a, *y = b;
    if (x->s.micro_batch != y->s.micro_batch) return x->s.micro_batch > y->s.micro_batch ? -1 : 1;
    if (x->s.head_chunks != y->s.head_chunks) return x->s.head_chunks < y->s.head_chunks ? -1 : 1;
    if (x->s.mask_chunks != y->s.mask_chunks) return x->s.mask_chunks < y->s.mask_chunks ? -1 : 1;
    int compared = memcmp(&x->s.recompute, &y->s.recompute, sizeof x->s.recompute);
    if (compared) return compared;
    if (x->s.state != y->s.state) return x->s.state < y->s.state ? -1 : 1;
    if (x->s.fused_step != y->s.fused_step) return x->s.fused_step ? 1 : -1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* Reports whether the survey of `a` serves for `b`: more chunks than the head has rows are as many
 * as it has rows. */
static bool is_same_graph(const struct survey_job *a, const struct survey_job *b)
{
    struct settings s = a->s;
    s.head_chunks = b->s.head_chunks;
    s.mask_chunks = b->s.mask_chunks;
    return !memcmp(a->rows, b->rows, sizeof a->rows) && (a->blocks || !b->blocks) && !memcmp(&s, &b->s, sizeof s);
}

/* Surveys job `i`; one of the same graph among those from `first` on is copied. */
static int run_job(const struct plan_space *x, struct survey_jobs *jobs, uint32_t first, uint32_t i,
                   struct plan_drafts *drafts, struct error *e)
{
    struct survey_job *job = &jobs->list.at[i];
    const struct survey_job *before = i > first ? job - 1 : NULL;
    int rc = PL_OK;
    if (before && before->done && before->s.micro_batch == job->s.micro_batch &&
        before->s.head_chunks == job->s.head_chunks && before->s.mask_chunks == job->s.mask_chunks)
        memcpy(job->rows, before->rows, sizeof job->rows);
    else rc = plan_draft_chunk_rows(drafts, &job->s, job->rows, e);
    for (uint32_t k = i; k-- > first && !rc && !job->done;)
        if (jobs->list.at[k].done && is_same_graph(&jobs->list.at[k], job)) {
            survey_copy(job->to, jobs->list.at[k].to);
            job->done = true;
        }
    if (!rc && !job->done) rc = survey_make(job->to, drafts, &job->s, job->blocks, jobs->placed, x->profile, e);
    if (!rc) memcpy(job->to->rows, job->rows, sizeof job->rows);
    job->done = !rc;
    return rc;
}

/* Runs the jobs on threads. Each thread has a run of jobs, and drafts of its own, which later jobs
 * go on with. */
int survey_jobs_run(struct survey_jobs *jobs, struct plan_space *x, struct error *e)
{
    int failed = PL_OK;
    uint32_t first = UINT32_MAX; /* the same message in any order of threads */
    if (!jobs->list.n) return PL_OK;
    qsort(jobs->list.at, jobs->list.n, sizeof *jobs->list.at, by_sharing);
#pragma omp parallel num_threads(x->threads) if (!x->source->serial)
    {
        struct plan_drafts *drafts = &x->surveyed[omp_get_thread_num()];
        uint32_t own = UINT32_MAX; /* the first job of this thread */
#pragma omp for schedule(static)
        for (uint32_t i = 0; i < jobs->list.n; i++) {
            struct error mine;
            const struct survey_job *job = &jobs->list.at[i];
            if (own > i) own = i;
            int rc = run_job(x, jobs, own, i, drafts, &mine);
            if (rc)
#pragma omp critical
                if (job->number < first) {
                    first = job->number;
                    failed = rc;
                    *e = mine;
                }
        }
    }
    return failed;
}
