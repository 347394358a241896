/*
 * weights.h: model folders: which file holds which parameter, how they are read into the arenas and
 * written back unchanged.
 *
 *     DIR/config.json                      the model's (model.h)
 *     DIR/NAME.safetensors                 its tensors (model_files.h)
 *
 * One naming rule holds for all parameters of a folder: names as published, or without the root
 * that the family's names begin with ("model."), or after a common prefix ("module."). A family may
 * spell the beginnings of its names in several ways (base/spelling.h); each has one spelling in a
 * folder.
 *
 * A file is written back with its own header, byte for byte, so names, order, dtypes and metadata
 * cannot change; trained tensors get new data at the same offsets. The files stay open from
 * weights_open on: a later save does not depend on changes in the source folder.
 *
 * A run with a LoRA adapter has a second source: the adapter's folder, as PEFT saves it,
 *
 *     DIR/adapter_config.json
 *     DIR/adapter_model.safetensors        "base_model.model." + parameter name
 *
 * or none, if the adapter is new. A parameter that is in the adapter's folder is read from there.
 * Only the adapter is saved: what is frozen stays in the model's own folder.
 *
 * A model that is put together from parts has a folder for each: parameter PART.NAME is found as
 * NAME in the folder of that part, by the naming rule of that folder. Parameters of no part, and of
 * parts without a folder, are initialised. Such a model is saved as one folder with the published
 * names, in the dtypes of the files. A model folder may leave one part to a folder of its own (a
 * vision tower): if that part is not trained, the model folder is written back without it; else it
 * is saved as one folder.
 */
#pragma once

#include "folder/model_files.h"
#include "models/model.h"
#include "run/device.h"

/* The rule from published names to those of a folder: prefix + name. */
struct weight_naming {
    const char *strip;    /* removed from the front first; "": nothing */
    const char *prefix;   /* "" or something that ends in a dot */
    const struct spelling *spellings; /* of the published names; NULL: one */
    struct spelled spelled;
};

struct weights {
    /* the open folder; its dir "": a preset, nothing is open but the folders of its parts */
    struct model_files in;
    /* of the parameters, those that begin with this name and a dot; "": all but those of... */
    const char *part;
    const char *const *outside;  /* ...these parts, which have folders of their own */
    uint32_t n_outside, n_fresh; /* ...and behind them the modules without weights (model.fresh) */
    struct weights *parts;       /* of a model that is put together from parts */
    uint32_t n_parts;
    struct weights *adapter;     /* the adapter's folder, dir "" if it is new; NULL: the run has no adapter */
    bool is_adapter;             /* this is such a folder */
    const char *adapter_config;  /* of a new adapter: the text of its adapter_config.json */
    /* by parameter: slot + 1, of a stack its first (weight_slot.next); 0: a constant, or of another
     * part */
    uint32_t *source;
    uint32_t n_params;
    struct weight_naming naming;
    uint64_t other_bytes;        /* config.json, tokenizer and so on */
    uint64_t fingerprint; /* of what training does not change: config.json, high half, and the frozen tensors, low half,
                                  * of all parts; 0: a preset. weights_load sets it */
};

/* Opens the file of an adapter's folder that is not in safetensors as one that is; *converted
 * false: the folder has adapter_model.safetensors. adapter_folder_convert
 * (adapter/adapter_folder.h) does it. */
typedef int convert_adapter(const char *dir, struct st_file *out, bool *converted, struct error *e);

/* The adapter of a run: its folder, or for a new one NULL and the text of adapter_config.json. */
struct weights_adapter {
    const char *path, *config;
    convert_adapter *convert;
};

/* Opens the folder of the model and finds every parameter of the graph in it: names,
 * shapes, dtypes. For a preset nothing is opened. With an adapter (else NULL) its parameters are
 * found in its folder, and no tensor there is left over. PL_USAGE names folder, tensor, what was
 * found and what was expected. On failure nothing needs closing. */
int weights_open(struct weights *w, const struct model *m, const struct graph *g, const struct weights_adapter *a,
                 struct error *e);

/* Fills master weights, working copies and constants: from the files, or for a preset by each
 * parameter's init and the seed. The graph's parameters must be those of weights_open; only
 * `staging` (aligned to 8, at least TRANSFER_LEAST bytes) is used as memory. A value that is not
 * finite is PL_USAGE with tensor, index and file. */
int weights_load(struct weights *w, const struct graph *g, struct device *d, const struct tape *t, void *staging,
                 uint64_t staging_bytes, uint64_t seed, struct error *e);

/* Writes the model folder, or with an adapter the adapter's, into `dir`, which exists and is empty.
 * From a folder: its files unchanged, except trained tensors and running statistics, which come
 * from the master weights in the dtype of the file; and the small other files. From a preset or
 * parts: config.json and model.safetensors, in F32 or the dtype of the part's file. Files are
 * synced. PL_FAIL: a trained value is not finite in that dtype, or a system call failed; `dir` is
 * then incomplete. */
int weights_save(struct weights *w, const struct model *m, const struct graph *g, struct device *d,
                 const struct tape *t, void *staging, uint64_t staging_bytes, const char *dir, struct error *e);

/* Returns an upper bound of the bytes that weights_save writes, for the check of free disk
 * space. */
uint64_t weights_bytes(const struct weights *w, const struct graph *g);

/* Prints "names as published", "names without \"model.\"" or "names after \"module.\"". */
char *weights_describe_naming(const struct weights *w, char out[160]);

/* Reports whether names of the folder begin otherwise than the published ones, apart from a common
 * prefix. */
bool weights_spelled_otherwise(const struct weights *w);

/* Returns the name of a parameter in the folder, in `out`, with the star of a stack; for a preset
 * the published one. */
const char *weights_name_in_folder(const struct weights *w, const char *published, char out[1024]);

/* Reports whether a parameter is saved with the adapter. */
bool weight_is_adapted(const struct param *p);

/* Returns the name of a parameter in the adapter's file, as PEFT writes it, with the star of a
 * stack. */
const char *weights_name_in_adapter(const struct weights *adapter, const struct graph *g, const struct param *p,
                                    char out[1024]);

/* Returns the open folder with a parameter (its index): the adapter's, the model's or its part's;
 * NULL: it has none, the parameter starts from its init. */
const struct weights *weights_of(const struct weights *w, uint32_t param);

/* Closes the folders. A zeroed struct is allowed. */
void weights_close(struct weights *w);

/* Shared by weights.c, weights_load.c and weights_save.c. */
/* Describes tensor i of a parameter for a writer; its data are a part of the parameter's, in
 * order. */
struct st_spec weight_spec(const struct graph *g, const struct param *p, const char *name, int64_t i, enum dtype dtype,
                           struct bump *names);
/* Returns the parameter that names where another one's initial values are: mostly itself. */
const struct param *weight_origin(const struct graph *g, const struct param *p);
/* Returns the published name. */
static inline const char *weight_name(const struct graph *g, const struct param *p)
{
    return graph_name(g, tensor_at(g, p->tensor)->name);
}
/* Counts the tensors that a parameter is in folders, and the elements of each: 1, or those of a
 * stack. */
static inline int64_t weight_tensors(const struct graph *g, const struct param *p)
{
    return name_is_stack(weight_name(g, p)) ? tensor_at(g, p->tensor)->dim[0] : 1;
}
static inline int64_t weight_tensor_elements(const struct graph *g, const struct param *p)
{
    return tensor_elements(tensor_at(g, p->tensor)) / weight_tensors(g, p);
}
bool weight_is_constant(const struct graph *g, const struct param *p);    /* never in a file */
