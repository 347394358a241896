/*
 * merge.h: merging an adapter into its base: model folder + PEFT folder -> model folder.
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
#pragma once

#include "adapter/adapter_folder.h"
#include "folder/model_files.h"

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
