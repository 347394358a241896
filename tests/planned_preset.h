/*
 * planned_preset.h: a preset's plan with further settings, for tests that look at its graph and at
 * the lives of its tensors.
 */
#pragma once

#include "engine/run.h"
#include "batch/feed.h"
#include "harness.h"

struct planned_preset {
    struct config c;
    struct run r;
};

static inline void plan_preset(struct planned_preset *p, const char *preset, const char *const *sets)
{
    static const char *const base[] = {"train.effective_batch=8", "device.threads=2"};
    const bool tokens = strstr(preset, "llama");
    struct error e = {0};
    char text[100];
    config_init(&p->c);
    snprintf(text, sizeof text, "model.preset=%s", preset);
    must(config_set(&p->c, text, &e), &e);
    if (!tokens) must(config_set(&p->c, "data.format=sa1b", &e), &e);
    must(config_set(&p->c, tokens ? "data.sequence=64" : "data.max_masks=4", &e), &e);
    for (size_t i = 0; i < COUNT(base); i++) must(config_set(&p->c, base[i], &e), &e);
    for (; *sets; sets++) must(config_set(&p->c, *sets, &e), &e);
    must(config_check(&p->c, CONFIG_NEEDS_MODEL, &e), &e);
    memset(&p->r, 0, sizeof p->r);
    must(run_plan(&p->r, &p->c, &(struct run_options){.train = true, .describe = feed_describe}, &e), &e);
}

static inline void planned_preset_free(struct planned_preset *p)
{
    run_close(&p->r);
    config_free(&p->c);
}

/* The turn from forward to backward in program step: the position after the last node of the
 * forward. */
static inline uint32_t turn_of(const struct graph *g)
{
    const struct order *o = &g->order[PROGRAM_STEP];
    uint32_t k = o->nodes.n;
    while (k > 0 && node_at(g, o->nodes.at[k - 1])->phase != PHASE_FORWARD) k--;
    assert_true(k > 0 && k < o->nodes.n);
    return k;
}
