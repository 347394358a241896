/*
 * mask.h: the properties of one mask before it is rasterised, in any format.
 *
 * The sampler chooses by these properties. Only chosen masks are rasterised, from `shape`, which
 * points into the caller's buffer that the sample was read into.
 */
#pragma once

#include "data/masks/rle.h"

/* Why a sample, or one of its masks, cannot be used. A run's report counts each kind. */
enum data_fault {
    FAULT_NONE,
    FAULT_READ,      /* reading failed */
    FAULT_TOO_LARGE, /* larger than the buffer that was planned for it */
    FAULT_SYNTAX,    /* the annotations are malformed */
    FAULT_SIZE,      /* image, annotations and masks disagree on height and width */
    FAULT_SHAPE,     /* a mask has an encoding that the format does not support */
    FAULT_MANY,      /* more masks than the planned buffers hold */
    FAULT_NO_MASKS,  /* no mask is left to train on */
    FAULT_MASK,      /* malformed run lengths, polygons or label image */
    FAULT_IMAGE,     /* the image cannot be decoded */
    FAULT_OPEN,      /* too many files are open, which is no fault of the sample: the run ends */
    FAULT_KINDS,
};
/* Returns a fault in words: "the image cannot be decoded". */
const char *fault_text(enum data_fault f);

enum shape_kind { SHAPE_NONE, SHAPE_RLE, SHAPE_POLYGONS, SHAPE_LABEL, SHAPE_BITS };

struct shape {
    enum shape_kind kind;
    uint32_t h, w; /* size of its image; 0: not in the annotation */
    union {
        struct rle rle;
        struct {
            const char *at; /* JSON: [[x, y, x, y, ...], ...] */
            size_t n;
        } polygons;
        struct {
            const void *pixels; /* rows of `stride` bytes, `bytes` (1 or 2) per pixel */
            size_t stride;
            int bytes;
            uint32_t id; /* the pixels of this value are the mask */
        } label;
        struct {            /* of a store with masks that are already sampled (grid.h) */
            const void *at; /* rows of `stride` bytes: bits as in grid.h, or bytes */
            size_t stride;
            uint32_t id;    /* 0: bits; else the bytes of this value are the mask */
            uint32_t w, h;  /* number of cells */
            uint32_t over_w, over_h, per; /* over_w / per cells cover the image's width */
        } cells;
        uint64_t words[5]; /* where pointers have 4 bytes, plans are the same */
    };
};

struct mask {
    int64_t id;
    int64_t image; /* id of its image, if masks are in a list of their own */
    int32_t category;
    bool crowd;      /* a group of objects under one mask */
    double area;     /* pixels, from the file; below 0: unknown */
    float box[4];    /* x, y, w, h from the file: for sampling, never for cropping */
    float predicted_iou, stability; /* 1 if not in the file */
    float point[2];  /* the prompt of the mask; NAN: not in the file */
    float crop_box[4];
    struct shape shape;
};

/* Returns PL_USAGE: the image has another size than the one that its masks were drawn for. */
int mask_size_differs(uint32_t w, uint32_t h, uint32_t masks_w, uint32_t masks_h, struct error *e);

/* --- sampler --------------------------------------------------------------------------------- */

/* Chooses the masks of a sample to train on.
 *
 * The choice uses only the annotations, before anything is decoded:
 *
 *     random          all masks are equally likely
 *     diverse         one mask per k-means cluster of position, size and aspect ratio: the one with
 *                     the highest predicted IoU
 *     quality         the highest predicted IoU
 *     size_balanced   equally many from each quarter of the range of log sizes
 *     all             all, in the file's order, up to max_masks
 *
 * The result is a pure function of the masks, the options and (seed, epoch, position): every
 * thread and every resumed run chooses the same masks. Indices ascend. When at most max_masks
 * masks pass the filters, every strategy chooses all of them.
 */
enum sampler_strategy { SAMPLE_RANDOM, SAMPLE_DIVERSE, SAMPLE_QUALITY, SAMPLE_SIZE_BALANCED, SAMPLE_ALL };

struct sampler_options {
    enum sampler_strategy strategy;
    uint32_t max_masks;
    float min_iou, min_stability;
    double min_area, max_area; /* share of the image; max_area 0 means 1 */
    bool crowds;               /* crowds may be chosen */
};

/* Returns the scratch for samples of up to max_records masks. */
size_t sampler_bytes(uint32_t max_records, uint32_t max_masks);

/* Fills chosen[max_masks] with indices into masks[n] and returns their number. */
uint32_t sampler_choose(const struct sampler_options *o, const struct mask *masks, uint32_t n, uint32_t h, uint32_t w,
                        uint64_t seed, uint64_t epoch, uint64_t position, void *scratch, uint32_t *chosen);
