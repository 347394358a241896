/*
 * image_files.h: the bytes of an image, from the reference to it that a sample has.
 *
 *     coco/000000001.jpg            a path in data.images, which is a folder or a tar
 *     /data/coco/000000001.jpg      a path
 *     part-0.tar/000000001.jpg      a member of a tar in data.images, or by a path
 *     file:///data/a.jpg            a path
 *     data:image/png;base64,iVBO    the image itself
 *     parquet:a.parquet/12/3/1      a cell of a Parquet table (io/parquet_rows.h), by a path
 *     video:clips/1.mp4             a video, a file or a folder of images, by any of these paths
 *     volume:T1:7/T1.nii.gz         a volume, a file or the folder of a DICOM series (data/volumes/volume.h)
 *
 * data.images may also be a packed store with the embeddings that a vision tower computes of the
 * images (data/formats/packed.h): then there are no bytes of images, and a reference of any kind is
 * a name in the store.
 *
 * Any number of threads may read. The first reference into a tar or a table indexes it; after that,
 * reading allocates nothing.
 */
#pragma once

#include "data/images/video.h"
#include "data/masks/mask.h"
#include "data/volumes/volume.h"

#define VIDEO_REFERENCE "video:"
bool media_is_video(const char *reference);

struct image_files;

/* Where images are, and where they may be. */
struct image_scope {
    const char *where;    /* a folder or a tar, with which relative paths begin, or a store; NULL: the current folder */
    bool anywhere;        /* absolute paths and `..` may lead out of it (data.outside_images) */
    char *const *tables;  /* [n_tables] Parquet tables whose cells may be read beside that: the data itself */
    uint32_t n_tables;
    uint64_t room;        /* bytes of memory for an image: its file, its pixels, and what resizing needs */
    /* of models that take images of any size: instead of the processor's; 0: as that has them */
    uint64_t min_pixels, max_pixels;
    struct volume_options volumes; /* how volumes are viewed, and... */
    struct pixel_range range;      /* ...which of their values become 0 and 1 */
};
/* Returns how many tars are open at once, at most: a part of the files that the process may
 * open. */
uint32_t image_files_descriptors(void);
/* Returns PL_USAGE: there is no such folder, tar or store. */
int image_files_open(struct image_files **out, const struct image_scope *scope, struct error *e);
void image_files_close(struct image_files *f);

/* Returns PL_USAGE: the reference leads out of where images may be (image_scope). No file is
 * opened. */
int image_files_allow(const struct image_files *f, const char *reference, struct error *e);
/* Finds whether the image or video exists, and the bytes of an image: data: URLs give an upper
 * bound. PL_USAGE: it does not, or the reference is of a kind that is not read. Messages begin
 * with the reference, which is shortened. */
int image_files_find(struct image_files *f, const char *reference, uint64_t *bytes, struct error *e);
/* Reads the bytes into to[room]. PL_NOFIT, with the required bytes in *n, when the room is too
 * small. */
int image_files_read(struct image_files *f, const char *reference, void *to, size_t room, size_t *n, struct error *e);

/* The store, of any number of images; NULL: there are files. */
struct dataset;
const struct dataset *image_files_store(const struct image_files *f);
/* What the store says of an image or a video, whose bytes may still be damaged; PL_USAGE: it has
 * none of this reference. */
struct packed_output;
int image_files_output(const struct image_files *f, const char *reference, struct packed_output *out, struct error *e);
/* Copies `count` embeddings (`bytes` in total) from the store. Another number is a fault, as
 * for image_reader_read. */
enum data_fault image_files_embeddings(const struct image_files *f, const char *reference, uint32_t count, void *to,
                                       size_t bytes, uint32_t *replaced, struct error *e);

/* Finds where a video is: video_at_free frees it. PL_USAGE: there is none, or the reference is of
 * a kind that is not read. */
int image_files_video(struct image_files *f, const char *reference, struct video_at *out, struct error *e);
void video_at_free(struct video_at *v);

/* Opens a volume, by a path. PL_USAGE: there is none, or the file is damaged. */
int image_files_volume(struct image_files *f, const char *reference, const struct volume_options *o, struct volume *v,
                       struct error *e);
