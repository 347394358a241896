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

/* Returns the tensor of a module (as the adapter spells it) and part; NULL: none. */
const struct adapter_tensor *adapter_folder_find(const struct adapter_folder *f, const char *module,
                                                 enum adapter_part part);

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
