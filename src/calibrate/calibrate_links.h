/*
 * calibrate_links.h: measures what connects ranks, on the collectives of training steps, to predict
 * the times of other runs.
 *
 *     a gather of weights = its kernel's other work + latency + peers * (peer + part / bandwidth)      (cost/links.h)
 *
 * The ranks of a host are measured as a group, all hosts at the same time; then one rank of every
 * host, all such groups at the same time, because they share a network. Groups of two tell what a
 * peer costs.
 */
#ifndef CALIBRATE_LINKS_H
#define CALIBRATE_LINKS_H

#include "config/config.h"
#include "run/kernel.h"
#include "run/ranks.h"

/* A size of collectives of measured steps. */
struct link_sample {
    int peers;
    double part;       /* bytes to each peer */
    double seconds;    /* of a collective of one exchange... */
    double rest;       /* ...and of them, as predicted, what its kernel does besides */
};

/* The link with which the predicted collectives are nearest to the measured ones. With one number
 * of peers the fixed cost is that of peers. */
void links_fit(const struct link_sample *list, int n, struct link *out);

/* Called by all ranks. On rank 0 the links that are there replace those of `p`, and `out` gets a
 * table of them. `c` has the device; it is the same on all ranks. */
int calibrate_links(struct ranks *all, const struct config *c, struct profile *p, struct text *out, struct error *e);

#endif
