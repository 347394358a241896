/*
 * data_samples.h: all samples under some paths, for the commands that look at each of them:
 * inspect and verify. Nothing is planned here: every sample has memory of its own size.
 */
#ifndef DATA_SAMPLES_H
#define DATA_SAMPLES_H

#include "data/dataset.h"
#include "data/polygon.h"
#include "io/file.h"

/* What --format, --images and --masks said; NULL: look at the paths. */
struct samples_options {
    const char *format, *images, *masks;
    enum label_kind labels;
};

struct samples {
    struct dataset *set;
    const char *format;
    struct names files; /* shards, annotation files or folders, globs opened */
    uint64_t n;
};
/* Without a format: a .json is coco (or the index of a memory map), a .pack packed, a .csv csv, a folder with images/ and masks/ pairs, all
 * else sa1b, where a folder of tars stands for them. */
const char *samples_format(const char *path);
/* Where it fails, s->format is that of files that are there and cannot be opened, else NULL. */
int samples_open(struct samples *s, const struct samples_options *o, const struct names *paths, struct error *e);
void samples_close(struct samples *s);

struct sample {
    char name[512];
    void *image; /* as stored, or RGB rows without gaps when facts.decoded */
    struct dataset_image facts;
    struct mask *masks; /* [found.n] */
    struct dataset_masks found;
    void *scratch;                /* what the masks' shapes point into */
    struct polygon_scratch runs;  /* for mask_raster */
    void *runs_memory;
};
/* Sample i; any thread. Fails when either half cannot be read or makes no sense. Free it in any
 * case. */
int samples_read(const struct samples *s, uint64_t i, struct sample *out, struct error *e);
void sample_free(struct sample *s);
/* Area, box and runs of mask k, whatever its shape. */
int sample_measure(const struct sample *s, uint32_t k, struct rle_facts *f, struct error *e);
/* The image's size by its header. */
int sample_size(const struct sample *s, uint32_t *w, uint32_t *h, struct error *e);

struct jpg;

/* An image's file in memory, a JPEG or a PNG. */
bool image_is_png(const void *bytes, size_t n);
/* Its size by its header. */
int image_size(const void *bytes, size_t n, uint32_t *w, uint32_t *h, struct error *e);
/* Decodes all of it and forgets it: one that is cut or damaged fails. */
int image_check(struct jpg *j, const void *bytes, size_t n, uint32_t *w, uint32_t *h, struct error *e);

/* One half of pair i of a shard, into memory of its size; replaces what `out` held. */
int samples_read_half(const struct shard *s, uint32_t i, enum shard_half half, struct text *out, struct error *e);

#endif
