/*
 * bench_kernels.c: the time of a step by kernel and shape. A row sums all launches of one kernel
 * whose first input and first output have the same shapes: windowed attention and global
 * attention have rows of their own.
 */
#include <stdlib.h>
#include <string.h>

#include "graph/ops.h"
#include "calibrate/bench.h"

static bool same_shape(const struct tensor *a, const struct tensor *b)
{
    if (!a || !b) return a == b;
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i] != b->dim[i]) return false;
    return true;
}

static struct bench_kernel *find(struct bench_kernel *all, uint32_t *n, const struct bench_kernel *like)
{
    for (uint32_t i = 0; i < *n; i++)
        if (all[i].op == like->op && all[i].kernel == like->kernel && all[i].form == like->form &&
            same_shape(all[i].in, like->in) && same_shape(all[i].out, like->out))
            return &all[i];
    all[*n] = *like;
    return &all[(*n)++];
}

static int by_seconds(const void *a, const void *b)
{
    const struct bench_kernel *x = a, *y = b;
    if (x->seconds != y->seconds) return x->seconds > y->seconds ? -1 : 1;
    return x->op != y->op ? (x->op < y->op ? -1 : 1) : 0;
}

uint32_t bench_kernels(const struct bench *b, struct bench_kernel *out, uint32_t most)
{
    const struct graph *g = &b->run.planned.graph;
    struct bench_kernel *all = mem_alloc((g->nodes.n + 1) * sizeof *all);
    uint32_t n = 0;
    for (id x = 1; x < g->nodes.n; x++) {
        const double calls = b->fastest.calls[x];
        if (!b->fastest.calls[x]) continue;
        const struct node *node = node_at(g, x);
        struct query q;
        query_fill(&q, g, node, &b->run.planned.profile);
        struct bench_kernel like = {.op = node->op,
                                    .kernel = b->run.planned.plan.placement.binding[x].kernel,
                                    .form = b->run.planned.plan.placement.binding[x].form,
                                    .in = q.in[0],
                                    .out = q.out[0]};
        struct bench_kernel *line = find(all, &n, &like);
        struct cost c = op_table[node->op].cost(q.in, q.out, q.attr);
        line->calls += b->fastest.calls[x];
        line->seconds += b->fastest.seconds[x];
        line->ideal += calls * kernel_ideal(&q, node->op);
        line->flops += calls * c.flops;
        line->bytes += calls * c.bytes;
    }
    qsort(all, n, sizeof *all, by_seconds);
    n = n < most ? n : most;
    memcpy(out, all, n * sizeof *out);
    mem_free(all);
    return n;
}
