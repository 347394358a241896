/*
 * plan_tables.h: the tables of `plimsoll plan`, each of which plans the same run many times.
 *
 *     --compare            adds one technique in each row
 *     --frontier           the best plan for each of many budgets
 *     --devices LIST       GPUs, by memory in GiB or by name: batch, accumulation and techniques
 *     --ranks N,M,...      numbers of ranks: level of sharding, bytes sent, efficiency (plan_ranks.c)
 *     --rules-of-thumb     with --devices: the batch by rules of thumb, and their errors
 */
#ifndef PLAN_TABLES_H
#define PLAN_TABLES_H

#include "cli/cli.h"

/* Prints the table that the options select. */
int plan_table(const struct options *o, struct error *e);
/* The configuration, with --images, --frames and --masks applied. */
int table_options(const struct options *o, struct config *c, struct error *e);

int table_compare(const struct options *o, struct error *e);
int table_frontier(const struct options *o, struct error *e);
int table_devices(const struct options *o, struct error *e);
int table_ranks(const struct options *o, struct error *e);

/* Rules of thumb for a GPU by its memory in GB (rules.c). */
struct rule_batch {
    int batch, accumulation, effective;
};
/* "80 % of the GPU, 0.8 GB per sample, 0.7 times that more for each further image"; accumulation is
 * rounded down. */
struct rule_batch rule_multi_image(double gigabytes, int images, int target);
/* The corrected rule: 14 GB of weights are subtracted and accumulation is rounded up. */
struct rule_batch rule_multi_image_corrected(double gigabytes, int images, int target);
/* The tiers of two guides, as text. */
const char *rule_prs_med(double gigabytes);
const char *rule_video(double gigabytes);
void rules_errata(struct text *out);

#endif
