/*
 * mask_files.h: the predicted masks of one image as files.
 *
 *     OUT.png       the mask, one bit a pixel
 *     OVERLAY.png   the mask and its prompt over the image
 *     FILE.json     COCO run lengths with score, box and area
 */
#pragma once

#include "infer/everything.h"
#include "infer/generate.h"
#include "io/json.h"

struct mask_files {
    const char *image_path;
    const struct image *image;
    const char *output, *overlay, *json; /* NULL: not written */
    bool all;                            /* every candidate, OUT-1.png, OUT-2.png, ..., instead of the best */
};

/* Refuses to overwrite the input image; `path` may be NULL. */
int mask_files_check(const struct mask_files *f, const char *path, struct error *e);
/* Writes the candidates of the predictor's one prompt, and a line about each to `said`. */
int mask_files_write(const struct mask_files *f, struct predictor *a, const struct predictor_prompt *q,
                     struct text *said, struct error *e);
/* Writes the mask that a question asks for, with the question and its answer in JSON; the answer
 * and a line about the mask to `said`. */
int mask_files_write_answer(const struct mask_files *f, struct predictor *m, const char *question,
                            const struct answer *a, struct text *said, struct error *e);
/* Writes one image of all masks, and JSON in SA-1B's format. */
int mask_files_write_all(const struct mask_files *f, const struct everything *g, struct error *e);
