/*
 * pin.c: writes a plan's techniques into the keys of a configuration, so that changing one key
 * gives the plan that differs in this technique alone.
 */
#include <stdio.h>

#include "train/run.h"

int run_pin(struct config *c, const struct settings *s, struct error *e)
{
    char value[SETTING_ROOM];
    snprintf(value, sizeof value, "%d", s->micro_batch);
    int rc = config_assign(c, "memory.micro_batch", value, e);
    snprintf(value, sizeof value, "%d", s->head_chunks);
    if (!rc) rc = config_assign(c, "memory.head_chunks", value, e);
    if (!rc) rc = config_assign(c, "memory.precision", precision_print(s), e);
    if (!rc) rc = config_assign(c, "memory.optimizer", optimizer_print(s), e);
    if (!rc) rc = config_assign(c, "memory.recompute", recompute_print(&s->recompute, value), e);
    if (!rc) rc = config_assign(c, "memory.fused_step", s->fused_step ? "on" : "off", e);
    if (!rc) rc = config_assign(c, "memory.offload", offload_print(s->offload, value), e);
    return rc;
}
