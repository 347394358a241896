/*
 * trial.c: see trial.h.
 */
#include "compare/trial.h"

#include "batch/feed.h"
#include "calibrate/calibrate.h"
#include "cost/links.h"

int plan_source_read(const struct plan_source *s, struct config *c, struct error *e)
{
    int rc = s->read(s->of, c, e);
    if (rc) return rc;
    if ((s->media.images > 1 || s->media.frames) && !config_tokens(c))
        rc = error_set(e, PL_USAGE,
                       "--images and --frames are for language models; with this data.format a sample is one image");
    if (!rc && s->masks) c->data_max_masks = s->masks;
    if (!rc) rc = batch_add_media(c, &s->media, e);
    if (rc) config_free(c);
    return rc;
}

/* --- rows ------------------------------------------------------------------------------------- */

/* Plans again within the host memory that a machine with such a GPU is likely to have, where the
 * plan takes more of it and nothing is known of the machine. If nothing fits that, the plan
 * stays. */
static int prefer_likely_host(struct plan_trial *p, uint64_t likely, struct error *e)
{
    struct planned *r = &p->run;
    if (r->host_budget || !r->has_space || r->plan.placement.arena[SPACE_HOST] <= likely) return PL_OK;
    const int rc = planned_with_host(r, likely, e);
    return rc == PL_NOFIT ? planned_with_host(r, 0, e) : rc;
}

int plan_trial_open(struct plan_trial *p, const struct plan_source *s, const struct plan_change *x, struct error *e)
{
    TRY(plan_source_read(s, &p->config, e));
    struct config *c = &p->config;
    int rc = PL_OK;
    for (size_t i = 0; i < x->n && !rc; i++) rc = config_set(c, x->sets[i], e);
    if (x->ranks) c->parallel_ranks = x->ranks;
    if (x->ranks && c->parallel_per_host > x->ranks) c->parallel_per_host = x->ranks;
    if (!rc) rc = config_check(c, CONFIG_NEEDS_MODEL, e);
    if (!rc) {
        if (!x->budget)
            c->memory_budget = x->gpu ? (struct config_budget){BUDGET_BYTES, planned_gpu_budget(x->gpu)}
                                      : (struct config_budget){BUDGET_NONE, 0};
        if (x->host) c->memory_host_budget = (struct config_budget){BUDGET_BYTES, x->host};
        const struct run_options options = {.train = true, .describe = feed_describe, .probe = true,
                                            .fitting = x->fitting, .unsized = true, .several = !x->ranks,
                                            .gpu_memory = x->gpu};
        p->rc = rc = planned_open(&p->run, c, &options, e);
        if (!rc && x->gpu && !x->plain) rc = prefer_likely_host(p, offload_likely(x->gpu), e);
        if (rc == PL_NOFIT && x->gpu && !x->plain) planned_find_remedies(&p->run, &options);
        if (!rc || (rc == PL_NOFIT && (!x->ranks || p->run.has_graph))) return PL_OK;
        planned_close(&p->run);
    }
    config_free(c);
    return rc;
}

void plan_trial_close(struct plan_trial *p)
{
    planned_close(&p->run);
    config_free(&p->config);
}

void plan_row_fill(struct plan_row *row, const struct plan_trial *p)
{
    const struct planned *r = &p->run;
    row->fits = !p->rc;
    row->budget = r->budget;
    row->arena = p->rc ? r->plan.smallest : plan_arena(&r->plan);
    row->host = r->plan.placement.arena[SPACE_HOST];
    row->host_budget = p->rc && planned_exceeds_host(r) ? r->host_budget : 0;
    row->factor = row->ranks ? 0 : time_factor(r);
    row->seconds = r->plan.seconds * (row->ranks ? 1 : time_scale(r));
    row->effective = r->effective_batch;
    row->least = planned_least_micro_batch(r);
    row->settings = r->plan.settings;
    row->measured = r->profile.measured != NULL;
    row->processor = r->kind != DEVICE_CUDA;
    snprintf(row->profile, sizeof row->profile, "%s", r->profile.name);
    memcpy(row->warning, r->warning, sizeof row->warning);
    row->n_warnings = r->n_warnings;
    memcpy(row->remedy, r->remedy, sizeof row->remedy);
    row->n_remedies = r->n_remedies;
    if (!row->ranks) return;
    struct text links = {0};
    row->per_host = r->profile.per_host ? r->profile.per_host : row->ranks;
    row->sends = plan_communication(&r->plan, &r->graph, &r->profile);
    links_print(&r->profile, &links);
    snprintf(row->links, sizeof row->links, "%s", links.n ? links.at : "");
    text_free(&links);
}

int plan_row_make(const struct plan_source *s, const struct plan_change *x, struct plan_row *row, struct error *e)
{
    struct plan_trial p;
    TRY(plan_trial_open(&p, s, x, e));
    row->ranks = (int)x->ranks;
    plan_row_fill(row, &p);
    plan_trial_close(&p);
    return PL_OK;
}
