/*
 * search_space.h: all settings that a search may choose, each with a bound on its bytes and its
 * predicted seconds, without compiling it.
 *
 * The space does not depend on the budget. Its dimensions:
 *
 *     micro-batch      splits of the effective batch
 *     head chunks      1, 2, 8, 32
 *     recompute        none, selective, first:n and first:n+selective in steps, all,
 *                      all+halves, all+selective
 *     update           where the optimizer state is, and its dtype where others are allowed
 *     streamed         weights, or weights and activations, offloaded; for the smallest
 *                      micro-batch, on a GPU for 1, 2, 4 ... micro-batches per step
 *     fused step       where a step is one micro-batch
 *     sharding         of optimizer state, gradients or weights, among all ranks or those of a host
 *     any other        technique that is free: the values of its ladder, each with all of the above
 *
 * For each micro-batch a few graphs are compiled and surveyed (survey.h); the other choices are
 * computed from the blocks of these. Streamed and fused choices, and those with divided gradients
 * or weights, are rough until they are surveyed.
 */
#pragma once

#include "plan/plan.h"

/* Reports whether the ladder of a technique is a dimension of its own: it is free, and none of
 * those above. */
bool search_has_ladder(const struct freedom *f, enum technique_id id);
/* Fills x->choices. */
int search_space_fill(struct plan_space *x, const struct settings *base, struct error *e);
/* Surveys rough choices; places program step of those within `placed`, unless NULL. */
struct survey_limits;
int search_space_survey(struct plan_space *x, const uint32_t *rough, uint32_t n, const struct survey_limits *placed,
                        struct error *e);
