/*
 * layers.h: layers by their published names: the weights are declared where they are used.
 *
 * A layer's weights are called prefix + name + ".weight" and ".bias". The input width is taken from
 * x. New matrices and kernels are initialised from a normal distribution with the standard
 * deviation of PyTorch's default, sqrt(1 / (3 inputs)); biases start at zero.
 */
#ifndef LAYERS_H
#define LAYERS_H

#include "graph/graph.h"
#include "io/value.h"

/* The parameter prefix + name; std 0 initialises with zeros. */
id layer_param(struct graph *g, const char *prefix, const char *name, int rank, const int64_t *dim, double std);
id layer_linear(struct graph *g, id x, const char *prefix, const char *name, int64_t out);
/* Over the last dimension: of tokens, or of the channels of a map. */
id layer_norm(struct graph *g, id x, const char *prefix, const char *name, double eps);
struct kernel_shape {
    int size, stride, pad;
    bool bias;
};
/* x [B,H,W,C]. */
id layer_conv(struct graph *g, id x, const char *prefix, const char *name, int64_t out, struct kernel_shape k);
/* Transposed convolution with stride = kernel size: maps grow by `size`. */
id layer_upscale(struct graph *g, id x, const char *prefix, const char *name, int64_t out, int size);

/* Declares the weights of a layer that the graph does not compute: they are loaded, kept and
 * saved. */
void layer_norm_weights(struct graph *g, const char *prefix, const char *name, int64_t C);
void layer_conv_weights(struct graph *g, const char *prefix, const char *name, int64_t out, int64_t in, int size);

/* hidden_act of a configuration, by the names of transformers; *act is unchanged if the key is
 * missing. */
int layer_parse_act(const struct value *config, enum act_kind *act, struct error *e);

#endif
