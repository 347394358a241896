/*
 * choose.c: which device a run is planned for and runs on, and said in one line why.
 *
 *     device.kind   a card is here             none is
 *     cpu           the CPU                    the CPU
 *     auto          the card                   the CPU, and what is missing is said
 *     cuda          the card                   an h200 is planned for; starting refuses
 *
 * A named device.profile is planned for whatever is here: then a card that is here decides
 * nothing, unless the kind is left open, but whether the memory beside it is known.
 */
#include "train/run.h"

#include <stdio.h>
#include <string.h>

/* Commands plan many times; the card is the same each time. */
static int card_here(struct card *c, struct error *why)
{
    static struct card card;
    static struct error missing;
    static bool asked;
    if (!asked) cuda_card(&card, &missing);
    asked = true;
    *c = card;
    *why = missing;
    return missing.code;
}

/* Once for each process. */
static void say(const char *line)
{
    static bool said;
    if (!said) log_note("%s", line);
    said = true;
}

static void say_card(const char *asked, const struct card *c)
{
    char line[256], memory[32];
    snprintf(line, sizeof line, "device %s: %s, compute capability %d.%d, %s", asked, c->name, c->capability / 10, c->capability % 10,
             size_print(c->memory_bytes, memory));
    say(line);
}

static void say_missing(const char *instead, const struct error *why)
{
    char line[2200];
    const char *remedy = strstr(why->text, "; "); /* for those who asked for a card */
    snprintf(line, sizeof line, "%s: %.*s", instead, remedy ? (int)(remedy - why->text) : (int)strlen(why->text), why->text);
    say(line);
}

void run_choose_device(struct run *r)
{
    const struct config *c = r->config;
    const bool named = c->device_profile && strcmp(c->device_profile, "default");
    const bool is_card = named && profile_is_card(c->device_profile);
    struct card card;
    struct error why = {0};
    r->device.kind = c->device_kind == ON_CUDA ? DEVICE_CUDA : DEVICE_CPU;
    if (c->device_kind == ON_CPU || (named && c->device_kind == ON_CUDA)) return;
    /* A file is of a processor; a card's name alone does not ask for a card. */
    if (named && !is_card) {
        say("device auto: the CPU, because device.profile is a file of one");
    } else if (!card_here(&card, &why)) {
        say_card(c->device_kind == ON_AUTO ? "auto" : "cuda", &card);
        r->device.kind = DEVICE_CUDA;
        if (!named) profile_here(&r->device.profile, &card);
    } else if (c->device_kind == ON_AUTO) {
        say_missing("device auto: the CPU", &why);
    } else {
        say_missing("device cuda: planned for an h200", &why);
    }
}

bool run_card_is_here(const struct run *r)
{
    struct card card;
    struct profile here;
    struct error why = {0};
    if (r->device.kind != DEVICE_CUDA || card_here(&card, &why)) return false;
    profile_here(&here, &card);
    return !strcmp(here.name, r->device.profile.name);
}
