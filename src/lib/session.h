/*
 * session.h: shared by the files of the library; no other file includes it.
 *
 *     call.c      how calls begin and end (call.h); the log, and cancelling
 *     common.c    what the other files share
 *     session.c   options, the plan
 *     tables.c    what there is: inputs, outputs, keys, ops; blocks.c: the memory map;
 *                 compare.c: tables of plans
 *     step.c      a started session: inputs and steps
 *     values.c    its outputs, parameters and gradients; views.c: as DLPack
 *     loop.c      the whole loop; saving, the training state
 *     build.c     the builder: layers of a model that the user defines
 *     loops.c     its loops; rows.c checks its scopes with rows (builder.h)
 *     encode.c    tokenizers, which need no session
 *     generate.c  generation of text
 *     predict.c   masks; score.c: held-out data; merging adapters
 */
#pragma once

#include "plimsoll.h"

#include <stdatomic.h>

#include "engine/run.h"
#include "lib/call.h"
#include "train/train.h"

/* The state of a session. Options may change before STARTED; a change drops the plan. */
enum stage { STAGE_OPTIONS, STAGE_PLANNED, STAGE_STARTED };

/* An input of a started session: the facts that pl_write_input needs, looked up once. */
struct session_input {
    const char *name;      /* the graph's */
    struct planned_input is;
    bool written;
    bool idle;             /* no program reads it: it has no storage, and writes are ignored */
};

/* A divisor of losses. */
struct session_count {
    char name[64];
    double count;
};

struct pl_session {
    struct error error;    /* of the last call */
    enum stage stage;
    bool fits;             /* PLANNED: the plan fits the budget */
    struct error nofit;    /* PLANNED: why not */
    struct config config;
    struct train_options options;
    struct trainer *trainer; /* NULL before the first plan */
    struct text text;      /* the result of pl_plan_json or pl_plan_table */
    char technique[TECHNIQUES][SETTING_ROOM]; /* values in the result of pl_plan */
    VEC(struct session_input) inputs;
    VEC(struct session_count) counts; /* set by pl_set_count_of; "": by pl_set_count */
    int64_t steps;
    bool busy;             /* a callback of the user may be running */
    bool broken;           /* a call ended in its middle */
    atomic_bool cancelled; /* pl_cancel */
    char model[4200];      /* result of pl_model_path */
    /* results of submitted steps that were retired before they were asked for */
    struct train_event early[2];
    uint32_t n_early;
    VEC(char) room;        /* of an input that is converted */
    VEC(struct pl_block) blocks; /* result of pl_plan_blocks */
    uint32_t views;        /* DLPack tensors that are not freed... */
    bool closing;          /* ...and the session is, with the last of them */

    pl_build build;        /* NULL: the model comes from the options */
    void *build_user;
    char *config_json;
    struct definition definition;
    VEC(struct part_folder) parts; /* of the definition */

    struct session_generator *generator; /* of generate.c, or NULL... */
    struct session_predictor *predictor; /* ...of predict.c, or NULL... */
    void (*evict)(struct pl_session *s); /* ...and what frees the one of them that there is; NULL: none */

    pl_step_callback on_step;
    void *on_step_user;
    pl_log_callback on_log; /* NULL: lines are dropped */
    void *on_log_user;
};

/* Returns PL_USAGE, with an error, for a `call` before the stage that it needs. */
int session_require(struct pl_session *s, enum stage stage, const char *call);
/* Makes the plan if there is none; PL_NOFIT if it does not fit. */
int session_plan(struct pl_session *s);

/* Returns PL_USAGE, with an error, unless the session is started and all submitted steps are
 * retired. */
int session_settled(struct pl_session *s, const char *call);
struct run *session_run(const struct pl_session *s);
/* Returns PL_USAGE, with an error, unless all inputs were written. */
int session_written(struct pl_session *s, const char *call);
/* Returns a parameter by its name; NULL, with an error: there is none. */
const struct param *session_parameter(struct pl_session *s, const char *call, const char *name);
/* Returns PL_USAGE, with an error, unless the plan keeps the gradient of the parameter. */
int session_gradient(struct pl_session *s, const char *call, const struct param *p, const char *name);
/* Passes an event of the training loop to the user's callback. */
int session_pass_event(void *session, const struct train_event *v);
/* Returns the public number of a dtype; 0: it has none. The other way; DT_NONE: there is none. */
int session_dtype(enum dtype t);
enum dtype session_dtype_of(int type);

/* Sized structs: PL_USAGE unless the caller set `size`; copies the members that the caller's struct
 * has, and zeroes those that this library does not have. */
int session_sized(struct pl_session *s, const char *call, const void *of, size_t own);
void session_give(void *to, const void *from, size_t own);
void session_take(void *to, const void *from, size_t own);

/* Frees what has the session's memory besides a plan: a generator or a predictor. */
void session_evict(struct pl_session *s);

/* build.c: builds the user-defined model in m->config, a struct pl_session. */
extern const struct family defined_family;
/* Sets an error of the graph if a scope with PL_ROWS of this program cannot be run over chunks of
 * its rows (rows.c). */
void builder_check_rows(struct graph *g, enum program p);
