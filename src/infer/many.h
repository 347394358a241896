/*
 * many.h: mask prediction for many images with one load of the model.
 *
 *     images with prompts ─ encoder, once an image ─ decoder, in batches of prompts ─ best
 *     candidate ─ PNG or label volume, COCO RLE
 *
 * The images are files, the slices of a volume, or the samples of a dataset (many_sources.c). An
 * image that cannot be used is named and left out; everything else is written (many.c).
 */
#pragma once

#include "data/dataset.h"
#include "infer/predictor.h"
#include "io/file.h"

/* --- image prompts --------------------------------------------------------------------------- */

/* The prompts of many images, from a file.
 *
 *     CSV    image,id,x0,y0,x1,y1,x,y,label,category  a box, a point, or both in a row; for a video
 *                                                     the column is frame, and `image` the frame's number
 *     JSON   COCO: the bbox of each annotation
 *
 * Rows of the same image and id are one prompt of several points. Coordinates are pixels of the
 * image as stored.
 */
struct image_prompt {
    const char *image;  /* as the file names it */
    const char *id;     /* "": none */
    int64_t category;   /* below 0: none */
    int64_t image_id;   /* of COCO; below 0: none */
    uint32_t row;       /* in the file */
    float (*points)[2];
    int *labels;
    uint32_t n;         /* points */
    bool box;
    float corners[4];
};
/* Parses the points X,Y[,LABEL] and the box X0,Y0,X1,Y1 (NULL: none) of a command; with an `image`,
 * the one at a path, they must lie in it. The caller frees points and labels, also on failure. */
struct image;
int image_prompt_parse(struct image_prompt *q, const struct names *points, const char *box, const struct image *image,
                       const char *path, struct error *e);

struct image_prompts {
    VEC(struct image_prompt) all; /* sorted by image, then by row */
    struct bump memory;
};

/* Reads a file. PL_USAGE names the line, or what is missing. On failure nothing needs freeing. */
int image_prompts_read(struct image_prompts *p, const char *path, struct error *e);
/* Does the same from n bytes followed by a 0, which a table overwrites. */
int image_prompts_parse(struct image_prompts *p, char *text, size_t n, bool json, struct error *e);
void image_prompts_free(struct image_prompts *p);

struct many_options {
    const struct config *config;
    const struct names *paths;    /* image files, folders of them, or one volume; none: see `derive` */
    const char *prompts;          /* a file of prompts; NULL: all images have `common` */
    struct image_prompt common;
    /* the images are those of the configuration's validation data, or training data if it has no
     * other, with prompts from their masks: the box of each; its most interior point; train: drawn
     * as in training. NULL: not so */
    const char *derive;
    const char *slices;           /* "FIRST-LAST" of a volume; NULL: all */
    struct image_reading reading;
    bool single;                  /* as of predictor_shape */
    int64_t batch;                /* prompts at once */
    const char *output;           /* a folder of masks, or the label volume of one volume; NULL: none */
    const char *json;             /* a list of COCO results; NULL: none */
};

struct many_result {
    uint64_t images, masks;       /* that were predicted */
    uint64_t all, unused;         /* images in all; that could not be used... */
    char first[512];              /* ...the first of them */
    uint64_t volumes;             /* label volumes that were written */
    double seconds;
};

/* Reports whether a path is taken as a volume: NIfTI, a TIFF of several pages, or a folder or file
 * of DICOM. */
bool many_is_volume(const char *path);
/* Predicts the masks of all images and writes them. Two masks never get one name: where folders do
 * not tell them apart, nothing is predicted and PL_USAGE returned. */
int many_predict(const struct many_options *o, struct many_result *out, struct error *e);

/* --- between many.c and many_sources.c ------------------------------------------------------- */

/* An image and its prompts. */
struct many_image {
    char name[512];                     /* for file names and messages */
    struct image image;
    const struct image_prompt *prompts; /* valid until the next image is read; known before it is read, or 0 */
    uint32_t n;
    /* the image is a slice of it, and its masks are labels of a volume; NULL: an image */
    const struct volume *volume;
    uint32_t slice;
    const char *volume_name;
};

/* Images with prompts, in order. */
struct many_source {
    const struct many_options *o;
    bool folders;                       /* names of images and masks have their folders */
    int64_t side;
    uint64_t n;
    uint32_t most;                      /* prompts of an image */
    struct predictor_shape shapes[PREDICTORS_MOST]; /* of the prompts: points and box */
    uint32_t n_shapes;
    /* fills all of `out` that is known before the image is read */
    void (*look)(const struct many_source *s, uint64_t i, bool folders, struct many_image *out);
    /* reads the rest */
    int (*read)(struct many_source *s, uint64_t i, struct many_image *out, struct error *e);
    /* checks the names of the outputs, once they are known; NULL: there is nothing to check */
    int (*check)(const struct many_source *s, struct error *e);
    void (*close)(struct many_source *s); /* also after opening failed */
    void *state;
};
int many_open_files(struct many_source *s, struct error *e);
int many_open_slices(struct many_source *s, struct error *e);
int many_open_dataset(struct many_source *s, struct error *e);
