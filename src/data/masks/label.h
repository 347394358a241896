/*
 * label.h: masks from an image of values: a binary mask, classes or instances. PNG of 8 or 16 bits,
 * or JPEG, which holds binary masks only: its compression changes values.
 */
#pragma once

#include "data/dataset.h"
#include "base/base.h"

/* ---- Names of labels ----
 *
 * what nnU-Net's and the Medical Segmentation Decathlon's dataset.json say about
 * label values and modalities:
 *
 *    {"labels": {"background": 0, "liver": 1}, "channel_names": {"0": "CT"}}  nnU-Net 2
 *    {"labels": {"0": "background", "1": "liver"}, "modality": {"0": "CT"}}    Decathlon, nnU-Net 1
 */

struct dataset_json {
    struct dataset_json_label {
        int64_t value;
        char name[64];
    } *labels;
    uint32_t n_labels, modalities;
    char modality[256]; /* "FLAIR, T1w, t1gd, T2w" */
};
/* Reads FOLDER/dataset.json or the one beside FOLDER. No such file, or one without labels:
 * everything is empty. */
void dataset_json_read(struct dataset_json *j, const char *folder);
void dataset_json_free(struct dataset_json *j);
const char *dataset_json_name(const struct dataset_json *j, int64_t value); /* NULL: none */
/* Returns the value of a name, or -1. */
int64_t dataset_json_value(const struct dataset_json *j, const char *name);

/* Reads all masks of a file, one per value, in the order of first appearance by rows. With
 * LABELS_BINARY there is one mask: the values from the threshold on. The pixels stay at the front
 * of the scratch, and the masks point to them. o->kind is not LABELS_AUTO. */
enum data_fault label_read(const char *path, const struct label_options *o, void *scratch, size_t n,
                           struct mask *masks, uint32_t room, struct dataset_masks *out, struct error *e);
/* Finds the masks of pixels in memory, which LABELS_BINARY changes to 0 and 1. `map` is scratch
 * for 65536 numbers. */
enum data_fault label_masks(void *pixels, uint32_t h, uint32_t w, int bytes, const struct label_options *o,
                            uint16_t *map, struct mask *masks, uint32_t room, struct dataset_masks *out,
                            struct error *e);

/* The values of a file. */
struct label_image {
    uint32_t h, w;
    int bytes;     /* per value: 1 or 2 */
    const char *lossy; /* the format, if compression may have changed values; NULL: it has not */
    void *pixels;  /* rows without gaps, at the front of the scratch */
    uint16_t *map; /* scratch of label_masks */
};
/* Decodes a file into the scratch. */
enum data_fault label_decode(const char *path, void *scratch, size_t n, struct label_image *out, struct error *e);
/* Does the same with file_n bytes at the front of the scratch; `path` is for messages. */
enum data_fault label_decode_bytes(const char *path, void *scratch, size_t n, size_t file_n, struct label_image *out,
                                   struct error *e);
/* Finds the masks of decoded values, as label_read finds them. */
enum data_fault label_image_masks(const char *path, const struct label_image *m, const struct label_options *o,
                                  struct mask *masks, uint32_t room, struct dataset_masks *out, struct error *e);
/* The values of options.categories: numbers, or names in dataset.json where there is one; `names`
 * may be NULL. The caller frees o->values. */
struct dataset_json;
int label_set_values(struct label_options *o, char *const *categories, uint32_t n, const struct dataset_json *names,
                     struct error *e);

/* What one mask image looks like (data/dataset_survey.c). */
enum label_look {
    LOOK_EMPTY,       /* 0 everywhere */
    LOOK_ONE,         /* one value besides 0 */
    LOOK_VALUES,      /* several values, each an area or a line */
    LOOK_SOFT,        /* a binary mask with soft edges: values between dark and bright along its border */
    LOOK_SOFT_VALUES, /* areas of several values, with values between them along their borders */
    LOOK_IMAGE,       /* a photograph: many values, no areas */
    LOOKS
};
struct label_facts {
    enum label_look look;
    uint32_t values;   /* different values besides 0 and the ignored one */
    uint32_t largest;
    bool two_ends;     /* no value is between an eighth and three quarters of the largest */
    bool seen[65536];  /* which values occur, with 0 and the ignored one */
};
/* Looks at decoded values. `ignore` below 1: no value is ignored. */
void label_look(const struct label_image *m, int ignore, struct label_facts *out);
