/*
 * dicom_j2k_none.c: a build without OpenJPEG (see dicom.h).
 */
#include "data/volumes/dicom.h"

const char *dicom_j2k_version(void) { return NULL; }

int dicom_j2k(const uint8_t *at, size_t n, uint32_t w, uint32_t h, uint32_t channels, int bytes, void *to,
              struct error *e)
{
    (void)at, (void)n, (void)w, (void)h, (void)channels, (void)bytes, (void)to;
    return error_set(e, PL_USAGE,
                     "its pixels are JPEG 2000, and this build has no OpenJPEG: install libopenjp2-7-dev and build "
                     "again, or decompress them, such as with GDCM: gdcmconv --raw IN.dcm OUT.dcm");
}
