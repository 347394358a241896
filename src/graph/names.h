/*
 * names.h: the name table of a graph. Each string is stored once, so two names are equal when their
 * ids are. A hash table finds the string, and with it the parameter or scope of that name.
 */
#pragma once

#include "graph/graph.h"

/* Returns the slot of a name, which is added if it is new. Valid until the next name is added. */
struct name_slot *names_slot(struct graph *g, const char *s);
/* Returns the name of a key that is not 0, as a place to write it: 0 where it is new. Valid until
 * the next call. */
id *names_of_output(struct graph *g, uint64_t key);
/* Makes a table a copy of another one, in the memory that it has. */
void output_index_copy_over(struct output_index *to, const struct output_index *from);
void output_index_free(struct output_index *x);
void name_index_copy_over(struct name_index *to, const struct name_index *from);
void name_index_free(struct name_index *x);
