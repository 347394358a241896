/*
 * catalogue.h: published models: names of the Hugging Face Hub with the config.json of their
 * folders. Plans need no more: model.preset takes such a name like that of a preset, with random
 * weights.
 */
#pragma once

#include "base/base.h"

struct published {
    const char *name;       /* as on the Hub, "Qwen/Qwen2.5-7B" */
    const char *endings;    /* of other names with the same config.json: "-Instruct -Chat"; "": none */
    const char *parameters; /* the published number: "7615616512", or rounded: "641M", "8.1B" */
    int64_t stored;         /* elements that this number has beyond the model's weights: buffers, a tied head */
    const char *source;     /* where the number is published */
    const char *config;     /* config.json */
};
extern const struct published catalogue[]; /* terminated by a NULL name */

/* Returns the smallest memory budget of QLoRA on a published model, with one sample of 2048 tokens
 * a step and what does not fit offloaded to the host (smallest.def); 0: it is not known. */
uint64_t catalogue_smallest(const struct published *p);

/* Returns the row of a name, case ignored; NULL: none. `hub` gets the name as the Hub spells it;
 * NULL: it is not needed. */
const struct published *catalogue_find(const char *name, struct text *hub);
/* Returns the config.json of a preset or a published model; NULL: there is none of this name. */
const char *preset_config(const char *name);
/* Returns it as a text of its own, and with `clips` that of the model of SAM 2 for videos in place
 * of the one for images: the published folders are for both. */
char *preset_text(const char *name, bool clips);
/* Returns the name of the catalogue, or its part behind the owner, that is nearest to a mistyped
 * one; NULL: none is near. */
const char *catalogue_nearest(const char *name);
/* Prints the command that downloads a published model, and the folder that it makes: "hf download
 * Qwen/Qwen2.5-7B --local-dir models/Qwen2.5-7B"; `folder` may be NULL. False: it is no published
 * model. */
bool catalogue_download(const char *name, struct text *out, struct text *folder);
/* Reports whether a number of parameters is the published one, to the published digits. */
bool catalogue_agrees(const struct published *p, uint64_t parameters);
