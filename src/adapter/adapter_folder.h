/*
 * adapter_folder.h: reading a PEFT folder: its configuration, its tensors, and which tensor of the
 * base each of them belongs to.
 *
 *     DIR/adapter_config.json
 *     DIR/adapter_model.safetensors      or DIR/adapter_model.bin, a PyTorch checkpoint
 *
 *     base_model.model.MODULE.lora_A.weight            [r,in]
 *     base_model.model.MODULE.lora_B.weight            [out,r]
 *     base_model.model.MODULE.lora_magnitude_vector    [out], with use_dora
 *     base_model.model.PARAMETER                       a tensor that was trained whole
 *                                                      (modules_to_save, bias)
 *
 * PEFT writes the names of the modules in memory, which for some models are not those of the base's
 * files. adapter_folder_match finds the spelling that all names share.
 */
#pragma once

#include "adapter/adapter.h"
#include "folder/model_files.h"
#include "io/pth.h"
#include "io/safetensors.h"

enum adapter_part { ADAPTER_A, ADAPTER_B, ADAPTER_MAGNITUDE, ADAPTER_WHOLE };

struct adapter_tensor {
    const char *name;         /* in the file */
    enum adapter_part part;
    const char *module;       /* as the adapter spells it; of a whole tensor, the parameter's name */
    /* the tensor of the base that it changes, as the base spells it; by adapter_folder_match */
    const char *base;
    enum dtype dtype;
    int rank;
    const int64_t *dims;
    int64_t elements;
    uint32_t source;          /* index in the file's tensors */
};

struct adapter_folder {
    const char *dir, *path;   /* the folder, and its file of tensors */
    struct adapter config;
    struct adapter_tensor *tensors; /* sorted by module, then part */
    uint32_t n;
    bool is_pth;
    struct st_file file;      /* one of the two is open */
    struct pth pth;
    struct bump memory;       /* owns all of the above but the open file */
};

/* Reports whether a folder holds an adapter: adapter_config.json and no config.json. */
bool adapter_folder_is(const char *dir);

/* Opens a folder and checks it: every A has its B with the rank of the configuration, magnitudes
 * are there with use_dora and only then, dtypes are floats. PL_USAGE names the first tensor that is
 * wrong. On failure nothing needs closing. */
int adapter_folder_open(struct adapter_folder *f, const char *dir, struct error *e);
void adapter_folder_close(struct adapter_folder *f);

/* Finds each tensor's base among the n names of the base's tensors. PL_USAGE, if the adapter
 * belongs to another base, names the first module that the base does not have. `base` is the base's
 * name in messages. */
int adapter_folder_match(struct adapter_folder *f, const char *base, const char *const *names, uint32_t n,
                         struct error *e);

/* Reads elements [at, at + n), in row-major order and in the tensor's dtype. Thread-safe. */
int adapter_folder_read(const struct adapter_folder *f, const struct adapter_tensor *t, int64_t at, int64_t n, void *to,
                        struct error *e);
/* Reads the whole tensor in f32; the caller frees *to with mem_free. */
int adapter_folder_read_f32(const struct adapter_folder *f, const struct adapter_tensor *t, float **to,
                            struct error *e);

/* Writes the tensors of a folder that has only adapter_model.bin as safetensors into a file in
 * memory, opened as *out, whose path is that of the .bin. *out is unchanged if the folder has
 * adapter_model.safetensors. */
int adapter_folder_convert(const char *dir, struct st_file *out, bool *converted, struct error *e);

/* --- merge ----------------------------------------------------------------------------------- */

/* Merging an adapter into its base: model folder + PEFT folder -> model folder.
 *
 *     W' = W + s B A                      LoRA; sums in f32, rounded once to the dtype of the base
 *     W' = m / |W + s B A| (W + s B A)    DoRA, norms by row; by column where W is [inputs,outputs]
 *     W' = the adapter's tensor           modules_to_save, biases; with LoRA on the same tensor it
 *                                         is the W above (PEFT saves the weight of an adapted head)
 *
 * The files of the base are written again with their own headers and with these tensors changed, a
 * few rows at a time. The base may be any model folder with safetensors, also of a model that
 * Plimsoll does not train.
 *
 * A head that shares the embedding's weight (tie_word_embeddings) has no tensor of its own. If the
 * adapter changes one of the two, the merged model has both: lm_head.weight is added and
 * config.json says so.
 */
/* What changes one tensor of the base. */
struct merge_change {
    const struct adapter_tensor *A, *B, *magnitude, *whole; /* A and B with perhaps a magnitude, whole, both, or none */
    bool transposed; /* the tensor is [inputs,outputs] */
};

struct merge {
    struct model_files base;
    struct adapter_folder adapter;
    struct merge_change *changes; /* by slot of the base */
    struct value *config;         /* config.json */
    bool transposed;              /* weights of linear layers, but for the head's, are [inputs,outputs] */
    /* A tied head that the adapter unties. */
    bool untied;
    const struct weight_slot *embedding, *head; /* head: its tensor in the files, or NULL: it is added as head_name */
    const char *head_name;
    struct merge_change head_change;
    uint32_t n_merged, n_whole;   /* linears with LoRA; whole tensors */
};

/* Opens both folders and checks them against each other: names, shapes, dtypes. PL_USAGE names the
 * first tensor that does not fit. On failure nothing needs closing. */
int merge_open(struct merge *m, const char *base, const char *adapter, struct error *e);
/* Writes the merged model into a folder, which exists and is empty. */
int merge_write(const struct merge *m, const char *dir, struct error *e);
void merge_close(struct merge *m);
