/*
 * mask_scores.h: the scores of an evaluation over images with masks, batch by batch.
 *
 *     mask_scores_open     rows by the passes of the feed (point, box), memory for a batch
 *     mask_scores_add      after the program has run on a batch that the feed put
 *
 * IoU is that of the candidate that the model itself thinks best, at the loss's resolution and over
 * the image's own area. With more than one round there are rows for the last round as well:
 * "box, round 8". Dice of a mask follows from its IoU. The worst are of the first round; their place is that of
 * the prompt, x and y from 0 to 1 over the square: a point, or two corners.
 */
#ifndef MASK_SCORES_H
#define MASK_SCORES_H

#include "train/feed.h"
#include "train/score.h"

struct mask_scores {
    struct scores scores;
    char (*names)[48];
    const char **prompts;
    uint32_t passes;
    id first, last;    /* tensors [rows * masks, MASK_STATS]; last 0: one round */
    float *statistics; /* of one of them */
    float *places;     /* of the batch's prompts, [rows * masks][slots][2] */
    id prompts_at;     /* their storage */
    int64_t slots;
};

/* False: the program does not tell of masks, and nothing was opened. `worst`: so many are kept. */
bool mask_scores_open(struct mask_scores *m, const struct run *r, const struct feed *f, enum program p, uint32_t worst);
void mask_scores_close(struct mask_scores *m);
/* Over all passes: of the first round, or of the last one, which without more rounds is the first. */
struct score mask_scores_of(const struct mask_scores *m, bool last);
int mask_scores_add(struct mask_scores *m, struct run *r, const struct feed *f, struct error *e);

#endif
