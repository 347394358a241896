/*
 * scaler.h: the host's side of dynamic loss scaling.
 *
 * The update itself decides (SCALER, graph/ops.def): what it left in the step block is taken
 * over into the training state, which checkpoints keep and the next step begins with. A run that only
 * skips is ended: halving cannot help what is not finite in the forward.
 */
#ifndef SCALER_H
#define SCALER_H

#include "train/config.h"
#include "train/run.h"
#include "train/state.h"

enum { SCALE_FIRST = 65536, SKIPS_MOST = 100 };

/* A new run's scale, and that of one whose checkpoint has none; other precisions have 1. */
void scaler_begin(struct train_state *s, const struct config *c, bool scaled);
/* The scaler's part of a step block. */
void scaler_put(const struct train_state *s, const struct config *c, bool scaled, struct step_block *b);
/* What the update made of it; true: the step was skipped. */
bool scaler_take(struct train_state *s, const struct step_block *b);
/* No further step can help. */
bool scaler_hopeless(const struct train_state *s);
/* PL_FAIL with the tensor's name. The step's inputs and weights are as it found them: it is run again to
 * find where. */
int scaler_complain(const struct train_state *s, const struct step_block *b, struct run *r, struct error *e);

#endif
