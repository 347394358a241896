/*
 * stages.h: the stages of planning, for the files of this folder.
 *
 *     planned_open_shares    ranks and shares                                planned_inputs.c
 *     planned_open_model     the model, its adapter, its 4-bit weights       planned_model.c
 *     planned_open_batches   what a batch holds
 *     planned_open_groups    groups of samples that a step computes together
 *     planned_check_names    the configuration's names against the model's
 *     open_machine           device, profile, budgets, links of ranks        stages.c
 *     find_plan              settings, then the search, or a plan file
 *     check_plan             what only the graph tells
 *
 * With parallel.tensor auto they run for each number of ranks to choose from (mesh_choice.c).
 */
#pragma once

#include "planning/planned.h"

typedef int stage(struct planned *r, const struct run_options *o, struct error *e);

/* Plans without a search for remedies (mesh_choice.c). The space stays open, until
 * planned_close_space. */
int planned_make(struct planned *r, const struct config *c, const struct run_options *o, struct error *e);
/* Does so for a number of ranks that compute parts of the same products (stages.c). */
int planned_make_for(struct planned *r, const struct config *c, const struct run_options *o, int tensor,
                     struct error *e);
void planned_close_space(struct planned *r);

/* --- planned_model.c ------------------------------------------------------------------------ */

stage planned_open_model, planned_open_batches, planned_open_groups;
/* Builds the forward graph of the whole model to check the parameter names of the configuration.
 * Errors of the model's builder are left to the planner. */
stage planned_check_names;

/* --- planned_inputs.c ------------------------------------------------------------------------ */

/* Sets the number of shares of a step. `plan` may be asked for ranks that are not there. */
stage planned_open_shares;
/* Returns the number of ranks that the plan is for. */
int planned_world(const struct planned *r);
/* Returns the number of ranks that share the memory and the disk of a host. Those that are only
 * planned for are on one host unless parallel.per_host says otherwise. */
int planned_host_ranks(const struct planned *r);
/* Sets what connects the ranks: a plan is a function of it. */
int planned_open_links(struct planned *r, struct error *e);
/* Returns an error if groups of a host are not ranks that follow each other. */
int planned_check_hosts(const struct planned *r, struct error *e);

/* --- device_choice.c, memory_budget.c ------------------------------------------------------- */

/* Reports whether the plan's GPU is in this machine. */
bool planned_gpu_is_here(const struct planned *r);
/* Fills the device's kind and profile; no device is opened. A given profile file
 * decides the number of threads, unless the configuration sets it. */
int planned_open_profile(struct planned *r, struct error *e);
/* Reserve of `memory.budget: auto` for the system and this program's own code. */
enum { BUDGET_RESERVE = 512 << 20 };
/* Returns an error if ranks share a GPU and were not meant to. */
int planned_check_gpus(const struct planned *r, struct error *e);
/* Returns the free memory of the plan's device, less a reserve; 0: it is not known. */
uint64_t planned_free_memory(const struct planned *r);
/* Sets r->budget. */
int planned_resolve_budget(struct planned *r, struct error *e);
/* Fills r->warning: what the plan needs and this machine, or the plan's GPU or the machine around
 * it, does not have. */
void planned_warn(struct planned *r);

/* --- given_settings.c ----------------------------------------------------------------------- */

/* Returns the settings that the configuration gives; what it leaves to the planner is off. */
struct settings planned_base_settings(struct planned *r, const struct run_options *o);
/* An error if the device does not compute in the precision; if a technique lacks what it needs of
 * another; if something in the run excludes one that is on. */
int planned_check_precision(const struct planned *r, const struct settings *s, struct error *e);
int planned_check_needs(const struct settings *s, struct error *e);
int planned_check_excluded(const struct planned *r, const struct settings *s, struct error *e);
/* Reports whether something in the run excludes the technique; `why` says what. */
bool planned_is_excluded(const struct planned *r, enum technique_id id, const struct settings *s, struct text *why);
/* Returns what bounds a step of this run. */
struct step_limits planned_limits(const struct planned *r);
/* Returns the values of a technique's ladder that memory.allow permits, by bit. */
unsigned planned_permits(const struct config *c, enum technique_id id);
/* Follows the plan of a plan file, if it is for this run. */
int planned_follow_plan(struct planned *r, struct settings s, const char *path, struct error *e);

/* --- plan_generation.c, planned_inputs.c ------------------------------------------------------ */

/* Finds the fastest plan of a run that generates, within its budgets: prompts at once, chunks of
 * them, with and without offloaded weights. On PL_NOFIT it is the smallest one. */
int planned_search_generation(struct planned *r, struct settings s, const struct run_generation *o, struct error *e);
/* Finds, for a planned run with `answers`, how many prompts at once, up to `most`, the budget
 * allows with the settings of its plan; without a budget, how many need at most 1 % more memory
 * than the plan has. */
int planned_search_answers(struct planned *r, int64_t most, struct error *e);
/* Checks that in a user-defined model ids of tables and classes are inputs, or views of inputs. */
int planned_check_ids(const struct planned *r, struct error *e);
