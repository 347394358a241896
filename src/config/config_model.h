/*
 * config_model.h: the model that a configuration names.
 */
#ifndef CONFIG_MODEL_H
#define CONFIG_MODEL_H

#include "config/config.h"
#include "models/model.h"

/* Returns what section `model` chooses besides the folder or preset. */
struct model_choices config_choices(const struct config *c);
/* Opens model.path or model.preset, with these choices. */
int config_open_model(const struct config *c, struct model *m, struct error *e);
/* Returns PL_USAGE if a key was given that has no effect with this model. */
int config_check_model(const struct config *c, const struct model *m, struct error *e);

#endif
