/*
 * clip.h: what the vision towers (clip.c) and the text towers (clip_text.c) of CLIP and SigLIP
 * share: sizes and layers.
 */
#ifndef CLIP_H
#define CLIP_H

#include "graph/emit.h"
#include "io/value.h"

struct tower {
    int64_t hidden, inner, layers, heads, channels, image, patch;
    double eps, range, factor;     /* range, factor: scale CLIP's initial weights */
    enum act_kind act;
    bool clip;                     /* CLIP; else SigLIP */
    bool causal;                   /* CLIP's text: a token sees those before it */
    bool head;                     /* SigLIP's pooling head */
    const char *root;              /* names of parameters begin with it */
};

/* Parses the keys of one map; missing keys leave *c unchanged. */
int tower_parse_keys(struct tower *c, const struct value *config, struct error *e);
int tower_check(const struct tower *c, struct error *e);

struct tower_build {
    const struct tower *c;
    struct graph *g;
    int64_t B, T;
};
/* x [B,T,hidden] through the layer whose names begin with `layer`. */
id tower_layer(const struct tower_build *b, id x, const char *layer);

#endif
