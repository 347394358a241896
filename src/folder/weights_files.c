/*
 * weights_files.c: the files of a model folder, and the tensors in them.
 */
#include "folder/weights_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file.h"
#include "io/json.h"

enum { INDEX_MOST = 64 << 20, OTHER_MOST = 64 << 20 };

char *shape_print(int rank, const int64_t *dims, char out[160])
{
    int n = snprintf(out, 160, "[");
    for (int i = 0; i < rank && n < 130; i++) n += snprintf(out + n, 160 - n, "%s%lld", i ? "," : "", (long long)dims[i]);
    snprintf(out + n, 160 - n, "]");
    return out;
}

/* --- which files ---------------------------------------------------------------------- */

void weights_add_file(struct weights *w, uint32_t *room, const char *name)
{
    for (uint32_t i = 0; i < w->n_files; i++)
        if (!strcmp(w->names[i], name)) return;
    if (w->n_files == *room) {
        /* Doubling inside the bump allocator: the old arrays are small and freed with it. */
        const char **names = bump_alloc(&w->memory, (*room = *room ? 2 * *room : 8) * sizeof *names);
        if (w->n_files) memcpy(names, w->names, w->n_files * sizeof *names);
        w->names = names;
    }
    w->names[w->n_files++] = bump_string(&w->memory, name);
}

/* The index file may come from anywhere: its file names must not lead out of the folder. */
static bool is_plain_name(const char *s) { return *s && !strchr(s, '/') && !strstr(s, "..") && strcmp(s, "."); }

static int files_of_index(struct weights *w, const char *path, const struct value **map, struct error *e)
{
    struct value *root;
    uint32_t room = 0;
    if (json_read_file(path, INDEX_MOST, &w->memory, &root, e)) return e->code;
    *map = value_get(root, "weight_map");
    if (value_as_map(*map, "weight_map", e)) return error_prepend(e, "%s", path);
    for (uint32_t i = 0; i < (*map)->count; i++) {
        const struct value *v = (*map)->items[i];
        const char *name;
        if (value_as_string(v, v->key, &name, e)) return error_prepend(e, "%s: weight_map", path);
        if (!is_plain_name(name))
            return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" is listed in \"%.200s\"; expected the plain name of a file in the folder",
                             path, v->key, name);
        weights_add_file(w, &room, name);
    }
    if (!w->n_files) return error_set(e, PL_USAGE, "%s: weight_map is empty", path);
    return PL_OK;
}

/* The error if there are no weights: names the *.safetensors files, or other formats that were
 * found. */
static int no_weights(const struct weights *w, const struct names *all, uint32_t count, struct error *e)
{
    char found[400] = "";
    for (uint32_t i = 0; i < all->n && strlen(found) < 250; i++)
        if (text_ends_with(all->at[i], ".safetensors") || text_ends_with(all->at[i], ".bin") || text_ends_with(all->at[i], ".pth"))
            snprintf(found + strlen(found), sizeof found - strlen(found), "%s%.80s", *found ? ", " : "", all->at[i]);
    return error_set(e, PL_USAGE,
                     "%s: no weights found: looked for %s, model.safetensors, or exactly one *.safetensors file (there are %u); "
                     "found %s: name the file model.safetensors, or save the model as safetensors",
                     w->dir, WEIGHTS_INDEX, count, *found ? found : "no weights of any format");
}

static int only_file(struct weights *w, struct error *e)
{
    struct names all;
    uint32_t count = 0, room = 0;
    int rc = dir_list(w->dir, &all, e);
    if (rc) return rc;
    for (uint32_t i = 0; i < all.n; i++)
        if (text_ends_with(all.at[i], ".safetensors") && !count++) weights_add_file(w, &room, all.at[i]);
    if (count != 1) rc = no_weights(w, &all, count, e);
    names_free(&all);
    return rc;
}

int weights_find_files(struct weights *w, const struct value **map, struct error *e)
{
    uint32_t room = 0;
    const char *path = bump_format(&w->memory, "%s/%s", w->dir, WEIGHTS_INDEX);
    *map = NULL;
    if (!dir_exists(w->dir)) return error_set(e, PL_USAGE, "%s: no such folder; expected a model folder with config.json and *.safetensors", w->dir);
    if (file_exists(path)) return files_of_index(w, path, map, e);
    if (!file_exists(bump_format(&w->memory, "%s/model.safetensors", w->dir))) return only_file(w, e);
    weights_add_file(w, &room, "model.safetensors");
    return PL_OK;
}

int weights_open_files(struct weights *w, struct error *e)
{
    uint32_t n = w->n_files;
    w->files = bump_alloc(&w->memory, n * sizeof *w->files);
    /* n_files counts the open files, for weights_close. */
    for (w->n_files = 0; w->n_files < n; w->n_files++)
        if (st_open(bump_format(&w->memory, "%s/%s", w->dir, w->names[w->n_files]), &w->files[w->n_files], e)) {
            if (n > 1) error_prepend(e, "a file named by %s", WEIGHTS_INDEX);
            return e->code;
        }
    return PL_OK;
}

/* --- which tensors -------------------------------------------------------------------- */

int weights_check_index(const struct weights *w, const struct value *map, struct error *e)
{
    for (uint32_t i = 0; map && i < map->count; i++) {
        const char *name = map->items[i]->key, *file = map->items[i]->text;
        uint32_t f = 0;
        while (strcmp(w->names[f], file)) f++;
        if (!st_find(&w->files[f], name))
            return error_set(e, PL_USAGE, "%s/%s: lists tensor \"%.200s\" in %.200s, but that file does not have it", w->dir,
                             WEIGHTS_INDEX, name, file);
    }
    return PL_OK;
}

static int slot_order(const void *a, const void *b, void *slots)
{
    const struct weight_slot *at = slots;
    return strcmp(at[*(const uint32_t *)a].entry->name, at[*(const uint32_t *)b].entry->name);
}

/* Lists all tensors of all files, and sorts the valid ones by name. With an index a tensor is
 * valid in the file that the index names, so every listed name occurs once. */
void weights_list_slots(struct weights *w, const struct value *map)
{
    uint32_t total = 0;
    for (uint32_t f = 0; f < w->n_files; f++) total += w->files[f].n_entries;
    w->slots = bump_alloc(&w->memory, total * sizeof *w->slots);
    w->by_name = bump_alloc(&w->memory, total * sizeof *w->by_name);
    for (uint32_t f = 0; f < w->n_files; f++)
        for (uint32_t i = 0; i < w->files[f].n_entries; i++) {
            const struct st_entry *entry = &w->files[f].entries[i];
            const struct value *v = value_get(map, entry->name);
            bool listed = !map || (v && !strcmp(v->text, w->names[f]));
            if (listed) w->by_name[w->n_listed++] = w->n_slots;
            w->slots[w->n_slots++] = (struct weight_slot){.entry = entry, .file = f, .listed = listed};
        }
    if (w->n_listed) qsort_r(w->by_name, w->n_listed, sizeof *w->by_name, slot_order, w->slots);
}

uint32_t weights_find_slot(const struct weights *w, const char *name)
{
    uint32_t low = 0, high = w->n_listed;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(name, w->slots[w->by_name[middle]].entry->name);
        if (!order) return w->by_name[middle] + 1;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return 0;
}

/* --- the other files ------------------------------------------------------------------------ */

/* Weights in any format are not copied, nor files that describe them or a checkpoint. */
static bool is_excluded(const char *name)
{
    static const char *const patterns[] = {"*.safetensors", "*.bin",     "*.pt",   "*.pth",      "*.h5", "*.msgpack",
                                           "*.onnx",        "*.bin.index.json", "state.json", "eval.json", "DONE"};
    for (size_t i = 0; i < COUNT(patterns); i++)
        if (pattern_match(patterns[i], name)) return true;
    return false;
}

bool weights_other_file(const struct weights *w, const char *path, const char *name, uint64_t *bytes)
{
    struct stat s;
    if (is_excluded(name) || !strcmp(name, "config.json")) return false; /* the model writes config.json */
    for (uint32_t i = 0; i < w->n_files; i++)
        if (!strcmp(name, w->names[i])) return false; /* an index may use any file name for weights */
    const int rc = stat(path, &s);
    *bytes = rc ? 0 : (uint64_t)s.st_size;
    return rc ? file_is_hidden(errno) : S_ISREG(s.st_mode) && s.st_size <= OTHER_MOST; /* copying a hidden one says why it fails */
}

int weights_copy_others(const struct weights *w, const char *from, const char *dir, file_rule *wanted, struct error *e)
{
    struct bump b = {0};
    struct names all;
    int rc = dir_list(from, &all, e);
    for (uint32_t i = 0; !rc && i < all.n; i++) {
        const char *path = bump_format(&b, "%s/%s", from, all.at[i]);
        uint64_t bytes;
        if ((!wanted || wanted(all.at[i])) && weights_other_file(w, path, all.at[i], &bytes)) rc = file_copy(path, bump_format(&b, "%s/%s", dir, all.at[i]), e);
    }
    names_free(&all);
    bump_free(&b);
    return rc;
}

int weights_count_others(struct weights *w, struct error *e)
{
    struct names all;
    int rc = dir_list(w->dir, &all, e);
    for (uint32_t i = 0; !rc && i < all.n; i++) {
        uint64_t bytes;
        char *path = bump_format(&w->memory, "%s/%s", w->dir, all.at[i]);
        if (weights_other_file(w, path, all.at[i], &bytes)) w->other_bytes += bytes;
    }
    names_free(&all);
    return rc;
}
