/*
 * session.h: what the files of the library share; nobody else includes it.
 *
 *     session.c   options, the plan
 *     step.c      running: inputs, steps, outputs, parameters, saving, the whole loop
 *     build.c     the builder: layers of a model that the user defines
 */
#ifndef SESSION_H
#define SESSION_H

#include "train/run.h"
#include "train/train.h"

/* What there is so far. Options may change up to STARTED, which drops a plan. */
enum stage { STAGE_OPTIONS, STAGE_PLANNED, STAGE_STARTED };

/* An input of a started session: what pl_write_input must know, found once. */
struct session_input {
    const char *name;      /* the graph's */
    struct run_input is;
    bool written;
    bool idle;             /* no program reads it: it has no place, and what is written goes nowhere */
};

struct pl_session {
    struct error error;    /* of the last call */
    enum stage stage;
    bool fits;             /* PLANNED: the plan keeps to the budget */
    struct error nofit;    /* PLANNED: why not */
    struct config config;
    struct train_options options;
    struct trainer *trainer; /* NULL before the first plan */
    struct text text;      /* what pl_plan_json or pl_plan_table gave out */
    VEC(struct session_input) inputs;
    double count;          /* pl_set_count's */
    int64_t steps;
    bool busy;             /* a callback of the user may be running */
    char model[4200];      /* pl_model_path's */

    pl_build build;        /* NULL: the model comes from the options */
    void *build_user;
    char *config_json;
    struct definition definition;

    pl_step_callback on_step;
    void *on_step_user;
};

/* Begins a call: clears the error. False: there is no session, or the call comes from
 * one of its own callbacks. */
bool session_enter(struct pl_session *s);
/* Complains that `call` comes before what it needs; PL_USAGE. */
int session_require(struct pl_session *s, enum stage stage, const char *call);
/* The plan, made where it is not there yet; PL_NOFIT when it does not fit. */
int session_plan(struct pl_session *s);

/* pl_verbose's. */
bool session_verbose(void);

/* build.c: emits the definition in m->config, a struct pl_session. */
extern const struct family defined_family;

#endif
