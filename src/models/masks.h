/*
 * masks.h: what models that predict masks from prompts have beyond model.h: Segment Anything and
 * the models with its prompt encoder and decoder.
 */
#pragma once

#include "models/contents.h"

/* Reads preprocessor_config.json, or the image_processor of processor_config.json, from a model's
 * folder. Without such a file, and for the folder "", SAM's values are used. */
int pixel_norm_read(struct pixel_norm *n, const char *folder, struct error *e);

/* A model's own part; struct model points to it. */
struct mask_model {
    int64_t patch;          /* sides of images are multiples of it */
    double extent;          /* range of the coordinates of an image of side model.image, in pixels */
    int64_t (*side)(const struct model *m, int64_t image); /* of the masks for images of this side */
    struct pixel_norm norm; /* normalisation of images that the model takes as bytes */
    bool stretches;         /* images are resized to the whole square, not to its longer side */
    bool objects;           /* it predicts whether there is an object */
    bool clips;             /* it takes clips of videos */
    bool finer;             /* SAM-HQ: its own token makes masks too */
};

/* What a frame sees of another one. */
struct clip_sight {
    int32_t memory;   /* the temporal position of its memory; clip_memories(m): it is not seen */
    int32_t pointer;  /* 1: its pointer is not seen */
    float time;       /* how far apart both are, for its pointer */
};
/* Returns what is seen of a frame that is `apart` frames before, in the direction of tracking.
 * later: pointers of later prompted frames are seen too. pointers: the frames whose pointers are
 * seen, at most, clip_pointers(m) and the video's. */
struct clip_sight clip_see(const struct model *m, int64_t apart, bool prompted, bool later, int64_t pointers);
/* Return the memories and pointers that a frame sees, at most, with those of one prompted frame,
 * and how many prompted frames it sees; below 0: all. */
int64_t clip_memories(const struct model *m);
int64_t clip_pointers(const struct model *m);
int64_t clip_prompted(const struct model *m);

/* What follows from the times of a clip's frames, T x T of each (sam2_video.c). */
struct clip_rows {
    int32_t *memory, *pointer;
    float (*time)[2]; /* NULL: it is not asked for */
};
void clip_rows(const struct model *m, const struct prompting *p, const int32_t *times, struct clip_rows *out);
