/*
 * packed.h: a store of images and masks in the layout of a training step, so that nothing needs
 * decoding, resizing or rasterising.
 *
 *     0        struct packed_header; version 2: followed by struct packed_embeddings
 *     512      struct packed_range, or zeros
 *     4096     sample 0: image [side][side][3], 0 outside of it; version 2, at the next
 *              multiple of 64: its embedding [channels][grid][grid]; at the next multiple of 64
 *              its masks, bits of [cells] rows as in grid.h, one after the other
 *              sample 1, at a multiple of 64
 *              ...
 *     index    struct packed_sample  [samples]
 *              struct packed_mask    [masks]
 *              struct packed_category[categories]
 *              names, each terminated by a 0
 *     end of the file
 *
 * Numbers are little-endian. The file is memory-mapped: reading needs no allocation and no system
 * call. Opening checks everything in the index, and the checksums of header and index. The checksum
 * of a sample is compared when it is first read, by training as by `plimsoll data verify`. The header
 * is written last, so a truncated or unfinished file is an error.
 *
 * Areas, boxes and sizes are those of the image before resizing, so the sampler makes the same
 * choice as for the original files.
 *
 * Embeddings are the outputs of a model's image encoder. Two hashes identify the encoder
 * (feed/embed.h), so that embeddings of another encoder are not used by mistake. A store without
 * embeddings has version 1.
 */
#ifndef PACKED_H
#define PACKED_H

#include "base/dtype.h"
#include "data/masks/mask.h"

enum { PACKED_VERSION = 1, PACKED_WITH_EMBEDDINGS = 2, PACKED_MAX_CHANNELS = 1 << 16, PACKED_DATA = 4096, PACKED_ALIGN = 64, PACKED_MAX_SIDE = 8192, PACKED_RANGE = 512 };

struct packed_header {
    char magic[8];      /* PACKED_MAGIC */
    uint32_t version;
    uint32_t side;      /* side of the images */
    uint32_t cells;     /* side of the masks */
    uint32_t index_sum; /* CRC32C of the index */
    uint64_t samples, masks, categories;
    uint64_t names;     /* bytes */
    uint64_t index;     /* offset of the index */
    uint64_t bytes;     /* size of the file */
    uint32_t zero;
    uint32_t header_sum; /* CRC32C of all bytes before it */
};
#define PACKED_MAGIC "PLIMPACK"

enum packed_type { PACKED_F32 = 1, PACKED_BF16 = 2 };
struct packed_embeddings {
    uint32_t type;      /* enum packed_type */
    uint32_t channels, grid;
    uint32_t zero;
    uint64_t weights;   /* hash of the encoder's weights ... */
    uint64_t layers;    /* ... and of its layers and the image preprocessing */
    char model[152];    /* the folder of the weights as the user named it; for messages */
    uint32_t zero2;
    uint32_t sum;       /* CRC32C of all bytes before it */
};
/* How images of 16 bits became those of the store, at PACKED_RANGE of the file; zeros: there were
 * none. For the programs that use a model trained on the store on other images. */
enum { PACKED_REAL_WINDOW = 4 }; /* a kind: a window that is not two uint32_t, of volumes; stored in `percentiles` */
struct packed_range {
    uint32_t kind;      /* enum range_kind, or PACKED_REAL_WINDOW */
    uint32_t window[2];
    uint32_t zero;
    double percentiles[2];
    uint32_t zero2;
    uint32_t sum;       /* CRC32C of all bytes before it */
};
/* Bytes of one sample's embedding, without padding. */
size_t packed_embedding_bytes(const struct packed_embeddings *e);
enum dtype packed_dtype(uint32_t type);

struct packed_sample {
    uint64_t at;        /* offset of the image in the file */
    uint64_t first;     /* its first mask */
    uint32_t masks;
    uint32_t empty;     /* masks without pixels, which are not stored */
    uint32_t h, w;      /* size before resizing */
    uint32_t rows, columns; /* of the canvas that the image covers */
    uint32_t name, key; /* offsets in the names */
    uint32_t sum;       /* CRC32C of image and masks */
    uint32_t zero;
};

struct packed_mask {
    int64_t id;
    double area;
    float box[4];
    float predicted_iou, stability;
    float point[2];     /* NAN: not known */
    int32_t category;
    uint32_t crowd;
};

struct packed_category {
    int32_t number;
    uint32_t name;
};

/* A checked file in memory. */
struct packed_file {
    const uint8_t *at;
    struct packed_header header;
    const struct packed_sample *samples;
    const struct packed_mask *masks;
    const struct packed_category *categories;
    const char *names;
    const struct packed_embeddings *embeddings; /* NULL: none */
    const struct packed_range *range; /* NULL: none */
    size_t encoded_bytes;   /* of an image, with padding */
    size_t embedding_bytes; /* of an embedding, with padding; 0: none */
    size_t head_bytes;      /* of both; the masks follow */
    size_t mask_bytes, stride;
};
/* PL_USAGE when n bytes at `bytes`, aligned to 64, are not a complete store. Messages do not name
 * the file. `f` points into the bytes. */
int packed_parse(struct packed_file *f, const void *bytes, size_t n, struct error *e);
/* Reads only the header of a store; out->type is 0 if it has no embeddings. The PL_USAGE message
 * names the file. */
int packed_peek(const char *path, struct packed_header *header, struct packed_embeddings *out, struct error *e);

/* --- writing, atomically ------------------------------------------------------------ */

struct packed_writer;
/* Writes to a temporary file beside the path until packed_finish. */
int packed_create(struct packed_writer **out, const char *path, uint32_t side, uint32_t cells, struct error *e);
/* Call before the first sample: each sample then has an embedding. Sets the checksum. */
void packed_embed(struct packed_writer *w, const struct packed_embeddings *e);

/* Records the range of the images. */
struct pixel_range;
void packed_set_range(struct packed_writer *w, const struct pixel_range *r);

struct packed_new {
    const char *name, *key;
    uint32_t h, w, rows, columns;
    const uint8_t *image;       /* [side][side][3] */
    const void *embedding;      /* packed_embedding_bytes, after packed_embed */
    const struct mask *masks;   /* [n]; the shapes are not used */
    const uint8_t *bits;        /* [n][cells][stride] */
    uint32_t n, empty;
};
int packed_add(struct packed_writer *w, const struct packed_new *s, struct error *e);
/* Adds a category name for dataset_category. */
void packed_category(struct packed_writer *w, int32_t number, const char *name);
/* Writes the index and the header and renames the file. Frees the writer in any case. */
int packed_finish(struct packed_writer *w, struct error *e);
/* Instead of packed_finish: removes the file. */
void packed_abandon(struct packed_writer *w);

#endif
