/*
 * layers.h: layers by their published names: the weights are declared where they are used.
 *
 * A layer's weights are called prefix + name + ".weight" and ".bias". How wide its input is
 * says x itself. Fresh matrices and kernels are normal with the spread of the reference
 * framework's own initial weights, sqrt(1 / (3 inputs)); biases begin with zeros.
 */
#ifndef LAYERS_H
#define LAYERS_H

#include "graph/graph.h"
#include "io/value.h"

/* prefix + name; a std of 0 begins with zeros. */
id layer_param(struct graph *g, const char *prefix, const char *name, int rank, const int64_t *dim, double std);
id layer_linear(struct graph *g, id x, const char *prefix, const char *name, int64_t out);
/* Over the last dimension: of tokens, and of the channels of a map. */
id layer_norm(struct graph *g, id x, const char *prefix, const char *name, double eps);
struct kernel_shape {
    int size, stride, pad;
    bool bias;
};
/* x [B,H,W,C]. */
id layer_conv(struct graph *g, id x, const char *prefix, const char *name, int64_t out, struct kernel_shape k);
/* The transposed convolution whose windows lie side by side: maps grow by `size`. */
id layer_upscale(struct graph *g, id x, const char *prefix, const char *name, int64_t out, int size);

/* The weights of a layer that nothing computes with: they are read, kept and written back. */
void layer_norm_weights(struct graph *g, const char *prefix, const char *name, int64_t C);
void layer_conv_weights(struct graph *g, const char *prefix, const char *name, int64_t out, int64_t in, int size);

/* hidden_act of a configuration, by the names of transformers; missing leaves *act as it was. */
int layer_parse_act(const struct value *config, enum act_kind *act, struct error *e);

#endif
