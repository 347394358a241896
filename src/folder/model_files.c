/*
 * model_files.c: see model_files.h.
 *
 * A fused tensor of a file is split into slots that touch each other, in the order of its data:
 *
 *     experts.gate_up_proj [2,2 x rows,columns]     | gate 0 | up 0 | gate 1 | up 1 |
 *     slots                                           experts.0.gate_proj.weight, ...
 *
 * So what reads or writes slot after slot need not know of it.
 */
#include "folder/model_files.h"

#include <errno.h>
#include <sys/stat.h>

#include "io/file.h"
#include "io/json.h"

enum { INDEX_MOST = 64 << 20, OTHER_MOST = 64 << 20 };

char *shape_print(int rank, const int64_t *dims, char out[160])
{
    int n = snprintf(out, 160, "[");
    for (int i = 0; i < rank && n < 130; i++)
        n += snprintf(out + n, 160 - n, "%s%lld", i ? "," : "", (long long)dims[i]);
    snprintf(out + n, 160 - n, "]");
    return out;
}

/* --- which files ---------------------------------------------------------------------- */

/* Adds a file by its name in the folder, once; *room is the size of the list, 0 at first. */
static void add_file(struct model_files *f, uint32_t *room, const char *name)
{
    for (uint32_t i = 0; i < f->n_files; i++)
        if (!strcmp(f->names[i], name)) return;
    if (f->n_files == *room) {
        /* Doubling inside the bump allocator: the old arrays are small and freed with it. */
        const char **names = bump_alloc(&f->memory, (*room = *room ? 2 * *room : 8) * sizeof *names);
        if (f->n_files) memcpy(names, f->names, f->n_files * sizeof *names);
        f->names = names;
    }
    f->names[f->n_files++] = bump_string(&f->memory, name);
}

/* Reports whether a file name of the index, which may come from anywhere, stays in the folder. */
static bool is_plain_name(const char *s) { return *s && !strchr(s, '/') && !strstr(s, "..") && strcmp(s, "."); }

static int files_of_index(struct model_files *f, const char *path, struct error *e)
{
    struct value *root;
    uint32_t room = 0;
    if (json_read_file(path, INDEX_MOST, &f->memory, &root, e)) return e->code;
    f->map = value_get(root, "weight_map");
    if (value_as_map(f->map, "weight_map", e)) return error_prepend(e, "%s", path);
    for (uint32_t i = 0; i < f->map->count; i++) {
        const struct value *v = f->map->items[i];
        const char *name;
        if (value_as_string(v, v->key, &name, e)) return error_prepend(e, "%s: weight_map", path);
        if (!is_plain_name(name))
            return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" is listed in \"%.200s\"; expected the plain name of a "
                             "file in the folder", path, v->key, name);
        add_file(f, &room, name);
    }
    if (!f->n_files) return error_set(e, PL_USAGE, "%s: weight_map is empty", path);
    return PL_OK;
}

/* Returns the error if there are no weights: it names the *.safetensors files, or other formats
 * that were found. */
static int no_weights(const struct model_files *f, const struct names *all, bool several, uint32_t count,
                      struct error *e)
{
    char found[400] = "";
    for (uint32_t i = 0; i < all->n && strlen(found) < 250; i++)
        if (text_ends_with(all->at[i], ".safetensors") || text_ends_with(all->at[i], ".bin") ||
            text_ends_with(all->at[i], ".pth"))
            snprintf(found + strlen(found), sizeof found - strlen(found), "%s%.80s", *found ? ", " : "", all->at[i]);
    return error_set(e, PL_USAGE,
                     "%s: no weights found: looked for %s, model.safetensors, or %s *.safetensors file (there are %u); "
                     "found %s: name the file model.safetensors, or save the model as safetensors",
                     f->dir, MODEL_INDEX, several ? "any" : "exactly one", count,
                     *found ? found : "no weights of any format");
}

static int any_files(struct model_files *f, bool several, struct error *e)
{
    struct names all;
    uint32_t count = 0, room = 0;
    int rc = dir_list(f->dir, &all, e);
    if (rc) return rc;
    for (uint32_t i = 0; i < all.n; i++)
        if (text_ends_with(all.at[i], ".safetensors") && (!count++ || several)) add_file(f, &room, all.at[i]);
    if (!count || (count > 1 && !several)) rc = no_weights(f, &all, several, count, e);
    names_free(&all);
    return rc;
}

static int find_files(struct model_files *f, bool several, struct error *e)
{
    uint32_t room = 0;
    const char *path = bump_format(&f->memory, "%s/%s", f->dir, MODEL_INDEX);
    if (!dir_exists(f->dir))
        return error_set(e, PL_USAGE, "%s: no such folder; expected a model folder with config.json and *.safetensors",
                         f->dir);
    if (file_exists(path)) return files_of_index(f, path, e);
    if (!file_exists(bump_format(&f->memory, "%s/model.safetensors", f->dir))) return any_files(f, several, e);
    add_file(f, &room, "model.safetensors");
    return PL_OK;
}

static int open_files(struct model_files *f, struct error *e)
{
    uint32_t n = f->n_files;
    f->files = bump_alloc(&f->memory, n * sizeof *f->files);
    /* n_files counts the open files, for model_files_close. */
    for (f->n_files = 0; f->n_files < n; f->n_files++)
        if (st_open(bump_format(&f->memory, "%s/%s", f->dir, f->names[f->n_files]), &f->files[f->n_files], e)) {
            if (n > 1) error_prepend(e, "a file named by %s", MODEL_INDEX);
            return e->code;
        }
    return PL_OK;
}

/* --- which tensors -------------------------------------------------------------------- */

int model_files_check_index(const struct model_files *f, struct error *e)
{
    for (uint32_t i = 0; f->map && i < f->map->count; i++) {
        const char *name = f->map->items[i]->key, *file = f->map->items[i]->text;
        uint32_t k = 0;
        while (strcmp(f->names[k], file)) k++;
        if (!st_find(&f->files[k], name))
            return error_set(e, PL_USAGE, "%s/%s: lists tensor \"%.200s\" in %.200s, but that file does not have it",
                             f->dir, MODEL_INDEX, name, file);
    }
    return PL_OK;
}

static int slot_order(const void *a, const void *b, void *slots)
{
    const struct weight_slot *at = slots;
    return strcmp(at[*(const uint32_t *)a].entry->name, at[*(const uint32_t *)b].entry->name);
}

static void sort_slots(struct model_files *f)
{
    f->n_listed = 0;
    f->by_name = bump_alloc(&f->memory, f->n_slots * sizeof *f->by_name);
    for (uint32_t i = 0; i < f->n_slots; i++)
        if (f->slots[i].listed) f->by_name[f->n_listed++] = i;
    if (f->n_listed) qsort_r(f->by_name, f->n_listed, sizeof *f->by_name, slot_order, f->slots);
}

/* Lists all tensors of all files, and sorts the valid ones by name. With an index a tensor is
 * valid in the file that the index names, so every listed name occurs once. */
static void list_slots(struct model_files *f)
{
    uint32_t total = 0;
    for (uint32_t k = 0; k < f->n_files; k++) total += f->files[k].n_entries;
    f->slots = bump_alloc(&f->memory, total * sizeof *f->slots);
    for (uint32_t k = 0; k < f->n_files; k++)
        for (uint32_t i = 0; i < f->files[k].n_entries; i++) {
            const struct st_entry *entry = &f->files[k].entries[i];
            const struct value *v = value_get(f->map, entry->name);
            bool listed = !f->map || (v && !strcmp(v->text, f->names[k]));
            f->slots[f->n_slots++] = (struct weight_slot){.entry = entry, .file = k, .listed = listed};
        }
    sort_slots(f);
}

/* Returns the matrices of a stack in a fused tensor. */
static int64_t matrices_of(const struct fused_tensor *x, const struct st_entry *t)
{
    return name_is_stack(x->published[0]) ? t->dims[0] : 1;
}

/* Checks the shape of a fused tensor. */
static int check_fused(const struct model_files *f, const struct weight_slot *s, const struct fused_tensor *x,
                       struct error *e)
{
    const struct st_entry *t = s->entry;
    char found[160];
    if (!name_is_stack(x->published[0]) || (t->rank == 3 && t->elements && t->dims[1] % fused_parts(x) == 0))
        return PL_OK;
    return error_set(e, PL_USAGE, "%s/%s: tensor \"%.200s\" has the shape %s; expected [experts,%srows,columns]",
                     f->dir, f->names[s->file], t->name, shape_print(t->rank, t->dims, found),
                     fused_parts(x) > 1 ? "2 x " : "");
}

/* Adds the slots of the published tensors in a fused one. */
static void split_slot(struct model_files *f, const struct weight_slot *s, const struct fused_tensor *x)
{
    const struct st_entry *t = s->entry;
    const int64_t n = matrices_of(x, t), parts = fused_parts(x);
    const bool stacked = name_is_stack(x->published[0]);
    int64_t *dims = bump_alloc(&f->memory, (size_t)t->rank * sizeof *dims);
    memcpy(dims, t->dims + stacked, (size_t)(t->rank - stacked) * sizeof *dims);
    dims[0] /= parts;
    for (int64_t i = 0; i < n * parts; i++) {
        struct st_entry *part = bump_alloc(&f->memory, sizeof *part);
        char end[256];
        *part = *t;
        part->name = bump_format(&f->memory, "%.*s%s", (int)(strlen(t->name) - strlen(x->name)), t->name,
                                 name_in_stack(x->published[i % parts], i / parts, end, sizeof end));
        part->rank = t->rank - stacked;
        part->dims = dims;
        part->elements = t->elements / (n * parts);
        part->bytes = t->bytes / (uint64_t)(n * parts);
        part->begin = t->begin + (uint64_t)i * part->bytes;
        f->slots[f->n_slots++] = (struct weight_slot){.entry = part, .file = s->file, .listed = s->listed};
    }
}

int model_files_split(struct model_files *f, const struct fused_tensor *list, bool *any, struct error *e)
{
    const struct weight_slot *whole = f->slots;
    const uint32_t n = f->n_slots;
    uint64_t total = n;
    *any = false;
    for (uint32_t i = 0; i < n; i++) {
        const struct fused_tensor *x = fused_find(list, whole[i].entry->name);
        if (!x) continue;
        TRY(check_fused(f, &whole[i], x, e));
        total += (uint64_t)(matrices_of(x, whole[i].entry) * fused_parts(x)) - 1;
        *any |= name_is_stack(x->published[0]);
    }
    if (!*any) return PL_OK;
    if (total > UINT32_MAX / 2) return error_set(e, PL_USAGE, "%s: more tensors than are supported", f->dir);
    f->slots = bump_alloc(&f->memory, total * sizeof *f->slots);
    f->n_slots = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct fused_tensor *x = fused_find(list, whole[i].entry->name);
        if (x) split_slot(f, &whole[i], x);
        else f->slots[f->n_slots++] = whole[i];
    }
    sort_slots(f);
    return PL_OK;
}

uint32_t model_files_find_slot(const struct model_files *f, const char *name)
{
    uint32_t low = 0, high = f->n_listed;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = strcmp(name, f->slots[f->by_name[middle]].entry->name);
        if (!order) return f->by_name[middle] + 1;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return 0;
}

/* --- opening and closing ---------------------------------------------------------------- */

int model_files_open(struct model_files *f, const char *dir, bool several, struct error *e)
{
    snprintf(f->dir, sizeof f->dir, "%s", dir);
    if (find_files(f, several, e) || open_files(f, e)) return e->code;
    list_slots(f);
    return PL_OK;
}

int model_files_open_one(struct model_files *f, const char *name, const struct st_file *opened, struct error *e)
{
    uint32_t room = 0;
    add_file(f, &room, name);
    if (opened) {
        f->files = bump_alloc(&f->memory, sizeof *f->files);
        f->files[0] = *opened;
    } else if (open_files(f, e)) {
        return e->code;
    }
    list_slots(f);
    return PL_OK;
}

void model_files_close(struct model_files *f)
{
    for (uint32_t i = 0; f->files && i < f->n_files; i++) st_close(&f->files[i]);
    bump_free(&f->memory);
    memset(f, 0, sizeof *f);
}

/* --- the other files ------------------------------------------------------------------------ */

/* Reports whether a file is not copied: weights in any format, and files that describe them or a
 * checkpoint. */
static bool is_excluded(const char *name)
{
    static const char *const patterns[] = {"*.safetensors", "*.bin",     "*.pt",   "*.pth",      "*.h5", "*.msgpack",
                                           "*.onnx",        "*.bin.index.json", "state.json", "eval.json", "DONE"};
    for (size_t i = 0; i < COUNT(patterns); i++)
        if (pattern_match(patterns[i], name)) return true;
    return false;
}

/* Reports whether a file of that name is copied; *bytes is its size. */
static bool is_other(const struct model_files *f, const char *path, const char *name, uint64_t *bytes)
{
    struct stat s;
    if (is_excluded(name) || !strcmp(name, "config.json")) return false; /* the model writes config.json */
    for (uint32_t i = 0; i < f->n_files; i++)
        if (!strcmp(name, f->names[i])) return false; /* an index may use any file name for weights */
    const int rc = stat(path, &s);
    *bytes = rc ? 0 : (uint64_t)s.st_size;
    /* copying a hidden one says why it fails */
    return rc ? file_is_hidden(errno) : S_ISREG(s.st_mode) && s.st_size <= OTHER_MOST;
}

int model_files_copy_others(const struct model_files *f, const char *from, const char *dir, file_rule *wanted,
                            struct error *e)
{
    struct bump b = {0};
    struct names all;
    int rc = dir_list(from, &all, e);
    for (uint32_t i = 0; !rc && i < all.n; i++) {
        const char *path = bump_format(&b, "%s/%s", from, all.at[i]);
        uint64_t bytes;
        if ((!wanted || wanted(all.at[i])) && is_other(f, path, all.at[i], &bytes))
            rc = file_copy(path, bump_format(&b, "%s/%s", dir, all.at[i]), e);
    }
    names_free(&all);
    bump_free(&b);
    return rc;
}

int model_files_count_others(const struct model_files *f, uint64_t *bytes, struct error *e)
{
    struct bump b = {0};
    struct names all;
    int rc = dir_list(f->dir, &all, e);
    for (uint32_t i = 0; !rc && i < all.n; i++) {
        uint64_t size;
        if (is_other(f, bump_format(&b, "%s/%s", f->dir, all.at[i]), all.at[i], &size)) *bytes += size;
    }
    names_free(&all);
    bump_free(&b);
    return rc;
}
