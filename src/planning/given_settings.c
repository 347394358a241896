/*
 * given_settings.c: the settings of a run as the configuration gives them, before the planner
 * chooses what is left open, and what excludes them; or those of a plan file.
 */
#include "planning/stages.h"

#include "graph/stored.h"
#include "planning/parameter_groups.h"
#include "run/ranks.h"

/* Depends on the configuration and the device, never on the budget. GPUs without bf16 use f16 with
 * loss scaling; CPUs without bf16 use f32. */
static enum precision auto_precision(const struct profile *device)
{
    return device->native_bf16 ? PRECISION_BF16 : device->kind == DEVICE_CUDA ? PRECISION_F16 : PRECISION_F32;
}

struct settings planned_base_settings(struct planned *r, const struct run_options *o)
{
    const struct config *c = r->config;
    struct settings s = {.train = o->train, .forward = r->forward, .sparse_labels = r->batches.sparse_labels,
                         .loader_bytes = r->batches.loader_bytes, .device = device_traits(r->kind)};
    if (r->answers) s.prompt_chunk = (int)r->prompt_chunk, s.prompts = (int)r->prompts;
    const char *pipeline = getenv("PLIMSOLL_PIPELINE");
    r->serial_steps = pipeline && !strcmp(pipeline, "0");
    s.pipelined = o->train && (s.device.separate_memory || (pipeline && !r->serial_steps && r->kind == DEVICE_CPU));
    s.inputs_ahead = s.pipelined && c->data_train.n;
    groups_settings(c, &r->memory, &s);
    s.micro_batch = planned_share_samples(r);
    s.ranks = planned_data_ranks(r);
    s.shares = r->shares / s.ranks;
    if (s.ranks * s.shares == 1) s.ranks = s.shares = 0; /* a plan without them is the plan of one process */
    if (s.ranks > 1) s.per_host = mesh_on_host(planned_mesh(r), planned_world(r), AXIS_DATA, r->profile.per_host);
    const int64_t parts = c->parallel_tensor_shares > 0 ? c->parallel_tensor_shares : r->tensor;
    if (o->train && parts > 1) {
        s.tensor = r->tensor;
        s.tensor_shares = (int)(parts / r->tensor);
    }
    s.motions = r->ranks && r->ranks->motions;
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        const struct config_setting *x = config_technique(c, id);
        const char *value = x->chosen && (o->train || !techniques[id].updates_only) ? x->value : techniques[id].off;
        CHECK(!value || technique_parse(id, value, &s), "%s %s", techniques[id].name, value);
    }
    if (!c->memory_precision.chosen) s.precision = auto_precision(&r->profile);
    if (s.ranks < 2) s.shard = SHARD_NONE; /* there is nobody to divide with */
    if (!s.per_host) s.group = GROUP_ALL;  /* these are the ranks of the host */
    return s;
}

/* The first compute capability with products of 8-bit floats. */
enum { FP8_CAPABILITY = 89, FP8_BLOCKS_CAPABILITY = 90 };

/* Returns PL_USAGE for a policy that the GPU has no products for. `where`: the key, and of a rule
 * its number. */
static int check_fp8_policy(const struct planned *r, const struct policy *p, const char *where, struct error *e)
{
    const char *gpu = r->profile.name;
    const int has = r->profile.capability;
    if (p->x == STORED_E4M3 && has < FP8_CAPABILITY)
        return error_set(e, PL_USAGE, "%s %s: %s has no products of fp8 (compute capability 8.9 has them; use bf16)",
                         where, p->word, gpu);
    if (p->summed == STORED_E4M3_BLOCKS && has != FP8_BLOCKS_CAPABILITY)
        return error_set(e, PL_USAGE, "%s %s: %s has no products of fp8 with a scale for each block of tokens (compute "
                         "capability 9.0 has them; use fp8)", where, p->word, gpu);
    return PL_OK;
}

/* Returns PL_USAGE for fp8 on a GPU without products of 8-bit floats. */
static int check_fp8(const struct planned *r, const struct settings *s, struct error *e)
{
    char where[48];
    if (r->kind != DEVICE_CUDA) return PL_OK;
    if (quantize_has_fp8(s) && r->profile.capability < FP8_CAPABILITY)
        return error_set(e, PL_USAGE,
                         "memory.quantize fp8: %s has no products of fp8 (compute capability 8.9 has them; "
                         "use nf4)",
                         r->profile.name);
    TRY(check_fp8_policy(r, &policies[s->precision], "memory.precision", e));
    for (int i = 0; i < (int)s->n_modules; i++) {
        snprintf(where, sizeof where, "memory.modules[%d].precision", i);
        if (s->modules[i].has_precision) TRY(check_fp8_policy(r, &policies[s->modules[i].precision], where, e));
    }
    return PL_OK;
}

/* Returns PL_USAGE for bf16 on a GPU without bf16 arithmetic, which would emulate it in f32, many
 * times slower than f16. */
int planned_check_precision(const struct planned *r, const struct settings *s, struct error *e)
{
    const char *gpu = r->profile.name;
    TRY(check_fp8(r, s, e));
    if (r->kind != DEVICE_CUDA || r->profile.native_bf16) return PL_OK;
    if (settings_dtype(s) == DT_BF16)
        return error_set(e, PL_USAGE,
                         "memory.precision %s: %s has no bf16 arithmetic (compute capability 8.0 has it); use f16, "
                         "which scales the loss, "
                         "or f32, or auto, which selects f16",
                         settings_precision(s, (char[SETTING_ROOM]){0}), gpu);
    for (int i = 0; i < (int)s->n_modules; i++)
        if (s->modules[i].has_precision && s->modules[i].precision == PRECISION_BF16)
            return error_set(e, PL_USAGE,
                             "memory.modules[%d].precision bf16: %s has no bf16 arithmetic; use f16 or f32", i, gpu);
    return PL_OK;
}

/* Checks that every technique has what it needs of the others. */
int planned_check_needs(const struct settings *s, struct error *e)
{
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char value[SETTING_ROOM], has[SETTING_ROOM], first[SETTING_ROOM];
        enum technique_id other;
        const char *values;
        if (technique_met(id, s, &other, &values)) continue;
        CHECK(technique_value(values, 0, first), "%s", values);
        return error_set(e, PL_USAGE, "%s.%s %s needs %s.%s %s, which is %s here; set it, or %s.%s %s",
                         techniques[id].section, techniques[id].name, technique_print(id, s, value),
                         techniques[other].section, techniques[other].name, first, technique_print(other, s, has),
                         techniques[id].section, techniques[id].name, techniques[id].off);
    }
    return PL_OK;
}

static bool is_listed(const struct config *c, const char *word)
{
    for (uint32_t i = 0; i < c->memory_allow.n; i++)
        if (!strcmp(c->memory_allow.at[i], word)) return true;
    return false;
}

unsigned planned_permits(const struct config *c, enum technique_id id)
{
    const struct technique *t = &techniques[id];
    char value[SETTING_ROOM];
    unsigned values = 0;
    if (!t->permitted || (config_technique(c, id)->chosen && strcmp(config_technique(c, id)->value, t->off))) return 0;
    for (int i = 0; technique_value(t->permitted, i, value); i++)
        if (is_listed(c, value)) values |= 1u << technique_rung(t->ladder, value);
    return values;
}

/* Reports whether memory.allow lets the planner choose a value. */
static bool is_permitted(const struct config *c, enum technique_id id, const char *value)
{
    const int rung = technique_rung(techniques[id].ladder, value);
    return rung >= 0 && planned_permits(c, id) >> rung & 1;
}

int planned_least_micro_batch(const struct planned *r)
{
    const int images = planned_share_samples(r), group = (int)planned_group(r);
    if (r->batches.indivisible) return images;
    int least = r->kind == DEVICE_CUDA ? (images + GPU_TRIPS - 1) / GPU_TRIPS : 1;
    /* ends at the whole batch, which check_groups accepts */
    while (group && (least % group || images % least)) least++;
    return least;
}

struct step_limits planned_limits(const struct planned *r)
{
    return (struct step_limits){planned_share_samples(r), planned_least_micro_batch(r),
                                r->kind == DEVICE_CUDA ? GPU_TRIPS : 0, r->config->train_clip_norm > 0};
}

bool planned_is_excluded(const struct planned *r, enum technique_id id, const struct settings *s, struct text *why)
{
    const struct step_limits limits = planned_limits(r);
    return techniques[id].excluded && techniques[id].excluded(s, &limits, why);
}

/* Checks that nothing excludes the techniques in use. The planner respects the limits itself. */
int planned_check_excluded(const struct planned *r, const struct settings *s, struct error *e)
{
    struct text why = {0};
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char value[SETTING_ROOM];
        if (technique_is_off(id, s) || !planned_is_excluded(r, id, s, &why)) continue;
        error_set(e, PL_USAGE, "%s.%s %s: %s", techniques[id].section, techniques[id].name,
                  technique_print(id, s, value), why.at);
        text_free(&why);
        return e->code;
    }
    return PL_OK;
}

/* Checks that a plan file agrees with the keys that were given: it decides only what the
 * configuration leaves open. */
static int check_plan_keys(const struct planned *r, const struct settings *configured, const struct settings *plan,
                           const char *path, struct error *e)
{
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char has[SETTING_ROOM], planned[SETTING_ROOM];
        const enum config_key key = config_technique_key(id);
        const bool automatic = !config_technique(r->config, id)->chosen || !config_given(r->config, key);
        if (automatic || !strcmp(technique_print(id, configured, has), technique_print(id, plan, planned))) continue;
        if (is_permitted(r->config, id, planned)) continue;
        return error_set(e, PL_USAGE, "%s: made with another %s than the configuration has; leave the key out, or plan "
                         "again", path, config_key_name(key));
    }
    return PL_OK;
}

int planned_follow_plan(struct planned *r, struct settings s, const char *path, struct error *e)
{
    struct plan_file f;
    int rc = plan_read(path, &f, e);
    if (!rc && (f.ranks * f.shares > 1 ? f.ranks != s.ranks || f.shares != s.shares : s.ranks * s.shares > 1))
        rc = error_set(e, PL_USAGE, "%s: made for ranks %d, shares of each %d; this run has %d and %d; plan again",
                       path, f.ranks, f.shares, (int)max_i64(1, s.ranks), (int)max_i64(1, s.shares));
    if (!rc && (f.tensor != mesh_size(s.tensor) || f.tensor_shares != mesh_size(s.tensor_shares)))
        rc = error_set(e, PL_USAGE,
                       "%s: made for parallel.tensor %d with %d parts on each; this run has %d and %d; plan "
                       "again",
                       path, f.tensor, f.tensor_shares, mesh_size(s.tensor), mesh_size(s.tensor_shares));
    if (!rc) rc = check_plan_keys(r, &s, &f.settings, path, e);
    if (rc) return rc;
    if (r->answers && r->config->train_eval_batch && r->config->train_eval_batch != f.settings.prompts)
        return error_set(e, PL_USAGE, "%s: made with another train.eval_batch than the configuration has; leave the "
                         "key out, or plan again", path);
    settings_follow(&s, &f.settings);
    if (r->answers) r->prompts = s.prompts = f.settings.prompts;
    if (planned_check_excluded(r, &s, e)) return e->code;
    if (f.effective_batch != r->effective_batch)
        return error_set(e, PL_USAGE, "%s: made for train.effective_batch %d, the configuration has %d", path,
                         f.effective_batch, r->effective_batch);
    if (s.group == GROUP_HOST && f.per_host != s.per_host)
        return error_set(e, PL_USAGE, "%s: made for hosts of %d ranks, and they have %d here; plan again", path,
                         f.per_host, s.per_host);
    if (strcmp(f.profile, r->profile.name) || f.threads != r->profile.threads)
        return error_set(e, PL_USAGE, "%s: made for device %s with %d threads, this is %s with %d; plan again", path,
                         f.profile, f.threads, r->profile.name, r->profile.threads);
    if ((rc = plan_compile(&r->graph, &r->source, &s, e))) return rc;
    r->has_graph = true;
    r->plan.settings = s;
    if ((rc = plan_place(&r->plan, &r->graph, &r->profile, e))) return rc;
    r->plan.smallest = f.smallest;
    if (plan_digest(&r->plan, &r->graph) != f.digest || plan_arena(&r->plan) != f.arena[SPACE_DEVICE])
        return error_set(e, PL_USAGE, "%s: made for another model, sequence or version (its arena of %llu bytes "
                         "differs from this one of %llu); plan again", path, (unsigned long long)f.arena[SPACE_DEVICE],
                         (unsigned long long)plan_arena(&r->plan));
    /* A run that is resumed keeps its plan while it fits the free memory: auto's reserve is for
     * what changed since. */
    const bool whole = r->config->memory_budget.kind == BUDGET_AUTO && r->kind != DEVICE_CUDA;
    if (r->budget && plan_arena(&r->plan) > r->budget + (whole ? BUDGET_RESERVE : 0))
        return error_set(e, PL_NOFIT, "%s: needs %llu bytes, the budget is %llu; leave out --plan to search again",
                         path, (unsigned long long)plan_arena(&r->plan), (unsigned long long)r->budget);
    if (planned_exceeds_host(r))
        return error_set(e, PL_NOFIT, "%s: needs %llu bytes of %s, memory.host_budget is %llu; leave out --plan to "
                         "search again", path, (unsigned long long)r->plan.placement.arena[SPACE_HOST],
                         plan_host_name(&r->plan), (unsigned long long)r->host_budget);
    return PL_OK;
}
