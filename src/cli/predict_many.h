/*
 * predict_many.h: `plimsoll predict` on many images: what its sources of images share with the
 * loop.
 *
 *     predict_many.c    the loop and the outputs
 *     predict_files.c   image files, with the prompts of the command line or of a file (predict_prompts.h)
 *     predict_labels.c  the images of a dataset, with prompts derived from its masks
 *     predict_volumes.c the slices of a volume, and label volumes as output
 *     predict_names.c   the names of the outputs
 */
#ifndef CLI_PREDICT_MANY_H
#define CLI_PREDICT_MANY_H

#include "cli/predict.h"
#include "cli/predict_prompts.h"
#include "data/volumes/volume.h"

/* An image and its prompts. */
struct predict_item {
    char name[512];                     /* of the image, for file names and messages */
    struct predictor_image image;
    const struct image_prompt *prompts; /* valid until the next item is read */
    uint32_t n;
    /* the image is a slice of it, and its masks are labels of a volume; NULL: an image */
    const struct volume *volume;
    uint32_t slice;
    const char *volume_name;
};

/* What is known of an image before it is read. */
struct predict_about {
    const struct image_prompt *prompts; /* [n]; NULL, 0: they come with the image */
    uint32_t n;
    const struct volume *volume;        /* as in predict_item */
    const char *volume_name;
};

/* Images with prompts, in order. */
struct predict_source {
    bool folders;                       /* names of images and masks have their folders (predict_names.c) */
    uint64_t n;
    uint32_t most;                      /* prompts of an image */
    struct predictor_shape shapes[PREDICTORS_MOST]; /* of the prompts: points and box */
    uint32_t n_shapes;
    int (*read)(struct predict_source *s, uint64_t i, struct predict_item *out, struct error *e);
    void (*close)(struct predict_source *s);
    /* The name of image i, as predict_item.name. */
    void (*about)(const struct predict_source *s, uint64_t i, bool folders, char *name, size_t room,
                  struct predict_about *out);
    void *state;
};
int predict_files(struct predict_source *s, const struct predict *p, struct error *e);
int predict_labels(struct predict_source *s, struct predict *p, struct error *e);
/* Sets s->folders so that no two masks have one name; called by the sources. PL_USAGE: two have one
 * either way. */
int predict_choose_names(struct predict_source *s, struct error *e);
/* Creates the folder of a path. */
int predict_make_folder(const char *path, struct error *e);
/* An error if two masks of an image would have one name. */
int predict_check_ids(const struct predict_item *x, struct error *e);
/* The path of a mask: FOLDER/NAME-ID.png; without an id FOLDER/NAME-NUMBER.png, or for number 0
 * FOLDER/NAME.png. */
void predict_mask_path(const char *folder, const char *name, bool folders, const char *id, uint32_t number,
                       struct text *out);
/* FOLDER/NAME.nii.gz */
void predict_label_path(const char *folder, const char *name, bool folders, struct text *out);
/* The index of a shape, added if it is new. PL_USAGE: too many. */
int predict_shape(struct predict_source *s, uint32_t points, bool box, struct error *e);

#endif
