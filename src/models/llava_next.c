/*
 * llava_next.c: LLaVA-NeXT (model_type llava_next), which is LLaVA 1.6: LLaVA, whose images are
 * tiles and a whole (text/template/anyres.h), with a learned token at the end of each row of
 * features.
 */
#include <math.h>

#include "models/llava.h"

struct llava_next {
    struct llava llava; /* the first member: its layers read it */
    struct anyres anyres;
};

int llava_describe_tiles(struct model *m, const struct llava *c, struct anyres *a, int64_t token, struct error *e)
{
    const struct tower_sizes s = tower_sizes(model_part(m, c->tower));
    TRY(llava_describe(m, c, token, IMAGE_AS_ANYRES, e));
    if (m->images->features != s.side * s.side)
        return error_set(e, PL_USAGE,
                         "vision_feature_select_strategy: an image has %lld features, expected %lld x %lld, a grid "
                         "without a class token", (long long)m->images->features, (long long)s.side,
                         (long long)s.side);
    for (uint32_t i = 0; i < a->n; i++)
        for (int k = 0; k < 2; k++) {
            if (a->sizes[i][k] % s.image)
                return error_set(e, PL_USAGE,
                                 "image_grid_pinpoints: %d pixels are not divisible by image_size, which is %lld",
                                 a->sizes[i][k], (long long)s.image);
            if (a->sizes[i][k] / s.image * s.side >= 2 * ANYRES_PADDING)
                return error_set(e, PL_USAGE,
                                 "image_grid_pinpoints: %d pixels are %lld features, expected less than %d",
                                 a->sizes[i][k], (long long)(a->sizes[i][k] / s.image * s.side), 2 * ANYRES_PADDING);
        }
    a->tile = (int32_t)s.image;
    a->side = (int32_t)s.side;
    a->token = (int32_t)token;
    m->images->anyres = a;
    m->whole = WHOLE_WITH_IMAGES;
    m->images->padded = true;
    m->images->newline = LLAVA_NEWLINE;
    model_add_port(m, &(struct port){"image_sizes", VALUES_SIZES, 2, {OPEN('I'), 2}, true});
    return PL_OK;
}

static int parse_next(struct model *m, const struct value *config, struct error *e)
{
    struct llava_next *c = m->config = bump_alloc(&m->memory, sizeof *c);
    int64_t token;
    TRY(llava_parse_parts(m, &c->llava, config, &llava_usual, &token, e));
    TRY(anyres_parse(&c->anyres, config, false, e));
    return llava_describe_tiles(m, &c->llava, &c->anyres, token, e);
}

const struct spelling llava_next_spellings[] = {
    {"language_model.model.", {"model.language_model.", "language_model."}},
    {"language_model.lm_head.", {"lm_head."}},
    {"multi_modal_projector.", {"model.multi_modal_projector."}},
    {"vision_tower.vision_model.", {"model.vision_tower.", "vision_tower.", "model.vision_tower.vision_model."}},
    {LLAVA_NEWLINE, {"model." LLAVA_NEWLINE}},
    {NULL, {NULL}},
};

const struct family llava_next_family =
    {"llava_next", parse_next, llava_build, "", true, .generates = true, .spellings = llava_next_spellings};
