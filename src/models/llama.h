/*
 * llama.h: the configuration that the families of llama.c give the decoder of decoder.c.
 */
#ifndef LLAMA_H
#define LLAMA_H

#include "models/model.h"
#include "models/rope.h"

struct llama {
    int64_t vocabulary, hidden, inner, layers, heads, kv_heads, head_dim, positions;
    double eps, std;
    bool tied, qkv_bias, o_bias, mlp_bias;
    int64_t padding;      /* 1 + the id of the padding token; 0: none */
    int64_t window;       /* number of keys that a query of a windowed layer sees; 0: all */
    bool *windowed;       /* indexed by layer */
    struct rope rope;
    const char *root;     /* names of parameters begin with it, but for the head's */
    bool head_outside;    /* the head is beside the part, not in it */
};

/* The decoder as a model of its own. */
void decoder_build(const struct model *m, struct graph *g, const struct batch *batch);

#endif
