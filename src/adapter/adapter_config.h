/*
 * adapter_config.h: adapter_config.json, PEFT's description of an adapter, in and out.
 *
 * Read: a key that is not done here is accepted as long as it changes nothing (null, false, empty
 * or PEFT's default), and refused by name otherwise. Written: every key that PEFT writes today, in
 * its order and layout, so that PeftModel.from_pretrained opens the folder.
 */
#ifndef ADAPTER_CONFIG_H
#define ADAPTER_CONFIG_H

#include "adapter/adapter.h"

/* Reads a file, or n bytes of text, into *out, which lives in `memory` and is checked
 * (adapter_check). PL_USAGE: the message begins with the path, or for a text with the key. */
int adapter_config_read(const char *path, struct bump *memory, struct adapter *out, struct error *e);
int adapter_config_parse(const char *bytes, size_t n, struct bump *memory, struct adapter *out, struct error *e);

/* Writes the text of the file, without a newline at the end, as PEFT. `base`:
 * base_model_name_or_path; NULL: null. An adapter that was read is written as it was read. For
 * all-linear, target_modules is the list of the n names that it stood for, as PEFT writes it. */
void adapter_config_write(const struct adapter *a, const char *base, const char *const *target_names, uint32_t n,
                          struct text *out);

#endif
