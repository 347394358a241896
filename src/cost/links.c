/*
 * links.c: see links.h.
 */
#include "cost/links.h"
#include "graph/ops.h"

#include <math.h>

/* Bytes of all parts of a collective, and how often they are exchanged. */
static double parts_bytes(const struct query *q, enum op op, int *times)
{
    *times = op == OP_ALL_REDUCE ? 2 : 1;
    if (op == OP_REDUCE_SCATTER)
        return (double)q->attr->group.ranks * (double)q->attr->group.part * dtype_size(q->in[0]->dtype);
    return (double)tensor_bytes(q->out[0]);
}

double links_bytes(const struct query *q, uint16_t op)
{
    int times;
    const double n = q->attr->group.ranks, bytes = parts_bytes(q, op, &times);
    return n > 1 ? times * bytes * (n - 1) / n : 0;
}

static double exchange_seconds(const struct link *l, int peers, double part)
{
    return peers && l->bandwidth > 0 ? l->latency + peers * (l->peer + part / l->bandwidth) : 0;
}

double links_seconds(const struct profile *p, const struct query *q, uint16_t op)
{
    int times;
    const int n = q->attr->group.ranks, axis = q->attr->group.axis, levels = q->attr->group.host;
    const int host = axis == AXIS_ACROSS                                       ? 1
                     : axis != AXIS_HOST && p->per_host > 0 && p->per_host < n ? p->per_host
                                                                               : n;
    const double part = parts_bytes(q, op, &times) / n;
    if (levels)
        return times * (exchange_seconds(&p->link[LINK_LOCAL], levels - 1, part * n / levels) +
                        exchange_seconds(&p->link[LINK_REMOTE], n / levels - 1, part));
    return times * fmax(exchange_seconds(&p->link[LINK_LOCAL], host - 1, part),
                        exchange_seconds(&p->link[LINK_REMOTE], n - host, part));
}

double links_part(const struct query *q, uint16_t op, int *times)
{
    return parts_bytes(q, op, times) / q->attr->group.ranks;
}

static const char *state_of(const struct link *l) { return l->ranks ? "measured" : "unmeasured"; }

static void print_link(const struct link *l, struct text *out)
{
    if (l->ranks) text_printf(out, "%.3g GB/s", 1e-9 * l->bandwidth);
    else text_printf(out, "%s", l->name);
}

void links_print(const struct profile *p, struct text *out)
{
    const struct link *local = &p->link[LINK_LOCAL], *remote = &p->link[LINK_REMOTE];
    const struct link *last = p->per_host > 0 ? remote : local;
    print_link(local, out);
    if (last != local && !local->ranks != !remote->ranks) text_printf(out, ", %s,", state_of(local));
    if (last != local) text_printf(out, " and ");
    if (last != local) print_link(remote, out);
    text_printf(out, ", %s", state_of(last));
}
