/*
 * predictor.h: a model asked for masks of one image.
 *
 *     image ─ fitted, normalised, padded ─ encoder, once ─ embedding
 *     prompts ──────────────────────────────────────────────── decoder, again and again ─ logits ─ masks
 *
 * Encoder and decoder are two runs, one after the other: the memory is that of the larger
 * one, both forward only. Any family with mask_side whose builder knows enum model_part.
 *
 *     predictor_open(&a, &config, &image, &shape, &error)
 *     predictor_run(&a, prompts, n, &error)
 *     predictor_mask(&a, prompt, candidate, 0, mask)
 *     predictor_close(&a)
 */
#ifndef PREDICTOR_H
#define PREDICTOR_H

#include "train/run.h"

/* --- the image (predictor_image.c) -------------------------------------------------------- */

struct predictor_image {
    uint32_t w, h;
    uint8_t *rgb; /* [h][w][3] */
};
/* A JPEG or PNG file in its stored pixels. PL_USAGE names it when it cannot be read. */
int predictor_image_read(struct predictor_image *p, const char *path, struct error *e);
/* The same in memory; messages name nothing. */
int predictor_image_decode(struct predictor_image *p, const void *bytes, size_t n, struct error *e);
void predictor_image_free(struct predictor_image *p);

/* Fitted into the upper left of a square, to [3][side][side]; zeros beside it. Its size there
 * is given back. */
void predictor_fit(const struct predictor_image *p, const struct pixel_norm *n, uint32_t side, float *to, uint32_t *fit_w, uint32_t *fit_h);

/* --- asking ------------------------------------------------------------------------------ */

/* What all prompts of one run have in common. */
struct predictor_shape {
    int64_t prompts; /* at most so many at once */
    int64_t points;  /* of each */
    bool box;        /* each has one */
    bool single;     /* one mask for a prompt instead of several candidates */
    int64_t side;    /* of the square that the image is fitted into; 0: the model's own */
};

/* In pixels of the image as it is stored. */
struct predictor_prompt {
    const float (*points)[2]; /* x, y; as many as the shape says */
    const int *labels;        /* 1: on what is asked for, 0: beside it */
    float box[4];             /* x0, y0, x1, y1 */
};

struct predictor {
    struct run run;           /* of what follows the encoder */
    struct predictor_shape shape;
    uint32_t w, h;            /* of the image */
    uint32_t fit_w, fit_h;    /* of it in the square */
    int64_t mask_side;        /* of the logits */
    int64_t candidates;       /* of a prompt */
    float *logits;            /* [prompts][candidates][mask_side][mask_side] of the last run */
    float *scores;            /* [prompts][candidates]: predicted IoU */
    float *fitted;            /* [fit_h][fit_w]: one candidate, on its way to the image's size */
    uint64_t encoder_bytes, decoder_bytes; /* planned */
};

/* Opens config.model_path or model_preset, encodes the image and makes the decoder ready.
 * PL_USAGE: the model makes no masks, or takes something other than RGB. On failure
 * nothing needs closing. */
int predictor_open(struct predictor *a, const struct config *c, const struct predictor_image *p, const struct predictor_shape *shape, struct error *e);
void predictor_close(struct predictor *a);
/* Asks n prompts, 1 to shape.prompts. */
int predictor_run(struct predictor *a, const struct predictor_prompt *prompts, int64_t n, struct error *e);
/* The candidate that the model thinks best. */
int64_t predictor_best(const struct predictor *a, int64_t prompt);
/* One candidate at the image's size: logits bilinear to the square, the padding cut off,
 * bilinear to w x h; a byte a pixel, 1 where above 0. Returns the stability: pixels above
 * `offset` over pixels above -offset, 0 when there are none. */
double predictor_mask(struct predictor *a, int64_t prompt, int64_t candidate, float offset, uint8_t *mask);

#endif
