/*
 * passes.h: the memory techniques. Each is one file with one pass; each pass rewrites the graph and
 * depends on no other. plan/compile.c runs them in this order:
 *
 *     precision -> fuse -> linear_add -> chunk -> dense -> differentiate -> join -> residual
 *               -> bias_grad -> pure_grad -> dense -> accumulate -> recompute -> selective -> trim
 *               -> optimizer -> act_recompute -> loss_scale -> fused_step -> guard -> offload
 *               -> handover -> inlay -> reuse -> add_norm -> first_sum
 */
#ifndef PASSES_H
#define PASSES_H

#include "graph/graph.h"

/* Learning rate and weight decay of the parameters that match a pattern. If several rules match,
 * the last one that sets the value wins. */
struct update_rule {
    const char *const *match; /* name patterns */
    uint32_t n_match;
    bool has_rate, absolute;  /* absolute: layer_decay does not scale lr_scale */
    double lr_scale;          /* factor on the step's learning rate */
    bool has_decay;
    double weight_decay;
};

/* Gradient (activation) checkpointing: what the backward recomputes instead of keeping. The units
 * are blocks: scopes with SCOPE_BLOCK, numbered in the order of the forward. */
enum recompute_kind {
    RECOMPUTE_NONE,
    RECOMPUTE_ALL,       /* every block, from its inputs */
    RECOMPUTE_SELECTIVE, /* cheap ops such as norms and activations, everywhere (selective.c) */
    RECOMPUTE_EVERY,     /* blocks 0, n, 2n, ... */
    RECOMPUTE_RATIO,     /* the first part of the blocks, rounded up */
    RECOMPUTE_SEGMENTS,  /* n runs of consecutive blocks, each from the inputs of its first block */
    RECOMPUTE_FIRST,     /* the first n blocks: used by the search */
    RECOMPUTE_KINDS
};
struct recompute {
    enum recompute_kind kind;
    int n;             /* EVERY, SEGMENTS, FIRST */
    double ratio;      /* RATIO */
    bool halves;       /* attention and MLP of a block are separate units */
    bool selective;    /* selective for what is not recomputed in blocks */
};

/* What is offloaded from device memory to host memory (on a CPU: to the offload file); flags. */
enum offload {
    OFFLOAD_STATE = 1,       /* optimizer state */
    OFFLOAD_MASTERS = 2,     /* f32 master weights of lower-precision weights */
    OFFLOAD_WEIGHTS = 4,     /* working and frozen weights, fetched block by block */
    OFFLOAD_ACTIVATIONS = 8, /* activations saved for the backward */
    OFFLOAD_ALL = 15,
};

enum optimizer { OPT_ADAMW, OPT_SGD, OPT_ADAFACTOR, OPT_KINDS };
/* Dtype of the optimizer state. */
enum state_dtype { STATE_F32, STATE_BF16, STATE_8BIT, STATE_DTYPES };

/* Settings by module: the last rule with a pattern that matches a scope wins. */
struct module_rule {
    const char *const *match;
    uint32_t n_match;
    bool has_recompute;
    struct recompute recompute;
    bool has_precision;
    enum dtype precision;
};

/* True if a pattern, or any pattern of a rule, matches the scope's name or that of a module around
 * it (modules.c). */
bool module_pattern(const char *pattern, const char *scope);
bool module_matches(const struct module_rule *r, const char *scope);

/* Rewrites that run in every plan, because they save memory or time and keep the result; flags. A
 * test disables some through settings.without and compares. A rewrite keeps every bit, unless its
 * comment states what it changes. */
enum rewrite {
    REWRITE_FUSE = 1,           /* fuses the activation into the product before it */
    REWRITE_LINEAR_ADD = 2,     /* adds the residual in the product; changes the order of a sum */
    REWRITE_DENSE = 4,          /* GPU: copies before kernels that need dense operands; other kernels run then */
    REWRITE_JOIN = 8,           /* CONCAT instead of a sum of padded gradients; changes the sign of a zero */
    REWRITE_RESIDUAL = 16,      /* adds the residual's gradient in the norm's; below f32 one rounding less */
    REWRITE_BIAS_GRAD = 32,     /* GPU: sums the bias gradient in the activation's; changes the order of a sum */
    REWRITE_TRIM = 64,          /* removes outputs without readers */
    REWRITE_ACT_RECOMPUTE = 128,    /* recomputes the activation in its own gradient */
    REWRITE_HANDOVER = 256,     /* gradients occupy memory only from backward to update */
    REWRITE_INLAY = 512,        /* the inputs of a CONCAT are written in place */
    REWRITE_REUSE = 1024,       /* an output overwrites an input that is not read again */
    REWRITE_ADD_NORM = 2048,    /* fuses a sum and the norm after it */
    REWRITE_FIRST_SUM = 4096,   /* the first term of a sum is written, not added to 0; changes the sign of a zero */
    REWRITE_ALL = 8191,
};

/* The planner's decisions, and the recipe of the update. */
struct settings {
    int micro_batch;          /* samples in one iteration */
    int accumulation;         /* iterations in one step */
    enum dtype precision;     /* of activations and working weights: f32, bf16 or f16 */
    bool pure;                /* no master weights: bf16 weights are updated with stochastic rounding */
    struct recompute recompute; /* gradient checkpointing */
    unsigned offload;         /* enum offload */
    int head_chunks;          /* chunks of the LM head or mask decoder */
    bool fused_step;          /* a weight is updated as soon as its gradient is complete */
    enum optimizer optimizer;
    enum state_dtype state;
    const struct module_rule *modules;
    uint32_t n_modules;

    double beta1, beta2, eps, weight_decay;
    double momentum;        /* of sgd */
    double layer_decay;     /* factor on the learning rate per layer below the last; 0 or 1: none */
    const struct update_rule *rules;
    uint32_t n_rules;
    bool train;             /* false: no update program (`plimsoll step`) */
    bool forward;           /* no backward (`plimsoll predict`, `eval`) */
    uint64_t loader_bytes;  /* size of the data loader's staging buffer "loader"; 0: none */
    bool host_staging;      /* GPU: the host cannot access device memory, so staging buffers lie in host memory */
    bool inputs_ahead;      /* the staging buffer "next" holds the batch of the next step while a step runs */
    unsigned without;       /* enum rewrite: disabled rewrites; 0 except in tests */
    bool pipelined;              /* a step is submitted before the previous one retires: needs the staging buffer "tickets" and GUARD */
};

/* Copies the planner's decisions into `s`; its recipe stays. */
void settings_follow(struct settings *s, const struct settings *decided);

/* The combinations of enum offload that a search tries, each a superset of the one before
 * (offload.c). offload_repeats: combination i equals the one before, for lack of master weights. */
enum { OFFLOAD_RUNGS = 5 };
unsigned offload_ladder(int i);
bool offload_repeats(int i, const struct settings *s);

/* Settings as text (settings.c): in the configuration, in plan files, in tables. The parsers return
 * false for any other text. */
enum { SETTING_ROOM = 64 };
const char *recompute_print(const struct recompute *r, char out[SETTING_ROOM]);
bool recompute_parse(const char *text, struct recompute *out);
const char *offload_print(unsigned offload, char out[SETTING_ROOM]);
bool offload_parse(const char *text, unsigned *out);
/* "f32", "bf16", "f16", "bf16-pure"; "adamw", "adamw-bf16", "adamw-8bit", "sgd", "adafactor". */
const char *precision_print(const struct settings *s);
bool precision_parse(const char *text, struct settings *out);
const char *optimizer_print(const struct settings *s);
bool optimizer_parse(const char *text, struct settings *out);

typedef void pass_fn(struct graph *g, const struct settings *s);
pass_fn pass_precision, pass_fuse, pass_linear_add, pass_chunk, pass_differentiate, pass_join, pass_residual, pass_bias_grad, pass_pure_grad, pass_accumulate,
    pass_recompute, pass_selective, pass_trim, pass_optimizer, pass_act_recompute, pass_loss_scale, pass_fused_step, pass_guard, pass_offload, pass_handover,
    pass_inlay, pass_reuse, pass_add_norm, pass_first_sum;
pass_fn pass_dense; /* in plan/dense.c, because it queries kernels */

/* The rows of one chunk of the head in program step and in evaluation if it is split into `chunks`;
 * 0: it is not split. pass_chunk reads nothing else of that setting (chunk.c). */
void chunk_rows(struct graph *g, int chunks, int64_t rows[2]);
/* A hash of everything in the graph that program update is made from. Two graphs with the same hash
 * and the same settings of update and offload have the same program update and offload the same
 * weights (optimizer.c). */
uint64_t optimizer_signature(const struct graph *g);

/* True if some module computes in f16, so that the loss is scaled (loss_scale.c). */
bool settings_scale_loss(const struct settings *s);
/* Inserts op(sum of squares of all gradients, step, loss) before the CLIP of program update; the
 * nodes after it read the step block that it returns. Returns false if there is no CLIP. */
bool emit_before_clip(struct graph *g, uint16_t op, const char *pass);

#endif
