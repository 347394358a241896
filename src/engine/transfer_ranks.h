/*
 * transfer_ranks.h: loading and saving with several ranks: rank 0 has the files, and the others serve it.
 */
#ifndef TRANSFER_RANKS_H
#define TRANSFER_RANKS_H

#include "engine/transfer.h"
#include "run/ranks.h"

/* Rank 0 ends what the others began with transfer_serve, also after an error; alone it does nothing. */
int transfer_release(struct transfer *x, struct error *e);
/* On the other ranks: does what rank 0 asks until it ends the service. `what`: for messages, "saving". */
int transfer_serve(struct transfer *x, const char *what, struct error *e);

/* For transfer.c. Bytes [at, at + n) of the whole of a shard: this rank's part of them; and all of them, from their owners. */
int shard_own(struct transfer *x, id tensor, uint64_t at, uint64_t n, char *data, bool write, struct error *e);
int shard_collect(struct transfer *x, id tensor, uint64_t at, uint64_t n, char *data, struct error *e);
/* What rank 0 puts or writes, for the others. */
int transfer_spread_put(struct transfer *x, const struct param *p, enum dtype from, int64_t at, int64_t n, struct error *e);
int transfer_spread_write(struct transfer *x, id tensor, int64_t at, int64_t n, const void *data, struct error *e);
bool transfer_has_ranks(const struct transfer *x);

#endif
