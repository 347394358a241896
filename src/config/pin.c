/*
 * pin.c: writes a plan's techniques into the keys of a configuration, so that changing one key
 * gives the plan that differs only in this technique.
 */
#include <stdio.h>

#include "config/config.h"

int config_pin(struct config *c, const struct settings *s, struct error *e)
{
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char key[80], value[SETTING_ROOM];
        snprintf(key, sizeof key, "%s.%s", techniques[id].section, techniques[id].name);
        TRY(config_assign(c, key, technique_print(id, s, value), e));
    }
    return PL_OK;
}
