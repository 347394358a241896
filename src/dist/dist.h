/*
 * dist.h: how a process becomes a rank (launch.c), and the transport that connects it to the
 * others: a plug-in beside the program, plimsoll-mpi.so (mpi.c), which is loaded only where a
 * launcher has started several processes.
 */
#pragma once

#include "run/ranks.h"

/* Program and plug-in must agree on this value: a plug-in that was built from other sources is not
 * used. */
#define MPI_PLUGIN_ABI ((int)(sizeof(struct ranks) << 20 ^ sizeof(struct error) << 8 ^ offsetof(struct error, text)))

/* What plimsoll-mpi.so exports as plimsoll_mpi_plugin. It calls nothing of the program. */
struct mpi_plugin {
    int abi;
    /* Fills `r`, all but its timeout, which is set. */
    int (*open)(struct ranks *r, struct error *e);
};

/* Returns the number of processes that a launcher started; 1: only this one runs. */
int64_t dist_launched(void);
/* Returns the CPU threads of each of `local` ranks of a host: its processors are divided among
 * them. 0: OMP_NUM_THREADS decides instead. */
int dist_threads(int64_t local);
/* Returns the threads of each of `local` ranks that share `online` processors, of which a launcher
 * lets a rank use `allowed`: those of a socket may be several ranks'. */
int dist_share_threads(int64_t allowed, int64_t online, int64_t local);
/* Connects to the other ranks. NULL with e->code PL_OK: this process is the only one. PL_USAGE: a
 * launcher that does not work with this build, with what to type instead; or, with ranks that the
 * caller closes, one of them runs another program. */
struct ranks *dist_open(struct error *e);
/* Fills `r` as a single rank, all but its timeout, which is set. */
void dist_alone(struct ranks *r);
/* Ends a rank, after the last agreement. */
void dist_close(struct ranks *r);
/* Starts the program again as `ranks` ranks on this machine; returns only on failure. argv is that
 * of main. */
int dist_start(int64_t ranks, const char *const *argv, int argc, struct error *e);
