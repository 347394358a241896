/*
 * internvl.c: InternVL as transformers has it (model_type internvl): InternViT, a pixel shuffle, a
 * projector, a decoder of any family of language models.
 *
 *     x = patches(pixels), class token first, + positions
 *     each layer:  x = x + lambda_1 out(attention(norm(q(n)), norm(k(n)), v(n)))   n = norm(x)
 *                  x = x + lambda_2 fc2(act(fc1(n)))                               n = norm(x)
 *     features = linear(act(linear(norm(2 x 2 neighbours joined))))     without the class token
 *
 * The norms of q and k, over all heads, are those of the large tower. An image is several tiles and
 * itself as a whole (chat_images.h), each an image to the tower.
 */
#include <math.h>

#include "graph/emit.h"
#include "models/images.h"
#include "models/layers.h"
#include "models/llava.h"
#include "models/parts.h"

#define TOWER "vision_tower"
#define DECODER "language_model"
#define PROJECTOR "multi_modal_projector."

struct internvl {
    struct tower_sizes sizes;
    int64_t inner, heads, scale; /* scale: features that are joined, along an image */
    int64_t state;               /* hidden state of the tower: 0 .. layers; `last`: of the last one */
    bool last, last_norm, qkv_bias, qk_norm, rms_norms, positions, mask_token;
    double eps, std, scale_init;
    enum act_kind act, projector_act;
};

#define QK_EPS 1e-6
#define PROJECTOR_EPS 1e-5

/* --- configuration ---------------------------------------------------------------------------- */

/* Parses a size of pixels: a number, or a list of height and width, which must be equal. */
static int parse_square(const struct value *map, const char *key, int64_t *to, struct error *e)
{
    const struct value *v = value_get(map, key);
    if (!v || v->kind != VALUE_LIST) return layer_parse_sizes(map, &(struct size_key){key, to, 1, 1 << 14}, 1, e);
    int64_t side[2];
    if (v->count != 2) return error_set(e, PL_USAGE, "%s has %u numbers, expected height and width", key, v->count);
    for (uint32_t i = 0; i < 2; i++) TRY(value_as_int(value_at(v, i), key, &side[i], e));
    if (side[0] != side[1] || side[0] < 1 || side[0] > 1 << 14)
        return error_set(e, PL_USAGE, "%s is %lld x %lld, expected a square", key, (long long)side[0],
                         (long long)side[1]);
    *to = side[0];
    return PL_OK;
}

static int parse_tower(struct internvl *c, const struct value *v, struct error *e)
{
    struct tower_sizes *s = &c->sizes;
    const char *norms = "layer_norm";
    bool mean = true;
    const struct size_key sizes[] = {
        {"hidden_size", &s->width, 1, 1 << 20},       {"intermediate_size", &c->inner, 1, 1 << 22},
        {"num_hidden_layers", &s->layers, 1, 4096},   {"num_attention_heads", &c->heads, 1, 1 << 14},
        {"num_channels", &s->channels, 1, 1 << 12},
    };
    const struct {
        const char *key;
        bool *to;
    } flags[] = {{"attention_bias", &c->qkv_bias}, {"use_qk_norm", &c->qk_norm}, {"use_mask_token", &c->mask_token},
                 {"use_absolute_position_embeddings", &c->positions}, {"use_mean_pooling", &mean}};
    TRY(layer_parse_sizes(v, sizes, COUNT(sizes), e));
    TRY(parse_square(v, "image_size", &s->image, e));
    TRY(parse_square(v, "patch_size", &s->patch, e));
    for (size_t i = 0; i < COUNT(flags); i++) TRY(value_opt_bool(v, flags[i].key, flags[i].to, e));
    TRY(value_opt_number(v, "layer_norm_eps", &c->eps, e));
    TRY(value_opt_number(v, "initializer_range", &c->std, e));
    TRY(value_opt_number(v, "layer_scale_init_value", &c->scale_init, e));
    TRY(value_opt_string(v, "norm_type", &norms, e));
    TRY(layer_parse_act(v, &c->act, e));
    c->rms_norms = !strcmp(norms, "rms_norm");
    c->last_norm = !mean;
    if (!c->rms_norms && strcmp(norms, "layer_norm"))
        return error_set(e, PL_USAGE, "norm_type \"%.40s\": expected layer_norm or rms_norm", norms);
    if (s->width % c->heads)
        return error_set(e, PL_USAGE, "hidden_size %lld is not divisible by num_attention_heads %lld",
                         (long long)s->width, (long long)c->heads);
    if (s->patch > s->image)
        return error_set(e, PL_USAGE, "patch_size %lld is larger than image_size %lld", (long long)s->patch,
                         (long long)s->image);
    if (!(c->eps > 0)) return error_set(e, PL_USAGE, "layer_norm_eps is %g, it must be above 0", c->eps);
    s->side = s->image / s->patch;
    s->tokens = s->side * s->side;
    return PL_OK;
}

/* Parses which state of the tower the features are made of. */
static int parse_state(struct internvl *c, const struct value *config, struct error *e)
{
    const char *strategy = "default";
    const int64_t layers = c->sizes.layers;
    int64_t state = -1;
    TRY(value_opt_string(config, "vision_feature_select_strategy", &strategy, e));
    if (strcmp(strategy, "default"))
        return error_set(e, PL_USAGE, "vision_feature_select_strategy \"%.40s\": expected default: the class token is "
                                      "no part of the grid", strategy);
    TRY(value_opt_int(config, "vision_feature_layer", &state, e));
    if (state < -layers - 1 || state > layers)
        return error_set(e, PL_USAGE,
                         "vision_feature_layer is %lld; a vision tower of %lld layers has the hidden states %lld to "
                         "%lld", (long long)state, (long long)layers, (long long)(-layers - 1), (long long)layers);
    c->last = state == -1;
    c->state = state < 0 ? layers + 1 + state : state;
    return PL_OK;
}

static int parse_projector(struct internvl *c, const struct value *config, struct error *e)
{
    double ratio = 0.5;
    TRY(value_opt_number(config, "downsample_ratio", &ratio, e));
    c->scale = ratio > 0 && ratio <= 1 ? (int64_t)(1 / ratio) : 0;
    if (c->scale < 1 || (double)c->scale * ratio != 1 || c->sizes.side % c->scale)
        return error_set(e, PL_USAGE,
                         "downsample_ratio is %g; expected 1 / n, where n divides image_size / patch_size, which is "
                         "%lld", ratio, (long long)c->sizes.side);
    return layer_parse_act_at(config, "projector_hidden_act", &c->projector_act, e);
}

static int parse_internvl(struct model *m, const struct value *config, struct error *e)
{
    struct internvl *c = m->config = bump_alloc(&m->memory, sizeof *c);
    const struct value *vision = value_get(config, "vision_config"), *text;
    int64_t token = 151667;
    bool tied = false;
    *c = (struct internvl){.sizes = {.layers = 24, .width = 1024, .channels = 3, .image = 448, .patch = 14},
                           .inner = 4096, .heads = 16, .positions = true, .eps = 1e-6, .std = 0.02, .scale_init = 0.1};
    if (vision && vision->kind != VALUE_NULL) TRY(value_as_map(vision, "vision_config", e));
    if (parse_tower(c, vision, e)) return error_prepend(e, "vision_config");
    TRY(parse_state(c, config, e));
    TRY(parse_projector(c, config, e));
    TRY(llava_part_config(m, config, "text_config", "qwen2", "{\"model_type\": \"qwen2\"}", &text, e));
    if (llava_add_decoder(m, DECODER, text, NULL, e)) return error_prepend(e, "text_config");
    /* A head that is stored apart must not be lost: without the key, text_config decides. */
    TRY(value_opt_bool(text, "tie_word_embeddings", &tied, e));
    TRY(value_opt_bool(config, "tie_word_embeddings", &tied, e));
    TRY(value_opt_int(config, "image_token_id", &token, e));
    decoder_tie(llava_part(m, DECODER), tied);
    decoder_describe(m, model_part(m, DECODER));
    const int64_t features = c->sizes.tokens / (c->scale * c->scale);
    TRY(images_describe(m, c->sizes, "internvl_vision", features, token, IMAGE_AS_CROPS, e));
    m->images->around[0] = "<img>";
    m->images->around[1] = "</img>";
    return PL_OK;
}

/* --- the tower -------------------------------------------------------------------------------- */

static id norm(const struct internvl *c, struct graph *g, id x, const char *prefix, const char *name)
{
    return c->rms_norms ? layer_rmsnorm(g, x, prefix, name, c->eps) : layer_norm(g, x, prefix, name, c->eps);
}

/* Embeds pixels [n,channels,image,image] as tokens [n,1 + tokens,width]; the class token is the
 * first. */
static id embed(const struct internvl *c, struct graph *g, id pixels)
{
    const struct tower_sizes *s = &c->sizes;
    const int64_t C = s->width, n = tensor_at(g, pixels)->dim[0], token_dim[] = {1, 1, C};
    id token = layer_param(g, "", "embeddings.cls_token", 3, token_dim, 0), positions = 0, x = 0;
    if (c->mask_token) layer_param(g, "", "embeddings.mask_token", 3, token_dim, 0);
    id w = layer_param(g, "", "embeddings.patch_embeddings.projection.weight", 4,
                       (int64_t[]){C, s->channels, s->patch, s->patch}, c->std);
    id bias = layer_param(g, "", "embeddings.patch_embeddings.projection.bias", 1, &C, 0);
    if (c->positions)
        positions = layer_param(g, "", "embeddings.position_embeddings", 3, (int64_t[]){1, 1 + s->tokens, C}, 0);
    IN_SCOPE(g, "embeddings", 0) {
        x = op_conv(g, op_dense(g, op_permute(g, pixels, (int[]){0, 2, 3, 1})), w, bias, (int)s->patch, 0, 1);
        x = op_pad(g, op_reshape(g, x, 3, (int64_t[]){n, s->tokens, C}), (int64_t[]){0, 1, 0}, (int64_t[]){0, 0, 0});
        /* An empty row of the tokens receives the class token, the same for every image. */
        token = op_pad(g, op_reshape(g, token, 2, (int64_t[]){1, C}), (int64_t[]){0, 0}, (int64_t[]){s->tokens, 0});
        if (positions) token = op_add(g, op_reshape(g, positions, 2, (int64_t[]){1 + s->tokens, C}), token);
        x = op_add(g, x, token);
    }
    return x;
}

static id attend(const struct internvl *c, struct graph *g, id x, const char *layer)
{
    static const char *const names[3] = {"attention.q_proj", "attention.k_proj", "attention.v_proj"},
                             *const norms[2] = {"attention.q_norm", "attention.k_norm"};
    const int64_t C = c->sizes.width, D = C / c->heads, n = tensor_at(g, x)->dim[0], T = 1 + c->sizes.tokens;
    const struct linear_init in = {.std = c->std, .no_bias = !c->qkv_bias};
    id part[3];
    for (int i = 0; i < 3; i++) {
        part[i] = layer_linear_init(g, x, layer, names[i], C, in);
        if (i < 2 && c->qk_norm) part[i] = layer_rmsnorm(g, part[i], layer, norms[i], QK_EPS);
        part[i] = op_reshape(g, part[i], 4, (int64_t[]){n, T, c->heads, D});
    }
    id o = op_attention(g, part[0], part[1], part[2], (float)(1 / sqrt((double)D)), false);
    return layer_linear_init(g, op_reshape(g, o, 3, (int64_t[]){n, T, C}), layer, "attention.projection_layer", C,
                             (struct linear_init){.std = c->std});
}

static id mlp(const struct internvl *c, struct graph *g, id x, const char *layer)
{
    const struct linear_init init = {.std = c->std};
    x = op_act(g, layer_linear_init(g, x, layer, "mlp.fc1", c->inner, init), c->act);
    return layer_linear_init(g, x, layer, "mlp.fc2", c->sizes.width, init);
}

/* Adds what a part of a layer computes, times its layer scale. */
static id add(const struct internvl *c, struct graph *g, id x, id part, const char *layer, const char *scale)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", layer, scale);
    id lambda = graph_param(g, name, DT_F32, 1, &c->sizes.width, (struct init){INIT_FILL, (float)c->scale_init, 0, 0});
    return op_add(g, x, op_mul(g, part, lambda));
}

/* Returns the chosen state without the class token, [n,tokens,width]. */
static id encode(const struct model *m, struct graph *g, id pixels)
{
    const struct internvl *c = m->config;
    id x = 0, state = 0;
    if (!pixels) return 0;
    IN_PART_WITH(g, TOWER, SCOPE_IMAGES) {
        x = embed(c, g, pixels);
        FOR_LAYERS(layer, g, "encoder.layer", c->sizes.layers) {
            const char *in = layer.prefix;
            if (layer.i == c->state) state = x;
            if (!x) continue;
            IN_SCOPE(g, "attention", 0)
                x = add(c, g, x, attend(c, g, norm(c, g, x, in, "layernorm_before"), in), in, "lambda_1");
            IN_SCOPE(g, "mlp", 0)
                x = add(c, g, x, mlp(c, g, norm(c, g, x, in, "layernorm_after"), in), in, "lambda_2");
        }
        if (c->state == c->sizes.layers) state = x;
        if (c->last_norm) x = layer_norm(g, x, "", "layernorm", c->eps);
        if (c->last) state = x;
        state = op_dense(g, op_slice(g, state, 1, 1, c->sizes.tokens));
    }
    return state;
}

/* --- the model -------------------------------------------------------------------------------- */

static id project(const struct model *m, struct graph *g, id x)
{
    const struct internvl *c = m->config;
    if (!x) return 0;
    const int64_t n = tensor_at(g, x)->dim[0], side = c->sizes.side, across = side / c->scale, C = c->sizes.width,
                  width = decoder_width(model_part(m, DECODER));
    const struct linear_init init = {.std = c->std};
    IN_SCOPE(g, "projector", SCOPE_IMAGES) {
        x = op_window(g, op_reshape(g, x, 4, (int64_t[]){n, side, side, C}), (int)c->scale);
        x = op_reshape(g, x, 3, (int64_t[]){n, across * across, c->scale * c->scale * C});
        x = layer_norm(g, x, PROJECTOR, "layer_norm", PROJECTOR_EPS);
        x = op_act(g, layer_linear_init(g, x, PROJECTOR, "linear_1", width, init), c->projector_act);
        x = layer_linear_init(g, x, PROJECTOR, "linear_2", width, init);
    }
    return x;
}

static const struct image_layers layers = {.tower = encode, .project = project};

static void build_internvl(const struct model *m, struct graph *g, const struct batch *batch)
{
    images_build(m, g, batch, DECODER, layers);
}

/* As folders on the Hub; then modules in memory. */
static const struct spelling spellings[] = {
    {"language_model.model.", {"model.language_model.", "language_model."}},
    {"language_model.lm_head.", {"lm_head."}},
    {PROJECTOR, {"model." PROJECTOR}},
    {"vision_tower.", {"model.vision_tower."}},
    {NULL, {NULL}},
};

const struct family internvl_family =
    {"internvl", parse_internvl, build_internvl, "", true, .generates = true, .spellings = spellings};
