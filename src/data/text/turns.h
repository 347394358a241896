/*
 * turns.h: messages that are stored by column.
 */
#ifndef TURNS_H
#define TURNS_H

#include "io/value.h"

/* {from: [a, b], value: [c, d]}, as older tables of Hugging Face datasets have a list of structs,
 * becomes [{from: a, value: c}, {from: b, value: d}] in `b`. Any other value is returned as it
 * is. */
const struct value *turns_by_row(struct bump *b, const struct value *v);

#endif
