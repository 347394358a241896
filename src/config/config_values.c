/*
 * config_values.c: from a node of YAML, or the text of an option, to a member of struct config, by
 * the type of its row. A member changes only if its row allows the value.
 */
#include "config/config_rows.h"

#include "io/json.h"
#include "io/yaml.h"

#include <ctype.h>

/* Returns a scalar as the user wrote it; NULL for lists and maps. A path may look like a number or
 * a truth value, so strings take them all. */
static const char *scalar_text(const struct value *v)
{
    if (v->kind == VALUE_BOOL) return v->truth ? "true" : "false";
    return v->kind == VALUE_STRING || v->kind == VALUE_NUMBER ? v->text : NULL;
}

static bool assign_string(struct config *c, const struct value *v, char **to)
{
    const char *s = scalar_text(v);
    if (!s || !*s) return false;
    *to = bump_string(&c->strings, s);
    return true;
}

static bool assign_int(const struct config_row *r, const struct value *v, int64_t *to)
{
    struct error ignored;
    int64_t x = 0;
    bool automatic = r->type == ROW_AUTO_INT && v->kind == VALUE_STRING && !strcmp(v->text, "auto");
    if (automatic) x = config_auto(r);
    if (!automatic && (value_as_int(v, r->path, &x, &ignored) || !config_in_range(r, (double)x))) return false;
    *to = x;
    return true;
}

static bool assign_budget(const struct config_row *r, const struct value *v, struct config_budget *to)
{
    struct error ignored;
    uint64_t bytes = 0;
    int word = v->kind == VALUE_STRING ? config_word_index(r->allowed, v->text) : -1;
    if (word < 0 && (value_as_size(v, r->path, &bytes, &ignored) || !bytes)) return false;
    *to = (struct config_budget){word < 0 ? BUDGET_BYTES : (enum budget_kind)word, bytes};
    return true;
}

static bool assign_choice(const struct config_row *r, const struct value *v, int *to)
{
    char digits[40];
    if (v->kind == VALUE_NUMBER) number_print(v->number, digits); /* 0.0 is the word 0 */
    const char *text = v->kind == VALUE_NUMBER ? digits : scalar_text(v); /* true and false may be words */
    int word = text ? config_word_index(r->allowed, text) : -1;
    if (word < 0) return false;
    *to = word;
    return true;
}

/* Appends a part of a setting; commas and blanks between parts, and a list, mean +. */
static bool add_part(const char *text, struct text *out)
{
    if (!text) return false;
    for (; *text; text++) {
        const bool gap = *text == ',' || isspace((unsigned char)*text);
        if (gap && out->n && out->at[out->n - 1] == '+') continue;
        text_printf(out, "%c", gap ? '+' : *text);
    }
    return true;
}

/* Assigns auto where that is the default, or a value that the parser of the technique takes which
 * has the name of the key or member. */
static bool assign_setting(struct config *c, const struct config_row *r, const struct value *v,
                           struct config_setting *to)
{
    const enum technique_id id = technique_find(config_leaf(r));
    const bool automatic = !strcmp(r->standard, "auto");
    struct config_setting x = {.chosen = true};
    struct settings s = {0};
    struct text text = {0};
    bool good = v->kind == VALUE_LIST ? v->count > 0 : add_part(scalar_text(v), &text);
    for (uint32_t i = 0; i < v->count && v->kind == VALUE_LIST && good; i++) {
        if (i) text_printf(&text, "+");
        good = add_part(scalar_text(v->items[i]), &text);
    }
    good = good && text.n;
    if (good && automatic && !strcmp(text.at, "auto")) x.chosen = false;
    else
        good = good && technique_parse(id, text.at, &s) &&
               (techniques[id].type != TYPE_COUNT || config_in_range(r, strtod(text.at, NULL)));
    text_free(&text);
    if (!good) return false;
    if (x.chosen) technique_print(id, &s, x.value);
    /* some words of parallel.shard say the group too */
    if (s.group) c->parallel_group = (struct config_setting){.chosen = true, .value = "host"};
    if (techniques[id].rules && !strcmp(techniques[id].rules, x.value)) return false; /* that is written as a list */
    *to = x;
    return true;
}

/* Returns the end of an item: the next comma outside {braces}, which globs use. */
static const char *item_end(const char *s)
{
    int depth = 0;
    for (; *s && (*s != ',' || depth > 0); s++) depth += (*s == '{') - (*s == '}');
    return s;
}

/* Splits a scalar given for a list at its commas; blanks around items are removed. */
static void split_items(struct config *c, const char *s, struct config_list *to)
{
    VEC(char *) items = {0};
    while (*s) {
        const char *end = item_end(s), *last = end;
        while (s < last && isspace((unsigned char)*s)) s++;
        while (last > s && isspace((unsigned char)last[-1])) last--;
        if (last > s) vec_push(&items, bump_format(&c->strings, "%.*s", (int)(last - s), s));
        s = *end ? end + 1 : end;
    }
    to->at = bump_alloc(&c->strings, items.n * sizeof *to->at);
    to->n = items.n;
    if (items.n) memcpy(to->at, items.at, items.n * sizeof *to->at);
    vec_free(&items);
}

static bool assign_list(struct config *c, const struct config_row *r, const struct value *v,
                        struct config_list *to)
{
    struct config_list list = {bump_alloc(&c->strings, v->count * sizeof *list.at), v->count};
    if (v->kind == VALUE_LIST) {
        for (uint32_t i = 0; i < v->count; i++)
            if (!assign_string(c, v->items[i], &list.at[i])) return false;
    } else if (scalar_text(v)) {
        split_items(c, scalar_text(v), &list);
    } else {
        return false;
    }
    for (uint32_t i = 0; i < list.n && *r->allowed; i++)
        if (config_word_index(r->allowed, list.at[i]) < 0) return false;
    *to = list;
    return true;
}

/* Assigns a list of numbers, or a scalar: one number, or several separated by commas. */
static bool assign_ints(struct config *c, const struct config_row *r, const struct value *v, struct config_ints *to)
{
    struct bump b = {0};
    struct value *list = value_new(&b, VALUE_LIST);
    struct config_list words = {0};
    if (v->kind != VALUE_LIST && scalar_text(v)) split_items(c, scalar_text(v), &words);
    for (uint32_t i = 0; i < words.n; i++) value_append(&b, list, yaml_scalar(&b, words.at[i]));
    if (v->kind == VALUE_LIST) list = value_copy(&b, v);
    struct config_ints ints = {bump_alloc(&c->strings, list->count * sizeof *ints.at), list->count};
    bool good = v->kind == VALUE_LIST || words.n > 0;
    for (uint32_t i = 0; good && i < list->count; i++) good = assign_int(r, list->items[i], &ints.at[i]);
    if (good) *to = ints;
    bump_free(&b);
    return good;
}

static bool assign_names(struct config *c, const struct config_row *r, const struct value *v, struct config_names *to)
{
    struct config_names names = {0};
    if (!(v->kind == VALUE_LIST ? assign_list(c, r, v, &names.list) : assign_string(c, v, &names.text))) return false;
    *to = names;
    return true;
}

static bool assign_numbers(struct config *c, const struct config_row *r, const struct value *v,
                           struct config_numbers *to)
{
    struct config_numbers numbers = {bump_alloc(&c->strings, v->count * sizeof *numbers.at), v->count};
    if (v->kind != VALUE_MAP) return false;
    for (uint32_t i = 0; i < v->count; i++) {
        const struct value *x = v->items[i];
        if (x->kind != VALUE_NUMBER || !config_in_range(r, x->number)) return false;
        numbers.at[i] = (struct config_number){bump_string(&c->strings, x->key), x->number};
    }
    *to = numbers;
    return true;
}

static bool assign_map(struct config *c, const struct value *v, char **to)
{
    struct text text = {0};
    if (v->kind != VALUE_MAP) return false;
    json_write(v, 0, &text);
    *to = bump_string(&c->strings, text.at);
    text_free(&text);
    return true;
}

/* Assigns two numbers in a list, or separated by a comma. */
static bool assign_range(struct config *c, const struct config_row *r, const struct value *v, struct config_range *to)
{
    struct bump b = {0};
    struct config_list words = {0};
    const struct value *ends[2] = {value_at(v, 0), value_at(v, 1)};
    uint32_t n = v->count;
    if (v->kind != VALUE_LIST && scalar_text(v)) {
        split_items(c, scalar_text(v), &words);
        n = words.n;
        for (uint32_t i = 0; i < n && i < 2; i++) ends[i] = yaml_scalar(&b, words.at[i]);
    }
    bool good = n == 2;
    for (int i = 0; i < 2 && good; i++) good = ends[i]->kind == VALUE_NUMBER && config_in_range(r, ends[i]->number);
    good = good && ends[0]->number <= ends[1]->number;
    if (good) *to = (struct config_range){ends[0]->number, ends[1]->number};
    bump_free(&b);
    return good;
}

bool config_convert(struct config *c, const struct config_row *r, void *to, const struct value *v)
{
    switch (r->type) {
    case ROW_STRING:
        return assign_string(c, v, to);
    case ROW_LIST:
        return assign_list(c, r, v, to);
    case ROW_INT:
    case ROW_AUTO_INT:
        return assign_int(r, v, to);
    case ROW_INTS:
        return assign_ints(c, r, v, to);
    case ROW_REAL:
        if (v->kind != VALUE_NUMBER || !config_in_range(r, v->number)) return false;
        *(double *)to = v->number;
        return true;
    case ROW_RANGE:
        return assign_range(c, r, v, to);
    case ROW_BOOL:
        if (v->kind != VALUE_BOOL) return false;
        *(bool *)to = v->truth;
        return true;
    case ROW_CHOICE:
        return assign_choice(r, v, to);
    case ROW_BUDGET:
        return assign_budget(r, v, to);
    case ROW_SETTING:
        return assign_setting(c, r, v, to);
    case ROW_NAMES:
        return assign_names(c, r, v, to);
    case ROW_NUMBERS:
        return assign_numbers(c, r, v, to);
    case ROW_MAP:
        return assign_map(c, v, to);
    case ROW_GROUPS: /* config_convert_maps */
    case ROW_MODULES:
    case ROW_FORMS:
        break;
    }
    CHECK(false, "type of %s", r->path);
}
