/*
 * dataset_info.c: the datasets of LLaMA-Factory: names in dataset_info.json, which says for each the file and what
 * its keys mean. Plimsoll tells the format of a sample from its keys, so a description is followed if it gives the
 * keys their usual names.
 */
#include <string.h>

#include "import/import_rows.h"
#include "io/file.h"
#include "io/json.h"

enum { MAX_INFO = 16 << 20 };

/* The names that the reader of conversations knows, by the column or tag of dataset_info.json. */
static const char *const usual[][2] = {
    {"prompt", "instruction|prompt|text"}, {"query", "input|query"}, {"response", "output|completion"}, {"history", "history"}, {"system", "system"}, {"tools", "tools"},
    {"images", "images|image"}, {"videos", "videos|video"}, {"messages", "messages|conversations"},
    {"role_tag", "from|role"}, {"content_tag", "value|content"}, {"user_tag", "human|user"}, {"assistant_tag", "gpt|assistant"},
    {"observation_tag", "observation|tool"}, {"function_tag", "function_call|function"}, {"system_tag", "system"},
};

static bool is_usual(const char *column, const char *name)
{
    for (size_t i = 0; i < COUNT(usual); i++) {
        if (strcmp(usual[i][0], column)) continue;
        for (const char *w = usual[i][1]; *w; w += strcspn(w, "|") + (w[strcspn(w, "|")] == '|'))
            if (strlen(name) == strcspn(w, "|") && !strncmp(w, name, strlen(name))) return true;
        return false;
    }
    return false;
}

static int check_names(const struct value *map, const char *dataset, const char *info, struct error *e)
{
    for (uint32_t i = 0; map && i < map->count; i++) {
        const struct value *v = map->items[i];
        if (v->kind == VALUE_STRING && is_usual(v->key, v->text)) continue;
        return error_set(e, PL_USAGE, "%s: dataset %s: %s is %.100s, and Plimsoll tells samples apart by the usual keys alone: rename it in the data, or give data.train files with messages", info, dataset,
                         v->key, v->text ? v->text : "not a name");
    }
    return PL_OK;
}

static int find_file(struct import *f, const struct value *all, const char *name, const char *info, const char **path, struct error *e)
{
    const struct value *d = value_get(all, name), *file = value_get(d, "file_name"), *ranking = value_get(d, "ranking"), *format = value_get(d, "formatting");
    char folder[4096];
    if (!d || d->kind != VALUE_MAP) return error_set(e, PL_USAGE, "%s has no dataset %.200s", info, name);
    if (!file || file->kind != VALUE_STRING)
        return error_set(e, PL_USAGE, "%s: dataset %.200s is on a hub and has no file_name: write it to a file with `datasets` (to_json) and give that in data.train", info, name);
    if (ranking && !import_off(ranking)) return error_set(e, PL_USAGE, "%s: dataset %.200s holds ranked answers, which Plimsoll does not train on", info, name);
    if (format && !(format->kind == VALUE_STRING && (!strcmp(format->text, "alpaca") || !strcmp(format->text, "sharegpt") || !strcmp(format->text, "openai"))))
        return error_set(e, PL_USAGE, "%s: dataset %.200s: formatting is not known, expected alpaca, sharegpt or openai", info, name);
    if (check_names(value_get(d, "columns"), name, info, e) || check_names(value_get(d, "tags"), name, info, e)) return e->code;
    if (path_dir(info, folder, sizeof folder, e)) return e->code;
    *path = strcmp(folder, ".") ? bump_format(&f->memory, "%s/%s", folder, file->text) : file->text;
    return file_exists(*path) ? PL_OK : error_set(e, PL_USAGE, "%s: dataset %.200s: there is no file %s", info, name, *path);
}

/* dataset_info.json in its dataset_dir, or beside the file that names the dataset. */
static const char *find_info(struct import *f, const char *folder, const char *from)
{
    const char *path = import_locate(f, bump_format(&f->memory, "%s/dataset_info.json", folder), from);
    return path ? path : import_locate(f, "dataset_info.json", from);
}

/* "a, b" or a list as a list of names. */
static struct value *split_names(struct import *f, const struct value *v)
{
    struct value *names = value_new(&f->memory, VALUE_LIST);
    for (uint32_t i = 0; v->kind == VALUE_LIST && i < v->count; i++)
        if (v->items[i]->text) value_append(&f->memory, names, value_string(&f->memory, v->items[i]->text));
    for (const char *s = v->kind == VALUE_LIST ? "" : v->text ? v->text : ""; *s;) {
        s += strspn(s, ", \t");
        const size_t n = strcspn(s, ", \t");
        if (n) value_append(&f->memory, names, value_string(&f->memory, bump_format(&f->memory, "%.*s", (int)n, s)));
        s += n;
    }
    return names;
}

int import_datasets(struct import *f, const struct import_entry *entry, const char *folder, struct value **paths, struct error *e)
{
    struct value *all, *names = split_names(f, entry->value);
    const char *info = find_info(f, folder, entry->file);
    *paths = value_new(&f->memory, VALUE_LIST);
    if (!info) return error_set(e, PL_USAGE, "there is no dataset_info.json in %s or beside %s; it says which files the datasets are", folder, entry->file);
    if (json_read_file(info, MAX_INFO, &f->memory, &all, e)) return e->code;
    for (uint32_t i = 0; i < names->count; i++) {
        const char *path = NULL;
        if (find_file(f, all, names->items[i]->text, info, &path, e)) return e->code;
        value_append(&f->memory, *paths, value_string(&f->memory, path));
    }
    return PL_OK;
}
