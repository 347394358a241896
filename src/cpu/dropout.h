/*
 * dropout.h: who is dropped. Shared by the reference and the fast kernel: the choice is
 * part of the op's definition, bit by bit.
 */
#ifndef CPU_DROPOUT_H
#define CPU_DROPOUT_H

#include <stdint.h>

#include "graph/step.h"

/* The stream of one sample at one op in one step. Word i of it (random_words) decides
 * element i of the sample; with per_sample word 0 decides all of them. */
uint64_t dropout_key(const struct step_block *step, uint32_t key, int32_t sample);
/* Dropped are the elements whose word is below this: p * 2^32. */
uint32_t dropout_threshold(float p);

#endif
