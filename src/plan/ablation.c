/*
 * ablation.c: reports the memory that each technique of a plan saves, the time that it costs, and
 * the best plan with 1 GiB more.
 *
 * For each technique in use, the same plan without it is compiled and placed too. The difference of
 * the two arenas is the memory saved; the difference of the two step times is the time added. The
 * savings of several techniques do not add up: each is measured with all others in use.
 */
#include "plan/plan.h"

struct ablation {
    struct plan_space *x;
    struct plan *p;
    struct error *e;
};

/* Compiles and places the plan with other settings; false if they cannot be compiled. */
static bool measure(const struct ablation *a, const struct settings *s, uint64_t arena[SPACE_COUNT], double *seconds)
{
    struct plan p = {.settings = *s};
    if (plan_draft_next(a->x->drafts, s, a->e)) return false;
    int rc = plan_arrange(&p, &a->x->drafts->graph, a->x->profile, &a->x->drafts->kernels, a->e);
    if (!rc) {
        memcpy(arena, p.placement.arena, sizeof p.placement.arena);
        *seconds = p.seconds;
        plan_free(&p);
    }
    return !rc;
}

static void ablate(const struct ablation *a, const char *name, struct settings without)
{
    struct plan *p = a->p;
    uint64_t arena[SPACE_COUNT];
    double seconds;
    if (p->n_ablated == PLAN_ABLATED || !measure(a, &without, arena, &seconds)) return;
    struct ablated *k = &p->ablated[p->n_ablated++];
    snprintf(k->name, sizeof k->name, "%s", name);
    k->saved = (int64_t)(arena[SPACE_DEVICE] - plan_arena(p));
    k->host = (int64_t)(p->placement.arena[SPACE_HOST] - arena[SPACE_HOST]);
    k->seconds = p->seconds - seconds;
}

static void ablate_offload(const struct ablation *a)
{
    const struct settings *s = &a->p->settings;
    for (unsigned bit = 1; bit & OFFLOAD_ALL; bit <<= 1) {
        char text[2 * SETTING_ROOM];
        struct settings without = *s, alone = *s;
        if (!(s->offload & bit)) continue;
        without.offload &= ~bit;
        if (!offload_is_whole(s, without.offload)) without.offload &= ~(unsigned)OFFLOAD_UPDATE;
        alone.offload = bit;
        ablate(a, technique_label(technique_in(CLASS_PLACES), &alone, text), without);
    }
}

/* Ablates one technique at a time: it is set as the configuration has it, or switched off where the
 * search chose it. Offload is ablated by what is offloaded. */
static void ablate_all(const struct ablation *a, const struct settings *base)
{
    const struct settings *s = &a->p->settings;
    char text[2 * SETTING_ROOM];
    struct settings without = *s;
    if (s->accumulation > 1) {
        without.micro_batch = a->x->f.effective_batch;
        without.accumulation = 1;
        snprintf(text, sizeof text, "micro-batch %d x %d", s->micro_batch, s->accumulation);
        ablate(a, text, without);
    }
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        const struct technique *t = &techniques[id];
        without = *s;
        if (t->changes_results) technique_copy(id, &without, base);
        else if (!t->off || !technique_parse(id, t->off, &without)) continue;
        if (!memcmp(&without, s, sizeof without)) continue;
        if (t->class == CLASS_PLACES) ablate_offload(a);
        else ablate(a, technique_label(id, s, text), without);
    }
}

/* Finds the best plan with 1 GiB more. Does nothing if budget + 1 GiB overflows 64 bits. */
static void plan_more(const struct ablation *a)
{
    struct plan *p = a->p;
    const uint64_t more = (uint64_t)1 << 30;
    uint64_t budget[SPACE_COUNT] = {a->x->f.budget + more, a->x->f.host_budget};
    uint32_t choice;
    if (a->x->f.budget > UINT64_MAX - more || plan_choose(a->x, budget, &choice, a->e)) return;
    p->more.budget = budget[SPACE_DEVICE];
    const struct plan_choice *c = &a->x->choices.at[choice];
    p->more.settings = c->settings;
    p->more.seconds = c->exact;
    p->more.arena = c->arena[SPACE_DEVICE];
}

/* Finds the best plan without a host budget, and records it if it is faster by more than a
 * prediction's noise. */
static void plan_unbounded(const struct ablation *a)
{
    struct plan *p = a->p;
    uint32_t choice;
    if (!a->x->f.host_budget || plan_choose(a->x, (uint64_t[SPACE_COUNT]){a->x->f.budget}, &choice, a->e)) return;
    const struct plan_choice *c = &a->x->choices.at[choice];
    if (c->missing || c->exact > p->seconds * 0.99) return;
    p->unbounded.host = plan_choice_need(c, SPACE_HOST);
    p->unbounded.seconds = c->exact;
}

void plan_ablation(struct plan_space *x, struct plan *p, const struct settings *base)
{
    struct error e;
    struct ablation a = {x, p, &e};
    ablate_all(&a, base);
    if (x->f.budget) plan_more(&a);
    plan_unbounded(&a);
}

/* --- printing ------------------------------------------------------------------------------- */

static const char *signed_size(int64_t bytes, char out[40])
{
    char size[32];
    snprintf(out, 40, "%s%s", bytes < 0 ? "-" : "", size_print((uint64_t)(bytes < 0 ? -bytes : bytes), size));
    return out;
}

void plan_print_techniques(const struct plan *p, struct text *out)
{
    char size[40], time[32];
    if (p->n_ablated) text_printf(out, "Techniques: memory saved and time added by each one, with the others in use\n");
    for (int i = 0; i < p->n_ablated; i++) {
        const struct ablated *k = &p->ablated[i];
        text_printf(out, "  %-32s %12s  %11s per step", k->name, signed_size(k->saved, size),
                    duration_change(k->seconds, time));
        if (k->host)
            text_printf(out, ", %s in %s", signed_size(k->host, size),
                        p->settings.device.separate_memory ? "host memory" : "the offload file");
        text_printf(out, "\n");
    }
    if (p->unbounded.host)
        text_printf(out, "  with %s of %s: %s per step (%.1f %% less); memory.host_budget does not allow it\n",
                    signed_size((int64_t)p->unbounded.host, size), plan_host_name(p),
                    duration_print(p->unbounded.seconds, time), 100 * (1 - p->unbounded.seconds / p->seconds));
    if (!p->more.budget) return;
    if (p->more.seconds > 0 && p->more.seconds < p->seconds) {
        text_printf(out, "  with 1 GiB more: %s per step (%.1f %% less), micro-batch %d x %d, ",
                    duration_print(p->more.seconds, time), 100 * (1 - p->more.seconds / p->seconds),
                    p->more.settings.micro_batch, p->more.settings.accumulation);
        settings_print(&p->more.settings, out);
        text_printf(out, "\n");
    } else if (p->more.seconds > 0)
        text_printf(out, "  1 GiB more would not make the step faster\n");
}
