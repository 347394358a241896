/*
 * worst.h: draws the worst masks of an evaluation: the prediction in blue, the outline of the
 * ground truth in green, the prompt in yellow. `plimsoll eval` writes one sheet of all, `plimsoll
 * train` one image of each to the run's folder.
 */
#pragma once

#include "data/dataset.h"
#include "config/config.h"
#include "infer/score.h"

struct worst_masks {
    const struct config *config; /* model_path: the model that predicts */
    const struct dataset *set;   /* the dataset of the samples */
    const char *const *prompts;  /* names by worst.prompt */
    const struct worst *at;
    uint32_t n;
    const char *table;           /* HTML that the page shows before the masks; NULL: none */
};

/* Draws all masks on one sheet: an HTML page if `path` ends in .html, else a PNG. */
int worst_sheet(const struct worst_masks *w, const char *path, struct error *e);
/* Draws each mask into its own PNG: DIR/01-box-0.123.png is the worst, prompted with a box, with
 * that IoU. DIR/index.json lists them with the names of their samples. Empties DIR first. */
int worst_images(const struct worst_masks *w, const char *dir, struct error *e);
