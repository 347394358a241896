/*
 * cards.c: profiles of cards that need not be here: measured ones that come with the program
 * (profile_stored.c), and others by their published ceilings alone (cards.def).
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "run/calibration.h"
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

bool profile_is_card(const char *name) { return profile_is_stored(name) || find(name); }

int profile_card(struct profile *p, struct calibration *calibration, const char *name, struct error *e)
{
    if (profile_is_stored(name)) return profile_stored(p, calibration, name, e);
    profile_default(p, DEVICE_CUDA, 0);
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

/* "NVIDIA GeForce RTX 4090" is rtx-4090: without the maker and the line, in small letters. */
void profile_card_name(const char *model, char *out, size_t room)
{
    static const char *const left_out[] = {"NVIDIA ", "GeForce ", "Tesla "};
    size_t n = 0;
    for (size_t i = 0; i < COUNT(left_out); i++)
        if (!strncmp(model, left_out[i], strlen(left_out[i]))) model += strlen(left_out[i]);
    for (; *model && n + 1 < room; model++) {
        bool plain = isalnum((unsigned char)*model);
        if (plain) out[n++] = (char)tolower((unsigned char)*model);
        else if (n && out[n - 1] != '-') out[n++] = '-';
    }
    out[n] = '\0';
}
