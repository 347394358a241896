/*
 * links.c: see links.h.
 */
#include "cost/links.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Published rates in GB/s, one direction, of one GPU or one port. */
static const struct {
    const char *name;
    double rate, latency, peer;
} known[] = {
    {"nvlink4", 450, 10e-6, 1e-6}, {"nvlink3", 300, 10e-6, 1e-6}, {"pcie5", 63, 15e-6, 2e-6}, {"pcie4", 31.5, 15e-6, 2e-6},
    {"ib-ndr", 50, 15e-6, 2e-6}, {"ib-hdr", 25, 15e-6, 2e-6}, {"eth-100g", 12.5, 40e-6, 10e-6}, {"eth-25g", 3.125, 40e-6, 10e-6},
    {"eth-10g", 1.25, 50e-6, 10e-6}, {"eth-1g", 0.125, 80e-6, 20e-6}, {"shm", 5, 10e-6, 5e-6},
};

enum { LOCAL, REMOTE };

static int take(struct profile *p, int which, const char *name, struct error *e)
{
    struct text names = {0};
    for (size_t i = 0; i < COUNT(known); i++) {
        if (!strcmp(known[i].name, name)) {
            p->link[which] = (struct link){known[i].latency, known[i].peer, 0.8e9 * known[i].rate, false, ""};
            snprintf(p->link[which].name, sizeof p->link[which].name, "%s", name);
            text_free(&names);
            return PL_OK;
        }
        text_printf(&names, "%s%s", i ? ", " : "", known[i].name);
    }
    error_set(e, PL_USAGE, "parallel.links: found \"%.60s\"; known links are %s; two are those within a host and between hosts, such as nvlink4,ib-ndr", name, names.at);
    text_free(&names);
    return e->code;
}

int links_set(struct profile *p, const char *names, int per_host, struct error *e)
{
    char list[128], *at = list;
    const char *standard[] = {p->kind == DEVICE_CUDA ? "pcie4" : "shm", "eth-10g"};
    snprintf(list, sizeof list, "%s", names ? names : "");
    p->per_host = per_host;
    for (int which = LOCAL; which <= REMOTE; which++) {
        const char *name = strsep(&at, ",");
        const bool given = name && *name;
        if (!given && p->link[which].bandwidth > 0) continue;
        if (take(p, which, given ? name : standard[which], e)) return e->code;
    }
    return at ? error_set(e, PL_USAGE, "parallel.links: found \"%.60s\"; expected one link, or two: within a host and between hosts", names) : PL_OK;
}

/* Bytes of all parts of a collective, and how often they are exchanged. */
static double parts_bytes(const struct query *q, enum op op, int *times)
{
    *times = op == OP_ALL_REDUCE ? 2 : 1;
    if (op == OP_REDUCE_SCATTER) return (double)q->attr->group.ranks * (double)q->attr->group.part * dtype_size(q->in[0]->dtype);
    return (double)tensor_bytes(q->out[0]);
}

double links_bytes(const struct query *q, enum op op)
{
    int times;
    const double n = q->attr->group.ranks, bytes = parts_bytes(q, op, &times);
    return n > 1 ? times * bytes * (n - 1) / n : 0;
}

double links_seconds(const struct profile *p, const struct query *q, enum op op)
{
    int times;
    const int n = q->attr->group.ranks, axis = q->attr->group.axis;
    const int host = axis == AXIS_ACROSS ? 1 : axis != AXIS_HOST && p->per_host > 0 && p->per_host < n ? p->per_host : n;
    const double part = parts_bytes(q, op, &times) / n;
    const int peers[] = {host - 1, n - host};
    double longest = 0;
    for (int which = LOCAL; which <= REMOTE; which++) {
        const struct link *l = &p->link[which];
        if (peers[which] && l->bandwidth > 0) longest = fmax(longest, l->latency + peers[which] * (l->peer + part / l->bandwidth));
    }
    return times * longest;
}

void links_print(const struct profile *p, struct text *out)
{
    const bool several = p->per_host > 0;
    bool measured = p->link[LOCAL].measured;
    text_printf(out, "%s", p->link[LOCAL].name);
    if (several) {
        text_printf(out, " and %s", p->link[REMOTE].name);
        measured &= p->link[REMOTE].measured;
    }
    if (!measured) text_printf(out, ", unmeasured");
}
