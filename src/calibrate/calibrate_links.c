/*
 * calibrate_links.c: see calibrate.h.
 */
#include "calibrate/calibrate.h"

#include <math.h>

#include "calibrate/bench.h"
#include "cost/links.h"
#include "dist/agree.h"
#include "batch/feed.h"
#include "graph/ops.h"

#define LLAMA(vocabulary, hidden, inner, heads)                                                                        \
    "{\"model_type\": \"llama\", \"vocab_size\": " #vocabulary ", \"hidden_size\": " #hidden                           \
    ", \"intermediate_size\": " #inner ", \"num_hidden_layers\": 1, \"num_attention_heads\": " #heads                  \
    ", \"num_key_value_heads\": " #heads                                                                               \
    ", \"max_position_embeddings\": 64, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, "  \
    "\"tie_word_embeddings\": false}"

/* Weights of 256 bytes to 16 MiB. */
static const char *const models[] = {LLAMA(1024, 64, 256, 2), LLAMA(8192, 512, 2048, 8)};
enum { STEPS = 8, TURNS = 8 };

struct link_samples {
    VEC(struct link_sample) list;
};

/* --- fitting ---------------------------------------------------------------------------------- */

enum { UNKNOWNS = 3 }; /* latency, peer, seconds of a byte */

/* Solves the normal equations of the unknowns that are `used`; the others are 0. */
static void solve(const double sums[UNKNOWNS][UNKNOWNS + 1], const bool used[UNKNOWNS], double x[UNKNOWNS])
{
    double a[UNKNOWNS][UNKNOWNS + 1];
    memcpy(a, sums, sizeof a);
    for (int k = 0; k < UNKNOWNS; k++)
        for (int i = 0; i < UNKNOWNS && !used[k]; i++) a[k][i] = a[i][k] = i == k;
    for (int k = 0; k < UNKNOWNS; k++)
        if (!used[k]) a[k][UNKNOWNS] = 0;
    for (int k = 0; k < UNKNOWNS; k++)
        for (int i = 0; i < UNKNOWNS; i++) {
            const double f = i == k ? 0 : a[i][k] / a[k][k];
            for (int j = k; j <= UNKNOWNS && i != k; j++) a[i][j] -= f * a[k][j];
        }
    for (int k = 0; k < UNKNOWNS; k++) x[k] = a[k][UNKNOWNS] / a[k][k];
}

static double fitted(const struct link *l, const struct link_sample *x)
{
    return x->rest + l->latency + x->peers * (l->peer + x->part / l->bandwidth);
}

/* Returns the bytes a second of the largest exchange, its latency included: a rate that the link
 * has, where bytes seem to cost nothing but the kernel's own accesses. */
static double largest_rate(const struct link_sample *list, int n)
{
    const struct link_sample *largest = &list[0];
    for (int i = 1; i < n; i++)
        if (list[i].peers * list[i].part > largest->peers * largest->part) largest = &list[i];
    return fmax(largest->peers * largest->part, 1) / fmax(largest->seconds, 1e-9);
}

/* Fits once: the error of each sample is divided by its `scale`. */
static void fit_scaled(const struct link_sample *list, const double *scale, int n, struct link *out)
{
    double sums[UNKNOWNS][UNKNOWNS + 1] = {{0}}, x[UNKNOWNS];
    bool several = false, used[UNKNOWNS] = {true, true, true};
    for (int i = 0; i < n; i++) {
        const struct link_sample *s = &list[i];
        const double row[] = {1 / scale[i], s->peers / scale[i], s->peers * s->part / scale[i],
                              (s->seconds - s->rest) / scale[i]};
        for (int k = 0; k < UNKNOWNS; k++)
            for (int j = 0; j <= UNKNOWNS; j++) sums[k][j] += row[k] * row[j];
        several |= s->peers != list[0].peers;
    }
    used[0] = several;
    for (bool negative = true; negative;) { /* a cost is not negative: without it, again */
        negative = false;
        solve(sums, used, x);
        for (int k = 0; k < UNKNOWNS; k++)
            if (used[k] && x[k] < 0) used[k] = false, negative = true;
    }
    out->latency = x[0];
    out->peer = x[1];
    out->bandwidth = x[2] > 1e-15 ? 1 / x[2] : largest_rate(list, n);
}

/* Divides the squares of errors by the fitted time, which several turns find. So the sum over all
 * collectives is right, which is what a step takes; errors relative to each of them would favour
 * small ones, some of which are done before they are waited for. */
void links_fit(const struct link_sample *list, int n, struct link *out)
{
    double *scale = mem_alloc((size_t)n * sizeof *scale);
    for (int i = 0; i < n; i++) scale[i] = sqrt(list[i].seconds);
    for (int turn = 0; turn < TURNS; turn++) {
        fit_scaled(list, scale, n, out);
        for (int i = 0; i < n; i++) scale[i] = sqrt(fmax(fitted(out, &list[i]), 1e-9));
    }
    mem_free(scale);
}

/* --- measuring -------------------------------------------------------------------------------- */

static int set_all(struct config *c, const struct config *device, int ranks, bool hosts, struct error *e)
{
    char own[3][64];
    const char *const fixed[] = {"data.sequence=16",      "memory.micro_batch=1",     "memory.precision=f32",
                                 "memory.recompute=none", "memory.offload=none",      "memory.head_chunks=1",
                                 "memory.budget=none",    "parallel.shard=optimizer", "train.clip_norm=0",
                                 "device.profile=default"};
    int rc = PL_OK;
    snprintf(own[0], 64, "train.effective_batch=%d", ranks);
    snprintf(own[1], 64, "parallel.per_host=%d", hosts ? 1 : ranks);
    snprintf(own[2], 64, "device.threads=%lld", (long long)device->device_threads);
    for (size_t i = 0; i < COUNT(fixed) && !rc; i++) rc = config_set(c, fixed[i], e);
    for (size_t i = 0; i < COUNT(own) && !rc; i++) rc = config_set(c, own[i], e);
    c->device_kind = device->device_kind;
    c->parallel_crowd = device->parallel_crowd;
    return rc;
}

/* Keeps the least of all samples of a size: in the others a rank waited for one that was late. */
static void add_sample(struct link_samples *s, const struct link_sample *x)
{
    for (uint32_t i = 0; i < s->list.n; i++) {
        struct link_sample *had = &s->list.at[i];
        if (had->peers != x->peers || had->part != x->part) continue;
        had->seconds = fmin(had->seconds, x->seconds);
        return;
    }
    vec_push(&s->list, *x);
}

/* Measures the gathers of weights, which add nothing: the least time of each over all steps. */
static int time_gathers(struct bench *b, const struct profile *p, struct link_samples *out, struct error *e)
{
    const struct graph *g = &b->run.planned.graph;
    double *least = mem_alloc(g->nodes.n * sizeof *least);
    int rc = PL_OK;
    bench_by_node(b);
    for (int i = 0; i < STEPS && !rc; i++) {
        rc = bench_run(b, 1, e);
        for (id n = 1; n < g->nodes.n; n++)
            if (b->now.calls[n] && (!i || b->now.seconds[n] / b->now.calls[n] < least[n]))
                least[n] = b->now.seconds[n] / b->now.calls[n];
    }
    for (id n = 1; n < g->nodes.n && !rc; n++) {
        const struct node *x = node_at(g, n);
        struct query q;
        int times;
        if (!b->now.calls[n] || x->op != OP_ALL_GATHER) continue;
        query_fill(&q, g, x, p);
        q.kernel = b->run.planned.plan.placement.binding[n].kernel;
        const double part = links_part(&q, x->op, &times);
        /* `p` has no links */
        add_sample(out, &(struct link_sample){q.attr->group.ranks - 1, part, least[n], kernel_seconds(&q, x->op)});
    }
    mem_free(least);
    return rc;
}

/* Trains each model on the ranks of `part`, and samples its gathers. */
static int measure(struct ranks *part, const struct config *device, bool hosts, const struct profile *p,
                   struct link_samples *out, struct error *e)
{
    int rc = PL_OK;
    for (size_t i = 0; i < COUNT(models) && !rc; i++) {
        struct config c;
        struct bench b = {0};
        config_init(&c);
        rc = set_all(&c, device, part->n, hosts, e);
        if (!rc) {
            rc = bench_open(&b, &c,
                            &(struct run_options){.train = true, .describe = feed_describe, .config_json = models[i],
                                                  .ranks = part},
                            e);
            if (!rc) rc = time_gathers(&b, p, out, e);
            bench_close(&b);
        }
        config_free(&c);
    }
    return rc;
}

/* Lists this rank's group of an axis: the ranks of its host, or those with its number on every
 * host. Returns their number. */
static int find_members(struct ranks *all, bool hosts, int *members, struct error *e)
{
    struct place {
        char host[RANK_HOST];
        int local_rank;
    } mine = {.local_rank = all->local_rank}, *each = mem_alloc((size_t)all->n * sizeof *each);
    int n = 0;
    memcpy(mine.host, all->host, sizeof mine.host);
    if (all->gather(all, &mine, each, sizeof mine, e)) all->abort(all, PL_FAIL, e->text);
    for (int i = 0; i < all->n; i++)
        if (hosts ? each[i].local_rank == mine.local_rank : !strcmp(each[i].host, mine.host)) members[n++] = i;
    mem_free(each);
    return n;
}

/* --- showing ---------------------------------------------------------------------------------- */

static int by_part(const void *a, const void *b)
{
    const struct link_sample *x = a, *y = b;
    return x->peers != y->peers ? x->peers - y->peers : x->part < y->part ? -1 : x->part > y->part;
}

static void print_link(const struct link *l, bool hosts, struct link_samples *s, struct text *out)
{
    char size[32], measured[32], fit[32], latency[32], peer[32];
    text_printf(out, "  %s: %.3g GB/s%s, %s for an exchange and %s for each peer (%d %s)\n",
                hosts ? "between hosts" : "within a host", 1e-9 * l->bandwidth,
                l->bandwidth > 1e14 ? " (no more than memory)" : "", duration_print(l->latency, latency),
                duration_print(l->peer, peer), l->ranks, hosts ? "hosts" : "ranks");
    qsort(s->list.at, s->list.n, sizeof *s->list.at, by_part);
    text_printf(out, "    %12s %6s %12s %12s\n", "to each peer", "peers", "measured", "predicted");
    for (uint32_t i = 0; i < s->list.n; i++) {
        const struct link_sample *x = &s->list.at[i];
        text_printf(out, "    %12s %6d %12s %12s\n", size_print((uint64_t)x->part, size), x->peers,
                    duration_print(x->seconds, measured), duration_print(fitted(l, x), fit));
    }
}

/* Measures one axis: two ranks of a group, then all. */
static int calibrate_axis(struct ranks *all, const struct config *c, bool hosts, struct profile *p, struct text *out,
                          struct error *e)
{
    struct link_samples s = {0};
    struct profile without = *p;
    int *members = mem_alloc((size_t)all->n * sizeof *members), rc = PL_OK, own = 0;
    const int n = find_members(all, hosts, members, e);
    memset(without.link, 0, sizeof without.link);
    while (members[own] != all->rank) own++;
    for (int size = 2; size <= n && !rc; size = size == 2 && n > 2 ? n : n + 1) {
        if (own < size) {
            struct ranks *part = part_open(all, members, size);
            rc = measure(part, c, hosts, &without, &s, e);
            part_close(part);
        }
        rc = agree_on(all, rc, e);
    }
    if (!rc && !all->rank && s.list.n) {
        struct link *l = &p->link[hosts ? LINK_REMOTE : LINK_LOCAL];
        *l = (struct link){.ranks = n, .name = "measured"};
        links_fit(s.list.at, (int)s.list.n, l);
        print_link(l, hosts, &s, out);
    }
    mem_free(members);
    vec_free(&s.list);
    return rc;
}

int calibrate_links(struct ranks *all, const struct config *c, struct profile *p, struct text *out, struct error *e)
{
    int rc = calibrate_axis(all, c, false, p, out, e);
    return rc ? rc : calibrate_axis(all, c, true, p, out, e);
}
