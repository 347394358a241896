/*
 * clip_text.c: the text towers of CLIP and SigLIP.
 *
 *     x = tokens(ids) + positions
 *     the layers of the vision towers (clip.c); CLIP's are causal
 *     x = layernorm(x);  CLIP: the token at the end of the text;  SigLIP: the last one, projected
 *
 * Padding follows the text. A causal token never sees it, and SigLIP was trained with it.
 */
#include <math.h>

#include "models/clip.h"
#include "graph/emit.h"
#include "models/layers.h"
#include "models/parts.h"

struct text_tower {
    struct tower c;
    struct text_sizes sizes;
};

/* transformers' defaults. Sizes of images do not matter, and satisfy tower_check. */
static const struct text_tower clip_defaults = {{.hidden = 512,
                                                 .inner = 2048,
                                                 .layers = 12,
                                                 .heads = 8,
                                                 .channels = 3,
                                                 .image = 1,
                                                 .patch = 1,
                                                 .eps = 1e-5,
                                                 .range = 0.02,
                                                 .factor = 1,
                                                 .act = ACT_QUICK_GELU,
                                                 .clip = true,
                                                 .causal = true,
                                                 .root = ""},
                                                {.vocabulary = 49408, .positions = 77, .end = 49407}};
static const struct text_tower siglip_defaults = {{.hidden = 768,
                                                   .inner = 3072,
                                                   .layers = 12,
                                                   .heads = 12,
                                                   .channels = 3,
                                                   .image = 1,
                                                   .patch = 1,
                                                   .eps = 1e-6,
                                                   .factor = 1,
                                                   .act = ACT_GELU_TANH,
                                                   .root = ""},
                                                  {.vocabulary = 32000, .positions = 64}};

static int check_size(const char *key, int64_t x, int64_t most, struct error *e)
{
    return x >= 1 && x <= most ? PL_OK
                               : error_set(e, PL_USAGE, "%s is %lld, it must lie between 1 and %lld", key, (long long)x,
                                           (long long)most);
}

int text_tower_parse(struct bump *b, const struct value *config, bool siglip, struct text_tower **out, struct error *e)
{
    struct text_tower *t = *out = bump_alloc(b, sizeof *t);
    struct text_sizes *s = &t->sizes;
    *t = siglip ? siglip_defaults : clip_defaults;
    int rc = tower_parse_keys(&t->c, config, e);
    if (!rc) rc = tower_check(&t->c, e);
    if (!rc) rc = value_opt_int(config, "vocab_size", &s->vocabulary, e);
    if (!rc) rc = value_opt_int(config, "max_position_embeddings", &s->positions, e);
    if (!rc && !siglip) rc = value_opt_int(config, "eos_token_id", &s->end, e);
    s->width = t->c.hidden;
    s->projection = siglip ? s->width : 0;
    if (!rc && siglip) rc = value_opt_int(config, "projection_size", &s->projection, e);
    if (!rc) rc = check_size("vocab_size", s->vocabulary, INT32_MAX, e);
    if (!rc) rc = check_size("max_position_embeddings", s->positions, 1 << 20, e);
    return rc || !siglip ? rc : check_size("projection_size", s->projection, 1 << 20, e);
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
