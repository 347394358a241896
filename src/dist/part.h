/*
 * part.h: some of the ranks as ranks of their own, numbered in the order of a list: those of one
 * host, or one of every host.
 */
#ifndef DIST_PART_H
#define DIST_PART_H

#include "run/ranks.h"

/* `members`: n ranks of `all`, this one among them; all of them call it alike. The part's exchanges
 * are those of `all`, with its deadline. Freed by part_close. */
struct ranks *part_open(struct ranks *all, const int *members, int n);
void part_close(struct ranks *r);

#endif
