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
 * Version 3 is a store of only embeddings, for the images of conversations: no images and no
 * masks. A sample is an image or a video by the reference that conversations have to it, its name.
 * It has `count` embeddings [tokens][channels], one after the other: of the image, of its tiles, or
 * of the video's frames. Samples are sorted by name, each name once. An image that could not be
 * read is in the index, with the reason, and has no embedding.
 *
 * Version 4 does the same for images of any size. An embedding is that of one token, the outputs of
 * its patches: an image of rows x columns tokens has as many embeddings, in the order of the image
 * processors.
 *
 * Numbers are little-endian. The file is memory-mapped: reading needs no allocation and no system
 * call. Opening checks everything in the index, and the checksums of header and index. The checksum
 * of a sample is compared when it is first read, by training as by `plimsoll data verify`. The
 * header is written last, so a truncated or unfinished file is an error.
 *
 * Areas, boxes and sizes are those of the image before resizing, so the sampler makes the same
 * choice as for the original files.
 *
 * Embeddings are the outputs of a model's image encoder. Two hashes identify the encoder
 * (batch/embed.h), so that embeddings of another encoder are not used by mistake. A store without
 * embeddings has version 1.
 */
#pragma once

#include "base/dtype.h"
#include "data/masks/mask.h"

enum {
    PACKED_VERSION = 1,
    PACKED_WITH_EMBEDDINGS = 2,
    PACKED_EMBEDDINGS_ALONE = 3,
    PACKED_ANY_SIZE = 4,
    PACKED_MAX_CHANNELS = 1 << 16,
    PACKED_MAX_TOKENS = 1 << 16,
    PACKED_DATA = 4096,
    PACKED_ALIGN = 64,
    PACKED_MAX_SIDE = 8192,
    PACKED_RANGE = 512
};

struct packed_header {
    char magic[8];      /* PACKED_MAGIC */
    uint32_t version;
    uint32_t side;      /* side of the images */
    uint32_t cells;     /* side of the masks; from version 3 on: 0 */
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
    uint32_t channels, grid; /* grid 0: from version 3 on, with... */
    uint32_t tokens;    /* ...number of vectors of `channels` numbers; else 0 */
    uint64_t weights;   /* hash of the encoder's weights ... */
    uint64_t layers;    /* ... and of its layers and the image preprocessing */
    char model[152];    /* the folder of the weights as the user named it; for messages */
    uint32_t any_size;  /* 1: version 4 */
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
/* Returns the bytes of one embedding, without padding. */
size_t packed_embedding_bytes(const struct packed_embeddings *e);
enum dtype packed_dtype(uint32_t type);

struct packed_sample {
    uint64_t at;        /* offset in the file, of the image; from version 3 on, of its embeddings */
    uint64_t first;     /* its first mask */
    uint32_t masks;
    union {
        uint32_t empty; /* masks without pixels, which are not stored */
        /* from version 3 on: enum data_fault of an image that could not be read; FAULT_NONE: its
         * embeddings are here */
        uint32_t fault;
    };
    union {
        struct {
            uint32_t h, w; /* size before resizing */
        };
        struct {
            uint32_t count;    /* from version 3 on: embeddings */
            uint32_t replaced; /* and frames of a video that could not be decoded (video.h) */
        };
    };
    /* of the canvas that the image covers; version 3: of its tiles, 0: it has none; version 4: of
     * its tokens */
    uint32_t rows, columns;
    /* offsets in the names; from version 3 on the key of an image with a fault is the reason */
    uint32_t name, key;
    uint32_t sum;       /* CRC32C of image, embeddings and masks */
    /* offset + 1 in the names of the volume, patient or video that it is a part of
     * (dataset_split_group); 0: none */
    uint32_t group;
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
/* Returns PL_USAGE when n bytes at `bytes`, aligned to 64, are not a complete store. Messages do
 * not name the file. `f` points into the bytes. */
int packed_parse(struct packed_file *f, const void *bytes, size_t n, struct error *e);
/* Reports whether a file begins like a store. */
bool packed_is(const char *path);
/* Reads only the header of a store; out->type is 0 if it has no embeddings. The PL_USAGE message
 * names the file. */
int packed_peek(const char *path, struct packed_header *header, struct packed_embeddings *out, struct error *e);

/* --- embeddings by reference -------------------------------------------------------- */

/* The name of a sample from version 3 on: the reference; a long one, such as a data: URL, by its
 * hash, in `room`. */
enum { PACKED_NAME = 48 };
const char *packed_name(const char *reference, char room[PACKED_NAME]);

/* An image or a video of a dataset that was opened with dataset_options.embeddings_alone. */
struct packed_output {
    uint64_t sample;           /* in the dataset */
    const void *at;            /* [count] embeddings; NULL: it could not be read, because of: */
    enum data_fault fault;
    const char *why;
    uint32_t count, replaced, rows, columns;
};
struct dataset;
/* Finds an embedding; returns false if the store does not have it. Allocates nothing. */
bool packed_find(const struct dataset *d, const char *reference, struct packed_output *out);

/* --- writing, atomically ------------------------------------------------------------ */

struct packed_writer;
/* Writes to a temporary file beside the path until packed_finish. `cells` 0: only for
 * embeddings. */
int packed_create(struct packed_writer **out, const char *path, uint32_t side, uint32_t cells, struct error *e);
/* Gives each sample an embedding; called before the first sample. Sets the checksum. */
void packed_embed(struct packed_writer *w, const struct packed_embeddings *e);

/* Records the range of the images. */
struct pixel_range;
void packed_set_range(struct packed_writer *w, const struct pixel_range *r);

struct packed_new {
    const char *name, *key;
    const char *group;          /* NULL: none */
    uint32_t h, w, rows, columns;
    const uint8_t *image;       /* [side][side][3] */
    const void *embedding;      /* packed_embedding_bytes, after packed_embed */
    const struct mask *masks;   /* [n]; the shapes are not used */
    const uint8_t *bits;        /* [n][cells][stride] */
    uint32_t n, empty;
};
int packed_add(struct packed_writer *w, const struct packed_new *s, struct error *e);
/* Adds a sample from version 3 on, after packed_embed with tokens; in the order of packed_name.
 * `at` NULL: with a fault and its reason. */
int packed_add_output(struct packed_writer *w, const char *reference, const struct packed_output *s, struct error *e);
/* Adds a category name for dataset_category. */
void packed_category(struct packed_writer *w, int32_t number, const char *name);
/* Writes the index and the header and renames the file. Frees the writer in any case. */
int packed_finish(struct packed_writer *w, struct error *e);
/* Removes the file, instead of packed_finish. */
void packed_abandon(struct packed_writer *w);
