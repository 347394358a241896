/*
 * planned_ranks.c: the ranks and shares of a run, there or planned for.
 */
#include "planning/stages.h"

#include "cost/links.h"
#include "run/ranks.h"

int planned_parallel_ranks(const struct planned *r)
{
    return r->ranks ? r->ranks->n : r->config->parallel_ranks > 0 && r->shares > 1 ? (int)r->config->parallel_ranks : 1;
}

int planned_host_ranks(const struct planned *r)
{
    const int n = planned_parallel_ranks(r);
    return r->ranks                           ? (int)max_i64(1, r->ranks->local)
           : r->config->parallel_per_host > 0 ? (int)min_i64(n, r->config->parallel_per_host)
                                              : n;
}

int planned_open_shares(struct planned *r, const struct run_options *o, struct error *e)
{
    const struct config *c = r->config;
    const int64_t ranks = o->ranks ? o->ranks->n : max_i64(1, c->parallel_ranks),
                  shares = c->parallel_shares > 0 ? c->parallel_shares : ranks;
    r->shares = 1;
    if (!o->train) return PL_OK;
    if (o->whole && (ranks > 1 || shares > 1))
        return error_set(
            e, PL_USAGE,
            "parallel.ranks and parallel.shares are for `plimsoll train`, which reads its own data; leave them out");
    if (shares % ranks) {
        error_set(e, PL_USAGE,
                  "parallel.shares is %lld, which is not divisible by the %lld ranks: every rank runs the same number "
                  "of shares",
                  (long long)shares, (long long)ranks);
        return config_at_key(c, KEY_parallel_shares, e);
    }
    r->ranks = o->ranks;
    r->shares = (int)shares;
    if (shares > c->train_effective_batch && !o->probe && (!o->ranks || !o->ranks->rank))
        log_warn("train.effective_batch %lld has fewer samples than the step has shares (%lld): some of them, and "
                 "their ranks, have nothing to do",
                 (long long)c->train_effective_batch, (long long)shares);
    return PL_OK;
}

int planned_open_links(struct planned *r, struct error *e)
{
    const struct config *c = r->config;
    const int n = planned_parallel_ranks(r);
    const int64_t host = c->parallel_per_host > 0 ? c->parallel_per_host : r->ranks ? r->ranks->local : n;
    if (n < 2) return PL_OK;
    if (host > n || n % host) {
        error_set(
            e, PL_USAGE,
            "parallel.per_host is %lld, which does not divide the %d ranks: every host has the same number of them",
            (long long)host, n);
        return config_at_key(c, KEY_parallel_per_host, e);
    }
    return links_set(&r->profile, c->parallel_links, host < n ? (int)host : 0, e)
               ? config_at_key(c, KEY_parallel_links, e)
               : PL_OK;
}

int planned_check_hosts(const struct planned *r, struct error *e)
{
    const struct ranks *x = r->ranks;
    if (!x || r->plan.settings.group != GROUP_HOST || r->config->parallel_per_host > 0 ||
        x->rank % x->local == x->local_rank)
        return PL_OK;
    return error_set(e, PL_USAGE,
                     "parallel.group host: rank %d is number %d of its host, so ranks are not numbered host by host; "
                     "start them with mpirun --map-by slot, or set parallel.group all",
                     x->rank, x->local_rank);
}
