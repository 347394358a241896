/*
 * jpeg_lossless.h: JPEG's lossless process (SOF3, Huffman), which many archives of CT and MR use
 * and libjpeg-turbo 2 does not read.
 */
#ifndef JPEG_LOSSLESS_H
#define JPEG_LOSSLESS_H

#include "base/base.h"

/* Decodes an image of this size, with 1 or 3 channels, to integers of `bytes` (1 or 2):
 * [h][w][channels]. PL_USAGE: another size or process, or damage. */
int jpeg_lossless(const uint8_t *at, size_t n, uint32_t w, uint32_t h, uint32_t channels, int bytes, void *to,
                  struct error *e);

#endif
