/*
 * prs_med_decoder.c: the mask decoders of PRS-Med: an image's embedding E and the states of a text
 * in, mask logits out (see prs_med.h).
 *
 * fusion, of train_prs_med.py:
 *
 *     z = adaptive average pool(E)                                  64 x 64 to 16 x 16
 *     q = batch norm(gelu(conv 1x1(z))),  p = layer norm(gelu(linear(states)))
 *     q = q + attention(n(q), n(p));  q = q + mlp(layer norm(q))    one norm n for both
 *     x = batch norm(gelu(conv 3x3(q + z)))
 *     mask head: 6 x relu(batch norm(transposed conv 4x4 s2(x))), conv 1x1
 *
 * prompted, of the original code (PromptedMaskDecoder):
 *
 *     p = norm(relu(norm(linear(relu(norm(linear(states)))))))
 *     f = norm(E);  x = norm(f + attention(f, p))
 *     x = norm(x + self-attention(x));  x = norm(x + linear(relu(linear(x))))
 *     x = norm(relu(fc2(relu(fc1(x)) + x))) + E
 *     3 blocks, the channels 1, 1/2 and 1/4 of E's, conv 1x1, bilinear interpolation to the image's
 *     side
 *
 * Keys are only the tokens of `question`. Dropout is that of the residual branches, and with
 * attention_dropout that of the weights of fusion's attention and of the self-attention: in
 * training these are then computed by products, and the scores exist in memory.
 */
#include <math.h>

#include "graph/emit.h"
#include "models/layers.h"
#include "models/prs_med.h"

static const double NORM_EPS = 1e-5;

static id drop(const struct prs_build *b, id x)
{
    return b->drops && b->c->dropout > 0 ? op_dropout(b->g, x, op_samples(b->g, b->B), (float)b->c->dropout) : x;
}

/* --- attention, named as torch.nn.MultiheadAttention ------------------------------------------ */

struct heads {
    id w, bias; /* [3C,C] and [3C]: of queries, keys and values */
    int64_t C, n;
};

/* Returns queries (i 0), keys (1) or values (2) of x [B,T,C]: [B,T,heads,C/heads]. */
static id project(const struct prs_build *b, id x, const struct heads *h, int i)
{
    struct graph *g = b->g;
    if (!x) return 0;
    const int64_t T = tensor_at(g, x)->dim[1];
    id y = op_linear(g, x, op_slice(g, h->w, 0, i * h->C, h->C), op_slice(g, h->bias, 0, i * h->C, h->C));
    return op_reshape(g, y, 4, (int64_t[]){b->B, T, h->n, h->C / h->n});
}

/* Returns ranges i32 [B,T,2] of queries x [B,T,C]: each sees the tokens of the question. */
static id question_ranges(const struct prs_build *b, id x)
{
    struct graph *g = b->g;
    if (!x) return 0;
    const int64_t T = tensor_at(g, x)->dim[1];
    id rows = op_repeat(g, b->question, op_reshape(g, x, 2, (int64_t[]){b->B * T, -1}));
    return op_reshape(g, rows, 3, (int64_t[]){b->B, T, 2});
}

bool prs_drops_attention(const struct prs_build *b)
{
    return b->drops && b->c->attention_dropout > 0 && program_is(b->g->at.program, PROGRAM_TRAINS);
}

/* Transposes [B,T,heads,D] to [B,heads,T,D], and back. */
static id by_head(struct graph *g, id x) { return op_dense(g, op_permute(g, x, (const int[]){0, 2, 1, 3})); }

/* How an attention is computed: over the text, where the keys are those of the question; with
 * dropout of its weights, if the configuration has it. */
struct attending {
    bool text, drops;
    int64_t heads;
};

/* Computes softmax(scale q k^T), its weights dropped, times v: [B,T,heads,D]. */
static id drop_attention(const struct prs_build *b, id x, id y, const struct heads *h, struct attending how,
                         float scale)
{
    struct graph *g = b->g;
    id q = by_head(g, project(b, x, h, 0)), k = by_head(g, project(b, y, h, 1)), v = by_head(g, project(b, y, h, 2));
    if (!q || !k) return 0;
    id scores = op_scale(g, op_bmm(g, q, k, false, true, DT_F32), (double)scale);
    if (how.text)
        scores = op_add(g, scores,
                   op_cast(g, op_reshape(g, b->unseen, 4, (int64_t[]){b->B, 1, 1, tensor_at(g, k)->dim[2]}), DT_F32));
    id weights = op_cast(g, op_softmax(g, scores), DT_NONE);
    weights = op_dropout(g, weights, op_samples(g, b->B), (float)b->c->attention_dropout);
    return by_head(g, op_cast(g, op_bmm(g, weights, v, false, false, DT_F32), DT_NONE));
}

static id fused_attention(const struct prs_build *b, id x, id y, const struct heads *h, struct attending how,
                          float scale)
{
    const struct attention_options o = {.scale = scale, .ranges = how.text ? question_ranges(b, x) : 0};
    id v = project(b, y, h, 2), k = project(b, y, h, 1);
    return op_attention_with(b->g, project(b, x, h, 0), k, v, 0, o);
}

/* Computes attention of x and y [B,...,C]; from text: y are the text's. */
static id attention(const struct prs_build *b, id x, id y, const char *prefix, const char *name, struct attending how)
{
    struct graph *g = b->g;
    char full[128];
    const int64_t C = b->c->width, wide = 3 * C;
    snprintf(full, sizeof full, "%s%s.", prefix, name);
    const struct heads h = {.w = layer_param(g, full, "in_proj_weight", 2, (int64_t[]){wide, C},
                                             sqrt(1 / (2.0 * (double)C))),
                            .bias = layer_param(g, full, "in_proj_bias", 1, &wide, 0), .C = C, .n = how.heads};
    const float scale = (float)(1 / sqrt((double)(C / how.heads)));
    id a = how.drops && prs_drops_attention(b) ? drop_attention(b, x, y, &h, how, scale)
                                               : fused_attention(b, x, y, &h, how, scale);
    if (!a || !x) return 0;
    return layer_linear(g, op_reshape(g, a, 3, (int64_t[]){b->B, tensor_at(g, x)->dim[1], C}), full, "out_proj", C);
}

/* Returns a map [B,n,n,C] as tokens [B,n*n,C], and back. */
static id tokens(const struct prs_build *b, id x) { return op_reshape(b->g, x, 3, (int64_t[]){b->B, -1, b->c->width}); }
static id map(const struct prs_build *b, id x, int64_t side)
{
    return op_reshape(b->g, x, 4, (int64_t[]){b->B, side, side, b->c->width});
}

/* --- fusion ----------------------------------------------------------------------------------- */

#define FUSION "fusion."
#define CROSS FUSION "cross_attn."
#define HEAD "mask_head.upsample_blocks."

static id cross_attention(const struct prs_build *b, id q, id text)
{
    struct graph *g = b->g;
    id a = attention(b, layer_norm(g, q, CROSS, "norm1", NORM_EPS), layer_norm(g, text, CROSS, "norm1", NORM_EPS),
                     CROSS, "attn", (struct attending){.text = true, .drops = true, .heads = b->c->heads});
    q = op_add(g, q, drop(b, a));
    id x = op_act(g, layer_linear(g, layer_norm(g, q, CROSS, "norm2", NORM_EPS), CROSS, "mlp.0", 4 * b->c->width),
                  ACT_GELU);
    return op_add(g, q, drop(b, layer_linear(g, x, CROSS, "mlp.2", b->c->width)));
}

/* Computes convolution, GELU, batch normalisation: name.0 and name.2. */
static id conv_gelu_norm(const struct prs_build *b, id x, const char *prefix, int size)
{
    id y = layer_conv(b->g, x, prefix, "0", b->c->width, (struct kernel_shape){size, 1, size / 2, true});
    return layer_batch_norm(b->g, op_act(b->g, y, ACT_GELU), prefix, "2", b->bn_group, false);
}

static id fuse(const struct prs_build *b, id image)
{
    struct graph *g = b->g;
    const int64_t side = b->c->pooled;
    id z = op_avgpool_adaptive(g, image, side, side);
    id text = op_act(g, layer_linear(g, b->states, FUSION, "proj_text.0", b->c->width), ACT_GELU);
    text = layer_norm(g, text, FUSION, "proj_text.2", NORM_EPS);
    id q = cross_attention(b, tokens(b, conv_gelu_norm(b, z, FUSION "proj_image.", 1)), text);
    return conv_gelu_norm(b, op_add(g, map(b, q, side), z), FUSION "output_conv.", 3);
}

static id mask_head(const struct prs_build *b, id x)
{
    struct graph *g = b->g;
    char name[128];
    for (int64_t i = 0; i < b->c->stages; i++) {
        snprintf(name, sizeof name, HEAD "%lld.", (long long)i);
        x = layer_conv_transpose(g, x, name, "0", b->c->channels[i], (struct kernel_shape){4, 2, 1, true});
        x = op_act(g, layer_batch_norm(g, x, name, "1", b->bn_group, false), ACT_RELU);
    }
    snprintf(name, sizeof name, "%lld", (long long)b->c->stages);
    return layer_conv(g, x, HEAD, name, 1, (struct kernel_shape){1, 1, 0, true});
}

/* --- prompted --------------------------------------------------------------------------------- */

#define PROMPTED "mask_decoder."

static id norm(const struct prs_build *b, id x, const char *name)
{
    return layer_norm(b->g, x, PROMPTED, name, NORM_EPS);
}

static id prompt_projection(const struct prs_build *b)
{
    struct graph *g = b->g;
    id x = norm(b, layer_linear(g, b->states, PROMPTED, "prompt_projection.0", b->c->prompt_hidden),
                "prompt_projection.1");
    x = norm(b, layer_linear(g, op_act(g, x, ACT_RELU), PROMPTED, "prompt_projection.3", b->c->width),
             "prompt_projection.4");
    return norm(b, op_act(g, x, ACT_RELU), "prompt_norm");
}

/* Computes torch.nn.TransformerEncoderLayer, with its norms after the residuals. */
static id encoder_layer(const struct prs_build *b, id x)
{
    struct graph *g = b->g;
    id a = attention(b, x, x, PROMPTED, "encoder_layer.self_attn",
                     (struct attending){.drops = true, .heads = b->c->self_heads});
    x = norm(b, op_add(g, x, drop(b, a)), "encoder_layer.norm1");
    id y = op_act(g, layer_linear(g, x, PROMPTED, "encoder_layer.linear1", b->c->self_inner), ACT_RELU);
    y = layer_linear(g, drop(b, y), PROMPTED, "encoder_layer.linear2", b->c->width);
    return norm(b, op_add(g, x, drop(b, y)), "encoder_layer.norm2");
}

static id feed_forward(const struct prs_build *b, id x)
{
    struct graph *g = b->g;
    id y = op_act(g, layer_linear(g, x, PROMPTED, "ffn.fc1", b->c->width), ACT_RELU);
    y = layer_linear(g, op_add(g, y, x), PROMPTED, "ffn.fc2", b->c->width);
    return norm(b, op_act(g, y, ACT_RELU), "ffn.norm");
}

static id instance_norm(const struct prs_build *b, id x, const char *prefix, const char *name)
{
    struct graph *g = b->g;
    char full[128];
    if (!x) return 0;
    const int64_t C = tensor_last(tensor_at(g, x));
    snprintf(full, sizeof full, "%s%s.weight", prefix, name);
    id w = graph_param(g, full, DT_F32, 1, &C, (struct init){INIT_ONE, 0, 0});
    snprintf(full, sizeof full, "%s%s.bias", prefix, name);
    return op_instancenorm(g, x, w, graph_param(g, full, DT_F32, 1, &C, (struct init){INIT_ZERO, 0, 0}),
                           (float)NORM_EPS);
}

/* Returns the 1x1 convolution pads by one pixel, which the 3x3 one without padding takes away
 * again. */
static id basic_block(const struct prs_build *b, id x, const char *prefix, int64_t out)
{
    struct graph *g = b->g;
    if (!x) return 0;
    const int64_t C = tensor_last(tensor_at(g, x));
    id y = layer_conv(g, x, prefix, "conv1", C, (struct kernel_shape){3, 1, 1, true});
    y = op_add(g, op_act(g, instance_norm(b, y, prefix, "bn1"), ACT_RELU), x);
    y = layer_conv(g, y, prefix, "conv2", out, (struct kernel_shape){1, 1, 1, true});
    return layer_conv(g, instance_norm(b, y, prefix, "bn2"), prefix, "conv3", out,
                      (struct kernel_shape){3, 1, 0, true});
}

static id attend(const struct prs_build *b, id image)
{
    struct graph *g = b->g;
    id f = norm(b, tokens(b, image), "image_norm");
    id x = norm(b, op_add(g, attention(b, f, prompt_projection(b), PROMPTED, "attn",
                                 (struct attending){.text = true, .heads = b->c->heads}), f), "norm1");
    return op_add(g, map(b, feed_forward(b, encoder_layer(b, x)), b->c->grid), image);
}

static id mask_generation(const struct prs_build *b, id x)
{
    struct graph *g = b->g;
    const int64_t C = b->c->width, wide[] = {C, C / 2, C / 4};
    char name[128];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, PROMPTED "mask_generation.%d.", i);
        x = basic_block(b, x, name, wide[i]);
    }
    x = layer_conv(g, x, PROMPTED, "out_dec", 1, (struct kernel_shape){1, 1, 0, true});
    return op_resize(g, x, b->c->model.mask, b->c->model.mask, true);
}

id prs_fuse(const struct prs_build *b, id image)
{
    id x = 0;
    if (b->c->decoder == PRS_PROMPTED) IN_SCOPE(b->g, "mask_decoder", 0) x = attend(b, image);
    else IN_SCOPE(b->g, "fusion", 0) x = fuse(b, image);
    return x;
}

id prs_masks(const struct prs_build *b, id x)
{
    return b->c->decoder == PRS_PROMPTED ? mask_generation(b, x) : mask_head(b, x);
}
