/*
 * plan_tables.h: the tables of `plimsoll plan`: the same run planned many times.
 *
 *     --compare            a ladder of techniques, each rung one more
 *     --frontier           budgets, and what each of them buys
 *     --devices LIST       GPUs, by memory in GiB or by name: batch, accumulation and techniques
 *     --rules-of-thumb       with --devices: what rules of thumb say of the same GPUs, and where they err
 */
#ifndef PLAN_TABLES_H
#define PLAN_TABLES_H

#include "cli/cli.h"

/* The table that the options ask for. */
int plan_table(const struct options *o, struct error *e);
/* The configuration with --images, --frames and --masks in it. */
int table_options(const struct options *o, struct config *c, struct error *e);

int table_compare(const struct options *o, struct error *e);
int table_frontier(const struct options *o, struct error *e);
int table_devices(const struct options *o, struct error *e);

/* Rules of thumb for a GPU of so many GB (rules.c). */
struct rule_batch {
    int batch, accumulation, effective;
};
/* "80 % of the GPU at 0.8 GB a sample, 0.7 of that more for each further image"; floored
 * accumulation. */
struct rule_batch rule_multi_image(double gigabytes, int images, int target);
/* The same with 14 GB of weights subtracted and accumulation rounded up: what it should say. */
struct rule_batch rule_multi_image_right(double gigabytes, int images, int target);
/* The tiers of two guides, in words. */
const char *rule_prs_med(double gigabytes);
const char *rule_video(double gigabytes);
void rules_errata(struct text *out);

#endif
