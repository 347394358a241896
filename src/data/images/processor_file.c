/*
 * processor_file.c: see processor_file.h.
 */
#include "data/images/processor_file.h"

#include "io/file.h"
#include "io/json.h"

enum { FILE_MOST = 1 << 20 };

int processor_file_read(const char *folder, const char *name, struct bump *b, const struct value **out,
                        struct error *e)
{
    const char *path = bump_format(b, "%s/%s", folder, name);
    struct value *v = NULL;
    int rc = file_exists(path) ? json_read_file(path, FILE_MOST, b, &v, e) : PL_OK;
    *out = v;
    return rc;
}

int processor_file_find(const char *folder, bool videos, struct bump *b, const struct value **out, const char **name,
                        struct error *e)
{
    static const char *const files[] = {"processor_config.json", "video_preprocessor_config.json",
                                        "preprocessor_config.json"};
    *out = NULL;
    for (size_t i = 0; i < COUNT(files) && !*out; i++) {
        if (i == 1 && !videos) continue;
        *name = files[i];
        if (processor_file_read(folder, *name, b, out, e)) return e->code;
        if (!i) *out = value_get(*out, videos ? "video_processor" : "image_processor");
    }
    return PL_OK;
}

int processor_file_parse(const char *json, size_t n, const char *inner, struct bump *b, const struct value **out,
                         struct error *e)
{
    struct value *v;
    if (json_parse(json, n, b, &v, e)) return e->code;
    const struct value *map = value_get(v, inner);
    *out = map && map->kind == VALUE_MAP ? map : v;
    return PL_OK;
}

int processor_three(const struct value *map, const char *key, double out[3], struct error *e)
{
    const struct value *v = value_get(map, key);
    if (!v || v->kind == VALUE_NULL) return PL_OK;
    if (v->kind == VALUE_LIST && v->count != 3)
        return error_set(e, PL_USAGE, "%s has %u numbers; expected 3", key, v->count);
    for (uint32_t c = 0; c < 3; c++)
        if (value_as_number(v->kind == VALUE_LIST ? value_at(v, c) : v, key, &out[c], e)) return e->code;
    return PL_OK;
}

bool processor_is_class(const char *name, const char *base)
{
    const size_t n = strlen(base);
    return !strncmp(name, base, n) && (!name[n] || !strcmp(name + n, "Fast") || !strcmp(name + n, "Pil"));
}
