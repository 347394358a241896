/*
 * loader.h: samples of a data set made ready for a training step, by threads, in order.
 *
 *     positions  p  p+1  p+2 ...        each a pure function of (seed, position)
 *        │ tickets                       in the order they are asked for
 *     thread 0 ... thread T-1            read, choose masks, rasterise, decode, resize
 *        │
 *     ring of slots                      position p fills slot p % slots
 *        │
 *     loader_take                        position after position, whoever filled it
 *
 * What a position gives depends on the source and the position alone: not on the threads,
 * not on what was read before. So a resumed run needs one number.
 *
 * All memory is one block of loader_bytes from the caller, plus what libjpeg and libpng take
 * for an image: at most LOADER_POOL a thread for the first, some ten KiB for the second.
 *
 * A sample that cannot be used has a fault (mask.h). It is replaced by another one, drawn by
 * seed and position, so that no other position changes; a source that goes through once
 * (validation) gives a sample without masks instead, which weighs nothing.
 */
#ifndef LOADER_H
#define LOADER_H

#include "data/dataset.h"
#include "data/sampler.h"

enum {
    LOADER_POOL = 32 << 20,    /* bytes that libjpeg may take of a thread's image */
    LOADER_MAX_SIDE = 16384,   /* pixels: larger images are faults */
    LOADER_RECORDS = 4096,     /* masks of a sample, before some are chosen */
    LOADER_BAD_FIRST = 20,     /* broken samples before their share can end a run within an epoch */
    LOADER_NAMED = 480,        /* characters about a broken sample */
};

/* What the memory depends on. */
struct loader_options {
    uint32_t side;         /* of the canvas: the longer side of an image becomes this */
    uint32_t cells;        /* of the masks' grid over the canvas */
    uint32_t masks;        /* of a sample, at most */
    uint32_t threads, slots; /* at least 2 slots: one is the caller's */
    uint64_t room;         /* bytes of a thread for a sample's files: the image (with its pixels
                              where it is a PNG), then its annotations (with the label image) */
    uint32_t polygon_runs; /* of a mask in polygons, each of three buffers; 0: the format has none */
    uint64_t embedding;    /* bytes of a stored embedding, which a sample then has in the place of the
                              image: no source augments; 0: images */
    double least;          /* smallest augment.scale of any source; 0: 1 */
};

/* Table changes, drawn for each position. All zeros: none. */
struct loader_augment {
    double flip;           /* chance that left and right change places */
    double scale;          /* below 1: the image's longer side is between this share of the canvas and all of it */
    double crop;           /* below 1: a window at a random place; each side between this share of the image's and all of it */
};

/* What was met, in the order of positions. */
struct loader_counts {
    uint64_t seen;         /* positions taken */
    uint64_t broken;       /* whose sample was broken */
    uint64_t empty;        /* whose sample is sound and has no mask to train on; these are replaced, too */
    uint64_t bad_masks;    /* that made no sense, of sound samples */
    uint64_t lost_masks;   /* too small for the grid, or outside of the crop */
    uint64_t fault[FAULT_KINDS]; /* broken, by kind */
    char last[LOADER_NAMED];     /* the last broken one: its name and what is wrong with it */
};

/* Where samples come from, and in which order. It stays the caller's and must not change while
 * the loader reads from it, but for counts, which are the consumer's. */
struct loader_source {
    const struct dataset *set;
    uint64_t seed;
    bool shuffle;
    bool once;             /* positions end with the data set, in its order, and nothing is replaced */
    bool interior;         /* find each mask's most interior cell */
    struct sampler_options sampler; /* max_masks is at most the loader's */
    struct loader_augment augment;
    double max_bad;        /* largest share of broken samples */
    struct loader_counts counts;
};

struct loader_mask {
    uint32_t x, y, w, h;   /* its box, in cells */
    uint32_t area;         /* cells */
    uint32_t interior[2];  /* x, y of the cell farthest from the mask's edge, where that was asked for */
    int32_t category;
    int64_t id;            /* as the file says */
};

struct loader_sample {
    uint64_t position;
    uint64_t sample;             /* of the data set: the one given */
    const uint8_t *image;        /* [side][side][3]; 0 where the image does not reach */
    const void *embedding;       /* instead, with loader_options.embedding; else NULL */
    uint32_t rows, columns;      /* of the image that are the image's */
    uint32_t height, width;      /* of the stored image */
    const uint8_t *bits;         /* [masks][cells][stride], as grid.h has them; 0 behind the n-th */
    uint32_t mask_rows, mask_columns; /* cells that are the image's */
    const struct loader_mask *masks;
    uint32_t n;
    enum data_fault fault;       /* of the sample that belonged here; FAULT_NONE: this is it */
};

/* Bytes of the block, by the options alone. */
uint64_t loader_bytes(const struct loader_options *o);

struct loader;
/* `memory` has loader_bytes, aligned to 64, and outlives the loader. Starts the threads, which
 * wait for a seek. */
int loader_open(struct loader **out, const struct loader_options *o, void *memory, struct error *e);
/* Joins the threads. */
void loader_close(struct loader *l);
/* From here on: what was read ahead is dropped. Allocates nothing. */
void loader_seek(struct loader *l, struct loader_source *s, uint64_t position);
/* Where the next take will be; false when it would not be of this source. */
bool loader_at(const struct loader *l, const struct loader_source *s, uint64_t position);
/* The next position; *out is valid until the next call. PL_FAIL when more samples are broken
 * than the source's max_bad allows: checked when LOADER_BAD_FIRST are, and at the end of each
 * epoch. PL_USAGE when none that was asked for so far could be used. */
int loader_take(struct loader *l, const struct loader_sample **out, struct error *e);

#endif
