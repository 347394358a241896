/*
 * communication.h: what a rank of a plan sends in a step.
 */
#ifndef COMMUNICATION_H
#define COMMUNICATION_H

#include "plan/plan.h"

struct communication {
    double sent;            /* bytes that a rank sends in a step; it receives as many */
    double seconds;         /* of the lane of communication in a step... */
    double hidden;          /* ...and the part of them in which the rank also computes */
    uint64_t buffers;       /* most bytes of KIND_COMM that are alive at once in a step... */
    uint64_t host;          /* ...and of the host memory through which GPUs exchange without NCCL */
};
struct communication plan_communication(const struct plan *p, const struct graph *g, const struct profile *profile);

#endif
