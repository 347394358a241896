/*
 * adapter_config.c: adapter_config.json (see adapter.h).
 */
#include "adapter/adapter.h"

#include <strings.h>

#include "io/file.h"
#include "io/json.h"

enum { CONFIG_MOST = 16 << 20 };

/* Keys that say nothing about the mathematics: any value is accepted. */
static const char *const ignored[] = {"auto_mapping",   "base_model_name_or_path",
                                      "inference_mode", "peft_version",
                                      "revision",       "runtime_config",
                                      "megatron_core",  "eva_config",
                                      "corda_config",   "loftq_config",
                                      "lora_ga_config", "qalora_group_size"};

/* Keys of struct adapter. */
static const char *const known[] = {"peft_type",
                                    "task_type",
                                    "r",
                                    "lora_alpha",
                                    "lora_dropout",
                                    "target_modules",
                                    "exclude_modules",
                                    "modules_to_save",
                                    "bias",
                                    "use_rslora",
                                    "use_dora",
                                    "rank_pattern",
                                    "alpha_pattern",
                                    "layers_to_transform",
                                    "layers_pattern",
                                    "init_lora_weights",
                                    "fan_in_fan_out"};

/* --- reading -------------------------------------------------------------------------------- */

static bool is_in(const char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], key)) return true;
    return false;
}

/* Reports whether Python takes the value for false: null, false, 0, "", [] and {}. */
static bool is_unset(const struct value *v)
{
    switch (v->kind) {
    case VALUE_NULL: return true;
    case VALUE_BOOL: return !v->truth;
    case VALUE_NUMBER: return v->number == 0;
    case VALUE_STRING: return !*v->text;
    default: return !v->count;
    }
}

static int check_keys(const struct value *map, struct error *e)
{
    char what[96];
    for (uint32_t i = 0; i < map->count; i++) {
        const struct value *v = map->items[i];
        if (is_in(known, COUNT(known), v->key) || is_in(ignored, COUNT(ignored), v->key) || is_unset(v)) continue;
        return error_set(e, PL_USAGE, "%.100s is %s, which Plimsoll does not do: only adapters without it can be used",
                         v->key, value_describe(v, what));
    }
    return PL_OK;
}

static int read_strings(const struct value *v, const char *name, struct bump *memory, const char *const **at,
                        uint32_t *n, struct error *e)
{
    const char **list = bump_alloc(memory, v->count * sizeof *list);
    for (uint32_t i = 0; i < v->count; i++)
        if (value_as_string(v->items[i], name, &list[i], e)) return e->code;
    *at = list;
    *n = v->count;
    return PL_OK;
}

/* Reads a list of names; null: none. `one`: a name instead of a list is accepted, as in PEFT. */
static int read_list(const struct value *map, const char *key, bool one, struct bump *memory, const char *const **at,
                     uint32_t *n, struct error *e)
{
    const struct value *v = value_get(map, key);
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (one && v->kind == VALUE_STRING) {
        const char **name = bump_alloc(memory, sizeof *name);
        *name = v->text;
        *at = name;
        *n = *v->text != 0;
        return PL_OK;
    }
    return value_as_list(v, key, e) ? e->code : read_strings(v, key, memory, at, n, e);
}

static int read_names(const struct value *map, const char *key, struct bump *memory, struct adapter_names *out,
                      struct error *e)
{
    const struct value *v = value_get(map, key);
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (v->kind == VALUE_STRING) {
        if (*v->text) out->regex = v->text;
        return PL_OK;
    }
    return value_as_list(v, key, e) ? e->code : read_strings(v, key, memory, &out->at, &out->n, e);
}

static int read_patterns(const struct value *map, const char *key, struct bump *memory,
                         const struct adapter_pattern **at, uint32_t *n, struct error *e)
{
    const struct value *v = value_get(map, key);
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (value_as_map(v, key, e)) return e->code;
    struct adapter_pattern *list = bump_alloc(memory, v->count * sizeof *list);
    for (uint32_t i = 0; i < v->count; i++) {
        list[i].key = v->items[i]->key;
        if (value_as_number(v->items[i], key, &list[i].value, e)) return e->code;
    }
    *at = list;
    *n = v->count;
    return PL_OK;
}

static int read_layers(const struct value *map, struct bump *memory, struct adapter *a, struct error *e)
{
    static const char key[] = "layers_to_transform";
    const struct value *v = value_get(map, key);
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    bool one = v->kind == VALUE_NUMBER;
    if (!one && value_as_list(v, key, e)) return e->code;
    a->n_layers = one ? 1 : v->count;
    int64_t *layers = bump_alloc(memory, a->n_layers * sizeof *layers);
    for (uint32_t i = 0; i < a->n_layers; i++)
        if (value_as_int(one ? v : v->items[i], key, &layers[i], e)) return e->code;
    a->layers = layers;
    return PL_OK;
}

static int read_bias(const struct value *map, struct adapter *a, struct error *e)
{
    const char *bias = "none";
    if (value_opt_string(map, "bias", &bias, e)) return e->code;
    if (!strcmp(bias, "none")) a->bias = ADAPTER_BIAS_NONE;
    else if (!strcmp(bias, "all")) a->bias = ADAPTER_BIAS_ALL;
    else if (!strcmp(bias, "lora_only")) a->bias = ADAPTER_BIAS_LORA_ONLY;
    else return error_set(e, PL_USAGE, "bias is \"%.100s\"; expected none, all or lora_only", bias);
    return PL_OK;
}

/* Initial values that leave the base weights as they are: with its weights, such an adapter is like
 * any other. */
static const char *const init_names[ADAPTER_INITS] = {
    [ADAPTER_INIT_GAUSSIAN] = "gaussian", [ADAPTER_INIT_ORTHOGONAL] = "orthogonal", [ADAPTER_INIT_EVA] = "eva"};

static int refuse_init(const struct value *v, struct error *e)
{
    static const char *const changing[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};
    char what[96];
    value_describe(v, what);
    for (size_t i = 0; v->kind == VALUE_STRING && i < COUNT(changing); i++)
        if (!strncasecmp(v->text, changing[i], strlen(changing[i])))
            return error_set(e, PL_USAGE, "init_lora_weights is %s, which Plimsoll does not do: it changes the base "
                             "weights, and the adapter belongs to the changed ones; save it with PEFT's "
                             "path_initial_model_for_weight_conversion", what);
    return error_set(e, PL_USAGE, "init_lora_weights is %s, which Plimsoll does not know; expected true, false, "
                     "gaussian, orthogonal or eva", what);
}

static int read_init(const struct value *map, struct adapter *a, struct error *e)
{
    const struct value *v = value_get(map, "init_lora_weights");
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (v->kind == VALUE_BOOL) return a->init = v->truth ? ADAPTER_INIT_DEFAULT : ADAPTER_INIT_RANDOM, PL_OK;
    for (int i = 0; i < ADAPTER_INITS && v->kind == VALUE_STRING; i++)
        if (init_names[i] && !strcasecmp(v->text, init_names[i])) return a->init = (enum adapter_init)i, PL_OK;
    return refuse_init(v, e);
}

static int read_type(const struct value *map, struct error *e)
{
    const char *type;
    if (value_as_string(value_get(map, "peft_type"), "peft_type", &type, e)) return e->code;
    if (strcmp(type, "LORA")) return error_set(e, PL_USAGE, "peft_type is \"%.100s\"; Plimsoll does LORA only", type);
    return PL_OK;
}

static int read_all(const struct value *map, struct bump *memory, struct adapter *a, struct error *e)
{
    if (value_as_map(map, "the file", e) || read_type(map, e)) return e->code;
    *a = (struct adapter){.r = 8, .alpha = 8}; /* PEFT's defaults */
    if (value_opt_int(map, "r", &a->r, e) || value_opt_number(map, "lora_alpha", &a->alpha, e) ||
        value_opt_number(map, "lora_dropout", &a->dropout, e) || value_opt_bool(map, "use_rslora", &a->rslora, e) ||
        value_opt_bool(map, "use_dora", &a->dora, e) ||
        value_opt_bool(map, "fan_in_fan_out", &a->fan_in_fan_out, e) ||
        value_opt_string(map, "task_type", &a->task_type, e) ||
        read_names(map, "target_modules", memory, &a->target, e) ||
        read_names(map, "exclude_modules", memory, &a->exclude, e) ||
        read_list(map, "modules_to_save", false, memory, &a->save, &a->n_save, e) ||
        read_list(map, "layers_pattern", true, memory, &a->layers_pattern, &a->n_layers_pattern, e) ||
        read_patterns(map, "rank_pattern", memory, &a->ranks, &a->n_ranks, e) ||
        read_patterns(map, "alpha_pattern", memory, &a->alphas, &a->n_alphas, e) || read_layers(map, memory, a, e) ||
        read_bias(map, a, e) || read_init(map, a, e) || check_keys(map, e))
        return e->code;
    if (a->target.regex && !strcasecmp(a->target.regex, "all-linear")) {
        a->target.regex = NULL;
        a->all_linear = true;
    }
    return adapter_check(a, "", memory, e);
}

int adapter_config_parse(const char *bytes, size_t n, struct bump *memory, struct adapter *out, struct error *e)
{
    struct value *map;
    if (json_parse(bytes, n, memory, &map, e) || read_all(map, memory, out, e)) return e->code;
    char *copy = bump_alloc(memory, n + 1); /* zeroed, so terminated */
    out->source = memcpy(copy, bytes, n);
    return PL_OK;
}

int adapter_config_read(const char *path, struct bump *memory, struct adapter *out, struct error *e)
{
    char *bytes;
    size_t n;
    if (file_read(path, CONFIG_MOST, &bytes, &n, e)) return e->code;
    int rc = adapter_config_parse(bytes, n, memory, out, e);
    mem_free(bytes);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}

/* --- writing -------------------------------------------------------------------------------- */

static void put_strings(struct json_writer *w, const char *key, const char *const *at, uint32_t n)
{
    json_begin_list(w, key);
    for (uint32_t i = 0; i < n; i++) json_put_string(w, NULL, at[i]);
    json_end(w);
}

static void put_names(struct json_writer *w, const char *key, const struct adapter_names *names)
{
    if (names->regex) json_put_string(w, key, names->regex);
    else if (names->n) put_strings(w, key, names->at, names->n);
    else json_put_null(w, key);
}

static void put_list(struct json_writer *w, const char *key, const char *const *at, uint32_t n)
{
    if (n) put_strings(w, key, at, n);
    else json_put_null(w, key);
}

/* Writes patterns in the given order, which decides between two that match the same module. */
static void put_patterns(struct json_writer *w, const char *key, const struct adapter_pattern *at, uint32_t n)
{
    json_begin_map(w, key);
    for (uint32_t i = 0; i < n; i++) json_put_number(w, at[i].key, at[i].value);
    json_end(w);
}

static void put_layers(struct json_writer *w, const struct adapter *a)
{
    if (!a->n_layers) {
        json_put_null(w, "layers_to_transform");
        return;
    }
    json_begin_list(w, "layers_to_transform");
    for (uint32_t i = 0; i < a->n_layers; i++) json_put_int(w, NULL, a->layers[i]);
    json_end(w);
}

/* Writes a float as Python prints it: 0.0, 0.05. */
static void put_float(struct json_writer *w, struct bump *b, const char *key, double x)
{
    char digits[32];
    number_print(x, digits);
    if (!strpbrk(digits, ".e")) strcat(digits, ".0");
    json_put_value(w, key, value_digits(b, digits, strlen(digits)));
}

static void put_string(struct json_writer *w, const char *key, const char *s)
{
    if (s) json_put_string(w, key, s);
    else json_put_null(w, key);
}

void adapter_config_write(const struct adapter *a, const char *base, const char *const *target_names, uint32_t n,
                          struct text *out)
{
    static const char *const bias[] = {"none", "all", "lora_only"};
    struct bump b = {0};
    struct json_writer w = {.out = out, .indent = 2};
    if (a->source) {
        text_append(out, a->source, strlen(a->source));
        return;
    }
    json_begin_map(&w, NULL);
    json_put_null(&w, "alora_invocation_tokens");
    put_patterns(&w, "alpha_pattern", a->alphas, a->n_alphas);
    json_put_null(&w, "arrow_config");
    json_put_null(&w, "auto_mapping");
    put_string(&w, "base_model_name_or_path", base);
    json_put_string(&w, "bias", bias[a->bias]);
    json_put_null(&w, "corda_config");
    json_put_bool(&w, "ensure_weight_tying", false);
    json_put_null(&w, "eva_config");
    put_names(&w, "exclude_modules", &a->exclude);
    json_put_bool(&w, "fan_in_fan_out", a->fan_in_fan_out);
    json_put_bool(&w, "inference_mode", true);
    if (init_names[a->init]) json_put_string(&w, "init_lora_weights", init_names[a->init]);
    else json_put_bool(&w, "init_lora_weights", a->init == ADAPTER_INIT_DEFAULT);
    json_put_null(&w, "kasa_config");
    json_put_null(&w, "layer_replication");
    put_list(&w, "layers_pattern", a->layers_pattern, a->n_layers_pattern);
    put_layers(&w, a);
    json_begin_map(&w, "loftq_config");
    json_end(&w);
    json_put_number(&w, "lora_alpha", a->alpha);
    json_put_bool(&w, "lora_bias", false);
    put_float(&w, &b, "lora_dropout", a->dropout);
    json_put_null(&w, "lora_ga_config");
    json_put_null(&w, "megatron_config");
    json_put_string(&w, "megatron_core", "megatron.core");
    put_list(&w, "modules_to_save", a->save, a->n_save);
    json_put_null(&w, "monteclora_config");
    json_put_string(&w, "peft_type", "LORA");
    json_put_string(&w, "peft_version", "0.21.2");
    json_put_int(&w, "qalora_group_size", 16);
    json_put_int(&w, "r", a->r);
    put_patterns(&w, "rank_pattern", a->ranks, a->n_ranks);
    json_put_null(&w, "revision");
    if (a->all_linear) put_strings(&w, "target_modules", target_names, n);
    else put_names(&w, "target_modules", &a->target);
    json_put_null(&w, "target_parameters");
    put_string(&w, "task_type", a->task_type);
    json_put_null(&w, "trainable_token_indices");
    json_put_null(&w, "use_bdlora");
    json_put_bool(&w, "use_dora", a->dora);
    json_put_bool(&w, "use_qalora", false);
    json_put_bool(&w, "use_rslora", a->rslora);
    json_put_null(&w, "velora_config");
    json_end(&w);
    bump_free(&b);
}
