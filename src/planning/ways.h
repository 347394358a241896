/*
 * ways.h: the ways in which people fine-tune a model, as keys of a run file.
 */
#pragma once

#include "config/config.h"
#include "models/model.h"

enum { WAY_KEYS = 4 };

struct way {
    const char *name;            /* of JSON: "qlora" */
    const char *label;           /* "QLoRA" */
    const char *keys[WAY_KEYS];  /* key=value, up to a NULL */
};
extern const struct way ways[]; /* terminated by a NULL name; the first one changes nothing */

/* Reports whether a way differs from what a run does already: its vision tower can be frozen, it
 * has no adapter, its weights are not in 4 bits. */
bool way_differs(const struct way *w, const struct config *c, const struct model *m);
/* Appends " --set key=value" for each key of a way that is not the default. */
void way_print(const struct way *w, struct text *out);
