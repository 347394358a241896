/*
 * scaler.h: the host's side of dynamic loss scaling.
 *
 * The update itself decides (op SCALER, graph/ops.def). Its result in the step block is copied into
 * the training state, which checkpoints store and the next step starts from. A run that skips too
 * many steps in a row ends: a smaller scale does not help if the forward pass is not finite.
 */
#ifndef SCALER_H
#define SCALER_H

#include "config/config.h"
#include "engine/run.h"
#include "folder/train_state.h"

enum { SCALE_FIRST = 65536, SKIPS_MOST = 100 };

/* Returns train.loss_scale, or the scale that auto means. */
float scaler_first(const struct config *c);
/* The initial scale of a new run, or of a checkpoint without one; 1 in other precisions. */
void scaler_begin(struct train_state *s, const struct config *c, bool scaled);
/* Fills the scaler's members of a step block. */
void scaler_put(const struct train_state *s, const struct config *c, bool scaled, struct step_block *b);
/* Copies the update's result into the state; true: the step was skipped. */
bool scaler_update(struct train_state *s, const struct step_block *b);
/* Whether skipping further steps cannot help. */
bool scaler_stuck(const struct train_state *s);
/* PL_FAIL with the tensor's name. The step's inputs and weights are unchanged, so the step runs
 * again to find the tensor. */
int scaler_error(const struct train_state *s, const struct step_block *b, struct run *r, struct error *e);

#endif
