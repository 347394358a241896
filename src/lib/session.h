/*
 * session.h: shared by the files of the library; no other file includes it.
 *
 *     session.c   options, the plan
 *     enter.c     how calls begin
 *     step.c      running: inputs, steps, outputs, parameters, saving, the whole loop
 *     build.c     the builder: layers of a model that the user defines
 *     loops.c     its loops; rows.c checks its scopes with rows (builder.h)
 *     encode.c    tokenizers, which need no session
 *     generate.c  generation of text
 */
#pragma once

#include "plimsoll.h"

#include "engine/run.h"
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
    char model[4200];      /* result of pl_model_path */

    pl_build build;        /* NULL: the model comes from the options */
    void *build_user;
    char *config_json;
    struct definition definition;
    VEC(struct part_folder) parts; /* of the definition */

    struct session_generator *generator; /* NULL before the first pl_generate */

    pl_step_callback on_step;
    void *on_step_user;
};

/* Begins a call: clears the error. False: the session is NULL, or the call comes from one of its
 * own callbacks. */
bool session_enter(struct pl_session *s);
/* Returns PL_USAGE, with an error, for a `call` before the stage that it needs. */
int session_require(struct pl_session *s, enum stage stage, const char *call);
/* Makes the plan if there is none; PL_NOFIT if it does not fit. */
int session_plan(struct pl_session *s);

/* Returns the value of pl_verbose. */
bool session_verbose(void);

/* Frees the generator and its memory (generate.c); does nothing if there is none. */
void session_drop_generator(struct pl_session *s);

/* build.c: builds the user-defined model in m->config, a struct pl_session. */
extern const struct family defined_family;
/* Sets an error of the graph if a scope with PL_ROWS of this program cannot be run over chunks of
 * its rows (rows.c). */
void builder_check_rows(struct graph *g, enum program p);
