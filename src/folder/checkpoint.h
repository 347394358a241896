/*
 * checkpoint.h: a PyTorch checkpoint of SAM, MedSAM, MobileSAM or TinySAM to a model folder, and
 * back. The names and shapes of the tensors determine the model (models/sam_names.h); values and
 * dtypes do not change.
 *
 * Tensors are copied one by one. A checkpoint file is mapped into memory; a tensor of a folder goes
 * through a buffer of CHUNK bytes; only a tensor that is not contiguous is assembled in memory.
 */
#pragma once

#include "base/base.h"

struct checkpoint_summary {
    const char *type;           /* the model_type */
    uint32_t tensors, left_out; /* written; derived buffers, which are not */
    uint64_t bytes;
};
/* Writes the folder `out`, which must not exist or be empty. */
int checkpoint_to_folder(const char *in, const char *out, struct checkpoint_summary *s, struct error *e);
/* Writes the file `out`, which must not exist. */
int checkpoint_from_folder(const char *in, const char *out, struct checkpoint_summary *s, struct error *e);
