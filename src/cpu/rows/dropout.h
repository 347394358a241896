/*
 * dropout.h: the choice of dropped elements. Shared by the reference and the fast kernel: the
 * choice is part of the op's definition, bit by bit.
 */
#ifndef CPU_DROPOUT_H
#define CPU_DROPOUT_H

#include <stdint.h>

#include "graph/step.h"

/* The random stream of one sample at one op in one step. Word i of it (random_words) decides
 * element i of the sample; with per_sample word 0 decides all of them. */
uint64_t dropout_key(const struct step_block *step, uint32_t key, int32_t sample);
/* Elements with a word below this are dropped: p * 2^32. */
uint32_t dropout_threshold(float p);

#endif
