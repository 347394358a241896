/*
 * vision_text.h: the text that takes the place of <|image_pad|> or <|video_pad|> in a rendered
 * conversation of Qwen2-VL, Qwen2.5-VL and Qwen3-VL. The template writes <|vision_start|> before it
 * and <|vision_end|> behind it.
 *
 *     image, and Qwen2-VL's and 2.5's video   the token, once for each feature
 *     Qwen3-VL's video                        for each grid in time its own text:
 *                                             <0.3 seconds><|vision_start|><|video_pad|>...<|vision_end|>
 */
#pragma once

#include "base/base.h"

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
