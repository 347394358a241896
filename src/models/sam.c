/*
 * sam.c: Segment Anything: an image and prompts in, masks out.
 *
 *     pixel_values ─ encoder ─ image [B,grid,grid,C] ─┐
 *     points, boxes, masks ─ prompt encoder ──────────┴─ decoder ─ pred_masks [B,M,K,h,h],
 *     iou_scores [B,M,K]
 *
 * Supports any SamConfig of transformers. sam_vision_model is only the encoder; tinysam is another
 * encoder with the same prompt encoder and decoder (tinysam.c), and so is sam2 (hiera.c). With
 * targets the loss is MASK_LOSS; without them it is the mean square of an output, as for a tower.
 *
 * The frequencies of the position encoding are not weights in the paper and are never trained. The
 * class in transformers registers them as a parameter, so where outputs and gradients are requested
 * (`step`) their gradient is returned too; training does not update them. In TinySAM they are not a
 * parameter.
 */
#include "models/sam.h"

#include <math.h>

#include "graph/emit.h"
#include "graph/sizes.h"
#include "models/layers.h"
#include "models/sam_names.h"

/* ---- The image encoder ----
 *
 * the image encoder of Segment Anything: a vision transformer on a grid of tokens.
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

#define ROOT "vision_encoder."

/* Epsilon of the two norms of the neck, independent of the configuration. */
static const double NECK_EPS = 1e-6;

/* Returns the learned relative-position table of one axis, for `size` positions. */
static id relative_table(const struct sam_build *b, const char *layer, const char *name, int64_t trained, int64_t size)
{
    const int64_t D = b->c->vision.hidden / b->c->vision.heads, rows = 2 * trained - 1;
    id table = layer_param(b->g, layer, name, 2, (int64_t[]){rows, D}, 0);
    if (size == trained) return table;
    id line = op_resize(b->g, op_reshape(b->g, table, 4, (int64_t[]){1, rows, 1, D}), 2 * size - 1, 1, false);
    return op_reshape(b->g, line, 2, (int64_t[]){2 * size - 1, D});
}

/* Returns queries, keys or values, [B,T,heads,D]: one third of the fused qkv projection. */
static id third(const struct sam_build *b, id qkv, int i)
{
    return op_slice(b->g, qkv, 2, i * b->c->vision.heads, b->c->vision.heads);
}

/* Computes attention of x [B,grid,grid,C] over the whole grid, or within windows of window x
 * window positions. A grid that is not divisible into windows is padded with zeros, which have the
 * bias as key and value. */
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

/* Computes attention without relative positions: the windows are batched as separate maps. */
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

static struct sam_image sam_encode(const struct sam_build *b, id pixels)
{
    const struct sam_vision *c = &b->c->vision;
    struct graph *g = b->g;
    id x = embed(b, pixels), early = 0;
    FOR_LAYERS(layer, g, ROOT "layers", c->layers) {
        x = encoder_layer(b, x, &layer);
        if (b->c->decoder.high && !early && c->global[layer.i]) early = x;
    }
    IN_SCOPE(g, ROOT "neck", 0) {
        x = layer_conv(g, x, ROOT "neck.", "conv1", c->output, (struct kernel_shape){1, 1, 0, false});
        x = layer_norm(g, x, ROOT "neck.", "layer_norm1", NECK_EPS);
        x = layer_conv(g, x, ROOT "neck.", "conv2", c->output, (struct kernel_shape){3, 1, 1, false});
        x = layer_norm(g, x, ROOT "neck.", "layer_norm2", NECK_EPS);
    }
    return (struct sam_image){.coarse = x, .early = early};
}

/* --- configuration ------------------------------------------------------------------- */

/* Parses layer_norm_eps and hidden_act, which all three sub-configurations have. */
static int parse_common(const struct value *map, double *eps, enum act_kind *act, struct error *e)
{
    TRY(value_opt_number(map, "layer_norm_eps", eps, e));
    if (!(*eps > 0)) return error_set(e, PL_USAGE, "layer_norm_eps is %g, it must be above 0", *eps);
    return layer_parse_act(map, act, e);
}

/* Parses the layers with global attention. An index outside of the layers is ignored, as in the
 * reference. */
static int parse_global(struct model *m, struct sam_vision *c, const struct value *map, struct error *e)
{
    static const int64_t usual[] = {2, 5, 8, 11};
    const struct value *list = value_get(map, "global_attn_indexes");
    c->global = bump_alloc(&m->memory, (size_t)c->layers * sizeof *c->global);
    memset(c->global, 0, (size_t)c->layers * sizeof *c->global);
    bool given = list && list->kind != VALUE_NULL;
    if (given && value_as_list(list, "global_attn_indexes", e)) return e->code;
    for (uint32_t i = 0; i < (given ? list->count : COUNT(usual)); i++) {
        int64_t k = 0;
        if (!given) k = usual[i];
        else if (value_as_int(value_at(list, i), "global_attn_indexes", &k, e)) return e->code;
        if (k >= 0 && k < c->layers) c->global[k] = true;
    }
    return PL_OK;
}

static int check_vision(const struct sam_vision *c, struct error *e)
{
    if (c->hidden % c->heads)
        return error_set(e, PL_USAGE, "hidden_size %lld is not divisible by num_attention_heads %lld",
                         (long long)c->hidden, (long long)c->heads);
    if (c->patch > c->image)
        return error_set(e, PL_USAGE, "patch_size %lld is larger than image_size %lld", (long long)c->patch,
                         (long long)c->image);
    return PL_OK;
}

static int parse_vision(struct model *m, struct sam_vision *c, const struct value *map, struct error *e)
{
    *c = (struct sam_vision){.hidden = 768, .output = 256, .layers = 12, .heads = 12, .channels = 3, .image = 1024,
                             .patch = 16, .window = 14, .features = 128, .eps = 1e-6, .mlp_ratio = 4, .act = ACT_GELU,
                             .qkv_bias = true, .positions = true, .relative = true};
    const struct size_key keys[] = {
        {"hidden_size", &c->hidden, 1, 1 << 20},   {"output_channels", &c->output, 1, 1 << 20},
        {"num_hidden_layers", &c->layers, 1, 4096}, {"num_attention_heads", &c->heads, 1, 1 << 14},
        {"num_channels", &c->channels, 1, 1 << 12}, {"image_size", &c->image, 1, 1 << 14},
        {"patch_size", &c->patch, 1, 1 << 12},      {"window_size", &c->window, 0, 1 << 12},
        {"num_pos_feats", &c->features, 1, 1 << 19},
    };
    int rc = layer_parse_sizes(map, keys, COUNT(keys), e);
    if (!rc) rc = parse_common(map, &c->eps, &c->act, e);
    if (!rc) rc = value_opt_number(map, "mlp_ratio", &c->mlp_ratio, e);
    if (!rc) rc = value_opt_bool(map, "qkv_bias", &c->qkv_bias, e);
    if (!rc) rc = value_opt_bool(map, "use_abs_pos", &c->positions, e);
    if (!rc) rc = value_opt_bool(map, "use_rel_pos", &c->relative, e);
    if (!rc && !(c->mlp_ratio > 0 && c->mlp_ratio < 1024))
        rc = error_set(e, PL_USAGE, "mlp_ratio is %g, it must lie between 0 and 1024", c->mlp_ratio);
    if (rc) return rc;
    c->inner = (int64_t)((double)c->hidden * c->mlp_ratio);
    rc = layer_parse_sizes(map, &(struct size_key){"mlp_dim", &c->inner, 1, 1 << 22}, 1, e);
    if (!rc) rc = check_vision(c, e);
    return rc ? rc : parse_global(m, c, map, e);
}

const struct sam_prompts sam_usual_prompts =
    {.hidden = 256, .image = 1024, .patch = 16, .mask_channels = 16, .kinds = 4, .eps = 1e-6, .act = ACT_GELU};

int sam_parse_prompts(struct sam_prompts *c, const struct value *map, struct error *e)
{
    const struct size_key keys[] = {
        {"hidden_size", &c->hidden, 1, 1 << 20}, {"image_size", &c->image, 1, 1 << 14},
        {"patch_size", &c->patch, 1, 1 << 12},   {"mask_input_channels", &c->mask_channels, 4, 1 << 16},
        {"num_point_embeddings", &c->kinds, 4, 64},
    };
    TRY(layer_parse_sizes(map, keys, COUNT(keys), e));
    TRY(parse_common(map, &c->eps, &c->act, e));
    if (c->mask_channels % 4)
        return error_set(e, PL_USAGE, "mask_input_channels is %lld, it must be divisible by 4",
                         (long long)c->mask_channels);
    c->grid = c->image / c->patch;
    return layer_parse_sizes(map, &(struct size_key){"image_embedding_size", &c->grid, 1, 1 << 14}, 1, e);
}

const struct sam_decoder sam_usual_decoder = {.hidden = 256, .inner = 2048, .layers = 2, .heads = 8, .downsample = 2,
                                              .candidates = 3, .iou_layers = 3, .iou_hidden = 256, .eps = 1e-6,
                                              .act = ACT_RELU};

int sam_parse_decoder(struct sam_decoder *c, const struct value *map, struct error *e)
{
    const struct size_key keys[] = {
        {"hidden_size", &c->hidden, 8, 1 << 20},        {"mlp_dim", &c->inner, 1, 1 << 22},
        {"num_hidden_layers", &c->layers, 1, 4096},     {"num_attention_heads", &c->heads, 1, 1 << 14},
        {"attention_downsample_rate", &c->downsample, 1, 1 << 14}, {"num_multimask_outputs", &c->candidates, 1, 64},
        {"iou_head_depth", &c->iou_layers, 0, 256},     {"iou_head_hidden_dim", &c->iou_hidden, 1, 1 << 20},
    };
    int rc = layer_parse_sizes(map, keys, COUNT(keys), e);
    if (!rc) rc = parse_common(map, &c->eps, &c->act, e);
    const int64_t rates[] = {1, 2, c->downsample};
    for (size_t i = 0; i < COUNT(rates) && !rc; i++)
        if (c->hidden < rates[i] || c->hidden / rates[i] % c->heads)
            rc = error_set(e, PL_USAGE, "num_attention_heads %lld is not a divisor of hidden_size %lld / %lld",
                           (long long)c->heads, (long long)c->hidden, (long long)rates[i]);
    return rc;
}

/* Checks that the three sub-configurations agree on width and grid. */
static int check_joints(const struct sam *c, struct error *e)
{
    const int64_t C = c->decoder.hidden, grid = c->vision.image / c->vision.patch;
    if (c->vision.output != C || c->prompts.hidden != C || 2 * c->vision.features != C)
        return error_set(e, PL_USAGE, "mask_decoder_config.hidden_size is %lld; vision_config.output_channels (%lld), "
                         "prompt_encoder_config.hidden_size "
                         "(%lld) and twice vision_config.num_pos_feats (%lld) must be the same",
                         (long long)C, (long long)c->vision.output, (long long)c->prompts.hidden,
                         (long long)(2 * c->vision.features));
    if (c->prompts.grid != grid)
        return error_set(e, PL_USAGE,
                         "vision_config makes a grid of %lld x %lld of an image, prompt_encoder_config one of %lld x "
                         "%lld: image_size / patch_size "
                         "must agree",
                         (long long)grid, (long long)grid, (long long)c->prompts.grid, (long long)c->prompts.grid);
    return PL_OK;
}

int sam_parse_part(const struct value *config, const char *key, const struct value **out, struct error *e)
{
    const struct value *map = value_get(config, key);
    *out = map && map->kind != VALUE_NULL ? map : NULL; /* without its map a sub-configuration has its defaults */
    return *out ? value_as_map(map, key, e) : PL_OK;
}

static int64_t mask_side(const struct model *m, int64_t image)
{
    const struct sam *c = m->config;
    return 4 * (image / c->vision.patch);
}

int sam_describe(struct model *m, const struct sam *c, struct error *e)
{
    TRY(check_joints(c, e));
    /* S: side of an image, M: prompts per image, one mask each, P: points per prompt, N: input
     * masks per image, 1 or M, H: side of a mask. */
    const struct port ports[] = {
        {"pixel_values", VALUES_REAL, 4, {OPEN('B'), c->vision.channels, OPEN('S'), OPEN('S')}, false},
        {"input_points", VALUES_COORDS, 4, {OPEN('B'), OPEN('M'), OPEN('P'), 2}, true},
        {"input_labels", VALUES_POINTS, 3, {OPEN('B'), OPEN('M'), OPEN('P')}, true},
        {"input_boxes", VALUES_COORDS, 3, {OPEN('B'), OPEN('M'), 4}, true},
        {"input_masks", VALUES_REAL, 4, {OPEN('B'), OPEN('N'), OPEN('H'), OPEN('H')}, true},
        {"gt_masks", VALUES_MASKS, 4, {OPEN('B'), OPEN('M'), OPEN('H'), OPEN('H')}, true},
    };
    for (size_t i = 0; i < COUNT(ports); i++) model_add_port(m, &ports[i]);
    static const char *const levels[] = {"image_embeddings.0", "image_embeddings.1", "image_embeddings.2",
                                         "object_score_logits"};
    for (size_t i = 0; i < COUNT(levels) && c->hiera; i++) model_add_output(m, levels[i]);
    if (!c->hiera) model_add_output(m, "image_embeddings");
    model_add_output(m, "iou_scores");
    model_add_output(m, m->loss_output = "pred_masks");
    m->image = c->vision.image;
    m->encoder = c->tiny ? "image_encoder.*" : "vision_encoder.*";
    m->masks = bump_alloc(&m->memory, sizeof *m->masks);
    *m->masks = (struct mask_model){.patch = c->vision.unit ? c->vision.unit : c->vision.patch,
                                    .extent = (double)c->prompts.image,
                                    .side = mask_side,
                                    .stretches = c->hiera,
                                    .objects = c->decoder.second,
                                    .finer = c->decoder.high};
    return PL_OK;
}

bool model_canvas(const struct model *m, int64_t side, struct mask_canvas *out)
{
    const struct mask_model *x = m->masks;
    if (!x) return false;
    if (!side) side = m->image;
    *out = (struct mask_canvas){.side = side, .patch = x->patch, .cells = x->side(m, side), .stretched = x->stretches,
                           .extent = x->extent * (double)side / (double)m->image, .norm = x->norm};
    return true;
}

int sam_read_folder(struct model *m, struct error *e) { return pixel_norm_read(&m->masks->norm, m->path, e); }

static int parse(struct model *m, const struct value *config, bool high, struct error *e)
{
    struct sam *c = bump_alloc(&m->memory, sizeof *c);
    const struct value *vision, *prompts, *decoder;
    m->config = c;
    *c = (struct sam){.encode = sam_encode, .prompts = sam_usual_prompts, .decoder = sam_usual_decoder};
    if (sam_parse_part(config, "vision_config", &vision, e) ||
        sam_parse_part(config, "prompt_encoder_config", &prompts, e) ||
        sam_parse_part(config, "mask_decoder_config", &decoder, e))
        return e->code;
    if (parse_vision(m, &c->vision, vision, e)) return error_prepend(e, "vision_config");
    if (sam_parse_prompts(&c->prompts, prompts, e)) return error_prepend(e, "prompt_encoder_config");
    c->decoder.high = high;
    if (sam_parse_decoder(&c->decoder, decoder, e) || (c->decoder.high && sam_hq_parse(c, decoder, e)))
        return error_prepend(e, "mask_decoder_config");
    return sam_describe(m, c, e);
}

static int parse_sam(struct model *m, const struct value *config, struct error *e)
{
    return parse(m, config, false, e);
}
static int parse_sam_hq(struct model *m, const struct value *config, struct error *e)
{
    return parse(m, config, true, e);
}

static int parse_sam_vision(struct model *m, const struct value *config, struct error *e)
{
    struct sam *c = bump_alloc(&m->memory, sizeof *c);
    *c = (struct sam){0};
    m->config = c;
    TRY(parse_vision(m, &c->vision, config, e));
    model_add_port(m, &(struct port){"pixel_values", VALUES_REAL, 4,
                                     {OPEN('B'), c->vision.channels, OPEN('S'), OPEN('S')},
                                     false});
    model_add_output(m, m->loss_output = "last_hidden_state");
    m->image = c->vision.image;
    return PL_OK;
}

/* --- assembly ------------------------------------------------------------------------------ */

struct sam_build sam_begin(const struct model *m, struct graph *g, const struct batch *batch)
{
    const struct sam *c = m->config;
    struct sam_build b = {.c = c, .g = g, .B = batch->B, .bn_group = model_bn_group(m, batch),
                          .norm = m->masks ? &m->masks->norm : NULL};
    const struct contents *holds = contents_of(batch);
    b.part = holds->part, b.embeddings = holds->embeddings ? holds->embeddings : DT_F32;
    b.prompting = holds->prompts;
    struct prompting *p = &b.prompting;
    if (!p->masks) p->masks = p->points = 1, p->targets = true;
    if (!p->image) p->image = batch->size && batch->size['S'] ? batch->size['S'] : c->vision.image;
    if (!p->loss.focal && !p->loss.dice && !p->loss.iou)
        p->loss = (struct mask_loss_options){.focal = 20, .dice = 1, .iou = 1, .alpha = 0.25f, .gamma = 2, .smooth = 1};
    b.M = p->masks;
    b.side = p->image;
    b.grid = p->image / c->vision.patch;
    if (c->vision.unit && p->image % c->vision.unit)
        graph_fail(g, "pixel_values: images of %lld pixels are not divisible by %lld, the stride of the encoder",
                   (long long)p->image, (long long)c->vision.unit);
    if (!b.grid)
        graph_fail(g, "pixel_values: images of %lld pixels are smaller than a patch of %lld", (long long)b.side,
                   (long long)c->vision.patch);
    return b;
}

/* Returns the input pixels, channels last. */
static id pixels(const struct sam_build *b)
{
    id x = graph_input(b->g, "pixel_values", DT_F32, 4, (int64_t[]){b->B, b->c->vision.channels, b->side, b->side});
    return op_dense(b->g, op_permute(b->g, x, (int[]){0, 2, 3, 1}));
}

id sam_normalised(const struct sam_build *b, id bytes, id valid)
{
    float mean[3], std[3];
    for (int k = 0; k < 3; k++) { /* the op's mean and std are for values from 0 to 255 */
        mean[k] = (float)(b->norm->mean[k] / b->norm->scale);
        std[k] = (float)(b->norm->std[k] / b->norm->scale);
    }
    return op_image(b->g, bytes, valid, mean, std);
}

id sam_images(const struct sam_build *b)
{
    id x = graph_input(b->g, "images", DT_U8, 4, (int64_t[]){b->B, b->side, b->side, 3});
    id valid = graph_input(b->g, "image_valid", DT_I32, 2, (int64_t[]){b->B, 2});
    return sam_normalised(b, x, valid);
}

/* Returns the channels of an embedding that has all that the decoder reads of an image: cell by
 * cell, those of the coarse level, and for SAM 2 those of the 2 x 2 pixels of the next and of the
 * 4 x 4 pixels of the finest one, for SAM-HQ those of an early block. */
static int64_t embedding_channels(const struct sam *c)
{
    return (c->hiera ? 4 : 1) * c->vision.output + (c->decoder.high ? c->vision.hidden : 0);
}

/* Joins the levels of an image to [B,grid,grid,channels]. */
static id join_levels(const struct sam_build *b, struct sam_image x)
{
    struct graph *g = b->g;
    const int64_t C = b->c->vision.output, n = b->grid;
    if (x.coarse && x.early) return op_concat(g, (id[]){x.coarse, x.early}, 2, 3);
    if (!x.coarse || !x.fine[0]) return x.coarse;
    id finer = op_reshape(g, op_window(g, x.fine[1], 2), 4, (int64_t[]){b->B, n, n, C});
    id finest = op_reshape(g, op_window(g, x.fine[0], 4), 4, (int64_t[]){b->B, n, n, 2 * C});
    return op_concat(g, (id[]){x.coarse, finer, finest}, 3, 3);
}

/* Returns the pixels, `size` x `size` of them in each cell, of `count` channels from `first` on. */
static id split_level(const struct sam_build *b, id x, int64_t first, int64_t count, int64_t size)
{
    struct graph *g = b->g;
    x = op_reshape(g, op_slice(g, x, 3, first, count), 4,
                   (int64_t[]){b->B * b->grid * b->grid, size, size, count / (size * size)});
    return op_unwindow(g, x, size * b->grid, size * b->grid);
}

/* Returns an image embedding computed before, in the layout of output_map. */
static struct sam_image embedding(const struct sam_build *b)
{
    const int64_t C = b->c->vision.output, channels = embedding_channels(b->c);
    id x = graph_input(b->g, "image_embeddings", b->embeddings, 4, (int64_t[]){b->B, channels, b->grid, b->grid});
    x = op_dense(b->g, op_permute(b->g, x, (int[]){0, 2, 3, 1}));
    if (b->embeddings != DT_F32) x = op_cast(b->g, x, DT_NONE);
    if (channels == C) return (struct sam_image){.coarse = x};
    if (b->c->decoder.high)
        return (struct sam_image){.coarse = op_dense(b->g, op_slice(b->g, x, 3, 0, C)),
                                  .early = op_dense(b->g, op_slice(b->g, x, 3, C, channels - C))};
    return (struct sam_image){op_dense(b->g, op_slice(b->g, x, 3, 0, C)),
                              {split_level(b, x, 2 * C, 2 * C, 4), split_level(b, x, C, C, 2)}, 0};
}

/* Emits a map as an output, channels first, as transformers does. */
static void output_map(const struct model *m, struct graph *g, const struct batch *batch, const char *name, id x)
{
    const char *of = batch->loss_output ? batch->loss_output : m->loss_output;
    if (!batch->outputs && strcmp(of, name)) return;
    model_output(m, g, batch, name, op_dense(g, op_permute(g, x, (int[]){0, 3, 1, 2})));
}

/* Emits the loss of all masks of the batch, from targets as bits and their valid areas. */
static void emit_loss(const struct sam_build *b, const struct sam_masks *out)
{
    struct graph *g = b->g;
    const int64_t N = b->B * b->M, h = 4 * b->grid, row = mask_row_bytes(h);
    id bits = graph_input(g, "gt_masks", DT_U8, 4, (int64_t[]){b->B, b->M, h, row});
    id valid = graph_input(g, "gt_valid", DT_I32, 3, (int64_t[]){b->B, b->M, 2});
    IN_SCOPE(g, "loss", SCOPE_PASS) {
        bits = op_reshape(g, bits, 3, (int64_t[]){N, h, row});
        valid = op_reshape(g, valid, 2, (int64_t[]){N, 2});
        const struct sam_losses l = sam_loss(b, out, bits, valid);
        graph_output(g, "loss", l.scores ? op_add(g, l.masks, l.scores) : l.masks);
    }
}

/* Emits the image's embedding as outputs: of an encoder by itself one, else each level. */
static void output_image(const struct model *m, const struct sam_build *b, const struct batch *batch,
                         struct sam_image x)
{
    struct graph *g = b->g;
    if ((b->c->hiera || b->c->decoder.high) && b->part == PART_IMAGE) {
        id all = op_dense(g, op_permute(g, join_levels(b, x), (int[]){0, 3, 1, 2}));
        graph_output(g, "image_embeddings", all);
    } else if (b->c->hiera) {
        output_map(m, g, batch, "image_embeddings.0", x.fine[0]);
        output_map(m, g, batch, "image_embeddings.1", x.fine[1]);
        output_map(m, g, batch, "image_embeddings.2", x.coarse);
    } else {
        output_map(m, g, batch, "image_embeddings", x.coarse);
    }
}

static void forward(const struct model *m, struct graph *g, const struct batch *given)
{
    struct sam_build b = sam_begin(m, g, given);
    struct batch batch = *given;
    if (g->error.code) return;
    if (b.prompting.targets) batch.loss_output = ""; /* no output: the masks have their own loss */
    const struct sam_image image = b.part == PART_REST
                                       ? embedding(&b)
                                       : b.c->encode(&b, b.prompting.rounds ? sam_images(&b) : pixels(&b));
    if (b.part == PART_IMAGE || (b.part == PART_ALL && !b.prompting.rounds))
        output_image(m, &b, &batch, image);
    if (b.part == PART_IMAGE) return;
    if (b.prompting.rounds) {
        sam_rounds(&b, image);
        if (!g->error.code) graph_param_of(g, sam_frequencies(&b))->frozen = true;
        return;
    }
    struct sam_encoded p = sam_prompt(&b, sam_positions(&b));
    struct sam_masks out = sam_decode(&b, image, &p);
    if (g->error.code) return;
    graph_param_of(g, sam_frequencies(&b))->frozen = b.c->tiny || b.c->hiera || !batch.outputs;
    const struct tensor t = *tensor_at(g, out.logits);
    if (out.object)
        model_output(m, g, &batch, "object_score_logits", op_reshape(g, out.object, 3, (int64_t[]){b.B, b.M, 1}));
    model_output(m, g, &batch, "iou_scores", op_reshape(g, out.iou, 3, (int64_t[]){b.B, b.M, t.dim[1]}));
    model_output(m, g, &batch, "pred_masks",
                 op_reshape(g, out.logits, 5, (int64_t[]){b.B, b.M, t.dim[1], t.dim[2], t.dim[3]}));
    if (b.prompting.targets) emit_loss(&b, &out);
}

/* Emits the forward. TinySAM's weights are published with the names of the original SAM code. */
void sam_forward(const struct model *m, struct graph *g, const struct batch *given)
{
    const struct sam *c = m->config;
    g->rename = c->tiny ? sam_original_name : NULL;
    forward(m, g, given);
    g->rename = NULL;
}

static void build_sam_vision(const struct model *m, struct graph *g, const struct batch *batch)
{
    struct sam_build b = sam_begin(m, g, batch);
    if (!g->error.code) output_map(m, g, batch, "last_hidden_state", sam_encode(&b, pixels(&b)).coarse);
}

const struct family sam_family = {"sam", parse_sam, sam_forward, "", false, sam_read_folder};
const struct family sam_hq_family = {"sam_hq", parse_sam_hq, sam_forward, "", false, sam_read_folder};
const struct family sam_vision_family = {"sam_vision_model", parse_sam_vision, build_sam_vision, "vision_encoder.",
                                         true};
