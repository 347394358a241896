/*
 * ablation.c: what a plan's techniques saved and cost, and what more memory would buy.
 *
 * For each technique in use the plan without it is compiled and placed as well: the
 * difference of the two arenas is what it saved, that of the two times what it cost. The
 * savings of several techniques do not add up: each is told beside all the others.
 */
#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

struct teller {
    struct plan_space *x;
    struct plan *p;
    struct error *e;
};

/* The plan with other settings; false where they cannot be compiled. */
static bool look_at(const struct teller *t, const struct settings *s, uint64_t arena[SPACE_COUNT], double *seconds)
{
    struct plan p = {.settings = *s};
    if (plan_draft_next(&t->x->drafts, s, t->e)) return false;
    int rc = plan_arrange(&p, &t->x->drafts.graph, t->x->profile, t->e);
    if (!rc) {
        memcpy(arena, p.placement.arena, sizeof p.placement.arena);
        *seconds = p.seconds;
        plan_free(&p);
    }
    return !rc;
}

static void tell(const struct teller *t, const char *name, struct settings without)
{
    struct plan *p = t->p;
    uint64_t arena[SPACE_COUNT];
    double seconds;
    if (p->n_techniques == PLAN_TECHNIQUES || !look_at(t, &without, arena, &seconds)) return;
    struct technique *k = &p->techniques[p->n_techniques++];
    snprintf(k->name, sizeof k->name, "%s", name);
    k->saved = (int64_t)(arena[SPACE_DEVICE] - plan_arena(p));
    k->host = (int64_t)(p->placement.arena[SPACE_HOST] - arena[SPACE_HOST]);
    k->seconds = p->seconds - seconds;
}

static void tell_offload(const struct teller *t)
{
    const struct settings *s = &t->p->settings;
    for (unsigned bit = 1; bit & OFFLOAD_ALL; bit <<= 1) {
        char name[SETTING_ROOM], text[2 * SETTING_ROOM];
        struct settings without = *s;
        if (!(s->offload & bit)) continue;
        without.offload &= ~bit;
        snprintf(text, sizeof text, "offload %s", offload_print(bit, name));
        tell(t, text, without);
    }
}

static void tell_techniques(const struct teller *t, const struct settings *base)
{
    const struct settings *s = &t->p->settings;
    char text[2 * SETTING_ROOM], word[SETTING_ROOM];
    struct settings without = *s;
    if (s->accumulation > 1) {
        without.micro_batch = t->x->f.effective_batch;
        without.accumulation = 1;
        snprintf(text, sizeof text, "micro-batch %d x %d", s->micro_batch, s->accumulation);
        tell(t, text, without);
    }
    without = *s;
    without.recompute = (struct rebuild){.kind = REBUILD_NONE};
    snprintf(text, sizeof text, "recompute %s", rebuild_print(&s->recompute, word));
    if (s->recompute.kind != REBUILD_NONE) tell(t, text, without);
    without = *s;
    without.head_chunks = 1;
    snprintf(text, sizeof text, "head in %d pieces", s->head_chunks);
    if (s->head_chunks > 1) tell(t, text, without);
    tell_offload(t);
    without = *s;
    without.fused_step = false;
    if (s->fused_step) tell(t, "fused step", without);
    without = *s;
    without.state = base->state;
    if (s->state != base->state) tell(t, optimizer_print(s), without);
}

/* The best plan with 1 GiB more. A budget so large that 64 bits do not hold 1 GiB more has none. */
static void tell_more(const struct teller *t)
{
    struct plan *p = t->p;
    const uint64_t more = (uint64_t)1 << 30;
    uint64_t budget[SPACE_COUNT] = {t->x->f.budget + more, t->x->f.host_budget};
    uint32_t choice;
    if (t->x->f.budget > UINT64_MAX - more || plan_choose(t->x, budget, &choice, t->e)) return;
    p->more.budget = budget[SPACE_DEVICE];
    const struct plan_choice *c = &t->x->choices.at[choice];
    p->more.settings = c->settings;
    p->more.seconds = c->exact;
    p->more.arena = c->arena[SPACE_DEVICE];
}

void plan_ablation(struct plan_space *x, struct plan *p, const struct settings *base)
{
    struct error e;
    struct teller t = {x, p, &e};
    tell_techniques(&t, base);
    if (x->f.budget) tell_more(&t);
}

/* --- in words ------------------------------------------------------------------------------- */

static const char *signed_size(int64_t bytes, char out[40])
{
    char size[32];
    snprintf(out, 40, "%s%s", bytes < 0 ? "-" : "", size_print((uint64_t)(bytes < 0 ? -bytes : bytes), size));
    return out;
}

void plan_print_techniques(const struct plan *p, struct text *out)
{
    char size[40], word[SETTING_ROOM];
    if (p->n_techniques) text_printf(out, "Techniques: memory saved and time added, each beside the others\n");
    for (int i = 0; i < p->n_techniques; i++) {
        const struct technique *k = &p->techniques[i];
        text_printf(out, "  %-32s %12s  %+8.3g s a step", k->name, signed_size(k->saved, size), k->seconds);
        if (k->host) text_printf(out, ", %s in host memory", signed_size(k->host, size));
        text_printf(out, "\n");
    }
    if (!p->more.budget) return;
    if (p->more.seconds > 0 && p->more.seconds < p->seconds)
        text_printf(out, "  1 GiB more: %.3g s a step (%.1f %% less) with micro-batch %d x %d, recompute %s, head in %d\n", p->more.seconds,
                    100 * (1 - p->more.seconds / p->seconds), p->more.settings.micro_batch, p->more.settings.accumulation,
                    rebuild_print(&p->more.settings.recompute, word), p->more.settings.head_chunks);
    else if (p->more.seconds > 0)
        text_printf(out, "  1 GiB more would not make it faster\n");
}
