/*
 * layers.c: see layers.h.
 */
#include "models/layers.h"

#include <math.h>

#include "graph/emit.h"

enum { NAME_ROOM = 256 };
static const double BN_EPS = 1e-5, BN_MOMENTUM = 0.1; /* of torch.nn.BatchNorm2d */

struct layer layers_begin(struct graph *g, const char *root, int64_t count)
{
    return (struct layer){.g = g, .root = root, .i = -1, .count = count};
}

bool layers_next(struct layer *l)
{
    if (l->in.open) graph_leave(&l->in);
    if (++l->i >= l->count) return false;
    const int n = snprintf(l->prefix, sizeof l->prefix, "%s.%lld", l->root, (long long)l->i);
    CHECK(n + 1 < (int)sizeof l->prefix);
    l->in = graph_enter_scope(l->g, l->prefix, SCOPE_BLOCK);
    l->prefix[n] = '.', l->prefix[n + 1] = 0;
    return true;
}

static struct init normal_init(double std) { return (struct init){std > 0 ? INIT_NORMAL : INIT_ZERO, (float)std, 0}; }

id layer_param(struct graph *g, const char *prefix, const char *name, int rank, const int64_t *dim, double std)
{
    char full[NAME_ROOM];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return graph_param(g, full, DT_F32, rank, dim, normal_init(std));
}

/* Returns the weight prefix + name + end. */
static id weight_of(struct graph *g, const char *prefix, const char *name, const char *end, int rank,
                    const int64_t *dim, struct init init)
{
    char full[NAME_ROOM];
    snprintf(full, sizeof full, "%s%s%s", prefix, name, end);
    return graph_param(g, full, DT_F32, rank, dim, init);
}

static struct init default_init(int64_t inputs)
{
    return (struct init){INIT_NORMAL, (float)sqrt(1 / (3.0 * (double)max_i64(1, inputs))), 0};
}

static const struct init zeros = {INIT_ZERO, 0, 0};

struct pair {
    id w, bias;
};

static struct pair linear_pair(struct graph *g, const char *prefix, const char *name, int64_t out, int64_t in,
                               struct linear_init init)
{
    const int64_t dim[] = {init.transposed ? in : out, init.transposed ? out : in};
    id w = weight_of(g, prefix, name, ".weight", 2, dim, normal_init(init.std));
    if (w && init.transposed) {
        graph_param_of(g, w)->transposed = true;
        w = op_permute(g, w, (int[]){1, 0});
    }
    return (struct pair){w,
                         init.no_bias ? 0 : weight_of(g, prefix, name, ".bias", 1, &out, normal_init(init.bias_std))};
}

id layer_linear(struct graph *g, id x, const char *prefix, const char *name, int64_t out)
{
    if (!x) return 0;
    return layer_linear_init(g, x, prefix, name, out,
                             (struct linear_init){.std = default_init(tensor_last(tensor_at(g, x))).std});
}

id layer_linear_init(struct graph *g, id x, const char *prefix, const char *name, int64_t out, struct linear_init init)
{
    if (!x) return 0;
    struct pair p = linear_pair(g, prefix, name, out, tensor_last(tensor_at(g, x)), init);
    return op_linear(g, x, p.w, p.bias);
}

void layer_linear_weights(struct graph *g, const char *prefix, const char *name, int64_t out, int64_t in,
                          struct linear_init init)
{
    linear_pair(g, prefix, name, out, in, init);
}

id layer_rmsnorm_with(struct graph *g, id x, const char *prefix, const char *name, struct rmsnorm_options o)
{
    if (!x) return 0;
    id w = weight_of(g, prefix, name, ".weight", 1, (int64_t[]){tensor_last(tensor_at(g, x))},
                     o.unit_offset ? zeros : (struct init){INIT_ONE, 0, 0});
    return op_rmsnorm_with(g, x, w, (float)o.eps, o.unit_offset);
}

id layer_rmsnorm(struct graph *g, id x, const char *prefix, const char *name, double eps)
{
    return layer_rmsnorm_with(g, x, prefix, name, (struct rmsnorm_options){.eps = eps});
}

static struct pair norm_pair(struct graph *g, const char *prefix, const char *name, int64_t C)
{
    id w = weight_of(g, prefix, name, ".weight", 1, &C, (struct init){INIT_ONE, 0, 0});
    return (struct pair){w, weight_of(g, prefix, name, ".bias", 1, &C, zeros)};
}

static struct pair conv_pair(struct graph *g, const char *prefix, const char *name, int64_t out, int64_t in, int size,
                             bool biased)
{
    id w = weight_of(g, prefix, name, ".weight", 4, (int64_t[]){out, in, size, size}, default_init(in * size * size));
    return (struct pair){w, biased ? weight_of(g, prefix, name, ".bias", 1, &out, zeros) : 0};
}

void layer_norm_weights(struct graph *g, const char *prefix, const char *name, int64_t C)
{
    norm_pair(g, prefix, name, C);
}

void layer_conv_weights(struct graph *g, const char *prefix, const char *name, int64_t out, int64_t in, int size)
{
    conv_pair(g, prefix, name, out, in, size, true);
}

id layer_norm(struct graph *g, id x, const char *prefix, const char *name, double eps)
{
    if (!x) return 0;
    struct pair p = norm_pair(g, prefix, name, tensor_last(tensor_at(g, x)));
    return op_layernorm(g, x, p.w, p.bias, (float)eps);
}

id layer_conv(struct graph *g, id x, const char *prefix, const char *name, int64_t out, struct kernel_shape k)
{
    if (!x) return 0;
    struct pair p = conv_pair(g, prefix, name, out, tensor_last(tensor_at(g, x)), k.size, k.bias);
    return op_conv(g, x, p.w, p.bias, k.stride, k.pad, 1);
}

id layer_conv_transpose(struct graph *g, id x, const char *prefix, const char *name, int64_t out, struct kernel_shape k)
{
    if (!x) return 0;
    const int64_t C = tensor_last(tensor_at(g, x));
    id w = weight_of(g, prefix, name, ".weight", 4, (int64_t[]){C, out, k.size, k.size},
                     default_init(out * k.size * k.size));
    return op_conv_transpose(g, x, w, k.bias ? weight_of(g, prefix, name, ".bias", 1, &out, zeros) : 0, k.stride,
                             k.pad);
}

id layer_upscale(struct graph *g, id x, const char *prefix, const char *name, int64_t out, int size)
{
    return layer_conv_transpose(g, x, prefix, name, out, (struct kernel_shape){size, size, 0, true});
}

id layer_batch_norm(struct graph *g, id x, const char *prefix, const char *name, int64_t group, bool zero)
{
    static const struct init ones = {INIT_ONE, 0, 0};
    if (!x) return 0;
    const int64_t C = tensor_last(tensor_at(g, x));
    id w = weight_of(g, prefix, name, ".weight", 1, &C, zero ? zeros : ones),
       bias = weight_of(g, prefix, name, ".bias", 1, &C, zeros);
    id mean = weight_of(g, prefix, name, ".running_mean", 1, &C, zeros),
       var = weight_of(g, prefix, name, ".running_var", 1, &C, ones);
    if (!w || !bias || !mean || !var) return 0;
    graph_param_of(g, mean)->frozen = graph_param_of(g, var)->frozen = true;
    if (group && program_is(g->at.program, PROGRAM_TRAINS))
        return op_batchnorm(g, x, w, bias, group, (float)BN_EPS, mean, var, BN_MOMENTUM);
    return op_batchnorm_frozen(g, x, w, bias, mean, var, (float)BN_EPS);
}

int layer_parse_act(const struct value *config, enum act_kind *act, struct error *e)
{
    return layer_parse_act_at(config, "hidden_act", act, e);
}

int layer_parse_act_at(const struct value *config, const char *key, enum act_kind *act, struct error *e)
{
    static const struct {
        const char *name;
        enum act_kind kind;
    } known[] = {{"quick_gelu", ACT_QUICK_GELU}, {"gelu", ACT_GELU},  {"gelu_pytorch_tanh", ACT_GELU_TANH},
                 {"gelu_new", ACT_GELU_TANH},    {"relu", ACT_RELU},  {"silu", ACT_SILU},
                 {"swish", ACT_SILU},            {"tanh", ACT_TANH},  {"sigmoid", ACT_SIGMOID}};
    const char *name = NULL;
    int rc = value_opt_string(config, key, &name, e);
    if (rc || !name) return rc;
    for (size_t i = 0; i < COUNT(known); i++)
        if (!strcmp(known[i].name, name)) {
            *act = known[i].kind;
            return PL_OK;
        }
    return error_set(e, PL_USAGE,
        "%s \"%s\" is not one of: quick_gelu, gelu, gelu_pytorch_tanh, gelu_new, relu, silu, tanh, sigmoid", key, name);
}

int layer_parse_sizes(const struct value *map, const struct size_key *keys, size_t n, struct error *e)
{
    for (const struct size_key *k = keys; k < keys + n; k++) {
        TRY(value_opt_int(map, k->key, k->to, e));
        if (*k->to < k->least || *k->to > k->most)
            return error_set(e, PL_USAGE, "%s is %lld, it must lie between %lld and %lld", k->key, (long long)*k->to,
                             (long long)k->least, (long long)k->most);
    }
    return PL_OK;
}
