/*
 * layers.h: layers by their published names: the weights are declared where they are used.
 *
 * A layer's weights are called prefix + name + ".weight" and ".bias". The input width is taken from
 * x. New matrices and kernels are initialised from a normal distribution with the standard
 * deviation of PyTorch's default, sqrt(1 / (3 inputs)); biases start at zero.
 */
#pragma once

#include "graph/graph.h"
#include "io/value.h"

/* The repeated layers of a model: the statement that follows is built once for each, in the scope
 * "root.i", which is a block (SCOPE_BLOCK).
 *
 *     FOR_LAYERS(layer, g, "model.layers", n) x = decoder_layer(&b, x, &layer);
 */
struct layer {
    struct graph *g;
    const char *root;
    int64_t i, count;
    struct inside in;
    char prefix[96]; /* "root.i.", of its weights */
};
struct layer layers_begin(struct graph *g, const char *root, int64_t count);
bool layers_next(struct layer *l);
#define FOR_LAYERS(name, g, root, count) for (struct layer name = layers_begin(g, root, count); layers_next(&name);)

/* Returns the parameter prefix + name; std 0 initialises with zeros. */
id layer_param(struct graph *g, const char *prefix, const char *name, int rank, const int64_t *dim, double std);
id layer_linear(struct graph *g, id x, const char *prefix, const char *name, int64_t out);
/* The same, initialised as a model does: standard deviations of weight and bias, 0 for zeros. */
struct linear_init {
    double std, bias_std;
    bool no_bias;
    bool transposed; /* the weight is [inputs,out], as transformers' Conv1D has it */
};
id layer_linear_init(struct graph *g, id x, const char *prefix, const char *name, int64_t out, struct linear_init init);
/* unit_offset: the scale is 1 + w, and w starts at 0. */
struct rmsnorm_options {
    double eps;
    bool unit_offset;
};
id layer_rmsnorm_with(struct graph *g, id x, const char *prefix, const char *name, struct rmsnorm_options o);
id layer_rmsnorm(struct graph *g, id x, const char *prefix, const char *name, double eps);
/* Normalises over the last dimension: of tokens, or of the channels of a map. */
id layer_norm(struct graph *g, id x, const char *prefix, const char *name, double eps);
/* Normalises a map over the batch, with the running statistics in name.running_mean and
 * .running_var. In a step the statistics are those of `group` images, and update the running ones;
 * group 0, and in an evaluation: the running ones, unchanged. zero: its scale starts at 0. */
id layer_batch_norm(struct graph *g, id x, const char *prefix, const char *name, int64_t group, bool zero);
struct kernel_shape {
    int size, stride, pad;
    bool bias;
};
/* Convolves x [B,H,W,C]. */
id layer_conv(struct graph *g, id x, const char *prefix, const char *name, int64_t out, struct kernel_shape k);
/* Computes a transposed convolution; its weight is [inputs,out,size,size]. */
id layer_conv_transpose(struct graph *g, id x, const char *prefix, const char *name, int64_t out,
                        struct kernel_shape k);
/* Returns the same with stride = kernel size: maps grow by `size`. */
id layer_upscale(struct graph *g, id x, const char *prefix, const char *name, int64_t out, int size);

/* Declares the weights of a layer that the graph does not compute: they are loaded, kept and
 * saved. */
void layer_norm_weights(struct graph *g, const char *prefix, const char *name, int64_t C);
void layer_linear_weights(struct graph *g, const char *prefix, const char *name, int64_t out, int64_t in,
                          struct linear_init init);
void layer_conv_weights(struct graph *g, const char *prefix, const char *name, int64_t out, int64_t in, int size);

/* Parses hidden_act of a configuration, by the names of transformers; *act is unchanged if the key
 * is missing. */
int layer_parse_act(const struct value *config, enum act_kind *act, struct error *e);
/* Does the same by another key. */
int layer_parse_act_at(const struct value *config, const char *key, enum act_kind *act, struct error *e);

struct size_key {
    const char *key;
    int64_t *to, least, most;
};
/* Parses sizes by their keys; keys that the map does not have are unchanged. */
int layer_parse_sizes(const struct value *map, const struct size_key *keys, size_t n, struct error *e);
