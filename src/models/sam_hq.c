/*
 * sam_hq.c: SAM-HQ: SAM with one token more, whose mask has finer edges.
 *
 *     features = up(image embedding) + up(early block)          once for an image
 *     finer    = conv 3x3(gelu(norm(conv 3x3(maps)))) + features
 *     masks    = filter(mask tokens) . maps + filter(HQ token) . finer
 *
 * maps are those of SAM's mask decoder, in which the HQ token takes part as another token. early is
 * the result of the first encoder block with global attention. Training of SAM-HQ freezes what SAM
 * has: model.freeze does that.
 *
 * transformers' SamHQModel orders the candidates of a prompt by their predicted IoU. Here they have
 * the order of their tokens, as those of SAM.
 */
#include "graph/emit.h"
#include "models/layers.h"
#include "models/sam.h"

#define ROOT "mask_decoder."

static const double NORM_EPS = 1e-6;

int sam_hq_parse(struct sam *c, const struct value *decoder, struct error *e)
{
    int64_t width = 768;
    bool early = false;
    TRY(layer_parse_sizes(decoder, &(struct size_key){"vit_dim", &width, 1, 1 << 20}, 1, e));
    if (width != c->vision.hidden)
        return error_set(e, PL_USAGE,
                         "vit_dim is %lld, and hidden_size of vision_config is %lld: they must be the same",
                         (long long)width, (long long)c->vision.hidden);
    for (int64_t i = 0; i < c->vision.layers; i++) early |= c->vision.global[i];
    if (early) return PL_OK;
    return error_set(e, PL_USAGE,
                     "global_attn_indexes of vision_config names no layer; SAM-HQ reads the first one with global "
                     "attention");
}

/* Upscales a map by four in each direction, to an eighth of the decoder's channels. */
static id upscale(const struct sam_build *b, id map, const char *convs, const char *norm, int64_t inner)
{
    struct graph *g = b->g;
    char name[40];
    snprintf(name, sizeof name, "%s_conv1", convs);
    id x = layer_norm(g, layer_upscale(g, map, ROOT, name, inner, 2), ROOT, norm, NORM_EPS);
    snprintf(name, sizeof name, "%s_conv2", convs);
    return layer_upscale(g, op_act(g, x, ACT_GELU), ROOT, name, b->c->decoder.hidden / 8, 2);
}

id sam_hq_features(const struct sam_build *b, struct sam_image image)
{
    const int64_t C = b->c->decoder.hidden;
    id embedded = upscale(b, image.coarse, "encoder", "encoder_norm", C / 4);
    return op_add(b->g, embedded, upscale(b, image.early, "compress_vit", "compress_vit_norm", C));
}

id sam_hq_maps(const struct sam_build *b, id maps)
{
    struct graph *g = b->g;
    const int64_t C = b->c->decoder.hidden;
    const struct kernel_shape around = {3, 1, 1, true};
    id x = layer_norm(g, layer_conv(g, maps, ROOT, "mask_conv1", C / 4, around), ROOT, "mask_norm", NORM_EPS);
    return layer_conv(g, op_act(g, x, ACT_GELU), ROOT, "mask_conv2", C / 8, around);
}
