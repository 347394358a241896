/*
 * second.h: the second space, as the configuration asks for it: what has its home there
 * (memory.offload) and how large it may be (memory.host_budget).
 */
#ifndef SECOND_H
#define SECOND_H

#include "run/device.h"
#include "train/config.h"

/* memory.offload: a list, or words with + between them. *automatic: the planner chooses;
 * *away is enum away. PL_USAGE names the word that is none. */
int second_wanted(const struct config *c, bool *automatic, unsigned *away, struct error *e);

/* The folder of the second space's file on the CPU, for a run that writes to `out` (NULL or
 * "": nowhere). */
const char *second_folder(const char *out);

/* memory.host_budget in bytes, 0: none. `auto` on a CUDA device is the memory that is free
 * for this process (`free_memory`), less a reserve, and no bound where that is 0: the card is in
 * another machine, whose memory is not known. On the CPU, whose second space is a file, it is
 * the free disk of that file's folder, less a reserve. */
int second_budget(const struct config *c, enum device_kind kind, uint64_t free_memory, uint64_t *bytes, struct error *e);

#endif
