/*
 * stages.c: the stages of planning a run, in order, the search for its plan (see stages.h), and
 * what is said about it.
 */
#include "planning/stages.h"

#include "cuda/cuda.h"
#include "run/ranks.h"

static int open_machine(struct planned *r, const struct run_options *o, struct error *e)
{
    const struct config *c = r->config;
    if (r->ranks && c->device_kind != ON_CPU) cuda_take_gpu(r->ranks->local_rank, r->ranks->local);
    if (planned_open_profile(r, e))
        return config_given(c, KEY_device_profile) ? config_at_key(c, KEY_device_profile, e) : e->code;
    if (o->gpu_memory) r->profile.memory_bytes = o->gpu_memory;
    TRY(planned_check_gpus(r, e));
    TRY(planned_resolve_budget(r, e));
    TRY(offload_budget(c, r->kind, planned_gpu_is_here(r), r->ranks, planned_host_ranks(r), &r->host_budget,
                       &r->host_rule, e));
    return planned_open_links(r, e);
}

/* --- the plan ------------------------------------------------------------------------------ */

/* Searches the run's space, and then for the number of prompts that are answered at once. `base`:
 * the settings of the space, to find what each technique saves; NULL: this is not asked for. */
static int search_space(struct planned *r, const struct settings *base, struct error *e)
{
    const struct config *c = r->config;
    const int rc = plan_search_in(&r->space, &r->plan, &r->graph, e);
    r->has_graph = !rc || (rc == PL_NOFIT && !r->space.f.fitting);
    if (!rc && base) plan_ablation(&r->space, &r->plan, base);
    return rc || !r->answers || c->train_eval_batch
               ? rc
               : planned_search_answers(r, min_i64(c->train_eval_samples, PROMPTS_MOST), e);
}

static int search_plan(struct planned *r, struct settings s, const struct run_options *o, struct error *e)
{
    const struct config *c = r->config;
    struct freedom f = {.effective_batch = planned_share_samples(r), .budget = r->budget, .host_budget = r->host_budget,
                        .whole = o->define || planned_group(r),
                        .multiple = r->batches.indivisible ? planned_share_samples(r) : (int)planned_group(r),
                        .trips = planned_limits(r).trips, .fitting = o->fitting, .unsized = o->unsized};
    if (!o->train) s.micro_batch = planned_share_samples(r);
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        struct text why = {0};
        f.permitted[id] = o->train ? planned_permits(c, id) : 0;
        f.free[id] = (!config_technique(c, id)->chosen && !techniques[id].changes_results &&
                      (o->train || techniques[id].without_training) && !planned_is_excluded(r, id, &s, &why)) ||
                     (f.permitted[id] && techniques[id].class == CLASS_STEP);
        text_free(&why);
    }
    if (planned_check_excluded(r, &s, e)) return e->code;
    if (f.whole && planned_share_samples(r) % s.micro_batch)
        return error_set(e, PL_USAGE, "memory.micro_batch %d does not divide train.effective_batch %d, which a "
                         "user-defined model needs", s.micro_batch, r->effective_batch);
    TRY(plan_space_open(&r->space, &r->source, &s, &f, &r->profile, e));
    r->has_space = true;
    return search_space(r, o->ablation ? &s : NULL, e);
}

void planned_close_space(struct planned *r)
{
    if (r->has_space) plan_space_close(&r->space);
    r->has_space = false;
}

static void drop_plan(struct planned *r)
{
    if (r->has_graph) {
        plan_free(&r->plan);
        graph_free(&r->graph);
    }
    r->has_graph = false;
    memset(&r->plan, 0, sizeof r->plan);
}

void planned_close(struct planned *r)
{
    planned_close_space(r);
    drop_plan(r);
    model_close(&r->model);
    bump_free(&r->memory);
}

int planned_within(struct planned *r, uint64_t budget, struct error *e)
{
    CHECK(r->has_space, "run_options.several");
    drop_plan(r);
    r->budget = r->space.f.budget = budget;
    int rc = plan_search_in(&r->space, &r->plan, &r->graph, e);
    r->has_graph = !rc || (rc == PL_NOFIT && !r->space.f.fitting);
    if (r->has_graph) planned_warn(r);
    return rc;
}

int planned_with_host(struct planned *r, uint64_t host_budget, struct error *e)
{
    CHECK(r->has_space, "run_options.several");
    drop_plan(r);
    r->host_budget = r->space.f.host_budget = host_budget;
    r->space.f.fitting = false;
    const int rc = search_space(r, NULL, e);
    if (r->has_graph) planned_warn(r);
    return rc;
}

static int find_plan(struct planned *r, const struct run_options *o, struct error *e)
{
    const struct settings s = planned_base_settings(r, o);
    TRY(planned_check_precision(r, &s, e));
    TRY(planned_check_needs(&s, e));
    int rc = o->generate ? planned_search_generation(r, s, o->generate, e)
             : o->plan   ? planned_follow_plan(r, s, o->plan, e)
                         : search_plan(r, s, o, e);
    if (r->has_graph) planned_warn(r);
    return rc;
}

/* Checks what only the graph tells. A user-defined model has no config.json: its embedding layer
 * gives the vocabulary size. */
static int check_plan(struct planned *r, const struct run_options *o, struct error *e)
{
    struct planned_input ids;
    int rc = planned_check_hosts(r, e);
    if (rc || !o->define) return rc;
    if (planned_check_ids(r, e)) return e->code;
    if (planned_input(r, "input_ids", &ids)) {
        planned_input_ids(r, &ids);
        r->model.vocabulary = ids.below;
    }
    return PL_OK;
}

/* --- all of them --------------------------------------------------------------------------- */

static void begin(struct planned *r, const struct config *c, const struct run_options *o, int tensor)
{
    *r = (struct planned){.config = c, .tensor = tensor, .defined = o->define, .no_files = o->no_files,
                          .forward = o->forward || o->evaluate};
    r->effective_batch = (int)(o->train ? c->train_effective_batch : o->B);
    r->batch = (struct batch){.T = o->train ? c->data_sequence : o->T, .outputs = !o->train,
                              .loss_output = o->forward ? "" : o->loss_output, .size = o->size};
    if (o->generate) r->batch.cache = o->generate->cache, r->batch.texts = 1;
}

int planned_make_for(struct planned *r, const struct config *c, const struct run_options *o, int tensor,
                     struct error *e)
{
    static stage *const stages[] = {planned_open_shares, planned_open_model, planned_open_batches, planned_open_groups,
                                    planned_check_names, open_machine,       find_plan,            check_plan};
    begin(r, c, o, tensor);
    for (size_t i = 0; i < COUNT(stages); i++) TRY(stages[i](r, o, e));
    return PL_OK;
}

/* --- what is said about a plan -------------------------------------------------------------- */

struct plan_note planned_note(const struct planned *r, bool fits)
{
    const bool host = !fits && planned_exceeds_host(r),
               stated = host || r->config->memory_host_budget.kind == BUDGET_BYTES;
    return (struct plan_note){.fits = fits,
                              .refused_by = fits   ? NULL
                                            : host ? "memory.host_budget"
                                                   : "memory.budget",
                              .budget = r->budget, .host_budget = stated ? r->host_budget : 0,
                              .effective_batch = r->effective_batch, .profile = &r->profile, .adapter = r->adapted,
                              .remedy = r->remedy, .n_remedies = r->n_remedies, .warning = r->warning,
                              .n_warnings = r->n_warnings};
}

bool planned_print_order(const struct planned *r, struct text *out)
{
    char value[SETTING_ROOM];
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        const struct technique *t = &techniques[id];
        if (!t->orders_sums || config_technique(r->config, id)->chosen ||
            (t->models && technique_is_off(id, &r->plan.settings)))
            continue;
        text_printf(out, "%s%s.%s: %s", out->n ? ", " : "", t->section, t->name,
                    technique_print(id, &r->plan.settings, value));
    }
    return out->n;
}

bool planned_print_batch(const struct planned *r, struct text *out)
{
    enum { USUAL_LEAST = 8, USUAL_MOST = 32 };
    const int ranks = (int)max_i64(1, r->plan.settings.ranks), most = USUAL_MOST * ranks;
    if (!r->config->model_path || r->config->data_format < FORMAT_CONVERSATIONS ||
        (r->effective_batch >= USUAL_LEAST && r->effective_batch <= most))
        return false;
    text_printf(out, "train.effective_batch is %d: recipes for fine-tuning have %d to %d samples a step",
                r->effective_batch, USUAL_LEAST, most);
    if (ranks > 1) text_printf(out, " on %d ranks", ranks);
    return true;
}
