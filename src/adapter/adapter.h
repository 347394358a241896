/*
 * adapter.h: a LoRA adapter as PEFT's LoraConfig describes it, and which modules it adapts.
 *
 * A module is a parameter's name without its last part: "model.layers.0.self_attn.q_proj" for
 * "model.layers.0.self_attn.q_proj.weight". The matching rules are PEFT's own
 * (tuners_utils.check_target_module_exists, get_pattern_key).
 */
#ifndef ADAPTER_H
#define ADAPTER_H

#include "base/base.h"
#include "base/spelling.h"

/* target_modules and exclude_modules: a list of names, or a regular expression that the whole name
 * must match. Both empty: not given. */
struct adapter_names {
    const char *const *at;
    uint32_t n;
    const char *regex;        /* NULL: a list */
};

/* An item of rank_pattern or alpha_pattern. */
struct adapter_pattern {
    const char *key;          /* (.*\.)?(key)$ matches the module */
    double value;
};

enum adapter_bias { ADAPTER_BIAS_NONE, ADAPTER_BIAS_ALL, ADAPTER_BIAS_LORA_ONLY };
/* init_lora_weights: true, "gaussian", false; "orthogonal" and "eva" only of adapters whose weights
 * are read. */
enum adapter_init {
    ADAPTER_INIT_DEFAULT,
    ADAPTER_INIT_GAUSSIAN,
    ADAPTER_INIT_RANDOM,
    ADAPTER_INIT_ORTHOGONAL,
    ADAPTER_INIT_EVA,
    ADAPTER_INITS
};

struct adapter {
    int64_t r;
    double alpha, dropout;    /* lora_alpha, lora_dropout */
    struct adapter_names target, exclude;
    bool all_linear;          /* target_modules: all-linear */
    const char *const *save;  /* modules_to_save */
    uint32_t n_save;
    enum adapter_bias bias;
    bool rslora, dora;
    const struct adapter_pattern *ranks, *alphas; /* rank_pattern, alpha_pattern */
    uint32_t n_ranks, n_alphas;
    const int64_t *layers;    /* layers_to_transform */
    uint32_t n_layers;
    const char *const *layers_pattern;
    uint32_t n_layers_pattern;
    enum adapter_init init;
    const char *root;         /* beginning of the model's module names that the adapter's names leave out, such as
                               * "vision_model."; the patterns are for names without it. NULL:
                               * none */
    const struct spelling *spellings; /* the model's names in other spellings (base/spelling.h); NULL: one... */
    struct spelled spelled;   /* ...and that of the adapter's names and patterns */
    const char *task_type;    /* copied into adapter_config.json; NULL: null */
    const char *source;       /* adapter_config.json as it was read, which is written back; NULL: made here */
    struct adapter_compiled *compiled; /* by adapter_check */
};

/* Checks every value and compiles the patterns into `memory`, which must live as long as the
 * adapter. PL_USAGE: r below 1, a regular expression that does not compile, dropout outside of
 * [0,1), ... The message begins with `section` and the key: "adapter." gives "adapter.r is 0; ...",
 * "" gives "r is 0". The questions below are for a checked adapter; a copy of the struct remains
 * checked. Thread-safe. */
int adapter_check(struct adapter *a, const char *section, struct bump *memory, struct error *e);

/* Reports whether a module is copied and trained as a whole, or is inside of such a module
 * (modules_to_save). As in PEFT an item is the end of a name, whatever precedes it: "head" saves
 * lm_head too. */
bool adapter_saves(const struct adapter *a, const char *module);
/* Reports whether a linear module gets an adapter. `head`: it is the output head, which all-linear
 * leaves out. A module that adapter_saves is never adapted. */
bool adapter_adapts(const struct adapter *a, const char *module, bool head);
/* Reports whether a parameter of the base is a bias that is trained (bias). `adapted`: its module
 * has an adapter. */
bool adapter_trains_bias(const struct adapter *a, const char *parameter, bool adapted);
/* Rank, and the factor on the adapter's product: alpha / r, or with use_rslora alpha / sqrt(r). */
int64_t adapter_rank(const struct adapter *a, const char *module);
double adapter_scale(const struct adapter *a, const char *module);

/* Returns PL_USAGE if a regular expression needed too many steps for one of the modules that were
 * asked about, so that an answer above was a guess. It is called once, behind all modules. */
int adapter_unanswered(const struct adapter *a, const char *section, struct error *e);

#endif
