/*
 * passes.h: the memory techniques. One file each, one signature; each rewrites
 * the graph and knows nothing of the others. plan/compile.c runs them in order:
 *
 *     precision -> fuse -> chunk -> differentiate -> accumulate -> recompute
 *               -> selective -> trim -> optimizer -> offload -> handover -> reuse
 */
#ifndef PASSES_H
#define PASSES_H

#include "graph/graph.h"

/* What the parameters that a pattern matches are updated with. Where several rules match,
 * the last one that says something of the rate, or of the decay, wins. */
struct update_rule {
    const char *const *match; /* name patterns */
    uint32_t n_match;
    bool has_rate, absolute;  /* absolute: layer_decay does not scale it */
    double lr_scale;          /* times the step's learning rate */
    bool has_decay;
    double weight_decay;
};

/* What the backward makes again instead of reading it from where the forward left it. */
enum rebuild {
    REBUILD_NONE,
    REBUILD_BLOCKS, /* whole blocks, from what enters them (recompute.c) */
    REBUILD_CHEAP,  /* norms, activations and the like (selective.c) */
    REBUILD_COUNT
};

/* What the planner decided, and the recipe of the update. */
struct settings {
    int micro_batch;        /* samples in one iteration */
    int accumulation;       /* iterations in one step */
    enum dtype precision;   /* of activations and working weights: f32 or bf16 */
    enum rebuild recompute; /* what the backward makes again */
    bool offload_optimizer; /* optimizer state lives in the second space */
    int head_chunks;        /* the row-wise head runs in so many pieces */

    double beta1, beta2, eps, weight_decay;
    double layer_decay;     /* factor on the rate per layer below the last; 0 or 1: none */
    const struct update_rule *rules;
    uint32_t n_rules;
    bool train;             /* false: no update program (`plimsoll step`) */
    bool forward;           /* nothing is differentiated (`plimsoll predict`, `eval`) */
    uint64_t loader_bytes;  /* of the staging buffer "loader", where samples are made ready; 0: none */
    bool host_staging;      /* the host cannot touch the compute space: staging lies in the second */
};

typedef void pass_fn(struct graph *g, const struct settings *s);
pass_fn pass_precision, pass_fuse, pass_chunk, pass_differentiate, pass_accumulate, pass_recompute, pass_selective, pass_trim,
    pass_optimizer, pass_offload, pass_handover, pass_reuse;

/* "none", "all", "selective": the words of memory.recompute. */
const char *rebuild_name(enum rebuild r);

#endif
