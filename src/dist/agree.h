/*
 * agree.h: agreements: what all ranks must know before a step, and how they end together.
 *
 * Before every step, and at a few places before the first one and after the last, each rank says
 * what it has: counts of its batch, whether it is to stop, and whether it failed. Whoever failed
 * comes to the next agreement and says why; all ranks then end with its code and message. A rank
 * that cannot come aborts all, or is missed after the timeout.
 */
#pragma once

#include "run/ranks.h"

enum { AGREE_COUNTS = 2, AGREE_TEXT = 2176 };

/* Before: of this rank. After: sums over ranks, and stop if any rank stops. */
struct agreement {
    double count[AGREE_COUNTS]; /* of the batch: divisors of losses */
    double units;               /* tokens or images */
    double busy;                /* seconds of the last step without waiting; after: of the slowest rank... */
    double median;              /* ...and of the median rank */
    uint64_t seen, broken;      /* samples that were read; broken ones that were replaced */
    int32_t slowest;            /* after: the slowest rank */
    int32_t failed;             /* the code of this rank's failure */
    int32_t stop, unused;
};

/* Allocates the room for agreements; the ranks free it when they are closed. Without it there are
 * none. */
void agree_open(struct ranks *r);

/* Agrees with all ranks; `rc` and `e` say whether this rank has failed. Returns PL_OK if no rank
 * failed. Otherwise `e` has the code and the message of the first one that did, with its rank and
 * host unless all of them did, and no further agreement takes place: r->ended is set. r NULL:
 * returns rc. */
int agree(struct ranks *r, struct agreement *a, int rc, struct error *e);
/* Agrees only on whether a rank failed. */
int agree_on(struct ranks *r, int rc, struct error *e);
/* Makes the last agreement, unless a failure was agreed on before: waits for as long as others
 * work, so that a rank that fails by itself ends all, and says why. */
int agree_to_end(struct ranks *r, int rc, struct error *e);

/* What must be the same on all ranks. */
struct agree_same {
    const char *what;
    uint64_t value;
};
/* Compares values across ranks: PL_USAGE names the first that differs from rank 0, and the ranks
 * where it does. Called where agree just succeeded. */
int agree_same(struct ranks *r, const struct agree_same *list, int n, struct error *e);

/* Sets r->share, of which memory.budget auto and memory.host_budget auto are made: with other
 * numbers on each rank they would plan differently. `folder`: that of the offload file, which need
 * not exist. Fails where a rank has failed before. */
int agree_free(struct ranks *r, const char *folder, struct error *e);

/* Sends bytes of rank 0 to all others. Ends all ranks if that fails. */
void agree_broadcast(struct ranks *r, void *at, uint64_t bytes);

/* --- a part of the ranks --------------------------------------------------------------------- */

/* `members`: n ranks of `all`, this one among them; all of them call it alike. The part's exchanges
 * are those of `all`, with its deadline. Freed by part_close. */
struct ranks *part_open(struct ranks *all, const int *members, int n);
void part_close(struct ranks *r);
