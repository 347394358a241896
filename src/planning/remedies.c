/*
 * remedies.c: plans a run, and suggests changes of its configuration if no plan fits the budget.
 *
 * Each suggestion is planned with the same budget before it is named, so that it is known to fit.
 * The smallest bound on host memory needs no new search: the space that was searched already
 * answers it. The others are rows of a table, tried from the least to the most intrusive. If
 * nothing but smaller samples fits, or only with more host memory than there is likely to be, come
 * those that change what is trained, or need more ranks. At most REMEDY_MOST are named.
 */
#include "adapter/adapter.h"
#include "planning/stages.h"

/* Plans another configuration within the same budget; the caller closes `probe`. */
static int try_plan(const struct planned *r, const struct run_options *o, struct config *c, struct planned *probe)
{
    struct run_options quiet = *o;
    struct error e = {0};
    quiet.probe = quiet.fitting = quiet.several = true;
    quiet.ablation = quiet.unsized = false;
    c->memory_budget = (struct config_budget){.kind = BUDGET_BYTES, .bytes = r->budget};
    if (c->parallel_tensor <= 0) c->parallel_tensor = r->tensor;
    return planned_make(probe, c, &quiet, &e);
}

/* Returns the host memory that the machine around the plan's GPU is likely to have, where it is not
 * known; else no bound. */
static uint64_t likely_host(const struct planned *r)
{
    return r->kind == DEVICE_CUDA && !r->host_budget ? offload_likely(r->profile.memory_bytes) : UINT64_MAX;
}

static void note_remedy(struct planned *r, const char *change, uint64_t smallest, uint64_t host)
{
    struct remedy *a = &r->remedy[r->n_remedies++];
    snprintf(a->change, sizeof a->change, "%s", change);
    a->smallest = smallest;
    a->host = host;
}

/* Replaces a plan that needs more host memory than is likely by a slower one that does not, or by
 * the one that needs the least. */
static void take_less_host(const struct planned *r, struct planned *probe, struct remedy *a)
{
    struct error e;
    uint32_t least;
    probe->space.f.host_budget = likely_host(r);
    if (!planned_within(probe, r->budget, &e)) {
        *a = (struct remedy){.smallest = probe->plan.smallest, .host = probe->plan.placement.arena[SPACE_HOST]};
    } else if (!plan_least_host(&probe->space, r->budget, &least, &e)) {
        const struct plan_choice *c = &probe->space.choices.at[least];
        *a = (struct remedy){.smallest = plan_choice_need(c, SPACE_DEVICE), .host = plan_choice_need(c, SPACE_HOST)};
    }
}

/* Records the change if its configuration fits, with the smallest budget that it needs. */
static bool try_change(struct planned *r, const struct run_options *o, struct config *c, const char *change)
{
    struct planned probe = {0};
    if (r->n_remedies == REMEDY_MOST) return false;
    const bool fits = !try_plan(r, o, c, &probe);
    if (fits) {
        struct remedy a = {.smallest = probe.plan.smallest, .host = probe.plan.placement.arena[SPACE_HOST]};
        if (a.host > likely_host(r)) take_less_host(r, &probe, &a);
        note_remedy(r, change, a.smallest, a.host);
    }
    planned_close(&probe);
    return fits;
}

/* Records the smallest memory.host_budget that fits. True: the bound makes the smallest plan
 * larger. */
static bool try_host_budget(struct planned *r)
{
    char text[96];
    struct error e = {0};
    uint32_t small, least;
    if (!r->host_budget || planned_exceeds_host(r)) return false; /* the error names memory.host_budget already */
    const bool larger = !plan_smallest(&r->space, 0, &small, &e) &&
                        plan_choice_need(&r->space.choices.at[small], SPACE_DEVICE) < r->plan.smallest;
    if (!plan_least_host(&r->space, r->budget, &least, &e)) {
        const struct plan_choice *c = &r->space.choices.at[least];
        snprintf(text, sizeof text, "memory.host_budget: %llu", (unsigned long long)plan_choice_need(c, SPACE_HOST));
        note_remedy(r, text, plan_choice_need(c, SPACE_DEVICE), plan_choice_need(c, SPACE_HOST));
    }
    return larger;
}

/* --- the remedies ----------------------------------------------------------------------------- */

/* A change that is tried: makes it in a copy of the configuration and of the options. */
struct trial {
    const struct planned *r;
    struct config c;
    struct run_options o;
    char text[96];     /* in words; "": this one does not apply to the run */
    struct bump *memory;
};
/* Makes change i of a remedy; false: there are no more. */
typedef bool make_change(struct trial *t, int i);

static void name_change(struct trial *t, const char *key, const char *value)
{
    snprintf(t->text, sizeof t->text, "%s: %s", key, value);
}

/* Reads fewer images ahead, then by one thread; no result depends on that. The loader's buffers
 * count only on a CPU: beside a GPU they are host memory. */
static bool read_less(struct trial *t, int i)
{
    const struct planned *r = t->r;
    if (i > 1 || r->kind == DEVICE_CUDA || r->plan.smallest > r->budget + r->batches.loader_bytes) return false;
    t->c.data_prefetch = 1;
    if (i == 0 && r->config->data_prefetch != 1) name_change(t, "data.prefetch", "1");
    if (i == 0) return true;
    t->c.data_threads = 1;
    if (r->config->data_threads > 1) name_change(t, "data.prefetch: 1 and data.threads", "1");
    return true;
}

/* Leaves a technique that was set by hand to the planner. */
static bool free_technique(struct trial *t, int i)
{
    const enum technique_id id = (enum technique_id)i;
    if (id >= TECHNIQUES) return false;
    if (techniques[id].changes_results || !config_technique(t->r->config, id)->chosen) return true;
    *config_technique(&t->c, id) = (struct config_setting){0};
    snprintf(t->text, sizeof t->text, "%s.%s: auto", techniques[id].section, techniques[id].name);
    return true;
}

static bool allow_smaller_state(struct trial *t, int i)
{
    static char *forms[] = {"adamw-bf16", "adamw-8bit"};
    if (i >= (int)COUNT(forms) || strcmp(t->c.memory_optimizer.value, "adamw") || t->c.memory_allow.n) return false;
    t->c.memory_allow = (struct config_list){&forms[i], 1};
    snprintf(t->text, sizeof t->text, "memory.allow: [%s]", forms[i]);
    return true;
}

static bool halve_precision(struct trial *t, int i)
{
    if (i || strcmp(t->c.memory_precision.value, "f32")) return false;
    t->c.memory_precision = (struct config_setting){true, "bf16"};
    name_change(t, "memory.precision", "bf16");
    return true;
}

/* Does not clip: then the step can be fused, and gradients are not all held at once. */
static bool stop_clipping(struct trial *t, int i)
{
    if (i || !(t->c.train_clip_norm > 0)) return false;
    t->c.train_clip_norm = 0;
    name_change(t, "train.clip_norm", "0");
    return true;
}

/* Freezes the image encoder, then takes its embeddings from a packed store, so that the plan has no
 * encoder. */
static bool freeze_encoder(struct trial *t, int i)
{
    const struct config_list *was = &t->r->config->model_freeze;
    const char *encoder = t->r->model.encoder;
    if (i > 1 || !encoder || !*encoder || adapter_given(&t->c) || t->r->batches.partial) return false;
    char **all = bump_alloc(t->memory, (was->n + 1) * sizeof *all);
    for (uint32_t k = 0; k < was->n; k++) all[k] = was->at[k];
    all[was->n] = (char *)encoder;
    t->c.model_freeze = (struct config_list){all, was->n + 1};
    t->o.embedded = i;
    snprintf(t->text, sizeof t->text, "model.freeze: [%s]%s", encoder,
             i ? " with stored embeddings (data pack --embeddings)" : "");
    return true;
}

/* Takes the embeddings of a model of images and text, whose vision tower is frozen, from a packed
 * store, so that the plan has no tower. */
static bool store_images(struct trial *t, int i)
{
    if (i || !t->r->model.encoder || *t->r->model.encoder || t->r->batches.partial) return false;
    t->o.embedded = true;
    name_change(t, "data.images", "a store of embeddings (data pack --embeddings)");
    return true;
}

/* Takes samples of half the size, and half again. They are not tried if the weights are too large
 * by themselves. */
static bool shrink_samples(struct trial *t, int i)
{
    const struct planned *r = t->r;
    const enum config_key key = r->batches.size;
    const int64_t n = *(const int64_t *)config_member(r->config, key) >> (i + 1);
    if (n < r->batches.least || !plan_weights_fit(&r->space, (uint64_t[SPACE_COUNT]){r->budget, r->host_budget}))
        return false;
    *(int64_t *)config_member(&t->c, key) = n;
    snprintf(t->text, sizeof t->text, "%s: %lld", config_key_name(key), (long long)n);
    return true;
}

/* Freezes weights in 4 bits, trains an adapter where there is none, or does both. */
static bool adapt(struct trial *t, int i)
{
    const bool may_quantize = !strcmp(t->c.memory_quantize.value, "none"), has_adapter = adapter_given(&t->c);
    static const char *const words[] = {"memory.quantize: nf4", "adapter.target_modules: all-linear",
                                        "adapter.target_modules: all-linear and memory.quantize: nf4"};
    if (i >= (int)COUNT(words)) return false;
    if ((i != 1 && !may_quantize) || (i && has_adapter)) return true;
    if (i != 1) t->c.memory_quantize = (struct config_setting){.chosen = true, .value = "nf4"};
    if (i) t->c.adapter_target_modules.text = "all-linear";
    snprintf(t->text, sizeof t->text, "%s", words[i]);
    return true;
}

/* Doubles the ranks, which hold less each. */
static bool add_ranks(struct trial *t, int i)
{
    enum { RANKS_MOST = 64 };
    const int64_t n = max_i64(1, t->c.parallel_ranks) << (i + 1);
    if (t->r->ranks || t->c.parallel_shares > 0 || n > RANKS_MOST || n > t->r->effective_batch) return false;
    t->c.parallel_ranks = n;
    snprintf(t->text, sizeof t->text, "parallel.ranks: %lld", (long long)n);
    return true;
}

/* From the least to the most intrusive. `first`: the first change that fits is enough. */
static const struct {
    make_change *change;
    bool first;
    enum { ALWAYS, SMALLER, LAST } when; /* LAST: only if nothing but SMALLER is likely to fit */
} remedies[] = {
    {read_less, true, ALWAYS},      {free_technique, false, ALWAYS}, {allow_smaller_state, true, ALWAYS},
    {halve_precision, true, ALWAYS}, {stop_clipping, true, ALWAYS},  {freeze_encoder, false, ALWAYS},
    {store_images, true, ALWAYS},   {shrink_samples, true, SMALLER}, {adapt, true, LAST},
    {add_ranks, true, LAST},
};

/* Reports whether a remedy was found that needs no more host memory than is likely. */
static bool has_likely(const struct planned *r)
{
    for (int i = 0; i < r->n_remedies; i++)
        if (r->remedy[i].host <= likely_host(r)) return true;
    return false;
}

/* Fills r->remedy. True: the bound on host memory makes the smallest plan larger. */
static bool find_remedies(struct planned *r, const struct run_options *o)
{
    const bool bounded = try_host_budget(r);
    bool likely = false;
    for (size_t k = 0; k < COUNT(remedies); k++) {
        bool fits = false;
        if (remedies[k].when == SMALLER) likely = has_likely(r);
        for (int i = 0; !(fits && remedies[k].first) && !(remedies[k].when == LAST && likely); i++) {
            struct trial t = {.r = r, .c = *r->config, .o = *o, .memory = &r->memory};
            if (!remedies[k].change(&t, i)) break;
            if (*t.text) fits = try_change(r, &t.o, &t.c, t.text);
        }
    }
    return bounded;
}

void planned_find_remedies(struct planned *r, const struct run_options *o) { find_remedies(r, o); }

void remedies_print(const struct remedy *remedy, int n, const char *host_name, struct text *out)
{
    char size[32], host[32];
    for (int i = 0; i < n; i++) {
        text_printf(out, "%s%s (%s", i ? ", or " : "", remedy[i].change, size_print(remedy[i].smallest, size));
        if (remedy[i].host) text_printf(out, ", %s %s", host_name, size_print(remedy[i].host, host));
        text_printf(out, ")");
    }
}

/* Searches changes of the configuration that would fit, and appends them to the error. */
static void add_remedies(struct planned *r, const struct run_options *o, struct error *e)
{
    char size[32];
    struct text words = {0};
    if (!o->train || o->probe || o->define || !r->budget) return;
    if (r->budget < 1024) { /* nothing fits there: a unit was forgotten */
        text_printf(&words, "; a size without a unit is in bytes: did you mean %lluGiB?",
                    (unsigned long long)r->budget);
    } else {
        const bool bounded = find_remedies(r, o);
        if (bounded && r->host_budget > 1)
            text_printf(&words, " within memory.host_budget %llu (%s)", (unsigned long long)r->host_budget,
                        size_print(r->host_budget, size));
        else if (bounded) text_printf(&words, " without an offload file, for which memory.host_budget leaves no room");
        text_printf(&words, r->n_remedies ? "; or change, each of which fits: " : ", or use a smaller model");
        remedies_print(r->remedy, r->n_remedies, plan_host_name(&r->plan), &words);
    }
    const size_t n = strlen(e->text);
    snprintf(e->text + n, sizeof e->text - n, "%s", words.at);
    text_free(&words);
}

int planned_open(struct planned *r, const struct config *c, const struct run_options *o, struct error *e)
{
    int rc = planned_make(r, c, o, e);
    if (rc == PL_NOFIT && !o->plan && !o->generate) add_remedies(r, o, e);
    if (!o->several) planned_close_space(r);
    return rc;
}
