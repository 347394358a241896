/*
 * adapter_keys.c: the LoRA adapter of a run: the keys of section adapter, or the folder
 * adapter.path.
 */
#include "adapter/adapter.h"

#include <strings.h>

#include "adapter/adapter_folder.h"
#include "models/model.h"

static bool has_names(const struct config_names *n) { return n->text || n->list.n; }

bool adapter_given(const struct config *c)
{
    return c->adapter_path || has_names(&c->adapter_target_modules) || c->adapter_modules_to_save.n;
}

static struct adapter_names names_of(const struct config_names *n)
{
    return (struct adapter_names){.at = (const char *const *)n->list.at, .n = n->list.n, .regex = n->text};
}

static const struct adapter_pattern *patterns_of(struct bump *b, const struct config_numbers *n)
{
    struct adapter_pattern *p = bump_alloc(b, n->n * sizeof *p);
    for (uint32_t i = 0; i < n->n; i++) p[i] = (struct adapter_pattern){n->at[i].name, n->at[i].value};
    return p;
}

static struct adapter from_keys(const struct config *c, struct bump *b)
{
    static const enum adapter_init inits[] = {ADAPTER_INIT_DEFAULT, ADAPTER_INIT_RANDOM, ADAPTER_INIT_GAUSSIAN};
    const char *target = c->adapter_target_modules.text;
    struct adapter a = {
        .r = c->adapter_r, .alpha = c->adapter_lora_alpha, .dropout = c->adapter_lora_dropout,
        .target = names_of(&c->adapter_target_modules), .exclude = names_of(&c->adapter_exclude_modules),
        .all_linear = target && !strcasecmp(target, "all-linear"),
        .save = (const char *const *)c->adapter_modules_to_save.at, .n_save = c->adapter_modules_to_save.n,
        .bias = (enum adapter_bias)c->adapter_bias, .rslora = c->adapter_use_rslora, .dora = c->adapter_use_dora,
        .ranks = patterns_of(b, &c->adapter_rank_pattern), .n_ranks = c->adapter_rank_pattern.n,
        .alphas = patterns_of(b, &c->adapter_alpha_pattern), .n_alphas = c->adapter_alpha_pattern.n,
        .layers = c->adapter_layers_to_transform.at, .n_layers = c->adapter_layers_to_transform.n,
        .layers_pattern = (const char *const *)c->adapter_layers_pattern.at,
        .n_layers_pattern = c->adapter_layers_pattern.n, .init = inits[c->adapter_init_lora_weights],
    };
    if (a.all_linear) a.target.regex = NULL;
    return a;
}

/* Returns an error for a key that has another value than its default: with a folder it would be
 * ignored. */
static int check_keys(const struct config *c, struct error *e)
{
    struct config standard;
    int rc = PL_OK;
    config_init(&standard);
    for (int k = KEY_adapter_path + 1; k <= KEY_adapter_init_lora_weights && !rc; k++) {
        if (k == KEY_adapter_lora_dropout || config_same(c, &standard, (enum config_key)k)) continue;
        error_set(e, PL_USAGE, "%s is given, but adapter.path names a folder, whose adapter_config.json has it "
                  "already; leave the key out", config_key_name((enum config_key)k));
        rc = config_at_key(c, (enum config_key)k, e);
    }
    config_free(&standard);
    return rc;
}

static int from_folder(const struct config *c, struct bump *b, struct adapter *out, struct error *e)
{
    char path[4096];
    if (check_keys(c, e)) return e->code;
    snprintf(path, sizeof path, "%s/adapter_config.json", c->adapter_path);
    if (adapter_config_read(path, b, out, e)) {
        error_prepend(e, "adapter.path");
        return config_at_key(c, KEY_adapter_path, e);
    }
    if (config_given(c, KEY_adapter_lora_dropout)) out->dropout = c->adapter_lora_dropout;
    return PL_OK;
}

/* Counts the adapter's tensors that begin with a text. */
static uint32_t count_beginning(const struct adapter_folder *f, const char *with)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n; i++) n += !strncmp(f->tensors[i].module, with, strlen(with));
    return n;
}

/* Finds the spelling of each beginning of names that most of the adapter's tensors have. */
static struct spelled find_spelling(const struct adapter_folder *f, const struct spelling *list)
{
    struct spelled how = spelling_in_memory(list);
    for (int i = 0; list && list[i].name; i++)
        for (int k = 0; k < spelling_count(&list[i]); k++)
            if (count_beginning(f, spelling_at(&list[i], k)) > count_beginning(f, spelling_at(&list[i], how.by[i])))
                how.by[i] = (uint8_t)k;
    return how;
}

/* Finds how the adapter spells names: PEFT names modules as they are in memory, which for some
 * models is without the root of the published names, or in another spelling. */
static int find_names(const struct config *c, const struct family *family, struct adapter *a, struct error *e)
{
    const char *root = family->root;
    struct adapter_folder f;
    a->spellings = family->spellings;
    a->spelled = spelling_in_memory(family->spellings);
    if (((!root || !*root) && !family->spellings) || !c->adapter_path) return PL_OK;
    if (adapter_folder_open(&f, c->adapter_path, e)) return e->code;
    if (root && *root && !count_beginning(&f, root)) a->root = root;
    a->spelled = find_spelling(&f, family->spellings);
    adapter_folder_close(&f);
    return PL_OK;
}

int adapter_open(const struct config *c, const struct family *family, struct bump *b, struct adapter *out,
                 struct error *e)
{
    if (c->adapter_path) {
        if (from_folder(c, b, out, e)) return e->code;
    } else {
        *out = from_keys(c, b);
        if (!has_names(&c->adapter_target_modules)) {
            error_set(e, PL_USAGE, "adapter.target_modules is not given: name the modules that get an adapter, such as "
                      "[q_proj, v_proj], or all-linear");
            return config_at_key(c, KEY_adapter_modules_to_save, e);
        }
    }
    if (!adapter_check(out, c->adapter_path ? "" : "adapter.", b, e)) return find_names(c, family, out, e);
    return config_at_key(c, c->adapter_path ? KEY_adapter_path : KEY_adapter_target_modules, e);
}
