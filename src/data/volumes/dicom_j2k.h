/*
 * dicom_j2k.h: JPEG 2000 pixels of DICOM files. Only dicom_j2k.c uses OpenJPEG, which allocates while it decodes.
 *
 * A build without OpenJPEG has dicom_j2k_none.c instead, in which every such image is an error.
 */
#ifndef DICOM_J2K_H
#define DICOM_J2K_H

#include "base/base.h"

/* The version of OpenJPEG; NULL: this build has none. */
const char *dicom_j2k_version(void);
/* As jpeg_lossless. */
int dicom_j2k(const uint8_t *at, size_t n, uint32_t w, uint32_t h, uint32_t channels, int bytes, void *to, struct error *e);

#endif
