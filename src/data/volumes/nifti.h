/*
 * nifti.h: NIfTI-1 and NIfTI-2 files (.nii, .nii.gz): headers.
 *
 * The project's own reader: Debian's libniftiio decompresses a .gz from its beginning for every
 * seek and takes memory by what the header claims, and of the whole format only 348 or 540 bytes of
 * header are needed.
 */
#pragma once

#include "data/volumes/volume.h"
#include "base/base.h"

enum { NIFTI_HEAD = 544 }; /* bytes that nifti_parse looks at */

struct nifti_header {
    uint32_t dims[3];
    uint32_t modalities;
    uint32_t channels;
    enum plane_type type;
    bool swapped;
    double slope, inter;
    double affine[3][4];
    bool placed;    /* the affine map is that of a qform or sform */
    uint64_t offset;
    uint64_t bytes; /* of the file: offset and all voxels */
};
/* Reads a header from the first n bytes of a (decompressed) file. PL_USAGE names what is wrong. */
int nifti_parse(struct nifti_header *h, const void *bytes, size_t n, struct error *e);

/* Opens a file as a volume by its header; `v` has its path. nifti_unpack decompresses a .gz, so
 * that it can be read. */
int nifti_open(struct volume *v, struct error *e);
int nifti_unpack(struct volume *v, const struct volume_options *o, struct error *e);
/* Reads a slice of the view: see volume_read. */
size_t nifti_room(const struct volume *v);
int nifti_read(const struct volume *v, uint32_t slice, uint32_t modality, void *to, size_t room, struct plane *out,
               struct error *e);

/* Writes a volume of labels a slice at a time, in any order, in the geometry of
 * `like`, whose header is copied if it is NIfTI. Labels are in the order of the view: the file has
 * the order of the array. Slices that are not written are 0. A path that ends with .gz is
 * compressed. */
struct nifti_writer;
/* Begins to write; `like` stays open until the end. The largest label decides whether the file has
 * 8 or 16 bits. */
int nifti_write_begin(struct nifti_writer **out, const char *path, const struct volume *like, uint32_t largest,
                      struct error *e);
int nifti_write_slice(struct nifti_writer *w, uint32_t slice, const uint16_t *labels, struct error *e);
/* Ends the file and renames it to its path; `failed`: only frees. Memory does not depend on the
 * size of the volume. */
int nifti_write_end(struct nifti_writer *w, bool failed, struct error *e);

/* ---- The cache of decompressed volumes ----
 *
 * files that are made of volumes once and found again by later runs: decompressed
 * .nii.gz, and which slices of a label volume have labels.
 *
 * They lie in the folder data.volume_cache, else $XDG_CACHE_HOME/plimsoll/volumes
 * (~/.cache/plimsoll/volumes). A name holds a hash of the volume's path, size and time, so a
 * changed volume gets a new file; the folder may be deleted at any time between runs.
 */

/* Prints the path of the cache file of a volume with this ending; creates the folder. PL_FAIL:
 * there is no folder that can be written. */
int volume_cache_path(const char *volume, const char *folder, const char *ending, struct text *out, struct error *e);
/* Decompresses `from` to the file, unless it is there: exactly `bytes` of it, or PL_USAGE: the file
 * is cut, damaged, or longer. The disk keeps 1 GiB free: PL_FAIL. */
int volume_cache_gunzip(const char *from, const char *to, uint64_t bytes, struct error *e);
