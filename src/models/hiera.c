/*
 * hiera.c: SAM 2: the image encoder Hiera with the prompt encoder and the mask decoder of Segment
 * Anything. Its configuration.
 *
 * SAM 2 on an image is a Segment Anything with another encoder, which has three levels, and with a
 * decoder that uses the finer two and predicts whether there is an object (sam_decoder.c). Folders
 * are those of transformers' Sam2Model.
 */
#include <math.h>

#include "graph/emit.h"
#include "models/layers.h"
#include "models/sam.h"

enum { STAGES = 4, POOL = 2, LEVELS = 3, BLOCKS_MOST = 4096 };

struct hiera_stage {
    int64_t blocks, width, heads, window;
};

struct hiera {
    struct hiera_stage stage[STAGES];
    int64_t kernel, stride, pad;   /* of the patch convolution */
    int64_t background[2];         /* size of the position table that is interpolated */
    double mlp_ratio, eps;
    enum act_kind act;
    bool *global;                  /* by block: attention over the whole map */
    bool top_down[STAGES];         /* by level: the next coarser level is added */
};

/* ---- Hiera ----
 *
 *     x = conv 7x7 s4(pixels) + positions
 *     each block:  n = layernorm(x)
 *                  x = x + proj(attention(windows of n))
 *                  x = x + mlp(layernorm(x))
 *     first block of stages 1 to 3: queries are max-pooled 2 x 2 within their window, and x on the
 *                  left of the sum is pooled(linear(n)): half the side, more channels
 *
 *     stage   0         1         2         3
 *     side    S/4       S/8       S/16      S/32
 *     level   0         1         2  <------+     conv 1x1 of each stage's last x; level 3, doubled
 *             |         |         |               by repeating pixels, is added to level 2
 *             conv_s0   conv_s1   + no_memory_embedding
 *
 * The first block of a stage has the windows of the stage before, whose halves are the windows of
 * its result. A map that is not divisible into windows is padded with zeros after the norm, and the
 * padding takes part in the attention, as in sam.c. Positions are a small table interpolated
 * bicubically over the map, plus a table of one window repeated over it.
 */

#define ROOT "vision_encoder.backbone."
#define NECK "vision_encoder.neck."

/* Returns what is left of bicubic interpolation of n positions to `size` ones as a matrix [size,n],
 * with PyTorch's coefficient -0.75 and its borders, which repeat. */
static id bicubic(struct graph *g, int64_t size, int64_t n)
{
    const double A = -0.75;
    char name[64];
    snprintf(name, sizeof name, "bicubic.%lldx%lld", (long long)size, (long long)n);
    float *matrix = mem_alloc((size_t)(size * n) * sizeof *matrix);
    memset(matrix, 0, (size_t)(size * n) * sizeof *matrix);
    for (int64_t i = 0; i < size; i++) {
        const double x = ((double)i + 0.5) * (double)n / (double)size - 0.5, t = x - floor(x);
        for (int k = -1; k <= 2; k++) {
            const double d = fabs(t - k);
            const double w = d <= 1 ? ((A + 2) * d - (A + 3)) * d * d + 1 : ((A * d - 5 * A) * d + 8 * A) * d - 4 * A;
            const int64_t at = min_i64(max_i64((int64_t)floor(x) + k, 0), n - 1);
            matrix[i * n + at] += (float)w;
        }
    }
    id x = graph_const(g, name, DT_F32, 2, (int64_t[]){size, n}, matrix);
    mem_free(matrix);
    return x;
}

/* Interpolates table [1,C,h,w] to [1,size,size,C], in f32. */
static id interpolate(struct graph *g, id table, int64_t size)
{
    const struct tensor t = *tensor_at(g, table);
    const int64_t C = t.dim[1], h = t.dim[2], w = t.dim[3];
    id x = op_dense(g, op_permute(g, op_cast(g, table, DT_F32), (int[]){0, 3, 2, 1})); /* [1,w,h,C] */
    x = op_reshape(g, x, 2, (int64_t[]){w, h * C});
    x = op_matmul(g, bicubic(g, size, w), x, false, false, DT_F32);
    x = op_dense(g, op_permute(g, op_reshape(g, x, 3, (int64_t[]){size, h, C}), (int[]){1, 0, 2}));
    x = op_reshape(g, x, 2, (int64_t[]){h, size * C});
    x = op_matmul(g, bicubic(g, size, h), x, false, false, DT_F32);
    return op_reshape(g, x, 4, (int64_t[]){1, size, size, C});
}

/* Returns the positions of a map, [1,side,side,C]. */
static id positions(const struct sam_build *b, int64_t side)
{
    const struct hiera *c = b->c->hiera;
    struct graph *g = b->g;
    const int64_t C = c->stage[0].width, window = c->stage[0].window, n = side / window;
    id table = layer_param(g, ROOT, "pos_embed", 4, (int64_t[]){1, C, c->background[0], c->background[1]}, 0.02);
    id own = layer_param(g, ROOT, "pos_embed_window", 4, (int64_t[]){1, C, window, window}, 0.02);
    if (!table || !own) return 0;
    id x = op_reshape(g, interpolate(g, table, side), 5, (int64_t[]){n, window, n, window, C});
    own = op_dense(g, op_permute(g, op_cast(g, own, DT_F32), (int[]){0, 2, 3, 1}));
    x = op_add(g, x, op_reshape(g, own, 5, (int64_t[]){1, window, 1, window, C}));
    return op_cast(g, op_reshape(g, x, 4, (int64_t[]){1, side, side, C}), DT_NONE);
}

static id embed(const struct sam_build *b, id pixels)
{
    const struct hiera *c = b->c->hiera;
    struct graph *g = b->g;
    id x = 0;
    IN_SCOPE(g, ROOT "patch_embed", 0) {
        x = layer_conv(g, pixels, ROOT "patch_embed.", "projection", c->stage[0].width,
                       (struct kernel_shape){(int)c->kernel, (int)c->stride, (int)c->pad, true});
        x = op_add(g, x, positions(b, b->side / c->stride));
    }
    return x;
}

/* A block: its widths, its window, 0: the whole map, and whether it halves the map. */
struct block {
    int64_t in, out, heads, window;
    bool pools;
};

static id pooled(struct graph *g, const struct block *k, id x) { return k->pools ? op_maxpool(g, x, POOL) : x; }

/* Computes attention within each of x [n,h,w,C]. With pooled queries the result has half their
 * side. */
static id attend(const struct sam_build *b, id x, const char *prefix, const struct block *k)
{
    struct graph *g = b->g;
    if (!x) return 0;
    const struct tensor t = *tensor_at(g, x);
    const int64_t n = t.dim[0], h = t.dim[1], w = t.dim[2], D = k->out / k->heads, s = k->pools ? POOL : 1;
    id qkv = op_reshape(g, layer_linear(g, x, prefix, "attn.qkv", 3 * k->out), 4,
                        (int64_t[]){n, h * w, 3 * k->heads, D});
    id q = op_slice(g, qkv, 2, 0, k->heads);
    id keys = op_slice(g, qkv, 2, k->heads, k->heads), values = op_slice(g, qkv, 2, 2 * k->heads, k->heads);
    if (k->pools) {
        q = pooled(g, k, op_reshape(g, q, 4, (int64_t[]){n, h, w, k->out}));
        q = op_reshape(g, q, 4, (int64_t[]){n, h / s * (w / s), k->heads, D});
    }
    id o = op_attention(g, q, keys, values, (float)(1 / sqrt((double)D)), false);
    return op_reshape(g, o, 4, (int64_t[]){n, h / s, w / s, k->out});
}

static id attention(const struct sam_build *b, id x, const char *prefix, const struct block *k)
{
    struct graph *g = b->g;
    if (!x) return 0;
    const int64_t side = tensor_at(g, x)->dim[1] / (k->pools ? POOL : 1);
    id o = k->window ? attend(b, op_window(g, x, (int)k->window), prefix, k) : attend(b, x, prefix, k);
    o = layer_linear(g, o, prefix, "attn.proj", k->out);
    return k->window && o ? op_unwindow(g, o, side, side) : o;
}

static id block_layers(const struct sam_build *b, id x, const char *prefix, const struct block *k)
{
    const struct hiera *c = b->c->hiera;
    struct graph *g = b->g;
    IN_SCOPE(g, "attn", 0) {
        id n = layer_norm(g, x, prefix, "layer_norm1", c->eps);
        if (k->in != k->out) x = pooled(g, k, layer_linear(g, n, prefix, "proj", k->out));
        x = op_add(g, x, attention(b, n, prefix, k));
    }
    IN_SCOPE(g, "mlp", 0) {
        id n = layer_norm(g, x, prefix, "layer_norm2", c->eps);
        n = layer_linear(g, n, prefix, "mlp.proj_in", (int64_t)((double)k->out * c->mlp_ratio));
        x = op_add(g, x, layer_linear(g, op_act(g, n, c->act), prefix, "mlp.proj_out", k->out));
    }
    return x;
}

static int64_t count_blocks(const struct hiera *c)
{
    int64_t n = 0;
    for (int i = 0; i < STAGES; i++) n += c->stage[i].blocks;
    return n;
}

/* Computes the last map of each stage. */
static void run_stages(const struct sam_build *b, id x, id maps[STAGES])
{
    const struct hiera *c = b->c->hiera;
    int stage = 0;
    int64_t first = 0; /* block of the stage */
    FOR_LAYERS(layer, b->g, ROOT "blocks", count_blocks(c)) {
        if (layer.i == first + c->stage[stage].blocks) maps[stage] = x, first = layer.i, stage++;
        const struct hiera_stage *s = &c->stage[stage], *before = stage && layer.i == first ? s - 1 : s;
        x = block_layers(b, x, layer.prefix,
                         &(struct block){before->width, s->width, s->heads, c->global[layer.i] ? 0 : before->window,
                                         before != s});
    }
    maps[stage] = x;
}

/* Adds a coarser map [B,h,w,C] to x [B,2h,2w,C]: each of its pixels to four. */
static id add_coarser(struct graph *g, id x, id coarser)
{
    if (!x || !coarser) return 0;
    const struct tensor t = *tensor_at(g, coarser), whole = *tensor_at(g, x);
    const int64_t B = t.dim[0], h = t.dim[1], w = t.dim[2], C = t.dim[3];
    x = op_reshape(g, x, 6, (int64_t[]){B, h, POOL, w, POOL, C});
    coarser = op_reshape(g, coarser, 6, (int64_t[]){B, h, 1, w, 1, C});
    return op_reshape(g, op_add(g, x, coarser), 4, whole.dim);
}

id sam_no_memory(const struct sam_build *b, id maps)
{
    const int64_t C = b->c->vision.output;
    id none = layer_param(b->g, "", "no_memory_embedding", 3, (int64_t[]){1, 1, C}, 0.02);
    return op_add(b->g, maps, op_reshape(b->g, none, 4, (int64_t[]){1, 1, 1, C}));
}

static struct sam_image hiera_encode(const struct sam_build *b, id pixels)
{
    const struct hiera *c = b->c->hiera;
    struct graph *g = b->g;
    const int64_t C = b->c->vision.output;
    const struct kernel_shape one = {1, 1, 0, true};
    id maps[STAGES], level[STAGES] = {0};
    struct sam_image out = {0};
    run_stages(b, embed(b, pixels), maps);
    IN_SCOPE(g, NECK, 0)
        for (int i = STAGES - 1; i >= 0; i--) {
            char name[16];
            snprintf(name, sizeof name, "convs.%d", STAGES - 1 - i);
            level[i] = layer_conv(g, maps[i], NECK, name, C, one);
            if (c->top_down[i] && i + 1 < STAGES) level[i] = add_coarser(g, level[i], level[i + 1]);
        }
    IN_SCOPE(g, "mask_decoder", 0) {
        out.fine[0] = layer_conv(g, level[0], "mask_decoder.", "conv_s0", C / 8, one);
        out.fine[1] = layer_conv(g, level[1], "mask_decoder.", "conv_s1", C / 4, one);
    }
    out.coarse = b->frames ? level[LEVELS - 1] : sam_no_memory(b, level[LEVELS - 1]);
    return out;
}

/* --- configuration ------------------------------------------------------------------------- */

/* Parses a size that may be given as one number or as two equal ones. */
static int parse_square(const struct value *map, const char *key, int64_t most, int64_t *to, struct error *e)
{
    const struct value *v = value_get(map, key);
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    int64_t pair[2] = {0};
    const bool list = v->kind == VALUE_LIST;
    if (list && v->count != 2) return error_set(e, PL_USAGE, "%s has %u numbers, expected 2", key, v->count);
    for (uint32_t i = 0; i < 2; i++) TRY(value_as_int(list ? value_at(v, i) : v, key, &pair[i], e));
    if (pair[0] != pair[1])
        return error_set(e, PL_USAGE, "%s is %lld x %lld; only squares are supported", key, (long long)pair[0],
                         (long long)pair[1]);
    if (pair[0] < 0 || pair[0] > most)
        return error_set(e, PL_USAGE, "%s is %lld, it must lie between 0 and %lld", key, (long long)pair[0],
                         (long long)most);
    *to = pair[0];
    return PL_OK;
}

/* Parses a list with one number per stage. */
static int parse_stages(struct hiera *c, const struct value *map, const char *key, size_t offset, int64_t most,
                        struct error *e)
{
    const struct value *list = value_get(map, key);
    if (!list || list->kind == VALUE_NULL) return PL_OK;
    TRY(value_as_list(list, key, e));
    if (list->count != STAGES)
        return error_set(e, PL_USAGE, "%s has %u numbers, expected one for each of %d stages", key, list->count,
                         STAGES);
    for (uint32_t i = 0; i < STAGES; i++) {
        int64_t *to = (int64_t *)(void *)((char *)&c->stage[i] + offset);
        TRY(value_as_int(value_at(list, i), key, to, e));
        if (*to < 1 || *to > most)
            return error_set(e, PL_USAGE, "%s[%u] is %lld, it must lie between 1 and %lld", key, i, (long long)*to,
                             (long long)most);
    }
    return PL_OK;
}

/* Parses a list of indices below n into flags; one beyond is ignored, as in the reference. */
static int parse_flags(const struct value *map, const char *key, bool *flags, int64_t n, struct error *e)
{
    const struct value *list = value_get(map, key);
    if (!list || list->kind == VALUE_NULL) return PL_OK;
    TRY(value_as_list(list, key, e));
    memset(flags, 0, (size_t)n * sizeof *flags);
    for (uint32_t i = 0; i < list->count; i++) {
        int64_t k;
        TRY(value_as_int(value_at(list, i), key, &k, e));
        if (k >= 0 && k < n) flags[k] = true;
    }
    return PL_OK;
}

/* Parses the map of the encoder without its neck. */
static int parse_backbone(struct model *m, struct hiera *c, struct sam_vision *v, const struct value *map,
                          struct error *e)
{
    int64_t pool = POOL, pools = STAGES - 1;
    const struct value *background = value_get(map, "window_positional_embedding_background_size");
    TRY(layer_parse_sizes(map, (struct size_key[]){{"num_channels", &v->channels, 1, 1 << 12},
                                                   {"num_query_pool_stages", &pools, 0, STAGES}}, 2, e));
    TRY(parse_square(map, "image_size", 1 << 14, &v->image, e));
    TRY(parse_square(map, "patch_kernel_size", 1 << 10, &c->kernel, e));
    TRY(parse_square(map, "patch_stride", 1 << 10, &c->stride, e));
    TRY(parse_square(map, "patch_padding", 1 << 10, &c->pad, e));
    TRY(parse_square(map, "query_stride", 1 << 10, &pool, e));
    TRY(parse_stages(c, map, "blocks_per_stage", offsetof(struct hiera_stage, blocks), BLOCKS_MOST / STAGES, e));
    TRY(parse_stages(c, map, "embed_dim_per_stage", offsetof(struct hiera_stage, width), 1 << 16, e));
    TRY(parse_stages(c, map, "num_attention_heads_per_stage", offsetof(struct hiera_stage, heads), 1 << 14, e));
    TRY(parse_stages(c, map, "window_size_per_stage", offsetof(struct hiera_stage, window), 1 << 10, e));
    TRY(value_opt_number(map, "mlp_ratio", &c->mlp_ratio, e));
    TRY(value_opt_number(map, "layer_norm_eps", &c->eps, e));
    TRY(layer_parse_act(map, &c->act, e));
    for (uint32_t i = 0; background && background->kind == VALUE_LIST && i < 2; i++) {
        if (background->count != 2)
            return error_set(e, PL_USAGE, "window_positional_embedding_background_size has %u numbers, expected 2",
                             background->count);
        TRY(value_as_int(value_at(background, i), "window_positional_embedding_background_size", &c->background[i], e));
    }
    if (pool != POOL || pools != STAGES - 1)
        return error_set(e, PL_USAGE,
                         "query_stride %lld and num_query_pool_stages %lld: expected %d and %d, as all published "
                         "models have", (long long)pool, (long long)pools, POOL, STAGES - 1);
    c->global = bump_alloc(&m->memory, (size_t)count_blocks(c) * sizeof *c->global);
    memset(c->global, 0, (size_t)count_blocks(c) * sizeof *c->global);
    for (int64_t k = 5; k < min_i64(10, count_blocks(c)); k += 2) c->global[k] = true;
    return parse_flags(map, "global_attention_blocks", c->global, count_blocks(c), e);
}

/* Returns what sides of images are multiples of: every stage halves the map, and the first one is
 * divided into windows, whose table of positions is repeated. */
static int64_t unit_of(const struct hiera *c)
{
    int64_t n = 1 << (STAGES - 1);
    while (n % c->stage[0].window) n += 1 << (STAGES - 1);
    return n * c->stride;
}

/* Refuses attention over the whole map in the first block of a later stage, which the reference
 * cannot compute. */
static int check_global(const struct hiera *c, struct error *e)
{
    int64_t first = 0;
    for (int i = 0; i + 1 < STAGES; i++) {
        first += c->stage[i].blocks;
        if (c->global[first])
            return error_set(e, PL_USAGE,
                             "global_attention_blocks has %lld, the first block of a stage, which pools its queries "
                             "within windows", (long long)first);
    }
    return PL_OK;
}

static int check_backbone(const struct hiera *c, const struct sam_vision *v, struct error *e)
{
    if (c->stride < 1 || c->kernel < 1 || (v->image + 2 * c->pad - c->kernel) / c->stride + 1 != v->image / c->stride)
        return error_set(e, PL_USAGE,
                         "patch_kernel_size %lld, patch_stride %lld, patch_padding %lld: expected a map of image_size "
                         "/ patch_stride", (long long)c->kernel, (long long)c->stride, (long long)c->pad);
    if (!(c->mlp_ratio > 0 && c->mlp_ratio < 1024))
        return error_set(e, PL_USAGE, "mlp_ratio is %g, it must lie between 0 and 1024", c->mlp_ratio);
    if (!(c->eps > 0)) return error_set(e, PL_USAGE, "layer_norm_eps is %g, it must be above 0", c->eps);
    for (int i = 0; i < 2; i++)
        if (c->background[i] < 1 || c->background[i] > 1 << 10)
            return error_set(e, PL_USAGE,
                             "window_positional_embedding_background_size[%d] is %lld, it must lie between 1 and 1024",
                             i, (long long)c->background[i]);
    for (int i = 0; i < STAGES; i++) {
        const struct hiera_stage *s = &c->stage[i];
        if (s->width % s->heads)
            return error_set(e, PL_USAGE,
                             "embed_dim_per_stage[%d] %lld is not divisible by num_attention_heads_per_stage[%d] %lld",
                             i, (long long)s->width, i, (long long)s->heads);
        if (i + 1 < STAGES && s->window % POOL)
            return error_set(e, PL_USAGE,
                             "window_size_per_stage[%d] is %lld: the first block of the next stage halves it, so that "
                             "it must be even", i, (long long)s->window);
        if (i + 1 < STAGES && s[1].width == s->width)
            return error_set(e, PL_USAGE, "embed_dim_per_stage[%d] and [%d] are both %lld: a stage that halves the map "
                             "must have another width", i, i + 1, (long long)s->width);
    }
    if (v->image % unit_of(c))
        return error_set(e, PL_USAGE, "image_size %lld is not divisible by %lld, the stride of the last stage%s",
                         (long long)v->image, (long long)unit_of(c),
                         unit_of(c) > c->stride << (STAGES - 1) ? " in whole windows" : "");
    return check_global(c, e);
}

/* Checks lists of vision_config that repeat what the encoder's own keys say. */
static int check_lists(const struct hiera *c, const struct sam_vision *v, const struct value *map, struct error *e)
{
    const struct value *channels = value_get(map, "backbone_channel_list"),
                       *sizes = value_get(map, "backbone_feature_sizes");
    for (uint32_t i = 0; channels && channels->kind == VALUE_LIST && i < STAGES; i++) {
        int64_t n = 0;
        if (i < channels->count) TRY(value_as_int(value_at(channels, i), "backbone_channel_list", &n, e));
        if (n != c->stage[STAGES - 1 - i].width || channels->count != STAGES)
            return error_set(e, PL_USAGE,
                             "backbone_channel_list[%u] is %lld, expected the embed_dim_per_stage in reverse order", i,
                             (long long)n);
    }
    for (uint32_t i = 0; sizes && sizes->kind == VALUE_LIST && i < sizes->count; i++) {
        int64_t side = 0;
        const struct value *pair = value_at(sizes, i);
        TRY(value_as_list(pair, "backbone_feature_sizes", e));
        for (uint32_t k = 0; k < pair->count; k++) {
            TRY(value_as_int(value_at(pair, k), "backbone_feature_sizes", &side, e));
            if (side != v->image / c->stride >> i)
                return error_set(e, PL_USAGE,
                                 "backbone_feature_sizes[%u] is %lld; images of %lld pixels have maps of %lld", i,
                                 (long long)side, (long long)v->image, (long long)(v->image / c->stride >> i));
        }
    }
    return PL_OK;
}

static int parse_neck(struct hiera *c, struct sam_vision *v, const struct value *map, struct error *e)
{
    int64_t kernel = 1, stride = 1, pad = 0, levels = LEVELS;
    const struct size_key keys[] = {
        {"fpn_hidden_size", &v->output, 8, 1 << 20}, {"fpn_kernel_size", &kernel, 1, 64},
        {"fpn_stride", &stride, 1, 64},              {"fpn_padding", &pad, 0, 64},
        {"num_feature_levels", &levels, 1, STAGES},
    };
    TRY(layer_parse_sizes(map, keys, COUNT(keys), e));
    if (kernel != 1 || stride != 1 || pad || levels != LEVELS)
        return error_set(e, PL_USAGE,
                         "fpn_kernel_size %lld, fpn_stride %lld, fpn_padding %lld, num_feature_levels %lld: expected "
                         "1, 1, 0 and %d, as all published models have",
                         (long long)kernel, (long long)stride, (long long)pad, (long long)levels, LEVELS);
    return parse_flags(map, "fpn_top_down_levels", c->top_down, STAGES, e);
}

static int parse_vision(struct model *m, struct sam *s, struct hiera *c, const struct value *map, struct error *e)
{
    const struct value *backbone;
    TRY(sam_parse_part(map, "backbone_config", &backbone, e));
    if (parse_backbone(m, c, &s->vision, backbone, e)) return error_prepend(e, "backbone_config");
    TRY(parse_neck(c, &s->vision, map, e));
    if (check_backbone(c, &s->vision, e)) return error_prepend(e, "backbone_config");
    s->vision.patch = c->stride << (LEVELS - 1);
    s->vision.unit = unit_of(c);
    s->vision.features = s->vision.output / 2;
    return check_lists(c, &s->vision, map, e);
}

/* Parses how one mask for a prompt is chosen in inference. */
static int parse_stability(struct sam_decoder *d, const struct value *map, struct error *e)
{
    double delta = 0.05, threshold = 0.98;
    d->stability.on = true;
    TRY(value_opt_bool(map, "dynamic_multimask_via_stability", &d->stability.on, e));
    TRY(value_opt_number(map, "dynamic_multimask_stability_delta", &delta, e));
    TRY(value_opt_number(map, "dynamic_multimask_stability_thresh", &threshold, e));
    d->stability.delta = (float)delta, d->stability.threshold = (float)threshold;
    return PL_OK;
}

static const struct hiera usual = {
    .stage = {{1, 96, 1, 8}, {2, 192, 2, 4}, {7, 384, 4, 14}, {2, 768, 8, 7}},
    .kernel = 7, .stride = 4, .pad = 3, .background = {7, 7}, .mlp_ratio = 4, .eps = 1e-6, .act = ACT_GELU,
    .top_down = {[2] = true, [3] = true},
};

/* The norms of its decoder have PyTorch's epsilon, whatever config.json says. */
static const double DECODER_EPS = 1e-5;

int sam2_parse(struct model *m, const struct value *config, struct error *e)
{
    struct sam *s = bump_alloc(&m->memory, sizeof *s);
    struct hiera *c = bump_alloc(&m->memory, sizeof *c);
    const struct value *vision, *prompts, *decoder;
    *c = usual;
    *s = (struct sam){.hiera = c, .encode = hiera_encode, .prompts = sam_usual_prompts, .decoder = sam_usual_decoder,
                      .vision = {.image = 1024, .channels = 3, .output = 256}};
    m->config = s;
    TRY(sam_parse_part(config, "vision_config", &vision, e));
    TRY(sam_parse_part(config, "prompt_encoder_config", &prompts, e));
    TRY(sam_parse_part(config, "mask_decoder_config", &decoder, e));
    if (parse_vision(m, s, c, vision, e)) return error_prepend(e, "vision_config");
    if (sam_parse_prompts(&s->prompts, prompts, e)) return error_prepend(e, "prompt_encoder_config");
    if (sam_parse_decoder(&s->decoder, decoder, e) || parse_stability(&s->decoder, decoder, e))
        return error_prepend(e, "mask_decoder_config");
    s->prompts.joined = s->prompts.ends = s->decoder.second = true;
    s->decoder.eps = DECODER_EPS;
    s->decoder.act = ACT_RELU; /* its hidden_act is used by no layer of the reference */
    return sam_describe(m, s, e);
}

bool sam2_same(const struct model *a, const struct model *b)
{
    const struct sam *x = a->config, *y = b->config;
    const struct hiera *h = x->hiera, *i = y->hiera;
    bool same = h && i && count_blocks(h) == count_blocks(i) && h->mlp_ratio == i->mlp_ratio && h->eps == i->eps &&
                h->act == i->act && h->stride == i->stride && h->pad == i->pad &&
                x->decoder.heads == y->decoder.heads && !memcmp(h->stage, i->stage, sizeof h->stage) &&
                !memcmp(h->top_down, i->top_down, sizeof h->top_down);
    for (int64_t k = 0; same && k < count_blocks(h); k++) same = h->global[k] == i->global[k];
    return same;
}

const struct family sam2_family = {"sam2", sam2_parse, sam_forward, "", false, sam_read_folder};
