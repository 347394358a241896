/*
 * config_groups.c: converts keys that are lists of maps, train.groups, memory.modules and
 * memory.quantize, to and from their structs.
 *
 * The members of an item are table rows like the keys themselves (group.def, module.def, form.def),
 * so that a number in an item is read, checked and written like any other. The table at the top
 * holds the differences between the two lists.
 */
#include "io/value.h"
#include "config/config_rows.h"

static const struct config_row group_rows[GROUP_MEMBERS] = {
#define MEMBER(name, type, allowed, doc) \
    {"train.groups[]", "train.groups[]." #name, ROW_##type, offsetof(struct config_group, name), "", allowed, doc},
#include "config/group.def"
#undef MEMBER
};

static const struct config_row module_rows[MODULE_MEMBERS] = {
#define MEMBER(name, type, allowed, doc) \
    {"memory.modules[]", "memory.modules[]." #name, ROW_##type, offsetof(struct config_module, name), "", allowed, doc},
#include "config/module.def"
#undef MEMBER
};

static const struct config_row form_rows[FORM_MEMBERS] = {
#define MEMBER(name, type, allowed, doc) \
    {"memory.quantize[]", "memory.quantize[]." #name, ROW_##type, offsetof(struct config_form, name), "", allowed, doc},
#include "config/form.def"
#undef MEMBER
};

/* The common layout of struct config_groups, struct config_modules and struct config_forms. */
struct maps {
    char *at;
    uint32_t n;
};
_Static_assert(sizeof(struct maps) == sizeof(struct config_groups) &&
                   sizeof(struct maps) == sizeof(struct config_modules) &&
                   sizeof(struct maps) == sizeof(struct config_forms),
               "lists of maps");

/* `match` is the first member of each item. */
const struct config_maps config_maps[] = {
    {ROW_GROUPS, group_rows, GROUP_MEMBERS, sizeof(struct config_group), offsetof(struct config_group, given),
     "parameter", "learning_rate, lr_scale, weight_decay or frozen"},
    {ROW_MODULES, module_rows, MODULE_MEMBERS, sizeof(struct config_module), offsetof(struct config_module, given),
     "module", "recompute or precision"},
    {ROW_FORMS, form_rows, FORM_MEMBERS, sizeof(struct config_form), offsetof(struct config_form, given), "layer",
     "form"},
};
const size_t config_maps_count = COUNT(config_maps);
_Static_assert(GROUP_match == 0 && MODULE_match == 0 && FORM_match == 0, "match is the first member");

static const struct config_maps *maps_of(enum config_row_type type)
{
    const struct config_maps *m = config_maps;
    while (m->type != type) m++;
    return m;
}

static bool *given(const struct config_maps *m, char *item) { return (bool *)(item + m->given); }

/* Returns the index of the member with that name, or -1; *nearest is the most similar name, NULL if
 * none is similar. */
static int find_member(const struct config_maps *m, const char *name, const char **nearest)
{
    int best = INT32_MAX;
    for (int i = 0; i < m->members; i++) {
        const char *leaf = config_leaf(&m->rows[i]);
        int distance = edit_distance(name, leaf);
        if (!distance) return i;
        if (distance < best) best = distance, *nearest = leaf;
    }
    if (!config_near(name, best)) *nearest = NULL;
    return -1;
}

static void list_members(const struct config_maps *m, struct text *out)
{
    for (int i = 0; i < m->members; i++)
        text_printf(out, "%s%s", i == 0 ? "" : i + 1 < m->members ? ", " : " or ", config_leaf(&m->rows[i]));
}

/* Reads one key of an item; `path` is the item's, "train.groups[2]". */
static int set_member(struct config *c, const struct config_maps *m, char *item, const char *path,
                      const struct value *v, enum config_source source, struct error *e)
{
    const char *nearest = NULL;
    int i = find_member(m, v->key, &nearest);
    if (i < 0) {
        struct text all = {0};
        list_members(m, &all);
        if (nearest) error_set(e, PL_USAGE, "unknown key %s.%.200s; did you mean %s?", path, v->key, nearest);
        else error_set(e, PL_USAGE, "unknown key %s.%.200s, expected %s", path, v->key, all.at);
        text_free(&all);
        return config_at_node(c, v, source, e);
    }
    if (v->kind == VALUE_NULL) return PL_OK;
    struct config_row r = m->rows[i];
    r.path = bump_format(&c->strings, "%s.%s", path, v->key);
    if (!config_convert(c, &r, item + r.offset, v)) return config_refuse(c, &r, v, source, e);
    given(m, item)[i] = true;
    return PL_OK;
}

static bool has_settings(const struct config_maps *m, char *item)
{
    for (int i = 1; i < m->members; i++)
        if (given(m, item)[i]) return true;
    return false;
}

static int set_item(struct config *c, const struct config_maps *m, char *item, const char *path, const struct value *v,
                     enum config_source source, struct error *e)
{
    char found[96];
    if (v->kind != VALUE_MAP)
        error_set(e, PL_USAGE, "%s: found %s, expected a map with match and the settings of its %ss", path,
                  value_describe(v, found), m->what);
    else {
        for (uint32_t i = 0; i < v->count; i++)
            if (set_member(c, m, item, path, v->items[i], source, e)) return e->code;
        if (!((const struct config_list *)(item + m->rows[0].offset))->n)
            error_set(e, PL_USAGE, "%s: match is not given, expected patterns of %s names", path, m->what);
        else if (m->type == ROW_GROUPS && given(m, item)[GROUP_learning_rate] && given(m, item)[GROUP_lr_scale])
            error_set(e, PL_USAGE, "%s: both learning_rate and lr_scale are given, expected one of them", path);
        else if (!has_settings(m, item))
            error_set(e, PL_USAGE, "%s: only match is given, expected %s too", path, m->expected);
        else
            return PL_OK;
    }
    return config_at_node(c, v, source, e);
}

int config_convert_maps(struct config *c, const struct config_row *r, void *to, const struct value *v,
                        enum config_source source, struct error *e)
{
    const struct config_maps *m = maps_of(r->type);
    if (v->kind != VALUE_LIST) return config_refuse(c, r, v, source, e);
    struct maps maps = {bump_alloc(&c->strings, v->count * m->size), v->count};
    memset(maps.at, 0, v->count * m->size);
    for (uint32_t i = 0; i < v->count; i++) {
        const char *path = bump_format(&c->strings, "%s[%u]", r->path, i);
        if (set_item(c, m, maps.at + i * m->size, path, v->items[i], source, e)) return e->code;
    }
    memcpy(to, &maps, sizeof maps);
    return PL_OK;
}

struct value *config_maps_value(struct bump *b, enum config_row_type type, const void *from)
{
    const struct config_maps *m = maps_of(type);
    struct value *list = value_new(b, VALUE_LIST);
    struct maps maps;
    memcpy(&maps, from, sizeof maps);
    for (uint32_t i = 0; i < maps.n; i++) {
        char *item = maps.at + i * m->size;
        struct value *map = value_new(b, VALUE_MAP);
        for (int k = 0; k < m->members; k++)
            if (given(m, item)[k])
                value_put(b, map, config_leaf(&m->rows[k]), config_row_value(&m->rows[k], item + m->rows[k].offset, b));
        value_append(b, list, map);
    }
    return list;
}
