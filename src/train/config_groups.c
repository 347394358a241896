/*
 * config_groups.c: train.groups, a list of maps, to and from struct config_groups.
 *
 * An item's members are rows as the keys themselves are (group.def), so that a number
 * in a group is read, refused and written as one outside of it.
 */
#include "io/value.h"
#include "train/config_rows.h"

#include <string.h>

const struct config_row config_group_rows[GROUP_MEMBERS] = {
#define MEMBER(name, type, allowed, doc) \
    {"train.groups[]", "train.groups[]." #name, ROW_##type, offsetof(struct config_group, name), "", allowed, doc},
#include "train/group.def"
#undef MEMBER
};

/* The member of that name, or -1; *nearest is the one that looks most like it. */
static int find_member(const char *name, const char **nearest)
{
    int best = INT32_MAX;
    for (int m = 0; m < GROUP_MEMBERS; m++) {
        const char *leaf = config_leaf(&config_group_rows[m]);
        int distance = edit_distance(name, leaf);
        if (!distance) return m;
        if (distance < best) best = distance, *nearest = leaf;
    }
    return -1;
}

/* One key of an item; `path` is the item's, "train.groups[2]". */
static int take_member(struct config *c, struct config_group *g, const char *path, const struct value *v,
                       enum config_source source, struct error *e)
{
    const char *nearest = "";
    int m = find_member(v->key, &nearest);
    if (m < 0) {
        error_set(e, PL_USAGE, "unknown key %s.%.200s; did you mean %s?", path, v->key, nearest);
        return config_at_node(c, v, source, e);
    }
    if (v->kind == VALUE_NULL) return PL_OK;
    struct config_row r = config_group_rows[m];
    r.path = bump_format(&c->strings, "%s.%s", path, v->key);
    if (!config_take(c, &r, (char *)g + r.offset, v)) return config_refuse(c, &r, v, source, e);
    g->given[m] = true;
    return PL_OK;
}

static bool says_anything(const struct config_group *g)
{
    for (int m = 0; m < GROUP_MEMBERS; m++)
        if (m != GROUP_match && g->given[m]) return true;
    return false;
}

static int take_item(struct config *c, struct config_group *g, const char *path, const struct value *v,
                     enum config_source source, struct error *e)
{
    char found[96];
    if (v->kind != VALUE_MAP)
        error_set(e, PL_USAGE, "%s: found %s, expected a map with match and what its parameters get", path, value_describe(v, found));
    else {
        for (uint32_t i = 0; i < v->count; i++)
            if (take_member(c, g, path, v->items[i], source, e)) return e->code;
        if (!g->match.n)
            error_set(e, PL_USAGE, "%s: match is not given, expected patterns of parameter names", path);
        else if (g->given[GROUP_learning_rate] && g->given[GROUP_lr_scale])
            error_set(e, PL_USAGE, "%s: both learning_rate and lr_scale are given, expected one of them", path);
        else if (!says_anything(g))
            error_set(e, PL_USAGE, "%s: only match is given, expected learning_rate, lr_scale, weight_decay or frozen too", path);
        else
            return PL_OK;
    }
    return config_at_node(c, v, source, e);
}

int config_take_groups(struct config *c, const struct config_row *r, struct config_groups *to, const struct value *v,
                       enum config_source source, struct error *e)
{
    if (v->kind != VALUE_LIST) return config_refuse(c, r, v, source, e);
    struct config_groups groups = {bump_alloc(&c->strings, v->count * sizeof *groups.at), v->count};
    memset(groups.at, 0, v->count * sizeof *groups.at);
    for (uint32_t i = 0; i < v->count; i++) {
        const char *path = bump_format(&c->strings, "%s[%u]", r->path, i);
        if (take_item(c, &groups.at[i], path, v->items[i], source, e)) return e->code;
    }
    *to = groups;
    return PL_OK;
}

struct value *config_groups_value(struct bump *b, const struct config_groups *groups)
{
    struct value *list = value_new(b, VALUE_LIST);
    for (uint32_t i = 0; i < groups->n; i++) {
        const struct config_group *g = &groups->at[i];
        struct value *map = value_new(b, VALUE_MAP);
        for (int m = 0; m < GROUP_MEMBERS; m++) {
            const struct config_row *r = &config_group_rows[m];
            if (g->given[m]) value_put(b, map, config_leaf(r), config_row_value(r, (const char *)g + r->offset, b));
        }
        value_append(b, list, map);
    }
    return list;
}
