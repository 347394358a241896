/*
 * adapter_keys.h: the LoRA adapter of a run: the keys of section adapter, or the folder
 * adapter.path.
 */
#ifndef ADAPTER_KEYS_H
#define ADAPTER_KEYS_H

#include "config/config.h"
#include "models/model.h"
#include "adapter/adapter.h"

/* Reports whether the configuration asks for an adapter. */
bool adapter_given(const struct config *c);
/* Fills `out` for a model of that family; what it points to is in `b`. With adapter.path the
 * settings are those of the folder's adapter_config.json, and another key with a value of its own
 * is PL_USAGE; only adapter.lora_dropout may differ. */
int adapter_open(const struct config *c, const struct family *family, struct bump *b, struct adapter *out,
                 struct error *e);

#endif
