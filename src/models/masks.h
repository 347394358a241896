/*
 * masks.h: what models that predict masks from prompts have beyond model.h: Segment Anything and
 * the models with its prompt encoder and decoder.
 */
#pragma once

#include "models/model.h"

/* Normalisation of pixel values: (value * scale - mean) / std. */
struct pixel_norm {
    double scale, mean[3], std[3];
};
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

/* Returns, for models that predict masks, the divisor of the sides of images; the range of the
 * coordinates of an image; the side of the masks for images of a side; the normalisation of images
 * as bytes. */
static inline double masks_extent(const struct model *m) { return m->masks->extent; }
static inline int64_t masks_patch(const struct model *m) { return m->masks->patch; }
static inline int64_t masks_side(const struct model *m, int64_t image) { return m->masks->side(m, image); }
static inline const struct pixel_norm *masks_norm(const struct model *m) { return &m->masks->norm; }

/* Returns how an image becomes the square that a mask model takes. */
static inline bool masks_stretch(const struct model *m) { return m->masks && m->masks->stretches; }
/* Reports whether a model predicts whether there is an object. */
static inline bool model_predicts_objects(const struct model *m) { return m->masks && m->masks->objects; }

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

/* Returns the prompts of a mask model: its batch.own. All zeros: one point for one mask of an
 * image of the configuration's size, with a target. */
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
    /* PART_IMAGE: of an image encoded once any number of prompts are served; with rounds it takes
     * bytes */
    enum model_part part;
    enum dtype embeddings; /* PART_REST: dtype of image_embeddings; DT_NONE: f32 */
    /* Clips instead of images, of this many frames; 0: images. Prompts and targets then have a row
     * for each frame and object, in this order: `masks` objects on each of the first `prompted`
     * frames, which may be any frames of the video, and on every frame. */
    int64_t frames, prompted;
    bool mask_prompts;   /* the prompts are the masks themselves, at the size of the image */
    /* One frame of a video in inference (frames 1), with the output object_memories: prompted
     * (prompted 1), or tracked (prompted 0) with memories as inputs: of up to `bank` prompted
     * frames and of the last tracked ones. 0: clips */
    int64_t bank;
    bool statistics;     /* rounds: every program outputs statistics per mask, not only the evaluation */
    bool picks;          /* with statistics: also the logits of the first round's best candidates, picked_masks */
};

/* Returns the prompts of a batch of a mask model; all zeros if it has none of its own. */
const struct prompting *prompting_of(const struct batch *b);

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
