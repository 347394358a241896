/*
 * batch_plan.h: what a batch of a configuration holds, before any data is opened.
 *
 * It depends only on configuration and model, so that it can be planned, and on the header of a
 * packed store. The feed (feed/feed.h) then fills such batches.
 */
#ifndef BATCH_PLAN_H
#define BATCH_PLAN_H

#include "config/config.h"
#include "data/loader.h"
#include "data/packed.h"
#include "models/masks.h"

/* Points of the first prompt of a mask: a point and a filler, or two corners. Every later round adds
 * one point. */
enum { FIRST_SLOTS = 2 };

/* For a run over images with masks: the shape of the model's prompts, the bytes of the loader
 * (settings.loader_bytes), and the stored embeddings that will be read; *x of type 0: none. Changes
 * nothing if data.format is tokens; it is an error if a file sets that for a mask model. */
int batch_plan(const struct config *c, const struct model *m, bool train, struct prompting *p, uint64_t *loader, struct packed_embeddings *x, struct error *e);
/* The loader of images with masks. */
struct loader_options batch_loader(const struct config *c, const struct model *m, const struct packed_embeddings *x);
/* The value of data.format. */
const char *batch_format(const struct config *c);

/* PL_USAGE: the model does not take token rows. */
int batch_refuse_tokens(const struct config *c, const struct model *m, struct error *e);
/* Advice in a message about a model with other inputs: "set data.format to tokens, ...". */
const char *batch_advice(const struct model *m);

#endif
