/*
 * ablation.c: reports the memory that each technique of a plan saves, the time that it costs, and
 * the best plan with 1 GiB more.
 *
 * For each technique in use, the same plan without it is compiled and placed too. The difference of
 * the two arenas is the memory saved; the difference of the two step times is the time added. The
 * savings of several techniques do not add up: each is measured with all others in use.
 */
#include <stdio.h>
#include <string.h>

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
    if (plan_draft_next(&a->x->drafts, s, a->e)) return false;
    int rc = plan_arrange(&p, &a->x->drafts.graph, a->x->profile, a->e);
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
    if (p->n_techniques == PLAN_TECHNIQUES || !measure(a, &without, arena, &seconds)) return;
    struct technique *k = &p->techniques[p->n_techniques++];
    snprintf(k->name, sizeof k->name, "%s", name);
    k->saved = (int64_t)(arena[SPACE_DEVICE] - plan_arena(p));
    k->host = (int64_t)(p->placement.arena[SPACE_HOST] - arena[SPACE_HOST]);
    k->seconds = p->seconds - seconds;
}

static void ablate_offload(const struct ablation *a)
{
    const struct settings *s = &a->p->settings;
    for (unsigned bit = 1; bit & OFFLOAD_ALL; bit <<= 1) {
        char name[SETTING_ROOM], text[2 * SETTING_ROOM];
        struct settings without = *s;
        if (!(s->offload & bit)) continue;
        without.offload &= ~bit;
        snprintf(text, sizeof text, "offload %s", offload_print(bit, name));
        ablate(a, text, without);
    }
}

static void ablate_all(const struct ablation *a, const struct settings *base)
{
    const struct settings *s = &a->p->settings;
    char text[2 * SETTING_ROOM], word[SETTING_ROOM];
    struct settings without = *s;
    if (s->accumulation > 1) {
        without.micro_batch = a->x->f.effective_batch;
        without.accumulation = 1;
        snprintf(text, sizeof text, "micro-batch %d x %d", s->micro_batch, s->accumulation);
        ablate(a, text, without);
    }
    without = *s;
    without.recompute = (struct recompute){.kind = RECOMPUTE_NONE};
    snprintf(text, sizeof text, "recompute %s", recompute_print(&s->recompute, word));
    if (s->recompute.kind != RECOMPUTE_NONE) ablate(a, text, without);
    without = *s;
    without.head_chunks = 1;
    snprintf(text, sizeof text, "head in %d chunks", s->head_chunks);
    if (s->head_chunks > 1) ablate(a, text, without);
    ablate_offload(a);
    without = *s;
    without.fused_step = false;
    if (s->fused_step) ablate(a, "fused step", without);
    without = *s;
    without.state = base->state;
    if (s->state != base->state) ablate(a, optimizer_print(s), without);
}

/* The best plan with 1 GiB more. Does nothing if budget + 1 GiB overflows 64 bits. */
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

/* The best plan without a host budget, if it is faster by more than a prediction's noise. */
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
    char size[40], time[32], word[SETTING_ROOM];
    if (p->n_techniques) text_printf(out, "Techniques: memory saved and time added by each one, with the others in use\n");
    for (int i = 0; i < p->n_techniques; i++) {
        const struct technique *k = &p->techniques[i];
        text_printf(out, "  %-32s %12s  %11s per step", k->name, signed_size(k->saved, size), duration_change(k->seconds, time));
        if (k->host) text_printf(out, ", %s in %s", signed_size(k->host, size), p->settings.host_staging ? "host memory" : "the offload file");
        text_printf(out, "\n");
    }
    if (p->unbounded.host)
        text_printf(out, "  with %s of %s: %.3g s per step (%.1f %% less); memory.host_budget does not allow it\n", signed_size((int64_t)p->unbounded.host, size),
                    plan_host_name(p), p->unbounded.seconds, 100 * (1 - p->unbounded.seconds / p->seconds));
    if (!p->more.budget) return;
    if (p->more.seconds > 0 && p->more.seconds < p->seconds)
        text_printf(out, "  with 1 GiB more: %s per step (%.1f %% less), micro-batch %d x %d, recompute %s, head in %d chunk%s\n", duration_print(p->more.seconds, time),
                    100 * (1 - p->more.seconds / p->seconds), p->more.settings.micro_batch, p->more.settings.accumulation,
                    recompute_print(&p->more.settings.recompute, word), p->more.settings.head_chunks,
                    p->more.settings.head_chunks == 1 ? "" : "s");
    else if (p->more.seconds > 0)
        text_printf(out, "  1 GiB more would not make the step faster\n");
}
