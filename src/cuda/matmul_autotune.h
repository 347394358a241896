/*
 * matmul_autotune.h: which of cuBLASLt's proposals for a product is taken: the fastest, found by timing once
 * and kept (autotune_file.h), or, for small products and where nothing can be kept, the first.
 *
 *     autotune_begin ............ autotune_end      a tape is being recorded into a fresh arena
 *         autotune_choose  autotune_choose                  may measure
 *                                    autotune_choose   reads only: what was measured, or the first
 */
#ifndef MATMUL_AUTOTUNE_H
#define MATMUL_AUTOTUNE_H

#include "cuda/gemm.h"

/* From here on products may be timed in these bytes of the GPU: all of them zero, and again when autotune_end
 * returns. Opens s->fastest. */
int autotune_begin(struct cuda_state *s, char *arena, uint64_t bytes, struct error *e);
int autotune_end(struct cuda_state *s, struct error *e);
void autotune_free(struct cuda_state *s);

/* Whether a product is worth it. */
bool autotune_applies(const struct gemm_shape *shape);
/* Sets p->algorithm to one of the n proposals, all of which may be used, within so many bytes of workspace. */
int autotune_choose(struct gemm *p, const struct cuda_state *s, const cublasLtMatmulHeuristicResult_t *found, int n,
               uint64_t workspace, struct error *e);

#endif
