/*
 * config.h: the configuration of a run.
 *
 * config.def is the table of keys; struct config has one plain member per key,
 * config.train_learning_rate for train.learning_rate. Sources come in this order,
 * and a later one overrides: the defaults, the configurations of other programs (import.h),
 * RUN.yaml, --set key=value, --memory SIZE.
 *
 *     config_init(&c);
 *     config_read(&c, "run.yaml", &error)
 *     config_set(&c, "train.steps=100", &error)
 *     config_set_memory(&c, "8GiB", &error)
 *     config_check(&c, CONFIG_NEEDS_MODEL | ..., &error)
 *
 * Every error is PL_USAGE and names the key, the value that was found, the expected value and the
 * location (file:line, or the option). Paths are relative to the current directory.
 */
#pragma once

#include "base/base.h"
#include "passes/passes.h"

/* Values of the CHOICE keys, in the order of their words in config.def.
 * data.token_dtype is enum tokens_dtype, data.labels enum label_kind, data.range enum range_kind,
 * data.strategy enum sampler_strategy, data.train_on enum train_on, data.too_long enum too_long,
 * data.too_many_images enum too_many, model.head enum head_kind. */
enum config_format {
    FORMAT_TOKENS,
    FORMAT_BYTES,
    FORMAT_TEXT,
    FORMAT_CONVERSATIONS,
    FORMAT_SA1B,
    FORMAT_COCO,
    FORMAT_PAIRS,
    FORMAT_CSV,
    FORMAT_PACKED,
    FORMAT_PARQUET,
    FORMAT_CLASSES,
    FORMAT_CAPTIONS
};
enum config_embeddings { EMBEDDINGS_AUTO, EMBEDDINGS_USE, EMBEDDINGS_OFF };
enum config_loss { LOSS_SAM, LOSS_SAM2, LOSS_EQUAL_WEIGHTS, LOSS_STRUCTURE };
enum config_edge_terms { EDGE_BOTH, EDGE_IOU };
enum config_decoder { DECODER_AUTO, DECODER_FUSION, DECODER_PROMPTED };
enum config_dropout { DROPOUT_AUTO, DROPOUT_NONE };
enum config_mask_reads { MASK_READS_QUESTION, MASK_READS_ANSWER };
enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_STEP };
enum config_schedule_as { SCHEDULE_AS_TRANSFORMERS, SCHEDULE_AS_DEEPSPEED };
enum config_warmup_shape { WARMUP_LINEAR, WARMUP_LOG };
enum config_scaling { SCALING_NONE, SCALING_LINEAR, SCALING_SQRT };
enum config_device { ON_AUTO, ON_CPU, ON_CUDA };

/* The first two in the order of the words of memory.budget. */
enum budget_kind { BUDGET_NONE, BUDGET_AUTO, BUDGET_BYTES };
struct config_budget {
    enum budget_kind kind;
    uint64_t bytes; /* when kind is BUDGET_BYTES */
};

struct config_list {
    char **at;
    uint32_t n;
};

struct config_ints {
    int64_t *at;
    uint32_t n;
};

/* One item of train.groups: members and whether each was given (group.def). */
enum config_group_member {
#define MEMBER(name, ...) GROUP_##name,
#include "config/group.def"
#undef MEMBER
    GROUP_MEMBERS
};

struct config_groups {
    struct config_group *at;
    uint32_t n;
};

/* One item of memory.modules (module.def). */
enum config_module_member {
#define MEMBER(name, ...) MODULE_##name,
#include "config/module.def"
#undef MEMBER
    MODULE_MEMBERS
};
enum config_module_precision { MODULE_F32, MODULE_BF16, MODULE_F16, MODULE_FP8, MODULE_FP8_ALL };

struct config_modules {
    struct config_module *at;
    uint32_t n;
};

/* One rule of memory.quantize (form.def). */
enum config_form_member {
#define MEMBER(name, ...) FORM_##name,
#include "config/form.def"
#undef MEMBER
    FORM_MEMBERS
};
enum config_form_form { FORM_NONE, FORM_NF4, FORM_FP8 };

struct config_forms {
    struct config_form *at;
    uint32_t n;
};

/* A technique of techniques.def: its value as text. */
struct config_setting {
    bool chosen; /* false: auto */
    char value[SETTING_ROOM];
    struct config_forms rules; /* memory.quantize as a list of rules; the value is then "rules" */
};

/* A list of names, or one string. */
struct config_names {
    struct config_list list;
    char *text; /* NULL: a list */
};

/* A map from names to numbers, in the order of the file. */
struct config_number {
    char *name;
    double value;
};
struct config_numbers {
    struct config_number *at;
    uint32_t n;
};

/* From low to high, both included. */
struct config_range {
    double low, high;
};

/* A key by name, for example KEY_train_steps. */
enum config_key {
#define KEY(section, name, ...) KEY_##section##_##name,
#include "config/config.def"
#undef KEY
    CONFIG_KEYS
};

#define CONFIG_TYPE_STRING char *
#define CONFIG_TYPE_LIST struct config_list
#define CONFIG_TYPE_INT int64_t
#define CONFIG_TYPE_INTS struct config_ints
#define CONFIG_TYPE_AUTO_INT int64_t
#define CONFIG_TYPE_REAL double
#define CONFIG_TYPE_RANGE struct config_range
#define CONFIG_TYPE_BOOL bool
#define CONFIG_TYPE_CHOICE int
#define CONFIG_TYPE_BUDGET struct config_budget
#define CONFIG_TYPE_GROUPS struct config_groups
#define CONFIG_TYPE_MODULES struct config_modules
#define CONFIG_TYPE_SETTING struct config_setting
#define CONFIG_TYPE_NAMES struct config_names
#define CONFIG_TYPE_NUMBERS struct config_numbers
#define CONFIG_TYPE_MAP char *

struct config_group {
#define MEMBER(name, type, ...) CONFIG_TYPE_##type name;
#include "config/group.def"
#undef MEMBER
    bool given[GROUP_MEMBERS];
};

struct config_module {
#define MEMBER(name, type, ...) CONFIG_TYPE_##type name;
#include "config/module.def"
#undef MEMBER
    bool given[MODULE_MEMBERS];
};

struct config_form {
#define MEMBER(name, type, ...) CONFIG_TYPE_##type name;
#include "config/form.def"
#undef MEMBER
    bool given[FORM_MEMBERS];
};

/* The source of a key's value; a later source is a larger number. */
enum config_source { SOURCE_DEFAULT, SOURCE_IMPORT, SOURCE_FILE, SOURCE_OPTION };

struct config {
#define KEY(section, name, type, ...) CONFIG_TYPE_##type section##_##name;
#include "config/config.def"
#undef KEY
    struct {
        enum config_source source;
        const char *file; /* of SOURCE_IMPORT and SOURCE_FILE */
        int line;         /* in that file, from 1; 0: the other program's default */
    } origin[CONFIG_KEYS];
    const char *file;    /* the YAML file's name, NULL before config_read */
    bool command_line;   /* options were set by config_set; messages mention --set */
    bool checked;        /* keys without effect were refused or noted already */
    struct bump strings; /* owns every string and list above */
};

/* Sets all keys to their defaults. */
void config_init(struct config *c);
void config_free(struct config *c);

/* Reads the keys of a YAML file, or of a YAML text; messages call the text `name`. */
int config_read(struct config *c, const char *path, struct error *e);
int config_read_text(struct config *c, const char *yaml, const char *name, struct error *e);

/* Applies one --set: "train.steps=100", "model.freeze=[a.*, b.*]", "device=cpu". A value that
 * begins with [ { " or ' is parsed as YAML, any other value is used as it is. "null" restores the
 * default. Setting one of model.path | model.preset, of train.steps | train.epochs or of
 * train.step_size | train.milestones removes the other one if the file gave it. */
int config_set(struct config *c, const char *assignment, struct error *e);
/* Does as config_set, but with separate key and value; messages do not mention --set. */
int config_assign(struct config *c, const char *key, const char *value, struct error *e);
/* Uses the adapter in a folder, which the caller keeps, instead of the one that the file describes;
 * NULL: none. Keys that options gave stay. */
void config_use_adapter(struct config *c, const char *path);
/* Applies --memory: a size, auto or none. */
int config_set_memory(struct config *c, const char *size, struct error *e);

/* Checks that involve several keys: keys that exclude or need each other, and keys that have no
 * effect beside the others (column `needs` of config.def). `needs` lists what the command
 * requires. */
enum {
    CONFIG_NEEDS_MODEL = 1, /* exactly one of model.path, model.preset */
    CONFIG_NEEDS_DATA = 2,  /* data.train */
    CONFIG_NEEDS_TRAIN = 4, /* exactly one of train.steps, train.epochs; train.out */
    CONFIG_OPTIONS_ONLY = 8, /* there is no run file: config_check_read says which keys have an effect */
};
int config_check(const struct config *c, unsigned needs, struct error *e);
/* Returns PL_USAGE if an option sets a key that the command does not read; `reads` are patterns,
 * separated by blanks. */
int config_check_read(const struct config *c, const char *command, const char *reads, struct error *e);
/* Prepends the location of a key, "run.yaml:7: " or "--set: ", to a message about it. */
int config_at_key(const struct config *c, enum config_key key, struct error *e);

/* Writes the resolved configuration as YAML: every key that has a value. Reading it into a fresh
 * struct gives the same values. */
void config_write(const struct config *c, struct text *out);
/* Writes only the keys that are not defaults: a run file. */
void config_write_given(const struct config *c, struct text *out);

/* Reports whether a key has the same value in both. config_key_name returns its name,
 * "train.steps": a resumed run reports changed keys with these. */
bool config_same(const struct config *a, const struct config *b, enum config_key key);
const char *config_key_name(enum config_key key);
void *config_member(const struct config *c, enum config_key key); /* of the type of its row in config.def */
bool config_given(const struct config *c, enum config_key key); /* not a default */
/* The key of a technique, its value, and memory.micro_batch as a number; 0: auto. */
enum config_key config_technique_key(enum technique_id id);
struct config_setting *config_technique(const struct config *c, enum technique_id id);
int64_t config_micro_batch(const struct config *c);
/* Prints a key's value on one line, for a message; "not given" if it has no value. */
void config_show(const struct config *c, enum config_key key, struct text *out);
/* Whether data.format gives rows of token ids, not images with masks. */
/* Reports whether a tokenizer makes rows of the data; config_tokens also if they are tokens
 * already. */
static inline bool config_text(const struct config *c)
{
    return c->data_format == FORMAT_TEXT || c->data_format == FORMAT_CONVERSATIONS;
}
static inline bool config_tokens(const struct config *c) { return c->data_format <= FORMAT_CONVERSATIONS; }
/* Returns train.loss_scale, or the scale that auto means. */
float config_first_scale(const struct config *c);
/* Reports whether the configuration names validation data. */
bool config_validates(const struct config *c);
/* Reports whether the run begins with a warmup. */
bool config_warms_up(const struct config *c);

/* Prints all keys with types, defaults and docs, from the table. */
void config_help(struct text *out);

/* Sets the memory keys to a plan's techniques; the budget is unchanged. Changing one
 * key then gives the plan that differs only in this technique. */
int config_pin(struct config *c, const struct settings *s, struct error *e);

struct model;
/* Opens model.path or model.preset, with these choices. */
int config_open_model(const struct config *c, struct model *m, struct error *e);
/* Returns PL_USAGE if a key was given that has no effect with this model. */
int config_check_model(const struct config *c, const struct model *m, struct error *e);

/* --- the learning rate over the steps (schedule.c) ------------------------------------------ */

/* Constant, linear and cosine are the transformers library's get_*_schedule_with_warmup, with its
 * min_lr_rate; step is torch's StepLR or MultiStepLR after the same warmup. With `deepspeed` the
 * first three are WarmupLR, WarmupDecayLR and WarmupCosineLR of DeepSpeed. */
struct schedule {
    enum schedule_kind kind;
    int64_t warmup;             /* steps of the rise to 1... */
    double start;               /* ...from this factor */
    bool log;                   /* the rise is a logarithm instead of a line */
    bool deepspeed;             /* DeepSpeed's count of the steps: warmup and line come one step later */
    int64_t total;              /* steps of the whole run: linear and cosine end there */
    double floor;               /* linear and cosine: the factor at the end */
    double gamma;               /* step: the factor of each drop, at... */
    int64_t every;              /* ...multiples of this, counted from the end of the warmup; 0: */
    const int64_t *milestones;  /* at these steps of the run, ascending */
    uint32_t n_milestones;
};

/* Returns the factor on train.learning_rate in optimizer step `step`, counted from 0. The first
 * step of a warmup has the factor `start`. A pure function, so a resumed run needs no state for
 * it. */
double schedule_factor(const struct schedule *s, int64_t step);
