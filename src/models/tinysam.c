/*
 * tinysam.c: TinySAM and MobileSAM: the image encoder TinyViT with the prompt encoder and the mask
 * decoder of Segment Anything. Their configuration.
 */
#include <stdio.h>
#include <string.h>

#include "models/sam.h"
#include "models/tinyvit.h"

static const struct tinyvit usual = {
    .stage = {{64, 2, 2, 7, 0}, {128, 2, 4, 7, 0}, {160, 6, 5, 14, 0}, {320, 2, 10, 7, 0}},
    .stages = 4, .mlp_ratio = 4, .expand = 4, .classes = 1000,
};

/* Parses a list with one number per stage. The first list determines the number of stages. */
static int parse_list(struct tinyvit *c, const struct value *map, const char *key, size_t offset, int64_t most,
                      struct error *e)
{
    const struct value *list = value_get(map, key);
    if (!list || list->kind == VALUE_NULL) return PL_OK;
    if (value_as_list(list, key, e)) return e->code;
    if (offset == offsetof(struct stage, width) && list->count >= 2 && list->count <= STAGES) c->stages = list->count;
    if (list->count != c->stages)
        return error_set(e, PL_USAGE, "%s has %u numbers; expected one for each stage (2 to %d): embed_dims has %lld",
                         key, list->count, STAGES, (long long)c->stages);
    for (uint32_t i = 0; i < list->count; i++) {
        int64_t *to = (int64_t *)(void *)((char *)&c->stage[i] + offset);
        if (value_as_int(value_at(list, i), key, to, e)) return e->code;
        if (*to < 1 || *to > most)
            return error_set(e, PL_USAGE, "%s[%u] is %lld, it must lie between 1 and %lld", key, i, (long long)*to,
                             (long long)most);
    }
    return PL_OK;
}

static int parse_ratio(const struct value *map, const char *key, double *to, struct error *e)
{
    int rc = value_opt_number(map, key, to, e);
    if (!rc && !(*to > 0 && *to <= 64)) rc = error_set(e, PL_USAGE, "%s is %g, it must lie between 0 and 64", key, *to);
    return rc;
}

/* Parses the keys of one map; missing keys leave *c unchanged. */
static int parse_keys(struct tinyvit *c, struct sam_vision *v, const struct value *map, struct error *e)
{
    const struct size_key keys[] = {
        {"image_size", &v->image, 1, 1 << 14},       {"num_channels", &v->channels, 1, 1 << 12},
        {"output_channels", &v->output, 1, 1 << 20}, {"num_pos_feats", &v->features, 1, 1 << 19},
        {"num_classes", &c->classes, 0, 1 << 20},
    };
    int rc = sam_parse_sizes(map, keys, COUNT(keys), e);
    if (!rc) rc = parse_list(c, map, "embed_dims", offsetof(struct stage, width), 1 << 16, e);
    if (!rc) rc = parse_list(c, map, "depths", offsetof(struct stage, depth), 1024, e);
    if (!rc) rc = parse_list(c, map, "num_heads", offsetof(struct stage, heads), 1 << 14, e);
    if (!rc) rc = parse_list(c, map, "window_sizes", offsetof(struct stage, window), 1 << 10, e);
    if (!rc) rc = parse_ratio(map, "mlp_ratio", &c->mlp_ratio, e);
    return rc ? rc : parse_ratio(map, "mbconv_expand_ratio", &c->expand, e);
}

/* The side halves between stages; except before the last stage and, as in the reference, before a
 * stage of one of these widths, which are those of the last stages of all published sizes. */
static void find_strides(struct tinyvit *c, struct sam_vision *v)
{
    v->patch = SHRINK;
    for (int64_t i = 0; i + 1 < c->stages; i++) {
        const int64_t next = c->stage[i + 1].width;
        c->stage[i].stride = i + 2 == c->stages || next == 320 || next == 448 || next == 576 ? 1 : 2;
        v->patch *= c->stage[i].stride;
    }
}

static int check(const struct tinyvit *c, const struct sam *s, struct error *e)
{
    if (c->stage[0].width < 2)
        return error_set(e, PL_USAGE, "embed_dims[0] is %lld, it must be at least 2", (long long)c->stage[0].width);
    for (int64_t i = 1; i < c->stages; i++)
        if (c->stage[i].width % c->stage[i].heads)
            return error_set(e, PL_USAGE, "embed_dims[%lld] %lld is not divisible by num_heads[%lld] %lld",
                             (long long)i, (long long)c->stage[i].width, (long long)i, (long long)c->stage[i].heads);
    if (s->vision.image % s->vision.patch)
        return error_set(e, PL_USAGE, "image_size %lld is not divisible by %lld, the total stride of the stages",
                         (long long)s->vision.image, (long long)s->vision.patch);
    if (s->decoder.iou_layers != 3)
        return error_set(e, PL_USAGE,
                         "mask_decoder_config.iou_head_depth is %lld; the reference's weights have a head of 3 layers",
                         (long long)s->decoder.iou_layers);
    return PL_OK;
}

/* The encoder's keys are in the map itself, or in its vision_config. Sizes shared with the other
 * sub-configurations are given once. */
static int parse_tinysam(struct model *m, const struct value *config, struct error *e)
{
    struct sam *s = bump_alloc(&m->memory, sizeof *s);
    struct tinyvit *c = bump_alloc(&m->memory, sizeof *c);
    const struct value *vision, *prompts, *decoder;
    *c = usual;
    *s = (struct sam){.tiny = c, .prompts = sam_usual_prompts, .decoder = sam_usual_decoder, .vision = {.image = 1024, .channels = 3}};
    s->decoder.eps = 1e-5; /* as in the reference; the default of transformers differs */
    m->config = s;
    if (sam_parse_part(config, "vision_config", &vision, e) ||
        sam_parse_part(config, "prompt_encoder_config", &prompts, e) ||
        sam_parse_part(config, "mask_decoder_config", &decoder, e))
        return e->code;
    if (sam_parse_decoder(&s->decoder, decoder, e)) return error_prepend(e, "mask_decoder_config");
    s->vision.output = s->prompts.hidden = s->decoder.hidden;
    s->vision.features = s->decoder.hidden / 2;
    if (parse_keys(c, &s->vision, config, e)) return e->code;
    if (vision && parse_keys(c, &s->vision, vision, e)) return error_prepend(e, "vision_config");
    find_strides(c, &s->vision);
    s->prompts.image = s->vision.image;
    s->prompts.patch = s->vision.patch;
    if (sam_parse_prompts(&s->prompts, prompts, e)) return error_prepend(e, "prompt_encoder_config");
    m->batch_norm = true;
    int rc = check(c, s, e);
    return rc ? rc : sam_describe(m, s, e);
}

const struct family tinysam_family = {"tinysam", parse_tinysam, sam_forward, "", false, sam_read_folder};
