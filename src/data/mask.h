/*
 * mask.h: what is known of one mask before anybody rasterises it, whatever the format.
 *
 * The sampler chooses by these facts; only what it chose becomes pixels, from `shape`, which
 * points into the caller's buffer that the sample was read into.
 */
#ifndef MASK_H
#define MASK_H

#include "data/rle.h"

/* Why a sample, or a mask of it, cannot be used: one number per kind in a run's report. */
enum data_fault {
    FAULT_NONE,
    FAULT_READ,      /* the machine could not read it */
    FAULT_TOO_LARGE, /* larger than the buffer that was planned for it */
    FAULT_SYNTAX,    /* the annotations are not what they should be */
    FAULT_SIZE,      /* image, annotations and masks disagree on height and width */
    FAULT_SHAPE,     /* a mask of a form that the format does not have */
    FAULT_MANY,      /* more masks than were planned for */
    FAULT_NO_MASKS,  /* none is left to train on */
    FAULT_MASK,      /* run lengths, polygons or a label image that make no mask */
    FAULT_IMAGE,     /* the image cannot be decoded */
    FAULT_KINDS,
};
/* "the image cannot be decoded" */
const char *fault_text(enum data_fault f);

enum shape_kind { SHAPE_NONE, SHAPE_RLE, SHAPE_POLYGONS, SHAPE_LABEL, SHAPE_BITS };

struct shape {
    enum shape_kind kind;
    uint32_t h, w; /* of the image it lies in; 0: the annotation does not say */
    union {
        struct rle rle;
        struct {
            const char *at; /* JSON: [[x, y, x, y, ...], ...] */
            size_t n;
        } polygons;
        struct {
            const void *pixels; /* rows of `stride` bytes, `bytes` (1 or 2) a pixel */
            size_t stride;
            int bytes;
            uint32_t id; /* the mask is where pixels equal it */
        } label;
        struct {            /* of a store whose masks were sampled before (cells.h) */
            const void *at; /* rows of `stride` bytes: bits as in grid.h, or bytes */
            size_t stride;
            uint32_t id;    /* 0: bits; else the mask is where bytes equal it */
            uint32_t w, h;  /* cells there are */
            uint32_t over_w, over_h, per; /* over_w / per of them lie over the image's width */
        } cells;
    };
};

struct mask {
    int64_t id;
    int64_t image; /* which image it belongs to, where masks are listed by themselves */
    int32_t category;
    bool crowd;      /* a group of things under one mask */
    double area;     /* pixels, as the file says; below 0: it does not */
    float box[4];    /* x, y, w, h as the file says: for choosing, never for cropping */
    float predicted_iou, stability; /* 1 where the file says nothing */
    float point[2];  /* where the mask was asked for; NAN: the file does not say */
    float crop_box[4];
    struct shape shape;
};

#endif
