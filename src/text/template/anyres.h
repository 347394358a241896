/*
 * anyres.h: images in tiles as LLaVA-NeXT has them: the whole image, then tiles of it at a size
 * that is chosen from a list. The features of the tiles are one map, of which only what shows the
 * image becomes tokens, and a learned token ends each row of it.
 *
 *     list     1 x 2, 2 x 1, 2 x 2 tiles          the image: whole, and 1 x 2 tiles with padding
 *
 *     tokens   w w w w   t t t t newline   t t t t newline     a whole of 2 x 2 features, and a map
 *              [ whole ] [ row of the map]                     of 2 x 4 without padding
 *
 * How many tokens an image takes follows from its size. Where tokens are kept (token_store.h),
 * those of the map and the ends of its rows have ids of their own, which say which size was chosen:
 * so the shape of an image follows from its ids.
 */
#pragma once

#include "io/value.h"

enum { ANYRES_MOST = 64 };

struct anyres {
    int32_t tile, side;              /* pixels, and features, along the whole image and a tile */
    int32_t token;                   /* placeholder id of a feature of the whole */
    uint32_t n;
    int32_t sizes[ANYRES_MOST][2];   /* heights and widths of images in tiles, in pixels */
};
/* Ids of the features of a map of size i, ANYRES_FIRST - 2 i, and of the ends of its rows, one
 * less. */
enum { ANYRES_FIRST = -1000, ANYRES_LAST = ANYRES_FIRST - 2 * ANYRES_MOST + 1 };
static inline bool anyres_is_map(int32_t id) { return id <= ANYRES_FIRST && id >= ANYRES_LAST; }

/* What becomes of an image: its size in tiles, how many these are, and the rows and columns of
 * features that show it. */
struct anyres_shape {
    int32_t size, rows, columns, height, width;
};

/* Parses image_grid_pinpoints; without the key LLaVA-NeXT's. */
int anyres_parse(struct anyres *a, const struct value *config, struct error *e);
bool anyres_equal(const struct anyres *a, const struct anyres *b); /* their sizes */
/* Returns the number of the size for an image; its shape. */
uint32_t anyres_choose(const struct anyres *a, uint32_t width, uint32_t height);
struct anyres_shape anyres_shape_of(const struct anyres *a, uint32_t width, uint32_t height);
static inline int32_t anyres_tokens(const struct anyres *a, struct anyres_shape s)
{
    return a->side * a->side + s.height * (s.width + 1);
}
static inline int32_t anyres_images(struct anyres_shape s) { return 1 + s.rows * s.columns; }
static inline bool anyres_is_token(const struct anyres *a, int32_t id)
{
    return id == a->token || anyres_is_map(id);
}
/* Writes the ids of an image: anyres_tokens of them. */
void anyres_put(const struct anyres *a, struct anyres_shape s, int32_t *ids);
/* Finds the shape of the image whose ids begin here, of at most n. Returns false if there is
 * none. */
bool anyres_find(const struct anyres *a, const int32_t *ids, int64_t n, struct anyres_shape *out);
/* Writes the index of each of the image's tokens in rows that begin with the newline: then its
 * features begin at row `first`, side * side of the whole, then of each tile. */
void anyres_index(const struct anyres *a, struct anyres_shape s, int32_t first, int32_t *index);
