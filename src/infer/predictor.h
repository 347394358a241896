/*
 * predictor.h: mask prediction (inference) for one image.
 *
 *     image ─ fitted, normalised, padded ─ encoder, once ─ embedding
 *     prompts ──────────────────────────────────────────────── decoder, repeatedly ─ logits ─ masks
 *
 * Encoder and decoder are two runs, one after the other: the memory use is that of the larger one,
 * both forward only. It works for any family of mask models whose builder implements enum
 * model_part.
 *
 *     predictor_open(&a, &config, &image, &shape, &error)
 *     predictor_run(&a, prompts, n, &error)
 *     predictor_mask(&a, prompt, candidate, 0, mask)
 *     predictor_close(&a)
 *
 * For many images both runs stay open, each with its part of the weights (predictor_many.c): the
 * memory use is that of both together.
 *
 *     predictors_open(&s, &config, shapes, n, &error)
 *     predictors_encode(&s, &image, &error)                 for each image
 *     a = &s.of[k]                                           then predictor_run and predictor_mask as above
 *     predictors_close(&s)
 */
#ifndef PREDICTOR_H
#define PREDICTOR_H

#include "data/images/range.h"
#include "engine/run.h"
#include "models/masks.h"

/* --- the image (predictor_image.c) -------------------------------------------------------- */

struct predictor_image {
    uint32_t w, h;
    uint8_t *rgb; /* [h][w][3] */
    double window[2]; /* of an image of 16 bits: the values that became black and white; else 0 and 0 */
};
/* Reads a JPEG, PNG or WebP file at its stored size; `range` is for 16 bits. PL_USAGE names a file
 * that cannot be read. */
int predictor_image_read(struct predictor_image *p, const char *path, const struct pixel_range *range, struct error *e);
/* The same from memory; messages name no file. */
int predictor_image_decode(struct predictor_image *p, const void *bytes, size_t n, const struct pixel_range *range,
                           struct error *e);
void predictor_image_free(struct predictor_image *p);

/* Resizes the image into the upper left of a square [3][side][side] and pads with zeros. Returns
 * its size in the square. */
void predictor_fit(const struct predictor_image *p, const struct pixel_norm *n, uint32_t side, float *to,
                   uint32_t *fit_w, uint32_t *fit_h);

/* --- prediction -------------------------------------------------------------------------- */

/* The common shape of all prompts of one run. */
struct predictor_shape {
    int64_t prompts; /* most prompts at once */
    int64_t points;  /* points of each prompt */
    bool box;        /* each prompt has a box */
    bool single;     /* one mask per prompt instead of several candidates */
    int64_t side;    /* side of the padded square; 0: the model's own */
};

/* Coordinates are pixels of the stored image. */
struct predictor_prompt {
    const float (*points)[2]; /* x, y; shape.points of them */
    const int *labels;        /* 1: foreground, 0: background */
    float box[4];             /* x0, y0, x1, y1 */
};

struct predictor {
    struct run run;           /* of the decoder */
    struct predictor_shape shape;
    uint32_t w, h;            /* size of the image */
    uint32_t fit_w, fit_h;    /* its size in the square */
    int64_t mask_side;        /* side of the logits */
    int64_t candidates;       /* per prompt */
    float *logits;            /* [prompts][candidates][mask_side][mask_side] of the last run */
    float *scores;            /* [prompts][candidates]: predicted IoU */
    float *fitted;            /* [fit_h][fit_w]: one candidate, before it is resized to the image */
    uint64_t encoder_bytes, decoder_bytes; /* planned memory */
};

/* Opens config.model_path or model_preset, encodes the image and prepares the decoder.
 * PL_USAGE: the model predicts no masks, or its input is not RGB. On failure nothing needs
 * closing. */
int predictor_open(struct predictor *a, const struct config *c, const struct predictor_image *p,
                   const struct predictor_shape *shape, struct error *e);
void predictor_close(struct predictor *a);
/* Predicts the masks of n prompts, 1 to shape.prompts. */
int predictor_run(struct predictor *a, const struct predictor_prompt *prompts, int64_t n, struct error *e);
/* The candidate with the highest predicted IoU. */
int64_t predictor_best(const struct predictor *a, int64_t prompt);
/* One candidate at the image's size: logits are resized bilinearly to the square, the padding is
 * removed, and the rest is resized bilinearly to w x h; one byte per pixel, 1 where above 0.
 * Returns the stability score: pixels above `offset` over pixels above -offset, 0 if there are
 * none. */
double predictor_mask(struct predictor *a, int64_t prompt, int64_t candidate, float offset, uint8_t *mask);

/* --- many images (predictor_many.c) ----------------------------------------------------------- */

enum { PREDICTORS_MOST = 16 };

struct predictors {
    struct config *config; /* of each run: what is left of the budget */
    struct run encoder;
    struct pixel_norm norm;
    float *pixels, *embedding;
    struct predictor of[PREDICTORS_MOST]; /* the decoders, by shape */
    uint32_t n;
};

/* All shapes have the same side. memory.budget bounds all runs together. On failure nothing needs
 * closing. */
int predictors_open(struct predictors *s, const struct config *c, const struct predictor_shape *shapes, uint32_t n,
                    struct error *e);
void predictors_close(struct predictors *s);
/* Encodes an image, which all decoders then see. */
int predictors_encode(struct predictors *s, const struct predictor_image *p, struct error *e);

/* --- for predictor_many.c --------------------------------------------------------------------- */

int predictor_start(struct run *r, const struct config *c, const struct prompting *p, struct error *e);
int predictor_forward(struct run *r, struct error *e);
/* An output as f32, whatever its dtype, and the number of its elements. */
int predictor_output(struct run *r, const char *name, float *to, struct error *e);
int64_t predictor_output_elements(const struct run *r, const char *name);
/* Checks the model before anything is planned; sets the side of the shape and of its masks. */
int predictor_model(struct predictor *a, const struct config *c, struct pixel_norm *norm, struct error *e);
/* Plans and starts the decoder; `fitted` pixels of the square are the most that an image covers. */
int predictor_decoder(struct predictor *a, const struct config *c, size_t fitted, struct error *e);
/* Gives the decoder the embedding of an image. */
int predictor_see(struct predictor *a, const float *embedding, struct error *e);

#endif
