/*
 * links.h: what connects ranks, for predicted times.
 *
 *     exchange of B bytes, all parts, over n ranks:   latency + (n - 1) per peer + (n - 1)/n B / bandwidth
 *
 * Ranks of one host are connected by the local link, others by the remote one; a rank sends to both
 * at once. A collective of two levels (attr.group.host) is the sum of two exchanges: of B bytes
 * over the ranks of a host, and of their part of B over the hosts. Built-in links have 0.8 of their
 * published rates: such times are unmeasured. `bench --calibrate` on several ranks measures them.
 */
#pragma once

#include "run/kernel.h"

enum link_kind { LINK_LOCAL, LINK_REMOTE };

/* Sets the profile's links: "", "LOCAL" or "LOCAL,REMOTE", by name; empty names are the profile's
 * own, else the defaults of the device. "measured": the profile's own, or an error; the file of a
 * profile: that one's. PL_USAGE names the known ones. `per_host`: ranks of a host; 0: all are on
 * one. */
int links_set(struct profile *p, const char *names, int per_host, struct error *e);
/* Returns the time in which the ranks of a collective exchange their bytes. */
double links_seconds(const struct profile *p, const struct query *q, uint16_t op);
/* Returns the bytes that a rank sends in it, and receives. */
double links_bytes(const struct query *q, uint16_t op);
/* Returns the bytes of a part, which a rank sends to a peer in one exchange. *times: the exchanges
 * of a collective. */
double links_part(const struct query *q, uint16_t op, int *times);
/* Prints the links: "nvlink4 and ib-ndr, unmeasured"; "3.2 GB/s, measured". */
void links_print(const struct profile *p, struct text *out);
