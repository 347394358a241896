/*
 * names.h: the table of a graph's names. Each string is kept once, so two names are equal
 * when their ids are; a hash over the strings finds them, and with a name what it stands
 * for: a parameter, a scope.
 */
#ifndef NAMES_H
#define NAMES_H

#include "graph/graph.h"

/* The slot of a name, which is added when it is new. Valid until the next one is added. */
struct name_slot *names_slot(struct graph *g, const char *s);
void name_index_copy(struct name_index *to, const struct name_index *from);
void name_index_free(struct name_index *x);

#endif
