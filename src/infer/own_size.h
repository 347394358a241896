/*
 * own_size.h: scores of an evaluation at the image's own size, batch by batch.
 *
 *     picked logits of the batch ─ upsampled ─┐
 *     masks of the sample, rasterised at the ─┴─ Dice, IoU, HD95, NSD ─ a row of the table
 *     (mask_table.h)
 *     image's own size
 *
 * The same four are computed at the loss's resolution, with the spacing of its cells. The
 * prediction is the candidate with the highest predicted IoU, for the first prompt of each mask.
 * Memory, beyond the plan: a buffer for the files of a sample (data.sample_memory), 3 bytes for
 * each pixel of the largest image, what surface_compare takes, the logits of a batch and of a
 * square.
 */
#pragma once

#include "data/masks/grid.h"
#include "data/masks/polygon.h"
#include "batch/feed.h"
#include "infer/mask_table.h"

struct own_size {
    struct mask_table table;
    const struct dataset *set;
    id picks;                 /* tensor [rows * masks, side, side] */
    int64_t masks;            /* of a row */
    uint32_t side, cells;     /* of the square, of the logits */
    void *raw;                /* the tensor as it is stored */
    float *logits;            /* [rows * masks][cells][cells] */
    char *room;               /* [room_bytes] the files of the current sample */
    size_t room_bytes;
    struct mask *records;
    uint32_t found;           /* masks of the current sample */
    uint32_t w, h;            /* its image */
    double mm[2];             /* its pixels */
    uint64_t unreadable;      /* masks whose sample could not be read again */
    struct grid grid;
    void *grid_memory, *polygon_memory;
    struct polygon_scratch polygons;
    uint8_t *predicted, *target, *bits; /* for the largest image so far */
    size_t room_of[3];        /* their bytes */
    float *fitted;            /* [side][side] */
};

/* `spacing` in mm of a pixel along x and y, 0 and 0: that of the volumes, or 1; `tolerance` of NSD
 * in mm. `prompts`: names by pass. False: the run outputs no picked masks (run_options.picks), and
 * nothing was opened. */
bool own_size_open(struct own_size *o, const struct run *r, const struct feed *f, const char *const *prompts,
                   const double spacing[2], double tolerance);
void own_size_close(struct own_size *o);
/* Adds the masks of a batch of the feed, after the program has run on it. */
int own_size_add(struct own_size *o, struct run *r, const struct feed *f, struct error *e);

/* Prints the means by structure, with the unit of distances. */
void own_size_print(const struct own_size *o, struct text *out);
/* Writes the same as a section of an HTML page, and the heading of the worst masks. */
void own_size_page(const struct own_size *o, struct text *out);
/* Puts spacing, tolerance and the lists "structures" and "images". */
void own_size_put(struct json_writer *w, const void *own_size);
/* Writes the scores of each mask, and their means, as CSV files; NULL: none. */
int own_size_write(const struct own_size *o, const char *images, const char *structures, struct error *e);
