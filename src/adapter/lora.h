/*
 * lora.h: LoRA adapters in a model's forward (lora.c).
 */
#ifndef LORA_H
#define LORA_H

#include "graph/graph.h"
#include "adapter/adapter.h"

/* Adds the adapters to the forward of the current program, built for B samples, and freezes every
 * other parameter except those that the adapter trains as a whole. */
void pass_lora(struct graph *g, const struct adapter *a, int64_t B);

/* Returns PL_USAGE if a name of the adapter matches no module of the forward, built without
 * adapters, or a module that LoRA does not adapt; the message names the module, or the nearest
 * one. */
int lora_check(const struct graph *g, const struct adapter *a, struct error *e);

/* Lists the names of the modules that have an adapter, in the order of the forward, in `b`; returns
 * their number. */
uint32_t lora_modules(const struct graph *g, struct bump *b, const char *const **names);
/* Prints "LoRA on 64 modules (q_proj 32, v_proj 32); 4,194,304 of 6,742,609,920 weights are trained
 * (0.0622 %)" for a forward with adapters. */
void lora_print(const struct graph *g, struct text *out);

#endif
