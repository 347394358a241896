/*
 * matmul_autotune.h: selects one of cuBLASLt's proposals for a matmul. For large matmuls it is the
 * fastest one, timed once and stored (autotune_file.h). For small ones, and where nothing can be
 * stored, it is the first.
 *
 *     autotune_begin ............ autotune_end      a tape is being recorded into a fresh arena
 *         autotune_choose                           may measure
 *                                 autotune_choose   only looks up: a stored choice, or the first
 */
#pragma once

#include "cuda/products/autotune_file.h"
#include "cuda/products/gemm.h"

/* From here on matmuls may be timed in these bytes of GPU memory. They are zero now and are zero
 * again when autotune_end returns. Creates s->autotune. */
int autotune_begin(struct cuda_state *s, char *arena, uint64_t bytes, struct error *e);
int autotune_end(struct cuda_state *s, struct error *e);
/* All ranks take the choices of rank 0, because another algorithm gives other bits: it calls this
 * after it has recorded, the others before, and then measure nothing. */
int autotune_share(struct cuda_state *s, struct ranks *r, struct error *e);
void autotune_free(struct cuda_state *s);

/* Reads the attributes that identify an algorithm, as the file has them. */
void autotune_identify(const cublasLtMatmulAlgo_t *a, uint32_t number[CHOICE_NUMBERS]);
/* Reports whether a matmul is large enough to be autotuned. */
bool autotune_applies(const struct gemm_shape *shape);
/* Sets p->algorithm to one of the n proposals, all of which fit `workspace` bytes. `part` is what
 * is computed of the product: it is timed instead where the arena has no room for the whole. p
 * describes either. */
int autotune_choose(struct gemm *p, const struct cuda_state *s, const struct gemm_shape *part,
                    const cublasLtMatmulHeuristicResult_t *found, int n, uint64_t workspace, struct error *e);
