/*
 * data_samples.h: all samples under some paths, for the commands that read each of them: inspect,
 * verify and pack. This memory is not planned: every sample has buffers of its own size.
 */
#ifndef DATA_SAMPLES_H
#define DATA_SAMPLES_H

#include "data/dataset.h"
#include "data/masks/polygon.h"
#include "io/file.h"

/* The options of the same names; NULL and 0: detected from the paths, or decided over the data. */
struct samples_options {
    const char *format, *images, *masks;
    const char *image_prefix, *image_suffix, *mask_prefix, *mask_suffix, *image_column, *mask_column;
    const char *labels;         /* auto, binary, classes or instances */
    uint64_t ignore, threshold; /* of mask images */
    const char *range;          /* auto, full, percentiles or LOW,HIGH */
    const char *slice_axis, *modalities; /* of volumes: data.slice_axis and data.modalities */
    bool neighbours;
    uint64_t room;              /* of struct dataset_options: the command's own memory for a sample */
};
/* The rows of an option table, and their lines of help. FOLDER_OPTIONS: how images and masks are
 * found. */
#define FOLDER_OPTIONS(o)                                                                                                       \
    {"--images", DATA_TEXT, &(o).images}, {"--masks", DATA_TEXT, &(o).masks}, {"--image-prefix", DATA_TEXT, &(o).image_prefix}, \
        {"--image-suffix", DATA_TEXT, &(o).image_suffix}, {"--mask-prefix", DATA_TEXT, &(o).mask_prefix},                       \
        {"--mask-suffix", DATA_TEXT, &(o).mask_suffix}, {"--image-column", DATA_TEXT, &(o).image_column},                       \
        {"--mask-column", DATA_TEXT, &(o).mask_column}
#define FOLDER_HELP                                                                                        \
    "  --images DIR, --masks DIR\n"                                                                        \
    "                  the folders of the images and of the masks, where they are not found\n"             \
    "  --image-prefix, --image-suffix, --mask-prefix, --mask-suffix TEXT\n"                                \
    "                  pairs: what only the names of images, or only those of masks, begin or end with\n"  \
    "  --image-column, --mask-column NAME\n"                                                               \
    "                  csv, parquet: the columns of the images and of the masks"
#define SAMPLES_OPTIONS(o)                                                                                             \
    {"--format", DATA_TEXT, &(o).format}, FOLDER_OPTIONS(o), {"--labels", DATA_TEXT, &(o).labels},                     \
        {"--ignore", DATA_POSITIVE, &(o).ignore}, {"--threshold", DATA_POSITIVE, &(o).threshold},                      \
        {"--range", DATA_TEXT, &(o).range}, {"--slice-axis", DATA_TEXT, &(o).slice_axis},                              \
        {"--modalities", DATA_TEXT, &(o).modalities},                                                                  \
    {                                                                                                                  \
        "--neighbours", DATA_SWITCH, &(o).neighbours                                                                   \
    }
#define SAMPLES_HELP                                                                              \
    "  --format        sa1b, coco, pairs, csv or packed; default: detected from the paths\n"      \
    FOLDER_HELP "\n"                                                                              \
    "  --labels KIND   data.labels, the meaning of the values of mask images: auto, binary, classes, instances\n" \
    "  --ignore N, --threshold N  data.ignore and data.threshold of mask images\n"                \
    "  --range R       data.range of images of 16 bits and volumes: auto, full, percentiles, or LOW,HIGH for a window\n" \
    "  --slice-axis A  data.slice_axis of volumes: axial, coronal or sagittal\n"                  \
    "  --modalities N[,N,N]  data.modalities of volumes with several\n"                           \
    "  --neighbours    data.neighbours: the slices beside a slice are channels"

struct detected;
struct samples {
    struct dataset *set;
    int64_t modalities[3];
    const char *format;
    struct detected *detected; /* of a folder that is not a shard; NULL: not used */
    struct names files; /* shards, annotation files or folders, with globs expanded */
    uint64_t n;
};
/* Opens the dataset. A folder is read as `init` reads it (init.h): of a dataset in two parts, the
 * one to train on. On failure s->format is the format of files that exist but cannot be opened,
 * else NULL. */
int samples_open(struct samples *s, const struct samples_options *o, const struct names *paths, struct error *e);
void samples_close(struct samples *s);

struct sample {
    char name[512];
    void *image; /* as stored, or RGB rows without gaps when facts.decoded */
    struct dataset_image facts;
    struct mask *masks; /* [found.n] */
    struct dataset_masks found;
    void *scratch;                /* memory that the masks' shapes point into */
    struct polygon_scratch runs;  /* for mask_raster */
    void *runs_memory;
};
/* Reads sample i; may be called from any thread. Fails when the image or the annotations are
 * unreadable or invalid. The caller frees the sample in either case. */
int samples_read(const struct samples *s, uint64_t i, struct sample *out, struct error *e);
void sample_free(struct sample *s);
/* Area, box and runs of mask k, for any encoding of masks. */
int sample_measure(const struct sample *s, uint32_t k, struct rle_facts *f, struct error *e);
/* The image's size from its header. */
int sample_size(const struct sample *s, uint32_t *w, uint32_t *h, struct error *e);

struct jpg;

/* The following functions take an image file in memory, a JPEG or a PNG. */
bool image_is_png(const void *bytes, size_t n);
/* The image's size from its header. */
int image_size(const void *bytes, size_t n, uint32_t *w, uint32_t *h, struct error *e);
/* Decodes the whole image and discards the pixels; a truncated or damaged image fails. */
int image_check(struct jpg *j, const void *bytes, size_t n, uint32_t *w, uint32_t *h, struct error *e);

/* Reads the image or the annotations of pair i into a buffer of their size; frees the previous
 * contents of `out`. */
int samples_read_half(const struct shard *s, uint32_t i, enum shard_half half, struct text *out, struct error *e);

#endif
