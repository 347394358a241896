/*
 * sam2_memory.c: how SAM 2 looks at earlier frames, and how it remembers one.
 *
 *     memory attention   each layer:  x = x + attention(n, itself)          n = layernorm(x)
 *                                     x = x + attention(n, memories)        n = layernorm(x)
 *                                     x = x + mlp(n)                        n = layernorm(x)
 *     memory encoder     probabilities of the mask ─ convolutions down to the grid ─┐
 *                        image ─ conv 1x1 ──────────────────────────────────────────┴ + ─ ConvNeXt
 *                        blocks ─ conv 1x1 ─ memory, and an embedding where there is no object
 *
 * Queries and keys are turned by the row and the column of their cell; pointers, which are keys
 * behind those of the maps, are not.
 */
#include "models/sam2_video.h"

#include <math.h>

#include "graph/emit.h"
#include "models/layers.h"

static const double NORM_EPS = 1e-5, MAP_EPS = 1e-6;
/* A factor after which the sigmoid is 0 or 1. */
static const double STEEP = 1e30;

static int64_t rows(const struct graph *g, id x) { return tensor_at(g, x)->dim[0]; }

/* --- memory attention ----------------------------------------------------------------------- */

id sam_key_positions(struct graph *g, int64_t R, int64_t maps, int64_t n, int64_t more)
{
    char name[96];
    const int64_t S = maps * n * n + more;
    int32_t (*at)[3] = mem_alloc((size_t)(R * S) * sizeof *at);
    for (int64_t i = 0; i < R * S; i++) {
        const int64_t k = i % S, cell = k % (n * n);
        const bool map = k < maps * n * n;
        at[i][0] = map ? (int32_t)(cell % n) : 0;
        at[i][1] = map ? (int32_t)(cell / n) : 0;
        at[i][2] = 0;
    }
    snprintf(name, sizeof name, "key_positions.%lldx%lldx%lldx%lld", (long long)R, (long long)maps, (long long)n,
             (long long)more);
    id x = graph_const(g, name, DT_I32, 3, (int64_t[]){R, S, 3}, at);
    mem_free(at);
    return x;
}

/* Returns the frequencies of the D/2 pairs of a head: a half for columns, a half for rows. */
static id rotary_frequencies(const struct sam_build *b, int64_t D)
{
    float *at = mem_alloc((size_t)(D / 2) * sizeof *at);
    for (int64_t i = 0; i < D / 2; i++)
        at[i] = (float)pow(b->c->video->theta, -(double)(4 * (i % (D / 4))) / (double)D);
    id x = graph_const(b->g, "memory_frequencies", DT_F32, 1, (int64_t[]){D / 2}, at);
    mem_free(at);
    return x;
}

/* Turns the pairs of x [R,S,heads*D] by the positions of its tokens. Pairs are neighbours in the
 * published weights, and halves in ROPE: the channels of queries and keys change their order alike,
 * so that their products stay. */
static id turned(const struct sam_build *b, id x, id positions)
{
    const struct sam_video *v = b->c->video;
    struct graph *g = b->g;
    if (!x) return 0;
    const int64_t R = rows(g, x), S = tensor_at(g, x)->dim[1], D = v->hidden / v->downsample / v->heads;
    x = op_reshape(g, x, 5, (int64_t[]){R, S, v->heads, D / 2, 2});
    x = op_reshape(g, op_dense(g, op_permute(g, x, (int[]){0, 1, 2, 4, 3})), 4, (int64_t[]){R, S, v->heads, D});
    const struct rope_sections halves = {.pairs = {D / 4, D / 4, 0}};
    return op_rope_at(g, x, rotary_frequencies(b, D), positions, &halves, 1);
}

static id memory_attend(const struct sam_build *b, const char *layer, const char *name, id x, id positions,
                        const struct bank *k)
{
    const struct sam_video *v = b->c->video;
    struct graph *g = b->g;
    const int64_t inner = v->hidden / v->downsample, D = inner / v->heads;
    char prefix[112];
    snprintf(prefix, sizeof prefix, "%s%s.", layer, name);
    id q = turned(b, layer_linear(g, x, prefix, "q_proj", inner), positions);
    id keys = turned(b, layer_linear(g, k->keys, prefix, "k_proj", inner), k->positions);
    id values = layer_linear(g, k->values, prefix, "v_proj", inner);
    if (!q || !values) return 0;
    const struct tensor t = *tensor_at(g, values);
    values = op_reshape(g, values, 4, (int64_t[]){t.dim[0], t.dim[1], v->heads, D});
    id o = op_attention_with(g, q, keys, values, k->scores,
                             (struct attention_options){.scale = (float)(1 / sqrt((double)D))});
    const struct tensor s = *tensor_at(g, x);
    return layer_linear(g, op_reshape(g, o, 3, (int64_t[]){s.dim[0], s.dim[1], inner}), prefix, "o_proj", v->hidden);
}

id sam_memory_attention(const struct sam_build *b, id x, const struct bank *k)
{
    const struct sam_video *v = b->c->video;
    struct graph *g = b->g;
    if (!x) return 0;
    id positions = sam_key_positions(g, rows(g, x), 1, b->grid, 0);
    FOR_LAYERS(layer, g, "memory_attention.layers", v->layers) {
        const char *prefix = layer.prefix;
        IN_SCOPE(g, "self_attn", 0) {
            id n = layer_norm(g, x, prefix, "layer_norm1", NORM_EPS);
            x = op_add(g, x, memory_attend(b, prefix, "self_attn", n, positions, &(struct bank){n, n, 0, positions}));
        }
        IN_SCOPE(g, "cross_attn_image", 0) {
            id n = layer_norm(g, x, prefix, "layer_norm2", NORM_EPS);
            x = op_add(g, x, memory_attend(b, prefix, "cross_attn_image", n, positions, k));
        }
        IN_SCOPE(g, "mlp", 0) {
            id n = layer_norm(g, x, prefix, "layer_norm3", NORM_EPS);
            n = op_act(g, layer_linear(g, n, prefix, "linear1", v->inner), v->act);
            x = op_add(g, x, layer_linear(g, n, prefix, "linear2", v->hidden));
        }
    }
    IN_SCOPE(g, "memory_attention", 0) x = layer_norm(g, x, "memory_attention.", "layer_norm", NORM_EPS);
    return x;
}

/* --- memory encoder ------------------------------------------------------------------------- */

int64_t sam_mask_layers(const struct sam_video *v)
{
    int64_t n = 0, at = 1;
    for (; at < v->total && v->stride > 1; n++) at *= v->stride;
    return at == v->total ? n : 0;
}

/* Brings probabilities of a mask, [R,side,side,1], to the grid and to the image's channels. */
static id downsample_mask(const struct sam_build *b, id x)
{
    const struct sam_video *v = b->c->video;
    struct graph *g = b->g;
    int64_t channels = 1;
    for (int64_t i = 0; i < sam_mask_layers(v); i++) {
        char prefix[80];
        snprintf(prefix, sizeof prefix, "memory_encoder.mask_downsampler.layers.%lld.", (long long)i);
        channels *= v->stride * v->stride;
        x = layer_conv(g, x, prefix, "conv", channels,
                       (struct kernel_shape){(int)v->kernel, (int)v->stride, (int)v->pad, true});
        x = op_act(g, layer_norm(g, x, prefix, "layer_norm", MAP_EPS), v->mask_act);
    }
    return layer_conv(g, x, "memory_encoder.mask_downsampler.", "final_conv", v->embed,
                      (struct kernel_shape){1, 1, 0, true});
}

/* Computes a layer of the fuser, a ConvNeXt block. */
static id fuse(const struct sam_build *b, id x, const char *prefix)
{
    const struct sam_video *v = b->c->video;
    struct graph *g = b->g;
    const int64_t C = v->fuser, k = v->fuser_kernel;
    id w = layer_param(g, prefix, "depthwise_conv.weight", 4, (int64_t[]){C, 1, k, k}, 1 / sqrt(3.0 * (double)(k * k)));
    id bias = layer_param(g, prefix, "depthwise_conv.bias", 1, &C, 0);
    id n = layer_norm(g, op_conv(g, x, w, bias, 1, (int)v->fuser_pad, (int)C), prefix, "layer_norm", MAP_EPS);
    n = op_act(g, layer_linear(g, n, prefix, "pointwise_conv1", v->fuser_inner), v->fuser_act);
    n = layer_linear(g, n, prefix, "pointwise_conv2", C);
    return op_add(g, x, op_mul(g, n, layer_param(g, prefix, "scale", 1, &C, 1e-6)));
}

id sam_encode_memory(const struct sam_build *b, id image, id logits, id shown, bool binary)
{
    const struct sam_video *v = b->c->video;
    struct graph *g = b->g;
    const int64_t n = b->grid * b->grid, C = v->encoder;
    if (!image || !logits) return 0;
    const int64_t R = rows(g, logits);
    id x = 0;
    IN_SCOPE(g, "memory_encoder", SCOPE_BLOCK) {
        const float bias = (float)v->bias;
        id mask = op_act(g, binary ? op_scale(g, logits, STEEP) : logits, ACT_SIGMOID);
        mask = op_add(g, op_scale(g, mask, v->scale), graph_const(g, "memory_bias", DT_F32, 1, (int64_t[]){1}, &bias));
        mask = downsample_mask(b, op_cast(g, mask, DT_NONE));
        x = layer_conv(g, image, "memory_encoder.", "feature_projection", C, (struct kernel_shape){1, 1, 0, true});
        x = op_reshape(g, x, 3, (int64_t[]){x ? rows(g, x) : 1, n, C});
        x = sam_add_rows(g, x, op_reshape(g, mask, 3, (int64_t[]){R, n, C}));
        x = op_reshape(g, x, 4, (int64_t[]){R, b->grid, b->grid, C});
    }
    FOR_LAYERS(layer, g, "memory_encoder.memory_fuser.layers", v->fuser_layers) x = fuse(b, x, layer.prefix);
    IN_SCOPE(g, "memory_encoder", 0) {
        x = layer_conv(g, x, "memory_encoder.", "projection", v->channels, (struct kernel_shape){1, 1, 0, true});
        x = op_reshape(g, x, 3, (int64_t[]){R, n, v->channels});
        if (v->occlusion) { /* a second row would be zeros: an index beyond gives them */
            id none = layer_param(g, "", "occlusion_spatial_embedding_parameter", 2, (int64_t[]){1, v->channels}, 0.02);
            none = op_gather(g, op_reshape(g, none, 3, (int64_t[]){1, 1, v->channels}),
                             op_reshape(g, shown, 2, (int64_t[]){1, R}));
            x = op_add(g, x, op_reshape(g, none, 3, (int64_t[]){R, 1, v->channels}));
        }
    }
    return x;
}

