/*
 * plan.h: `plimsoll plan`: its options, and its tables (plan_tables.c).
 */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include "cli/cli.h"

struct plan_options {
    struct options o;
    const char *devices, *images, *frames, *masks;
    bool explain, explain_all, compare, frontier;
};

/* Reads the configuration, with --images, --frames and --masks applied. */
int plan_configure(const struct plan_options *o, struct config *c, struct error *e);

/* Each plans and prints a table. */
int table_compare(const struct plan_options *o, struct error *e);
int table_frontier(const struct plan_options *o, struct error *e);
int table_devices(const struct plan_options *o, struct error *e);
int table_ranks(const struct plan_options *o, struct error *e);

#endif
