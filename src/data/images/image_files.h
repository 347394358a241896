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
 *
 * Any number of threads may read. The first reference into a tar or a table indexes it; after that, reading allocates
 * nothing.
 */
#ifndef IMAGE_FILES_H
#define IMAGE_FILES_H

#include "data/images/video.h"

#define VIDEO_REFERENCE "video:"
bool media_is_video(const char *reference);

struct image_files;

/* `where`: a folder or a tar, with which relative paths begin; NULL: the current folder. PL_USAGE: there is
 * no such folder or tar. */
int image_files_open(struct image_files **out, const char *where, struct error *e);
void image_files_close(struct image_files *f);

/* Whether the image or video exists, and the bytes of an image: data: URLs give an upper bound. PL_USAGE: it does not, or the reference is of a kind
 * that is not read. Messages begin with the reference, which is shortened. */
int image_files_find(struct image_files *f, const char *reference, uint64_t *bytes, struct error *e);
/* Reads the bytes into to[room]. PL_NOFIT, with the required bytes in *n, when the room is too small. */
int image_files_read(struct image_files *f, const char *reference, void *to, size_t room, size_t *n, struct error *e);

/* Where a video is: video_at_free frees it. PL_USAGE: there is none, or the reference is of a kind that is not read. */
int image_files_video(struct image_files *f, const char *reference, struct video_at *out, struct error *e);
void video_at_free(struct video_at *v);

#endif
