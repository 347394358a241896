/*
 * mask_drawing.h: how masks over images are shown on our pages: the colours, their legend, and the
 * caption of one mask. Text is the page's, not drawn into the image.
 */
#pragma once

#include "report/draw.h"

struct image;
struct everything;
struct predictor_prompt;
struct predictor_shape;

#define MASKS_PREDICTION ((struct colour){30, 144, 255})
#define MASKS_TRUTH ((struct colour){60, 210, 80})
#define MASKS_PROMPT ((struct colour){255, 200, 0})

/* Writes a line that explains the colours. */
void masks_legend(struct text *out);
/* Writes "IoU 0.123, prompt: box", and below it the sample and the mask's id. */
void masks_caption(struct text *out, double iou, const char *prompt, const char *sample, int64_t mask);

/* Writes a PNG of the image with a mask, [h][w] bytes, and the prompt over both. Lines and discs
 * scale with the image, so that they are visible at any size. */
int masks_write_prompted(const char *path, const struct image *image, const uint8_t *mask,
                         const struct predictor_prompt *q, const struct predictor_shape *shape, struct error *e);
/* Writes a PNG of the image with all masks, the largest first, so that small masks on top of them
 * stay visible. */
int masks_write_all(const char *path, const struct image *image, const struct everything *g, struct error *e);
