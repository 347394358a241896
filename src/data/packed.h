/*
 * packed.h: a store of images and masks as the training step wants them: nothing is decoded,
 * resized or rasterised any more.
 *
 *     0        struct packed_header; version 2: struct packed_embeddings behind it
 *     4096     sample 0: image [side][side][3], 0 where it does not reach; version 2, at the next
 *              multiple of 64: its embedding [channels][grid][grid]; at the next multiple of 64
 *              its masks, bits of [cells] rows as grid.h has them, one behind the other
 *              sample 1, from a multiple of 64 on
 *              ...
 *     index    struct packed_sample  [samples]
 *              struct packed_mask    [masks]
 *              struct packed_category[categories]
 *              names, each with its 0
 *     end of the file
 *
 * Numbers are little-endian. The file is mapped: reading takes no memory and no call. Everything
 * that the index says is checked when it is opened, and its sum is; the sums of the samples are
 * for `plimsoll data verify`. The header is written last, so a file that was cut or never
 * finished is refused.
 *
 * Areas, boxes and sizes are those of the image before it was resized: the sampler chooses
 * as it would have chosen there.
 *
 * Embeddings are what a model's image encoder makes of the image. Which encoder it was is told
 * by two hashes (train/embed.h), so that no other one's are taken for its. A store without them is
 * of version 1 and has the bytes that it always had.
 */
#ifndef PACKED_H
#define PACKED_H

#include "base/dtype.h"
#include "data/mask.h"

enum { PACKED_VERSION = 1, PACKED_WITH_EMBEDDINGS = 2, PACKED_MAX_CHANNELS = 1 << 16, PACKED_DATA = 4096, PACKED_ALIGN = 64, PACKED_MAX_SIDE = 8192 };

struct packed_header {
    char magic[8];      /* PACKED_MAGIC */
    uint32_t version;
    uint32_t side;      /* of the images */
    uint32_t cells;     /* of the masks */
    uint32_t index_sum; /* CRC32C of the index */
    uint64_t samples, masks, categories;
    uint64_t names;     /* bytes */
    uint64_t index;     /* where it begins */
    uint64_t bytes;     /* of the file */
    uint32_t zero;
    uint32_t header_sum; /* CRC32C of all before it */
};
#define PACKED_MAGIC "PLIMPACK"

enum packed_type { PACKED_F32 = 1, PACKED_BF16 = 2 };
struct packed_embeddings {
    uint32_t type;      /* enum packed_type */
    uint32_t channels, grid;
    uint32_t zero;
    uint64_t weights;   /* hash of the encoder's weights ... */
    uint64_t layers;    /* ... and of what it does with them and with the image */
    char model[152];    /* the folder that they were read from, as it was named; for messages */
    uint32_t zero2;
    uint32_t sum;       /* CRC32C of all before it */
};
/* Bytes of one sample's, without what aligns them. */
size_t packed_embedding_bytes(const struct packed_embeddings *e);
enum dtype packed_dtype(uint32_t type);

struct packed_sample {
    uint64_t at;        /* of the image in the file */
    uint64_t first;     /* its first mask */
    uint32_t masks;
    uint32_t empty;     /* masks that had no pixels and are not here */
    uint32_t h, w;      /* before it was resized */
    uint32_t rows, columns; /* of the canvas that are its */
    uint32_t name, key; /* in the names */
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

/* A file in memory, checked. */
struct packed_file {
    const uint8_t *at;
    const struct packed_header *header;
    const struct packed_sample *samples;
    const struct packed_mask *masks;
    const struct packed_category *categories;
    const char *names;
    const struct packed_embeddings *embeddings; /* NULL: none */
    size_t encoded_bytes;   /* with what aligns what follows */
    size_t embedding_bytes; /* the same; 0: none */
    size_t head_bytes;      /* of both: the masks begin behind them */
    size_t mask_bytes, stride;
};
/* PL_USAGE when n bytes at `bytes`, aligned to 64, are no whole store. Messages do not name the
 * file. Keeps pointers into the bytes. */
int packed_parse(struct packed_file *f, const void *bytes, size_t n, struct error *e);
/* The head of a store, without reading the rest; out->type is 0 where it has no embeddings.
 * PL_USAGE names the file. */
int packed_peek(const char *path, struct packed_header *header, struct packed_embeddings *out, struct error *e);

/* --- writing: all or nothing ------------------------------------------------------------ */

struct packed_writer;
/* Writes beside the path until packed_finish. */
int packed_create(struct packed_writer **out, const char *path, uint32_t side, uint32_t cells, struct error *e);
/* Before the first sample: each will have an embedding. The sum is made here. */
void packed_embed(struct packed_writer *w, const struct packed_embeddings *e);

struct packed_new {
    const char *name, *key;
    uint32_t h, w, rows, columns;
    const uint8_t *image;       /* [side][side][3] */
    const void *embedding;      /* packed_embedding_bytes of it, after packed_embed */
    const struct mask *masks;   /* [n] facts; the shapes do not matter */
    const uint8_t *bits;        /* [n][cells][stride] */
    uint32_t n, empty;
};
int packed_add(struct packed_writer *w, const struct packed_new *s, struct error *e);
/* A name that dataset_category will give. */
void packed_category(struct packed_writer *w, int32_t number, const char *name);
/* The index, the header, and the path: then it is there. Frees the writer in any case. */
int packed_finish(struct packed_writer *w, struct error *e);
/* Instead: nothing is left of it. */
void packed_abandon(struct packed_writer *w);

#endif
