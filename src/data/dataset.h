/*
 * dataset.h: images with masks, whatever they are stored in.
 *
 * The loader, the sampler, inspection and packing see this interface and no format:
 *
 *     sa1b    tar shards or extracted folders: image + JSON of run lengths
 *     coco    one JSON of many images: polygons, run lengths, crowds; a folder of images
 *     pairs   a folder of images and one of PNG masks of the same names
 *     csv     a table with columns for image, mask and split
 *     packed  our memory-mapped store of resized images and bits (packed.h), or an index and a
 *             memory map of masks as bytes (memmap.h)
 *
 * Opening finds every sample and may take memory; after that nothing is allocated, the data
 * set is constant, and any number of threads may read. A sample that cannot be used is a fault
 * of that sample, never the end of the program: see mask.h.
 */
#ifndef DATASET_H
#define DATASET_H

#include "data/grid.h"
#include "data/mask.h"
#include "data/shard.h"

/* Which samples of the files are taken. All that are given must agree. */
struct dataset_split {
    const char *list;   /* a text file with one sample's name or key a line */
    const char *glob;   /* a pattern for names or keys, with * and ? */
    const char *column; /* csv: the value of the split column */
    double fraction;    /* in (0, 1): this share of the samples, chosen by the seed; 0: all */
    const char *part;   /* train or validation, for messages about its keys; NULL: neither */
    bool rest;          /* with fraction: the samples that the same fraction and seed leave */
    uint64_t seed;
};

/* What the values of a label image mean. LABELS_AUTO: one mask when there is one value but 0,
 * else one per value. */
enum label_kind { LABELS_AUTO, LABELS_BINARY, LABELS_CLASSES, LABELS_INSTANCES };

struct dataset_options {
    const char *format; /* "sa1b", "coco", "pairs", "csv", "packed" */
    char *const *paths; /* files, folders or globs */
    uint32_t n_paths;
    const char *images; /* coco, csv: the folder of the images; pairs: images/; NULL: look around */
    const char *masks;  /* pairs: the folder of the masks; NULL: masks/ beside images/ */
    /* coco: only these categories, by name or number; also those of label images, by number */
    char *const *categories;
    uint32_t n_categories;
    bool crowds;          /* coco: crowds are masks as well */
    enum label_kind labels;
    int ignore;           /* a value of label images that is no mask; 0 is none in any case */
    const char *image_column, *mask_column, *split_column; /* csv; NULL: "image", "mask", "split" */
    struct dataset_split split;
};

struct dataset;

int dataset_open(struct dataset **out, const struct dataset_options *o, struct error *e);
void dataset_close(struct dataset *d);

uint64_t dataset_count(const struct dataset *d);
/* Of the format, the files and the split: what a resume cursor must agree with. */
uint64_t dataset_fingerprint(const struct dataset *d);
/* What was found wrong while opening, over all files. */
const struct shard_report *dataset_report(const struct dataset *d);
/* "sa_000020/sa_223750": for logs and tables, unique in the data set. */
void dataset_name(const struct dataset *d, uint64_t i, char *out, size_t room);
/* A category's name, or NULL where the files have none. */
const char *dataset_category(const struct dataset *d, int32_t category);

struct dataset_image {
    size_t n;           /* bytes */
    bool decoded;       /* RGB rows, not a JPEG or PNG: not at `to` but where `pixels` says, as
                           long as the data set is open */
    uint32_t h, w;      /* of the rows, where they are known; else 0 */
    const uint8_t *pixels;
    size_t stride;      /* bytes from one row to the next */
    uint32_t full_h, full_w; /* decoded: of the image that was resized to them */
};
/* The image's bytes into to[room], or where they are. */
enum data_fault dataset_image(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out,
                              struct error *e);

struct dataset_masks {
    uint32_t n;     /* masks given */
    uint32_t empty; /* left out: they have no pixels */
    uint32_t h, w;  /* of the image that the masks were made for */
};
/* All masks of a sample into masks[room]; their shapes point into scratch[scratch_n], which holds
 * what was read. For label images that is the file, the decoded image and 128 KiB more. The
 * scratch is 8-byte aligned. A sample without any mask is FAULT_NO_MASKS. */
enum data_fault dataset_masks(const struct dataset *d, uint64_t i, void *scratch, size_t scratch_n,
                              struct mask *masks, uint32_t room, struct dataset_masks *out, struct error *e);
/* Whether the bytes of a sample are those that were written, where the format has sums of them;
 * all others are sound. */
int dataset_check(const struct dataset *d, uint64_t i, struct error *e);
/* What the stores say of the embeddings that lie beside their images (packed.h); NULL where some
 * file has none, or not the same as the others. */
struct packed_embeddings;
const struct packed_embeddings *dataset_embeddings(const struct dataset *d);
/* A sample's, as long as the data set is open. There are some. */
const void *dataset_embedding(const struct dataset *d, uint64_t i);
/* Tells the machine that a sample will be read soon. */
void dataset_expect(const struct dataset *d, uint64_t i);

/* A chosen mask as bits, whatever its shape. `runs` is scratch for polygons: see polygon.h. The
 * grid's source must be of the mask's size. FAULT_NONE, FAULT_SIZE or FAULT_MASK. */
struct polygon_scratch;
enum data_fault mask_raster(const struct mask *m, const struct grid *g, struct polygon_scratch *runs, void *bits,
                            struct error *e);

/* --- for the formats ------------------------------------------------------------------- */

struct dataset_format {
    const char *name;
    int (*open)(struct dataset *d, const struct dataset_options *o, struct error *e);
    void (*close)(struct dataset *d);
    void (*describe)(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key);
    enum data_fault (*image)(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out,
                             struct error *e);
    enum data_fault (*masks)(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks,
                             uint32_t room, struct dataset_masks *out, struct error *e);
    void (*expect)(const struct dataset *d, uint64_t i);           /* NULL: nothing to do */
    const char *(*category)(const struct dataset *d, int32_t category); /* NULL: no names */
    const char *(*split)(const struct dataset *d, uint64_t i);     /* csv's column; NULL: none */
    int (*check)(const struct dataset *d, uint64_t i, struct error *e); /* NULL: no sums */
    const void *(*embedding)(const struct dataset *d, uint64_t i);      /* where `embeddings` is set */
    const char *no_categories; /* what it is that has none to choose by, for a message; NULL: it has some */
};

struct dataset {
    const struct dataset_format *format;
    void *state;          /* the format's own */
    uint64_t total;       /* samples in the files */
    uint64_t n;           /* of them in the split */
    uint32_t *chosen;     /* [n] in ascending order; NULL: all */
    uint64_t fingerprint; /* the format sets that of its files; the split is added */
    struct shard_report report;
    const struct packed_embeddings *embeddings; /* of all files alike; NULL: none */
    bool by_category;     /* only masks of some categories are its masks */
    bool from_embeddings; /* whoever reads wants these and no images: a hint for dataset_expect */
};

extern const struct dataset_format dataset_sa1b, dataset_coco, dataset_pairs, dataset_csv, dataset_packed;

/* The paths that options name, globs opened, each once and sorted within a glob. PL_USAGE when
 * a pattern matches nothing. */
struct names;
int dataset_paths(const struct dataset_options *o, struct names *out, struct error *e);
/* A whole file into to[room], by its path. */
enum data_fault dataset_read_file(const char *path, void *to, size_t room, size_t *n, struct error *e);

#endif
