/*
 * passes.h: the memory techniques. One file each, one signature; each rewrites
 * the graph and knows nothing of the others. plan/compile.c runs them in order:
 *
 *     precision -> fuse -> linear_add -> chunk -> dense -> differentiate -> join -> residual -> bias_grad -> pure_grad -> dense
 *               -> accumulate -> recompute -> selective -> trim -> optimizer -> act_recompute -> loss_scale -> fused_step
 *               -> guard -> offload -> handover -> inlay -> reuse -> add_norm -> first_sum
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

/* What the backward makes again instead of reading it from where the forward left it.
 * Units are blocks: the scopes that say so, numbered in the order of the forward. */
enum rebuild_kind {
    REBUILD_NONE,
    REBUILD_ALL,       /* every block, from what enters it */
    REBUILD_SELECTIVE, /* norms, activations and the like, everywhere (selective.c) */
    REBUILD_EVERY,     /* blocks 0, n, 2n, ... */
    REBUILD_RATIO,     /* the first share of the blocks, rounded up */
    REBUILD_SEGMENTS,  /* n runs of consecutive blocks, each from what enters its first */
    REBUILD_FIRST,     /* the first n blocks: what the search chooses from */
    REBUILD_KINDS
};
struct rebuild {
    enum rebuild_kind kind;
    int n;             /* EVERY, SEGMENTS, FIRST */
    double ratio;      /* RATIO */
    bool halves;       /* a block's attention and MLP are units of their own */
    bool selective;    /* what is kept is kept selectively */
};

/* What leaves the compute device's memory for host memory; flags. */
enum offload {
    OFFLOAD_STATE = 1,       /* optimizer state */
    OFFLOAD_MASTERS = 2,     /* f32 masters behind lower-precision weights */
    OFFLOAD_WEIGHTS = 4,     /* working and frozen weights, streamed block by block */
    OFFLOAD_ACTIVATIONS = 8, /* what the forward saves for the backward */
    OFFLOAD_ALL = 15,
};

enum optimizer { OPT_ADAMW, OPT_SGD, OPT_ADAFACTOR, OPT_KINDS };
/* How the optimizer's state is kept. */
enum state_form { STATE_F32, STATE_BF16, STATE_8BIT, STATE_FORMS };

/* Settings of modules by name: the last rule whose pattern matches a scope wins. */
struct module_rule {
    const char *const *match;
    uint32_t n_match;
    bool has_recompute;
    struct rebuild recompute;
    bool has_precision;
    enum dtype precision;
};

/* A pattern, or any of a rule's, means the scope: it matches its name, or that of a module
 * around it (modules.c). */
bool module_pattern(const char *pattern, const char *scope);
bool module_matches(const struct module_rule *r, const char *scope);

/* Rewrites that run in every plan, because they save memory or time and keep the result; flags. A test leaves some out
 * through settings.without and compares. A rewrite keeps every bit, or the comment says what it changes. */
enum rewrite {
    REWRITE_FUSE = 1,           /* the activation into the product before it */
    REWRITE_LINEAR_ADD = 2,     /* the residual into the product; the order of a sum */
    REWRITE_DENSE = 4,          /* GPU: copies before kernels that want dense operands; other kernels run then */
    REWRITE_JOIN = 8,           /* CONCAT instead of a sum of padded gradients; the sign of a zero */
    REWRITE_RESIDUAL = 16,      /* the residual's gradient into the norm's; below f32 one rounding less */
    REWRITE_BIAS_GRAD = 32,     /* GPU: the bias gradient into the activation's; the order of a sum */
    REWRITE_TRIM = 64,          /* outputs that nobody reads */
    REWRITE_ACT_RECOMPUTE = 128,    /* the recomputed activation into its own gradient */
    REWRITE_HANDOVER = 256,     /* gradients occupy memory only from backward to update */
    REWRITE_INLAY = 512,        /* parts of a CONCAT are written in place */
    REWRITE_REUSE = 1024,       /* an output overwrites an input that is not read again */
    REWRITE_ADD_NORM = 2048,    /* a sum and the norm after it in one op */
    REWRITE_FIRST_SUM = 4096,   /* the first term of a sum is written, not added to 0; the sign of a zero */
    REWRITE_ALL = 8191,
};

/* What the planner decided, and the recipe of the update. */
struct settings {
    int micro_batch;          /* samples in one iteration */
    int accumulation;         /* iterations in one step */
    enum dtype precision;     /* of activations and working weights: f32, bf16 or f16 */
    bool pure;                /* no masters: weights are updated in bf16, rounded stochastically */
    struct rebuild recompute; /* what the backward makes again */
    unsigned offload;         /* enum offload: what lives in host memory */
    int head_chunks;          /* the row-wise head runs in so many pieces */
    bool fused_step;          /* a weight is updated as soon as its gradient is complete */
    enum optimizer optimizer;
    enum state_form state;
    const struct module_rule *modules;
    uint32_t n_modules;

    double beta1, beta2, eps, weight_decay;
    double momentum;        /* of sgd */
    double layer_decay;     /* factor on the rate per layer below the last; 0 or 1: none */
    const struct update_rule *rules;
    uint32_t n_rules;
    bool train;             /* false: no update program (`plimsoll step`) */
    bool forward;           /* nothing is differentiated (`plimsoll predict`, `eval`) */
    uint64_t loader_bytes;  /* of the staging buffer "loader", where samples are made ready; 0: none */
    bool host_staging;      /* the host cannot touch the compute space: staging lies in the second */
    bool inputs_ahead;      /* the staging buffer "next" holds a batch that is on its way while a step runs */
    unsigned without;       /* enum rewrite: those that are left out; 0 outside of tests */
    bool pipelined;              /* a step is asked for before the one before it was read: the staging buffer "tickets", and GUARD */
};

/* Takes over what the planner decides; the recipe stays. */
void settings_follow(struct settings *s, const struct settings *decided);

/* The combinations of enum offload that a search need try, each more than the one before
 * (offload.c); and whether one is the same as the one before it, for lack of masters. */
enum { OFFLOAD_RUNGS = 5 };
unsigned offload_ladder(int i);
bool offload_repeats(int i, const struct settings *s);

/* The words by which a setting is written and read (settings.c): in the configuration, in
 * a plan's file, in tables. The readers give false on anything else. */
enum { SETTING_ROOM = 64 };
const char *rebuild_print(const struct rebuild *r, char out[SETTING_ROOM]);
bool rebuild_parse(const char *text, struct rebuild *out);
const char *offload_print(unsigned away, char out[SETTING_ROOM]);
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
pass_fn pass_dense; /* plan/dense.c: it asks for kernels */

/* The rows of one chunk of the head in program step and in evaluation, if it is split into `chunks`; 0: it is not split.
 * pass_chunk reads nothing else of that setting (chunk.c). */
void chunk_pieces(struct graph *g, int chunks, int64_t piece[2]);
/* A hash of everything in the graph that program update is made from: of two graphs with the same hash and the same settings
 * of update and offload, program update is the same, and the same weights are offloaded (optimizer.c). */
uint64_t optimizer_signature(const struct graph *g);

/* Something is computed in f16, so the loss is scaled (loss_scale.c). */
bool settings_scale_loss(const struct settings *s);
/* Puts op(sum of squares of all gradients, step, loss) before program update's CLIP: what follows reads the
 * step that it leaves. False: there is no CLIP. */
bool emit_before_clip(struct graph *g, uint16_t op, const char *pass);

#endif
