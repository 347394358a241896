/*
 * search.c: the fastest settings that fit.
 *
 * The candidates do not depend on the budget: every split of the effective batch
 * into micro-batches, times each free technique on and off, times pieces of the
 * head in powers of two. Each has exact bytes (it is compiled and placed) and a
 * predicted time; the fastest that fits is taken, the smaller on a tie. So more
 * budget is never slower, the smallest budget is the smallest candidate's arena,
 * and one byte below it nothing fits.
 */
#include <string.h>

#include "plan/plan.h"

struct search {
    const struct source *source;
    const struct profile *profile;
    const struct freedom *f;
    VEC(struct settings) candidates;
    uint64_t smallest;
};

static bool fits(const struct search *s, const struct plan *p)
{
    return (!s->f->budget || plan_arena(p) <= s->f->budget) &&
           (!s->f->host_budget || p->placement.arena[SPACE_HOST] <= s->f->host_budget);
}

static void add_techniques(struct search *s, struct settings c)
{
    const struct freedom *f = s->f;
    int chunks = f->head_chunks ? 32 : c.head_chunks;
    for (int n = f->head_chunks ? 1 : chunks; n <= chunks; n *= 2)
        for (enum rebuild_kind recompute = REBUILD_NONE; recompute <= REBUILD_SELECTIVE; recompute++)
            for (int offload = 0; offload < 2; offload++) {
                if (!f->recompute && recompute != REBUILD_NONE) continue; /* by hand: it is c's, whatever it is */
                if (!f->offload && (offload != 0) != (c.offload != 0)) continue;
                struct settings x = c;
                x.head_chunks = n;
                if (f->recompute) x.recompute = (struct rebuild){.kind = recompute};
                x.offload = offload ? AWAY_STATE : 0;
                vec_push(&s->candidates, x);
            }
}

/* For each number of iterations the smallest micro-batch that covers the batch. */
static void list_candidates(struct search *s, const struct settings *base)
{
    int E = s->f->effective_batch;
    for (int n = 1, last = 0; n <= E; n++) {
        struct settings c = *base;
        c.micro_batch = (E + n - 1) / n;
        c.accumulation = (E + c.micro_batch - 1) / c.micro_batch;
        if (!s->f->micro_batch) {
            c.micro_batch = base->micro_batch;
            c.accumulation = (E + c.micro_batch - 1) / c.micro_batch;
            n = E;
        }
        bool ragged = c.micro_batch * c.accumulation != E;
        bool apart = s->f->multiple && c.micro_batch % s->f->multiple;
        if (c.micro_batch != last && !(ragged && s->f->whole) && !apart) add_techniques(s, c);
        last = c.micro_batch;
    }
}

static int evaluate(const struct search *s, const struct settings *c, struct graph *g, struct plan *p, struct error *e)
{
    memset(p, 0, sizeof *p);
    p->settings = *c;
    int rc = plan_draft(g, s->source, c, e);
    if (rc) return rc;
    rc = plan_arrange(p, g, s->profile, e);
    if (rc) graph_free(g);
    return rc;
}

static bool better(const struct plan *a, const struct plan *b)
{
    if (a->seconds != b->seconds) return a->seconds < b->seconds;
    return plan_arena(a) < plan_arena(b);
}

/* Keeps in (p, g) the best of what is there and the candidate; frees the other. */
static int consider(struct search *s, const struct settings *c, struct plan *p, struct graph *g, bool *have,
                    bool *have_fit, struct error *e)
{
    struct plan q;
    struct graph h;
    int rc = evaluate(s, c, &h, &q, e);
    if (rc) return rc;
    bool fit = fits(s, &q), take;
    if (!s->smallest || plan_arena(&q) < s->smallest) s->smallest = plan_arena(&q);
    if (!*have) take = true;
    else if (fit != *have_fit) take = fit;
    else take = fit ? better(&q, p) : plan_arena(&q) < plan_arena(p);
    if (take) {
        if (*have) plan_free(p), graph_free(g);
        *p = q;
        *g = h;
        *have = true;
        *have_fit = fit;
    } else {
        plan_free(&q);
        graph_free(&h);
    }
    return PL_OK;
}

static int refuse(const struct plan *p, const struct graph *g, const struct freedom *f, struct error *e)
{
    char want[32], have[32];
    const struct node *n = node_at(g, g->order[p->peak.program].nodes.at[p->peak.instant]);
    bool host = f->host_budget && p->placement.arena[SPACE_HOST] > f->host_budget;
    uint64_t need = host ? p->placement.arena[SPACE_HOST] : plan_arena(p);
    return error_set(e, PL_NOFIT,
                     "does not fit: the smallest plan needs %llu bytes (%s) of %s, the budget is %llu (%s); its peak is in program "
                     "%s at %s of %s. Give --memory %llu, a smaller data.sequence, or a smaller model",
                     (unsigned long long)need, size_print(need, want), host ? "the second space" : "memory",
                     (unsigned long long)(host ? f->host_budget : f->budget), size_print(host ? f->host_budget : f->budget, have),
                     program_name(p->peak.program), op_table[n->op].name,
                     n->scope ? graph_name(g, g->scopes.at[n->scope].name) : "the step", (unsigned long long)plan_arena(p));
}

int plan_search(struct plan *p, struct graph *g, const struct source *source, const struct settings *base,
                const struct freedom *f, const struct profile *profile, struct error *e)
{
    struct search s = {.source = source, .profile = profile, .f = f};
    bool have = false, fit = false;
    int rc = PL_OK;
    list_candidates(&s, base);
    for (uint32_t i = 0; i < s.candidates.n && !rc; i++) rc = consider(&s, &s.candidates.at[i], p, g, &have, &fit, e);
    vec_free(&s.candidates);
    if (rc) {
        if (have) plan_free(p), graph_free(g);
        return rc;
    }
    graph_verify(g, "search");
    plan_check(p, g);
    p->smallest = s.smallest;
    return fit ? PL_OK : refuse(p, g, f, e);
}
