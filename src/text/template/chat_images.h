/*
 * chat_images.h: how images are written in the text of a model.
 *
 *     tokens   transformers' LLaVA     the token <image>, once for each feature of the image
 *     tiles    SmolVLM, Idefics3       the same for each tile, with tokens that name its row and column, and for the
 *                                      whole image:
 *                                      <fake_token_around_image><row_1_col_1><image>...\n\n
 *                                      <fake_token_around_image><global-img><image>...<fake_token_around_image>
 *     crops    InternVL                the same tiles, between two tokens: <img><IMG_CONTEXT>...</img>
 *     anyres   LLaVA-NeXT, OneVision   the token <image>, as often as the size of the image asks for (anyres.h)
 *     pieces   LLaVA's original code   the text is cut at images, and each piece is tokenized by itself; the features
 *                                      of the image stand between them
 *
 * A video stands in the text as an image does, with the features of all its frames. SmolVLM's is
 * described instead, each frame by its time and as an image without tiles, and InternVL's by the
 * numbers of its frames; Idefics3 takes none. Videos of Qwen-VL (below) and of
 * LLaVA-OneVision have a token of their own.
 *
 * In messages an image is the text <image>. A chat template that takes contents as lists of parts
 * gets [{"type": "image"}, {"type": "text", "text": ...}] instead. A line break that sets the image
 * apart from its text is then left out where the template writes one itself.
 */
#pragma once

#include "base/base.h"
#include "text/template/anyres.h"
#include "text/template/template.h"
#include "text/tokenizer/tokenizer.h"

#define IMAGE_PLACEHOLDER "<image>"
#define VIDEO_PLACEHOLDER "<video>"

enum image_layout { IMAGE_AS_TOKENS, IMAGE_AS_TILES, IMAGE_AS_CROPS, IMAGE_AS_ANYRES, IMAGE_AS_PIECES };

/* Reports whether an image is several tiles and itself as a whole. */
static inline bool image_is_tiled(enum image_layout layout)
{
    return layout == IMAGE_AS_TILES || layout == IMAGE_AS_CROPS || layout == IMAGE_AS_ANYRES;
}

struct image_text {
    enum image_layout layout;
    int32_t token;       /* placeholder id of a feature */
    uint32_t features;   /* of an image, or of a tile; any_size: 1, and image_tiles has how many */
    bool any_size;       /* tokens: images and videos of any size, each with tokens of its own number */
    int32_t video;       /* placeholder id of a video's feature, if it has one of its own; below 0: it has not */
    uint32_t frame_features; /* of a frame of a video */
    const char *around[2]; /* what stands before and behind the tokens of an image; NULL: nothing */
    /* what templates write for an image, of a model that takes no videos; NULL: its token */
    const char *place;
    /* tiles: videos are described, by the times of frames; any_size: each grid of a video follows
     * its time */
    bool timed;
    /* BOS stands behind the last image, and not before the text */
    bool bos_behind;
    /* renders conversations with videos, from lists of parts; NULL: the template that renders the
     * others */
    const struct template *video_template;
    /* What image_text_open finds: */
    const char *content; /* the token as text */
    const char *video_content; /* the same of `video`; NULL: there is none */
    struct anyres anyres; /* layout ANYRES, whose tokens have ids of their own (image_text_id) */
    const char *bos;     /* bos_behind: BOS as text */
    bool parts;          /* the template takes lists of parts, */
    bool before, after;  /* and sets an image apart from a text before it, or behind it, by a line break, or moves it */
};

/* Reports whether the model takes videos at all. */
static inline bool image_text_takes_videos(const struct image_text *x)
{
    if (x->layout == IMAGE_AS_ANYRES) return x->anyres.pooled;
    return !x->place && (x->layout != IMAGE_AS_TILES || x->timed);
}

/* Fills the rest of *x, whose layout, token, features, around, place and bos_behind are set.
 * `template` may be NULL. PL_USAGE, with what to do: the tokenizer lacks the image token, or has it
 * under another id. */
int image_text_open(struct image_text *x, const struct tokenizer *t, const struct template *template, struct error *e);
/* Returns the id that transformers' processors give a token. */
int32_t image_text_id(const struct image_text *x, int32_t id);
/* Returns a hash of everything that decides ids. */
uint64_t image_text_fingerprint(const struct image_text *x);

/* Returns the text that joins an image and a text that are parts of a content in the data; `x`
 * NULL: the model takes only text. */
const char *image_text_joint(const struct image_text *x);
/* Counts the images that a text asks for. */
uint32_t image_text_count(const char *text);

/* The tiles of an image; 0 and 0: only the whole image. A video has frames instead, or grids. */
struct image_tiles {
    uint32_t rows, columns, frames;
    const uint32_t *seconds; /* [frames] of a video that is described: when its frames are shown, and */
    uint32_t duration;       /* its seconds */
    struct anyres_shape shape; /* layout ANYRES: of an image that is the only one of its conversation */
    uint32_t tokens;         /* of an image or a video of any size, or of a volume, */
    uint32_t grids;          /* and of a video its grids in time */
    const double *times;     /* [grids] the times that the text names; NULL: it names none */
};
/* The images of one text, in their order. */
struct text_images {
    const struct image_text *how;
    const struct image_tiles *tiles; /* of each; NULL: none has any */
    uint32_t n;
};

struct range_list {
    struct byte_range *at;
    uint32_t n, cap;
};

/* Returns the template that renders a conversation with these images: `template`, or the one for
 * videos. */
const struct template *image_text_template(const struct text_images *images, const struct template *template);
/* Writes the messages as that template takes them, in `b`. */
struct value *image_text_messages(const struct text_images *images, struct value *messages, struct bump *b);
/* Replaces each image in a rendered text by its text, and moves the ranges: none of them holds an
 * image any more. `spans` gets the bytes of each. PL_USAGE: the text has more or fewer images. */
int image_text_expand(const struct text_images *images, struct rendered *r, struct range_list *spans, struct error *e);
/* Encodes an expanded text; `tokens` gets the range of each image's tokens, with those that name
 * its tiles. */
int image_text_encode(const struct text_images *images, const struct tokenizer *t, const struct rendered *r,
                      const struct range_list *spans, struct token_list *out, struct range_list *tokens,
                      struct error *e);

/* Writes a number in English words, as num2words does: "one thousand, two hundred and five". */
void number_words(uint32_t n, struct text *out);

/* --- vision text ----------------------------------------------------------------------------- */

/* The text that takes the place of <|image_pad|> or <|video_pad|> in a rendered
 * conversation of Qwen2-VL, Qwen2.5-VL and Qwen3-VL. The template writes <|vision_start|> before it
 * and <|vision_end|> behind it.
 *
 *     image, and Qwen2-VL's and 2.5's video   the token, once for each feature
 *     Qwen3-VL's video                        for each grid in time its own text:
 *                                             <0.3 seconds><|vision_start|><|video_pad|>...<|vision_end|>
 */
struct vision_text {
    const char *token;       /* <|image_pad|> or <|video_pad|> */
    const char *start, *end; /* <|vision_start|> and <|vision_end|> */
    uint32_t grids;          /* of a video; an image has 1 */
    uint64_t tokens;         /* of each grid */
    const double *seconds;   /* [grids] times that the text names; NULL: it names none */
};

/* Appends the text to `out`. */
void vision_text_put(const struct vision_text *v, struct text *out);
/* Returns the tokens that vision_text_put repeats, grids * tokens: those that features replace. */
uint64_t vision_text_features(const struct vision_text *v);
