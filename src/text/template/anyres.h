/*
 * anyres.h: images in tiles as LLaVA-NeXT and LLaVA-OneVision have them: the whole image, then
 * tiles of it at a size that is chosen from a list. The features of the tiles are one map, of which
 * only what shows the image becomes tokens, and a learned token, the newline, ends each row of it.
 *
 *     list     1 x 2, 2 x 1, 2 x 2 tiles          the image: whole, and 1 x 2 tiles with padding
 *
 *     tokens   w w w w   t t t t newline   t t t t newline     a whole of 2 x 2 features, and a map
 *              [ whole ] [ row of the map]                     of 2 x 4 without padding
 *
 * LLaVA-OneVision (`pooled`) resizes a map that is larger than `most` tiles, bilinearly. Images
 * that share a conversation are wholes without tiles, each with a newline behind it. In a video
 * each frame is a whole, resized to pooled x pooled features, and a newline ends the video.
 *
 * There a token is a sum of up to four features with weights (struct anyres_feature); in LLaVA-NeXT
 * it is one feature.
 *
 * How many tokens an image takes follows from its size. Where tokens are kept (token_store.h),
 * those of the map and newlines have ids of their own, which say which size was chosen, and how
 * much of its map is padding: so the shape of an image follows from its ids.
 */
#pragma once

#include "io/value.h"

enum { ANYRES_MOST = 64, ANYRES_PADDING = 1024 };

struct anyres {
    int32_t tile, side;              /* pixels, and features, along the whole image and a tile */
    int32_t token;                   /* placeholder id of a feature of the whole */
    int32_t most;                    /* LLaVA-OneVision's limit, in tiles; 0: maps are not resized */
    int32_t pooled;                  /* features along a frame of a video; 0: LLaVA-NeXT */
    int32_t video;                   /* with `pooled`: placeholder id of a feature of a frame */
    uint32_t n;
    int32_t sizes[ANYRES_MOST][2];   /* heights and widths of images in tiles, in pixels */
};
/* Ids: of the features of a map and, one less, of the newlines in it; of the newline behind a whole
 * image; and behind a video. */
enum {
    ANYRES_FIRST = -1000,
    ANYRES_AFTER_IMAGE = ANYRES_FIRST - 4 * ANYRES_MOST * ANYRES_PADDING,
    ANYRES_AFTER_VIDEO = ANYRES_AFTER_IMAGE - 1,
};
static inline bool anyres_is_map(int32_t id) { return id <= ANYRES_FIRST && id >= ANYRES_AFTER_VIDEO; }

/* What becomes of an image: its size in tiles, how many these are (0: none, the whole is all), and
 * the rows and columns of features that show it, which are then resized. Or a video of frames. */
struct anyres_shape {
    int32_t size, rows, columns, height, width, to_height, to_width;
    int32_t frames;                  /* 0: an image */
};

/* Parses image_grid_pinpoints; without the key those of LLaVA-NeXT, or of LLaVA-OneVision. */
int anyres_parse(struct anyres *a, const struct value *config, bool onevision, struct error *e);
bool anyres_equal(const struct anyres *a, const struct anyres *b); /* their sizes */
/* Returns the number of the size for an image; its shape. */
uint32_t anyres_choose(const struct anyres *a, uint32_t width, uint32_t height);
struct anyres_shape anyres_shape_of(const struct anyres *a, uint32_t width, uint32_t height);
/* Returns the features along a frame of a video of LLaVA-OneVision. */
static inline int32_t anyres_pooled(int32_t side) { return (side + 1) / 2; }
/* Returns the tokens of an image or a video. */
int32_t anyres_tokens(const struct anyres *a, struct anyres_shape s);
/* Returns the images that the tower gets of it, besides the frames of a video. */
static inline int32_t anyres_images(struct anyres_shape s) { return s.frames ? 0 : 1 + s.rows * s.columns; }
static inline bool anyres_is_token(const struct anyres *a, int32_t id)
{
    return id == a->token || anyres_is_map(id) || (a->pooled && id == a->video);
}
/* Returns the placeholder id that a token has in the model's text. */
int32_t anyres_placeholder(const struct anyres *a, int32_t id);
/* Writes the ids of an image or a video: anyres_tokens of them. */
void anyres_put(const struct anyres *a, struct anyres_shape s, int32_t *ids);
/* Finds the shape of the image or the video whose ids begin here, of at most n. Returns false if
 * there is none. */
bool anyres_find(const struct anyres *a, const int32_t *ids, int64_t n, struct anyres_shape *out);

/* The features whose weighted sum is a token: rows, below 0: none. The newline is row 0. */
struct anyres_feature {
    int32_t row[4];
    float weight[4];
};
/* Finds them for token i of an image or a video whose features begin at row `first`: side * side of
 * the whole, then of each tile; or of each frame. */
void anyres_feature(const struct anyres *a, struct anyres_shape s, int32_t first, int32_t i,
                    struct anyres_feature *out);
