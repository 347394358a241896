/*
 * new_folder.h: a model folder that a command writes: under a temporary name, and renamed when it
 * is complete.
 */
#pragma once

#include "base/base.h"
#include "folder/weights.h"
#include "io/temporary.h"

/* Fills a folder, which exists and is empty. */
typedef int fill_folder(void *of, const char *dir, struct error *e);

/* Checks that a path does not exist or is an empty folder, so that no file is overwritten. */
int new_folder_check(const char *path, struct error *e);
/* Fills a temporary folder beside `path`; on failure there is none. */
int new_folder_fill(struct temporary *t, const char *path, fill_folder *fill, void *of, struct error *e);
/* Does the same and gives it the name. */
int new_folder_write(const char *path, fill_folder *fill, void *of, struct error *e);

/* --- checkpoint ------------------------------------------------------------------------------ */

/* A PyTorch checkpoint of SAM, SAM 2, MedSAM, MobileSAM or TinySAM to a model folder, and
 * back. The names and shapes of the tensors determine the model (models/sam_names.h); values and
 * dtypes do not change.
 *
 * Tensors are copied one by one. A checkpoint file is mapped into memory; a tensor of a folder goes
 * through a buffer of CHUNK bytes; only a tensor that is not contiguous is assembled in memory.
 */
struct checkpoint_summary {
    const char *type;           /* the model_type */
    uint32_t tensors, left_out; /* written; derived buffers, which are not */
    uint64_t bytes;
};
/* Writes the folder `out`, which must not exist or be empty. */
int checkpoint_to_folder(const char *in, const char *out, struct checkpoint_summary *s, struct error *e);
/* Writes the file `out`, which must not exist. */
int checkpoint_from_folder(const char *in, const char *out, struct checkpoint_summary *s, struct error *e);

/* --- quantize folder ------------------------------------------------------------------------- */

/* A model folder with the weights of its linear layers in 4 bits (NF4 with
 * double quantization), as transformers saves it with bitsandbytes. weights_4bit.h has the tensors
 * of such a weight.
 *
 * The weights are those that memory.quantize nf4 quantizes where all are frozen: all linear layers
 * but the output head and what an embedding shares. A run on the written folder has the bits of
 * such a run on the original.
 */
struct quantize_folder {
    struct model model;
    struct graph graph;
    struct weights weights;
    struct packed_weight *packed;   /* by slot of `weights`; a member `slot` NULL: the tensor is copied */
    struct written_file *files;     /* by file of `weights` */
    uint32_t n_quantized, n_tensors; /* weights in 4 bits; tensors of the folder that is read */
    uint64_t bytes_before, bytes;   /* of the tensors; `bytes` is set by quantize_folder_write */
    struct bump memory;
};

/* Opens a folder and chooses the weights. PL_USAGE: its weights are quantized already, none can be,
 * or it is no model folder that Plimsoll reads. On failure nothing needs closing. */
int quantize_folder_open(struct quantize_folder *q, const char *path, struct error *e);
/* Writes the model into `dir`, which exists and is empty: each file under its name, tensor by
 * tensor, and the other files as they are, with the quantization in config.json. */
int quantize_folder_write(struct quantize_folder *q, const char *dir, struct error *e);
void quantize_folder_close(struct quantize_folder *q);
