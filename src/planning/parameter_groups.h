/*
 * parameter_groups.h: which parameters a run trains, with which learning rate and weight decay.
 *
 * Four keys refer to parameters by name. Each is applied on top of the previous ones:
 *
 *     model.freeze -> frozen      train.no_decay -> no weight decay
 *     train.groups, in order      members that are not given stay unchanged
 *
 * and train.layer_decay scales every learning rate that no group made absolute.
 */
#pragma once

#include "config/config.h"
#include "graph/graph.h"
#include "models/model.h"
#include "passes/passes.h"

/* Marks the frozen parameters of a forward graph. */
void groups_freeze(const struct config *c, struct graph *g);

/* Returns PL_USAGE if a pattern matches no parameter of the forward graph (the message names the
 * nearest), if `train` is set and nothing is left to train, or if a rule of memory.modules matches
 * nothing. A pattern of train.no_decay that matches nothing is a note in the log. */
int groups_check(const struct config *c, const struct graph *g, bool train, struct error *e);

/* Fills in the update's settings and the modules' rules; they are allocated in `b`. */
void groups_settings(const struct config *c, struct bump *b, struct settings *s);

/* Returns the learning rate that the schedule scales: train.learning_rate with train.lr_scaling. */
double groups_rate(const struct config *c);

/* --- modules --------------------------------------------------------------------------------- */

/* The modules of a model, by which patterns in a run file name them.
 *
 * A module is what parameters share before their last dot: x.q_proj of x.q_proj.weight and
 * x.q_proj.bias. Modules that differ only in the numbers of layers are one line once folded, with *
 * for the number, as a pattern would match them.
 */
enum { MODULE_NAME = 256 };

struct module {
    char name[MODULE_NAME];  /* of one module, or the pattern of several */
    const char *type;        /* of the op that reads the weight; -: none does, in one forward without options */
    const struct tensor *weight; /* its parameter of the highest rank */
    bool bias, trained;
    uint32_t count;
    uint64_t weights;
};
struct modules {
    VEC(struct module) list;
    struct model model;
    struct graph graph;      /* the forward, with the adapter */
    struct bump memory;
};

/* Lists the modules of a folder or preset, or without a name (NULL) of the configuration's model,
 * with its adapter and what it freezes. modules_close is called in any case. */
int modules_open(struct modules *m, const struct config *c, const char *name, struct error *e);
void modules_close(struct modules *m);
/* Makes a line of each pattern and kind of module; the caller frees lines->list. A pattern of one
 * module keeps its name. */
void modules_fold(const struct modules *m, struct modules *lines);

/* A name for memory.modules: what ops are in. */
struct scope_line {
    char name[MODULE_NAME];
    bool block;
};
struct scope_lines {
    VEC(struct scope_line) list;
};
/* Lists these, each once, in the order of the forward; folded: with * for numbers. */
void modules_scopes(const struct modules *m, bool folded, struct scope_lines *out);
