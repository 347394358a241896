/*
 * own_size.h: scores of an evaluation at the image's own size, batch by batch.
 *
 *     picked logits of the batch ─ upsampled ─┐
 *     masks of the sample, rasterised at the ─┴─ Dice, IoU, HD95, NSD ─ a row of the table
 *     (surface.c)
 *     image's own size
 *
 * The same four are computed at the loss's resolution, with the spacing of its cells. The
 * prediction is the candidate with the highest predicted IoU, for the first prompt of each mask.
 * Memory, beyond the plan: a buffer for the files of a sample (data.sample_memory), 3 bytes for
 * each pixel of the largest image, what surface_compare takes, the logits of a batch and of a
 * square.
 */
#pragma once

#include "base/base.h"
#include "batch/feed.h"
#include "data/masks/grid.h"
#include "data/masks/polygon.h"
#include "infer/score.h"
#include "io/table.h"

/* --- surface --------------------------------------------------------------------------------- */

/* Distances between the surfaces of a predicted mask and its target: HD95 and NSD.
 *
 *     HD95   the 95th percentile of the distances from each surface to the other, the larger of
 *            both directions, in mm (robust Hausdorff distance)
 *     NSD    normalised surface Dice: the share of both surfaces that lies within a tolerance,
 *            in mm, of the other
 *
 * A surface cell is a cell of the mask with a neighbour along an axis that is outside of it; what
 * is beyond the image's border is outside. Both are defined as in MONAI: a percentile interpolates
 * linearly; if one mask is empty, HD95 is NaN and NSD 0; if both are, both are NaN.
 *
 * Memory: 9 bytes for each cell of the box around both masks, 8 for each cell of the larger
 * surface, and a line.
 */
struct cell_box {
    uint32_t w, h, d;  /* d 1: an image */
    double spacing[3]; /* along x, y and z; above 0 */
};
static inline size_t box_cells(const struct cell_box *b) { return (size_t)b->w * b->h * b->d; }

/* Returns the bytes of scratch: a line of the longest side. */
size_t distance_scratch(const struct cell_box *b);
/* Computes squared distances. On entry to[i] is 0 at features and INFINITY elsewhere; then it is
 * the squared distance to the nearest feature, INFINITY without any. */
void distance_squared(const struct cell_box *b, double *to, void *scratch);

struct surface_scores {
    double hd95, nsd;
};
/* Compares masks of box_cells bytes; nonzero is inside. Uses the heap. */
struct surface_scores surface_compare(const struct cell_box *b, const uint8_t *predicted, const uint8_t *target,
                                      double tolerance);

/* --- mask table ------------------------------------------------------------------------------ */

/* The scores of every mask of an evaluation, and their means by structure (category).
 *
 *     mask_table_add       one mask by one prompt: Dice, IoU, HD95 and NSD, at the image's own
 *                          size and at the loss's
 *     mask_table_csv       a row for each of them
 *     mask_table_lines     mean, deviation and count for each prompt and structure
 *
 * A score that does not exist, as the HD95 of an empty mask, is NaN: it is left out of the mean,
 * and the count says so. Memory: sizeof(struct mask_row) for each mask and prompt.
 */
enum mask_metric { METRIC_DICE, METRIC_IOU, METRIC_HD95, METRIC_NSD, METRICS };
enum mask_size { SIZE_OWN, SIZE_LOSS, SIZES };
extern const char *const metric_names[METRICS]; /* "dice", ... */
extern const char *const size_names[SIZES];     /* "own", "loss" */

struct mask_row {
    uint64_t sample;
    int64_t mask;     /* id in the file */
    int32_t category;
    uint32_t prompt;
    double value[SIZES][METRICS];
};

struct mask_table {
    VEC(struct mask_row) rows;
    bool bodies;                /* rows are of whole volumes, and have SIZE_OWN only */
    const char *const *prompts; /* names; not owned */
    score_name *name;           /* of categories; NULL: numbers */
    const void *names_of;
    double spacing[2];          /* mm of a pixel along x and y */
    bool of_volumes;            /* instead of `spacing`, that of each volume */
    double tolerance;           /* of NSD, mm */
};

void mask_table_add(struct mask_table *t, const struct mask_row *row);
void mask_table_free(struct mask_table *t);

struct mask_mean {
    double mean, deviation; /* NaN without a value, or without two */
    uint64_t n;             /* values */
};
struct mask_line {
    uint32_t prompt;
    bool all;               /* of all structures */
    int32_t category;
    uint64_t masks;
    struct mask_mean of[SIZES][METRICS];
};

/* Lists the scores at the image's own size, for text and HTML; the caller frees the table. */
struct report_table mask_table_list(const struct mask_table *t);
/* Writes CSV: prompt,category,size,masks, then for each metric its mean, sd and n; size is own or
 * loss. */
void mask_table_structures(const struct mask_table *t, struct text *out);
/* image,prompt,category,mask,dice,iou,hd95,nsd,loss_dice,...: an empty field is a score that does
 * not exist. `image` names a sample. */
typedef void table_image_name(const void *of, uint64_t sample, char *out, size_t room);
void mask_table_csv(const struct mask_table *t, table_image_name *image, const void *of, struct text *out);
/* The lists `structures` and `rows` of a map; `image` is the member of a row with its name. */
struct json_writer;
struct table_members {
    const char *structures, *rows, *image;
};
void mask_table_json(const struct mask_table *t, const struct table_members *m, table_image_name *image, const void *of,
                     struct json_writer *w);

/* --- volumes --------------------------------------------------------------------------------- */

/* Scores of whole volumes: the masks of a structure in a volume are compared as one body, in three
 * dimensions, with the spacing of the volume.
 *
 *     volume_scores_add    the mask of a slice, slices in any order; a later one of the same slice
 *                          replaces it
 *     volume_scores_end    what is open is compared: rows of the table
 *
 * Memory: a bit for each voxel and side of a volume's structures; while one is compared 2 bytes for
 * each voxel, and what surface_compare takes.
 */
struct open_body;
struct volume_scores {
    struct mask_table table; /* a row's sample is the first slice that was added */
    VEC(struct open_body) open;
};
/* A slice of a structure: `mask` is its id. */
struct body_slice {
    const struct volume *volume;
    uint64_t sample;
    int64_t mask;
    int32_t category;
    uint32_t prompt, slice;
};
void volume_scores_open(struct volume_scores *v, const struct dataset *set, const char *const *prompts,
                        double tolerance);
void volume_scores_close(struct volume_scores *v);
/* Adds masks [h][w], nonzero inside. A slice of another volume ends the bodies of the prompt. */
void volume_scores_add(struct volume_scores *v, const struct body_slice *at, const uint8_t *predicted,
                       const uint8_t *target);
void volume_scores_end(struct volume_scores *v);
/* Prints the name of a row's volume. */
void volume_scores_name(const void *set, uint64_t sample, char *out, size_t room);
/* Prints the means by structure, with the unit of distances. */
void volume_scores_print(const struct volume_scores *v, struct text *out);
/* Compares two bodies: Dice, IoU, HD95 and NSD. */
void masks_compare(const struct cell_box *b, const uint8_t *predicted, const uint8_t *target, double tolerance,
                   double value[METRICS]);

struct own_size {
    struct mask_table table;
    struct volume_scores volumes; /* of slices of volumes */
    const struct dataset *set;
    id picks;                 /* tensor [rows * masks, side, side] */
    int64_t masks;            /* of a row */
    uint32_t side, cells;     /* of the square, of the logits */
    bool stretched;           /* images fill the square */
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
