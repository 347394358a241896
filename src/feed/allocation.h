/*
 * allocation.h: the inputs of the token allocator (models/allocator.h) beside those of
 * conversations with images: texture, information and query_weights of a row; or random_scores.
 */
#ifndef ALLOCATION_H
#define ALLOCATION_H

#include "data/text/conversations.h"
#include "data/images/image_processor.h"
#include "engine/run.h"

struct allocation;
/* Makes an allocator for rows of T tokens; returns NULL if the run's model takes all tokens of an
 * image. `processor` says how its pixels were normalised. */
struct allocation *allocation_new(const struct run *r, int64_t T, const struct image_processor *processor);
/* Frees it. NULL is allowed. */
void allocation_free(struct allocation *a);
/* Writes row i of the batch, with its image_index. `pixels` of its image; NULL: it has none. */
int allocation_put(struct allocation *a, struct run *r, int64_t i, uint64_t position, const struct token_row *row,
                   const int32_t *index, const float *pixels, struct error *e);

#endif
