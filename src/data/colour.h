/*
 * colour.h: a row of a JPEG's samples to RGB, with the arithmetic of libjpeg.
 */
#ifndef DATA_COLOUR_H
#define DATA_COLOUR_H

#include "base/base.h"

/* 2n samples of chroma for the n of a row, `far` its neighbour above or below: libjpeg's smooth ("fancy")
 * upsampling. */
void colour_widen(uint8_t *to, const uint8_t *near, const uint8_t *far, uint32_t n);
/* [n][3] bytes. */
void colour_row(uint8_t *rgb, const uint8_t *luma, const uint8_t *blue, const uint8_t *red, uint32_t n);

#endif
