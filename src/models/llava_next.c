/*
 * llava_next.c: LLaVA-NeXT (model_type llava_next), which is LLaVA 1.6: LLaVA, whose images are
 * tiles and a whole (text/template/anyres.h), with a learned token at the end of each row of
 * features.
 */
#include <math.h>

#include "graph/emit.h"
#include "models/layers.h"
#include "models/llava.h"

#define NEWLINE "image_newline"

struct llava_next {
    struct llava llava; /* the first member: its layers read it */
    struct anyres anyres;
};

static int parse_next(struct model *m, const struct value *config, struct error *e)
{
    struct llava_next *c = m->config = bump_alloc(&m->memory, sizeof *c);
    int64_t token;
    TRY(llava_parse_parts(m, &c->llava, config, &token, e));
    const struct tower_sizes s = tower_sizes(model_part(m, c->llava.tower));
    TRY(anyres_parse(&c->anyres, config, e));
    TRY(llava_describe(m, &c->llava, token, IMAGE_AS_ANYRES, e));
    if (m->images->features != s.side * s.side)
        return error_set(e, PL_USAGE,
                         "vision_feature_select_strategy: an image has %lld features, expected %lld x %lld, a grid without a "
                         "class token", (long long)m->images->features, (long long)s.side, (long long)s.side);
    for (uint32_t i = 0; i < c->anyres.n; i++)
        for (int k = 0; k < 2; k++)
            if (c->anyres.sizes[i][k] % s.image)
                return error_set(e, PL_USAGE,
                                 "image_grid_pinpoints: %d pixels are not divisible by image_size, which is %lld",
                                 c->anyres.sizes[i][k], (long long)s.image);
    c->anyres.tile = (int32_t)s.image;
    c->anyres.side = (int32_t)s.side;
    c->anyres.token = (int32_t)token;
    m->images->anyres = &c->anyres;
    m->images->padded = true;
    m->images->newline = NEWLINE;
    model_add_port(m, &(struct port){"image_sizes", VALUES_SIZES, 2, {OPEN('I'), 2}, true});
    return PL_OK;
}

static const struct spelling spellings[] = {
    {"language_model.model.", {"model.language_model.", "language_model."}},
    {"language_model.lm_head.", {"lm_head."}},
    {"multi_modal_projector.", {"model.multi_modal_projector."}},
    {"vision_tower.vision_model.", {"model.vision_tower.", "vision_tower.", "model.vision_tower.vision_model."}},
    {NEWLINE, {"model." NEWLINE}},
    {NULL, {NULL}},
};

const struct family llava_next_family =
    {"llava_next", parse_next, llava_build, "", true, .generates = true, .spellings = spellings};
