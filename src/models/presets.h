/*
 * presets.h: models that need no folder: a name and a config.json each.
 */
#ifndef PRESETS_H
#define PRESETS_H

struct preset {
    const char *name, *config;
};
extern const struct preset presets[]; /* ends with a NULL name */

#endif
