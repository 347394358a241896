/*
 * llava_onevision.c: LLaVA-OneVision (model_type llava_onevision): LLaVA-NeXT with SigLIP and
 * Qwen2, whose images have up to 6 x 6 tiles. A map of features that is larger than
 * vision_aspect_ratio allows is resized; images that share a conversation have no tiles; and videos
 * are sampled frames, whose features are resized to half a side (text/template/anyres.h).
 *
 * All three are sums of up to four features with weights: tables of the batch, as image_index is.
 */

#include "models/llava.h"

struct onevision {
    struct llava llava; /* the first member: its layers read it */
    struct anyres anyres;
};

static const struct llava_defaults usual = {
    .tower_type = "siglip_vision_model",
    .tower = "{\"model_type\": \"siglip_vision_model\", \"hidden_size\": 1152, \"intermediate_size\": 4304, "
             "\"patch_size\": 14, \"image_size\": 384, \"num_hidden_layers\": 26, \"num_attention_heads\": 16, "
             "\"vision_use_head\": false}",
    .decoder_type = "qwen2",
    .decoder = "{\"model_type\": \"qwen2\"}",
    .token = 151646,
    .state = -1,
    .full = true,
};
enum { USUAL_VIDEO = 151647, USUAL_MOST = 9, TILES_MOST = 1 << 12 };

/* Reads the limit of a map in tiles: anyres_max_N. */
static int parse_limit(struct anyres *a, const struct value *config, struct error *e)
{
    static const char key[] = "vision_aspect_ratio";
    const char *text = NULL;
    int end = 0;
    a->most = USUAL_MOST;
    TRY(value_opt_string(config, key, &text, e));
    if (!text) return PL_OK;
    if (sscanf(text, "anyres_max_%4d%n", &a->most, &end) == 1 && !text[end] && a->most > 0 && a->most <= TILES_MOST)
        return PL_OK;
    return error_set(e, PL_USAGE, "%s is \"%.40s\", expected anyres_max_N with N from 1 to %d", key, text, TILES_MOST);
}

static int parse_video_token(struct model *m, struct anyres *a, const struct value *config, struct error *e)
{
    int64_t token = USUAL_VIDEO;
    TRY(value_opt_int(config, "video_token_index", &token, e));
    TRY(value_opt_int(config, "video_token_id", &token, e));
    if (token < 0 || token >= m->vocabulary || token == a->token)
        return error_set(e, PL_USAGE,
                         "video_token_index is %lld, expected an id below vocab_size, which is %lld, other than "
                         "image_token_index, which is %d", (long long)token, (long long)m->vocabulary, a->token);
    a->video = (int32_t)token;
    return PL_OK;
}

static int parse_onevision(struct model *m, const struct value *config, struct error *e)
{
    struct onevision *c = m->config = bump_alloc(&m->memory, sizeof *c);
    int64_t token;
    TRY(llava_parse_parts(m, &c->llava, config, &usual, &token, e));
    const struct tower_sizes s = tower_sizes(model_part(m, c->llava.tower));
    TRY(anyres_parse(&c->anyres, config, true, e));
    TRY(parse_limit(&c->anyres, config, e));
    TRY(llava_describe_tiles(m, &c->llava, &c->anyres, token, e));
    TRY(parse_video_token(m, &c->anyres, config, e));
    c->anyres.pooled = anyres_pooled((int32_t)s.side);
    model_add_port(m, &(struct port){"batch_num_images", VALUES_SIZES, 1, {OPEN('C')}, true});
    model_add_port(m, &(struct port){"pixel_values_videos", VALUES_REAL, 4,
                                     {OPEN_FRAMES, s.channels, s.image, s.image}, true});
    return PL_OK;
}

const struct family llava_onevision_family = {"llava_onevision", parse_onevision, llava_build, "", true,
                                              .generates = true, .spellings = llava_next_spellings};
