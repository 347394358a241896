/*
 * loader.h: threads that prepare the samples of a dataset for training steps, in order.
 *
 *     ring (ring.h) ─ threads: read, choose masks, rasterise, decode, resize (fill.h) ─ reader_next
 *
 * The sample at a position depends only on the source and the position: not on the threads, and
 * not on earlier reads. So a resumed run needs one number.
 *
 * All memory is one block of reader_bytes from the caller, plus the allocations of libjpeg and
 * libpng for an image: at most LOADER_POOL per thread for libjpeg, some ten KiB for libpng.
 *
 * A sample that cannot be used has a fault (mask.h). Another sample replaces it, drawn by seed and
 * position, so that no other position changes. A source with `once` (validation) returns a sample
 * without masks instead, which has no weight in the loss.
 */
#pragma once

#include "base/base.h"
#include "data/dataset.h"
#include "data/faults.h"
#include "data/masks/mask.h"
#include "data/reader.h"

/* --- augment --------------------------------------------------------------------------------- */

/* Augmentation of a sample on the canvas: mirrored rows, turns of 90 degrees, a small
 * rotation, and intensities. Crop, scale and horizontal flip come before, while the image is
 * resized (fill.c).
 *
 *     canvas with the image at its upper left ─ one affine map: image bilinear, masks nearest ─ the
 *     same canvas
 *                                             ─ one table of 256 values, then noise
 *
 * Everything is drawn from the sample's position, so that threads, ranks and a resume change
 * nothing.
 */
/* Drawn for each position. All zeros: none. */
struct loader_augment {
    double flip;           /* probability of a horizontal flip */
    double scale;          /* below 1: the longer side is between this share of the canvas and all */
    double crop;           /* below 1: a window at a random position; each of its sides is between
                              this share of the image's side and all of it */
    double flip_vertical;  /* probability */
    double turn;           /* probability of a turn by 90, 180 or 270 degrees, each as likely */
    double rotate;         /* degrees: a rotation between this and its negative */
    double brightness;     /* adds between this and its negative, as a fraction of white */
    double contrast;       /* factor on the distance from the mean: between 1 - this and 1 + this */
    double gamma;          /* exponent: between 1 / (1 + this) and 1 + this */
    double noise;          /* standard deviation of Gaussian noise, as a fraction of white */
};
/* Reports whether augment_bits and augment_image need scratch. */
static inline bool augment_moves(const struct loader_augment *a)
{
    return a->flip_vertical > 0 || a->turn > 0 || a->rotate > 0;
}

/* What was drawn for a sample whose image covers rows x columns of the canvas. */
struct augment {
    bool moves, tones;
    double map[2][3];        /* position in the canvas, in pixels, of a position of the result: x and y from x, y, 1 */
    uint32_t rows, columns;  /* of the result */
    uint32_t from_rows, from_columns;
    double brightness, contrast, gamma, noise;
    uint64_t noise_key;
};
struct augment augment_draw(const struct loader_augment *a, uint64_t key, uint32_t rows, uint32_t columns);

/* Moves a mask of `cells` x `cells` bits over a canvas of `side` pixels (masks/grid.h), of which
 * `rows` x `columns` cells are valid in the result; scratch is as large as the mask. */
void augment_bits(const struct augment *a, uint32_t side, uint32_t cells, uint32_t rows, uint32_t columns, void *bits,
                  void *scratch);
/* Moves the canvas [side][side][3]; scratch is as large, and unused without moves. What the map
 * leaves empty is black. */
void augment_image(const struct augment *a, uint32_t side, uint8_t *image, uint8_t *scratch);

enum {
    LOADER_POOL = 32 << 20,    /* bytes that libjpeg may allocate per thread */
    LOADER_MAX_SIDE = 16384,   /* pixels: larger images are a fault */
    LOADER_RECORDS = 4096,     /* masks of a sample, before sampling */
    LOADER_POLYGON_RUNS = 1 << 18, /* the runs of a COCO mask that a run plans for */
};

/* The options that determine the memory. */
struct loader_options {
    uint32_t side;         /* of the canvas: the longer side of an image is resized to this */
    bool stretched;        /* both sides are */
    uint32_t cells;        /* side of the masks' grid over the canvas */
    uint32_t masks;        /* masks of a sample, at most */
    uint32_t threads, slots; /* at least 2 slots: the caller holds one */
    uint64_t room;         /* bytes per thread for a sample's files: the image (with its pixels
                              if it is a PNG), then its annotations (with the label image) */
    uint32_t polygon_runs; /* runs of a polygon mask in each of three buffers; 0: no polygons */
    uint64_t embedding;    /* bytes of a stored embedding, which replaces the image of a sample: no
                              source augments; 0: images */
    double least;          /* smallest augment.scale of any source; 0: 1 */
    bool moves;            /* a source may have augment_moves */
};

/* Returns the default of loader_options.room for a format of dataset.h. `stores`: packed stores
 * are memory-mapped and need no buffer; with an index and a memory map the images are files. */
uint64_t loader_default_room(const char *format, bool stores);

/* Masks that a sample must have, by their ids: sample i has ids[first[i]] to ids[first[i + 1] - 1].
 * Filters do not apply to them, and if there is no room they replace other masks. */
struct loader_wanted {
    const uint32_t *first;
    const int64_t *ids;
};

/* Where samples come from, and in which order. The caller owns it and must not change it while the
 * loader reads from it. Only the consumer changes the counts. */
struct loader_source {
    struct sample_order order;
    const struct dataset *set;
    bool interior;         /* find each mask's most interior cell */
    struct sampler_options sampler; /* max_masks is at most the loader's */
    struct loader_wanted wanted;    /* first NULL: none */
    struct loader_augment augment;
};

struct loader_mask {
    uint32_t x, y, w, h;   /* its box, in cells */
    uint32_t area;         /* cells */
    uint32_t interior[2];  /* x, y of the cell farthest from the mask's edge, with loader_source.interior */
    int32_t category;
    int64_t id;            /* from the file */
};

struct loader_sample {
    uint64_t position;
    uint64_t sample;             /* index in the dataset */
    const uint8_t *image;        /* [side][side][3]; 0 outside of the image */
    const void *embedding;       /* instead of the image, with loader_options.embedding; else NULL */
    uint32_t rows, columns;      /* of the canvas that the image covers */
    uint32_t height, width;      /* of the stored image */
    const uint8_t *bits;         /* [masks][cells][stride], as in grid.h; 0 after the n-th mask */
    uint32_t mask_rows, mask_columns; /* cells that the image covers */
    const struct loader_mask *masks;
    uint32_t n;
    enum data_fault fault;       /* of the sample that this one replaces; FAULT_NONE: not replaced */
};

/* Readers of images with masks: of struct loader_options and loader_source; a slot begins with a
 * struct loader_sample. */
extern const struct reader_kind loader_kind;
