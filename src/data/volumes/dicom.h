/*
 * dicom.h: DICOM series: a folder of files, each a slice; and single files.
 *
 * The project's own reader of little-endian files, explicit and implicit. Pixels may be
 * uncompressed, RLE, JPEG lossless and JPEG baseline, and JPEG 2000 where the build has OpenJPEG
 * (dicom_j2k.c). The message about any other names a converter. Files of a folder that have no
 * image, such as a DICOMDIR or a radiotherapy plan, are skipped.
 */
#pragma once

#include "data/volumes/volume.h"
#include "base/base.h"

/* What a file says about its image. */
struct dicom_lut {
    uint64_t at, bytes;      /* of the entries in the file */
    uint32_t n, bits;        /* n 0: there is none */
    int32_t first;           /* the stored value that the first entry is for */
};
enum dicom_coding { DICOM_NATIVE, DICOM_RLE, DICOM_JPEG, DICOM_LOSSLESS, DICOM_JPEG2000, DICOM_UNREAD };
struct dicom_header {
    bool implicit;             /* value representations are not written */
    enum dicom_coding coding;
    char syntax[65], series[65], patient[65], photometric[17];
    uint32_t rows, columns, samples, planar, allocated, stored, high, frames;
    bool is_signed;
    double position[3], orientation[6], spacing[2], between, slope, inter;
    bool has_position, has_orientation;
    struct dicom_lut lut;      /* the Modality LUT: stored values to values, instead of slope and inter */
    /* offset and bytes of the pixels; of compressed ones those of all fragments, with their
     * items */
    uint64_t pixels, pixels_n;
};
struct dicom_slice {
    char *path;
    uint64_t pixels, pixels_n;
    double slope, inter, along; /* position along the normal, mm */
    size_t scratch;             /* for the LUT and dicom_scratch */
    uint64_t outside;           /* dicom_outside */
};

/* A file in memory, or, with bytes NULL, an open file. */
struct dicom_source {
    const uint8_t *bytes;
    uint64_t n;
    int fd;
};
/* Reads the header. PL_USAGE: not DICOM, or an image that is not read; h->rows is 0 if it is DICOM
 * without an image. */
int dicom_parse(struct dicom_header *h, const struct dicom_source *s, struct error *e);
/* Returns the type of the values that dicom_decode writes. */
enum plane_type dicom_type(const struct dicom_header *h);
/* Returns the bytes that dicom_decode needs beside the file and the pixels, aligned to 64. */
size_t dicom_scratch(const struct dicom_header *h);
/* Returns the bytes that OpenJPEG may allocate while it decodes the pixels (dicom_j2k.c). */
uint64_t dicom_outside(const struct dicom_header *h);
/* Decodes the pixels to rows of the machine's integers: [rows][columns][samples], and applies the
 * Modality LUT. `file` are the pixels_n bytes, which are changed; `lut` its entries, if there is
 * one. */
size_t dicom_stored_bytes(const struct dicom_header *h);  /* of uncompressed pixels */
size_t dicom_decoded_bytes(const struct dicom_header *h); /* at `to` */
size_t dicom_lut_bytes(const struct dicom_header *h);     /* of the entries at lut.at */
int dicom_decode(const struct dicom_header *h, uint8_t *file, const uint8_t *lut, void *scratch, void *to,
                 struct error *e);

/* Does volume.c's part for DICOM. */
int dicom_open(struct volume *v, struct error *e);
void dicom_close(struct volume *v);
const char *dicom_axis(const struct volume *v); /* "coronal" */
size_t dicom_room(const struct volume *v);
uint64_t dicom_outside_most(const struct volume *v);
int dicom_read(const struct volume *v, uint32_t slice, void *to, size_t room, struct plane *out, struct error *e);

/* ---- JPEG 2000 ----
 *
 * JPEG 2000 pixels of DICOM files. Only dicom_j2k.c uses OpenJPEG, which allocates
 * while it decodes.
 *
 * How much it allocates follows from the size of the image and from the markers of the file
 * (j2k_memory.c). What would take more than j2k_room is refused before it is decoded, and so is a
 * volume for which that is more than data.sample_memory.
 *
 * A build without OpenJPEG has dicom_j2k_none.c instead, in which every such image is an error.
 */

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
