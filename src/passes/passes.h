/*
 * passes.h: the memory techniques and the rewrites. techniques.def has a row for each technique
 * that a user may set or the planner may choose; pipeline.def has the passes in their order. Each
 * pass is one file; it rewrites the graph and depends on no other.
 */
#pragma once

#include "graph/graph.h"
#include "passes/precision.h"
#include "run/traits.h"

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
    OFFLOAD_UPDATE = 16,     /* no bytes: the update of a weight, if what it updates is offloaded */
    OFFLOAD_ALL = 31,
};

/* Chunks of the mask head: as many as of the LM head. */
enum { MASK_CHUNKS_SAME = 0 };

/* Images that a frozen tower encodes at once: as many as there are, or inline, as a part of the
 * step. */
enum { ENCODE_INLINE = 0, ENCODE_ALL = 1 << 20 };

/* What is divided among ranks instead of being repeated on each; a level includes those before
 * it. */
enum shard_level { SHARD_NONE, SHARD_OPTIMIZER, SHARD_GRADIENTS, SHARD_WEIGHTS, SHARD_LEVELS };
/* The ranks among which it is divided, by the ladder of techniques.def. */
enum shard_group { GROUP_ALL, GROUP_HOST };

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
    enum precision precision;
};

/* memory.quantize: the form of the weights of layers by name: the last rule with a pattern that
 * matches wins. */
enum quantize { QUANTIZE_NONE, QUANTIZE_NF4, QUANTIZE_FP8, QUANTIZE_RULES };
struct quantize_rule {
    const char *const *match;
    uint32_t n_match;
    uint8_t form;           /* enum stored */
};

/* Reports whether a pattern matches a module's name or that of a module around it (modules.c). */
bool module_pattern(const char *pattern, const char *module);
/* Returns the name of the module that a scope is: without the passes around it (SCOPE_PASS), as
 * parameters are named. "": the scope is itself such a pass. */
const char *module_name(const struct graph *g, id scope);
/* Reports whether a pattern, or any pattern of a rule, matches the scope: by its module, or by its
 * whole name. */
bool module_scope(const char *pattern, const struct graph *g, id scope);
bool module_matches(const struct module_rule *r, const struct graph *g, id scope);

/* The rewrites of pipeline.def, as flags: REWRITE_fuse, ... */
#define BASE_PASS(...)
#define TECHNIQUE_PASS(...)
#define AGAIN(...)
enum rewrite_number {
#define REWRITE_PASS(name, ...) REWRITE_NUMBER_##name,
#include "passes/pipeline.def"
#undef REWRITE_PASS
    REWRITES
};
enum rewrite {
#define REWRITE_PASS(name, ...) REWRITE_##name = 1 << REWRITE_NUMBER_##name,
#include "passes/pipeline.def"
#undef REWRITE_PASS
    REWRITE_ALL = (1 << REWRITES) - 1
};
#undef BASE_PASS
#undef TECHNIQUE_PASS
#undef AGAIN

/* The phases of pipeline.def, in order. */
enum pipeline_phase {
    PIPELINE_FORWARD,
    PIPELINE_BACKWARD,
    PIPELINE_RECOMPUTE,
    PIPELINE_UPDATE,
    PIPELINE_WHOLE,
    PIPELINE_PHASES
};

/* The planner's decisions (techniques.def), and the recipe of the update. */
struct settings {
#define TECHNIQUE(section, name, type, members, ...) members;
#include "passes/techniques.def"
#undef TECHNIQUE
    const struct module_rule *modules;
    uint32_t n_modules;
    const struct quantize_rule *quantize_rules;
    uint32_t n_quantize_rules;

    bool bf16_ends;         /* fp8: the first and the last of a row of blocks stay in bf16 (operands.c) */

    double beta1, beta2, eps, weight_decay;
    double momentum;        /* of sgd */
    double layer_decay;     /* factor on the learning rate per layer below the last; 0 or 1: none */
    const struct update_rule *rules;
    uint32_t n_rules;
    bool train;             /* false: no update program (`plimsoll step`) */
    bool forward;           /* no backward (`plimsoll predict`, `eval`) */
    bool sparse_labels;        /* many labels of a batch are -100: those of all tokens that are no answer */
    uint64_t loader_bytes;  /* size of the data loader's staging buffer "loader"; 0: none */
    struct device_traits device; /* properties of the plan's device */
    bool inputs_ahead;      /* the staging buffer "next" holds the batch of the next step while a step runs */
    unsigned without;       /* enum rewrite: disabled rewrites; 0 except in tests */
    /* generation: tokens that program prompt takes at once; 0: the run does not generate */
    int prompt_chunk;
    int prompts;                 /* generation: prompts that are answered at once */
    int ranks, shares;           /* ranks that add gradients; shares of a step on each of them (shares.c); 0 is 1 */
    int per_host;                /* ranks of a host; 0: all are on one */
    int tensor, tensor_shares;   /* ranks of AXIS_TENSOR; parts of a product on each of them (tensor.c); 0 is 1 */
    bool motions;                /* a single rank has the collectives of several: for tests and measurements */
    /* a step is submitted before the previous one retires: needs the staging buffer "tickets" and
     * GUARD */
    bool pipelined;
};

/* Returns the precision of a scope: that of the last rule that matches it and has one, else
 * memory.precision. */
enum precision scope_precision(const struct settings *s, const struct graph *g, id scope);

/* Returns the parts into which products are divided, by all ranks of AXIS_TENSOR. */
static inline int settings_tensor_parts(const struct settings *s)
{
    return mesh_size(s->tensor) * mesh_size(s->tensor_shares);
}
/* Returns the number of ranks of the run. */
static inline int settings_world(const struct settings *s) { return mesh_size(s->ranks) * mesh_size(s->tensor); }
static inline struct mesh settings_mesh(const struct settings *s) { return (struct mesh){.tensor = s->tensor}; }
/* Reports whether ranks meet in the forward, so that all of them run it together. */
static inline bool settings_meet(const struct settings *s) { return s->shard == SHARD_WEIGHTS || s->tensor > 1; }

/* Returns the number of ranks that a collective is over; 0: there is none. */
static inline int settings_group(const struct settings *s) { return s->ranks > 1 ? s->ranks : s->motions; }

/* Returns the number of ranks that hold one copy of a divided weight between them. settings_axis
 * returns their axis, and settings_copies the number of such groups. */
static inline int settings_holders(const struct settings *s) { return s->group == GROUP_HOST ? s->per_host : s->ranks; }
static inline int settings_axis(const struct settings *s) { return s->group == GROUP_HOST ? AXIS_HOST : AXIS_DATA; }
static inline int settings_copies(const struct settings *s) { return s->ranks / settings_holders(s); }

/* Returns attr.group.host of a collective over all ranks; settings_holders_host returns that of one
 * over the ranks that hold a copy. There are two levels where a host's ranks are a subtree of the
 * tree over all, so that no bit changes. */
static inline int settings_host(const struct settings *s)
{
    const int host = s->per_host;
    return host > 1 && host < s->ranks && !(host & (host - 1)) ? host : 0;
}
static inline int settings_holders_host(const struct settings *s)
{
    return s->group == GROUP_HOST ? 0 : settings_host(s);
}

/* Returns the dtype of activations where no rule for modules says otherwise. */
static inline enum dtype settings_dtype(const struct settings *s) { return policies[s->precision].compute; }

/* --- techniques as a table (settings.c) -------------------------------------------------- */

/* A technique by name, for example TECHNIQUE_head_chunks. */
enum technique_id {
#define TECHNIQUE(section, name, ...) TECHNIQUE_##name,
#include "passes/techniques.def"
#undef TECHNIQUE
    TECHNIQUES
};
enum technique_type { TYPE_COUNT, TYPE_SWITCH, TYPE_CHOICE, TYPE_NAMED, TYPE_NAMED_OR_COUNT, TYPE_WORD };
enum { SETTING_ROOM = 64 };
enum { USED_BY_UPDATE = 1, USED_BY_EVAL = 2 }; /* program step uses every technique */

/* What a technique changes, and so how the search combines its values with those of the others
 * (plan/search_space.c). There is one technique of each class but CLASS_STEP, CLASS_SHARES, of
 * which the first has levels that add collectives, CLASS_CHUNKS and CLASS_ROWS. */
enum technique_class {
    CLASS_STEP,   /* the whole step: each value of the ladder stands with all other choices */
    CLASS_SHARES, /* the same; steps of all values compute alike: what ranks divide */
    CLASS_SPLIT,  /* the number of micro-batches of a step */
    CLASS_CHUNKS, /* the whole step: a number of chunks for each kind of scope */
    CLASS_ROWS,   /* the whole step, where rows are long: parts in which they are computed */
    CLASS_BLOCKS, /* block by block: some blocks have a value of the ladder, the rest another one */
    CLASS_UPDATE, /* program update */
    CLASS_PLACES, /* every subset of what can be in host memory */
    CLASS_FUSED,  /* a step of one micro-batch with its update */
};

/* What bounds a step besides the settings. */
struct step_limits {
    int effective_batch;
    int least_micro_batch;    /* the smallest micro-batch that the device and the model take */
    int trips;                /* most iterations of a loop on the device; 0: no limit */
    bool clips;               /* train.clip_norm is set */
};

/* A row of techniques.def. Lists of values have | between them. */
struct technique {
    const char *section, *name; /* "memory", "recompute" */
    enum technique_type type;
    size_t offset, size;      /* of its members in struct settings */
    const char *(*print)(const struct settings *s, char out[SETTING_ROOM]); /* TYPE_WORD */
    bool (*parse)(const char *text, struct settings *out);
    const char *off;          /* the value without the technique; NULL: it has none */
    enum technique_class class;
    const char *ladder;       /* values that the search tries, from the fastest step to the least memory... */
    const char *also;         /* ...and that only `doctor` tries */
    const char *compare;      /* rows of `plan --compare`; "least": the smallest possible number */
    const char *compare_else; /* instead of `compare`, on a device that does not support it */
    const char *label;        /* in lists of the techniques in use; %s: the value */
    /* "precision=bf16|bf16-pure": unless it is off, the other technique must have one of these
     * values; NULL: none */
    const char *needs;
    /* kinds of models in which it has an effect, as column `needs` of config.def names them; NULL:
     * all */
    const char *models;
    /* Whether the other settings and the limits exclude the technique, or its value, and why, with
     * what to do (the technique's file); NULL: nothing does. */
    bool (*excluded)(const struct settings *s, const struct step_limits *l, struct text *why);
    const char *rules;        /* the value where the configuration has a list of rules instead; NULL: it takes none */
    bool unsaid;              /* plan files do not name it where it is off: few models have it */
    const char *permitted;    /* values that the search may choose where memory.allow lists them */
    /* CLASS_BLOCKS, by value of the ladder: the value of the blocks that it leaves, "": it is for
     * the whole step; the value for the first n blocks, "": it is for all; the values with which
     * weights and activations are offloaded */
    const char *rest, *part, *streamed;
    /* Whether a graph has what the technique changes; NULL: every graph has. */
    bool (*applies)(const struct graph *g);
    /* How many of a micro-batch its values count: as many, or more, are as good as all; CLASS_ROWS:
     * the largest value that the search tries, times the samples. 0: the technique has no effect.
     * NULL: its values do not count. */
    int64_t (*counted)(struct graph *g, const struct settings *s);
    bool updates_only;        /* off where weights are not updated (`plimsoll step`) */
    bool without_training;    /* chosen by the search also there */
    enum pipeline_phase phase; /* the first phase that reads it */
    unsigned programs;        /* programs besides step that depend on it: USED_BY_... */
    bool orders_sums;         /* another value adds the same numbers in another order: other bits, near 1e-7 in f32 */
    bool changes_results;     /* the search does not choose it unless memory.allow permits it */
};
extern const struct technique techniques[TECHNIQUES];

/* Prints and parses the value of a technique as text, in the configuration, plan files and tables.
 * The parser returns false for any other text. Parsing the printed text gives the same settings. */
const char *technique_print(enum technique_id id, const struct settings *s, char out[SETTING_ROOM]);
bool technique_parse(enum technique_id id, const char *text, struct settings *out);
/* Returns the index of a value in a list of values; -1: it is not in it. */
int technique_rung(const char *list, const char *value);
/* Reports whether what the technique needs is met. If not, `other` and `values` are what it
 * needs. */
bool technique_met(enum technique_id id, const struct settings *s, enum technique_id *other, const char **values);
/* Reports whether the technique has its value `off`. */
bool technique_is_off(enum technique_id id, const struct settings *s);
/* Prints the technique's label with its value: "recompute all". */
const char *technique_label(enum technique_id id, const struct settings *s, char out[2 * SETTING_ROOM]);
/* Copies a technique, or all of them; the recipe stays. */
void technique_copy(enum technique_id id, struct settings *to, const struct settings *from);
void settings_follow(struct settings *s, const struct settings *decided);
/* Prints value i of a list of values; returns false if it has no such value. */
bool technique_value(const char *list, int i, char out[SETTING_ROOM]);
/* Prints the precision: "bf16-pure". Returns `out`. */
const char *settings_precision(const struct settings *s, char out[SETTING_ROOM]);
/* Prints precision, optimizer and the techniques in use: "bf16, adamw, recompute all, head in 4
 * chunks". */
void settings_print(const struct settings *s, struct text *out);
/* Finds a technique by name, or the first one of a class; TECHNIQUES: there is none. */
enum technique_id technique_find(const char *name);
enum technique_id technique_in(enum technique_class class);
/* Reports whether the technique has the same value in both settings. */
bool technique_same(enum technique_id id, const struct settings *a, const struct settings *b);
/* Returns the number that a technique has, of a type with numbers. */
int technique_count(enum technique_id id, const struct settings *s);
/* Orders settings by the techniques that passes read up to and including a phase: those whose
 * graphs share the most come together. */
int settings_order(const struct settings *a, const struct settings *b, enum pipeline_phase last);

/* technique.excluded of the rows. */
bool micro_batch_excluded(const struct settings *s, const struct step_limits *l, struct text *why);
bool head_chunks_excluded(const struct settings *s, const struct step_limits *l, struct text *why);
bool mask_chunks_excluded(const struct settings *s, const struct step_limits *l, struct text *why);
bool transposed_weights_excluded(const struct settings *s, const struct step_limits *l, struct text *why);
bool fused_step_excluded(const struct settings *s, const struct step_limits *l, struct text *why);
bool offload_excluded(const struct settings *s, const struct step_limits *l, struct text *why);
bool shard_excluded(const struct settings *s, const struct step_limits *l, struct text *why);
bool group_excluded(const struct settings *s, const struct step_limits *l, struct text *why);

/* Says of block `number` of `count`, from 1 in the order of the forward, whether its weights are
 * offloaded: settings.offload_blocks of them, evenly spread; 0: all (offload.c). */
bool offload_has_block(const struct settings *s, uint32_t number, uint32_t count);
/* Reports whether there are master weights, which can be offloaded; offload_is_whole reports
 * whether the set offloads no update without what it updates (offload.c). */
bool offload_has_masters(const struct settings *s);
bool offload_is_whole(const struct settings *s, unsigned set);

/* Checks memory.quantize against a model's forward graph (quantize.c): PL_USAGE if a rule names no
 * linear layer, or one whose weight is trained or tied, if nf4 finds no weight to quantize, or if a
 * weight that the folder has in 4 bits is trained. */
int quantize_check(const struct graph *g, const struct settings *s, struct error *e);
/* Reports whether frozen weights are stored in e4m3. */
bool quantize_has_fp8(const struct settings *s);
/* Sets the form in which each parameter of the graph would be kept: forms[params], enum stored. */
void quantize_forms(const struct graph *g, const struct settings *s, uint8_t *forms);
/* Says of each parameter whether its product chooses experts: routers[params]. nf4 leaves these as
 * they are. */
void quantize_routers(const struct graph *g, bool *routers);

/* memory.recompute as text, which memory.modules has too. */
#define RECOMPUTE_VALUES                                                                                               \
    "none, all, selective, every:N, ratio:R with R from 0 to 1, segments:K or first:N; if it names blocks, also with " \
    "+selective appended, and except for segments with +halves"
const char *recompute_text(const struct recompute *r, char out[SETTING_ROOM]);
bool recompute_read(const char *text, struct recompute *out);
const char *offload_text(const struct settings *s, char out[SETTING_ROOM]);

typedef void pass_fn(struct graph *g, const struct settings *s);
#define BASE_PASS(name, ...) pass_fn pass_##name;
#define TECHNIQUE_PASS(name, ...) pass_fn pass_##name;
#define REWRITE_PASS(name, ...) pass_fn pass_##name; /* pass_dense is in plan/dense.c, because it queries kernels */
#define AGAIN(...)
#include "passes/pipeline.def"
#undef BASE_PASS
#undef TECHNIQUE_PASS
#undef REWRITE_PASS
#undef AGAIN

/* Returns the images of the largest program that pass_encode changes; 0: no program has a frozen
 * tower (encode.c). */
int64_t encode_images(struct graph *g, const struct settings *s);
/* Sets, by program, the rows of one chunk of the heads; 0: they are not split. pass_chunk reads
 * nothing else of head_chunks and mask_chunks (chunk.c). */
void chunk_rows(struct graph *g, const struct settings *s, int64_t rows[PROGRAM_COUNT]);
/* Reports whether a program has a head, and whether one has an LM head and a mask head, so that
 * mask_chunks is the second one's (chunk.c). */
bool chunk_has_rows(const struct graph *g);
bool chunk_has_masks(const struct graph *g);
/* Returns the most chunks that the search makes of the tokens of a block, and of the heads of an
 * attention, times the samples of a micro-batch: chunks of TOKENS_LEAST tokens or more, where an
 * attention is over LONG_ROW tokens or more; else 0. */
enum { TOKENS_LEAST = 1024, LONG_ROW = 8192 };
int64_t token_chunks_most(struct graph *g, const struct settings *s);
int64_t attention_chunks_most(struct graph *g, const struct settings *s);
/* Reports whether all heads have as many chunks with both settings. */
bool chunk_same(const struct settings *a, const struct settings *b);
/* Returns a hash of everything in the graph that program update is made from. Two graphs with the
 * same hash and the same settings of update and offload have the same program update and offload
 * the same weights (optimizer.c). */
uint64_t optimizer_signature(const struct graph *g);

/* Reports whether some module computes in f16, so that the loss is scaled (loss_scale.c). */
bool settings_scale_loss(const struct settings *s);
/* Inserts op(sum of squares of all gradients, step, loss) before the CLIP of program update; the
 * nodes after it read the step block that it returns. Returns false if there is no CLIP. */
bool emit_before_clip(struct graph *g, uint16_t op, const char *pass);
