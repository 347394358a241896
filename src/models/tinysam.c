/*
 * tinysam.c: TinySAM and MobileSAM: the image encoder TinyViT with the prompt encoder and the mask
 * decoder of Segment Anything. Their configuration.
 */
#include <math.h>

#include "models/sam.h"
#include "graph/emit.h"
#include "models/layers.h"

enum { STAGES = 8, SHRINK = 4 /* total stride of the two convolutions of the stem */ };

struct stage {
    int64_t width, depth, heads, window;
    int64_t stride; /* of the downsampling to the next stage */
};

struct tinyvit {
    struct stage stage[STAGES];
    int64_t stages;
    double mlp_ratio, expand; /* expansion within a block: of attention, of convolutions */
    int64_t classes;          /* of a classifier head that is never used; 0: there is none */
};

static const struct tinyvit usual = {
    .stage = {{64, 2, 2, 7, 0}, {128, 2, 4, 7, 0}, {160, 6, 5, 14, 0}, {320, 2, 10, 7, 0}},
    .stages = 4, .mlp_ratio = 4, .expand = 4, .classes = 1000,
};

/* ---- TinyViT ----
 *
 * TinyViT, the image encoder of TinySAM and MobileSAM.
 *
 *     x = conv_bn s2(gelu(conv_bn s2(pixels)))                           a quarter of the side
 *     stage 0    each block:  x = gelu(x + conv_bn(gelu(depthwise_bn(gelu(conv_bn(x))))))
 *     others     each block:  x = x + proj(attention(layernorm(windows of x)))
 *                             x = depthwise_bn(x)
 *                             x = x + mlp(layernorm(x))
 *     between    x = conv_bn(gelu(depthwise_bn s(gelu(conv_bn(x)))))     half the side, or the same
 *     neck:      norm(conv 3x3(norm(conv 1x1(x))))
 *
 * A grid that is not divisible into windows is padded with zeros before the norm, so the padding is
 * the norm's bias and takes part in the attention like any other position. Scores include a learned
 * bias for each head and distance (|rows|, |columns|). The published table lists distances in the
 * order in which pairs of positions first have them: the first position has all of them, row by
 * row, so the index is |rows| window + |columns|, as in ATTENTION_BIAS. Queries, keys and values of
 * a head are adjacent in the fused projection matrix.
 *
 * The model works for any image size that is divisible by the encoder's total stride.
 *
 * Batch normalisation uses statistics over batch.bn_group images in the step and updates the
 * running ones; evaluation, and a step with bn_group 0, use the running ones unchanged.
 */

#define ROOT "image_encoder."

static const double NORM_EPS = 1e-5, NECK_EPS = 1e-6;

static int64_t widened(int64_t width, double ratio) { return max_i64(1, (int64_t)((double)width * ratio)); }

/* --- convolutions ------------------------------------------------------------------------ */

/* A convolution that keeps the side (or halves it, with stride 2), and its normalisation. */
struct conv {
    const char *name;
    int64_t out, size, stride;
    bool depthwise;
    bool zero_init; /* initialise with zeros, so that a block starts as the identity of its shortcut */
};

static id conv_bn(const struct sam_build *b, id x, const char *prefix, struct conv c)
{
    struct graph *g = b->g;
    char full[128];
    if (!x) return 0;
    const int64_t C = tensor_last(tensor_at(g, x)), in = c.depthwise ? 1 : C;
    snprintf(full, sizeof full, "%s%s.", prefix, c.name);
    id w = layer_param(g, full, "c.weight", 4, (int64_t[]){c.out, in, c.size, c.size},
                       sqrt(1 / (3.0 * (double)(in * c.size * c.size))));
    x = op_conv(g, x, w, 0, (int)c.stride, (int)c.size / 2, c.depthwise ? (int)C : 1);
    return layer_batch_norm(g, x, full, "bn", b->bn_group, c.zero_init);
}

/* Expands, convolves by channel and projects: the three convolutions (inverted bottleneck) of
 * stage 0 and of the downsampling between stages. */
static id inverted_bottleneck(const struct sam_build *b, id x, const char *prefix, int64_t inner, int64_t out,
                              int64_t stride, bool zero_init)
{
    struct graph *g = b->g;
    x = op_act(g, conv_bn(b, x, prefix, (struct conv){"conv1", inner, 1, 1, false, false}), ACT_GELU);
    x = op_act(g, conv_bn(b, x, prefix, (struct conv){"conv2", inner, 3, stride, true, false}), ACT_GELU);
    return conv_bn(b, x, prefix, (struct conv){"conv3", out, 1, 1, false, zero_init});
}

static id embed(const struct sam_build *b, id pixels)
{
    const int64_t width = b->c->tiny->stage[0].width;
    struct graph *g = b->g;
    id x = 0;
    IN_SCOPE(g, ROOT "patch_embed", 0) {
        x = op_act(g, conv_bn(b, pixels, ROOT "patch_embed.", (struct conv){"seq.0", width / 2, 3, 2, false, false}),
                   ACT_GELU);
        x = conv_bn(b, x, ROOT "patch_embed.", (struct conv){"seq.2", width, 3, 2, false, false});
    }
    return x;
}

static id conv_block(const struct sam_build *b, id x, const char *prefix, const struct stage *s)
{
    id y = inverted_bottleneck(b, x, prefix, widened(s->width, b->c->tiny->expand), s->width, 1, true);
    return op_act(b->g, op_add(b->g, x, y), ACT_GELU);
}

/* --- attention --------------------------------------------------------------------------- */

/* Returns queries, keys or values of windows x [n,w,w,C]: slice i of every head in the matrix
 * [heads,3,D,C]. */
static id project(const struct sam_build *b, id x, id w, id bias, const struct stage *s, int i)
{
    struct graph *g = b->g;
    const struct tensor in = *tensor_at(g, x);
    const int64_t C = s->width, D = C / s->heads;
    id part = op_slice(g, op_reshape(g, w, 3, (int64_t[]){s->heads, 3, D * C}), 1, i, 1);
    id shift = op_slice(g, op_reshape(g, bias, 3, (int64_t[]){s->heads, 3, D}), 1, i, 1);
    part = op_reshape(g, part, 2, (int64_t[]){C, C});
    shift = op_reshape(g, shift, 1, &C);
    return op_reshape(g, op_linear(g, x, part, shift), 4, (int64_t[]){in.dim[0], in.dim[1] * in.dim[2], s->heads, D});
}

static id attention(const struct sam_build *b, id x, const char *prefix, const struct stage *s)
{
    struct graph *g = b->g;
    if (!x) return 0;
    const struct tensor map = *tensor_at(g, x);
    const int64_t C = s->width, wide = 3 * C, size = s->window;
    x = layer_norm(g, op_window(g, x, (int)size), prefix, "attn.norm", NORM_EPS);
    id w = layer_param(g, prefix, "attn.qkv.weight", 2, (int64_t[]){wide, C}, sqrt(1 / (3.0 * (double)C)));
    id bias = layer_param(g, prefix, "attn.qkv.bias", 1, &wide, 0);
    id table = layer_param(g, prefix, "attn.attention_biases", 2, (int64_t[]){s->heads, size * size}, 0);
    if (!x || !w || !bias) return 0;
    id q = project(b, x, w, bias, s, 0), k = project(b, x, w, bias, s, 1), v = project(b, x, w, bias, s, 2);
    id o = op_attention_bias(g, q, k, v, table, (int)size, (float)(1 / sqrt((double)(C / s->heads))));
    o = op_reshape(g, o, 4, (int64_t[]){tensor_at(g, x)->dim[0], size, size, C});
    /* The projection works on each position separately: the windows' padding is dropped before
     * it. */
    return layer_linear(g, op_unwindow(g, o, map.dim[1], map.dim[2]), prefix, "attn.proj", C);
}

static id attention_block(const struct sam_build *b, id x, const char *prefix, const struct stage *s)
{
    struct graph *g = b->g;
    IN_SCOPE(g, "attn", 0) x = op_add(g, x, attention(b, x, prefix, s));
    IN_SCOPE(g, "local_conv", 0) x = conv_bn(b, x, prefix, (struct conv){"local_conv", s->width, 3, 1, true, false});
    IN_SCOPE(g, "mlp", 0) {
        id n = layer_norm(g, x, prefix, "mlp.norm", NORM_EPS);
        n = op_act(g, layer_linear(g, n, prefix, "mlp.fc1", widened(s->width, b->c->tiny->mlp_ratio)), ACT_GELU);
        x = op_add(g, x, layer_linear(g, n, prefix, "mlp.fc2", s->width));
    }
    return x;
}

/* --- the encoder --------------------------------------------------------------------------- */

static id run_stage(const struct sam_build *b, id x, int64_t i)
{
    const struct tinyvit *c = b->c->tiny;
    const struct stage *s = &c->stage[i];
    struct graph *g = b->g;
    char root[64], prefix[80];
    snprintf(root, sizeof root, ROOT "layers.%lld.blocks", (long long)i);
    FOR_LAYERS (block, g, root, s->depth)
        x = i ? attention_block(b, x, block.prefix, s) : conv_block(b, x, block.prefix, s);
    if (i + 1 == c->stages) return x;
    snprintf(root, sizeof root, ROOT "layers.%lld.downsample", (long long)i);
    snprintf(prefix, sizeof prefix, "%s.", root);
    IN_SCOPE(g, root, 0) x = inverted_bottleneck(b, x, prefix, s[1].width, s[1].width, s->stride, false);
    return x;
}

/* Declares the classifier head of the pretraining: loaded, kept and saved. */
static void head_weights(const struct sam_build *b)
{
    const struct tinyvit *c = b->c->tiny;
    const int64_t C = c->stage[c->stages - 1].width;
    if (!c->classes) return;
    layer_norm_weights(b->g, ROOT, "norm_head", C);
    layer_param(b->g, ROOT, "head.weight", 2, (int64_t[]){c->classes, C}, 0.02);
    layer_param(b->g, ROOT, "head.bias", 1, &c->classes, 0);
}

static struct sam_image tinyvit_encode(const struct sam_build *b, id pixels)
{
    const struct tinyvit *c = b->c->tiny;
    struct graph *g = b->g;
    const int64_t patch = b->c->vision.patch, out = b->c->vision.output;
    if (b->side % patch) {
        graph_fail(g, "pixel_values: images of %lld pixels are not divisible by %lld, the encoder's total stride",
                   (long long)b->side, (long long)patch);
        return (struct sam_image){0};
    }
    id x = embed(b, pixels);
    for (int64_t i = 0; i < c->stages; i++) x = run_stage(b, x, i);
    head_weights(b);
    IN_SCOPE(g, ROOT "neck", 0) {
        x = layer_conv(g, x, ROOT "neck.", "0", out, (struct kernel_shape){1, 1, 0, false});
        x = layer_norm(g, x, ROOT "neck.", "1", NECK_EPS);
        x = layer_conv(g, x, ROOT "neck.", "2", out, (struct kernel_shape){3, 1, 1, false});
        x = layer_norm(g, x, ROOT "neck.", "3", NECK_EPS);
    }
    return (struct sam_image){.coarse = x};
}

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
    TRY(value_opt_number(map, key, to, e));
    if (!(*to > 0 && *to <= 64)) return error_set(e, PL_USAGE, "%s is %g, it must lie between 0 and 64", key, *to);
    return PL_OK;
}

/* Parses the keys of one map; missing keys leave *c unchanged. */
static int parse_keys(struct tinyvit *c, struct sam_vision *v, const struct value *map, struct error *e)
{
    const struct size_key keys[] = {
        {"image_size", &v->image, 1, 1 << 14},       {"num_channels", &v->channels, 1, 1 << 12},
        {"output_channels", &v->output, 1, 1 << 20}, {"num_pos_feats", &v->features, 1, 1 << 19},
        {"num_classes", &c->classes, 0, 1 << 20},
    };
    TRY(layer_parse_sizes(map, keys, COUNT(keys), e));
    TRY(parse_list(c, map, "embed_dims", offsetof(struct stage, width), 1 << 16, e));
    TRY(parse_list(c, map, "depths", offsetof(struct stage, depth), 1024, e));
    TRY(parse_list(c, map, "num_heads", offsetof(struct stage, heads), 1 << 14, e));
    TRY(parse_list(c, map, "window_sizes", offsetof(struct stage, window), 1 << 10, e));
    TRY(parse_ratio(map, "mlp_ratio", &c->mlp_ratio, e));
    return parse_ratio(map, "mbconv_expand_ratio", &c->expand, e);
}

/* Finds the strides. The side halves between stages; except before the last stage and, as in the
 * reference, before a stage of one of these widths, which are those of the last stages of all
 * published sizes. */
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

/* Parses the configuration. The encoder's keys are in the map itself, or in its vision_config.
 * Sizes shared with the other sub-configurations are given once. */
static int parse_tinysam(struct model *m, const struct value *config, struct error *e)
{
    struct sam *s = bump_alloc(&m->memory, sizeof *s);
    struct tinyvit *c = bump_alloc(&m->memory, sizeof *c);
    const struct value *vision, *prompts, *decoder;
    *c = usual;
    *s = (struct sam){.tiny = c, .encode = tinyvit_encode, .prompts = sam_usual_prompts, .decoder = sam_usual_decoder,
                      .vision = {.image = 1024, .channels = 3}};
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
    TRY(check(c, s, e));
    return sam_describe(m, s, e);
}

const struct family tinysam_family = {"tinysam", parse_tinysam, sam_forward, "", false, sam_read_folder};
