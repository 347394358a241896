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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planning/planned.h"
#include "feed/embed.h"
#include "feed/feed.h"
#include "io/json.h"
#include "models/masks.h"

static const char CHANGES_RESULTS[] = "changes results slightly";
static const char FROZEN[] = "trains the prompt encoder and the mask decoder alone";
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

/* Plans the change and lists it when it saves memory. */
static void try_change(const struct doctor *d, const char *change, const char *note, struct advice *out, uint32_t *n,
                       struct progress *p)
{
    struct config c;
    struct planned r;
    struct error e;
    progress_add(p, 1);
    if (*n == ADVICE_MOST || doctor_config(d, &c, true, &e)) return;
    if (!config_set(&c, change, &e)) {
        if (!planned_open(&r, &c, &(struct run_options){.train = true, .describe = feed_describe, .probe = true}, &e)) {
            struct advice a = {.note = note,
                               .saves = (int64_t)plan_arena(&d->run.plan) - (int64_t)plan_arena(&r.plan),
                               .costs = d->scale * (r.plan.seconds - d->run.plan.seconds),
                               .host = (int64_t)r.plan.placement.arena[SPACE_HOST] -
                                       (int64_t)d->run.plan.placement.arena[SPACE_HOST]};
            snprintf(a.change, sizeof a.change, "%s", change);
            /* e.g. more chunks than masks */
            bool same = *n && out[*n - 1].saves == a.saves && out[*n - 1].costs == a.costs;
            if ((a.saves > 0 || (!a.saves && a.host < 0)) && !same) out[(*n)++] = a;
        }
        planned_close(&r);
    }
    config_free(&c);
}

/* A frozen encoder, and its embeddings from a packed store: what saves most where the encoder need
 * not be trained. The other settings are the fastest, because those of the plan may not apply
 * without the encoder. */
static void plan_encoder(const struct doctor *d, const struct config *c, bool stored, const char *change,
                         struct advice *out, uint32_t *n)
{
    struct planned r = {0};
    struct error e;
    if (!planned_open(
            &r, c, &(struct run_options){.train = true, .describe = feed_describe, .probe = true, .embedded = stored},
            &e)) {
        struct advice a = {.note = d->run.model.images ? TOWER
                                   : stored            ? STORED
                                                       : FROZEN,
                           .saves = (int64_t)plan_arena(&d->run.plan) - (int64_t)plan_arena(&r.plan),
                           .costs = d->scale * (r.plan.seconds - d->run.plan.seconds),
                           .host = (int64_t)r.plan.placement.arena[SPACE_HOST] -
                                   (int64_t)d->run.plan.placement.arena[SPACE_HOST]};
        snprintf(a.change, sizeof a.change, "%s", change);
        if (a.saves > 0 && (r.batches.partial || !stored)) out[(*n)++] = a;
    }
    planned_close(&r);
}

/* A vision tower must be frozen already: its store replaces the images. */
static void try_encoder(const struct doctor *d, bool stored, struct advice *out, uint32_t *n, struct progress *p)
{
    struct config c;
    struct error e;
    char pattern[64], change[96] = "data.images=FILE.pack";
    progress_add(p, 1);
    if (*n == ADVICE_MOST || doctor_config(d, &c, false, &e)) return;
    int rc =
        d->run.model.images ? PL_OK : embed_pattern(&d->run.model, prompting_of(&d->run.batch)->image, pattern, &e);
    if (!rc && !d->run.model.images) {
        snprintf(change, sizeof change, "model.freeze=%s", pattern);
        rc = config_set(&c, change, &e);
    }
    if (!rc) plan_encoder(d, &c, stored, change, out, n);
    config_free(&c);
}

/* Changes that cost no time come first, sorted by the bytes that they save. */
static double worth(const struct advice *a) { return a->costs > 0 ? (double)a->saves / a->costs : INFINITY; }

static int by_worth(const void *a, const void *b)
{
    const struct advice *x = a, *y = b;
    if (worth(x) != worth(y)) return worth(x) > worth(y) ? -1 : 1;
    return x->saves > y->saves ? -1 : x->saves < y->saves;
}

/* Value i of the technique that is tried; false: there is none. What few models have is tried where
 * the plan has it. */
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
    struct other_plan *x = &d->other[d->others];
    int rc = doctor_config(d, &c, false, &e);
    if (rc) return;
    for (int i = 0; i < n && !rc; i++) rc = config_set(&c, sets[i], &e);
    c.memory_budget = (struct config_budget){BUDGET_BYTES, d->budget};
    if (host) c.memory_host_budget = (struct config_budget){BUDGET_BYTES, host};
    if (!rc &&
        !planned_open(&r, &c,
                      &(struct run_options){.train = true, .describe = feed_describe, .probe = true, .fitting = true},
                      &e)) {
        *x = (struct other_plan){.what = what, .arena = plan_arena(&r.plan), .host = r.plan.placement.arena[SPACE_HOST], .seconds = d->scale * r.plan.seconds};
        for (int i = 0, at = 0; i < n; i++)
            at += snprintf(x->change + at, sizeof x->change - (size_t)at, "%s--set %s", i ? " " : "", sets[i]);
        d->others++;
    }
    planned_close(&r);
    config_free(&c);
}

/* LoRA, and LoRA over 4-bit weights, where the run trains weights themselves; the least host
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
uint32_t doctor_advice(struct doctor *d, struct advice out[ADVICE_MOST])
{
    const struct settings *s = &d->run.plan.settings;
    const int64_t masks = d->run.model.masks ? prompting_of(&d->run.batch)->masks : 0;
    const bool encoder =
        masks && !config_given(d->run.config, KEY_model_freeze) && !d->run.has_adapter && !d->run.batches.partial;
    const bool tower = d->run.model.images && !d->run.batches.partial;
    uint32_t n = 0, plans = (uint32_t)(masks > 1) + 2 * encoder + tower + OTHERS_MOST;
    char change[96], value[SETTING_ROOM];
    struct progress p;
    for (int b = s->micro_batch / 2; b >= 1; b /= 2) plans++;
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        for (int i = 0; tried_value(s, id, i, value); i++) plans++;
    progress_begin(&p, "planning changes:", "plans", plans);
    try_others(d, &p);
    for (enum technique_id id = 0; id < TECHNIQUES; id++)
        for (int i = 0; tried_value(s, id, i, value); i++) {
            snprintf(change, sizeof change, "%s.%s=%s", techniques[id].section, techniques[id].name, value);
            try_change(d, change, techniques[id].changes_results ? CHANGES_RESULTS : NULL, out, &n, &p);
        }
    for (int b = s->micro_batch / 2; b >= 1; b /= 2) {
        snprintf(change, sizeof change, "memory.micro_batch=%d", b);
        try_change(d, change, NULL, out, &n, &p);
    }
    if (masks > 1) {
        snprintf(change, sizeof change, "data.max_masks=%" PRId64, masks / 2);
        try_change(d, change, "trains on fewer masks per image", out, &n, &p);
    }
    for (int stored = 0; stored < 2 && encoder; stored++) try_encoder(d, stored, out, &n, &p);
    if (tower) try_encoder(d, true, out, &n, &p);
    progress_clear();
    qsort(out, n, sizeof *out, by_worth);
    return n;
}

void others_print(const struct doctor *d, struct text *out)
{
    char size[32], arena[32], host[32], time[32];
    if (d->others) text_printf(out, "Other plans within %s\n", size_print(d->budget, size));
    for (int i = 0; i < d->others; i++) {
        const struct other_plan *x = &d->other[i];
        text_printf(out, "  %12s and %12s of %s, step %9s  %s  %s\n", size_print(x->arena, arena),
                    size_print(x->host, host), plan_host_name(&d->run.plan), duration_print(x->seconds, time),
                    x->change, x->what);
    }
}

void advice_print(const struct doctor *d, const struct advice *a, uint32_t n, struct text *out)
{
    char size[32], host[32], time[32];
    text_printf(out,
                "Advice: one change at a time, most bytes saved per second lost first; predicted step time now %s\n",
                duration_print(d->scale * d->run.plan.seconds, time));
    if (!n) text_printf(out, "  no change saves memory: every technique that applies is in use\n");
    for (uint32_t i = 0; i < n; i++) {
        text_printf(out, "  %12s less for %11s  --set %s", size_print((uint64_t)a[i].saves, size),
                    duration_change(a[i].costs, time), a[i].change);
        if (a[i].host)
            text_printf(out, "  %s %s of %s", size_print((uint64_t)llabs(a[i].host), host),
                        a[i].host > 0 ? "more" : "less", plan_host_name(&d->run.plan));
        text_printf(out, "%s%s\n", a[i].note ? "  " : "", a[i].note ? a[i].note : "");
    }
}

static void put_others(struct json_writer *w, const struct doctor *d)
{
    json_begin_list(w, "other_plans");
    for (int i = 0; i < d->others; i++) {
        json_begin_map(w, NULL);
        json_put_string(w, "change", d->other[i].change);
        json_put_string(w, "what", d->other[i].what);
        json_put_uint(w, "arena_bytes", d->other[i].arena);
        json_put_uint(w, "host_bytes", d->other[i].host);
        json_put_number(w, "predicted_step_seconds", d->other[i].seconds);
        json_end(w);
    }
    json_end(w);
}

static void put_advice(struct json_writer *w, const struct advice *a, uint32_t n)
{
    json_begin_list(w, "advice");
    for (uint32_t i = 0; i < n; i++) {
        json_begin_map(w, NULL);
        json_put_string(w, "change", a[i].change);
        json_put_int(w, "saves_bytes", a[i].saves);
        json_put_int(w, "host_bytes", a[i].host);
        json_put_number(w, "costs_seconds", a[i].costs);
        json_put_bool(w, "changes_results", a[i].note != NULL);
        json_end(w);
    }
    json_end(w);
}

void doctor_json(const struct doctor *d, const struct doctor_peaks *p, const struct doctor_leaks *l,
                 const struct advice *a, uint32_t n, struct text *out)
{
    struct json_writer w = {.out = out, .indent = 2};
    json_begin_map(&w, NULL);
    json_put_uint(&w, "forward_alone_bytes", p->forward_alone);
    json_put_uint(&w, "forward_bytes", p->forward);
    json_put_uint(&w, "forward_backward_bytes", p->backward);
    json_put_uint(&w, "update_bytes", p->update);
    json_put_uint(&w, "arena_bytes", plan_arena(&d->run.plan));
    json_put_uint(&w, "host_bytes", d->run.plan.placement.arena[SPACE_HOST]);
    json_put_uint(&w, "budget_bytes", d->budget);
    json_put_int(&w, "largest_batch", d->batch);
    json_put_int(&w, "largest_batch_any", d->batch_most);
    json_put_uint(&w, "largest_batch_any_host_bytes", d->most[SPACE_HOST]);
    json_put_bool(&w, "confirmed", d->confirmed);
    json_put_number(&w, "predicted_step_seconds", d->scale * d->run.plan.seconds);
    json_put_number(&w, "factor", d->scale);
    if (d->unconfirmed.code) json_put_string(&w, "not_confirmed", d->unconfirmed.text);
    if (d->unmeasured.code) json_put_string(&w, "leaks_not_measured", d->unmeasured.text);
    if (l) {
        json_begin_map(&w, "leaks");
        json_put_int(&w, "steps", l->steps);
        json_put_int(&w, "host_bytes", l->resident);
        json_put_int(&w, "device_bytes", l->device);
        json_put_int(&w, "allocations", l->allocations);
        json_put_int(&w, "descriptors", l->descriptors);
        json_put_int(&w, "threads", l->threads);
        json_end(&w);
    }
    plan_put_machine(&w, d->run.warning, d->run.n_warnings);
    put_others(&w, d);
    put_advice(&w, a, n);
    json_end(&w);
    text_printf(out, "\n");
}
