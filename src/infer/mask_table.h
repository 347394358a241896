/*
 * mask_table.h: the scores of every mask of an evaluation, and their means by structure (category).
 *
 *     mask_table_add       one mask by one prompt: Dice, IoU, HD95 and NSD, at the image's own
 *                          size and at the loss's
 *     mask_table_csv       a row for each of them
 *     mask_table_lines     mean, deviation and count for each prompt and structure
 *
 * A score that does not exist, as the HD95 of an empty mask, is NaN: it is left out of the mean,
 * and the count says so. Memory: sizeof(struct mask_row) for each mask and prompt.
 */
#pragma once

#include "infer/score.h"
#include "io/table.h"

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
/* Lists all structures, then each of them, for each prompt; the caller frees the list. */
struct mask_line *mask_table_lines(const struct mask_table *t, uint32_t *n);

/* Lists the scores at the image's own size, for text and HTML; the caller frees the table. */
struct report_table mask_table_list(const struct mask_table *t);
/* Writes CSV: prompt,category,size,masks, then for each metric its mean, sd and n; size is own or
 * loss. */
void mask_table_structures(const struct mask_table *t, struct text *out);
/* image,prompt,category,mask,dice,iou,hd95,nsd,loss_dice,...: an empty field is a score that does
 * not exist. `image` names a sample. */
typedef void table_image_name(const void *of, uint64_t sample, char *out, size_t room);
void mask_table_csv(const struct mask_table *t, table_image_name *image, const void *of, struct text *out);
/* The lists "structures" and "images" of a map. */
struct json_writer;
void mask_table_json(const struct mask_table *t, table_image_name *image, const void *of, struct json_writer *w);
