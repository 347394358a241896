/*
 * idct.h: the inverse transforms of JPEG, with the arithmetic of libjpeg: 13-bit constants, 2 more
 * bits between the passes. To the bit what jpeg_idct_islow and jpeg_idct_4x4 give for
 * coefficients that an encoder can write.
 */
#ifndef DATA_IDCT_H
#define DATA_IDCT_H

#include "base/base.h"

/* coef[64], row by row, times quant[64], to 8 x 8 or 4 x 4 bytes; rows `stride` apart. */
void idct_8x8(const int16_t *coef, const int16_t *quant, uint8_t *to, size_t stride);
/* Each byte stands for the mean of four of the former. */
void idct_4x4(const int16_t *coef, const int16_t *quant, uint8_t *to, size_t stride);
/* Both when all but the first coefficient are 0: every byte is this one. */
uint8_t idct_flat(int16_t coef, int16_t quant);

#endif
