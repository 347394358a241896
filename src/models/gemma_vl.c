/*
 * gemma_vl.c: Gemma 3 with images and PaliGemma (model_type gemma3, paligemma): SigLIP, a
 * projector, a decoder of Gemma's.
 *
 *     Gemma 3      features = norm(average of k x k neighbours) w    w [vision width,text width]; the
 *                  norm is times 1 + its weight
 *     PaliGemma    features = linear(x)
 *
 * The tokens of an image see each other in both directions, and with PaliGemma all of a prompt
 * (image_model.both).
 */
#include "graph/emit.h"
#include "models/images.h"
#include "models/layers.h"
#include "models/llava.h"
#include "models/parts.h"

#define TOWER "vision_tower"
#define DECODER "language_model"
#define PROJECTOR "multi_modal_projector."

struct gemma_vl {
    struct tower_sizes sizes;
    int64_t side;           /* features along an image */
    double eps;             /* of the projector's norm */
};

/* Parses the parts, and the token of a feature. `type`: of a decoder whose model_type is not
 * stated. */
static int parse_parts(struct model *m, struct gemma_vl *c, const struct value *config, const char *type,
                       int64_t *token, struct error *e)
{
    const struct value *vision, *text;
    const char *absent = bump_format(&m->memory, "{\"model_type\": \"%s\"}", type);
    bool tied = true;
    TRY(llava_part_config(m, config, "vision_config", "siglip_vision_model",
                          "{\"model_type\": \"siglip_vision_model\"}", &vision, e));
    TRY(llava_part_config(m, config, "text_config", type, absent, &text, e));
    /* transformers sets it for PaliGemma, whose masks say who sees whom */
    struct value *own = value_copy(&m->memory, text);
    value_put(&m->memory, own, "use_bidirectional_attention", value_new(&m->memory, VALUE_NULL));
    text = own;
    if (llava_add_tower(m, TOWER, vision, NULL, e)) return error_prepend(e, "vision_config");
    if (llava_add_decoder(m, DECODER, text, NULL, e)) return error_prepend(e, "text_config");
    TRY(value_opt_bool(text, "tie_word_embeddings", &tied, e));
    TRY(value_opt_bool(config, "tie_word_embeddings", &tied, e));
    TRY(value_opt_int(config, "image_token_index", token, e));
    TRY(value_opt_int(config, "image_token_id", token, e));
    TRY(value_opt_number(vision, "layer_norm_eps", &c->eps, e));
    decoder_tie(llava_part(m, DECODER), tied);
    decoder_describe(m, model_part(m, DECODER));
    c->sizes = tower_sizes(model_part(m, TOWER));
    if (c->sizes.tokens == c->sizes.side * c->sizes.side) return PL_OK;
    return error_set(e, PL_USAGE, "vision_config: a %s has a class token, which is no part of the grid",
                     model_part(m, TOWER)->family->model_type);
}

/* Describes which tokens see each other in both directions. */
static void describe_both(struct model *m, enum both_directions both)
{
    m->images->both = both;
    m->whole = both == BOTH_PROMPT ? WHOLE_PROMPT : WHOLE_WITH_IMAGES;
    m->images->window = decoder_window(model_part(m, DECODER));
    model_add_port(m, &(struct port){"token_type_ids", VALUES_KINDS, 2, {OPEN('B'), OPEN('T')}, true});
}

static int parse_gemma3(struct model *m, const struct value *config, struct error *e)
{
    struct gemma_vl *c = m->config = bump_alloc(&m->memory, sizeof *c);
    int64_t token = 262144, features = 256;
    *c = (struct gemma_vl){.eps = 1e-6};
    TRY(parse_parts(m, c, config, "gemma3_text", &token, e));
    TRY(layer_parse_sizes(config, &(struct size_key){"mm_tokens_per_image", &features, 1, 1 << 20}, 1, e));
    while ((c->side + 1) * (c->side + 1) <= features) c->side++;
    if (c->side * c->side != features || c->sizes.side % c->side)
        return error_set(e, PL_USAGE, "mm_tokens_per_image is %lld; expected n * n, where n divides image_size / "
                         "patch_size, which is %lld", (long long)features, (long long)c->sizes.side);
    TRY(images_describe(m, c->sizes, model_part(m, TOWER)->family->model_type, features, token, IMAGE_AS_TOKENS, e));
    m->images->place = "<start_of_image>";
    m->images->around[0] = "\n\n<start_of_image>";
    m->images->around[1] = "<end_of_image>\n\n";
    m->images->bilinear = true;
    describe_both(m, BOTH_IMAGE);
    return PL_OK;
}

static int parse_paligemma(struct model *m, const struct value *config, struct error *e)
{
    struct gemma_vl *c = m->config = bump_alloc(&m->memory, sizeof *c);
    int64_t token = 256000;
    TRY(parse_parts(m, c, config, "gemma", &token, e));
    TRY(images_describe(m, c->sizes, model_part(m, TOWER)->family->model_type, c->sizes.tokens, token,
                        IMAGE_AS_TOKENS, e));
    m->images->bos_behind = true;
    describe_both(m, BOTH_PROMPT);
    return PL_OK;
}

static id encode(const struct model *m, struct graph *g, id pixels)
{
    return tower_encode(model_part(m, TOWER), g, TOWER, pixels, 0, NULL, NULL);
}

static id project(const struct model *m, struct graph *g, id x)
{
    const struct gemma_vl *c = m->config;
    if (!x) return 0;
    const int64_t n = tensor_at(g, x)->dim[0], side = c->sizes.side, C = c->sizes.width,
                  dim[] = {C, decoder_width(model_part(m, DECODER))};
    IN_SCOPE(g, "projector", SCOPE_IMAGES) {
        x = op_avgpool_adaptive(g, op_reshape(g, x, 4, (int64_t[]){n, side, side, C}), c->side, c->side);
        x = op_reshape(g, x, 3, (int64_t[]){n, c->side * c->side, C});
        x = layer_rmsnorm_with(g, x, PROJECTOR, "mm_soft_emb_norm", (struct rmsnorm_options){c->eps, true});
        id w = layer_param(g, PROJECTOR, "mm_input_projection_weight", 2, dim, 0);
        x = op_linear(g, x, op_permute(g, w, (int[]){1, 0}), 0);
    }
    return x;
}

static id project_linear(const struct model *m, struct graph *g, id x)
{
    const int64_t width = decoder_width(model_part(m, DECODER));
    IN_SCOPE(g, "projector", SCOPE_IMAGES)
        x = layer_linear_init(g, x, PROJECTOR, "linear", width, (struct linear_init){.std = 0.02});
    return x;
}

static void build_gemma3(const struct model *m, struct graph *g, const struct batch *batch)
{
    images_build(m, g, batch, DECODER, (struct image_layers){.tower = encode, .project = project});
}

static void build_paligemma(const struct model *m, struct graph *g, const struct batch *batch)
{
    images_build(m, g, batch, DECODER, (struct image_layers){.tower = encode, .project = project_linear});
}

const struct family gemma3_family =
    {"gemma3", parse_gemma3, build_gemma3, "", true, .generates = true, .spellings = llava_spellings};
const struct family paligemma_family =
    {"paligemma", parse_paligemma, build_paligemma, "", true, .generates = true, .spellings = llava_spellings};
