/*
 * card.h: what kernels on tensor cores are chosen by: the compute capability of the card in use, and the shared memory of a block.
 */
#ifndef CARD_H
#define CARD_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* 75, 80, 86 ...; 0: nobody knows. */
int card_capability(void);
/* Bytes of shared memory that a block may have. */
size_t card_room(void);
/* For tests: kernels are chosen as on a lesser card; 0: as on this one. */
void card_act_like(int capability);

#ifdef __cplusplus
}
#endif

#endif
