/*
 * clip.c: the vision towers of CLIP and SigLIP.
 *
 *     x = patches(pixels) [+ class token first] + positions   [x = layernorm(x)]
 *     each layer:  x = x + out(attention(q(n), k(n), v(n)))    n = layernorm(x)
 *                  x = x + fc2(act(fc1(n)))                    n = layernorm(x)
 *
 * The terms in brackets are CLIP's. CLIP's output is x after the last layer; the norm after it
 * belongs to the pooled token, which is not an output here. SigLIP's output is normalised, and a
 * pooling head follows it. Weights that no output depends on are parameters all the same: they are
 * loaded, kept and saved.
 *
 * hidden_states.0 is the input of the first layer, hidden_states.i the output of layer i.
 */
#include <math.h>

#include "graph/emit.h"
#include "models/layers.h"
#include "models/parts.h"
#include "io/value.h"

struct tower {
    int64_t hidden, inner, layers, heads, channels, image, patch;
    double eps, range, factor;     /* range, factor: scale CLIP's initial weights */
    enum act_kind act;
    bool clip;                     /* CLIP; else SigLIP */
    bool causal;                   /* CLIP's text: a token sees those before it */
    bool head;                     /* SigLIP's pooling head */
    const char *root;              /* names of parameters begin with it */
};

struct tower_build {
    const struct tower *c;
    struct graph *g;
    int64_t B, T;
};

/* --- configuration ------------------------------------------------------------- */

/* Parses the keys of one map; missing keys leave *c unchanged. */
static int tower_parse_keys(struct tower *c, const struct value *config, struct error *e)
{
    const struct size_key sizes[] = {
        {"hidden_size", &c->hidden, 1, 1 << 20},    {"intermediate_size", &c->inner, 1, 1 << 22},
        {"num_hidden_layers", &c->layers, 1, 4096}, {"num_attention_heads", &c->heads, 1, 1 << 14},
        {"num_channels", &c->channels, 1, 1 << 12}, {"image_size", &c->image, 1, 1 << 14},
        {"patch_size", &c->patch, 1, 1 << 12},
    };
    TRY(layer_parse_sizes(config, sizes, COUNT(sizes), e));
    TRY(value_opt_number(config, "layer_norm_eps", &c->eps, e));
    TRY(value_opt_number(config, "initializer_range", &c->range, e));
    TRY(value_opt_number(config, "initializer_factor", &c->factor, e));
    if (!c->clip) TRY(value_opt_bool(config, "vision_use_head", &c->head, e));
    return layer_parse_act(config, &c->act, e);
}

static int tower_check(const struct tower *c, struct error *e)
{
    if (c->hidden % c->heads)
        return error_set(e, PL_USAGE, "hidden_size %lld is not divisible by num_attention_heads %lld",
                         (long long)c->hidden, (long long)c->heads);
    if (c->patch > c->image)
        return error_set(e, PL_USAGE, "patch_size %lld is larger than image_size %lld", (long long)c->patch,
                         (long long)c->image);
    if (!(c->eps > 0)) return error_set(e, PL_USAGE, "layer_norm_eps is %g, it must be above 0", c->eps);
    return PL_OK;
}

static void describe(struct model *m, const struct tower *c)
{
    m->tower = true;
    model_add_port(m,
                   &(struct port){"pixel_values", VALUES_REAL, 4, {OPEN('B'), c->channels, c->image, c->image}, false});
    char name[48];
    for (int64_t i = 0; i <= c->layers; i++) {
        snprintf(name, sizeof name, "hidden_states.%lld", (long long)i);
        model_add_output(m, name);
    }
    model_add_output(m, m->loss_output = "last_hidden_state");
}

/* Parses the tower's keys, which are in the map itself or, in the folder of a model for image and
 * text, in its vision_config. Early folders have a second map, which takes precedence. */
static int parse_tower(struct model *m, const struct value *config, bool nested, struct tower defaults, struct error *e)
{
    static const char *const maps[] = {"vision_config", "vision_config_dict"};
    struct tower *c = bump_alloc(&m->memory, sizeof *c);
    m->config = c;
    *c = defaults;
    c->root = "vision_model.";
    int rc = nested ? PL_OK : tower_parse_keys(c, config, e);
    for (size_t i = 0; i < COUNT(maps) && nested && !rc; i++) {
        const struct value *map = value_get(config, maps[i]);
        if (!map || map->kind == VALUE_NULL) continue;
        rc = value_as_map(map, maps[i], e);
        if (!rc && (rc = tower_parse_keys(c, map, e))) error_prepend(e, "%s", maps[i]);
    }
    if (!rc) rc = tower_check(c, e);
    if (!rc) describe(m, c);
    return rc;
}

static const struct tower clip_defaults = {.hidden = 768, .inner = 3072, .layers = 12, .heads = 12, .channels = 3,
                                           .image = 224, .patch = 32, .eps = 1e-5, .range = 0.02, .factor = 1,
                                           .act = ACT_QUICK_GELU, .clip = true};
static const struct tower siglip_defaults = {.hidden = 768, .inner = 3072, .layers = 12, .heads = 12, .channels = 3,
                                             .image = 224, .patch = 16, .eps = 1e-6, .factor = 1, .act = ACT_GELU_TANH,
                                             .head = true};

static const struct tower idefics3_defaults = {.hidden = 1152, .inner = 3072, .layers = 12, .heads = 16, .channels = 3,
                                               .image = 224, .patch = 32, .eps = 1e-6, .act = ACT_GELU_TANH};

int tower_parse(struct model *m, const struct value *v, struct error *e)
{
    const char *type = m->family->model_type;
    return parse_tower(m, v, !strstr(type, "_vision"), strncmp(type, "clip", 4) ? siglip_defaults : clip_defaults, e);
}

static int parse_idefics3_vision(struct model *m, const struct value *v, struct error *e)
{
    return parse_tower(m, v, false, idefics3_defaults, e);
}

/* --- initialisation -------------------------------------------------------------------- */

/* Returns the standard deviation of Xavier's uniform distribution, for a normal one. */
static double xavier(int64_t in, int64_t out) { return sqrt(2.0 / (double)(in + out)); }

/* The initialisation of the two matrices of an MLP, by CLIP or SigLIP. */
struct mlp_init {
    struct linear_init up, down;
};
static struct mlp_init mlp_init(const struct tower *c)
{
    const double C = (double)c->hidden, bias = c->clip ? 0 : 1e-6;
    const double up = c->clip ? c->factor / sqrt(2 * C) : xavier(c->hidden, c->inner);
    const double down = c->clip ? c->factor / sqrt(2 * C * (double)c->layers) : xavier(c->hidden, c->inner);
    return (struct mlp_init){{.std = up, .bias_std = bias}, {.std = down, .bias_std = bias}};
}

/* --- layers ------------------------------------------------------------------------ */

static id attend(const struct tower_build *b, id x, const char *layer)
{
    static const char *const names[3] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    const struct tower *c = b->c;
    double C = (double)c->hidden;
    const struct linear_init in = {.std = c->clip ? c->factor / sqrt(2 * C * (double)c->layers)
                                                  : xavier(c->hidden, c->hidden)};
    const struct linear_init out = {.std = c->clip ? c->factor / sqrt(C) : xavier(c->hidden, c->hidden)};
    int64_t D = c->hidden / c->heads;
    id part[3];
    for (int i = 0; i < 3; i++)
        part[i] = op_reshape(b->g, layer_linear_init(b->g, x, layer, names[i], c->hidden, in), 4,
                             (int64_t[]){b->B, b->T, c->heads, D});
    id o = op_attention(b->g, part[0], part[1], part[2], (float)(1 / sqrt((double)D)), c->causal);
    return layer_linear_init(b->g, op_reshape(b->g, o, 3, (int64_t[]){b->B, b->T, c->hidden}), layer,
                             "self_attn.out_proj", c->hidden, out);
}

static id mlp(const struct tower_build *b, id x, const char *layer)
{
    const struct mlp_init init = mlp_init(b->c);
    x = op_act(b->g, layer_linear_init(b->g, x, layer, "mlp.fc1", b->c->inner, init.up), b->c->act);
    return layer_linear_init(b->g, x, layer, "mlp.fc2", b->c->hidden, init.down);
}

/* Computes the layer whose names begin with `layer` of x [B,T,hidden]. */
static id tower_layer(const struct tower_build *b, id x, const char *layer)
{
    struct graph *g = b->g;
    const double eps = b->c->eps;
    IN_SCOPE(g, "self_attn", 0) x = op_add(g, x, attend(b, layer_norm(g, x, layer, "layer_norm1", eps), layer));
    IN_SCOPE(g, "mlp", 0) x = op_add(g, x, mlp(b, layer_norm(g, x, layer, "layer_norm2", eps), layer));
    return x;
}

/* Embeds pixels [B,C,H,W] as tokens [B,T,hidden]; pixels at the edge that fill no patch are
 * cropped. */
static id embed(const struct tower_build *b, id pixels, int64_t patches)
{
    const struct tower *c = b->c;
    struct graph *g = b->g;
    double area = (double)(c->channels * c->patch * c->patch), C = (double)c->hidden;
    id token = c->clip ? layer_param(g, c->root, "embeddings.class_embedding", 1, &c->hidden, c->factor / sqrt(C)) : 0;
    id w = layer_param(g, c->root, "embeddings.patch_embedding.weight", 4,
                       (int64_t[]){c->hidden, c->channels, c->patch, c->patch},
                       c->clip ? c->factor * c->range : 1 / sqrt(area));
    id bias = c->clip ? 0 : layer_param(g, c->root, "embeddings.patch_embedding.bias", 1, &c->hidden, 0);
    id position = layer_param(g, c->root, "embeddings.position_embedding.weight", 2, (int64_t[]){b->T, c->hidden},
                      c->clip ? c->factor * c->range : 1 / sqrt(C));
    id x = 0;
    char scope[128];
    snprintf(scope, sizeof scope, "%sembeddings", c->root);
    IN_SCOPE(g, scope, 0) {
        id maps = op_dense(g, op_permute(g, pixels, (int[]){0, 2, 3, 1}));
        x = op_reshape(g, op_conv(g, maps, w, bias, (int)c->patch, 0, 1), 3, (int64_t[]){b->B, patches, c->hidden});
        if (token) {
            /* The class token is the same for every image: it is added to the first position
             * embedding, and an empty row of the tokens receives both. */
            id first = op_reshape(g, token, 2, (int64_t[]){1, c->hidden});
            position = op_add(g, position, op_pad(g, first, (int64_t[]){0, 0}, (int64_t[]){patches, 0}));
            x = op_pad(g, x, (int64_t[]){0, 1, 0}, (int64_t[]){0, 0, 0});
        }
        x = op_add(g, x, position);
    }
    return c->clip ? layer_norm(g, x, c->root, "pre_layrnorm", c->eps) : x;
}

/* SigLIP pools its tokens by attention with a learned query. Its parameters are declared here:
 * where the pooled token is not wanted, nothing is computed. */
struct pooling {
    id probe, w, bias;
};
static struct pooling pooling_head(const struct tower_build *b)
{
    int64_t C = b->c->hidden, wide = 3 * C;
    struct graph *g = b->g;
    const struct mlp_init init = mlp_init(b->c);
    const struct pooling p = {layer_param(g, b->c->root, "head.probe", 3, (int64_t[]){1, 1, C}, xavier(C, C)),
                              layer_param(g, b->c->root, "head.attention.in_proj_weight", 2, (int64_t[]){wide, C},
                                          xavier(C, wide)),
                              layer_param(g, b->c->root, "head.attention.in_proj_bias", 1, &wide, 0)};
    layer_linear_weights(g, b->c->root, "head.attention.out_proj", C, C,
                         (struct linear_init){.std = 1 / sqrt((double)C)});
    layer_norm_weights(g, b->c->root, "head.layernorm", C);
    layer_linear_weights(g, b->c->root, "head.mlp.fc1", b->c->inner, C, init.up);
    layer_linear_weights(g, b->c->root, "head.mlp.fc2", C, b->c->inner, init.down);
    return p;
}

/* Projects x [rows,n,C] by part `i` of three, as heads. */
static id project_heads(const struct tower_build *b, const struct pooling *p, id x, int i)
{
    const int64_t C = b->c->hidden, H = b->c->heads;
    id y = op_linear(b->g, x, op_slice(b->g, p->w, 0, i * C, C), op_slice(b->g, p->bias, 0, i * C, C));
    return y ? op_reshape(b->g, y, 4, (int64_t[]){tensor_at(b->g, x)->dim[0], tensor_at(b->g, x)->dim[1], H, C / H})
             : 0;
}

/* Returns the tokens x [B,T,C] pooled, [B,1,C]. */
static id pool_by_attention(const struct tower_build *b, id x)
{
    const struct tower *c = b->c;
    struct graph *g = b->g;
    const struct pooling p = pooling_head(b);
    char prefix[128];
    snprintf(prefix, sizeof prefix, "%shead.", c->root);
    id k = project_heads(b, &p, x, 1), v = project_heads(b, &p, x, 2), q = project_heads(b, &p, p.probe, 0);
    if (!q || !k) return 0;
    q = op_repeat(g, q, op_slice(g, k, 1, 0, 1)); /* the same query for every image */
    id o = op_attention(g, q, k, v, (float)(1 / sqrt((double)(c->hidden / c->heads))), false);
    x = layer_linear(g, op_reshape(g, o, 3, (int64_t[]){b->B, 1, c->hidden}), prefix, "attention.out_proj", c->hidden);
    return op_add(g, x, mlp(b, layer_norm(g, x, prefix, "layernorm", c->eps), prefix));
}

/* --- as a part of a model (parts.h) ------------------------------------------------------- */

struct tower_sizes tower_sizes(const struct model *m)
{
    const struct tower *c = m->config;
    int64_t side = c->image / c->patch;
    return (struct tower_sizes){c->layers, side * side + c->clip, c->hidden, side, c->channels, c->image, c->patch,
                                c->factor, c->clip || c->head};
}

bool tower_is(const struct model *m) { return m->tower; }
void tower_set_root(struct model *m, const char *root) { ((struct tower *)m->config)->root = root; }

/* Computes the layers of the tokens x, and the chosen states. */
static id run_layers(const struct tower_build *b, id x, int64_t count, const int64_t *chosen, id *states)
{
    const struct tower *c = b->c;
    struct graph *g = b->g;
    id *all = mem_alloc((size_t)(c->layers + 1) * sizeof *all);
    char root[128];
    all[0] = x;
    snprintf(root, sizeof root, "%sencoder.layers", c->root);
    FOR_LAYERS(layer, g, root, c->layers) x = all[layer.i + 1] = tower_layer(b, x, layer.prefix);
    if (c->clip) layer_norm_weights(g, c->root, "post_layernorm", c->hidden);
    else x = layer_norm(g, x, c->root, "post_layernorm", c->eps);
    if (c->head) pooling_head(b);
    for (int64_t i = 0; i < count; i++) {
        const int64_t k = chosen[i] < 0 ? c->layers + 1 + chosen[i] : chosen[i];
        if (k >= 0 && k <= c->layers) states[i] = all[k];
        else
            states[i] = graph_fail(g, "hidden state %lld of a tower of %lld layers", (long long)chosen[i],
                                   (long long)c->layers);
    }
    mem_free(all);
    return x;
}

id tower_encode(const struct model *m, struct graph *g, const char *part, id pixels, int64_t count,
                const int64_t *chosen, id *states)
{
    id x = 0;
    if (!pixels) return 0;
    const struct tower_build b = {m->config, g, tensor_at(g, pixels)->dim[0], tower_sizes(m).tokens};
    IN_PART_WITH(g, part, SCOPE_IMAGES)
        x = run_layers(&b, embed(&b, pixels, b.T - b.c->clip), count, chosen, states);
    return x;
}

id tower_encode_tokens(const struct model *m, struct graph *g, const char *part, const char *name, id x,
                       int64_t count, const int64_t *chosen, id *states)
{
    if (!x) return 0;
    const struct tower_build b = {m->config, g, tensor_at(g, x)->dim[0], tensor_at(g, x)->dim[1]};
    IN_PART_WITH(g, part, SCOPE_IMAGES)
        IN_SCOPE(g, name, 0) {
            if (b.c->clip) x = layer_norm(g, x, b.c->root, "pre_layrnorm", b.c->eps);
            x = run_layers(&b, x, count, chosen, states);
        }
    return x;
}

id tower_pool(const struct model *m, struct graph *g, const char *part, id last)
{
    const struct tower *c = m->config;
    if (!last) return 0;
    const struct tower_build b = {.c = c, .g = g, .B = tensor_at(g, last)->dim[0], .T = tower_sizes(m).tokens};
    id x = 0;
    IN_PART_WITH(g, part, SCOPE_IMAGES)
    x = c->clip ? layer_norm(g, op_dense(g, op_slice(g, last, 1, 0, 1)), c->root, "post_layernorm", c->eps)
                : pool_by_attention(&b, last);
    return op_reshape(g, x, 2, (int64_t[]){b.B, c->hidden});
}

/* --- the model itself ------------------------------------------------------------------------ */

void tower_build(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct tower *c = m->config;
    const int64_t n = c->layers + 1;
    int64_t *chosen = mem_alloc((size_t)n * sizeof *chosen);
    id *states = mem_alloc((size_t)n * sizeof *states);
    id pixels = graph_input(g, "pixel_values", DT_F32, 4, (int64_t[]){batch->B, c->channels, c->image, c->image});
    for (int64_t i = 0; i < n; i++) chosen[i] = i;
    id last = tower_encode(m, g, "", pixels, n, chosen, states);
    for (int64_t i = 0; i < n; i++) {
        char name[48];
        snprintf(name, sizeof name, "hidden_states.%lld", (long long)i);
        model_output(m, g, batch, name, states[i]);
    }
    model_output(m, g, batch, "last_hidden_state", last);
    mem_free(chosen);
    mem_free(states);
}

/* SigLIP without a pooling head. Its position embedding is that of images of image_size, which is
 * the only size taken here. */
const struct family idefics3_vision_family = {"idefics3_vision", parse_idefics3_vision, tower_build, "vision_model.",
                                              true};
const struct family smolvlm_vision_family = {"smolvlm_vision", parse_idefics3_vision, tower_build, "vision_model.",
                                             true};

/* ---- The text tower ----
 *
 * the text towers of CLIP and SigLIP.
 *
 *     x = tokens(ids) + positions
 *     the layers of the vision towers (clip.c); CLIP's are causal
 *     x = layernorm(x);  CLIP: the token at the end of the text;  SigLIP: the last one, projected
 *
 * Padding follows the text. A causal token never sees it, and SigLIP was trained with it.
 */

struct text_tower {
    struct tower c;
    struct text_sizes sizes;
};

/* transformers' defaults. Sizes of images do not matter, and satisfy tower_check. */
static const struct text_tower clip_text_defaults = {{.hidden = 512, .inner = 2048, .layers = 12, .heads = 8,
                                                 .channels = 3, .image = 1, .patch = 1, .eps = 1e-5, .range = 0.02,
                                                 .factor = 1, .act = ACT_QUICK_GELU, .clip = true, .causal = true,
                                                 .root = ""},
                                                {.vocabulary = 49408, .positions = 77, .end = 49407}};
static const struct text_tower siglip_text_defaults = {{.hidden = 768, .inner = 3072, .layers = 12, .heads = 12,
                                                   .channels = 3, .image = 1, .patch = 1, .eps = 1e-6, .factor = 1,
                                                   .act = ACT_GELU_TANH, .root = ""},
                                                  {.vocabulary = 32000, .positions = 64}};

int text_tower_parse(struct bump *b, const struct value *config, bool siglip, struct text_tower **out, struct error *e)
{
    struct text_tower *t = *out = bump_alloc(b, sizeof *t);
    struct text_sizes *s = &t->sizes;
    *t = siglip ? siglip_text_defaults : clip_text_defaults;
    TRY(tower_parse_keys(&t->c, config, e));
    TRY(tower_check(&t->c, e));
    s->width = t->c.hidden;
    s->projection = siglip ? s->width : 0;
    if (!siglip) TRY(value_opt_int(config, "eos_token_id", &s->end, e));
    const struct size_key sizes[] = {{"vocab_size", &s->vocabulary, 1, INT32_MAX},
                                     {"max_position_embeddings", &s->positions, 1, 1 << 20},
                                     {"projection_size", &s->projection, 1, 1 << 20}};
    return layer_parse_sizes(config, sizes, siglip ? 3 : 2, e);
}

struct text_sizes text_tower_sizes(const struct text_tower *t) { return t->sizes; }

id text_tower_encode(const struct text_tower *t, struct graph *g, const char *part, id ids, id at)
{
    const struct tower *c = &t->c;
    if (!ids) return 0;
    const struct tower_build b = {.c = c, .g = g, .B = tensor_at(g, ids)->dim[0], .T = tensor_at(g, ids)->dim[1]};
    const double std = c->clip ? 0.02 * c->factor : 1 / sqrt((double)c->hidden);
    id x = 0;
    if (b.T > t->sizes.positions)
        return graph_fail(g, "rows of %lld tokens, and the text tower has %lld positions", (long long)b.T,
                          (long long)t->sizes.positions);
    IN_PART_WITH(g, part, 0) {
        id words = layer_param(g, "embeddings.", "token_embedding.weight", 2,
                               (int64_t[]){t->sizes.vocabulary, c->hidden}, std);
        id positions = layer_param(g, "embeddings.", "position_embedding.weight", 2,
                                   (int64_t[]){t->sizes.positions, c->hidden}, std);
        IN_SCOPE(g, "embeddings", 0) x = op_add(g, op_embedding(g, ids, words), op_slice(g, positions, 0, 0, b.T));
        FOR_LAYERS(layer, g, "encoder.layers", c->layers) x = tower_layer(&b, x, layer.prefix);
        x = layer_norm(g, x, "", "final_layer_norm", c->eps);
        x = c->clip ? op_gather(g, x, at) : op_dense(g, op_slice(g, x, 1, b.T - 1, 1));
        x = op_reshape(g, x, 2, (int64_t[]){b.B, c->hidden});
        if (!c->clip) x = layer_linear(g, x, "", "head", t->sizes.projection);
    }
    return x;
}
