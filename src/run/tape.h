/*
 * tape.h: launches with constant addresses, and the runner that replays them.
 *
 *     graph + placement + arenas  ->  tape: per program a list of entries
 *
 *     LAUNCH  kernel, operands at final addresses, workspace, lane, wait list
 *     LOOP    opens a counted loop;  END closes it
 *
 * An operand that advances with a loop is patched from its base in each iteration, and an
 * accumulator that is still empty is not passed; nothing else changes between steps. The wait list
 * of an entry holds the entries of other lanes that must complete before it. A device with a single
 * queue, as the CPU, needs no wait lists. A lane is a CUDA stream on a GPU.
 */
#pragma once

#include "graph/lifetime.h"
#include "run/kernel.h"
#include "run/sequence.h"

/* --- the time of each node ---------------------------------------------------------------------
 *
 * A tape with a timing reads the clock before and after every launch and sums the seconds by node;
 * while there is room, it records the launch as an event. Without a timing (the usual case) the
 * cost is one pointer test. A device that replays whole programs cannot time nodes: with a timing
 * it launches node by node instead (src/cuda/device/nodes.c), so the times are those of nodes, not
 * of the step. */

/* One launch. */
struct timing_event {
    id node;
    uint32_t position;     /* in its program's order */
    uint8_t program, lane;
    double from, to;       /* clock_seconds() */
};

struct timing {
    uint32_t nodes;
    double *seconds;       /* by node, over all its launches */
    uint32_t *calls;
    struct timing_event *events;
    uint32_t n_events, room; /* further launches are summed but not recorded */
};

void timing_init(struct timing *t, const struct graph *g);
/* Adds one launch. */
void timing_add(struct timing *t, const struct timing_event *v);
/* Makes room for `launches` events and drops the recorded ones. */
void timing_record_events(struct timing *t, uint32_t launches);
/* Clears the sums; the recorded events stay. */
void timing_clear(struct timing *t);
/* Copies the sums of `from`. Both belong to the same graph. */
void timing_copy(struct timing *to, const struct timing *from);
void timing_free(struct timing *t);

/* --- the tape --------------------------------------------------------------------------------- */

/* The planner's decisions for one node. */
struct binding {
    const struct kernel *kernel;
    uint64_t work_offset, work_bytes; /* in the device space */
    int access, form;                 /* launch.access, launch.form */
};

/* Offsets, kernels and lifetimes of a plan. */
struct placement {
    uint32_t storages, nodes;
    uint64_t *offset;                 /* by storage, in its own space */
    struct binding *binding;          /* by node */
    struct life *life[PROGRAM_COUNT]; /* by storage; parts of `lives` */
    struct life *lives;
    uint64_t arena[SPACE_COUNT];
};
void placement_free(struct placement *p);

enum entry_kind { ENTRY_LAUNCH, ENTRY_LOOP, ENTRY_END };
enum { MAX_WAIT = 8, TERMS_LEAST = 16 /* of a sum over rows of a sequence: features of its shortest bucket */ };

struct entry {
    uint8_t kind, lane, nwait;
    bool advances;                    /* some operand advances with a loop, or has an extent */
    bool follows;                     /* the launch follows the sequence; of its operands, inputs, then outputs: */
    struct { int8_t axis; bool dense; int64_t length; } along[MAX_IN + MAX_OUT]; /* below 0: not along it */
    int64_t least;                    /* 0, or what its first operand has at least along it: rows, terms of a sum */
    uint32_t wait[MAX_WAIT];          /* entries of other lanes, by index */
    id node, loop;
    uint32_t position;                /* in the program's order */
    const struct kernel *kernel;
    struct launch launch;
    struct { id loop; int64_t advance; char *base; } move[MAX_IN + MAX_OUT]; /* inputs, then outputs */
    /* base: an accumulator that is not passed in the first iteration of all loops up to `around` */
    struct { int slot; id around; char *base; } sum;
};

struct tape {
    const struct graph *graph;
    const struct placement *placement;
    char *arena[SPACE_COUNT];
    VEC(struct entry) program[PROGRAM_COUNT];
    struct ranks *ranks;              /* NULL: this process is the only one */
    /* ranks among which weights are divided, which follow each other; the number of this rank's
     * shard... */
    int holders, shard;
    int host;                         /* ...and what decides it: attr.group.host */
    /* by loop, then by slice of the loop around it: iterations to run, at most as planned */
    uint32_t **trip;
    struct sequence sequence;
    /* by micro-batch and section: entries of the sequence that launches run over, at first all */
    uint32_t *extent, extents;
    uint32_t *iteration;              /* by loop; 0 outside of it */
    struct { uint32_t from, to; } *range; /* by loop: its positions in the order */
    bool poison;                      /* diagnostic: dead bytes become NaN */
    /* diagnostic: a device that replays whole programs synchronizes after each node */
    bool nodes;
    void (*observe)(void *observer, const struct entry *e); /* called after each launch, unless NULL */
    void *observer;
    struct timing *timing;            /* NULL: no timing */
    void *device_state;               /* CUDA: captured graphs */
};

/* Builds the tape of a graph; `ranks` NULL: this process is the only one. */
void tape_build(struct tape *t, const struct graph *g, const struct placement *p, char *const arena[SPACE_COUNT],
                int threads, struct ranks *ranks);
void tape_free(struct tape *t);
/* Replays a program in order on the calling thread: the CPU's runner. */
void tape_run(struct tape *t, enum program p);
/* Returns, for runners, the entry that follows k, from 0 to the program's n; enters, counts and
 * leaves loops. */
uint32_t tape_follow(struct tape *t, enum program p, uint32_t k);
/* Sets the addresses of the current iteration in `l`, the entry's launch or a copy of it. */
void tape_advance(const struct tape *t, const struct entry *e, struct launch *l);
/* Returns the address of a tensor's first element. */
void *tape_address(const struct tape *t, id tensor);
