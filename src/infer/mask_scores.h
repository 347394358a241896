/*
 * mask_scores.h: the scores of an evaluation over images with masks, batch by batch.
 *
 *     mask_scores_open     rows by the passes of the feed (point, box), memory for a batch
 *     mask_scores_add      after the program has run on a batch of the feed
 *
 * The IoU is that of the candidate with the highest predicted IoU, at the loss's resolution and
 * over the image's own area. With more than one round there are rows for the last round as well:
 * "box, round 8". The Dice of a mask is computed from its IoU. The worst predictions are those of
 * the first round. Their `place` is the prompt, x and y from 0 to 1 over the padded square: a
 * point, or two corners.
 */
#pragma once

#include "batch/feed.h"
#include "infer/score.h"

/* A mask of a batch. */
struct mask_record {
    struct worst where;
    double iou;
    uint32_t row;      /* of the table */
    int32_t category;
    bool first;        /* of the first round */
};

struct mask_scores {
    struct scores scores;
    struct mask_record *records; /* of the last batch that was listed */
    uint32_t n_records, most_records;
    char (*names)[48];
    const char **prompts;
    uint32_t passes;
    id first, last;    /* tensors [rows * masks, MASK_STATS]; last 0: one round */
    float *statistics; /* values of one of them */
    float *coords;     /* coordinates of the batch's prompts, [rows * masks][slots][2] */
    id prompts_at;     /* storage of the prompts */
    int64_t slots;     /* 0: masks are asked for by text */
};

/* False: the program has no mask statistics, and nothing was opened. `worst`: number of worst
 * predictions to keep. */
bool mask_scores_open(struct mask_scores *m, const struct run *r, const struct feed *f, enum program p, uint32_t worst);
void mask_scores_close(struct mask_scores *m);
/* Scores over all passes: of the first round, or of the last one; with one round both are the
 * same. */
struct score mask_scores_of(const struct mask_scores *m, bool last);
int mask_scores_add(struct mask_scores *m, struct run *r, const struct feed *f, struct error *e);
/* The two halves of mask_scores_add, for ranks that divide an evaluation: the masks of a batch, and
 * adding such to the scores. */
int mask_scores_list(struct mask_scores *m, struct run *r, const struct feed *f, struct error *e);
void mask_scores_take(struct mask_scores *m, const struct mask_record *records, uint32_t n);
