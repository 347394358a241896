/*
 * facts.h: statistics of a dataset of images with masks, and the memory of its masks. They cover
 * all samples and come from the annotations and the image headers.
 */
#pragma once

#include "base/base.h"

struct samples;
typedef VEC(double) numbers;

struct size_count {
    uint32_t w, h;
    uint64_t n;
};

struct category_count {
    int32_t number;
    uint64_t n; /* masks */
};

struct dataset_facts {
    uint64_t bad, empty, crowds, small; /* small: covering no cell of the grid */
    uint32_t cells;                     /* side of the grid */
    char first_bad[512];
    numbers masks, w, h, mask_pixels, image_bytes; /* per sample; mask_pixels: pixels x masks */
    numbers area, runs, counts, iou, stability;   /* per mask; area as a share of the image */
    VEC(struct size_count) sizes;
    VEC(struct category_count) categories; /* none if no mask has one */
};
/* Reads all samples and counts; f->cells is set. */
void facts_count(struct dataset_facts *f, const struct samples *all);
void facts_free(struct dataset_facts *f);
/* Returns the quantile q in 0..1 of sorted numbers. */
double facts_quantile(const numbers *v, double q);
double facts_mean(const numbers *v);

/* Counts masks by area, as a share of the image. */
enum { AREAS = 5 };
extern const char *const area_names[AREAS];
void facts_areas(const numbers *area, uint64_t out[AREAS]);

/* Bytes of all masks of a sample, for each encoding and each mask size. */
enum encoding { FLOAT32, UINT8, BITS, RUNS, ENCODINGS };
enum grid_size { FULL, AT_1024, AT_256, SIZES };

struct mask_memory {
    double w, h, masks;        /* means */
    double mask_pixels, most;  /* pixels x masks of a sample: the mean (not the product of the means) and the largest */
    double runs;               /* per mask at full size */
    bool estimated;            /* `runs` is estimated, not counted in data */
    double bytes[ENCODINGS][SIZES];
    double image[SIZES];       /* of the image in RGB, 8 bits each... */
    double annotations;        /* ...and of the JSON of the masks; of given sizes only, else 0 */
};
/* Computes the memory of a sample with `masks` masks of that size. */
struct mask_memory mask_memory_of(double w, double h, double masks);
struct mask_memory mask_memory_measured(const struct dataset_facts *f);
