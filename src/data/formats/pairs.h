/*
 * pairs.h: what the formats `pairs` (pairs.c) and `csv` (table.c) share: an image file and a mask file per sample.
 *
 * They differ in how the files are found. After that a sample is two paths, a name, a key and, of a table, the value
 * of its split column and its texts, all stored in one block of names.
 */
#ifndef PAIRS_H
#define PAIRS_H

#include "data/dataset.h"

/* Offsets into the names. */
struct item {
    uint32_t image, mask, key, name, split;
    uint32_t text[DATASET_TEXTS]; /* with options.texts */
    int32_t group;                /* with options.texts: index in `groups` */
};

struct pairs {
    VEC(struct item) items;
    VEC(uint32_t) groups;         /* names of the datasets that tables are put together from */
    struct text names;
    int64_t *values;
};

/* Stores a name, after that of its folder if it is relative and `folder` not NULL. */
uint32_t pairs_keep(struct pairs *p, const char *folder, const char *name);
/* Around the search for files. */
int pairs_start(struct dataset *d, const struct dataset_options *o, struct error *e);
void pairs_finish(struct dataset *d);
void pairs_close(struct dataset *d);

/* Of struct dataset_format. */
void pairs_describe(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key);
enum data_fault pairs_image(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out, struct error *e);
enum data_fault pairs_masks(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks, uint32_t room, struct dataset_masks *out, struct error *e);
const char *pairs_label_path(const struct dataset *d, uint64_t i);
const char *pairs_image_path(const struct dataset *d, uint64_t i);

#endif
