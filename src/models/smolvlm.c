/*
 * smolvlm.c: SmolVLM and Idefics3 (model_type smolvlm, idefics3): SigLIP's tower, a connector,
 * Llama.
 *
 *     tower      last_hidden_state [n,side*side,C], normalised
 *     connector  each scale_factor x scale_factor tokens of the grid become one of their joined
 *     channels
 *                (pixel shuffle), and a linear layer without bias gives it the decoder's width
 *
 * transformers gives pixel_values as [B,M,3,S,S], where images of zeros are padding.
 */
#include "models/images.h"
#include "graph/emit.h"
#include "models/layers.h"
#include "models/llava.h"
#include "models/parts.h"

extern const struct family smolvlm_family;

#define TOWER "model.vision_model"
#define DECODER "model.text_model"

struct smolvlm {
    int64_t side, scale; /* tokens along an image; how many of them are joined */
};

static int parse_smolvlm(struct model *m, const struct value *config, struct error *e)
{
    struct smolvlm *c = m->config = bump_alloc(&m->memory, sizeof *c);
    const struct value *vision, *text;
    int64_t token = 128257;
    bool tied = false; /* text_config does not decide */
    *c = (struct smolvlm){.scale = 2};
    int rc = llava_part_config(m, config, "vision_config", "idefics3_vision", "{\"model_type\": \"idefics3_vision\"}",
                               &vision, e);
    if (!rc)
        rc = llava_part_config(m, config, "text_config", "llama", "{\"model_type\": \"llama\", \"rms_norm_eps\": 1e-5}",
                               &text, e);
    if (!rc && (rc = llava_add_tower(m, TOWER, vision, NULL, e))) error_prepend(e, "vision_config");
    if (!rc && (rc = llava_add_decoder(m, DECODER, text, NULL, e))) error_prepend(e, "text_config");
    if (!rc) rc = value_opt_bool(config, "tie_word_embeddings", &tied, e);
    if (!rc) rc = value_opt_int(config, "image_token_id", &token, e);
    if (!rc) rc = value_opt_int(config, "scale_factor", &c->scale, e);
    if (rc) return rc;
    const struct tower_sizes s = tower_sizes(model_part(m, TOWER));
    c->side = s.side;
    if (s.tokens != s.side * s.side)
        return error_set(e, PL_USAGE, "vision_config: a %s has a class token, which is no part of the grid",
                         model_part(m, TOWER)->family->model_type);
    if (c->scale < 1 || c->side % c->scale)
        return error_set(e, PL_USAGE,
                         "scale_factor is %lld; expected a divisor of image_size / patch_size, which is %lld",
                         (long long)c->scale, (long long)c->side);
    tower_set_root(llava_part(m, TOWER), "");
    decoder_set_names(llava_part(m, DECODER), "", true);
    decoder_tie(llava_part(m, DECODER), tied);
    decoder_describe(m, model_part(m, DECODER));
    rc = images_describe(m, s, model_part(m, TOWER)->family->model_type, s.tokens / (c->scale * c->scale), token,
                         IMAGE_AS_TILES, e);
    if (!rc) m->images->timed = m->family == &smolvlm_family; /* no reference states a video's text of Idefics3 */
    return rc;
}

static id encode(const struct model *m, struct graph *g, id pixels)
{
    return tower_encode(model_part(m, TOWER), g, TOWER, pixels, 0, NULL, NULL);
}

static id connect(const struct model *m, struct graph *g, id x)
{
    const struct smolvlm *c = m->config;
    if (!x) return 0;
    const int64_t n = tensor_at(g, x)->dim[0], width = m->images->width, across = c->side / c->scale;
    IN_SCOPE(g, "model.connector", SCOPE_IMAGES) {
        x = op_window(g, op_reshape(g, x, 4, (int64_t[]){n, c->side, c->side, width}), (int)c->scale);
        x = op_reshape(g, x, 3, (int64_t[]){n, across * across, c->scale * c->scale * width});
        x = layer_linear_init(g, x, "model.connector.", "modality_projection.proj",
                              decoder_width(model_part(m, DECODER)),
                              (struct linear_init){.std = 0.02, .no_bias = true});
    }
    return x;
}

static const struct image_layers layers = {.tower = encode, .project = connect};

static void build_smolvlm(const struct model *m, struct graph *g, const struct batch *batch)
{
    images_build(m, g, batch, DECODER, layers);
}

const struct family idefics3_family = {"idefics3", parse_smolvlm, build_smolvlm, "", true, .generates = true};
const struct family smolvlm_family = {"smolvlm", parse_smolvlm, build_smolvlm, "", true, .generates = true};
