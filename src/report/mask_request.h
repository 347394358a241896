/*
 * mask_request.h: masks of one image or of many, as a command asks for them: checked, predicted and
 * written.
 *
 *     OUT.png       the mask, one bit a pixel; with --everything an image of all masks
 *     OVERLAY.png   the mask and its prompt over the image
 *     FILE.json     COCO run lengths with score, box and area; with --everything SA-1B's format
 *
 * Prompts and masks are in pixels of the image as stored. A prompt's candidate with the best
 * predicted IoU is written, or all candidates.
 */
#pragma once

#include "infer/everything.h"
#include "infer/many.h"

struct mask_request {
    /* of one image too: the paths, the prompt, the outputs, --batch and --side */
    struct many_options many;
    struct everything_options every; /* points 0: not asked for */
    struct names points;             /* as given, as the box is */
    const char *box, *question, *overlay;
    const char *data;                /* the run file of many.derive; NULL: none */
    bool all;                        /* every candidate, OUT-1.png, OUT-2.png, ..., instead of the best */
    uint64_t max_new;                /* tokens of an answer; 0: the default */
    struct image image;              /* of a request of one image, at image_path */
    const char *image_path;
};

/* Predicts the masks, writes the files and prints what they are. PL_USAGE names options that do not
 * go together. */
int mask_request_run(struct mask_request *r, struct error *e);
