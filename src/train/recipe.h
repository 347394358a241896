/*
 * recipe.h: which parameters a run trains, at which rate, with which decay.
 *
 * Four keys speak of parameters by name. Each is applied on top of those before it:
 *
 *     model.freeze -> frozen      train.no_decay -> no weight decay
 *     train.groups, in order      what a group does not say stays
 *
 * and train.layer_decay scales every rate that no group made absolute.
 */
#ifndef RECIPE_H
#define RECIPE_H

#include "graph/ops.h"
#include "passes/passes.h"
#include "train/config.h"

/* Marks the frozen parameters of a forward. */
void recipe_freeze(const struct config *c, struct graph *g);

/* PL_USAGE when a pattern matches no parameter of the forward (the nearest is named), or
 * when `train` and nothing is left to train, or a rule of memory.modules finds nothing. */
int recipe_check(const struct config *c, const struct graph *g, bool train, struct error *e);

/* The loss of masks. */
struct mask_loss_options recipe_loss(const struct config *c);

/* Fills in what the update needs, and the modules' rules; they live in `b`. */
void recipe_settings(const struct config *c, struct bump *b, struct settings *s);

/* The rate that the schedule scales: train.learning_rate by train.lr_scaling. */
double recipe_rate(const struct config *c);

#endif
