/*
 * merge.c: opening and checking a base and its adapter (see merge.h; writing is in merge_write.c).
 */
#include "adapter/merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/file.h"
#include "io/json.h"
#include "models/model.h"

static const char index_name[] = "model.safetensors.index.json";
enum { JSON_MOST = 64 << 20 };

/* Tensors that are a second name of another one, and that a file may leave out. The adapter's copy of such a
 * tensor, in a module that it saves, is not trained. */
static const struct {
    const char *name, *same_as;
} aliases[] = {{"prompt_encoder.shared_embedding.positional_embedding", "shared_image_embedding.positional_embedding"}};

/* --- the base ------------------------------------------------------------------------------- */

static void add_name(struct merge *m, uint32_t *room, const char *name)
{
    for (uint32_t i = 0; i < m->n_files; i++)
        if (!strcmp(m->names[i], name)) return;
    if (m->n_files == *room) {
        const char **names = bump_alloc(&m->memory, (*room = *room ? 2 * *room : 8) * sizeof *names);
        if (m->n_files) memcpy(names, m->names, m->n_files * sizeof *names);
        m->names = names;
    }
    m->names[m->n_files++] = bump_string(&m->memory, name);
}

static int names_of_index(struct merge *m, const char *path, struct error *e)
{
    struct value *root;
    uint32_t room = 0;
    if (json_read_file(path, JSON_MOST, &m->memory, &root, e)) return e->code;
    m->map = value_get(root, "weight_map");
    if (value_as_map(m->map, "weight_map", e)) return error_prepend(e, "%s", path);
    for (uint32_t i = 0; i < m->map->count; i++) {
        const char *name;
        if (value_as_string(m->map->items[i], m->map->items[i]->key, &name, e)) return error_prepend(e, "%s: weight_map", path);
        if (!*name || strchr(name, '/') || strstr(name, "..") || !strcmp(name, "."))
            return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" is listed in \"%.200s\"; expected the plain name of a file in the folder", path, m->map->items[i]->key, name);
        add_name(m, &room, name);
    }
    return PL_OK;
}

/* The files of an index, else model.safetensors, else every *.safetensors. */
static int find_names(struct merge *m, struct error *e)
{
    struct names all = {0};
    uint32_t room = 0;
    const char *index = bump_format(&m->memory, "%s/%s", m->base, index_name);
    if (file_exists(index)) return names_of_index(m, index, e);
    int rc = dir_list(m->base, &all, e);
    for (uint32_t i = 0; i < all.n && !rc; i++)
        if (!strcmp(all.at[i], "model.safetensors")) add_name(m, &room, all.at[i]);
    for (uint32_t i = 0; i < all.n && !rc && !file_exists(bump_format(&m->memory, "%s/model.safetensors", m->base)); i++)
        if (text_ends_with(all.at[i], ".safetensors")) add_name(m, &room, all.at[i]);
    names_free(&all);
    if (!rc && !m->n_files) rc = error_set(e, PL_USAGE, "%s: the folder has no *.safetensors; expected the model folder of the adapter's base", m->base);
    return rc;
}

static int open_files(struct merge *m, struct error *e)
{
    uint32_t n = m->n_files;
    m->files = bump_alloc(&m->memory, (n ? n : 1) * sizeof *m->files);
    for (m->n_files = 0; m->n_files < n; m->n_files++) {
        struct st_file *f = &m->files[m->n_files];
        if (st_open(bump_format(&m->memory, "%s/%s", m->base, m->names[m->n_files]), f, e)) return e->code;
        m->n_tensors += f->n_entries;
    }
    return PL_OK;
}

static void list_tensors(struct merge *m)
{
    m->tensors = bump_alloc(&m->memory, (m->n_tensors ? m->n_tensors : 1) * sizeof *m->tensors);
    uint32_t at = 0;
    for (uint32_t f = 0; f < m->n_files; f++)
        for (uint32_t i = 0; i < m->files[f].n_entries; i++) {
            const struct st_entry *entry = &m->files[f].entries[i];
            const struct value *v = value_get(m->map, entry->name);
            m->tensors[at++] = (struct merge_tensor){.entry = entry, .file = f, .listed = !m->map || (v && !strcmp(v->text, m->names[f]))};
        }
}

static struct merge_tensor *find_tensor(const struct merge *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].listed && !strcmp(m->tensors[i].entry->name, name)) return &m->tensors[i];
    return NULL;
}

/* --- a tied head ---------------------------------------------------------------------------- */

static bool is_tied(const struct merge *m)
{
    const struct value *whole = value_get(m->config, "tie_word_embeddings"), *text = value_path(m->config, "text_config.tie_word_embeddings");
    return (whole && whole->kind == VALUE_BOOL && whole->truth) || (text && text->kind == VALUE_BOOL && text->truth);
}

/* Finds the embedding and the head of a tied model; without them it counts as not tied. */
static void find_tied(struct merge *m)
{
    if (!is_tied(m)) return;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const char *name = m->tensors[i].entry->name;
        if (!m->tensors[i].listed) continue;
        if (text_ends_with(name, "embed_tokens.weight")) m->embedding = &m->tensors[i];
        if (!strcmp(name, "lm_head.weight") || text_ends_with(name, ".lm_head.weight")) m->head = &m->tensors[i];
    }
    if (!m->embedding) m->head = NULL;
    else if (m->head) m->head_name = m->head->entry->name;
    else m->head_name = strncmp(m->embedding->entry->name, "language_model.", 15) ? "lm_head.weight" : "language_model.lm_head.weight";
}

/* The names that an adapter may refer to: those of the files, a tied head, and aliases of tensors that are there. */
static const char **names_of_base(struct merge *m, uint32_t *n)
{
    const char **names = bump_alloc(&m->memory, (m->n_tensors + 1 + COUNT(aliases)) * sizeof *names);
    *n = 0;
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].listed) names[(*n)++] = m->tensors[i].entry->name;
    if (m->embedding && !m->head) names[(*n)++] = m->head_name;
    for (size_t i = 0; i < COUNT(aliases); i++)
        if (!find_tensor(m, aliases[i].name) && find_tensor(m, aliases[i].same_as)) names[(*n)++] = aliases[i].name;
    return names;
}

/* --- adapter and base ----------------------------------------------------------------------- */

static char *shape_print(int rank, const int64_t *dims, char out[160])
{
    int n = snprintf(out, 160, "[");
    for (int i = 0; i < rank && n < 130; i++) n += snprintf(out + n, 160 - n, "%s%lld", i ? "," : "", (long long)dims[i]);
    snprintf(out + n, 160 - n, "]");
    return out;
}

static int check_dtype(const struct merge *m, const struct st_entry *t, const struct adapter_tensor *x, struct error *e)
{
    const bool same = t->dtype != DT_NONE && t->dtype == x->dtype && x->part == ADAPTER_WHOLE;
    if (same || (dtype_is_float(t->dtype) && dtype_is_float(x->dtype))) return PL_OK;
    return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" is %.40s; an adapter is merged into F32, BF16, F16 or F64%s", m->base, t->name, t->dtype_name,
                     value_get(m->config, "quantization_config") ? ": give the folder of the base model before it was quantized" : "");
}

/* Checks that an adapter's tensor fits the tensor of the base. */
static int check_fits(const struct merge *m, const struct st_entry *t, const struct adapter_tensor *x, struct error *e)
{
    char base[160], adapter[160];
    if (check_dtype(m, t, x, e)) return e->code;
    bool fits = x->part == ADAPTER_WHOLE ? t->rank == x->rank && (!t->rank || !memcmp(t->dims, x->dims, (size_t)t->rank * sizeof *t->dims))
                                         : t->rank == 2 && (x->part == ADAPTER_A ? x->dims[1] == t->dims[1] : x->dims[0] == t->dims[0]);
    if (fits) return PL_OK;
    return error_set(e, PL_USAGE, "%s: the adapter belongs to another base: tensor \"%.200s\" has the shape %s, which does not fit %s of \"%.200s\" in %s", m->adapter.path, x->name,
                     shape_print(x->rank, x->dims, adapter), shape_print(t->rank, t->dims, base), t->name, m->base);
}

static int attach(struct merge *m, const struct adapter_tensor *x, struct error *e)
{
    const bool head = m->embedding && !strcmp(x->base, m->head_name);
    struct merge_tensor *t = find_tensor(m, x->base);
    if (!t && !head) return PL_OK; /* an alias */
    if (check_fits(m, head ? m->embedding->entry : t->entry, x, e)) return e->code;
    struct merge_change *c = head ? &m->head_change : &t->change;
    if (x->part == ADAPTER_A) c->A = x, m->n_merged++;
    else if (x->part == ADAPTER_B) c->B = x;
    else if (x->part == ADAPTER_MAGNITUDE) c->magnitude = x;
    else c->whole = x, m->n_whole++;
    m->untied |= head || t == m->embedding;
    return PL_OK;
}

static int attach_all(struct merge *m, struct error *e)
{
    uint32_t n;
    const char **names = names_of_base(m, &n);
    if (adapter_folder_match(&m->adapter, m->base, names, n, e)) return e->code;
    for (uint32_t i = 0; i < m->adapter.n; i++)
        if (attach(m, &m->adapter.tensors[i], e)) return e->code;
    return PL_OK;
}

static int open_base(struct merge *m, struct error *e)
{
    const char *config = bump_format(&m->memory, "%s/config.json", m->base);
    if (!dir_exists(m->base)) return model_missing(m->base, e);
    if (!file_exists(config)) return model_missing_config(m->base, e);
    if (json_read_file(config, JSON_MOST, &m->memory, &m->config, e)) return e->code;
    if (value_as_map(m->config, "the file", e)) return error_prepend(e, "%s", config);
    if (find_names(m, e) || open_files(m, e)) return e->code;
    list_tensors(m);
    find_tied(m);
    return PL_OK;
}

int merge_open(struct merge *m, const char *base, const char *adapter, struct error *e)
{
    memset(m, 0, sizeof *m);
    m->adapter.file.fd = -1;
    m->base = bump_string(&m->memory, base);
    int rc = open_base(m, e);
    if (!rc) rc = adapter_folder_open(&m->adapter, adapter, e);
    if (!rc) rc = attach_all(m, e);
    if (rc) merge_close(m);
    return rc;
}

void merge_close(struct merge *m)
{
    for (uint32_t i = 0; m->files && i < m->n_files; i++) st_close(&m->files[i]);
    adapter_folder_close(&m->adapter);
    bump_free(&m->memory);
    memset(m, 0, sizeof *m);
    m->adapter.file.fd = -1;
}
