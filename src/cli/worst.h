/*
 * worst.h: the worst masks of an evaluation as images: what the model answered in blue, the
 * outline of what was right in green, and the prompt. `plimsoll eval` makes one sheet of them, `plimsoll
 * train` an image of each in the run's folder.
 */
#ifndef CLI_WORST_H
#define CLI_WORST_H

#include "data/dataset.h"
#include "train/config.h"
#include "train/score.h"

struct worst_masks {
    const struct config *config; /* model_path: who is asked */
    const struct dataset *set;   /* that the samples are of */
    const char *const *prompts;  /* names by worst.prompt */
    const struct worst *at;
    uint32_t n;
};

/* All on one sheet, the PNG at `path`. */
int worst_sheet(const struct worst_masks *w, const char *path, struct error *e);
/* Each in a PNG of its own: DIR/01-box-0.123.png is the worst, by a box, with that IoU. What images DIR held before go. */
int worst_images(const struct worst_masks *w, const char *dir, struct error *e);

#endif
