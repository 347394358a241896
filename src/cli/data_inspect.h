/*
 * data_inspect.h: what the files of `plimsoll data inspect` share.
 *
 *     data_inspect.c         the command
 *     data_inspect_facts.c   statistics of a dataset, and the memory of its masks
 *     data_inspect_tables.c  both as text and as JSON
 *     data_inspect_sheet.c   a contact sheet, or a page, of images with their masks
 */
#ifndef DATA_INSPECT_H
#define DATA_INSPECT_H

#include "data/samples.h"

typedef VEC(double) numbers;

struct size_count {
    uint32_t w, h;
    uint64_t n;
};

struct category_count {
    int32_t number;
    uint64_t n; /* masks */
};

struct facts {
    uint64_t bad, empty, crowds, small; /* small: covering no cell of the grid */
    uint32_t cells;                     /* side of the grid */
    char first_bad[512];
    numbers masks, w, h, mask_pixels, image_bytes; /* per sample; mask_pixels: pixels x masks */
    numbers area, runs, counts, iou, stability;   /* per mask; area as a share of the image */
    VEC(struct size_count) sizes;
    VEC(struct category_count) categories; /* none if no mask has one */
};
/* Reads all samples; f->cells is set. */
void facts_count(struct facts *f, const struct samples *all);
void facts_free(struct facts *f);
/* The quantile q in 0..1 of sorted numbers. */
double facts_quantile(const numbers *v, double q);
double facts_mean(const numbers *v);

/* Masks by area, as a share of the image. */
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
/* The memory of a sample with `masks` masks of that size. */
struct mask_memory mask_memory_of(double w, double h, double masks);
struct mask_memory mask_memory_measured(const struct facts *f);

void inspect_print_memory(const struct mask_memory *c, struct text *out);
void inspect_json_memory(const struct mask_memory *c, struct text *out);
void inspect_print(const struct samples *all, const struct facts *f, struct text *out);
void inspect_json(const struct samples *all, const struct facts *f, const struct mask_memory *c, struct text *out);

/* Writes the sheet as an image (PNG). */
int inspect_sheet(const char *path, const struct samples *all, const struct facts *f, const struct mask_memory *c,
                  struct error *e);
/* Writes it as an HTML page: the images, and the tables that are also printed. */
int inspect_page(const char *path, const struct samples *all, const struct facts *f, const struct mask_memory *c,
                 struct error *e);

#endif
