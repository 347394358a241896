/*
 * cards.c: profiles of cards that are not here (cards.def). A plan for one is made from its
 * published ceilings alone, the same everywhere.
 */
#include <stdio.h>
#include <string.h>

#include "run/device.h"

static const struct card {
    const char *name, *model;
    int sm;
    double gib, f32, half;
    bool bf16;
    double memory, copy;
    const char *source;
} cards[] = {
#define CARD(name, model, sm, gib, f32, half, bf16, memory, copy, source) {name, model, sm, gib, f32, half, bf16, memory, copy, source},
#include "run/cards.def"
#undef CARD
};

static const struct card *find(const char *name)
{
    for (size_t i = 0; i < COUNT(cards); i++)
        if (!strcmp(cards[i].name, name)) return &cards[i];
    return NULL;
}

bool profile_is_card(const char *name) { return !strcmp(name, "h200") || find(name); }

int profile_card(struct profile *p, const char *name, struct error *e)
{
    profile_default(p, DEVICE_CUDA, 0);
    if (!strcmp(name, "h200")) return PL_OK;
    const struct card *c = find(name);
    if (!c) {
        struct text known = {0};
        for (size_t i = 0; i < COUNT(cards); i++) text_printf(&known, "%s, ", cards[i].name);
        int rc = error_set(e, PL_USAGE, "no profile of a card \"%s\"; there are %sh200", name, known.at);
        text_free(&known);
        return rc;
    }
    snprintf(p->name, sizeof p->name, "%s", c->name);
    p->native_bf16 = c->bf16;
    p->flops_f32 = c->f32 * 1e12;
    p->flops_bf16 = c->half * 1e12;
    p->memory_bandwidth = c->memory * 1e9;
    p->copy_bandwidth = c->copy * 1e9;
    p->memory_bytes = (uint64_t)(c->gib * (double)(1u << 30));
    p->published = c->source;
    return PL_OK;
}
