/*
 * special.c: reads tokenizer_config.json, special_tokens_map.json and added_tokens.json of a model
 * folder (see tokenizer_parts.h).
 *
 * A tokenizer.json has its own added tokens and post-processor; only the roles are read for it. A
 * tokenizer.model has neither: the other files say what transformers adds to it.
 */
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "io/json.h"
#include "text/tokenizer/tokenizer_parts.h"

enum { CONFIG_MOST = 64 << 20 };

const char *const role_names[ROLES] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

/* Reads a file of the folder; *out is NULL when there is none. */
static int read_file(const char *folder, const char *name, struct bump *tree, struct value **out, struct error *e)
{
    const char *path = bump_format(tree, "%s/%s", folder, name);
    *out = NULL;
    if (!file_exists(path)) return PL_OK;
    if (json_read_file(path, CONFIG_MOST, tree, out, e)) return e->code;
    return value_as_map(*out, "the document", e) ? error_prepend(e, "%s", path) : PL_OK;
}

/* A token is a string or {"content": ...}; NULL: neither. */
static const char *content_of(const struct value *v)
{
    if (v && v->kind == VALUE_MAP) v = value_get(v, "content");
    return v && v->kind == VALUE_STRING ? v->text : NULL;
}

static void read_roles(struct tokenizer *t, const struct value *config, const struct value *map)
{
    for (int i = 0; i < ROLES; i++) {
        const char *content = content_of(value_get(config, role_names[i]));
        if (!content) content = content_of(value_get(map, role_names[i]));
        if (content && *content) t->roles[i] = bump_string(&t->memory, content);
    }
}

/* --- for a tokenizer.model -------------------------------------------------------------------- */

static bool is_added(const struct tokenizer *t, const char *content)
{
    return id_map_get(&t->added.contents, content, strlen(content)) >= 0;
}

/* "added_tokens_decoder": {"32000": {"content": "<image>", ...}} */
static int read_decoder(struct tokenizer *t, const struct value *tokens, struct error *e)
{
    for (uint32_t i = 0; tokens && i < tokens->count; i++) {
        const struct value *v = tokens->items[i];
        struct added_token a = {.content = content_of(v)};
        char *end;
        const long id = strtol(v->key, &end, 10);
        if (*end || !a.content || id < 0 || id >= VOCABULARY_MOST)
            return error_set(e, PL_USAGE, "added_tokens_decoder: \"%.60s\" is no id of a token with a content", v->key);
        a.id = (int32_t)id;
        if (value_opt_bool(v, "special", &a.special, e) || value_opt_bool(v, "lstrip", &a.lstrip, e) ||
            value_opt_bool(v, "rstrip", &a.rstrip, e) || value_opt_bool(v, "single_word", &a.single_word, e))
            return error_prepend(e, "added_tokens_decoder[%s]", v->key);
        if (!is_added(t, a.content) && tokenizer_add(t, a, e))
            return error_prepend(e, "added_tokens_decoder[%s]", v->key);
    }
    return PL_OK;
}

/* {"<image>": 32000} */
static int read_added_json(struct tokenizer *t, const struct value *tokens, struct error *e)
{
    for (uint32_t i = 0; tokens && i < tokens->count; i++) {
        const struct value *v = tokens->items[i];
        int64_t id;
        if (value_as_int(v, v->key, &id, e)) return e->code;
        if (id < 0 || id >= VOCABULARY_MOST)
            return error_set(e, PL_USAGE, "\"%.60s\" has the id %lld; expected 0 to %d", v->key, (long long)id,
                             VOCABULARY_MOST - 1);
        if (!is_added(t, v->key) && tokenizer_add(t, (struct added_token){.id = (int32_t)id, .content = v->key}, e))
            return e->code;
    }
    return PL_OK;
}

/* A token with a role is special, and is found in the text. */
static int add_roles(struct tokenizer *t, struct error *e)
{
    for (int i = 0; i < ROLES; i++) {
        const int32_t id = t->roles[i] ? tokenizer_id(t, t->roles[i]) : -1;
        if (id >= 0 && !is_added(t, t->roles[i]) &&
            tokenizer_add(t, (struct added_token){.id = id, .content = t->roles[i], .special = true}, e))
            return e->code;
    }
    return PL_OK;
}

/* add_bos_token is true by default in transformers' classes for Llama. */
static int read_bos_eos(struct tokenizer *t, const struct value *config, struct error *e)
{
    const char *class = NULL;
    bool bos, eos = false, legacy = true;
    if (value_opt_string(config, "tokenizer_class", &class, e)) return e->code;
    bos = class && strstr(class, "Llama");
    if (value_opt_bool(config, "add_bos_token", &bos, e) || value_opt_bool(config, "add_eos_token", &eos, e) ||
        value_opt_bool(config, "legacy", &legacy, e))
        return e->code;
    if (bos && tokenizer_bos(t) >= 0) vec_push(&t->post, tokenizer_bos(t));
    vec_push(&t->post, POST_TEXT);
    if (eos && tokenizer_eos(t) >= 0) vec_push(&t->post, tokenizer_eos(t));
    t->normalizer.steps.at[0].first_only = !legacy;
    return PL_OK;
}

static int read_sentencepiece(struct tokenizer *t, const char *folder, const struct value *config, struct bump *tree,
                              struct error *e)
{
    struct value *added;
    if (read_file(folder, "added_tokens.json", tree, &added, e)) return e->code;
    if (read_decoder(t, value_get(config, "added_tokens_decoder"), e))
        return error_prepend(e, "%s/tokenizer_config.json", folder);
    if (read_added_json(t, added, e)) return error_prepend(e, "%s/added_tokens.json", folder);
    if (add_roles(t, e)) return error_prepend(e, "%s", folder);
    if (config && read_bos_eos(t, config, e)) return error_prepend(e, "%s/tokenizer_config.json", folder);
    return PL_OK;
}

int tokenizer_read_special(struct tokenizer *t, const char *folder, struct error *e)
{
    struct bump tree = {0};
    struct value *config, *map;
    int rc = read_file(folder, "tokenizer_config.json", &tree, &config, e);
    if (!rc) rc = read_file(folder, "special_tokens_map.json", &tree, &map, e);
    if (!rc) {
        read_roles(t, config, map);
        if (t->sentencepiece && (config || map)) rc = read_sentencepiece(t, folder, config, &tree, e);
    }
    bump_free(&tree);
    return rc;
}
