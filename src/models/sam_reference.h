/*
 * sam_reference.h: what the tensors of Segment Anything are called in the program that the
 * weights were first published with, and in transformers.
 *
 *     transformers   vision_encoder.layers.0.layer_norm1.weight
 *     reference      image_encoder.blocks.0.norm1.weight
 *
 * TinySAM and MobileSAM have the reference's names; layer code has those of transformers.
 */
#ifndef SAM_REFERENCE_H
#define SAM_REFERENCE_H

#include <stddef.h>

/* The name on the other side, in `out` (of `room` bytes) or, where both have the same, as it
 * was given. Of heads of three layers, as all published models have them. */
const char *sam_reference_name(const char *transformers, char *out, size_t room);
const char *sam_transformers_name(const char *reference, char *out, size_t room);

#endif
