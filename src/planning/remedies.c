/*
 * remedies.c: plans a run, and suggests changes of its configuration if no plan fits the budget.
 *
 * Each suggestion is planned with the same budget before it is named, so that it is known to fit.
 * The smallest bound on host memory needs no new search: the space that was searched already
 * answers it. Smaller samples are not tried if the weights are too large by themselves. Changes are
 * tried from the least to the most intrusive: fewer images read ahead, memory keys that were set by
 * hand, then precision, no clipping, a frozen encoder of images and stored embeddings, then smaller
 * samples. If nothing but those fits, or only with more host memory than there is likely to be:
 * frozen weights in 4 bits, an adapter, or both; and more ranks, among which the weights are
 * divided. At most REMEDY_MOST are named.
 */
#include "adapter/adapter.h"
#include "planning/stages.h"

/* Plans another configuration within the same budget; the caller closes `probe`. */
static int try_plan(const struct planned *r, const struct run_options *o, struct config *c, struct planned *probe)
{
    struct run_options quiet = *o;
    struct error e = {0};
    quiet.probe = quiet.fitting = quiet.several = true;
    quiet.ablation = false;
    c->memory_budget = (struct config_budget){.kind = BUDGET_BYTES, .bytes = r->budget};
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

/* Reads fewer images ahead, by one thread; no result depends on that. The loader's buffers count
 * only on a CPU: beside a GPU they are host memory. */
static void try_loader(struct planned *r, const struct run_options *o)
{
    struct config c = *r->config;
    if (r->kind == DEVICE_CUDA || r->plan.smallest > r->budget + r->batches.loader_bytes) return;
    c.data_prefetch = 1;
    if (r->config->data_prefetch != 1 && try_change(r, o, &c, "data.prefetch: 1")) return;
    c.data_threads = 1;
    if (r->config->data_threads > 1) try_change(r, o, &c, "data.prefetch: 1 and data.threads: 1");
}

static void try_memory(struct planned *r, const struct run_options *o)
{
    const struct config *was = r->config;
    struct config c;
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char text[96];
        if (techniques[id].changes_results || !config_technique(was, id)->chosen) continue;
        c = *was;
        *config_technique(&c, id) = (struct config_setting){0};
        snprintf(text, sizeof text, "%s.%s: auto", techniques[id].section, techniques[id].name);
        try_change(r, o, &c, text);
    }
    static char *forms[] = {"adamw-bf16", "adamw-8bit"};
    for (uint32_t i = 0; i < COUNT(forms) && !strcmp(was->memory_optimizer.value, "adamw") && !was->memory_allow.n;
         i++) {
        char text[96];
        c = *was;
        c.memory_allow = (struct config_list){&forms[i], 1};
        snprintf(text, sizeof text, "memory.allow: [%s]", forms[i]);
        if (try_change(r, o, &c, text)) break;
    }
    c = *was;
    c.memory_precision = (struct config_setting){true, "bf16"};
    if (!strcmp(was->memory_precision.value, "f32")) try_change(r, o, &c, "memory.precision: bf16");
    c = *was;
    c.train_clip_norm = 0; /* then the step can be fused: gradients are not all held at once */
    if (was->train_clip_norm > 0) try_change(r, o, &c, "train.clip_norm: 0");
}

/* Tries a mask model with a frozen image encoder, then with its embeddings from a packed store, so
 * that the plan has no encoder. */
static void try_encoder(struct planned *r, const struct run_options *o)
{
    static const char *const encoders[] = {"vision_encoder.*", "image_encoder.*"};
    const struct config_list *was = &r->config->model_freeze;
    if (!r->model.masks || adapter_given(r->config) || r->batches.partial) return;
    for (size_t i = 0; i < COUNT(encoders); i++) {
        struct config c = *r->config;
        struct run_options stored = *o;
        char text[96], **all = bump_alloc(&r->memory, (was->n + 1) * sizeof *all);
        for (uint32_t k = 0; k < was->n; k++) all[k] = was->at[k];
        all[was->n] = (char *)encoders[i];
        c.model_freeze = (struct config_list){all, was->n + 1};
        stored.embedded = true;
        snprintf(text, sizeof text, "model.freeze: [%s]", encoders[i]);
        const bool fits = try_change(r, o, &c, text);
        snprintf(text, sizeof text, "model.freeze: [%s] with stored embeddings (data pack --embeddings)", encoders[i]);
        if (try_change(r, &stored, &c, text) || fits) return;
    }
}

/* Tries a model of images and text, whose vision tower is frozen, with embeddings from a packed
 * store, so that the plan has no tower. */
static void try_stored_images(struct planned *r, const struct run_options *o)
{
    struct config c = *r->config;
    struct run_options stored = *o;
    stored.embedded = true;
    if (r->model.images && !r->batches.partial)
        try_change(r, &stored, &c, "data.images: a store of embeddings (data pack --embeddings)");
}

/* Tries samples of half the size, and half again, until the plan fits. */
static void try_data(struct planned *r, const struct run_options *o)
{
    char text[96];
    if (!plan_weights_fit(&r->space, (uint64_t[SPACE_COUNT]){r->budget, r->host_budget})) return;
    const enum config_key key = r->batches.size;
    bool fits = false;
    for (int64_t n = *(const int64_t *)config_member(r->config, key) / 2; n >= r->batches.least && !fits; n /= 2) {
        struct config c = *r->config;
        *(int64_t *)config_member(&c, key) = n;
        snprintf(text, sizeof text, "%s: %lld", config_key_name(key), (long long)n);
        fits = try_change(r, o, &c, text);
    }
}

/* Tries frozen weights in 4 bits where weights are frozen, an adapter where there is none, and
 * both, until one fits. */
static void try_adapter(struct planned *r, const struct run_options *o)
{
    const struct config *was = r->config;
    const bool may_quantize = !strcmp(was->memory_quantize.value, "none");
    struct config quantized = *was, adapted = *was;
    quantized.memory_quantize = (struct config_setting){.chosen = true, .value = "nf4"};
    if (may_quantize && try_change(r, o, &quantized, "memory.quantize: nf4")) return;
    if (adapter_given(was)) return;
    adapted.adapter_target_modules.text = "all-linear";
    if (try_change(r, o, &adapted, "adapter.target_modules: all-linear") || !may_quantize) return;
    adapted.memory_quantize = quantized.memory_quantize;
    try_change(r, o, &adapted, "adapter.target_modules: all-linear and memory.quantize: nf4");
}

/* Tries more ranks, which hold less each: finds the smallest number, doubled from the run's, that
 * fits. */
static void try_ranks(struct planned *r, const struct run_options *o)
{
    enum { RANKS_MOST = 64 };
    const int64_t now = max_i64(1, r->config->parallel_ranks);
    bool fits = r->ranks || r->config->parallel_shares > 0;
    for (int64_t n = 2 * now; n <= RANKS_MOST && n <= r->effective_batch && !fits; n *= 2) {
        struct config c = *r->config;
        char text[96];
        c.parallel_ranks = n;
        snprintf(text, sizeof text, "parallel.ranks: %lld", (long long)n);
        fits = try_change(r, o, &c, text);
    }
}

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
    try_loader(r, o);
    try_memory(r, o);
    try_encoder(r, o);
    try_stored_images(r, o);
    const bool likely = has_likely(r);
    try_data(r, o);
    if (!likely) {
        try_adapter(r, o);
        try_ranks(r, o);
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
