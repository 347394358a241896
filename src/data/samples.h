/*
 * samples.h: all samples under some paths, for commands that read each of them: inspect, verify and
 * pack. This memory is not planned: every sample has buffers of its own size.
 */
#pragma once

#include "data/dataset.h"
#include "data/masks/polygon.h"
#include "io/file.h"

struct detected;
struct samples {
    struct dataset *set;
    const char *format;
    struct detected *detected; /* of a folder that is not a shard; NULL: not used */
    struct names files;        /* shards, annotation files or folders, with globs expanded */
    uint64_t n;
};
/* Opens the dataset. What `given` leaves open, the format above all, is detected: a folder is read
 * as `init` reads it (detect.h), of a dataset in two parts the one to train on. On failure
 * s->format is the format of files that exist but cannot be opened, else NULL. */
int samples_open(struct samples *s, const struct dataset_options *given, const struct names *paths, struct error *e);
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
int samples_read(const struct dataset *d, uint64_t i, struct sample *out, struct error *e);
void sample_free(struct sample *s);
/* Measures area, box and runs of mask k, for any encoding of masks. */
int sample_measure(const struct sample *s, uint32_t k, struct rle_facts *f, struct error *e);
/* Reads the image's size from its header. */
int sample_size(const struct sample *s, uint32_t *w, uint32_t *h, struct error *e);
/* Decodes the image to RGB rows without gaps; those of 16 bits by the dataset's range. The caller
 * frees out->rgb. */
struct image;
int sample_decode(const struct sample *s, const struct pixel_range *range, struct image *out, struct error *e);
/* Rasterises mask k into w x h cells that cover the whole image. Returns the bits, which the caller
 * frees, with *stride bytes a row; NULL: the mask has a fault. */
uint8_t *sample_raster(const struct sample *s, uint32_t k, uint32_t w, uint32_t h, size_t *stride);

/* The options of a command, of the same names; NULL and 0: detected from the paths, or decided over
 * the data. */
struct samples_options {
    struct dataset_options set;
    const char *labels;         /* auto, binary, classes or instances */
    uint64_t ignore, threshold; /* of mask images */
    const char *range;          /* auto, full, percentiles or LOW,HIGH */
    const char *slice_axis, *modalities; /* of volumes: data.slice_axis and data.modalities */
    int64_t numbers[3];                  /* of the modalities */
};
/* Reads the words of the options into `o->set`, which then opens the samples. */
int samples_options_read(struct samples_options *o, struct error *e);
