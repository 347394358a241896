/*
 * sam_decoder.c: two-way attention between tokens and the image; then each output token becomes a
 * filter over the image.
 *
 *   tokens = [iou, mask 0..K, prompt]      t0 = the initial tokens, keys = image + dense
 *   each layer:  tokens = norm(tokens + attention(tokens + t0, itself))  first: norm(attention(tokens))
 *                tokens = norm(tokens + attention(tokens + t0, keys + positions))
 *                tokens = norm(tokens + mlp(tokens))
 *                keys   = norm(keys + attention(keys + positions, tokens + t0))
 *   tokens = norm(tokens + attention(tokens + t0, keys + positions))
 *   masks  = filter(mask tokens) . upscale(keys),   iou = mlp(iou token)
 *
 * SAM 2 has an object token before the others, whose MLP gives the logit that there is an object;
 * the finer levels of the image are added between the steps of the upscaling; and the predicted IoU
 * goes through a sigmoid.
 *
 * Rows are prompts. Until the first layer changes them, the keys are the same for all prompts of an
 * image (unless each prompt has a mask), so they have one row per image: keys and values are
 * projected once, and the queries of an image's prompts are concatenated to attend to them. In the
 * other direction the projected queries are repeated.
 */
#include <math.h>

#include "graph/emit.h"
#include "models/layers.h"
#include "models/sam.h"

#define ROOT "mask_decoder."

/* SAM's within a layer, where the configuration's value is for the attention after the layers. In
 * SAM 2 that is the value of the layers too. */
enum { LAYER_DOWNSAMPLE = 2 };
static int64_t layer_downsample(const struct sam_decoder *c) { return c->second ? c->downsample : LAYER_DOWNSAMPLE; }

/* Epsilons of the norm after the layers and of the norm between the upscaling steps. */
static const double FINAL_EPS = 1e-5, UPSCALE_EPS = 1e-6;

static int64_t rows(const struct graph *g, id x) { return tensor_at(g, x)->dim[0]; }
static int64_t length(const struct graph *g, id x) { return tensor_at(g, x)->dim[1]; }

/* Repeats each row of x [R,T,C] n times, consecutively: [R*n,T,C]. */
static id repeat(struct graph *g, id x, int64_t n)
{
    if (!x || n == 1) return x;
    const struct tensor t = *tensor_at(g, x);
    char name[64];
    snprintf(name, sizeof name, "repeat.%lldx%lld", (long long)t.dim[0], (long long)n);
    int32_t *zeros = mem_alloc((size_t)(t.dim[0] * n) * sizeof *zeros); /* index 0, the only row of each, n times */
    id index = graph_const(g, name, DT_I32, 2, (int64_t[]){t.dim[0], n}, zeros);
    mem_free(zeros);
    id flat = op_reshape(g, x, 3, (int64_t[]){t.dim[0], 1, t.dim[1] * t.dim[2]});
    return op_reshape(g, op_gather(g, flat, index), 3, (int64_t[]){t.dim[0] * n, t.dim[1], t.dim[2]});
}

id sam_add_rows(struct graph *g, id a, id b)
{
    if (!a || !b) return 0;
    if (rows(g, a) == rows(g, b) || rows(g, a) == 1 || rows(g, b) == 1) return op_add(g, a, b);
    const bool a_is_shorter = rows(g, a) < rows(g, b);
    id shorter = a_is_shorter ? a : b, longer = a_is_shorter ? b : a;
    const struct tensor f = *tensor_at(g, shorter), m = *tensor_at(g, longer);
    id x = op_reshape(g, shorter, 4, (int64_t[]){f.dim[0], 1, f.dim[1], f.dim[2]});
    id y = op_reshape(g, longer, 4, (int64_t[]){f.dim[0], m.dim[0] / f.dim[0], m.dim[1], m.dim[2]});
    return op_reshape(g, op_add(g, x, y), 3, m.dim);
}

/* --- attention -------------------------------------------------------------------------- */

/* Inputs of an attention: q attends to k and v, each [rows,length,C] and not yet projected. */
struct attention_inputs {
    id q, k, v;
    id mask;            /* f32 [rows of k,length of k]; 0: none */
    int64_t downsample; /* factor by which the inner width is reduced */
};

static id attend(const struct sam_build *b, const char *layer, const char *name, struct attention_inputs l)
{
    const struct sam_decoder *c = &b->c->decoder;
    struct graph *g = b->g;
    const int64_t inner = c->hidden / l.downsample, D = inner / c->heads;
    char prefix[112];
    snprintf(prefix, sizeof prefix, "%s%s.", layer, name);
    id q = layer_linear(g, l.q, prefix, "q_proj", inner);
    id k = layer_linear(g, l.k, prefix, "k_proj", inner);
    id v = layer_linear(g, l.v, prefix, "v_proj", inner);
    if (!q || !k || !v) return 0;
    if (rows(g, q) < rows(g, k)) q = op_repeat(g, q, k);
    const int64_t R = rows(g, q), T = length(g, q), shared = R / rows(g, k);
    q = op_reshape(g, q, 4, (int64_t[]){R / shared, shared * T, c->heads, D});
    k = op_reshape(g, k, 4, (int64_t[]){R / shared, length(g, k), c->heads, D});
    v = op_reshape(g, v, 4, (int64_t[]){R / shared, length(g, v), c->heads, D});
    id o = op_attention_with(g, q, k, v, l.mask, (struct attention_options){.scale = (float)(1 / sqrt((double)D))});
    return layer_linear(g, op_reshape(g, o, 3, (int64_t[]){R, T, inner}), prefix, c->second ? "o_proj" : "out_proj",
                        c->hidden);
}

id sam_mlp(struct graph *g, id x, const char *prefix, int64_t hidden, int64_t out, int64_t layers)
{
    char name[32];
    x = op_act(g, layer_linear(g, x, prefix, "proj_in", hidden), ACT_RELU);
    for (int64_t i = 0; i < layers - 2; i++) {
        snprintf(name, sizeof name, "layers.%lld", (long long)i);
        x = op_act(g, layer_linear(g, x, prefix, name, hidden), ACT_RELU);
    }
    return layer_linear(g, x, prefix, "proj_out", out);
}

/* --- the transformer ---------------------------------------------------------------------- */

struct two_way {
    id tokens, keys;
    id first, positions;   /* added to tokens and keys wherever they are queries or keys */
    id mask;            /* mask of the tokens as keys */
};

static void look_at_itself(const struct sam_build *b, const char *layer, struct two_way *t, bool first)
{
    struct graph *g = b->g;
    id x = first ? t->tokens : op_add(g, t->tokens, t->first);
    id o = attend(b, layer, "self_attn",
                  (struct attention_inputs){.q = x, .k = x, .v = t->tokens, .mask = t->mask, .downsample = 1});
    t->tokens = layer_norm(g, first ? o : op_add(g, t->tokens, o), layer, "layer_norm1", b->c->decoder.eps);
}

static id look_at_image(const struct sam_build *b, const char *layer, const char *name, const struct two_way *t,
                        int64_t downsample)
{
    struct graph *g = b->g;
    id q = op_add(g, t->tokens, t->first), k = op_add(g, t->keys, t->positions);
    return attend(b, layer, name, (struct attention_inputs){.q = q, .k = k, .v = t->keys, .downsample = downsample});
}

/* Returns the MLP of a layer. In SAM 2 it is as deep as there are layers. */
static id layer_mlp(const struct sam_build *b, id x, const char *layer)
{
    const struct sam_decoder *c = &b->c->decoder;
    struct graph *g = b->g;
    char prefix[112];
    snprintf(prefix, sizeof prefix, "%smlp.", layer);
    if (c->second) return sam_mlp(g, x, prefix, c->inner, c->hidden, c->layers);
    return layer_linear(g, op_act(g, layer_linear(g, x, prefix, "lin1", c->inner), c->act), prefix, "lin2", c->hidden);
}

static void decoder_layer(const struct sam_build *b, struct two_way *t, const struct layer *at)
{
    const struct sam_decoder *c = &b->c->decoder;
    struct graph *g = b->g;
    const char *layer = at->prefix;
    IN_SCOPE(g, "self_attn", 0) look_at_itself(b, layer, t, at->i == 0);
    IN_SCOPE(g, "cross_attn_token_to_image", 0) {
        id o = look_at_image(b, layer, "cross_attn_token_to_image", t, layer_downsample(c));
        t->tokens = layer_norm(g, op_add(g, t->tokens, o), layer, "layer_norm2", c->eps);
    }
    IN_SCOPE(g, "mlp", 0) {
        id o = layer_mlp(b, t->tokens, layer);
        t->tokens = layer_norm(g, op_add(g, t->tokens, o), layer, "layer_norm3", c->eps);
    }
    IN_SCOPE(g, "cross_attn_image_to_token", 0) {
        id k = op_add(g, t->tokens, t->first), q = op_add(g, t->keys, t->positions);
        id o = attend(b, layer, "cross_attn_image_to_token",
                      (struct attention_inputs){q, k, t->tokens, t->mask, layer_downsample(c)});
        t->keys = layer_norm(g, sam_add_rows(g, t->keys, o), layer, "layer_norm4", c->eps);
    }
}

static void transform(const struct sam_build *b, struct two_way *t)
{
    struct graph *g = b->g;
    FOR_LAYERS(layer, g, ROOT "transformer.layers", b->c->decoder.layers) decoder_layer(b, t, &layer);
    IN_SCOPE(g, ROOT "transformer", 0) {
        id o = look_at_image(b, ROOT "transformer.", "final_attn_token_to_image", t, b->c->decoder.downsample);
        t->tokens = layer_norm(g, op_add(g, t->tokens, o), ROOT "transformer.", "layer_norm_final_attn", FINAL_EPS);
    }
}

/* --- before and after the transformer -------------------------------------------------------- */

/* Returns the tokens before the mask tokens: of the IoU, and before it in SAM 2 of the object. The
 * token of SAM-HQ follows them. */
static int64_t tokens_before(const struct sam_decoder *c) { return c->second ? 2 : 1; }
static int64_t output_tokens(const struct sam_decoder *c) { return tokens_before(c) + c->candidates + 1 + c->high; }

/* Puts the output tokens before the prompt's: [B*M,n,C]. */
static id begin_tokens(const struct sam_build *b, id prompt)
{
    struct graph *g = b->g;
    const struct sam_decoder *c = &b->c->decoder;
    const int64_t C = c->hidden, n = output_tokens(c);
    id part[4];
    int parts = 0;
    if (c->second) part[parts++] = layer_param(g, ROOT, "obj_score_token.weight", 2, (int64_t[]){1, C}, 1);
    part[parts++] = layer_param(g, ROOT, "iou_token.weight", 2, (int64_t[]){1, C}, 1);
    part[parts++] = layer_param(g, ROOT, "mask_tokens.weight", 2, (int64_t[]){c->candidates + 1, C}, 1);
    if (c->high) part[parts++] = layer_param(g, ROOT, "hq_token.weight", 2, (int64_t[]){1, C}, 1);
    id x = op_concat(g, part, parts, 0);
    if (!prompt) return repeat(g, op_reshape(g, x, 3, (int64_t[]){1, n, C}), b->B * b->M);
    x = op_pad(g, x, (int64_t[]){0, 0}, (int64_t[]){length(g, prompt), 0});
    return op_add(g, op_pad(g, prompt, (int64_t[]){0, n, 0}, (int64_t[]){0, 0, 0}), x);
}

/* Returns token i of each row, [rows,C]. */
static id token(struct graph *g, id tokens, int64_t i)
{
    if (!tokens) return 0;
    const struct tensor t = *tensor_at(g, tokens);
    return op_reshape(g, op_slice(g, tokens, 1, i, 1), 2, (int64_t[]){t.dim[0], t.dim[2]});
}

/* Returns the filters of masks first .. first + count - 1, [rows,count,C/8]. For the other masks
 * only the weights are declared: their filters are not computed. */
static id mask_filters(const struct sam_build *b, id tokens, int64_t first, int64_t count)
{
    const struct sam_decoder *c = &b->c->decoder;
    struct graph *g = b->g;
    if (!tokens) return 0;
    id *each = mem_alloc((size_t)(c->candidates + 1) * sizeof *each);
    for (int64_t i = 0; i <= c->candidates; i++) {
        char prefix[80];
        snprintf(prefix, sizeof prefix, ROOT "output_hypernetworks_mlps.%lld.", (long long)i);
        id x = sam_mlp(g, token(g, tokens, tokens_before(c) + i), prefix, c->hidden, c->hidden / 8, 3);
        each[i] = op_reshape(g, x, 3, (int64_t[]){rows(g, tokens), 1, c->hidden / 8});
    }
    id joined = count > 1 ? op_concat(g, each + first, (int)count, 1) : each[first];
    mem_free(each);
    return joined;
}

/* Adds a map of each image [B,h,w,c] to maps of prompts [rows,h,w,c]; 0: there is none. */
static id add_map(struct graph *g, id maps, id of_image)
{
    if (!maps || !of_image) return maps;
    const struct tensor m = *tensor_at(g, maps), f = *tensor_at(g, of_image);
    maps = op_reshape(g, maps, 3, (int64_t[]){m.dim[0], m.dim[1] * m.dim[2], m.dim[3]});
    of_image = op_reshape(g, of_image, 3, (int64_t[]){f.dim[0], f.dim[1] * f.dim[2], f.dim[3]});
    return op_reshape(g, sam_add_rows(g, maps, of_image), 4, m.dim);
}

/* Upscales by four in each direction, to an eighth of the channels. */
static id upscale(const struct sam_build *b, id keys, const id fine[2])
{
    const int64_t C = b->c->decoder.hidden;
    struct graph *g = b->g;
    if (!keys) return 0;
    id x = op_reshape(g, keys, 4, (int64_t[]){rows(g, keys), b->grid, b->grid, C});
    x = add_map(g, layer_upscale(g, x, ROOT, "upscale_conv1", C / 4, 2), fine[1]);
    x = op_act(g, layer_norm(g, x, ROOT, "upscale_layer_norm", UPSCALE_EPS), ACT_GELU);
    return op_act(g, add_map(g, layer_upscale(g, x, ROOT, "upscale_conv2", C / 8, 2), fine[0]), ACT_GELU);
}

/* Computes filters [rows,K,c] . maps [rows,h,h,c] = [rows,K,h,h], in f32. */
static id apply(struct graph *g, id filters, id maps)
{
    if (!filters || !maps) return 0;
    const struct tensor m = *tensor_at(g, maps);
    maps = op_reshape(g, maps, 3, (int64_t[]){m.dim[0], m.dim[1] * m.dim[2], m.dim[3]});
    id logits = op_bmm(g, filters, maps, false, true, DT_F32);
    return op_reshape(g, logits, 4, (int64_t[]){m.dim[0], length(g, filters), m.dim[1], m.dim[2]});
}

/* Computes the masks of `count` tokens' filters, to which SAM-HQ adds the mask of its own token:
 * the channels of both maps are joined, so that one product adds them. */
static id make_masks(const struct sam_build *b, const struct two_way *t, struct sam_image image, int64_t first,
                     int64_t count)
{
    const struct sam_decoder *c = &b->c->decoder;
    struct graph *g = b->g;
    id maps = upscale(b, t->keys, image.fine), each = mask_filters(b, t->tokens, first, count);
    if (!c->high || !maps || !each) return apply(g, each, maps);
    id finer = add_map(g, sam_hq_maps(b, maps), sam_hq_features(b, image));
    id own = sam_mlp(g, token(g, t->tokens, output_tokens(c) - 1), ROOT "hq_mask_mlp.", c->hidden, c->hidden / 8, 3);
    const int64_t R = rows(g, each), all[] = {R, count, c->hidden / 8}, flat[] = {R * count, all[2]};
    if (!b->prompting.hq_only && count > 1) own = op_repeat(g, own, op_reshape(g, each, 2, flat));
    own = op_reshape(g, own, 3, (int64_t[]){R, b->prompting.hq_only ? 1 : count, all[2]});
    if (b->prompting.hq_only) return apply(g, own, finer);
    return apply(g, op_concat(g, (id[]){each, own}, 2, 2), op_concat(g, (id[]){maps, finer}, 2, 3));
}

/* Chooses one of all masks: the first where it is stable, else the best of the others. */
static void choose_mask(const struct sam_build *b, struct sam_masks *m)
{
    struct graph *g = b->g;
    const struct sam_stability *s = &b->c->decoder.stability;
    const struct tensor t = *tensor_at(g, m->logits);
    id scores = op_stability(g, m->logits, m->iou, s->delta, s->threshold), best = op_topk(g, scores, 1);
    id iou = op_reshape(g, m->iou, 3, (int64_t[]){t.dim[0], t.dim[1], 1});
    m->iou = op_reshape(g, op_gather(g, iou, best), 2, (int64_t[]){t.dim[0], 1});
    const int64_t pixels = t.dim[2] * t.dim[3];
    id chosen = b->frames ? op_gather(g, op_reshape(g, m->logits, 3, (int64_t[]){t.dim[0], t.dim[1], pixels}), best)
                          : op_mask_pick(g, m->logits, scores, 0); /* clips have gradients */
    m->logits = op_reshape(g, chosen, 4, (int64_t[]){t.dim[0], 1, t.dim[2], t.dim[3]});
}

struct sam_masks sam_decode(const struct sam_build *b, struct sam_image image, const struct sam_encoded *p)
{
    const struct sam_decoder *c = &b->c->decoder;
    struct graph *g = b->g;
    const bool single = b->prompting.single, chooses = single && b->prompting.stable && c->stability.on;
    const int64_t first = single ? 0 : 1, count = chooses ? c->candidates + 1 : single ? 1 : c->candidates;
    struct two_way t = {.positions = p->positions};
    struct sam_masks out = {0};
    IN_SCOPE(g, "mask_decoder", 0) {
        id flat = op_reshape(g, image.coarse, 3, (int64_t[]){b->B, b->grid * b->grid, c->hidden});
        t.tokens = t.first = begin_tokens(b, p->tokens);
        t.keys = sam_add_rows(g, flat, p->dense);
        /* output tokens are always visible */
        if (p->hidden) t.mask = op_pad(g, p->hidden, (int64_t[]){0, output_tokens(c)}, (int64_t[]){0, 0});
    }
    transform(b, &t);
    IN_SCOPE(g, "mask_decoder", 0) {
        out.logits = make_masks(b, &t, image, first, count);
        id iou = sam_mlp(g, token(g, t.tokens, tokens_before(c) - 1), ROOT "iou_prediction_head.", c->iou_hidden,
                              c->candidates + 1, c->iou_layers);
        if (c->second) {
            iou = op_act(g, iou, ACT_SIGMOID);
            out.object = sam_mlp(g, token(g, t.tokens, 0), ROOT "pred_obj_score_head.", c->hidden, 1, 3);
        }
        out.iou = op_dense(g, op_slice(g, iou, 1, first, count));
        if (b->frames) out.tokens = op_dense(g, op_slice(g, t.tokens, 1, tokens_before(c) + first, single ? 1 : count));
        if (chooses && out.logits) choose_mask(b, &out);
    }
    return out;
}

struct sam_losses sam_loss(const struct sam_build *b, const struct sam_masks *m, id bits, id valid)
{
    struct graph *g = b->g;
    struct mask_loss_options o = b->prompting.loss;
    struct sam_losses out = {0};
    if (m->object && (o.all_scores || o.object > 0)) {
        const struct predicted p = {m->logits, m->iou, m->object};
        const struct score_loss s = op_score_loss(g, p, bits, valid, o.all_scores ? o.iou : 0, o.object, NULL);
        if (o.all_scores) o.iou = 0;
        out.scores = s.loss;
        valid = s.within;
    }
    const struct mask_loss y = op_mask_loss(g, m->logits, m->iou, bits, valid, o, NULL);
    out.masks = y.loss, out.statistics = y.statistics;
    return out;
}
