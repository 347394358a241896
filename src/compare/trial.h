/*
 * trial.h: a run planned with a change: the rows of the tables that compare plans.
 *
 *     source ─ configuration ─ change ─ plan ─ row
 *
 * Each row is a separate plan with exact bytes and a predicted time.
 */
#pragma once

#include "batch/feed.h"
#include "plan/plan.h"
#include "planning/planned.h"

/* The run that is compared. */
struct plan_source {
    /* reads a new copy of its configuration, which the caller frees; not after a failure */
    int (*read)(const void *of, struct config *c, struct error *e);
    const void *of;
    struct added_media media;    /* images and frames that are added to a sequence */
    int64_t masks;               /* of an image; 0: as the run has them */
};
/* Reads the configuration, with the images, frames and masks. */
int plan_source_read(const struct plan_source *s, struct config *c, struct error *e);

/* The facts of one plan. */
struct plan_row {
    char label[64];
    bool fits;
    uint64_t budget;             /* 0: none */
    uint64_t gpu;                /* memory of the GPU of a row of --devices; else 0 */
    double gib;                  /* its size as given, or the same in GiB */
    bool by_size;                /* that GPU was given by its memory only */
    int64_t images, frames;      /* of --images and --frames; 0: not given */
    int64_t tokens;              /* of the longest row that fits (plan_longest_row); else 0 */
    uint64_t refused;            /* bytes that a row of 64 tokens more needs; 0: not known */
    int ranks, per_host;         /* of a row of --ranks; else 0 */
    double efficiency;           /* samples/s over those of one rank times the number of ranks; 0: not known */
    struct communication sends;  /* of a row of --ranks */
    char links[64];
    char profile[64];            /* name of the profile that predicts the times */
    bool processor;              /* the profile is a CPU's */
    uint64_t arena, host;        /* bytes; of the smallest plan when none fits */
    uint64_t host_budget;        /* the host budget, if it is why no plan fits; else 0 */
    double seconds, factor;      /* as shown: times a factor that was measured; 0: none was (calibrate/calibrate.h) */
    int effective, least;        /* samples of a step, and of its smallest possible micro-batch */
    bool measured;
    struct settings settings;
    char warning[WARNINGS_MOST][WARNING_ROOM]; /* in what the plan exceeds its machine */
    int n_warnings;
    struct remedy remedy[REMEDY_MOST]; /* of a row of --devices that does not fit: changes that would */
    int n_remedies;
};
struct plan_rows {
    VEC(struct plan_row) list;
};

/* One configuration that is planned within several budgets. */
struct plan_trial {
    struct config config;
    struct planned run;
    int rc;                      /* of the last plan: PL_OK or PL_NOFIT */
};

/* What a row adds to the run. */
struct plan_change {
    const char *const *sets;     /* key=value */
    size_t n;
    uint64_t gpu;                /* within the memory of a GPU less its reserve; 0: no budget, or... */
    bool budget;                 /* ...that of the run */
    uint64_t host;               /* bytes of host memory at most; 0: as the run has it */
    bool plain;                  /* look for no changes that would fit */
    bool fitting;                /* make no plan if none fits */
    int64_t ranks;               /* 0: as the run has it; more than per_host of them fill whole hosts */
};

/* Plans the run with a change. On PL_OK the caller closes it. */
int plan_trial_open(struct plan_trial *p, const struct plan_source *s, const struct plan_change *x, struct error *e);
void plan_trial_close(struct plan_trial *p);
/* Fills all members but the label and the GPU. */
void plan_row_fill(struct plan_row *row, const struct plan_trial *p);
/* Plans the run with a change, and fills a row. */
int plan_row_make(const struct plan_source *s, const struct plan_change *x, struct plan_row *row, struct error *e);
