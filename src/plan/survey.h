/*
 * survey.h: a compiled graph taken apart by blocks, so that graphs that nobody compiled can be
 * priced: some blocks from one graph, the others from another.
 *
 *     live   ^            own peak of block 2
 *            |          _/\_           _
 *            |       __/ .  \_________/ \_        forward up, backward down
 *            |    __/ saved by block 1    \__
 *            | __/ . saved by block 0 . . . .\__
 *            +------------------------------------> instants
 *              0    1    2     head     2   1   0
 *
 * A block is open between the last node of its forward and the first of its backward. Instants
 * of one block (or of none) with the same blocks open are a moment. At its fullest instant each
 * storage is put down to the block whose backward reads it last: that is why it is kept, and
 * rebuilding the block changes it. What no backward reads is the moment's own.
 */
#ifndef SURVEY_H
#define SURVEY_H

#include "plan/plan.h"

struct survey {
    uint32_t blocks;
    struct surveyed {
        double seconds[LANE_COUNT]; /* of its nodes in a whole step, by lane; on a CPU, which does one thing after the other, all in the first */
    } *block;                /* by number, from 1 in the order of the forward; 0 is what is in no block */
    struct moment {
        uint32_t owner;
        uint64_t signature;  /* of the open blocks */
        uint64_t bytes;      /* alive at its fullest instant... */
        uint32_t instant;
        uint64_t *kept;      /* ...of them by block for whose backward; 0: the moment's own */
    } *moment;
    uint32_t moments;
    uint64_t shared;         /* the largest storage that is made in one block and kept for another's backward */
    double update_seconds, total_seconds;
    uint64_t step;           /* transients of the step */
    uint64_t persistent[SPACE_COUNT];
    uint64_t weights[SPACE_COUNT]; /* of it parameters, masters and optimizer state */
    uint64_t update, eval;   /* transients of these programs */
};

/* Drafts the graph for settings, which is d->graph then, and surveys it; without `blocks` only its bytes and seconds as a whole. */
int survey_make(struct survey *v, struct plan_drafts *d, const struct settings *s, bool blocks, const struct profile *profile, struct error *e);
void survey_copy(struct survey *to, const struct survey *from);
void survey_free(struct survey *v);

/* By number of block: does a node of it belong to a unit that is rebuilt under these settings?
 * Element 0: of any. The caller frees it. */
bool *survey_rebuilt(const struct graph *g, const struct settings *s, uint32_t blocks);

#endif
