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
 * For many images both runs stay open, each with its part of the weights: the
 * memory use is that of both together.
 *
 *     predictors_open(&s, &config, shapes, n, &error)
 *     predictors_encode(&s, &image, &error)         for each image
 *     a = &s.of[k]                                   then predictor_run and predictor_mask as above
 *     predictors_close(&s)
 */
#pragma once

#include "base/base.h"
#include "config/config.h"
#include "data/dataset.h"
#include "data/images/image.h"
#include "engine/run.h"
#include "io/file.h"
#include "models/contents.h"

/* --- masks at the size of the image ---------------------------------------------------------- */

struct mask_view {
    int64_t logits;       /* side of the logits */
    int64_t side;         /* of the padded square */
    int64_t fit_w, fit_h; /* the image's size in the square */
    int64_t w, h;         /* of the image */
};
/* Resizes logits to a mask, one byte per pixel, 1 where the resized logits are above 0. `fitted` is
 * scratch, [fit_h][fit_w]. Returns the stability score: pixels above `offset` over pixels above
 * -offset, 0 if there are none. */
double mask_upsample(const struct mask_view *v, const float *logits, float *fitted, float offset, uint8_t *mask);

/* Resizes logits [side][side] of a stretched image to its size: to[h][w]. */
void logits_upsample(const float *logits, int64_t side, int64_t w, int64_t h, float *to);

/* Describes logits of a model that pads or stretches an image of w x h to a square: logits of a
 * stretched image are resized to its size at once. */
struct mask_view mask_view_of(int64_t logits, int64_t side, bool stretched, uint32_t w, uint32_t h);

/* Resizes the image into the upper left of a square [3][side][side], or stretches it to all of it,
 * with the loader's own resizing, normalises it, and pads with zeros. Returns its size in the
 * square. */
void predictor_fit(const struct image *p, const struct pixel_norm *n, uint32_t side, bool stretched, float *to,
                   uint32_t *fit_w, uint32_t *fit_h);

/* --- runs -------------------------------------------------------------------------------- */

/* Plans and starts a forward run of a mask model; runs it on what was written. */
int predictor_start(struct run *r, const struct config *c, const struct contents *holds, struct error *e);
int predictor_forward(struct run *r, struct error *e);
/* Opens the model that c names, and checks that it predicts masks of RGB images of `side` pixels,
 * 0: its own side. Messages name it. */
int predictor_open_model(struct model *m, const struct config *c, int64_t side, struct mask_canvas *out,
                         struct error *e);
/* Converts a pixel of an image of w x h, fitted to fit[0] x fit[1] pixels of the square, to the
 * model's coordinates. */
void predictor_to_model(const struct mask_canvas *x, const uint32_t fit[2], uint32_t w, uint32_t h, const float from[2],
                        float to[2]);

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
    struct mask_canvas canvas;     /* the square; canvas.cells is the side of the logits */
    int64_t candidates;       /* per prompt */
    float *logits;            /* [prompts][candidates][cells][cells] of the last run */
    float *scores;            /* [prompts][candidates]: predicted IoU */
    float *fitted;            /* [fit_h][fit_w]: one candidate, before it is resized to the image */
    uint64_t encoder_bytes, decoder_bytes; /* planned memory */
};

/* Opens config.model_path or model_preset, encodes the image and prepares the decoder.
 * PL_USAGE: the model predicts no masks, or its input is not RGB. On failure nothing needs
 * closing. */
int predictor_open(struct predictor *a, const struct config *c, const struct image *p,
                   const struct predictor_shape *shape, struct error *e);
void predictor_close(struct predictor *a);
/* Predicts the masks of n prompts, 1 to shape.prompts. */
int predictor_run(struct predictor *a, const struct predictor_prompt *prompts, int64_t n, struct error *e);
/* Returns the candidate with the highest predicted IoU. */
int64_t predictor_best(const struct predictor *a, int64_t prompt);
/* Resizes one candidate to the image's size: logits are resized bilinearly to the square, the
 * padding is removed, and the rest is resized bilinearly to w x h (a stretched image's at once);
 * one byte per pixel, 1 where above 0. Returns the stability score: pixels above `offset` over
 * pixels above -offset, 0 if there are none. */
double predictor_mask(struct predictor *a, int64_t prompt, int64_t candidate, float offset, uint8_t *mask);
/* Converts a point from 0 to 1 over the square, as training has it, to pixels of an image of w
 * x h. */
void predictor_to_pixels(uint32_t side, bool stretched, uint32_t w, uint32_t h, const float from[2], float to[2]);

/* --- many images ------------------------------------------------------------------------------ */

enum { PREDICTORS_MOST = 16 };

struct predictors {
    struct config *config; /* of each run: what is left of the budget */
    struct run encoder;
    float *pixels, *embedding;
    struct predictor of[PREDICTORS_MOST]; /* the decoders, by shape */
    uint32_t n;
};

/* Opens an encoder, and a decoder for each shape; all have the same side. memory.budget bounds all
 * runs together. On failure nothing needs closing. */
int predictors_open(struct predictors *s, const struct config *c, const struct predictor_shape *shapes, uint32_t n,
                    struct error *e);
void predictors_close(struct predictors *s);
/* Encodes an image, which all decoders then see. */
int predictors_encode(struct predictors *s, const struct image *p, struct error *e);

/* --- how images are read ---------------------------------------------------------------------- */

struct image_reading {
    int64_t side;                /* of the padded square; 0: the model's own */
    struct pixel_range range;    /* of images of 16 bits, and of volumes */
    struct slice_options slices; /* of volumes; its modalities may be those below */
    int64_t modalities[3];
};
/* Takes the keys that `c` was given; and where it was not, what the run that trained the model did,
 * whose folder holds the model or its adapter. A side that is set already stays. */
void image_reading_find(struct image_reading *out, const struct config *c);

/* Reads an output as f32, whatever its dtype. */
int predictor_output(struct run *r, const char *name, float *to, struct error *e);
/* Returns the number of elements of an output. */
int64_t predictor_output_elements(const struct run *r, const char *name);

/* --- classifier ------------------------------------------------------------------------------ */

/* A vision tower with a head: the classes of images, or which of some texts belong to
 * them.
 */
/* Reports whether the configured model is a vision tower with a head. */
bool classifier_applies(const struct config *c);
/* Predicts the classes of images, files or folders of them, or with texts which of those belong to
 * each image; prints a line for each, and writes a JSON list to a path (NULL: nowhere). */
int classify(const struct config *c, const struct names *paths, const struct names *texts, const char *json,
             struct error *e);
