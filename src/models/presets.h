/*
 * presets.h: models that need no folder: each is a name and a config.json.
 */
#ifndef PRESETS_H
#define PRESETS_H

struct preset {
    const char *name, *config;
};
extern const struct preset presets[]; /* terminated by a NULL name */

#endif
