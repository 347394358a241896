/*
 * advice.c: see advice.h.
 */
#include "compare/advice.h"

#include <inttypes.h>
#include <math.h>

#include "batch/embed.h"
#include "batch/feed.h"
#include "models/contents.h"

int examined_config(const struct examined *x, struct config *c, bool pinned, struct error *e)
{
    TRY(plan_source_read(x->source, c, e));
    c->memory_budget = (struct config_budget){BUDGET_NONE, 0};
    int rc = pinned ? config_pin(c, &x->run->plan.settings, e) : PL_OK;
    if (rc) config_free(c);
    return rc;
}

/* --- the largest batch ------------------------------------------------------------------------ */

int batch_config(const struct examined *x, struct config *c, int64_t batch, bool pinned, struct error *e)
{
    static const char *const keys[] = {"train.effective_batch", "memory.micro_batch"};
    char set[64];
    int rc = examined_config(x, c, pinned, e);
    for (size_t i = 0; i < COUNT(keys) && !rc; i++) {
        snprintf(set, sizeof set, "%s=%" PRId64, keys[i], batch);
        rc = config_set(c, set, e);
    }
    return rc;
}

uint64_t batch_arena(const struct examined *x, int64_t b, bool search, uint64_t *host)
{
    struct config c;
    struct planned r;
    struct error e;
    if (batch_config(x, &c, b, !search, &e)) return UINT64_MAX;
    if (search) c.memory_budget = (struct config_budget){BUDGET_BYTES, x->budget};
    if (x->host_bound) c.memory_host_budget = (struct config_budget){BUDGET_BYTES, x->host_bound};
    const int rc =
        planned_open(&r, &c, &(struct run_options){.train = true, .describe = feed_describe, .probe = true}, &e);
    uint64_t bytes = rc ? UINT64_MAX : plan_arena(&r.plan);
    *host = rc ? 0 : r.plan.placement.arena[SPACE_HOST];
    planned_close(&r);
    config_free(&c);
    return bytes;
}

int64_t largest_batch(const struct examined *x, bool search)
{
    uint64_t host;
    struct progress p;
    int64_t low = 0, high = 1;
    progress_begin(&p,
                   search ? "largest micro-batch with any techniques"
                          : "largest micro-batch with this plan's techniques",
                   "plans", 0);
    for (; high <= BATCH_MOST && batch_arena(x, high, search, &host) <= x->budget; low = high, high *= 2)
        progress_add(&p, 1);
    for (; low < BATCH_MOST && high - low > 1; progress_add(&p, 1)) {
        int64_t middle = (low + high) / 2;
        if (batch_arena(x, middle, search, &host) <= x->budget) low = middle;
        else high = middle;
    }
    progress_clear();
    return low;
}

/* --- changes ---------------------------------------------------------------------------------- */

static const char CHANGES_RESULTS[] = "changes results slightly";
static const char FROZEN[] = "trains the prompt encoder and the mask decoder only";
static const char TOWER[] = "a store that `data pack --embeddings` makes: the vision tower does not run";
static const char STORED[] = "and stored embeddings (`data pack --embeddings`): the encoder does not run";

/* Compares a plan with the examined one. */
static struct advice compare(const struct examined *x, const struct planned *r, const char *change, const char *note)
{
    const struct plan *was = &x->run->plan, *is = &r->plan;
    struct advice a = {.note = note, .saves = (int64_t)plan_arena(was) - (int64_t)plan_arena(is),
                       .costs = x->scale * (is->seconds - was->seconds),
                       .host = (int64_t)is->placement.arena[SPACE_HOST] - (int64_t)was->placement.arena[SPACE_HOST]};
    snprintf(a.change, sizeof a.change, "%s", change);
    return a;
}

/* Plans the change and lists it when it saves memory. */
static void try_change(const struct examined *x, const char *change, const char *note, struct advices *out)
{
    struct config c;
    struct planned r;
    struct error e;
    progress_add(&out->progress, 1);
    if (out->n == ADVICE_MOST || examined_config(x, &c, true, &e)) return;
    if (!config_set(&c, change, &e)) {
        if (!planned_open(&r, &c, &(struct run_options){.train = true, .describe = feed_describe, .probe = true}, &e)) {
            const struct advice a = compare(x, &r, change, note), *last = out->n ? &out->at[out->n - 1] : NULL;
            const bool same = last && last->saves == a.saves && last->costs == a.costs; /* more chunks than masks */
            if ((a.saves > 0 || (!a.saves && a.host < 0)) && !same) out->at[out->n++] = a;
        }
        planned_close(&r);
    }
    config_free(&c);
}

/* Plans a frozen encoder, or its embeddings from a packed store: what saves most where the encoder
 * need not be trained. The other settings are the fastest, because those of the plan may not apply
 * without the encoder. */
static void plan_encoder(const struct examined *x, const struct config *c, bool stored, const char *change,
                         struct advices *out)
{
    struct planned r = {0};
    struct error e;
    if (!planned_open(
            &r, c, &(struct run_options){.train = true, .describe = feed_describe, .probe = true, .embedded = stored},
            &e)) {
        const char *way = !*x->run->model.encoder ? TOWER : stored ? STORED : FROZEN;
        const struct advice a = compare(x, &r, change, way);
        if (a.saves > 0 && (r.batches.partial || !stored)) out->at[out->n++] = a;
    }
    planned_close(&r);
}

/* Plans a change of the encoder. A vision tower must be frozen already: its store replaces the
 * images. */
static void try_encoder(const struct examined *x, bool stored, struct advices *out)
{
    struct config c;
    struct error e;
    char pattern[64], change[96] = "data.images=FILE.pack";
    progress_add(&out->progress, 1);
    if (out->n == ADVICE_MOST || examined_config(x, &c, false, &e)) return;
    const bool tower = !*x->run->model.encoder;
    int rc = tower ? PL_OK : embed_pattern(&x->run->model, contents_of(&x->run->batch)->prompts.image, pattern, &e);
    if (!rc && !tower) {
        snprintf(change, sizeof change, "model.freeze=%s", pattern);
        rc = config_set(&c, change, &e);
    }
    if (!rc) plan_encoder(x, &c, stored, change, out);
    config_free(&c);
}

/* Returns bytes per second. Changes that cost no time come first, sorted by the bytes that they
 * save. */
static double worth(const struct advice *a) { return a->costs > 0 ? (double)a->saves / a->costs : INFINITY; }

static int by_worth(const void *a, const void *b)
{
    const struct advice *x = a, *y = b;
    if (worth(x) != worth(y)) return worth(x) > worth(y) ? -1 : 1;
    return x->saves > y->saves ? -1 : x->saves < y->saves;
}

/* Finds value i of the technique that is tried; false: there is none. What few models have is tried
 * where the plan has it. */
static bool tried_value(const struct settings *s, enum technique_id id, int i, char out[SETTING_ROOM])
{
    int n = 0;
    if (techniques[id].unsaid && technique_is_off(id, s)) return false;
    while (technique_value(techniques[id].ladder, n, out)) n++;
    return i < n ? technique_value(techniques[id].ladder, i, out) : technique_value(techniques[id].also, i - n, out);
}

/* Plans within the budget and a bound on host memory (0: that of the run) with further keys, and
 * lists the plan if there is one. */
static void try_other(const struct examined *x, const char *what, const char *const *sets, int n, uint64_t host,
                      struct advices *out)
{
    struct config c;
    struct planned r = {0};
    struct error e;
    int rc = examined_config(x, &c, false, &e);
    if (rc) return;
    for (int i = 0; i < n && !rc; i++) rc = config_set(&c, sets[i], &e);
    c.memory_budget = (struct config_budget){BUDGET_BYTES, x->budget};
    if (host) c.memory_host_budget = (struct config_budget){BUDGET_BYTES, host};
    if (!rc &&
        !planned_open(&r, &c,
                      &(struct run_options){.train = true, .describe = feed_describe, .probe = true, .fitting = true},
                      &e)) {
        struct other_plan *p = &out->others[out->n_others++];
        size_t at = 0;
        *p = (struct other_plan){.what = what, .arena = plan_arena(&r.plan),
                                 .host = r.plan.placement.arena[SPACE_HOST], .seconds = x->scale * r.plan.seconds};
        for (int i = 0; i < n; i++)
            at += (size_t)snprintf(p->change + at, sizeof p->change - at, "%s--set %s", i ? " " : "", sets[i]);
    }
    planned_close(&r);
    config_free(&c);
}

/* Plans LoRA, and LoRA over 4-bit weights, where the run trains weights themselves; the least host
 * memory, where the plan offloads to it. */
static void try_others(const struct examined *x, struct advices *out)
{
    struct progress *p = &out->progress;
    const char *const lora[] = {"adapter.target_modules=all-linear", "memory.quantize=nf4"};
    const struct config *c = x->run->config;
    const uint64_t likely = x->host_bound ? offload_likely(x->run->profile.memory_bytes) : 0;
    const uint64_t host = x->run->plan.placement.arena[SPACE_HOST];
    char set[64];
    const char *bound[] = {set};
    struct error e;
    uint32_t least;
    for (int n = 1; n <= 2; n++, progress_add(p, 1))
        if (!x->run->has_adapter && (n == 1 || !strcmp(c->memory_quantize.value, "none")))
            try_other(x,
                      n == 1 ? "adapters are trained instead of the weights (LoRA)"
                             : "adapters over frozen weights in 4 bits (QLoRA)",
                      lora, n, likely, out);
    if (host && x->run->has_space && !plan_least_host(&x->run->space, x->budget, &least, &e)) {
        const uint64_t need = plan_choice_need(&x->run->space.choices.at[least], SPACE_HOST);
        snprintf(set, sizeof set, "memory.host_budget=%" PRIu64, need);
        if (need && need < host)
            try_other(x, x->run->kind == DEVICE_CUDA ? "the least host memory" : "the smallest offload file", bound, 1,
                      need, out);
    }
    progress_add(p, 1);
}

void advise(const struct examined *x, struct advices *out)
{
    const struct settings *s = &x->run->plan.settings;
    const char *pattern = x->run->model.encoder;
    const bool whole = pattern && !x->run->batches.partial;
    const int64_t masks = pattern && *pattern ? contents_of(&x->run->batch)->prompts.masks : 0;
    const bool encoder =
        whole && masks && !config_given(x->run->config, KEY_model_freeze) && !x->run->has_adapter;
    const bool tower = whole && !*pattern;
    uint32_t plans = (uint32_t)(masks > 1) + 2 * encoder + tower + OTHERS_MOST;
    char change[96], value[SETTING_ROOM];
    for (int b = s->micro_batch / 2; b >= 1; b /= 2) plans++;
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        for (int i = 0; tried_value(s, id, i, value); i++) plans++;
    progress_begin(&out->progress, "planning changes:", "plans", plans);
    try_others(x, out);
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        for (int i = 0; tried_value(s, id, i, value); i++) {
            snprintf(change, sizeof change, "%s.%s=%s", techniques[id].section, techniques[id].name, value);
            try_change(x, change, techniques[id].changes_results ? CHANGES_RESULTS : NULL, out);
        }
    for (int b = s->micro_batch / 2; b >= 1; b /= 2) {
        snprintf(change, sizeof change, "memory.micro_batch=%d", b);
        try_change(x, change, NULL, out);
    }
    if (masks > 1) {
        snprintf(change, sizeof change, "data.max_masks=%" PRId64, masks / 2);
        try_change(x, change, "trains on fewer masks per image", out);
    }
    for (int stored = 0; stored < 2 && encoder; stored++) try_encoder(x, stored, out);
    if (tower) try_encoder(x, true, out);
    progress_clear();
    qsort(out->at, out->n, sizeof *out->at, by_worth);
}
