/*
 * generation_config.c: see generation_config.h.
 */
#include "infer/generation_config.h"

#include <stdio.h>
#include <string.h>

#include "io/file.h"
#include "io/json.h"

enum { LIMIT = 64 << 20 }; /* bytes of a configuration file */

/* Sets what a configuration without an eos_token_id means: LlamaConfig and MistralConfig have a
 * default, and LLaVA's original ones are these. */
static void default_eos(struct generation_config *g, const struct value *v)
{
    const char *type = "";
    struct error ignored;
    if (value_opt_string(v, "model_type", &type, &ignored)) return;
    if (!strcmp(type, "llama") || !strcmp(type, "mistral") || !strcmp(type, "llava_llama") ||
        !strcmp(type, "llava_mistral"))
        vec_push(&g->eos, 2);
}

static int read_eos(struct generation_config *g, const struct value *v, struct error *e)
{
    const struct value *eos = value_get(v, "eos_token_id");
    const bool list = eos && eos->kind == VALUE_LIST;
    int rc = PL_OK;
    g->has_eos = eos;
    if (!eos || eos->kind == VALUE_NULL) return PL_OK;
    for (uint32_t i = 0; i < (list ? eos->count : 1) && !rc; i++) {
        int64_t id = 0;
        rc = value_as_int(list ? value_at(eos, i) : eos, "eos_token_id", &id, e);
        if (!rc && (id < 0 || id > INT32_MAX))
            rc = error_set(e, PL_USAGE, "eos_token_id has %lld, expected the id of a token", (long long)id);
        if (!rc) vec_push(&g->eos, (int32_t)id);
    }
    return rc;
}

static int read_sampling(struct generation_config *g, const struct value *v, struct error *e)
{
    bool samples = false;
    int rc = value_opt_bool(v, "do_sample", &samples, e);
    if (!rc) rc = value_opt_number(v, "temperature", &g->temperature, e);
    if (!rc) rc = value_opt_int(v, "top_k", &g->sampling.top_k, e);
    if (!rc) rc = value_opt_number(v, "top_p", &g->sampling.top_p, e);
    if (!rc) rc = value_opt_number(v, "repetition_penalty", &g->sampling.repetition_penalty, e);
    if (!rc) rc = value_opt_int(v, "max_new_tokens", &g->max_new, e);
    if (!rc && g->max_new < 0)
        rc = error_set(e, PL_USAGE, "max_new_tokens is %lld, expected a number above 0", (long long)g->max_new);
    g->sampling.temperature = samples ? g->temperature : 0;
    return rc ? rc : sampling_check(&g->sampling, e);
}

/* Reads one file of the folder, if it is there. */
static int read_file(struct generation_config *g, const char *folder, const char *name, bool all, struct error *e)
{
    char path[4200];
    struct bump b = {0};
    struct value *v = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!file_exists(path)) return PL_OK;
    int rc = json_read_file(path, LIMIT, &b, &v, e);
    if (!rc) {
        rc = value_as_map(v, "the file", e);
        if (!rc && all) rc = read_sampling(g, v, e);
        if (!rc && !g->has_eos) rc = read_eos(g, v, e);
        const struct value *text = rc ? NULL : value_get(v, "text_config"); /* of a model of images and text */
        if (text && text->kind != VALUE_MAP) text = NULL;
        if (text && !all && !g->has_eos) rc = read_eos(g, text, e);
        if (!rc && !g->has_eos && !all) default_eos(g, text ? text : v);
        if (rc) error_prepend(e, "%s", path);
    }
    bump_free(&b);
    return rc;
}

int generation_config_read(struct generation_config *g, const char *folder, struct error *e)
{
    *g = (struct generation_config){.temperature = 1, .sampling = {.top_k = 50, .top_p = 1, .repetition_penalty = 1}};
    if (!folder) return PL_OK;
    int rc = read_file(g, folder, "generation_config.json", true, e);
    return rc ? rc : read_file(g, folder, "config.json", false, e);
}

void generation_config_free(struct generation_config *g)
{
    vec_free(&g->eos);
    memset(g, 0, sizeof *g);
}
