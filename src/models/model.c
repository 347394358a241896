/*
 * model.c: opening a model by folder or by preset.
 */
#include "models/model.h"

#include <stdio.h>
#include <string.h>

#include "io/file.h"
#include "io/json.h"
#include "models/presets.h"

#define FAMILIES "llama, mistral, qwen2"
static const struct family *const families[] = {&llama_family, &mistral_family, &qwen2_family};

static int parse_config(struct model *m, size_t n, const char *where, struct error *e)
{
    struct value *config;
    int rc = json_parse(m->config_text, n, &m->memory, &config, e);
    if (rc) return error_prepend(e, "%s", where);
    const char *type = NULL;
    if ((rc = value_as_map(config, "config.json", e)) || (rc = value_opt_string(config, "model_type", &type, e)))
        return error_prepend(e, "%s", where);
    if (!type) return error_set(e, PL_USAGE, "%s: no model_type; it should be one of: " FAMILIES, where);
    for (size_t i = 0; i < COUNT(families); i++)
        if (!strcmp(families[i]->model_type, type)) {
            m->family = families[i];
            rc = m->family->parse(m, config, e);
            return rc ? error_prepend(e, "%s", where) : PL_OK;
        }
    return error_set(e, PL_USAGE, "%s: model_type \"%s\" is not one of: " FAMILIES, where, type);
}

int model_open(struct model *m, const char *path, struct error *e)
{
    memset(m, 0, sizeof *m);
    char file[1100];
    snprintf(m->path, sizeof m->path, "%s", path);
    snprintf(file, sizeof file, "%s/config.json", path);
    if (!dir_exists(path)) return error_set(e, PL_USAGE, "model.path: %s is not a folder", path);
    size_t n;
    int rc = file_read(file, 16u << 20, &m->config_text, &n, e);
    if (!rc) rc = parse_config(m, n, file, e);
    if (rc) model_close(m);
    if (rc == PL_FAIL && !file_exists(file)) e->code = rc = PL_USAGE; /* a wrong folder is the user's */
    return rc;
}

int model_preset(struct model *m, const char *name, struct error *e)
{
    memset(m, 0, sizeof *m);
    char known[256] = "";
    for (const struct preset *p = presets; p->name; p++) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", p->name);
        if (strcmp(p->name, name)) continue;
        m->config_text = mem_string(p->config);
        int rc = parse_config(m, strlen(p->config), name, e);
        if (rc) model_close(m);
        return rc;
    }
    return error_set(e, PL_USAGE, "model.preset: \"%s\" is not one of: %s", name, known);
}

/* A folder's own config.json is kept, as with every other model. */
int model_define(struct model *m, const struct definition *d, const char *path, struct error *e)
{
    memset(m, 0, sizeof *m);
    m->family = d->family;
    m->config = d->config;
    snprintf(m->path, sizeof m->path, "%s", path ? path : "");
    char file[1100];
    size_t n;
    snprintf(file, sizeof file, "%s/config.json", m->path);
    if (path && !dir_exists(path)) return error_set(e, PL_USAGE, "model.path: %s is not a folder", path);
    if (path && file_exists(file)) return file_read(file, 16u << 20, &m->config_text, &n, e);
    m->config_text = mem_string(d->config_json);
    return PL_OK;
}

void model_close(struct model *m)
{
    mem_free(m->config_text);
    m->config_text = NULL;
    bump_free(&m->memory);
}
