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

enum { JSON_MOST = 64 << 20 };

/* Tensors that are a second name of another one, and that a file may leave out. The adapter's copy
 * of such a tensor, in a module that it saves, is not trained. */
static const struct {
    const char *name, *same_as;
} aliases[] = {{"prompt_encoder.shared_embedding.positional_embedding", "shared_image_embedding.positional_embedding"}};

/* Returns the listed tensor of that name; NULL: none. */
static struct weight_slot *find_tensor(const struct merge *m, const char *name)
{
    const uint32_t slot = model_files_find_slot(&m->base, name);
    return slot ? &m->base.slots[slot - 1] : NULL;
}

/* --- a tied head ---------------------------------------------------------------------------- */

static bool is_tied(const struct merge *m)
{
    const struct value *whole = value_get(m->config, "tie_word_embeddings"),
                       *text = value_path(m->config, "text_config.tie_word_embeddings");
    return (whole && whole->kind == VALUE_BOOL && whole->truth) || (text && text->kind == VALUE_BOOL && text->truth);
}

/* Finds the embedding and the head of a tied model; without them it counts as not tied. */
static void find_tied(struct merge *m)
{
    if (!is_tied(m)) return;
    for (uint32_t i = 0; i < m->base.n_slots; i++) {
        const char *name = m->base.slots[i].entry->name;
        if (!m->base.slots[i].listed) continue;
        if (text_ends_with(name, "embed_tokens.weight")) m->embedding = &m->base.slots[i];
        if (!strcmp(name, "lm_head.weight") || text_ends_with(name, ".lm_head.weight")) m->head = &m->base.slots[i];
    }
    if (!m->embedding) m->head = NULL;
    else if (m->head) m->head_name = m->head->entry->name;
    else
        m->head_name = strncmp(m->embedding->entry->name, "language_model.", 15) ? "lm_head.weight"
                                                                                 : "language_model.lm_head.weight";
}

/* Lists the names that an adapter may refer to: those of the files, a tied head, and aliases of
 * tensors that are there. */
static const char **names_of_base(struct merge *m, uint32_t *n)
{
    const char **names = bump_alloc(&m->base.memory, (m->base.n_slots + 1 + COUNT(aliases)) * sizeof *names);
    *n = 0;
    for (uint32_t i = 0; i < m->base.n_slots; i++)
        if (m->base.slots[i].listed) names[(*n)++] = m->base.slots[i].entry->name;
    if (m->embedding && !m->head) names[(*n)++] = m->head_name;
    for (size_t i = 0; i < COUNT(aliases); i++)
        if (!find_tensor(m, aliases[i].name) && find_tensor(m, aliases[i].same_as)) names[(*n)++] = aliases[i].name;
    return names;
}

/* --- adapter and base ----------------------------------------------------------------------- */

static int check_dtype(const struct merge *m, const struct st_entry *t, const struct adapter_tensor *x, struct error *e)
{
    const bool same = t->dtype != DT_NONE && t->dtype == x->dtype && x->part == ADAPTER_WHOLE;
    if (same || (dtype_is_float(t->dtype) && dtype_is_float(x->dtype))) return PL_OK;
    return error_set(e, PL_USAGE, "%s: tensor \"%.200s\" is %.40s; an adapter is merged into F32, BF16, F16 or F64%s",
                     m->base.dir, t->name, t->dtype_name,
                     value_get(m->config, "quantization_config")
                         ? ": give the folder of the base model before it was quantized"
                         : "");
}

/* Checks that an adapter's tensor fits the tensor of the base. */
static int check_fits(const struct merge *m, const struct st_entry *t, const struct adapter_tensor *x, struct error *e)
{
    char base[160], adapter[160];
    if (check_dtype(m, t, x, e)) return e->code;
    bool fits = x->part == ADAPTER_WHOLE
                    ? t->rank == x->rank && (!t->rank || !memcmp(t->dims, x->dims, (size_t)t->rank * sizeof *t->dims))
                    : t->rank == 2 && (x->part == ADAPTER_A ? x->dims[1] == t->dims[1] : x->dims[0] == t->dims[0]);
    if (fits) return PL_OK;
    return error_set(e, PL_USAGE,
                     "%s: the adapter belongs to another base: tensor \"%.200s\" has the shape %s, which does not fit "
                     "%s of \"%.200s\" in %s",
                     m->adapter.path, x->name, shape_print(x->rank, x->dims, adapter),
                     shape_print(t->rank, t->dims, base), t->name, m->base.dir);
}

static int attach(struct merge *m, const struct adapter_tensor *x, struct error *e)
{
    const bool head = m->embedding && !strcmp(x->base, m->head_name);
    const struct weight_slot *t = find_tensor(m, x->base);
    if (!t && !head) return PL_OK; /* an alias */
    if (check_fits(m, head ? m->embedding->entry : t->entry, x, e)) return e->code;
    struct merge_change *c = head ? &m->head_change : &m->changes[t - m->base.slots];
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
    if (adapter_folder_match(&m->adapter, m->base.dir, names, n, e)) return e->code;
    for (uint32_t i = 0; i < m->adapter.n; i++)
        if (attach(m, &m->adapter.tensors[i], e)) return e->code;
    return PL_OK;
}

static int open_base(struct merge *m, const char *dir, struct error *e)
{
    const char *config = bump_format(&m->base.memory, "%s/config.json", dir);
    if (!dir_exists(dir)) return model_missing(dir, e);
    if (!file_exists(config)) return model_missing_config(dir, e);
    if (json_read_file(config, JSON_MOST, &m->base.memory, &m->config, e)) return e->code;
    if (value_as_map(m->config, "the file", e)) return error_prepend(e, "%s", config);
    if (model_files_open(&m->base, dir, true, e)) return e->code;
    m->changes = bump_alloc(&m->base.memory, m->base.n_slots * sizeof *m->changes);
    find_tied(m);
    return PL_OK;
}

int merge_open(struct merge *m, const char *base, const char *adapter, struct error *e)
{
    memset(m, 0, sizeof *m);
    m->adapter.file.fd = -1;
    int rc = open_base(m, base, e);
    if (!rc) rc = adapter_folder_open(&m->adapter, adapter, e);
    if (!rc) rc = attach_all(m, e);
    if (rc) merge_close(m);
    return rc;
}

void merge_close(struct merge *m)
{
    model_files_close(&m->base);
    adapter_folder_close(&m->adapter);
    memset(m, 0, sizeof *m);
    m->adapter.file.fd = -1;
}
