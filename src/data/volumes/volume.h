/*
 * volume.h: stacks of slices: NIfTI files, DICOM series, TIFF files of one page or many. Any slice
 * is read by itself, so that memory is that of a slice, however large the volume is.
 *
 * Voxels are an array [k][j][i], i fastest, and an affine map gives the position of a voxel in the
 * patient (RAS+, mm: to the right, to the front, up). A view is how slices are cut and shown:
 *
 *     axial      columns to the left of the patient, rows to the back;  slices from the feet up
 *     coronal    columns to the left, rows down;                        slices from back to front
 *     sagittal   columns to the back, rows down;                        slices from left to right
 *
 * which is the way that radiologists see them. An oblique volume is cut along the axis that is
 * nearest. Pages of a TIFF are slices as they are.
 *
 * Opening reads the header and may allocate. A .nii.gz has no random access: opening decompresses
 * it once into a cache file (nifti.h). After that a volume is constant, reading allocates
 * nothing but inside of libtiff and image libraries, no file stays open, and any number of threads
 * may read. Messages do not name the volume.
 */
#pragma once

#include "data/images/plane.h"
#include "data/images/tiff.h"
#include "models/modalities.h"

/* In the order of the words of data.slice_axis. */
enum volume_axis { AXIS_AXIAL, AXIS_CORONAL, AXIS_SAGITTAL };
enum volume_kind { VOLUME_NIFTI, VOLUME_DICOM, VOLUME_TIFF };

enum {
    VOLUME_MAX_SIDE = 16384, /* of a slice */
    VOLUME_ROOM = 1 << 30,   /* bytes that reading a slice takes at most, where no other limit is set */
};

struct volume_view {
    uint8_t axis[3]; /* of the array: of the columns, of the rows, of the slices */
    bool flip[3];
};

struct dicom_slice;
struct volume {
    enum volume_kind kind;
    char *path;             /* as the user named it: a file, or the folder of a series */
    char *data;             /* NIfTI: the file with the voxels: path, or the cache file of a .gz */
    uint64_t offset;        /* NIfTI: of the first voxel */
    uint32_t dims[3];       /* of the array */
    uint32_t modalities;    /* arrays one after the other: the fourth dimension */
    uint32_t channels;      /* of a voxel, interleaved: 1 or 3 */
    enum plane_type type;
    bool swapped;           /* the file's byte order is not the machine's */
    double slope, inter;    /* value = slope * stored + inter */
    double affine[3][4];    /* array index to mm, RAS+ */
    bool placed;            /* the file says where the voxels are: `affine` is not a default */
    char patient[65];       /* DICOM: the patient's ID; "": none */
    struct tiff_pages pages;    /* TIFF */
    struct dicom_slice *files;  /* DICOM: [slices] */
    /* as viewed: */
    struct volume_view view;
    uint32_t w, h, slices;
    double spacing[3];      /* mm between columns, rows, slices */
    /* the values that become black and white, of a volume of several slices (volume_set_window) */
    double window[2];
};

struct volume_options {
    enum volume_axis axis;
    const char *cache;      /* folder of decompressed volumes; NULL: the user's cache folder */
    /* the most bytes that volume_rgb may take for a slice, data.sample_memory; 0: VOLUME_ROOM */
    size_t room;
};

/* Reports whether a file is read as a volume, by its name: .nii, .nii.gz, .tif, .tiff, .dcm.
 * *ending, unless NULL, is the length of the ending. */
bool is_volume_name(const char *name, size_t *ending);
/* Reports whether a folder is a DICOM series: it has files that are DICOM, and no other folders. */
bool is_dicom_folder(const char *path);

/* Returns PL_USAGE: the path is one volume, where a folder was expected. */
int volume_refuse(const char *path, struct error *e);
/* Opens a volume. PL_USAGE: not a volume that is read, or its slices take more than o->room:
 * nothing of that size was allocated or decompressed. On failure nothing needs closing. */
int volume_open(struct volume *v, const char *path, const struct volume_options *o, struct error *e);
void volume_close(struct volume *v);
/* Views it so that its voxels are those of another volume, its image: the arrays may be mirrored
 * and have their axes in another order. The affine maps say how; of a file that has none the array
 * is that of the image. A page of a TIFF and a DICOM file lie on each other as they are stored.
 * PL_USAGE: the voxels are others. */
int volume_lay_on(struct volume *v, struct volume *image, struct error *e);
/* Views one slice as it is stored, for a mask that is no volume. PL_USAGE: the order of its rows
 * and columns is not that of an image. */
int volume_as_stored(struct volume *v, struct error *e);

/* Returns the most bytes that a library allocates by itself while a slice is decoded, beside its
 * room: OpenJPEG. */
uint64_t volume_outside(const struct volume *v);

/* Reads a slice. `to` has volume_room bytes, aligned to 8; the plane is at its beginning. `labels`:
 * as tiff_read. */
size_t volume_room(const struct volume *v, bool labels);
int volume_read(const struct volume *v, uint32_t slice, uint32_t modality, bool labels, void *to, size_t room,
                struct plane *out, struct error *e);

/* Chooses a range. Values this far below 0 are Hounsfield units of a CT, in which air is -1000:
 * auto is the window of soft tissue then, else percentiles. */
void volume_auto_range(struct pixel_range *r, double least);
/* Sets `window` by the range: percentiles and the full range are those of the whole volume, from up
 * to 64 slices at equal distances. */
int volume_set_window(struct volume *v, uint32_t modality, const struct pixel_range *r, struct error *e);
/* Finds the same window, in volume_window_room bytes at `memory`, aligned to 8. */
size_t volume_window_room(const struct volume *v);
int volume_find_window(const struct volume *v, uint32_t modality, const struct pixel_range *r, void *memory,
                       double window[2], struct error *e);

/* Reads the slice as RGB, at the beginning of to[room]. Three planes: the slices before, at and
 * after `slice`, or three modalities. */
struct volume_channels {
    const struct volume *at[3]; /* at[1] NULL: one plane for all channels */
    uint32_t modality[3];
    int32_t step[3];            /* added to the slice; beyond the ends the slice itself */
};
size_t volume_rgb_room(const struct volume_channels *c);
int volume_rgb(const struct volume_channels *c, const struct pixel_range *r, uint32_t slice, void *to, size_t room,
               struct error *e);

/* --- volume patches -------------------------------------------------------------------------- */

/* A NIfTI file or a DICOM series as the patches of a modality
 * (models/modalities.h): volumes among the tokens of a conversation.
 *
 *     volume:T1:subjects/7/T1.nii.gz     a reference: the modality, and a path as an image has it
 *     volume::T1.nii.gz                  of the only modality that the model takes
 *
 * The values of a voxel are those that volumes have elsewhere (data.range): the window of the
 * volume becomes 0 to 1, and what lies outside is clipped. They are not rounded to 8 bits. Then the
 * axes are resampled to the modality's size, each by itself, as pixels are: a triangle filter as
 * wide as a voxel of the result where the result is smaller, else linear interpolation between the
 * centres of voxels. The whole field of view is kept, whatever the size of a voxel is.
 *
 * Axes are those of a view (volume.h): of the axial one depth goes from the feet up, height from
 * the front to the back, width to the left of the patient. A series is not resampled in time: of a
 * longer one the volumes in its middle are used, behind a shorter one there are zeros; its window
 * is that of the volume in the middle of those that are used.
 */
#define VOLUME_REFERENCE "volume:"
bool media_is_volume(const char *reference);
/* Returns the reference, in `b`, to a file that is a volume by its name; with a modality to one
 * that is not an image by its name. NULL: it is an image. `modality` may be NULL. */
const char *media_volume(const char *path, const char *modality, struct bump *b);
/* Returns the path of a reference to a volume. */
const char *media_volume_path(const char *reference);
/* Finds the modality of a reference; below 0: the model does not have it, as `e` says. */
int media_modality(const struct modality_list *l, const char *reference, struct error *e);

/* Returns the bytes that reading a volume takes. */
uint64_t volume_patches_room(const struct volume *v, const struct modality *x);
/* Reads a volume into to[modality_floats]; `memory` has volume_patches_room bytes, aligned to 8.
 * PL_USAGE: it is no such volume, or has values that are not finite. */
int volume_patches(const struct volume *v, const struct modality *x, const struct pixel_range *r, void *memory,
                   float *to, struct error *e);
