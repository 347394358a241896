/*
 * survey.h: splits the memory and time of a compiled graph by block, so that the cost of graphs
 * that are never compiled can be predicted: some blocks from one survey, the others from another.
 *
 *     live   ^            own peak of block 2
 *            |          _/\_           _
 *            |       __/ .  \_________/ \_        forward up, backward down
 *            |    __/ saved by block 1    \__
 *            | __/ . saved by block 0 . . . .\__
 *            +------------------------------------> instants
 *              0    1    2     head     2   1   0
 *
 * A block is open between the last node of its forward and the first of its backward. A moment is
 * the set of instants of one block (or of none) with the same blocks open. At the moment's fullest
 * instant each storage is attributed to the block whose backward reads it last: it is kept for that
 * block, and recomputing the block changes it. Storages that no backward reads are the moment's
 * own.
 */
#pragma once

#include "plan/plan.h"

struct survey {
    uint32_t blocks;
    struct surveyed {
        /* of its nodes in a whole step, by lane; a CPU runs everything in the compute lane */
        double seconds[LANE_COUNT];
        uint64_t weights;    /* that only this block reads; 0: that several blocks read, and nothing else */
    } *block;                /* by number, from 1 in the order of the forward; 0: nodes in no block */
    struct moment {
        uint32_t owner;
        uint64_t signature;  /* hash of the open blocks */
        uint64_t bytes;      /* alive at the fullest instant... */
        uint32_t instant;
        uint64_t handed;     /* the part of the bytes that is handed to program update: whole gradients */
        uint64_t *kept;      /* ...by the block for whose backward they are kept; 0: the moment's own */
    } *moment;
    uint32_t moments;
    uint64_t shared;         /* the largest storage that one block writes and another block's backward keeps */
    /* of program step, of program update, of all programs of a step and an evaluation */
    double step_seconds, update_seconds, total_seconds;
    double update_busy[LANE_COUNT]; /* of the update's nodes, by lane */
    uint64_t step;           /* peak of the step's transients */
    /* Peaks that offloads and a fused step leave: [0] without gradients, [1] with them, of all
     * transients, and only of those that a node accesses. */
    uint64_t all[2], accessed[2];
    uint64_t persistent[SPACE_COUNT];
    uint64_t weights[SPACE_COUNT]; /* the part for parameters, master weights and optimizer state */
    uint64_t update, eval;   /* transient bytes of these programs */
    uint64_t host;           /* peak of the step's transients in host memory */
    int64_t rows[PROGRAM_COUNT]; /* of a chunk of the heads; set by survey_jobs_run */
    double placed_seconds;   /* of program step with the waits for bytes; 0: not known */
};

/* What a survey may take at most. */
struct survey_limits {
    double seconds;
    uint64_t bytes[SPACE_COUNT]; /* 0: any */
};

/* Reports whether placing a step may show waits for bytes: its nodes are in several lanes of a
 * GPU. */
bool survey_may_wait(const struct settings *s);
/* Drafts the graph for settings into d->graph and surveys it; without `blocks` only its bytes and
 * seconds as a whole. If its step may wait, it is placed within `placed`; NULL: never. */
int survey_make(struct survey *v, struct plan_drafts *d, const struct settings *s, bool blocks,
                const struct survey_limits *placed, const struct profile *profile, struct error *e);
void survey_free(struct survey *v);

/* Returns by block number whether a node of the block is recomputed under these settings. Element
 * 0: whether any block is. The caller frees it. */
bool *survey_recomputed(const struct graph *g, const struct settings *s, uint32_t blocks);

/* --- many surveys ---------------------------------------------------------------------------- */

/* Jobs run in the order in which their graphs share the most phases, on all threads. */
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

/* --- search space ---------------------------------------------------------------------------- */

/* All settings that a search may choose, each with a bound on its bytes and its
 * predicted seconds, without compiling it.
 *
 * The space does not depend on the budget. Its dimensions:
 *
 *     micro-batch      splits of the effective batch
 *     head chunks      1, 2, 8, 32
 *     recompute        none, selective, first:n and first:n+selective in steps, all,
 *                      all+halves, all+selective
 *     update           where the optimizer state and the master weights are, each separately, and
 *                      the dtype of the state where others are allowed
 *     streamed         weights, activations, or both, offloaded; for the smallest micro-batch, on a
 *                      GPU for 1, 2, 4 ... micro-batches per step; only weights, on a GPU also of
 *                      eighths of the blocks
 *     fused step       where a step is one micro-batch; with every subset of these offloaded
 *     sharding         of optimizer state, gradients or weights, among all ranks or those of a host
 *     any other        technique that is free: the values of its ladder, each with all of the above
 *
 * For each micro-batch a few graphs are compiled and surveyed (survey.h); the other choices are
 * computed from the blocks of these. Streamed and fused choices, and those with divided gradients
 * or weights, are rough until they are surveyed.
 */
/* Fills x->choices. */
int search_space_fill(struct plan_space *x, const struct settings *base, struct error *e);
/* Surveys rough choices; places program step of those within `placed`, unless NULL. */
struct survey_limits;
int search_space_survey(struct plan_space *x, const uint32_t *rough, uint32_t n, const struct survey_limits *placed,
                        struct error *e);
