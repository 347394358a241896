/*
 * adapter.h: a LoRA adapter as PEFT's LoraConfig describes it, and which modules it adapts.
 *
 * A module is a parameter's name without its last part: "model.layers.0.self_attn.q_proj" for
 * "model.layers.0.self_attn.q_proj.weight". The matching rules are PEFT's own
 * (tuners_utils.check_target_module_exists, get_pattern_key).
 */
#pragma once

#include "base/base.h"
#include "base/spelling.h"
#include "config/config.h"
#include "graph/graph.h"

struct family;

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
    bool fan_in_fan_out;      /* written, and of no effect: whether the adapted weights are [inputs,outputs] */
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

/* --- adapter_config.json (adapter_config.c) ------------------------------------------------- */

/* Read: a key that is not done here is accepted as long as it changes nothing (null, false, empty
 * or PEFT's default), and refused by name otherwise. Written: every key that PEFT writes today, in
 * its order and layout, so that PeftModel.from_pretrained opens the folder. */

/* Reads a file, or n bytes of text, into *out, which lives in `memory` and is checked
 * (adapter_check). PL_USAGE: the message begins with the path, or for a text with the key. */
int adapter_config_read(const char *path, struct bump *memory, struct adapter *out, struct error *e);
int adapter_config_parse(const char *bytes, size_t n, struct bump *memory, struct adapter *out, struct error *e);

/* Writes the text of the file, without a newline at the end, as PEFT. `base`:
 * base_model_name_or_path; NULL: null. An adapter that was read is written as it was read. For
 * all-linear, target_modules is the list of the n names that it means, as PEFT writes it. */
void adapter_config_write(const struct adapter *a, const char *base, const char *const *target_names, uint32_t n,
                          struct text *out);

/* --- the keys of section adapter (adapter_keys.c) ------------------------------------------- */

/* Reports whether the configuration asks for an adapter. */
bool adapter_given(const struct config *c);
/* Fills `out` for a model of that family; what it points to is in `b`. With adapter.path the
 * settings are those of the folder's adapter_config.json, and another key with a value of its own
 * is PL_USAGE; only adapter.lora_dropout may differ. */
int adapter_open(const struct config *c, const struct family *family, struct bump *b, struct adapter *out,
                 struct error *e);

/* --- adapters in a model's forward (lora.c) ------------------------------------------------- */

/* Adds the adapters to the forward of the current program, built for B samples, and freezes every
 * other parameter except those that the adapter trains as a whole. */
void pass_lora(struct graph *g, const struct adapter *a, int64_t B);

/* Returns PL_USAGE if a name of the adapter matches no module of the forward, built without
 * adapters, or a module that LoRA does not adapt; the message names the module, or the nearest
 * one. */
int lora_check(const struct graph *g, const struct adapter *a, struct error *e);

/* Lists what target_modules are for all-linear, in `b`: the names of the modules that have an
 * adapter, in the order of the forward; for a model with experts the last parts of these names, as
 * PEFT shortens long lists. Returns their number. */
uint32_t lora_targets(const struct graph *g, struct bump *b, const char *const **names);
/* Reports whether the weight of the last module with an adapter is [inputs,outputs], which PEFT
 * calls fan_in_fan_out. */
bool lora_transposed(const struct graph *g);
/* Prints "LoRA on 64 modules (q_proj 32, v_proj 32); 4,194,304 of 6,742,609,920 weights are trained
 * (0.0622 %)" for a forward with adapters. */
void lora_print(const struct graph *g, struct text *out);
