/*
 * qwen_vl.c: Qwen2-VL, Qwen2.5-VL and Qwen3-VL: a tower for images and videos of any size
 * (image_grid.h), a merger, Qwen's decoder with three positions a token.
 *
 *     x = patch_embed(patches)                                  Qwen3-VL: + learned positions, resampled
 *     each block:  x = x + proj(attention(rope(q), rope(k), v))     of n = norm1(x), within ranges
 *                  x = x + mlp(norm2(x))
 *     features = merger(x)      merge x merge neighbours joined: linear, GELU, linear
 *
 * The blocks of Qwen2.5-VL attend within windows, but for those of fullatt_block_indexes. Qwen3-VL
 * also merges what some blocks give, and adds it to the image tokens after the decoder's first
 * layers (deepstack).
 */
#include <math.h>

#include "graph/emit.h"
#include "graph/ops.h"
#include "io/file.h"
#include "io/json.h"
#include "base/allocation.h"
#include "models/allocator.h"
#include "models/catalogue.h"
#include "models/images.h"
#include "models/layers.h"
#include "models/llava.h"
#include "models/parts.h"

enum { BLOCKS_MOST = 256, BUCKET = 64 /* patches: products of fewer are hardly faster */ };
enum vl_kind { QWEN2_VL, QWEN2_5_VL, QWEN3_VL };

struct qwen_vl {
    enum vl_kind kind;
    struct grid_model grid;
    const char *prefix, *decoder; /* of the tower's names; the decoder's part */
    int64_t depth, width, inner, heads, out;
    enum act_kind act;
    bool full[BLOCKS_MOST];       /* blocks that attend over whole images */
    int64_t deep[FEATURES_MOST];  /* blocks whose output is merged besides */
    int n_deep;
    double std;
    int64_t adapter;              /* width of the texture adapter, with a token allocator (grid.tokens) */
};

#define ARR_COC "arr_coc_"
#define NORM_EPS 1e-6
#define TOWER_THETA 10000.0

/* --- configuration ---------------------------------------------------------------------------- */

/* Parses a list of block numbers. */
static int parse_blocks(const struct value *config, const char *key, int64_t depth, int most, int64_t *to, int *n,
                        struct error *e)
{
    const struct value *list = value_get(config, key);
    if (!list || list->kind == VALUE_NULL) return PL_OK;
    TRY(value_as_list(list, key, e));
    if (list->count > (uint32_t)most)
        return error_set(e, PL_USAGE, "%s has %u entries, expected at most %d", key, list->count, most);
    *n = (int)list->count;
    for (int i = 0; i < *n; i++) {
        TRY(value_as_int(value_at(list, (uint32_t)i), key, &to[i], e));
        if (to[i] < 0 || to[i] >= depth)
            return error_set(e, PL_USAGE, "%s: %lld is not one of the tower's %lld blocks", key, (long long)to[i],
                             (long long)depth);
    }
    return PL_OK;
}

static int parse_full(struct qwen_vl *c, const struct value *v, struct error *e)
{
    int64_t list[BLOCKS_MOST] = {7, 15, 23, 31};
    int n = 4;
    for (int64_t i = 0; i < c->depth; i++) c->full[i] = c->kind != QWEN2_5_VL;
    if (c->kind != QWEN2_5_VL) return PL_OK;
    TRY(parse_blocks(v, "fullatt_block_indexes", c->depth, BLOCKS_MOST, list, &n, e));
    for (int i = 0; i < n; i++)
        if (list[i] < c->depth) c->full[list[i]] = true;
    return PL_OK;
}

static int parse_tower(struct qwen_vl *c, const struct value *v, struct error *e)
{
    struct grid_model *g = &c->grid;
    int64_t ratio = 4, window = 112, entries = 2304;
    const struct size_key shared[] = {
        {"depth", &c->depth, 1, BLOCKS_MOST}, {"num_heads", &c->heads, 1, 1 << 10},
        {"num_attention_heads", &c->heads, 1, 1 << 10},
        {"in_chans", &g->channels, 1, 16}, {"in_channels", &g->channels, 1, 16},
        {"patch_size", &g->patch, 1, 1 << 10}, {"temporal_patch_size", &g->temporal, 1, 64},
        {"spatial_merge_size", &g->merge, 1, 64}};
    const struct size_key own2[] = {{"embed_dim", &c->width, 1, 1 << 16},
                                    {"mlp_ratio", &ratio, 1, 64},
                                    {"hidden_size", &c->out, 1, 1 << 20}},
                          others[] = {{"hidden_size", &c->width, 1, 1 << 16},
                                      {"intermediate_size", &c->inner, 1, 1 << 20},
                                      {"out_hidden_size", &c->out, 1, 1 << 20}},
                          own25[] = {{"window_size", &window, 1, 1 << 20},
                                     {"tokens_per_second", &g->per_second, 1, 1 << 20}},
                          own3[] = {{"num_position_embeddings", &entries, 1, 1 << 24}};
    TRY(layer_parse_sizes(v, shared, COUNT(shared), e));
    if (c->kind == QWEN2_VL) TRY(layer_parse_sizes(v, own2, COUNT(own2), e));
    else TRY(layer_parse_sizes(v, others, COUNT(others), e));
    if (c->kind == QWEN2_VL) c->inner = ratio * c->width;
    if (c->kind == QWEN2_5_VL) {
        TRY(layer_parse_sizes(v, own25, COUNT(own25), e));
        g->window = window / g->merge / g->patch;
        if (g->window < 1)
            return error_set(e, PL_USAGE, "window_size %lld is less than a feature of %lld pixels", (long long)window,
                             (long long)(g->merge * g->patch));
    }
    if (c->kind == QWEN3_VL) {
        TRY(layer_parse_sizes(v, own3, COUNT(own3), e));
        g->table = (int64_t)sqrt((double)entries);
        if (g->table * g->table != entries)
            return error_set(e, PL_USAGE, "num_position_embeddings is %lld, expected a square number",
                             (long long)entries);
        TRY(parse_blocks(v, "deepstack_visual_indexes", c->depth, FEATURES_MOST, c->deep, &c->n_deep, e));
    }
    if (c->width % c->heads || c->width / c->heads % 4)
        return error_set(e, PL_USAGE, "the tower's width %lld and %lld heads: a head must have a multiple of 4 numbers",
                         (long long)c->width, (long long)c->heads);
    TRY(layer_parse_act(v, &c->act, e));
    TRY(value_opt_number(v, "initializer_range", &c->std, e));
    return parse_full(c, v, e);
}

/* Returns the decoder's configuration: text_config, or where a folder has it beside vision_config,
 * all of it. */
static struct value *text_config(struct model *m, const struct value *config, const char *model_type)
{
    const struct value *text = value_get(config, "text_config");
    struct value *own = value_copy(&m->memory, text && text->kind == VALUE_MAP ? text : config);
    value_put(&m->memory, own, "model_type", value_string(&m->memory, model_type));
    return own;
}

static void describe(struct model *m, const struct qwen_vl *c)
{
    const struct grid_model *g = &c->grid;
    const int64_t K = grid_values(g);
    m->encoder = "";
    m->images = bump_alloc(&m->memory, sizeof *m->images);
    *m->images = (struct image_model){.token = g->image, .channels = g->channels, .layout = IMAGE_AS_TOKENS,
                                      .tower = m->family->model_type, .grids = g, .tokens = g->merge * g->merge,
                                      .width = (c->n_deep + 1) * c->width};
    const struct port ports[] = {
        {"pixel_values", VALUES_REAL, 2, {OPEN_PATCHES, K}, true},
        {"image_grid_thw", VALUES_GRIDS, 2, {OPEN_IMAGES, 3}, true},
        {"pixel_values_videos", VALUES_REAL, 2, {OPEN_VIDEO_PATCHES, K}, true},
        {"video_grid_thw", VALUES_GRIDS, 2, {OPEN_FRAMES, 3}, true},
        {"mm_token_type_ids", VALUES_KINDS, 2, {OPEN('B'), OPEN('T')}, true},
    };
    for (size_t i = 0; i < COUNT(ports); i++)
        if (!g->tokens || (ports[i].dim[0] != OPEN_VIDEO_PATCHES && ports[i].dim[0] != OPEN_FRAMES))
            model_add_port(m, &ports[i]);
    if (g->tokens) {
        m->images->features = g->tokens;
        m->whole = WHOLE_CHOOSES;
        model_add_port(m, &(struct port){"texture", VALUES_REAL, 3, {OPEN_IMAGES, TEXTURE_CELLS, TEXTURE_CHANNELS},
                                         true});
        model_add_port(m, &(struct port){"information", VALUES_REAL, 2, {OPEN_IMAGES, TEXTURE_CELLS}, true});
        model_add_port(m, &(struct port){"query_weights", VALUES_REAL, 3, {OPEN_IMAGES, OPEN('B'), OPEN('T')}, true});
    } else if (c->kind == QWEN2_5_VL)
        model_add_port(m, &(struct port){"second_per_grid_ts", VALUES_REAL, 1, {OPEN_FRAMES}, true});
}

/* Parses the keys of the token allocator. */
static int parse_allocator(struct qwen_vl *c, const struct value *config, struct error *e)
{
    struct grid_model *g = &c->grid;
    const int64_t unit = g->merge * g->merge;
    g->tokens = 256;
    g->most = 200;
    c->adapter = 4 * c->out;
    const struct size_key keys[] = {{"num_visual_tokens", &g->tokens, 1, 1 << 16},
                                    {"max_patches", &g->most, 1, ALLOCATION_MOST},
                                    {"texture_adapter_width", &c->adapter, 1, 1 << 20}};
    TRY(layer_parse_sizes(config, keys, COUNT(keys), e));
    if (allocation_most(g->most, g->tokens, g->most, unit) * unit >= g->tokens) return PL_OK;
    return error_set(e, PL_USAGE,
                     "num_visual_tokens is %lld, and max_patches %lld have at most %lld tokens each: expected at most "
                     "%lld tokens, or more patches", (long long)g->tokens, (long long)g->most, (long long)unit,
                     (long long)(g->most * unit));
}

static int parse(struct model *m, const struct value *config, struct qwen_vl defaults, struct error *e)
{
    struct qwen_vl *c = m->config = bump_alloc(&m->memory, sizeof *c);
    const struct value *vision = value_get(config, "vision_config");
    const bool third = defaults.kind == QWEN3_VL;
    int64_t image = defaults.grid.image, video = defaults.grid.video;
    bool tied = false;
    *c = defaults;
    c->depth = c->depth ? c->depth : 32;
    c->heads = 16;
    c->std = 0.02;
    c->grid.temporal = c->grid.merge = 2;
    c->grid.channels = 3;
    c->out = 3584;
    if (vision && vision->kind != VALUE_NULL) TRY(value_as_map(vision, "vision_config", e));
    if (parse_tower(c, vision, e)) return error_prepend(e, "vision_config");
    const struct value *text = text_config(m, config, third ? "qwen3_vl_text" : "qwen2_vl_text");
    if (llava_add_decoder(m, c->decoder, text, NULL, e)) return error_prepend(e, "text_config");
    TRY(value_opt_bool(config, "tie_word_embeddings", &tied, e));
    TRY(value_opt_int(config, "image_token_id", &image, e));
    TRY(value_opt_int(config, "video_token_id", &video, e));
    struct model *decoder = llava_part(m, c->decoder);
    if (c->out != decoder_width(decoder))
        return error_set(e, PL_USAGE, "vision_config: features of %lld numbers; the text model's width is %lld",
                         (long long)c->out, (long long)decoder_width(decoder));
    c->grid.image = (int32_t)image;
    c->grid.video = (int32_t)video;
    decoder_tie(decoder, tied);
    if (third) decoder_set_names(decoder, "", true);
    decoder_describe(m, decoder);
    if (c->grid.tokens) TRY(parse_allocator(c, config, e));
    describe(m, c);
    return PL_OK;
}

static const struct qwen_vl
    usual_2 = {.kind = QWEN2_VL, .prefix = "visual.", .decoder = "", .width = 1280, .act = ACT_QUICK_GELU,
               .grid = {.patch = 14, .image = 151655, .video = 151656}},
    usual_25 = {.kind = QWEN2_5_VL, .prefix = "visual.", .decoder = "", .width = 3584, .inner = 3420, .act = ACT_SILU,
                .grid = {.patch = 14, .image = 151655, .video = 151656, .per_second = 4}},
    usual_3 = {.kind = QWEN3_VL, .prefix = "model.visual.", .decoder = "model.language_model", .width = 1152,
               .inner = 4304, .depth = 27, .act = ACT_GELU_TANH, .deep = {8, 16, 24}, .n_deep = 3,
               .grid = {.patch = 16, .image = 151655, .video = 151656, .apart = true}};

static int parse_2(struct model *m, const struct value *v, struct error *e) { return parse(m, v, usual_2, e); }
static int parse_25(struct model *m, const struct value *v, struct error *e) { return parse(m, v, usual_25, e); }
static int parse_3(struct model *m, const struct value *v, struct error *e) { return parse(m, v, usual_3, e); }

/* Reads the config.json of the folder, or in a preset of the published model, that a token
 * allocator is added to. */
static int read_base(struct model *m, const char *path, char folder[1024], struct value **out, struct error *e)
{
    const char *preset = *m->path ? NULL : preset_config(path);
    char file[1100], *text;
    size_t n;
    *folder = 0;
    if (preset) return json_parse(preset, strlen(preset), &m->memory, out, e);
    path = *path == '/' || !*m->path ? path : bump_format(&m->memory, "%s/%s", m->path, path);
    snprintf(folder, 1024, "%s", path);
    snprintf(file, sizeof file, "%s/config.json", folder);
    if (!dir_exists(folder)) return model_missing(folder, e);
    if (!file_exists(file)) return model_missing_config(folder, e);
    TRY(file_read(file, 16u << 20, &text, &n, e));
    const int rc = json_parse(text, n, &m->memory, out, e);
    mem_free(text);
    return rc ? error_prepend(e, "%s", file) : PL_OK;
}

/* Puts the given keys over the base's; the model is then in the base's folder, but for the new
 * weights. */
static int join_base(struct model *m, const struct value *given, const char *path, struct value **out, struct error *e)
{
    static const char *const own[] = {"model_type", "architectures", "num_visual_tokens", "max_patches",
                                      "texture_adapter_width"};
    static const char *const fresh[] = {"scorer", "balancer", "texture_adapter", NULL};
    const char *expected = m->family->model_type + strlen(ARR_COC), *type = "";
    char folder[1024];
    int rc = read_base(m, path, folder, out, e);
    if (!rc) rc = value_opt_string(*out, "model_type", &type, e);
    if (!rc && strcmp(type, expected))
        rc = error_set(e, PL_USAGE, "%.900s is a %.40s, expected a %s for a %s", path, type, expected,
                       m->family->model_type);
    if (rc) return error_prepend(e, "base_path");
    for (size_t i = 0; i < COUNT(own); i++) {
        const struct value *v = value_get(given, own[i]);
        if (v) value_put(&m->memory, *out, own[i], value_copy(&m->memory, v));
    }
    model_gather(m, *out);
    snprintf(m->path, sizeof m->path, "%s", folder);
    if (*folder) m->fresh = fresh;
    return PL_OK;
}

/* Parses a model with the token allocator, which may begin from the folder of its base. */
static int parse_with(struct model *m, const struct value *config, struct qwen_vl defaults, struct error *e)
{
    const char *path = NULL;
    struct value *whole;
    defaults.grid.tokens = 1;
    TRY(value_opt_string(config, "base_path", &path, e));
    if (!path) return parse(m, config, defaults, e);
    TRY(join_base(m, config, path, &whole, e));
    return parse(m, whole, defaults, e);
}
static int parse_coc_2(struct model *m, const struct value *v, struct error *e) { return parse_with(m, v, usual_2, e); }
static int parse_coc_25(struct model *m, const struct value *v, struct error *e)
{
    return parse_with(m, v, usual_25, e);
}
static int parse_coc_3(struct model *m, const struct value *v, struct error *e) { return parse_with(m, v, usual_3, e); }

/* --- the tower -------------------------------------------------------------------------------- */

/* What the tower reads. */
struct tower {
    const struct qwen_vl *c;
    struct graph *g;
    const struct contents *holds; /* NULL: nothing is said */
    int64_t R, P; /* rows, patches of each: one sequence of all samples; with a token allocator a row for each */
    int64_t bucket; /* the patches of a sample are rounded up to a multiple of it, in the sequence */
    bool any;     /* the batch has room for images; else their features are built for the parameters only */
    bool shared;  /* the batch says how many patches there are, of all samples */
    enum dtype stored; /* what the blocks give is an input of this dtype; DT_NONE: they run */
    id ranges, windows, positions, inv_freq;
};

/* What the blocks give, which may be computed once and kept: the last one, and those of deepstack
 * before it. */
struct tower_output {
    id last, deep[FEATURES_MOST];
};

/* Returns the dimension of inputs of patches that counts samples. */
static int axis_of(const struct tower *t)
{
    return !t->any || t->shared ? INPUT_SHARED : t->c->grid.tokens ? 0 : 1;
}

static id input(const struct tower *t, const char *name, enum dtype type, int64_t width)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", t->any ? "" : "no_", name);
    const id x = graph_input_along(t->g, full, type, 3, (int64_t[]){t->R, t->P, width}, axis_of(t));
    if (t->any && !t->c->grid.tokens) graph_set_along(t->g, x, 1);
    return x;
}

/* Returns the pixel values of the patches. */
static id pixels(const struct tower *t)
{
    const struct grid_model *m = &t->c->grid;
    const int64_t K = grid_values(m), dim[] = {t->R, t->P, K};
    if (!t->any) return input(t, "pixel_values", DT_F32, K);
    const id x = images_input(t->g, t->holds, "pixel_values", 3, dim, axis_of(t), K / m->channels);
    const struct node *made = node_at(t->g, tensor_at(t->g, x)->node);
    if (!t->c->grid.tokens) graph_set_along(t->g, made->op == OP_PIXELS ? made->in[0] : x, 1);
    return x;
}

static id norm(const struct tower *t, id x, const char *prefix, const char *name)
{
    if (t->c->kind == QWEN2_5_VL) return layer_rmsnorm(t->g, x, prefix, name, NORM_EPS);
    return layer_norm(t->g, x, prefix, name, NORM_EPS);
}

static id linear(const struct tower *t, id x, const char *prefix, const char *name, int64_t out)
{
    return layer_linear_init(t->g, x, prefix, name, out, (struct linear_init){.std = t->c->std});
}

/* Returns the embeddings of patches. The kernel of a convolution that is as large as its stride is
 * a matrix. */
static id embed(const struct tower *t)
{
    const struct qwen_vl *c = t->c;
    const struct grid_model *m = &c->grid;
    struct graph *g = t->g;
    const int64_t kernel[] = {c->width, m->channels, m->temporal, m->patch, m->patch};
    id x = pixels(t), bias = 0, w;
    w = layer_param(g, c->prefix, "patch_embed.proj.weight", 5, kernel, c->std);
    if (c->kind == QWEN3_VL) bias = layer_param(g, c->prefix, "patch_embed.proj.bias", 1, &c->width, 0);
    x = op_linear(g, x, op_reshape(g, w, 2, (int64_t[]){c->width, grid_values(m)}), bias);
    if (!m->table) return x;
    id table = layer_param(g, c->prefix, "pos_embed.weight", 2, (int64_t[]){m->table * m->table, c->width}, c->std);
    id corners = input(t, "patch_corners", DT_I32, 4),
       weights = op_cast(g, input(t, "corner_weights", DT_F32, 4), DT_NONE);
    for (int i = 0; i < 4; i++) {
        id at = op_reshape(g, op_dense(g, op_slice(g, corners, 2, i, 1)), 2, (int64_t[]){t->R, t->P});
        x = op_add(g, x, op_mul(g, op_embedding(g, at, table), op_slice(g, weights, 2, i, 1)));
    }
    return x;
}

static id attend(const struct tower *t, id x, const char *prefix, bool full)
{
    const struct qwen_vl *c = t->c;
    struct graph *g = t->g;
    const int64_t D = c->width / c->heads;
    const struct rope_sections axes = {{D / 4, D / 4, 0}, false};
    id qkv = linear(t, x, prefix, "attn.qkv", 3 * c->width), part[3];
    qkv = op_reshape(g, qkv, 4, (int64_t[]){t->R, t->P, 3 * c->heads, D});
    for (int i = 0; i < 3; i++) {
        part[i] = op_slice(g, qkv, 2, i * c->heads, c->heads);
        if (i < 2) part[i] = op_rope_at(g, part[i], t->inv_freq, t->positions, &axes, 1);
    }
    const struct attention_options options = {.scale = (float)(1 / sqrt((double)D)),
                                              .ranges = full ? t->ranges : t->windows};
    id o = op_attention_with(g, part[0], part[1], part[2], 0, options);
    return linear(t, op_reshape(g, o, 3, (int64_t[]){t->R, t->P, c->width}), prefix, "attn.proj", c->width);
}

static id mlp(const struct tower *t, id x, const char *prefix)
{
    const struct qwen_vl *c = t->c;
    struct graph *g = t->g;
    const bool third = c->kind == QWEN3_VL;
    if (c->kind == QWEN2_5_VL) {
        id gate = linear(t, x, prefix, "mlp.gate_proj", c->inner), up = linear(t, x, prefix, "mlp.up_proj", c->inner);
        x = c->act == ACT_SILU ? op_silu_gate(g, gate, up) : op_mul(g, op_act(g, gate, c->act), up);
        return linear(t, x, prefix, "mlp.down_proj", c->width);
    }
    x = op_act(g, linear(t, x, prefix, third ? "mlp.linear_fc1" : "mlp.fc1", c->inner), c->act);
    return linear(t, x, prefix, third ? "mlp.linear_fc2" : "mlp.fc2", c->width);
}

/* Returns features: neighbours are joined, and normed before that, *normed, or behind. */
static id merge(const struct tower *t, id x, const char *name, bool norm_joined, id *normed)
{
    const struct qwen_vl *c = t->c;
    struct graph *g = t->g;
    const bool third = c->kind == QWEN3_VL;
    const int64_t unit = c->grid.merge * c->grid.merge, joined = unit * c->width;
    const char *norm_name = third ? "norm" : "ln_q", *first = third ? "linear_fc1" : "mlp.0",
               *second = third ? "linear_fc2" : "mlp.2";
    char scope[96], prefix[100];
    snprintf(scope, sizeof scope, "%s%s", c->prefix, name);
    snprintf(prefix, sizeof prefix, "%s.", scope);
    IN_SCOPE(g, scope, 0) {
        if (!norm_joined) *normed = x = norm(t, x, prefix, norm_name);
        x = op_reshape(g, op_dense(g, x), 3, (int64_t[]){t->R, t->P / unit, joined});
        if (norm_joined) x = norm(t, x, prefix, norm_name);
        x = op_act(g, linear(t, x, prefix, first, joined), ACT_GELU);
        x = linear(t, x, prefix, second, c->out);
    }
    return x;
}

/* Returns the outputs of the blocks. */
static struct tower_output run_blocks(const struct tower *t)
{
    const struct qwen_vl *c = t->c;
    struct graph *g = t->g;
    struct tower_output out = {0};
    char name[96];
    id x = 0;
    snprintf(name, sizeof name, "%spatch_embed", c->prefix);
    IN_SCOPE(g, name, 0) x = embed(t);
    snprintf(name, sizeof name, "%sblocks", c->prefix);
    FOR_LAYERS(layer, g, name, c->depth) {
        IN_SCOPE(g, "attn", 0)
            x = op_add(g, x, attend(t, norm(t, x, layer.prefix, "norm1"), layer.prefix, c->full[layer.i]));
        IN_SCOPE(g, "mlp", 0) x = op_add(g, x, mlp(t, norm(t, x, layer.prefix, "norm2"), layer.prefix));
        for (int i = 0; i < c->n_deep; i++)
            if (c->deep[i] == layer.i) out.deep[i] = x;
    }
    out.last = x;
    return out;
}

/* Returns it as one tensor [R,P,image_model.width]. */
static id join_output(const struct tower *t, const struct tower_output *o)
{
    id parts[FEATURES_MOST + 1];
    for (int i = 0; i < t->c->n_deep; i++) parts[i] = o->deep[i];
    parts[t->c->n_deep] = o->last;
    return t->c->n_deep ? op_concat(t->g, parts, t->c->n_deep + 1, 2) : op_dense(t->g, o->last);
}

/* Returns what was kept of it. */
static struct tower_output read_output(const struct tower *t)
{
    const int64_t width = t->c->width;
    struct tower_output out = {0};
    id x = input(t, "image_embeddings", t->stored, (t->c->n_deep + 1) * width);
    if (t->stored != DT_F32) x = op_cast(t->g, x, DT_NONE);
    for (int i = 0; i < t->c->n_deep; i++) out.deep[i] = op_dense(t->g, op_slice(t->g, x, 2, i * width, width));
    out.last = op_dense(t->g, op_slice(t->g, x, 2, t->c->n_deep * width, width));
    return out;
}

/* Returns the features, and those of the blocks of deepstack. *patches is what they are made of. */
static id merge_all(const struct tower *t, const struct tower_output *o, struct token_rows *rows, id *patches)
{
    char name[96];
    for (int i = 0; i < t->c->n_deep; i++) {
        snprintf(name, sizeof name, "deepstack_merger_list.%d", i);
        rows->features[i] = merge(t, o->deep[i], name, true, NULL);
    }
    return merge(t, o->last, "merger", false, patches);
}

/* Returns the name of the tower's scope. Images of different rows are independent in it. */
static const char *scope_name(const struct tower *t, char out[96])
{
    snprintf(out, 96, "%.*s", (int)strlen(t->c->prefix) - 1, t->c->prefix);
    return out;
}

static id encode(const struct tower *t, struct token_rows *rows, id *patches)
{
    char name[96];
    id x = 0;
    IN_SCOPE(t->g, scope_name(t, name), SCOPE_IMAGES)
    {
        const struct tower_output o = t->stored == DT_NONE ? run_blocks(t) : read_output(t);
        x = merge_all(t, &o, rows, patches);
    }
    return x;
}

/* --- the model -------------------------------------------------------------------------------- */

static int64_t round_up(int64_t n, int64_t by) { return (n + by - 1) / by * by; }

static struct tower begin(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct qwen_vl *c = m->config;
    const struct contents *own = batch->holds;
    struct tower t = {.c = c, .g = g, .holds = own, .shared = batch->size,
                      .R = batch->size || !c->grid.tokens ? 1 : batch->B,
                      .bucket = c->grid.tokens ? 1 : round_up(BUCKET, c->grid.merge * c->grid.merge)};
    const int64_t D = c->width / c->heads;
    if (batch->size) t.P = batch->size['P'] + batch->size['V'];
    else t.P = (own ? round_up(own->media.patches, t.bucket) : 0) * batch->B / t.R;
    /* tokens that were generated: the images are before them */
    t.any = t.P && !program_is(g->at.program, PROGRAM_SINGLE);
    if (!t.any) t.R = 1, t.P = c->grid.merge * c->grid.merge;
    if (t.any && own && own->part == PART_REST) t.stored = own->embeddings;
    float *table = mem_alloc((size_t)(D / 2) * sizeof *table);
    for (int64_t i = 0; i < D / 2; i++)
        table[i] = (float)pow(TOWER_THETA, -2.0 * (double)(i % (D / 4)) / (double)(D / 2));
    t.inv_freq = graph_const(g, "rope.inv_freq.tower", DT_F32, 1, (int64_t[]){D / 2}, table);
    mem_free(table);
    t.ranges = input(&t, "patch_ranges", DT_I32, 2); /* which says where the sequence ends, even if no block runs */
    if (t.any && !c->grid.tokens) graph_set_sequence(g, t.ranges, batch->size ? 1 : batch->B, t.bucket);
    if (c->grid.window) t.windows = input(&t, "window_ranges", DT_I32, 2);
    t.positions = input(&t, "patch_positions", DT_I32, 3);
    return t;
}

/* Returns the inputs of the decoder's rows: positions are three a token. */
static struct token_rows token_rows(struct graph *g, const struct batch *batch)
{
    const int64_t B = batch->B, T = batch->T;
    struct token_rows rows = {.three = true, .cache = batch->cache, .texts = batch->cache ? batch->texts : 0};
    rows.positions = graph_input(g, "position_ids", DT_I32, 3, (int64_t[]){B, T, 3});
    if (batch->packed || batch->cache) rows.ranges = graph_input(g, "ranges", DT_I32, 3, (int64_t[]){B, T, 2});
    if (batch->cache) rows.slots = graph_input(g, "cache_slots", DT_I32, 2, (int64_t[]){B, T});
    return rows;
}

/* Returns features of which all samples read the same. */
static id text_rows(struct graph *g, id x, const struct tower *t)
{
    return t->R == 1 ? op_reshape(g, x, 2, (int64_t[]){-1, tensor_last(tensor_at(g, x))}) : x;
}

/* Returns the tokens of images, chosen among the features. */
static id allocate(const struct tower *t, const struct batch *batch, id embeddings, id patches, id features,
                   struct token_rows *rows)
{
    const struct contents *own = batch->holds;
    struct graph *g = t->g;
    if (!t->any) embeddings = op_slice(g, op_slice(g, embeddings, 0, 0, 1), 1, 0, 1);
    const struct level_tower l = {.grid = &t->c->grid, .any = t->any, .shared = t->shared, .patches = patches,
                                  .features = features,
                                  .images = !t->any ? 1 : batch->size ? batch->size['N'] : own->media.images,
                                  .ranges = t->ranges, .places = t->positions, .embeddings = embeddings,
                                  .inner = t->c->adapter, .std = t->c->std};
    id tokens = 0;
    IN_SCOPE(g, "allocator", 0) tokens = allocator_levels(g, &l, rows);
    return tokens;
}

/* Builds only the blocks of the tower, with their output. */
static void build_tower(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct tower t = begin(m, g, batch);
    char name[96];
    id x = 0;
    IN_SCOPE(g, scope_name(&t, name), SCOPE_IMAGES)
    {
        const struct tower_output o = run_blocks(&t);
        x = join_output(&t, &o);
    }
    graph_set_along(g, x, 1); /* the host reads as many as there are */
    graph_output(g, "image_embeddings", x);
}

static void build(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct qwen_vl *c = m->config;
    const struct contents *own = batch->holds;
    if (own && own->part == PART_IMAGE && !batch->size) {
        build_tower(m, g, batch);
        return;
    }
    const struct model *decoder = model_part(m, c->decoder);
    id ids = decoder_ids(g, batch), labels = decoder_labels(g, batch);
    struct token_rows rows = token_rows(g, batch);
    id x = decoder_embed(decoder, g, c->decoder, ids), features = 0, patches = 0;
    struct tower t = begin(m, g, batch);
    if (t.any) rows.index = graph_input(g, "image_index", DT_I32, 2, (int64_t[]){batch->B, batch->T});
    /* Rows that have no room for images leave the tower out. `step` gives its gradients, zeros, and
     * where no rows are described the whole model is meant. */
    if (t.any || batch->size || !own || c->grid.tokens) features = encode(&t, &rows, &patches);
    rows.n_features = c->n_deep;
    if (c->grid.tokens) features = allocate(&t, batch, x, patches, features, &rows);
    if (!t.any) rows.n_features = 0;
    if (t.any && x && features) {
        for (int i = 0; i < c->n_deep; i++) rows.features[i] = text_rows(g, rows.features[i], &t);
        x = op_replace_rows(g, x, rows.index, text_rows(g, features, &t));
    }
    decoder_outputs(decoder, g, c->decoder, batch, decoder_states(decoder, g, c->decoder, x, rows), labels);
}

/* As published; then what transformers 5 has in memory. */
static const struct spelling spellings[] = {
    {"visual.", {"model.visual."}},
    {"model.", {"model.language_model."}},
    {NULL, {NULL}},
};

const struct family qwen2_vl_family = {"qwen2_vl", parse_2, build, "", true, .generates = true, .spellings = spellings};
const struct family qwen2_5_vl_family =
    {"qwen2_5_vl", parse_25, build, "", true, .generates = true, .spellings = spellings};
const struct family qwen3_vl_family = {"qwen3_vl", parse_3, build, "", true, .generates = true};

/* With ARR-COC's token allocator (allocator.h). */
const struct family arr_coc_qwen2_vl_family =
    {"arr_coc_qwen2_vl", parse_coc_2, build, "", true, .generates = true, .spellings = spellings};
const struct family arr_coc_qwen2_5_vl_family =
    {"arr_coc_qwen2_5_vl", parse_coc_25, build, "", true, .generates = true, .spellings = spellings};
const struct family arr_coc_qwen3_vl_family =
    {"arr_coc_qwen3_vl", parse_coc_3, build, "", true, .generates = true};
