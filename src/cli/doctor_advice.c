/*
 * doctor_advice.c: changes that save memory, and their cost in time. Every change is planned with
 * all other settings pinned to the examined plan, so the bytes and predicted seconds are exact
 * differences. The changes are sorted by bytes saved per second lost.
 *
 * Beside them are plans that the search finds within the same budget if adapters are trained
 * instead of the weights, or if it takes the least host memory.
 */
#include "cli/doctor.h"

#include <inttypes.h>
#include <math.h>

#include "planning/planned.h"
#include "batch/embed.h"
#include "batch/feed.h"
#include "models/masks.h"

enum { ADVICE_MOST = 32, OTHERS_MOST = 3 };

/* One change to the configuration, planned. */
struct advice {
    char change[96];           /* "memory.recompute=selective": an argument of --set */
    const char *note;          /* a side effect; NULL: none */
    int64_t saves;             /* bytes of the arena */
    int64_t host;              /* offloaded bytes that are added */
    double costs;              /* seconds per step */
};
struct advices {
    struct advice at[ADVICE_MOST];
    uint32_t n;
    struct progress progress;
};

static const char CHANGES_RESULTS[] = "changes results slightly";
static const char FROZEN[] = "trains the prompt encoder and the mask decoder only";
static const char TOWER[] = "a store that `data pack --embeddings` makes: the vision tower does not run";
static const char STORED[] = "and stored embeddings (`data pack --embeddings`): the encoder does not run";

int doctor_config(const struct doctor *d, struct config *c, bool pinned, struct error *e)
{
    int rc = options_config(d->options, c, e);
    if (rc) return rc;
    c->memory_budget = (struct config_budget){BUDGET_NONE, 0};
    if (pinned) rc = config_pin(c, &d->run.plan.settings, e);
    if (rc) config_free(c);
    return rc;
}

/* Compares a plan with the examined one. */
static struct advice compare(const struct doctor *d, const struct planned *r, const char *change, const char *note)
{
    const struct plan *was = &d->run.plan, *is = &r->plan;
    struct advice a = {.note = note, .saves = (int64_t)plan_arena(was) - (int64_t)plan_arena(is),
                       .costs = d->scale * (is->seconds - was->seconds),
                       .host = (int64_t)is->placement.arena[SPACE_HOST] - (int64_t)was->placement.arena[SPACE_HOST]};
    snprintf(a.change, sizeof a.change, "%s", change);
    return a;
}

/* Plans the change and lists it when it saves memory. */
static void try_change(const struct doctor *d, const char *change, const char *note, struct advices *out)
{
    struct config c;
    struct planned r;
    struct error e;
    progress_add(&out->progress, 1);
    if (out->n == ADVICE_MOST || doctor_config(d, &c, true, &e)) return;
    if (!config_set(&c, change, &e)) {
        if (!planned_open(&r, &c, &(struct run_options){.train = true, .describe = feed_describe, .probe = true}, &e)) {
            const struct advice a = compare(d, &r, change, note), *last = out->n ? &out->at[out->n - 1] : NULL;
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
static void plan_encoder(const struct doctor *d, const struct config *c, bool stored, const char *change,
                         struct advices *out)
{
    struct planned r = {0};
    struct error e;
    if (!planned_open(
            &r, c, &(struct run_options){.train = true, .describe = feed_describe, .probe = true, .embedded = stored},
            &e)) {
        const struct advice a = compare(d, &r, change, d->run.model.images ? TOWER : stored ? STORED : FROZEN);
        if (a.saves > 0 && (r.batches.partial || !stored)) out->at[out->n++] = a;
    }
    planned_close(&r);
}

/* Plans a change of the encoder. A vision tower must be frozen already: its store replaces the
 * images. */
static void try_encoder(const struct doctor *d, bool stored, struct advices *out)
{
    struct config c;
    struct error e;
    char pattern[64], change[96] = "data.images=FILE.pack";
    progress_add(&out->progress, 1);
    if (out->n == ADVICE_MOST || doctor_config(d, &c, false, &e)) return;
    int rc =
        d->run.model.images ? PL_OK : embed_pattern(&d->run.model, prompting_of(&d->run.batch)->image, pattern, &e);
    if (!rc && !d->run.model.images) {
        snprintf(change, sizeof change, "model.freeze=%s", pattern);
        rc = config_set(&c, change, &e);
    }
    if (!rc) plan_encoder(d, &c, stored, change, out);
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
static void try_other(struct doctor *d, const char *what, const char *const *sets, int n, uint64_t host)
{
    struct config c;
    struct planned r = {0};
    struct error e;
    struct text change = {0};
    int rc = doctor_config(d, &c, false, &e);
    if (rc) return;
    for (int i = 0; i < n && !rc; i++) rc = config_set(&c, sets[i], &e);
    c.memory_budget = (struct config_budget){BUDGET_BYTES, d->budget};
    if (host) c.memory_host_budget = (struct config_budget){BUDGET_BYTES, host};
    if (!rc &&
        !planned_open(&r, &c,
                      &(struct run_options){.train = true, .describe = feed_describe, .probe = true, .fitting = true},
                      &e)) {
        for (int i = 0; i < n; i++) text_printf(&change, "%s--set %s", i ? " " : "", sets[i]);
        TABLE_ADD(&d->others, CELL((const char *)change.at), CELL(what), CELL(plan_arena(&r.plan)),
                  CELL(r.plan.placement.arena[SPACE_HOST]), CELL(d->scale * r.plan.seconds),
                  CELL((const char *)change.at), CELL(what));
    }
    text_free(&change);
    planned_close(&r);
    config_free(&c);
}

/* Plans LoRA, and LoRA over 4-bit weights, where the run trains weights themselves; the least host
 * memory, where the plan offloads to it. */
static void try_others(struct doctor *d, struct progress *p)
{
    const char *const lora[] = {"adapter.target_modules=all-linear", "memory.quantize=nf4"};
    const struct config *c = d->run.config;
    const uint64_t likely = d->host_bound ? offload_likely(d->run.profile.memory_bytes) : 0;
    const uint64_t host = d->run.plan.placement.arena[SPACE_HOST];
    char set[64];
    const char *bound[] = {set};
    struct error e;
    uint32_t least;
    for (int n = 1; n <= 2; n++, progress_add(p, 1))
        if (!d->run.has_adapter && (n == 1 || !strcmp(c->memory_quantize.value, "none")))
            try_other(d,
                      n == 1 ? "adapters are trained instead of the weights (LoRA)"
                             : "adapters over frozen weights in 4 bits (QLoRA)",
                      lora, n, likely);
    if (host && d->run.has_space && !plan_least_host(&d->run.space, d->budget, &least, &e)) {
        const uint64_t need = plan_choice_need(&d->run.space.choices.at[least], SPACE_HOST);
        snprintf(set, sizeof set, "memory.host_budget=%" PRIu64, need);
        if (need && need < host)
            try_other(d, d->run.kind == DEVICE_CUDA ? "the least host memory" : "the smallest offload file", bound, 1,
                      need);
    }
    progress_add(p, 1);
}

/* Tries every value of every technique. A change that the plan already has, or that does not apply,
 * saves nothing and is left out. */
static void try_all(struct doctor *d, struct advices *out)
{
    const struct settings *s = &d->run.plan.settings;
    const int64_t masks = d->run.model.masks ? prompting_of(&d->run.batch)->masks : 0;
    const bool encoder =
        masks && !config_given(d->run.config, KEY_model_freeze) && !d->run.has_adapter && !d->run.batches.partial;
    const bool tower = d->run.model.images && !d->run.batches.partial;
    uint32_t plans = (uint32_t)(masks > 1) + 2 * encoder + tower + OTHERS_MOST;
    char change[96], value[SETTING_ROOM];
    for (int b = s->micro_batch / 2; b >= 1; b /= 2) plans++;
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        for (int i = 0; tried_value(s, id, i, value); i++) plans++;
    progress_begin(&out->progress, "planning changes:", "plans", plans);
    try_others(d, &out->progress);
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        for (int i = 0; tried_value(s, id, i, value); i++) {
            snprintf(change, sizeof change, "%s.%s=%s", techniques[id].section, techniques[id].name, value);
            try_change(d, change, techniques[id].changes_results ? CHANGES_RESULTS : NULL, out);
        }
    for (int b = s->micro_batch / 2; b >= 1; b /= 2) {
        snprintf(change, sizeof change, "memory.micro_batch=%d", b);
        try_change(d, change, NULL, out);
    }
    if (masks > 1) {
        snprintf(change, sizeof change, "data.max_masks=%" PRId64, masks / 2);
        try_change(d, change, "trains on fewer masks per image", out);
    }
    for (int stored = 0; stored < 2 && encoder; stored++) try_encoder(d, stored, out);
    if (tower) try_encoder(d, true, out);
    progress_clear();
    qsort(out->at, out->n, sizeof *out->at, by_worth);
}

static const struct report_column OTHERS[] = {
    {"change"}, {"what"}, {"arena_bytes", "arena", "bytes"}, {"host_bytes", "offloaded", "bytes"},
    {"predicted_step_seconds", "step", "time"}, {NULL, "change"}, {NULL, ""}};
static const struct report_column ADVICE[] = {
    {"change"}, {"saves_bytes", "saves", "bytes"}, {"host_bytes", "offloads more", "bytes"}, {NULL, "costs", ""},
    {"costs_seconds"}, {"changes_results"}, {NULL, "change"}, {NULL, ""}};

static void list_advice(const struct advices *found, struct report_table *t)
{
    for (const struct advice *a = found->at; a < found->at + found->n; a++) {
        char time[32], set[128];
        snprintf(set, sizeof set, "--set %.95s", a->change);
        TABLE_ADD(t, CELL((const char *)a->change), CELL(a->saves), CELL(a->host),
                  CELL(duration_change(a->costs, time)), CELL(a->costs), CELL((bool)a->note), CELL((const char *)set),
                  CELL(a->note ? a->note : ""));
    }
}

void doctor_advice(struct doctor *d, struct text *out)
{
    struct advices *found = mem_alloc(sizeof *found);
    char size[32], time[32];
    d->others = (struct report_table)REPORT_TABLE(OTHERS);
    d->advice = (struct report_table)REPORT_TABLE(ADVICE);
    try_all(d, found);
    list_advice(found, &d->advice);
    if (d->others.rows.n) {
        text_printf(out, "Other plans within %s (column offloaded: %s)\n", size_print(d->budget, size),
                    plan_host_name(&d->run.plan));
        table_print(&d->others, 2, 0, out);
    }
    text_printf(out,
                "Advice: one change at a time, most bytes saved per second lost first; predicted step time now %s\n",
                duration_print(d->scale * d->run.plan.seconds, time));
    if (found->n) table_print(&d->advice, 2, 0, out);
    else text_printf(out, "  no change saves memory: every technique that applies is in use\n");
    mem_free(found);
}
