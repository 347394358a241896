/*
 * weights_files.h: the files of a model folder, and the tensors in them.
 */
#ifndef WEIGHTS_FILES_H
#define WEIGHTS_FILES_H

#include "folder/weights.h"

#define WEIGHTS_INDEX "model.safetensors.index.json"

/* Adds a file by its name in the folder, once; *room is the size of the list, 0 at first. */
void weights_add_file(struct weights *w, uint32_t *room, const char *name);
/* Fills w->names; *map is the index's weight_map or NULL. */
int weights_find_files(struct weights *w, const struct value **map, struct error *e);
int weights_open_files(struct weights *w, struct error *e);
/* Checks every entry of the index against the open files. */
int weights_check_index(const struct weights *w, const struct value *map, struct error *e);
/* Lists all tensors of all files, and sorts by name those that the index lists; without one all. */
void weights_list_slots(struct weights *w, const struct value *map);
/* The listed slot of that name + 1; 0: none. */
uint32_t weights_find_slot(const struct weights *w, const char *name);
/* Copies the small other files of the folder `from`, which has the files of w->names; `wanted` NULL: all of them. */
typedef bool file_rule(const char *name);
int weights_copy_others(const struct weights *w, const char *from, const char *dir, file_rule *wanted, struct error *e);
/* Sums the other files, which weights_save copies, in w->other_bytes. */
int weights_count_others(struct weights *w, struct error *e);

#endif
