/*
 * fastest.h: which of cuBLASLt's proposals for a product is taken: the fastest, found by timing once
 * and kept (choices.h), or, for small products and where nothing can be kept, the first.
 *
 *     fastest_begin ............ fastest_end      a tape is being recorded into a fresh arena
 *         fastest_of  fastest_of                  may measure
 *                                    fastest_of   reads only: what was measured, or the first
 */
#ifndef CUDA_FASTEST_H
#define CUDA_FASTEST_H

#include "cuda/product.h"

/* From here on products may be timed in these bytes of the GPU: all of them zero, and again when fastest_end
 * returns. Opens s->fastest. */
int fastest_begin(struct cuda_state *s, char *arena, uint64_t bytes, struct error *e);
int fastest_end(struct cuda_state *s, struct error *e);
void fastest_free(struct cuda_state *s);

/* Whether a product is worth it. */
bool fastest_matters(const struct product_shape *shape);
/* Sets p->algorithm to one of the n proposals, all of which may be used, within so many bytes of workspace. */
int fastest_of(struct product *p, const struct cuda_state *s, const cublasLtMatmulHeuristicResult_t *found, int n,
               uint64_t workspace, struct error *e);

#endif
