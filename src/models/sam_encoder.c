/*
 * sam_encoder.c: the image encoder of Segment Anything: a vision transformer on a grid of tokens.
 *
 *     x = patches(pixels) + positions
 *     each layer:  x = x + proj(attention(windows of n))    n = layernorm(x)
 *                  x = x + mlp(n)                           n = layernorm(x)
 *     neck:        norm(conv 3x3(norm(conv 1x1(x))))
 *
 * Most layers attend within windows, some over the whole image. If the grid is not divisible into
 * windows, it is padded with zeros after the norm, and the padding takes part in the attention: its
 * keys and values are the biases, and it is not masked. Scores include a relative-position term for
 * rows and for columns, computed from the unscaled query.
 *
 * An image of another size than the configuration's has another grid. The learned position
 * embeddings are then interpolated bilinearly (align_corners false), and the relative-position
 * tables linearly; windows keep their size and their tables.
 */
#include <math.h>

#include "graph/emit.h"
#include "models/layers.h"
#include "models/sam.h"

#define ROOT "vision_encoder."

/* Epsilon of the two norms of the neck, independent of the configuration. */
static const double NECK_EPS = 1e-6;

/* The learned relative-position table of one axis, for `size` positions. */
static id relative_table(const struct sam_build *b, const char *layer, const char *name, int64_t trained, int64_t size)
{
    const int64_t D = b->c->vision.hidden / b->c->vision.heads, rows = 2 * trained - 1;
    id table = layer_param(b->g, layer, name, 2, (int64_t[]){rows, D}, 0);
    if (size == trained) return table;
    id line = op_resize(b->g, op_reshape(b->g, table, 4, (int64_t[]){1, rows, 1, D}), 2 * size - 1, 1, false);
    return op_reshape(b->g, line, 2, (int64_t[]){2 * size - 1, D});
}

/* Queries, keys or values, [B,T,heads,D]: one third of the fused qkv projection. */
static id third(const struct sam_build *b, id qkv, int i)
{
    return op_slice(b->g, qkv, 2, i * b->c->vision.heads, b->c->vision.heads);
}

/* x [B,grid,grid,C]: attention over the whole grid, or within windows of window x window positions.
 * A grid that is not divisible into windows is padded with zeros, which have the bias as key and
 * value. */
static id attend(const struct sam_build *b, id x, const char *layer, int64_t window)
{
    const struct sam_vision *c = &b->c->vision;
    const int64_t wide = 3 * c->hidden, D = c->hidden / c->heads, trained = window ? window : c->image / c->patch;
    const int64_t size = window ? window : b->grid;
    const float scale = (float)(1 / sqrt((double)D));
    if (!x) return 0;
    const int64_t B = tensor_at(b->g, x)->dim[0], side = tensor_at(b->g, x)->dim[1];
    id w = layer_param(b->g, layer, "attn.qkv.weight", 2, (int64_t[]){wide, c->hidden},
                       sqrt(1 / (3.0 * (double)c->hidden)));
    id bias = c->qkv_bias ? layer_param(b->g, layer, "attn.qkv.bias", 1, &wide, 0) : 0;
    id qkv = op_reshape(b->g, op_linear(b->g, x, w, bias), 4, (int64_t[]){B, side * side, 3 * c->heads, D});
    id q = third(b, qkv, 0), k = third(b, qkv, 1), v = third(b, qkv, 2);
    id o;
    if (!c->relative) {
        o = op_attention(b->g, q, k, v, scale, false);
    } else {
        id rows = relative_table(b, layer, "attn.rel_pos_h", trained, size);
        id columns = relative_table(b, layer, "attn.rel_pos_w", trained, size);
        id pad = window && bias ? op_reshape(b->g, op_slice(b->g, bias, 0, c->hidden, 2 * c->hidden), 3,
                                             (int64_t[]){2, c->heads, D})
                                : 0;
        o = window ? op_attention_window(b->g, q, k, v, rows, columns, pad,
                                         (struct window_options){(int)side, (int)side, (int)window, scale})
                   : op_attention_rel(b->g, q, k, v, rows, columns, (int)size, (int)size, scale);
    }
    return op_reshape(b->g, o, 4, (int64_t[]){B, side, side, c->hidden});
}

/* Without relative positions the windows are batched as separate maps. */
static id attend_partitioned(const struct sam_build *b, id x, const char *layer)
{
    x = attend(b, op_window(b->g, x, (int)b->c->vision.window), layer, 0);
    return op_unwindow(b->g, x, b->grid, b->grid);
}

static id attention(const struct sam_build *b, id x, const char *layer, bool global)
{
    const struct sam_vision *c = &b->c->vision;
    if (global || !c->window) x = attend(b, x, layer, 0);
    else x = c->relative ? attend(b, x, layer, c->window) : attend_partitioned(b, x, layer);
    return layer_linear(b->g, x, layer, "attn.proj", c->hidden);
}

static id encoder_layer(const struct sam_build *b, id x, const struct layer *layer)
{
    const struct sam_vision *c = &b->c->vision;
    struct graph *g = b->g;
    const char *prefix = layer->prefix;
    IN_SCOPE (g, "attn", 0)
        x = op_add(g, x, attention(b, layer_norm(g, x, prefix, "layer_norm1", c->eps), prefix, c->global[layer->i]));
    IN_SCOPE(g, "mlp", 0) {
        id n = layer_linear(g, layer_norm(g, x, prefix, "layer_norm2", c->eps), prefix, "mlp.lin1", c->inner);
        x = op_add(g, x, layer_linear(g, op_act(g, n, c->act), prefix, "mlp.lin2", c->hidden));
    }
    return x;
}

static id embed(const struct sam_build *b, id pixels)
{
    const struct sam_vision *c = &b->c->vision;
    struct graph *g = b->g;
    const int64_t trained = c->image / c->patch;
    id x = 0;
    IN_SCOPE(g, ROOT "patch_embed", 0) {
        x = layer_conv(g, pixels, ROOT "patch_embed.", "projection", c->hidden,
                       (struct kernel_shape){(int)c->patch, (int)c->patch, 0, true});
        if (c->positions) {
            id positions = layer_param(g, ROOT, "pos_embed", 4, (int64_t[]){1, trained, trained, c->hidden}, 0.02);
            if (b->grid != trained) positions = op_resize(g, positions, b->grid, b->grid, false);
            x = op_add(g, x, positions);
        }
    }
    return x;
}

id sam_encode(const struct sam_build *b, id pixels)
{
    const struct sam_vision *c = &b->c->vision;
    struct graph *g = b->g;
    id x = embed(b, pixels);
    FOR_LAYERS(layer, g, ROOT "layers", c->layers) x = encoder_layer(b, x, &layer);
    IN_SCOPE(g, ROOT "neck", 0) {
        x = layer_conv(g, x, ROOT "neck.", "conv1", c->output, (struct kernel_shape){1, 1, 0, false});
        x = layer_norm(g, x, ROOT "neck.", "layer_norm1", NECK_EPS);
        x = layer_conv(g, x, ROOT "neck.", "conv2", c->output, (struct kernel_shape){3, 1, 1, false});
        x = layer_norm(g, x, ROOT "neck.", "layer_norm2", NECK_EPS);
    }
    return x;
}
