/*
 * predict.h: the declarations that the files of `plimsoll predict` share.
 *
 *     predict.c          the command; one prompt
 *     predict_write.c    the outputs: masks, overlays, run lengths
 *     predict_question.c the mask and the answer to a question
 *     predict_all.c      --everything: a grid of prompts, and the selection of masks
 *     predict_many.c     many images with one load of the model (predict_many.h)
 *     predict_trained.c  the image size and range that the model was trained with
 */
#ifndef CLI_PREDICT_H
#define CLI_PREDICT_H

#include "cli/data.h"
#include "cli/predict_prompts.h"
#include "data/masks/annotation.h"
#include "report/draw.h"
#include "data/dataset.h"
#include "infer/predictor.h"

struct predict {
    const char *image_path, *model, *adapter; /* paths */
    struct names paths, points, set, texts;  /* as given */
    const char *box, *question, *output, *overlay, *json, *memory;
    const char *prompts, *data, *derive, *slices; /* --prompts, --data, --prompt, --slices */
    struct image_prompt common; /* of all images, by --point and --box */
    bool multimask, single;
    uint64_t everything, batch, side, max_new; /* 0: not given */
    double min_iou, min_stability, nms;

    struct config config;
    struct pixel_range range; /* of an image of 16 bits, or of a volume */
    struct slice_options slicing; /* of a volume */
    int64_t modalities[3];
    struct predictor_image image;
};

/* Converts a mask, [h][w] bytes, to runs. */
void predict_trace(struct traced *t, const uint8_t *mask, uint32_t w, uint32_t h);
/* Writes {"size": [h, w], "counts": "...", "score": x, "bbox": [x, y, w, h], "area": n} */
struct json_writer;
void predict_put_mask(struct json_writer *w, const struct traced *t, uint32_t width, uint32_t height, double score);
/* A result of COCO's: "segmentation": {size, counts}, "score", "bbox" and "area" in the open
 * map. */
void predict_put_result(struct json_writer *w, const struct traced *t, uint32_t width, uint32_t height, double score);
/* The same without a score, as a member of a map. */
void predict_put_mask_as(struct json_writer *w, const char *key, const struct traced *t, uint32_t width,
                         uint32_t height);

/* Draws the mask over the image and the prompt over both. */
struct predict_drawn {
    const uint8_t *mask;
    const struct predictor_prompt *prompt;
    int64_t points;
    bool box;
};
int predict_overlay(const struct predict *p, const char *path, const struct predict_drawn *d, struct error *e);

int predict_everything(struct predict *p, struct error *e);
int predict_many(struct predict *p, struct error *e);
int predict_question(struct predict *p, struct error *e);
/* Whether the model of the configuration is a vision tower with a head; the classes of images. */
bool predict_has_head(const struct predict *p);
int predict_classes(struct predict *p, struct error *e);

/* How the run whose folder holds the model read its images. */
struct trained_images {
    int64_t side;             /* data.image_size; 0: no such run, or the key is auto */
    struct pixel_range range; /* of 16 bits; RANGE_AUTO: no such run, or it had no such images */
    struct slice_options slices; /* of volumes; its modalities are below */
    int64_t modalities[3];
};
struct trained_images predict_trained_images(const char *model);

#endif
