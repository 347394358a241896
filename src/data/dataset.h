/*
 * dataset.h: images with masks, in any storage format.
 *
 * The loader, the sampler, inspection and packing use this interface for all formats:
 *
 *   sa1b    tar shards or extracted folders: image + JSON of run lengths
 *   coco    one JSON of many images: polygons, run lengths, crowds; a folder of images
 *   pairs   a folder of images and one of masks whose names match (JPEG, PNG, TIFF), or of volumes
 *           and
 *           label volumes, whose samples are slices (NIfTI, DICOM series)
 *   csv     a table with columns for image, mask and split, perhaps question and answer
 *   parquet tables as Hugging Face datasets writes them: the files of image and masks are in
 *   their rows
 *   packed  Plimsoll's memory-mapped store of resized images and bits (packed.h), or an index
 *           and a memory map of masks as bytes (memmap.h)
 *
 * Opening finds every sample and may allocate. After that nothing is allocated, the dataset is
 * constant, and any number of threads may read. A sample that cannot be used is a fault of that
 * sample and never ends the program: see mask.h.
 */
#pragma once

#include "data/masks/grid.h"
#include "data/masks/mask.h"
#include "data/images/range.h"
#include "data/volumes/volume.h"
#include "data/formats/sa1b.h"
#include "base/base.h"

/* ---- Survey ----
 *
 * what the files of a dataset hold, decided once for all of them.
 *
 *     mask images    data.labels auto: binary, classes or instances; a value to ignore; a threshold
 *     images         data.range auto for images of 16 bits; whether they are nearly black
 *
 * dataset_open surveys the files before it applies a split, so training and validation images of
 * the same files get the same decision. A large dataset is sampled: images at equal distances, the
 * same ones every time. The decision depends only on the files.
 *
 * The decision about mask images:
 *
 *     one value in all of them                        binary: the category is 1
 *     values between dark and bright along borders    binary, from half of the largest value on
 *     several values                                  classes: the category is the value
 *     more than 255 values                            instances: each value is an object
 *     a photograph, or areas of several values with
 *     soft edges between them                         refused: data.labels must be set
 *
 * 255 is ignored if it occurs beside small values, as in PASCAL VOC and Cityscapes.
 */

enum { SURVEY_LABELS = 1000, SURVEY_IMAGES = 32, SURVEY_SHOWN = 8 };

struct dataset_survey {
    /* Mask images; `labels` is 0 if the format has none, or if data.labels was given. */
    uint64_t labels, labels_seen;
    uint32_t values;              /* different values besides 0 and the ignored one */
    uint32_t shown[SURVEY_SHOWN]; /* the smallest of them */
    uint32_t largest;
    bool soft;                    /* soft edges */
    bool void_255;                /* 255 is ignored */
    uint64_t whole;               /* mask images with one value everywhere, which is not 0 */
    /* Images. */
    uint64_t images, images_seen; /* all; decoded */
    uint64_t deep;                /* of the decoded ones: of 16 bits */
    bool range_decided;           /* data.range was auto, and there are images of 16 bits */
    /* of the decoded ones: slices of other types than 8 and 16 bits, if data.range was auto */
    uint64_t volumes;
    /* of the decoded ones: with an EXIF orientation that the size of the masks cannot confirm */
    uint64_t turned;
    int bright;                   /* 99.5 % of the pixels are not brighter than this, of 255; -1: not known */
};

struct dataset;
/* Fills d->survey, and decides d->labels and d->range where they are auto. PL_USAGE: the mask
 * images have no clear meaning, or an image is its own mask. */
int survey_dataset(struct dataset *d, struct error *e);

/* Returns one line each, without a newline: "data.labels auto: classes 1, 2, 5 (in 120 mask
 * images)". False: nothing was decided. */
bool survey_print_labels(const struct dataset *d, struct text *out);
/* Prints "data.range auto: window 12 to 3071, ...". */
bool survey_print_range(const struct dataset *d, struct text *out);
/* Returns the next warning about nearly black images, images with an EXIF orientation, or masks
 * that cover the whole image. *k counts up from 0; false: there are no more. */
bool survey_next_warning(const struct dataset *d, int *k, struct text *out);
/* Logs all of these, as notes and warnings. */
void survey_log(const struct dataset *d);

/* Selects samples of the files. A sample must match all conditions that are set. */
struct dataset_split {
    const char *list;   /* a text file with the name or key of one sample per line */
    const char *glob;   /* a pattern for names or keys, with * and ? */
    const char *column; /* csv: the value of the split column */
    double fraction;    /* in (0, 1): this share of the samples, chosen by the seed; 0: all */
    const char *part;   /* "train" or "validation", for messages about its keys; NULL: neither */
    bool rest;          /* with fraction: the complement of the same fraction and seed */
    bool folders;       /* the samples of a folder are a group, as the frames of a video are */
    uint64_t seed;
};

/* The meaning of the values of mask images, the same for the whole dataset. LABELS_AUTO:
 * dataset_open decides (struct dataset_survey). */
enum label_kind { LABELS_AUTO, LABELS_BINARY, LABELS_CLASSES, LABELS_INSTANCES };

struct label_options {
    enum label_kind kind;
    int ignore;            /* a value that is not a mask, besides 0; below 1: none */
    uint32_t threshold;    /* LABELS_BINARY: the smallest value of the mask; 0: above half of the
                              image's largest value */
    bool one_value;        /* LABELS_BINARY was decided from some images, which have one value each: an
                              image with several is a fault */
    const int64_t *values; /* only these values; none: all */
    uint32_t n_values;
};

/* pairs, csv: how volumes become samples. */
struct slice_options {
    enum volume_axis axis;
    bool all;                  /* also slices without a label */
    bool neighbours;           /* channels are the slices before, at and after the sample */
    const int64_t *modalities; /* 1 or 3 of them, as channels; none: the first */
    uint32_t n_modalities;
    const char *cache;         /* folder of decompressed volumes; NULL: the user's cache folder */
};

struct dataset_options {
    const char *format; /* "sa1b", "coco", "pairs", "csv", "packed", "parquet" */
    char *const *paths; /* files, folders or globs */
    uint32_t n_paths;
    const char *images; /* the folder of the images; NULL: search */
    const char *masks;  /* pairs, csv: the folder of the masks; NULL: search */
    /* pairs: what the names of images and masks have around their common part. All NULL: search;
     * one is set: NULL is none */
    const char *image_prefix, *image_suffix, *mask_prefix, *mask_suffix;
    /* coco: only these categories, by name or number; also those of label images, by number */
    char *const *categories;
    uint32_t n_categories;
    bool crowds;          /* coco: use crowd annotations as masks */
    enum label_kind labels;
    int ignore;           /* a value of label images that is not a mask, besides 0 */
    uint32_t threshold;   /* of binary label images; 0: half of the largest value */
    struct pixel_range range; /* of images of 16 bits, and of volumes */
    struct slice_options slices;
    /* bytes that reading a sample's image or masks may take, data.sample_memory; 0: VOLUME_ROOM */
    size_t room;
    const char *image_column, *mask_column, *split_column; /* csv, parquet; NULL: by their usual names */
    bool embeddings_alone; /* packed: stores of the embeddings of conversations' images (packed_find), and no others */
    bool texts;           /* csv: rows have a question and an answer; rows without them are left out */
    struct dataset_split split;
};

/* Annotations of COCO files that are special; rows of tables. */
struct dataset_left {
    uint64_t crowds;           /* groups of objects: iscrowd 1 and several parts; left out unless options.crowds */
    uint64_t one_part;         /* iscrowd 1 and one part: used */
    uint64_t no_mask;          /* without a segmentation, or of area 0: left out */
    uint64_t other_categories; /* left out by options.categories */
    uint64_t no_answer;        /* rows of tables without a question or an answer */
    char no_answer_at[96];     /* FILE:LINE of the first one */
};

struct dataset;

int dataset_open(struct dataset **out, const struct dataset_options *o, struct error *e);
void dataset_close(struct dataset *d);

uint64_t dataset_count(const struct dataset *d);
/* Leaves out the samples for which keep[i] is false. */
void dataset_keep(struct dataset *d, const bool *keep);
/* Returns a hash of the format, the files and the split, which a resumed run compares. */
uint64_t dataset_fingerprint(const struct dataset *d);
/* Returns the faults found while opening, summed over all files. while opening, summed over all
 * files. */
const struct shard_report *dataset_report(const struct dataset *d);
/* Lists the files that are not used because they have no partner, such as "2 images have no mask
 * (such as a.jpg)"; NULL: none. For the formats pairs and csv. */
const char *dataset_unpaired(const struct dataset *d);
/* Prints "sa_000020/sa_223750", for logs and tables; it is unique in the dataset. */
void dataset_name(const struct dataset *d, uint64_t i, char *out, size_t room);
/* Returns what was found in the files and decided for the whole dataset. in the files and decided
 * for the whole dataset. */
const struct dataset_survey *dataset_survey(const struct dataset *d);
/* Prints what is left out, in one line without a newline; false: nothing. `crowds`: crowds are
 * used. */
bool dataset_print_left(const struct dataset *d, bool crowds, struct text *out);
/* Returns a category's name, or NULL if the files have none. */
const char *dataset_category(const struct dataset *d, int32_t category);

/* Prints the volume, patient or video that a sample is a part of: data.holdout keeps its samples
 * together. False: it is no part of one. */
bool dataset_split_group(const struct dataset *d, uint64_t i, char *out, size_t room);
/* Returns how many samples data.holdout would hold out, and appends what is wrong with such a
 * split, if anything. */
uint64_t dataset_held_out(const struct dataset *d, double fraction, uint64_t seed, struct text *warning);
/* Returns the dataset that a sample of a table with texts belongs to: dataset_category has its
 * name. */
int32_t dataset_group(const struct dataset *d, uint64_t i);
/* Returns the file of a sample's image, of a format with image_path. */
const char *dataset_image_path(const struct dataset *d, uint64_t i);
/* Returns the volume that a sample is a slice of, and its name, NULL: the sample is an image. */
const struct volume *dataset_slice(const struct dataset *d, uint64_t i, uint32_t *slice, const char **name);
/* A text of a sample, with options.texts. */
enum dataset_text { DATASET_QUESTION, DATASET_ANSWER, DATASET_TEXTS };
const char *dataset_text(const struct dataset *d, uint64_t i, enum dataset_text what);

struct dataset_image {
    size_t n;           /* bytes */
    bool decoded;       /* RGB rows, not a JPEG or PNG, at `pixels`: in a file that is mapped as long as the
                           dataset is open, or at `to` */
    uint32_t h, w;      /* of the rows, or 0 if unknown */
    const uint8_t *pixels;
    size_t stride;      /* bytes from one row to the next */
    uint32_t full_h, full_w; /* decoded: size of the image before it was resized */
};
/* Reads the image's bytes into to[room], or points to decoded rows. */
enum data_fault dataset_image(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out,
                              struct error *e);

struct dataset_masks {
    uint32_t n;     /* masks returned */
    uint32_t empty; /* dropped, because they have no pixels */
    uint32_t h, w;  /* size of the image that the masks belong to */
};
/* Reads all masks of a sample into masks[room]; their shapes point into scratch[scratch_n], which
 * holds the bytes read. For label images that is the file, the decoded image and 128 KiB more.
 * The scratch is 8-byte aligned. A sample without any mask is FAULT_NO_MASKS. */
enum data_fault dataset_masks(const struct dataset *d, uint64_t i, void *scratch, size_t scratch_n,
                              struct mask *masks, uint32_t room, struct dataset_masks *out, struct error *e);
/* Returns PL_FAIL if a memory-mapped file of the dataset became shorter or could not be read since
 * it was opened: what was read from it is not valid. Cheap enough for every sample. */
int dataset_intact(const struct dataset *d, struct error *e);
/* Compares a sample's bytes with their checksum, if the format stores checksums; returns PL_OK for
 * other formats. A sample that passed is not compared again. */
int dataset_check(const struct dataset *d, uint64_t i, struct error *e);
/* Describes the embeddings that the packed stores hold for their images (packed.h); NULL when a
 * file has none, or when the files differ. */
struct packed_embeddings;
const struct packed_embeddings *dataset_embeddings(const struct dataset *d);
/* Returns a sample's embedding, valid while the dataset is open. dataset_embeddings is not NULL. */
const void *dataset_embedding(const struct dataset *d, uint64_t i);
/* Prefetches a sample into the page cache. */
void dataset_prefetch(const struct dataset *d, uint64_t i);

/* Rasterises a chosen mask of any shape to bits. `runs` is scratch for polygons: see polygon.h.
 * The grid's source must have the mask's size. Returns FAULT_NONE, FAULT_SIZE or FAULT_MASK. */
struct polygon_scratch;
enum data_fault mask_raster(const struct mask *m, const struct grid *g, struct polygon_scratch *runs, void *bits,
                            struct error *e);

/* --- for the formats ------------------------------------------------------------------- */

struct label_image;
struct names;
struct dataset_format {
    const char *name;
    size_t state; /* bytes of d->state, which dataset_open allocates with zeros and dataset_close frees */
    /* `paths` are o->paths expanded, at least one */
    int (*open)(struct dataset *d, const struct dataset_options *o, struct names *paths, struct error *e);
    void (*close)(struct dataset *d); /* frees what the state points to, after a failed `open` too */
    void (*describe)(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key);
    enum data_fault (*image)(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out,
                             struct error *e);
    enum data_fault (*masks)(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks,
                             uint32_t room, struct dataset_masks *out, struct error *e);
    void (*prefetch)(const struct dataset *d, uint64_t i);           /* NULL: nothing to do */
    const char *(*category)(const struct dataset *d, int32_t category); /* NULL: no names */
    const char *(*split)(const struct dataset *d, uint64_t i);     /* csv's column; NULL: none */
    /* see dataset_split_group; NULL: samples have none */
    bool (*split_group)(const struct dataset *d, uint64_t i, char *out, size_t room);
    const char *(*text)(const struct dataset *d, uint64_t i, enum dataset_text what); /* NULL: none */
    int32_t (*group)(const struct dataset *d, uint64_t i);           /* with `text` */
    int (*check)(const struct dataset *d, uint64_t i, struct error *e); /* NULL: no checksums */
    int (*intact)(const struct dataset *d, struct error *e); /* NULL: no memory maps */
    const void *(*embedding)(const struct dataset *d, uint64_t i);      /* if `embeddings` is set */
    /* path of the mask image, or of the file that it is in; NULL: masks are not image files */
    const char *(*label)(const struct dataset *d, uint64_t i);
    /* with `label`: the decoded mask image */
    enum data_fault (*values)(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct label_image *out,
                              struct error *e);
    /* With `label`: the values of an image that is a slice, before any range; *is_plane false: it
     * is not. NULL: none is. */
    enum data_fault (*plane)(const struct dataset *d, uint64_t i, void *to, size_t room, struct plane *out,
                             bool *is_plane, struct error *e);
    /* NULL: samples are not slices */
    const struct volume *(*slice)(const struct dataset *d, uint64_t i, uint32_t *slice, const char **name);
    void (*set_range)(struct dataset *d); /* d->range is decided; NULL: nothing to do */
    const char *(*image_path)(const struct dataset *d, uint64_t i); /* with `label`: path of the image */
    const char *no_categories; /* describes a format without categories, for a message; NULL: it has categories */
};

struct dataset {
    const struct dataset_format *format;
    void *state;          /* the format's */
    uint64_t total;       /* samples in the files */
    uint64_t n;           /* samples in the split */
    uint32_t *chosen;     /* [n] in ascending order; NULL: all */
    bool folders;         /* dataset_split.folders */
    uint64_t fingerprint; /* the format hashes its files; dataset_open adds the split */
    struct shard_report report;
    struct dataset_left left;
    struct text unpaired; /* see dataset_unpaired */
    size_t room;          /* options.room, or VOLUME_ROOM */
    size_t largest;       /* bytes that options.room needs for the largest slice; 0: there are no volumes */
    char missing[256];    /* csv: the first file that is not there */
    const struct packed_embeddings *embeddings; /* common to all files; NULL: none */
    struct label_options labels; /* decided; the format sets `values` */
    /* decided; RANGE_AUTO: no image of 16 bits was found, one that occurs is decided by itself */
    struct pixel_range range;
    struct dataset_survey survey;
    bool by_category;     /* only masks of some categories are used */
    bool from_embeddings; /* the caller reads embeddings, not images: a hint for dataset_prefetch */
};

extern const struct dataset_format dataset_sa1b, dataset_coco, dataset_pairs, dataset_csv, dataset_packed,
    dataset_parquet;

/* Warns of d->unpaired. A run opens a dataset once for each part: parts of the same files warn
 * once. */
void dataset_warn_unpaired(const struct dataset *d, const struct dataset_options *o, const char *path);

/* Expands the options' paths and globs, without duplicates, sorted within a glob. PL_USAGE when a
 * pattern matches nothing. */
int dataset_paths(const struct dataset_options *o, struct names *out, struct error *e);

/* ---- Parquet ----
 *
 * whether a Parquet table is one of images and masks (parquet_set.c).
 */

/* Reports whether it has columns of images with usual names for images and for masks. */
bool parquet_set_usual(const char *path);
