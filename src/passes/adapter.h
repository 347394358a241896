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
enum adapter_init { ADAPTER_INIT_DEFAULT, ADAPTER_INIT_GAUSSIAN, ADAPTER_INIT_RANDOM }; /* init_lora_weights: true, "gaussian", false */

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
    const char *task_type;    /* copied into adapter_config.json; NULL: null */
};

/* PL_USAGE: r below 1, a regular expression that does not compile, dropout outside of [0,1), ... The
 * message names the key of the configuration, such as adapter.r. */
int adapter_check(const struct adapter *a, struct error *e);

/* True if a module is copied and trained as a whole (modules_to_save). */
bool adapter_saves(const struct adapter *a, const char *module);
/* True if a linear module gets an adapter. `head`: it is the output head, which all-linear leaves
 * out. A module that adapter_saves names, or that is inside one, is never adapted. */
bool adapter_adapts(const struct adapter *a, const char *module, bool head);
/* Rank, and the factor on the adapter's product: alpha / r, or with use_rslora alpha / sqrt(r). */
int64_t adapter_rank(const struct adapter *a, const char *module);
double adapter_scale(const struct adapter *a, const char *module);

#endif
