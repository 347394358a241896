/*
 * pairs.h: what the formats `pairs` (pairs.c) and `csv` (csv_set.c) share: an image file and a mask
 * file per sample.
 *
 * They differ in how the files are found. After that a sample is two paths, a name, a key and, of a
 * table, the value of its split column and its texts, all stored in one block of names.
 */
#pragma once

#include "data/dataset.h"
#include "data/masks/label.h"

/* Offsets into the names. */
struct item {
    uint32_t image, mask, key, name, split;
    uint32_t text[DATASET_TEXTS]; /* with options.texts */
    int32_t group;                /* with options.texts: index in `groups` */
    /* for slices, the volumes of the image and of the masks, as index + 1; 0: a file */
    uint32_t image_volume, mask_volume, slice;
    uint32_t whole;               /* offset + 1 of the name of its volume or patient; 0: it is no part of one */
};

struct pairs {
    VEC(struct item) items;
    VEC(uint32_t) groups;         /* names of the datasets that tables are put together from */
    struct text names;
    VEC(struct volume) volumes;   /* the channels of an image one after the other */
    struct slice_options slices;
    size_t room;                  /* bytes that reading a slice may take */
    uint32_t modality[3], channels; /* that make an image */
    struct dataset_json json;     /* names of labels and modalities */
};

/* Stores a name, after that of its folder if it is relative and `folder` not NULL. */
uint32_t pairs_keep(struct pairs *p, const char *folder, const char *name);
/* Begins and ends the search for files. */
int pairs_start(struct dataset *d, const struct dataset_options *o, const char *folder, struct error *e);
int pairs_finish(struct dataset *d, struct error *e);
void pairs_close(struct dataset *d);

/* Does what struct dataset_format says of its members. */
void pairs_describe(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key);
enum data_fault pairs_image(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out,
                            struct error *e);
enum data_fault pairs_masks(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks,
                            uint32_t room, struct dataset_masks *out, struct error *e);
enum data_fault pairs_values(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct label_image *out,
                             struct error *e);
enum data_fault pairs_plane(const struct dataset *d, uint64_t i, void *to, size_t room, struct plane *out,
                            bool *is_plane, struct error *e);
void pairs_set_range(struct dataset *d);
const struct volume *pairs_slice(const struct dataset *d, uint64_t i, uint32_t *slice, const char **name);
bool pairs_split_group(const struct dataset *d, uint64_t i, char *out, size_t room);
const char *pairs_label_path(const struct dataset *d, uint64_t i);
const char *pairs_image_path(const struct dataset *d, uint64_t i);
