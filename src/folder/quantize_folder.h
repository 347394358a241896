/*
 * quantize_folder.h: a model folder with the weights of its linear layers in 4 bits (NF4 with
 * double quantization), as transformers saves it with bitsandbytes. weights_4bit.h has the tensors
 * of such a weight.
 *
 * The weights are those that memory.quantize nf4 quantizes where all are frozen: all linear layers
 * but the output head and what an embedding shares. A run on the written folder has the bits of
 * such a run on the original.
 */
#pragma once

#include "folder/weights.h"

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
