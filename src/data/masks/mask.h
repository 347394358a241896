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
