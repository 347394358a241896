/*
 * config.c: from YAML and options to struct config.
 *
 * Everything is driven by the rows of config.def. A value from any source is a node of a value
 * tree, and only config_convert() (config_values.c) converts a node to a member: defaults, file
 * and options cannot disagree about what is a number.
 *
 * Invariant: each member holds a value that its row allows, at all times; strings
 * and lists belong to c->strings. The printers are in config_print.c, checks of several keys in
 * config_check.c.
 */
#include "config/config.h"

#include "io/value.h"
#include "io/yaml.h"
#include "config/config_rows.h"

#include <ctype.h>

enum { MAX_FILE = 16 << 20 };

const struct config_row config_rows[CONFIG_KEYS] = {
#define KEY(section, name, type, standard, allowed, needs, doc)                                        \
    {#section, #section "." #name, ROW_##type, offsetof(struct config, section##_##name), \
     standard, allowed, doc, needs},
#include "config/config.def"
#undef KEY
};

const enum config_key config_pairs[CONFIG_PAIRS][2] = {
    [PAIR_MODEL] = {KEY_model_path, KEY_model_preset},
    [PAIR_LENGTH] = {KEY_train_steps, KEY_train_epochs},
    [PAIR_DROPS] = {KEY_train_step_size, KEY_train_milestones},
    [PAIR_WARMUP] = {KEY_train_warmup_steps, KEY_train_warmup_ratio},
};

/* --- defaults ------------------------------------------------------------------------------ */

/* Restores the row's default; without one, zeros: NULL, an empty list, 0. */
void config_reset(struct config *c, enum config_key key)
{
    static const size_t sizes[] = {
#define SIZE_OF(type) [ROW_##type] = sizeof(CONFIG_TYPE_##type)
        SIZE_OF(STRING), SIZE_OF(LIST), SIZE_OF(INT),    SIZE_OF(INTS),   SIZE_OF(AUTO_INT),
        SIZE_OF(REAL),   SIZE_OF(RANGE), SIZE_OF(BOOL), SIZE_OF(CHOICE), SIZE_OF(BUDGET), SIZE_OF(GROUPS),
        SIZE_OF(MODULES), SIZE_OF(SETTING), SIZE_OF(NAMES), SIZE_OF(NUMBERS), SIZE_OF(MAP),
#undef SIZE_OF
    };
    const struct config_row *r = &config_rows[key];
    memset(config_member(c, key), 0, sizes[r->type]);
    memset(&c->origin[key], 0, sizeof c->origin[key]);
    if (!*r->standard) return;
    struct bump b = {0};
    CHECK(config_convert(c, r, config_member(c, key), yaml_scalar(&b, r->standard)), "the default of %s", r->path);
    bump_free(&b);
}

/* --- techniques ----------------------------------------------------------------------------- */

enum config_key config_technique_key(enum technique_id id)
{
    static const enum config_key keys[TECHNIQUES] = {
#define TECHNIQUE(section, name, ...) KEY_##section##_##name,
#include "passes/techniques.def"
#undef TECHNIQUE
    };
    return keys[id];
}

struct config_setting *config_technique(const struct config *c, enum technique_id id)
{
    return config_member(c, config_technique_key(id));
}

int64_t config_micro_batch(const struct config *c)
{
    return c->memory_micro_batch.chosen ? atoi(c->memory_micro_batch.value) : 0;
}

/* --- errors with file and line --------------------------------------------------------- */

/* Prepends "run.yaml:7: " to a message about a node of the file. An option needs no prefix here:
 * config_set prepends the whole option. */
int config_at_node(const struct config *c, const struct value *v, enum config_source source, struct error *e)
{
    if (source == SOURCE_FILE) return error_prepend(e, "%s:%u", c->file, v->line);
    return e->code;
}

int config_refuse(const struct config *c, const struct config_row *r, const struct value *v, enum config_source source,
                  struct error *e)
{
    struct text want = {0};
    char found[96];
    config_expect(r, &want);
    error_set(e, PL_USAGE, "%s: found %s, expected %s", r->path, value_describe(v, found), want.at);
    text_free(&want);
    return config_at_node(c, v, source, e);
}

bool config_near(const char *word, int distance) { return distance <= max_i64(1, (int64_t)strlen(word) / 3); }

/* Names of our keys in other trainers that are too different for the typo search. */
static const struct {
    const char *theirs;
    enum config_key ours;
} translations[] = {
    {"lr", KEY_train_learning_rate},
    {"batch_size", KEY_train_effective_batch},
    {"train_batch_size", KEY_train_effective_batch},
    {"max_steps", KEY_train_steps},
    {"num_steps", KEY_train_steps},
    {"max_iters", KEY_train_steps},
    {"max_epochs", KEY_train_epochs},
    {"num_epochs", KEY_train_epochs},
    {"num_train_epochs", KEY_train_epochs},
    {"micro_batch_size", KEY_memory_micro_batch},
    {"per_device_train_batch_size", KEY_memory_micro_batch},
    {"accumulation", KEY_memory_micro_batch},
    {"gradient_accumulation_steps", KEY_memory_micro_batch},
    {"gradient_checkpointing", KEY_memory_recompute},
    {"activation_checkpointing", KEY_memory_recompute},
    {"gradient_accumulation", KEY_memory_micro_batch},
    {"mixed_precision", KEY_memory_precision},
    {"cpu_offload", KEY_memory_offload},
    {"optim", KEY_memory_optimizer},
    {"load_in_4bit", KEY_memory_quantize},
    {"quantization", KEY_memory_quantize},
    {"bnb_4bit_quant_type", KEY_memory_quantize},
    {"model_name_or_path", KEY_model_path},
    {"val", KEY_data_validation},
    {"dtype", KEY_memory_precision},
    {"bf16", KEY_memory_precision},
    {"fp16", KEY_memory_precision},
    {"max_grad_norm", KEY_train_clip_norm},
    {"grad_clip", KEY_train_clip_norm},
    {"scheduler", KEY_train_schedule},
    {"lr_scheduler", KEY_train_schedule},
    {"lr_scheduler_type", KEY_train_schedule},
    {"min_lr", KEY_train_min_lr_rate},
    {"warmup", KEY_train_warmup_steps},
    {"wd", KEY_train_weight_decay},
    {"output_dir", KEY_train_out},
    {"save_steps", KEY_train_save_every},
    {"eval_steps", KEY_train_eval_every},
    {"save_total_limit", KEY_train_keep},
    {"num_workers", KEY_data_threads},
    {"seq_len", KEY_data_sequence},
    {"max_length", KEY_data_sequence},
};

/* Returns the known name that is closest to an unknown path: a section for a map, else a key; NULL:
 * none is close. The last component is also compared by itself, so that a key in the wrong section
 * is found. */
static const char *nearest(const char *path, bool section)
{
    const char *dot = strrchr(path, '.'), *tail = dot ? dot + 1 : path, *found = NULL;
    int best = INT32_MAX;
    for (size_t i = 0; i < COUNT(translations) && !section; i++)
        if (!strcmp(tail, translations[i].theirs)) return config_rows[translations[i].ours].path;
    for (int key = 0; key < CONFIG_KEYS; key++) {
        const struct config_row *r = &config_rows[key];
        int whole = edit_distance(path, section ? r->section : r->path);
        int part = section ? whole : edit_distance(tail, config_leaf(r)) + 1;
        int distance = whole < part ? whole : part;
        if (distance < best) best = distance, found = section ? r->section : r->path;
    }
    /* Sections are few: training is train, dataset is data. */
    return config_near(tail, best) || (section && 2 * best <= (int)strlen(tail)) ? found : NULL;
}

static int unknown(const struct config *c, const char *path, const struct value *v,
                   enum config_source source, struct error *e)
{
    bool section = v->kind == VALUE_MAP && !strchr(path, '.');
    const char *meant = nearest(path, section);
    if (meant) error_set(e, PL_USAGE, "unknown key %s; did you mean %s?", path, meant);
    else error_set(e, PL_USAGE, "unknown key %s; `plimsoll train --help` lists them", path);
    return config_at_node(c, v, source, e);
}

/* --- keys and sections --------------------------------------------------------------- */

/* Assigns a list of rules, for a technique that takes them. */
static int assign_rules(struct config *c, const struct config_row *r, struct config_setting *to, const struct value *v,
                        enum config_source source, struct error *e)
{
    struct config_row list = *r;
    struct config_setting x = {.chosen = true};
    const struct technique *t = &techniques[technique_find(config_leaf(r))];
    list.type = ROW_FORMS;
    snprintf(x.value, sizeof x.value, "%s", v->count ? t->rules : t->off);
    TRY(config_convert_maps(c, &list, &x.rules, v, source, e));
    *to = x;
    return PL_OK;
}

int config_find(const char *path)
{
    for (int key = 0; key < CONFIG_KEYS; key++)
        if (!strcmp(config_rows[key].path, path)) return key;
    return -1;
}

static bool is_section(const char *name)
{
    for (int key = 0; key < CONFIG_KEYS; key++)
        if (!strcmp(config_rows[key].section, name)) return true;
    return false;
}

/* Resets the other key of a pair if an option sets one and the file gave the other. Both from the
 * same source stay, and config_check reports the conflict. */
static void drop_partner(struct config *c, enum config_key key)
{
    for (size_t i = 0; i < CONFIG_PAIRS; i++)
        for (int side = 0; side < 2; side++)
            if (config_pairs[i][side] == key && c->origin[config_pairs[i][!side]].source < c->origin[key].source)
                config_reset(c, config_pairs[i][!side]);
}

static int set_value(struct config *c, enum config_key key, const struct value *v, enum config_source source,
                     struct error *e)
{
    const struct config_row *r = &config_rows[key];
    void *to = config_member(c, key);
    if (r->type == ROW_GROUPS || r->type == ROW_MODULES) return config_convert_maps(c, r, to, v, source, e);
    if (r->type == ROW_SETTING && v->kind == VALUE_LIST && techniques[technique_find(config_leaf(r))].rules)
        return assign_rules(c, r, to, v, source, e);
    return config_convert(c, r, to, v) ? PL_OK : config_refuse(c, r, v, source, e);
}

static int set_key(struct config *c, const char *path, const struct value *v, enum config_source source,
                    struct error *e)
{
    int key = config_find(path);
    if (key < 0) return unknown(c, path, v, source, e);
    if (v->kind == VALUE_NULL) {
        config_reset(c, (enum config_key)key);
        return PL_OK;
    }
    if (set_value(c, (enum config_key)key, v, source, e)) return e->code;
    c->origin[key].source = source;
    c->origin[key].file = source == SOURCE_FILE ? c->file : NULL;
    c->origin[key].line = (int)v->line;
    /* HYBRID_SHARD set both */
    if (key == KEY_parallel_shard && c->parallel_group.chosen && !config_given(c, KEY_parallel_group))
        c->origin[KEY_parallel_group] = c->origin[key];
    drop_partner(c, (enum config_key)key);
    return PL_OK;
}

int config_set_imported(struct config *c, enum config_key key, const struct value *v, const char *file, struct error *e)
{
    if (set_key(c, config_rows[key].path, v, SOURCE_IMPORT, e)) return e->code;
    c->origin[key].file = bump_string(&c->strings, file);
    return PL_OK;
}

/* Sets a whole section: a map of keys, null for none, or the short form of device. */
static int set_section(struct config *c, const char *name, const struct value *v,
                        enum config_source source, struct error *e)
{
    if (!is_section(name)) {
        int key = config_find(name);
        if (key < 0) return unknown(c, name, v, source, e);
        error_set(e, PL_USAGE, "key %s: write it as a map, `%s: {%s: ...}`", name,
                  config_rows[key].section, config_leaf(&config_rows[key]));
        return config_at_node(c, v, source, e);
    }
    if (v->kind == VALUE_NULL) return PL_OK;
    if (v->kind != VALUE_MAP) {
        char found[96];
        if (!strcmp(name, "device")) return set_key(c, "device.kind", v, source, e);
        error_set(e, PL_USAGE, "%s: found %s, expected a map of keys", name, value_describe(v, found));
        return config_at_node(c, v, source, e);
    }
    int rc = PL_OK;
    struct bump b = {0};
    for (uint32_t i = 0; !rc && i < v->count; i++)
        rc = set_key(c, bump_format(&b, "%s.%s", name, v->items[i]->key), v->items[i], source, e);
    bump_free(&b);
    return rc;
}

/* --- sources ---------------------------------------------------------------------------- */

void config_init(struct config *c)
{
    memset(c, 0, sizeof *c);
    for (int key = 0; key < CONFIG_KEYS; key++) config_reset(c, (enum config_key)key);
}

void config_free(struct config *c)
{
    bump_free(&c->strings);
    memset(c, 0, sizeof *c);
}

static int set_sections(struct config *c, const struct value *v, const char *name, struct error *e)
{
    char found[96];
    c->file = bump_string(&c->strings, name);
    if (v->kind == VALUE_NULL) return PL_OK;
    if (v->kind != VALUE_MAP)
        return error_set(e, PL_USAGE, "%s: found %s, expected a map with the sections model, data, train, ...",
                         name, value_describe(v, found));
    for (uint32_t i = 0; i < v->count; i++)
        if (set_section(c, v->items[i]->key, v->items[i], SOURCE_FILE, e)) return e->code;
    return PL_OK;
}

/* Sets all keys or none. Strings that are no longer referenced stay allocated until config_free. */
static int set_document(struct config *c, const struct value *v, const char *name, struct error *e)
{
    struct config before = *c;
    int rc = set_sections(c, v, name, e);
    before.strings = c->strings;
    if (rc) *c = before;
    return rc;
}

int config_read(struct config *c, const char *path, struct error *e)
{
    struct bump b = {0};
    struct value *v;
    int rc = yaml_read_file(path, MAX_FILE, &b, &v, e);
    if (!rc) rc = set_document(c, v, path, e);
    bump_free(&b);
    return rc;
}

int config_read_text(struct config *c, const char *yaml, const char *name, struct error *e)
{
    struct bump b = {0};
    struct value *v;
    int rc = yaml_parse(yaml, strlen(yaml), &b, &v, e);
    if (rc) error_prepend(e, "%s", name);
    else rc = set_document(c, v, name, e);
    bump_free(&b);
    return rc;
}

/* Parses the part of an option after "=". Only a value that begins like a list, a map or a quoted
 * string is parsed as YAML, where *.npy would be an alias and "a: b" a map. */
static int parse_option(const char *s, struct bump *b, struct value **v, struct error *e)
{
    while (isspace((unsigned char)*s)) s++;
    if (!*s) return error_set(e, PL_USAGE, "no value after `=`; null puts the default back");
    if (!strchr("[{\"'", *s)) {
        *v = yaml_scalar(b, s);
        return PL_OK;
    }
    if (!yaml_parse(s, strlen(s), b, v, e)) return PL_OK;
    return error_prepend(e, "the value is not YAML (patterns that begin with * need quotes in a list)");
}

int config_assign(struct config *c, const char *key, const char *value, struct error *e)
{
    struct bump b = {0};
    struct value *v;
    int rc = parse_option(value, &b, &v, e);
    if (!rc) rc = strchr(key, '.') ? set_key(c, key, v, SOURCE_OPTION, e) : set_section(c, key, v, SOURCE_OPTION, e);
    bump_free(&b);
    return rc;
}

int config_set(struct config *c, const char *assignment, struct error *e)
{
    const char *equals = strchr(assignment, '=');
    struct bump b = {0};
    int rc;
    c->command_line = true;
    if (!equals) rc = error_set(e, PL_USAGE, "no `=` in it, expected key=value");
    else if (equals == assignment) rc = error_set(e, PL_USAGE, "no key before `=`, expected key=value");
    else rc = config_assign(c, bump_format(&b, "%.*s", (int)(equals - assignment), assignment), equals + 1, e);
    bump_free(&b);
    return rc ? error_prepend(e, "--set %.200s", assignment) : PL_OK;
}

void config_use_adapter(struct config *c, const char *path)
{
    for (int k = KEY_adapter_path; k <= KEY_adapter_init_lora_weights; k++)
        if (c->origin[k].source != SOURCE_OPTION) config_reset(c, (enum config_key)k);
    if (!path) return;
    c->adapter_path = (char *)path;
    c->origin[KEY_adapter_path].source = SOURCE_OPTION;
}

int config_set_memory(struct config *c, const char *size, struct error *e)
{
    struct bump b = {0};
    int rc = set_value(c, KEY_memory_budget, yaml_scalar(&b, size), SOURCE_OPTION, e);
    if (rc) error_prepend(e, "--memory %.200s", size);
    else c->origin[KEY_memory_budget].source = SOURCE_OPTION;
    bump_free(&b);
    return rc;
}

/* --- the whole ------------------------------------------------------------------------ */

bool config_given(const struct config *c, enum config_key key) { return c->origin[key].source != SOURCE_DEFAULT; }

float config_first_scale(const struct config *c) { return (float)(c->train_loss_scale ? c->train_loss_scale : 65536); }

bool config_validates(const struct config *c)
{
    return c->data_validation.n || c->data_validation_images || c->data_holdout > 0 || c->data_validation_list ||
           c->data_validation_match || c->data_validation_split;
}

bool config_warms_up(const struct config *c) { return c->train_warmup_steps > 0 || c->train_warmup_ratio > 0; }

/* Prepends "run.yaml:7: " if a file gave the key, "--set: " if an option did; otherwise the
 * file name or nothing. */
int config_at_key(const struct config *c, enum config_key key, struct error *e)
{
    if (c->origin[key].source == SOURCE_IMPORT && !c->origin[key].line)
        return error_prepend(e, "%s", c->origin[key].file);
    if (c->origin[key].source == SOURCE_FILE || c->origin[key].source == SOURCE_IMPORT)
        return error_prepend(e, "%s:%d", c->origin[key].file, c->origin[key].line);
    if (c->origin[key].source == SOURCE_OPTION) return c->command_line ? error_prepend(e, "--set") : e->code;
    return c->file ? error_prepend(e, "%s", c->file) : e->code;
}

int config_pin(struct config *c, const struct settings *s, struct error *e)
{
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        char key[80], value[SETTING_ROOM];
        snprintf(key, sizeof key, "%s.%s", techniques[id].section, techniques[id].name);
        TRY(config_assign(c, key, technique_print(id, s, value), e));
    }
    return PL_OK;
}
