/*
 * stages.h: the parts of run_plan (run_plan.c).
 */
#ifndef STAGES_H
#define STAGES_H

#include "planning/planned.h"

/* Reserve of `memory.budget: auto` for the system and this program's own code. */
enum { BUDGET_RESERVE = 512 << 20 };

/* device_budget.c: an error if ranks share a GPU and were not meant to; the free memory of the run's device, less a reserve, 0 if it is not known; sets r->budget. */
int run_check_gpus(const struct run *r, struct error *e);
uint64_t run_free_memory(const struct run *r);
int run_resolve_budget(struct run *r, struct error *e);

/* planned_ranks.c. Number of ranks that the plan is for. */
int run_parallel_ranks(const struct run *r);
/* Sets the number of shares of a step. `plan` may be asked for ranks that are not there. */
int run_open_shares(struct run *r, const struct run_options *o, struct error *e);
/* Sets what connects the ranks: a plan is a function of it. */
int run_open_links(struct run *r, struct error *e);
/* An error if groups of a host are not ranks that follow each other. */
int run_check_hosts(const struct run *r, struct error *e);

/* given_settings.c. The settings that the configuration gives; what it leaves to the planner is off. */
struct settings run_base_settings(struct run *r, const struct run_options *o);
/* An error if the device does not compute in the precision; if a technique lacks what it needs of another; if
 * something in the run excludes one that is on. */
int run_check_precision(const struct run *r, const struct settings *s, struct error *e);
int run_check_needs(const struct settings *s, struct error *e);
int run_check_excluded(const struct run *r, const struct settings *s, struct error *e);
/* Whether something in the run excludes the technique; `why` says what. */
bool run_is_excluded(const struct run *r, enum technique_id id, const struct settings *s, struct text *why);
/* What bounds a step of this run. */
struct step_limits run_limits(const struct run *r);
/* Whether memory.allow lists this variant of AdamW's state; whether it lists 4-bit weights. */
bool run_allows(const struct config *c, const char *form);
bool run_allows_nf4(const struct config *c);
/* The plan of a plan file, if it is for this run. */
int run_follow_plan(struct run *r, const struct source *source, struct settings s, const char *path, struct error *e);

/* run_plan.c: plans without a search for remedies. The space stays open. */
int run_search(struct run *r, const struct config *c, const struct run_options *o, struct error *e);
void run_close_space(struct run *r);

#endif
