/*
 * ask.h: a model asked for masks of one picture.
 *
 *     picture ─ fitted, normalised, padded ─ encoder, once ─ embedding
 *     prompts ──────────────────────────────────────────────── decoder, again and again ─ logits ─ masks
 *
 * Encoder and decoder are two runs, one after the other: the memory is that of the larger
 * one, both forward only. Any family with mask_side whose builder knows enum model_part.
 *
 *     ask_open(&a, &config, &picture, &shape, &error)
 *     ask_run(&a, prompts, n, &error)
 *     ask_mask(&a, prompt, candidate, 0, mask)
 *     ask_close(&a)
 */
#ifndef ASK_H
#define ASK_H

#include "train/run.h"

/* --- the picture (ask_image.c) -------------------------------------------------------- */

struct ask_picture {
    uint32_t w, h;
    uint8_t *rgb; /* [h][w][3] */
};
/* A JPEG or PNG file in its stored pixels. PL_USAGE names it when it cannot be read. */
int ask_picture_read(struct ask_picture *p, const char *path, struct error *e);
/* The same in memory; messages name nothing. */
int ask_picture_decode(struct ask_picture *p, const void *bytes, size_t n, struct error *e);
void ask_picture_free(struct ask_picture *p);

/* Fitted into the upper left of a square, to [3][side][side]; zeros beside it. Its size there
 * is given back. */
void ask_fit(const struct ask_picture *p, const struct pixel_norm *n, uint32_t side, float *to, uint32_t *fit_w, uint32_t *fit_h);

/* --- asking ------------------------------------------------------------------------------ */

/* What all prompts of one run have in common. */
struct ask_shape {
    int64_t prompts; /* at most so many at once */
    int64_t points;  /* of each */
    bool box;        /* each has one */
    bool single;     /* one mask for a prompt instead of several candidates */
    int64_t side;    /* of the square that the picture is fitted into; 0: the model's own */
};

/* In pixels of the picture as it is stored. */
struct ask_prompt {
    const float (*points)[2]; /* x, y; as many as the shape says */
    const int *labels;        /* 1: on what is asked for, 0: beside it */
    float box[4];             /* x0, y0, x1, y1 */
};

struct ask {
    struct run run;           /* of what follows the encoder */
    struct ask_shape shape;
    uint32_t w, h;            /* of the picture */
    uint32_t fit_w, fit_h;    /* of it in the square */
    int64_t mask_side;        /* of the logits */
    int64_t candidates;       /* of a prompt */
    float *logits;            /* [prompts][candidates][mask_side][mask_side] of the last run */
    float *scores;            /* [prompts][candidates]: predicted IoU */
    float *fitted;            /* [fit_h][fit_w]: one candidate, on its way to the picture's size */
    uint64_t encoder_bytes, decoder_bytes; /* planned */
};

/* Opens config.model_path or model_preset, encodes the picture and makes the decoder ready.
 * PL_USAGE: the model makes no masks, or takes something other than RGB. On failure
 * nothing needs closing. */
int ask_open(struct ask *a, const struct config *c, const struct ask_picture *p, const struct ask_shape *shape, struct error *e);
void ask_close(struct ask *a);
/* Asks n prompts, 1 to shape.prompts. */
int ask_run(struct ask *a, const struct ask_prompt *prompts, int64_t n, struct error *e);
/* The candidate that the model thinks best. */
int64_t ask_best(const struct ask *a, int64_t prompt);
/* One candidate at the picture's size: logits bilinear to the square, the padding cut off,
 * bilinear to w x h; a byte a pixel, 1 where above 0. Returns the stability: pixels above
 * `offset` over pixels above -offset, 0 when there are none. */
double ask_mask(struct ask *a, int64_t prompt, int64_t candidate, float offset, uint8_t *mask);

#endif
