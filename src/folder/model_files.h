/*
 * model_files.h: the files of a model folder, and the tensors in them: the one reader of weights,
 * of weights in 4 bits and of bases that an adapter is merged into.
 *
 *     DIR/model.safetensors.index.json     tensor name -> file; or
 *     DIR/model.safetensors                all tensors; or
 *     DIR/ANY.safetensors                  if it is the only one, or where several are taken
 */
#pragma once

#include "base/spelling.h"
#include "io/safetensors.h"
#include "io/value.h"

#define MODEL_INDEX "model.safetensors.index.json"

/* One tensor of one file, or a part of one (model_files_split). */
struct weight_slot {
    const struct st_entry *entry;
    uint32_t file;        /* into files */
    uint32_t param;       /* into the graph's params, + 1; 0: extra, copied through */
    uint32_t number;      /* of the tensor in a stack (base/spelling.h)... */
    uint32_t next;        /* ...and the slot of the one after it, + 1; 0: it is the last */
    bool listed;          /* false: the index does not list it in this file, so it is not read */
};

struct model_files {
    char dir[1024];
    struct st_file *files;
    const char **names;          /* of the files, within the folder */
    uint32_t n_files;
    const struct value *map;     /* weight_map of the index; NULL: no index */
    struct weight_slot *slots;   /* by file, then in the order of the data */
    uint32_t n_slots;
    uint32_t *by_name;           /* listed slots sorted by name */
    uint32_t n_listed;
    struct bump memory;          /* owns all of the above but the open files */
};

/* Finds the files of `dir`, opens them and lists their tensors. `several`: without an index, all
 * *.safetensors are taken; else there must be one, or model.safetensors. PL_USAGE says what was
 * looked for and found. On failure too it is closed by model_files_close. */
int model_files_open(struct model_files *f, const char *dir, bool several, struct error *e);
/* Does as model_files_open, but for one file of f->dir by its name; `opened`: it is open already,
 * and taken over; else NULL. */
int model_files_open_one(struct model_files *f, const char *name, const struct st_file *opened, struct error *e);
/* Closes the files. A zeroed struct is allowed. */
void model_files_close(struct model_files *f);

/* Replaces the slots of fused tensors by slots of the published ones in them, in the order of the
 * data. PL_USAGE if one has another shape; *any: there are some. */
int model_files_split(struct model_files *f, const struct fused_tensor *list, bool *any, struct error *e);

/* Checks every entry of the index against the open files. */
int model_files_check_index(const struct model_files *f, struct error *e);
/* Returns the listed slot of that name + 1; 0: none. */
uint32_t model_files_find_slot(const struct model_files *f, const char *name);

/* Copies the small other files of the folder `from`, which has the files of f->names; `wanted`
 * NULL: all of them. */
typedef bool file_rule(const char *name);
int model_files_copy_others(const struct model_files *f, const char *from, const char *dir, file_rule *wanted,
                            struct error *e);
/* Adds the bytes of the other files, which model_files_copy_others copies. */
int model_files_count_others(const struct model_files *f, uint64_t *bytes, struct error *e);

/* Prints a shape for messages: "[4096,11008]". */
char *shape_print(int rank, const int64_t *dims, char out[160]);
