/*
 * coco.h: the table that an instances JSON is parsed into: images by id, and for each image the
 * file offsets of its annotations.
 */
#pragma once

#include "base/base.h"
#include "data/dataset.h"

struct coco_image {
    int64_t id;
    uint32_t w, h;
    uint32_t name;     /* offset of the file name in `names` */
    uint32_t first, n; /* its annotations */
    uint32_t video;    /* offset + 1 of its video_id in `names`; 0: it is no frame of a video */
};

struct coco_annotation {
    int64_t image;
    uint64_t at; /* offset in the file */
    uint32_t bytes;
    int32_t category;
    bool crowd;     /* iscrowd 1 and several parts */
    bool one_part;  /* iscrowd 1 and one part: a mask like any other */
    bool no_mask;   /* no segmentation, or an area of 0 */
};

struct coco_category {
    int64_t id;
    uint32_t name;
};

struct coco_table {
    VEC(struct coco_image) images; /* by id; only those with annotations */
    VEC(struct coco_annotation) annotations; /* by image, then by offset */
    VEC(struct coco_category) categories; /* by id */
    struct text names;
    struct shard_report report;
    struct dataset_left left;
};

struct coco_filter {
    char *const *categories; /* names or numbers; none: all */
    uint32_t n;
    bool crowds; /* keep crowds */
};

/* Parses n bytes. PL_USAGE with the position when they are not an instances file, and when the
 * filter names a category that the file does not have. Call coco_free in any case. */
int coco_parse(const char *text, size_t n, const struct coco_filter *f, struct coco_table *t, struct error *e);
void coco_free(struct coco_table *t);
