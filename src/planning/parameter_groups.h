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

#include "graph/graph.h"
#include "passes/passes.h"
#include "config/config.h"

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
