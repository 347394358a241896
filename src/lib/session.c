/*
 * session.c: a session's options and its plan (the contract is in plimsoll.h).
 *
 * Invariant: the trainer's plan is that of the current options, or the stage is STAGE_OPTIONS.
 * Every public function checks its pointers: a user's mistake is PL_USAGE.
 */
#include "plimsoll.h"

#include "io/json.h"
#include "lib/session.h"

const char *pl_version(void) { return PL_VERSION; }

/* --- open and close --------------------------------------------------------------- */

static int prepare(struct pl_session *s)
{
    ENTER(s);
    config_init(&s->config);
    s->definition = (struct definition){.family = &defined_family, .config = s};
    return PL_OK;
}

struct pl_session *pl_open(void)
{
    struct pl_session *s = calloc(1, sizeof *s);
    if (!s || !prepare(s)) return s;
    free(s);
    return NULL;
}

static void drop_plan(struct pl_session *s)
{
    trainer_close(s->trainer);
    s->trainer = NULL;
    s->stage = STAGE_OPTIONS;
    session_evict(s);
    vec_free(&s->inputs);
    vec_free(&s->room);
    vec_free(&s->blocks);
    s->n_early = 0;
}

static void free_part(const struct part_folder *p)
{
    mem_free((char *)p->name);
    mem_free((char *)p->path);
}

static int free_all(struct pl_session *s)
{
    ENTER(s);
    drop_plan(s);
    for (uint32_t i = 0; i < s->parts.n; i++) free_part(&s->parts.at[i]);
    vec_free(&s->parts);
    vec_free(&s->counts);
    config_free(&s->config);
    text_free(&s->text);
    mem_free(s->config_json);
    return PL_OK;
}

/* Leaves a session with views to the last of them; frees a broken one only in part. */
void pl_close(struct pl_session *s)
{
    if (!s || s->busy) return;
    s->closing = s->views;
    if (s->closing) return;
    free_all(s);
    free(s);
}

/* --- options ---------------------------------------------------------------------------- */

/* Rejects a change of an option after the start: all options except those that a step reads are
 * part of the plan. */
static int may_change(struct pl_session *s, const char *call, const char *key)
{
    const bool rate = key && !strcmp(key, "train.learning_rate"), clip = key && !strcmp(key, "train.clip_norm");
    if (s->stage < STAGE_STARTED) return PL_OK;
    if (clip && trainer_run(s->trainer)->planned.plan.settings.fused_step)
        return error_set(&s->error, PL_USAGE,
                         "%s %s: the plan's step is fused and has no global gradient norm; set it before pl_plan", call,
                         key);
    for (uint32_t i = 0; i < s->config.train_groups.n && rate; i++)
        if (s->config.train_groups.at[i].given[GROUP_learning_rate])
            return error_set(&s->error, PL_USAGE,
                             "%s %s: train.groups[%u] has its own learning_rate, and the plan contains the ratio of "
                             "the two; give it an lr_scale, or use another session",
                             call, key, i);
    if (rate || clip) return PL_OK;
    return error_set(&s->error, PL_USAGE,
                     "%s%s%s: the session is started, so only train.learning_rate and train.clip_norm can change; use "
                     "another session",
                     call, key ? " " : "", key ? key : "");
}

static void options_changed(struct pl_session *s)
{
    if (s->stage < STAGE_STARTED) drop_plan(s);
}

int pl_set(struct pl_session *s, const char *key, const char *value)
{
    ENTER(s);
    if (!key || !value) return error_set(&s->error, PL_USAGE, "pl_set: the %s is NULL", key ? "value" : "key");
    if (may_change(s, "pl_set", key)) return s->error.code;
    options_changed(s);
    return config_assign(&s->config, key, value, &s->error);
}

int pl_read_yaml(struct pl_session *s, const char *path)
{
    ENTER(s);
    if (!path) return error_set(&s->error, PL_USAGE, "pl_read_yaml: the path is NULL");
    if (may_change(s, "pl_read_yaml", NULL)) return s->error.code;
    options_changed(s);
    return config_read(&s->config, path, &s->error);
}

int pl_read_text(struct pl_session *s, const char *text, const char *name)
{
    ENTER(s);
    if (!text || !name) return error_set(&s->error, PL_USAGE, "pl_read_text: the %s is NULL", text ? "name" : "text");
    if (may_change(s, "pl_read_text", NULL)) return s->error.code;
    options_changed(s);
    return config_read_text(&s->config, text, name, &s->error);
}

int pl_set_memory(struct pl_session *s, const char *size)
{
    ENTER(s);
    if (!size) return error_set(&s->error, PL_USAGE, "pl_set_memory: the size is NULL");
    if (may_change(s, "pl_set_memory", NULL)) return s->error.code;
    options_changed(s);
    return config_assign(&s->config, "memory.budget", size, &s->error);
}

/* --- the model ----------------------------------------------------------------------------- */

static int check_json(struct pl_session *s, const char *text)
{
    struct bump b = {0};
    struct value *v;
    int rc = json_parse(text, strlen(text), &b, &v, &s->error);
    if (!rc) rc = value_as_map(v, "the text", &s->error);
    bump_free(&b);
    return rc ? error_prepend(&s->error, "pl_define: config_json") : PL_OK;
}

int pl_define(struct pl_session *s, pl_build build, void *user, const char *config_json)
{
    ENTER(s);
    if (may_change(s, "pl_define", NULL) || (config_json && check_json(s, config_json))) return s->error.code;
    options_changed(s);
    mem_free(s->config_json);
    s->config_json = mem_string(config_json ? config_json : "{\"model_type\": \"custom\"}\n");
    s->definition.config_json = s->config_json;
    s->build = build;
    s->build_user = user;
    return PL_OK;
}

int pl_part(struct pl_session *s, const char *part, const char *folder)
{
    ENTER(s);
    if (!part || !*part) return error_set(&s->error, PL_USAGE, "pl_part: the part has no name");
    if (may_change(s, "pl_part", NULL)) return s->error.code;
    options_changed(s);
    uint32_t at = 0;
    while (at < s->parts.n && strcmp(s->parts.at[at].name, part)) at++;
    if (at < s->parts.n) {
        free_part(&s->parts.at[at]);
        memmove(&s->parts.at[at], &s->parts.at[at + 1], (--s->parts.n - at) * sizeof *s->parts.at);
    }
    if (folder) vec_push(&s->parts, ((struct part_folder){mem_string(part), mem_string(folder)}));
    s->definition.parts = s->parts.at;
    s->definition.n_parts = (int)s->parts.n;
    return PL_OK;
}

/* --- the plan ------------------------------------------------------------------------------- */

static int check_options(struct pl_session *s)
{
    const struct config *c = &s->config;
    if (s->build && c->model_preset)
        return error_set(&s->error, PL_USAGE, "model.preset %s is set, and pl_define gave a model: remove one of them",
                         c->model_preset);
    if (!s->build && !c->model_path && !c->model_preset)
        return error_set(&s->error, PL_USAGE, "there is no model: set model.path or model.preset, or call pl_define");
    if (!s->build && s->parts.n)
        return error_set(
            &s->error, PL_USAGE,
            "pl_part %s: parts are of a model of your own; call pl_define, or remove the part with a folder of NULL",
            s->parts.at[0].name);
    return config_check(c, s->build ? 0 : CONFIG_NEEDS_MODEL, &s->error);
}

/* Rejects a definition whose loss depends on no trained weight, which is a mistake: training would
 * change nothing. */
static int check_reached(struct pl_session *s, struct error *e)
{
    const struct graph *g = &trainer_run(s->trainer)->planned.graph;
    for (uint32_t i = 0; i < g->params.n; i++)
        if (g->params.at[i].grad) return PL_OK;
    return error_set(e, PL_USAGE,
                     "the loss depends on no parameter that is trained; is model.freeze too wide, or does the loss use "
                     "another input?");
}

int session_plan(struct pl_session *s)
{
    if (s->stage == STAGE_OPTIONS) {
        if (check_options(s)) return s->error.code;
        s->options = (struct train_options){.define = s->build ? &s->definition : NULL};
        if (!s->trainer) s->trainer = trainer_open(&s->config, &s->options);
        struct error e = {0};
        s->busy = true;
        int rc = trainer_plan(s->trainer, &e);
        s->busy = false;
        if (s->build && (!rc || rc == PL_NOFIT) && check_reached(s, &e)) rc = PL_USAGE;
        s->error = e;
        if (rc && rc != PL_NOFIT) {
            drop_plan(s);
            return rc;
        }
        s->fits = !rc;
        s->nofit = e;
        s->stage = STAGE_PLANNED;
    }
    if (!s->fits) s->error = s->nofit;
    return s->error.code;
}

/* The public kinds are the internal ones in the same order, without the first. */
_Static_assert(PL_KINDS == KIND_COUNT - 1, "a kind is missing in the public header");
_Static_assert((int)PL_PARAMETERS == KIND_PARAM - 1 && (int)PL_INPUTS == KIND_INPUT - 1 &&
                   (int)PL_WORKSPACE == KIND_WORKSPACE - 1,
               "the order of kinds in the public header differs");

const char *pl_kind_name(enum pl_kind kind)
{
    return (unsigned)kind < PL_KINDS ? kind_name((enum kind)(kind + 1)) : "none";
}

static void count_parameters(const struct graph *g, struct pl_plan_info *out)
{
    for (uint32_t i = 0; i < g->params.n; i++) {
        const struct param *p = &g->params.at[i];
        if (weight_is_constant(g, p)) continue;
        uint64_t n = (uint64_t)tensor_elements(tensor_at(g, p->tensor));
        out->parameters += n;
        if (p->grad) out->trainable += n;
    }
}

static void describe_plan(struct pl_session *s, struct pl_plan_info *out)
{
    const struct run *r = trainer_run(s->trainer);
    const struct settings *c = &r->planned.plan.settings;
    *out = (struct pl_plan_info){
        .size = sizeof *out,
        .fits = s->fits,
        .arena_bytes = plan_arena(&r->planned.plan),
        .host_bytes = r->planned.plan.placement.arena[SPACE_HOST],
        .lower_bound_bytes = r->planned.plan.peak.bytes,
        .smallest_budget_bytes = r->planned.plan.smallest,
        .effective_batch = r->planned.effective_batch,
        .micro_batch = c->micro_batch,
        .accumulation = c->accumulation,
        .predicted_seconds = r->planned.plan.seconds,
        .techniques = TECHNIQUES,
    };
    _Static_assert((int)TECHNIQUES <= (int)PL_TECHNIQUES, "struct pl_plan_info has room for every technique");
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        out->technique[id] = (struct pl_technique){techniques[id].name, technique_print(id, c, s->technique[id])};
    _Static_assert((int)PL_KINDS <= (int)PL_KINDS_MOST, "struct pl_plan_info has room for every kind");
    for (int k = 0; k < PL_KINDS; k++) out->bytes[k] = r->planned.plan.peak.by_kind[k + 1];
    count_parameters(&r->planned.graph, out);
}

const char *pl_technique_value(const struct pl_plan_info *plan, const char *name)
{
    if (!plan || plan->size < sizeof *plan) return NULL;
    for (int i = 0; name && i < plan->techniques; i++)
        if (!strcmp(plan->technique[i].name, name)) return plan->technique[i].value;
    return NULL;
}

int pl_plan(struct pl_session *s, struct pl_plan_info *out)
{
    ENTER(s);
    struct pl_plan_info plan = {.size = sizeof plan};
    if (out && session_sized(s, "pl_plan", out, sizeof *out)) return s->error.code;
    int rc = session_plan(s);
    if (s->stage >= STAGE_PLANNED) describe_plan(s, &plan);
    if (out) session_give(out, &plan, sizeof plan);
    return rc;
}

/* Returns an empty text for the plan; NULL if there is no plan. A plan that does not fit counts. */
static struct text *plan_text(struct pl_session *s)
{
    session_plan(s);
    if (s->stage < STAGE_PLANNED) return NULL;
    text_free(&s->text);
    return &s->text;
}

const char *pl_plan_json(struct pl_session *s)
{
    ENTER_OR(s, NULL);
    struct text *t = plan_text(s);
    if (!t) return NULL;
    const struct run *r = trainer_run(s->trainer);
    struct plan_note note = planned_note(&r->planned, s->fits);
    plan_write(&r->planned.plan, &r->planned.graph, &note, t);
    return t->at;
}

const char *pl_plan_table(struct pl_session *s)
{
    ENTER_OR(s, NULL);
    struct text *t = plan_text(s);
    if (!t) return NULL;
    const struct run *r = trainer_run(s->trainer);
    plan_print(&r->planned.plan, &r->planned.graph, &r->planned.profile, t);
    return t->at;
}
