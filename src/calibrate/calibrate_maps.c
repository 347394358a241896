/*
 * calibrate_maps.c: a network for timing only. It contains the ops that language models and vision
 * towers do not have. Its loss is the mean square of its result, so that every op has a gradient.
 *
 *     conv /2, norm, act   ->  depthwise, norm, act  ->  1x1, act  ->  3x3, act
 *     ->  resize x 2  ->  pool / 2  ->  concat with its beginning  ->  transposed x 2
 */
#include <stddef.h>
#include <stdio.h>

#include "graph/emit.h"
#include "calibrate/calibrate.h"

static id weight(struct graph *g, const char *name, int64_t a, int64_t b, int64_t kh, int64_t kw)
{
    return graph_param(g, name, DT_F32, 4, (int64_t[]){a, b, kh, kw}, (struct init){INIT_NORMAL, 0.05f, 0});
}

static id vector(struct graph *g, const char *name, int64_t n, enum init_kind kind)
{
    return graph_param(g, name, DT_F32, 1, &n, (struct init){kind, 0, 0});
}

static id normed(struct graph *g, id x, const char *name, int64_t C, int64_t group)
{
    char w[64], b[64];
    snprintf(w, sizeof w, "%s.weight", name);
    snprintf(b, sizeof b, "%s.bias", name);
    id scale = vector(g, w, C, INIT_ONE), shift = vector(g, b, C, INIT_ZERO);
    return op_batchnorm(g, x, scale, shift, group, 1e-5f, 0, 0, 0);
}

static id all_activations(struct graph *g, id x)
{
    static const enum act_kind kinds[] = {ACT_GELU, ACT_SILU, ACT_TANH, ACT_SIGMOID, ACT_GELU_TANH};
    for (size_t i = 0; i < COUNT(kinds); i++) x = op_act(g, x, kinds[i]);
    return x;
}

static void build(const struct model *m, struct graph *g, const struct batch *b)
{
    const struct maps_config *c = m->config;
    int64_t H = c->image, C = c->channels;
    id x = graph_input(g, "pixels", DT_F32, 4, (int64_t[]){b->B, H, H, 3});
    id w = weight(g, "stem", C, 3, 3, 3), bias = vector(g, "stem.bias", C, INIT_ZERO);
    x = op_conv(g, x, w, bias, 2, 1, 1);
    id begin = x = op_act(g, normed(g, x, "stem.norm", C, b->B), ACT_RELU);
    x = op_conv(g, x, weight(g, "deep", C, 1, 3, 3), 0, 1, 1, (int)C);
    x = op_act(g, normed(g, x, "deep.norm", C, 1), ACT_RELU);
    w = weight(g, "wide", 2 * C, C, 1, 1), bias = vector(g, "wide.bias", 2 * C, INIT_ZERO);
    x = op_conv(g, x, w, bias, 1, 0, 1);
    x = all_activations(g, x);
    x = op_conv(g, x, weight(g, "narrow", C, 2 * C, 3, 3), 0, 1, 1, 1);
    x = op_resize(g, x, H, H, false);
    x = op_avgpool(g, x, (int64_t[]){2, 2}, (int64_t[]){2, 2}, (int64_t[]){0, 0}, false);
    x = op_concat(g, (id[]){x, begin}, 2, 3);
    x = op_softmax(g, x);
    w = weight(g, "back", 2 * C, C, 2, 2), bias = vector(g, "back.bias", C, INIT_ZERO);
    x = op_conv_transpose(g, x, w, bias, 2, 0);
    id wide = op_cast(g, x, DT_F32), sum = op_sum(g, op_mul(g, wide, wide));
    graph_output(g, "loss", op_mul(g, sum, graph_count(g, NULL)));
}

const struct family calibrate_maps_family = {.model_type = "calibrate_maps", .build = build};
