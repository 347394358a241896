/*
 * contents.h: what a sample of a batch holds, in the words of no family: what is among its tokens,
 * and the prompts of its masks. A family builds what of it concerns it (batch.holds).
 */
#pragma once

#include "models/model.h"
#include "models/modalities.h"

/* Images, frames of videos and volumes among the tokens of a sample: those that it has, or those
 * for which a row has room. */
struct media {
    int64_t images;
    int64_t frames;           /* of videos; they come after the images */
    int64_t patches;          /* of images of any size */
    /* k * k: the grid to which the features of a frame are pooled; 0: they are as an image's */
    int64_t tokens_per_frame;
    int64_t volumes[MODALITIES]; /* of each modality */
};
/* Reports whether there is anything; whether there are volumes; whether the first has room for the
 * second. */
bool media_any(const struct media *m);
bool media_volumes(const struct media *m);
bool media_fit(const struct media *room, const struct media *m);
/* Makes the first have room for the second too. */
void media_grow(struct media *room, const struct media *m);

/* The label of a point: background or foreground (on the object); first or last corner of a box; a
 * filler ("not a point" embedding); unused (zero embedding; in slots it is masked out). In files
 * the labels are 0, 1, -1 (filler) and -10 (unused); corners are given as boxes there. */
enum point_kind {
    POINT_BACKGROUND,
    POINT_FOREGROUND,
    POINT_FIRST,
    POINT_LAST,
    POINT_FILLER,
    POINT_UNUSED,
    POINT_KINDS
};

/* The value of each byte of pixel_values, where these are bytes: of a plane, a channel of an image,
 * by row (its number % rows). rows 0: they are f32. */
struct pixel_table {
    int64_t rows;
    const float (*value)[256];
};

/* Prompts of masks. All zeros: one point for one mask of an image of the configuration's size, with
 * a target. */
struct prompting {
    int64_t image;       /* side of the images, in pixels; 0: the configuration's */
    int64_t masks;       /* M: prompts per image; 0: the default above */
    int64_t points;      /* per prompt; 0: no points */
    int64_t mask_inputs; /* per image: 0, 1 shared by all of its prompts, or M */
    bool slots;          /* points are slots for any prompt: no filler is appended, and unused slots are masked out */
    int64_t rounds;      /* training: images as bytes, prompts in slots, and this many rounds of prompts; 0: off */
    bool boxes, targets;
    bool single;         /* one mask per prompt instead of several candidates */
    bool hq_only;        /* with single: the mask of SAM-HQ's own token by itself */
    /* Inference. With single: the best candidate where that mask is unstable, if the model chooses
     * so. In clips, memories of prompted frames take masks, and pointers of later frames are not
     * seen. */
    bool stable;
    struct mask_loss_options loss; /* used with targets; all zeros: the defaults */
    /* Clips instead of images, of this many frames; 0: images. Prompts and targets then have a row
     * for each frame and object, in this order: `masks` objects on each of the first `prompted`
     * frames, which may be any frames of the video, and on every frame. */
    int64_t frames, prompted;
    bool mask_prompts;   /* the prompts are the masks themselves, at the size of the image */
    /* One frame of a video in inference (frames 1), with the output object_memories: prompted
     * (prompted 1), or tracked (prompted 0) with memories as inputs: of up to `bank` prompted
     * frames and of the last tracked ones. 0: clips */
    int64_t bank;
    bool statistics;     /* every program outputs statistics per mask, not only the evaluation */
    bool picks;          /* with statistics: also the logits of the first round's best candidates, picked_masks */
};

/* An image of any size in patches, t = 1, or a video (image_grid.h). */
struct image_grid {
    int64_t t, h, w;
    bool video;
    double seconds; /* of a video, that one of its t lasts; 0: not known */
};
static inline int64_t grid_patches(const struct image_grid *x) { return x->t * x->h * x->w; }

/* Normalisation of pixel values: (value * scale - mean) / std. */
struct pixel_norm {
    double scale, mean[3], std[3];
};
/* How an image becomes the square that a model of prompted masks takes. */
struct mask_canvas {
    int64_t side, patch;    /* pixels along the square; sides are multiples of patch */
    int64_t cells;          /* along its masks */
    double extent;          /* range of the model's coordinates, in pixels of the square */
    bool stretched;         /* an image fills the square; else its longer side does */
    struct pixel_norm norm; /* of images as bytes */
};
/* Finds it for squares of `side` pixels, 0: the model's own. Returns false if the model predicts no
 * masks from prompts. */
bool model_canvas(const struct model *m, int64_t side, struct mask_canvas *out);

/* A question whose answer is text and a mask. */
struct answering_losses {
    bool classes;        /* class_labels are given, if the model has classes */
    bool drops;          /* training: with the dropout of the configuration */
    double text, mask, class; /* weights of the losses */
    struct structure_loss_options structure; /* takes the place of prompting.loss if it has a size */
};

/* The part of a model with an image encoder to build. PART_IMAGE takes images and returns only
 * image_embeddings, the encoder's output; PART_REST takes image_embeddings, as returned, instead of
 * the images. */
enum model_part { PART_ALL, PART_IMAGE, PART_REST };

struct contents {
    enum model_part part;  /* with rounds, PART_IMAGE takes bytes */
    enum dtype embeddings; /* PART_REST: dtype of image_embeddings; DT_NONE: f32 */
    struct media media;
    struct pixel_table pixels;
    struct prompting prompts;
    struct answering_losses answer; /* with a question among its tokens */
    int64_t queries;       /* that are matched with its masks (prompts.masks) */
    bool padded;           /* its batch may have rows of padding, which a contrastive loss leaves out */
};
/* Returns what the samples of a batch hold; all zeros if nothing is said. */
const struct contents *contents_of(const struct batch *b);
