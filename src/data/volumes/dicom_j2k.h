/*
 * dicom_j2k.h: JPEG 2000 pixels of DICOM files. Only dicom_j2k.c uses OpenJPEG, which allocates
 * while it decodes.
 *
 * How much it allocates follows from the size of the image and from the markers of the file
 * (j2k_memory.c). What would take more than j2k_room is refused before it is decoded, and so is a
 * volume for which that is more than data.sample_memory.
 *
 * A build without OpenJPEG has dicom_j2k_none.c instead, in which every such image is an error.
 */
#ifndef DICOM_J2K_H
#define DICOM_J2K_H

#include "base/base.h"

/* Returns the version of OpenJPEG; NULL: this build has none. */
const char *dicom_j2k_version(void);

/* Returns the most bytes that decoding an image of this size from n bytes may take: enough for code
 * blocks of 32 x 32 and tiles of 256 x 256. */
uint64_t j2k_room(uint32_t w, uint32_t h, uint32_t channels, uint64_t n);
/* Returns the most bytes that OpenJPEG allocates for a codestream; UINT64_MAX: its markers are
 * damaged. */
uint64_t j2k_memory(const uint8_t *at, size_t n);
/* Returns the codestream inside of the boxes of a JP2 file, and its bytes in *n; `at` itself: there
 * are no boxes. */
const uint8_t *j2k_codestream(const uint8_t *at, size_t *n);

/* Decodes JPEG 2000, as jpeg_lossless does lossless JPEG. */
int dicom_j2k(const uint8_t *at, size_t n, uint32_t w, uint32_t h, uint32_t channels, int bytes, void *to,
              struct error *e);

#endif
