/*
 * ranks.h: what commands that run on several ranks share: starting them, and one configuration for
 * all.
 */
#ifndef CLI_RANKS_H
#define CLI_RANKS_H

#include "cli/cli.h"
#include "dist/agree.h"

/* The command itself, on each rank. `ranks` NULL: this process is alone. Only rank 0 prints. */
typedef int rank_command(const struct options *o, struct ranks *ranks, struct error *e);

/* Runs a command on the ranks that a launcher started. With --ranks N and without a launcher it
 * starts the program again under mpirun, and returns only on failure. argc and argv are those of
 * the command. */
int ranks_run(const struct command *c, const struct options *o, int argc, char **argv, rank_command *run,
              struct error *e);
/* The configuration, which rank 0 reads. The timeout of ranks is set from it. */
int ranks_configure(const struct options *o, struct ranks *r, struct config *c, struct error *e);

#endif
