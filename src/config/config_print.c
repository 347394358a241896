/*
 * config_print.c: the values that a row allows in words, and the configuration as text.
 *
 * Writing goes through a value tree, like reading: quoting and the number of digits are decided in
 * one file, and the text reads back to the same values (tests/test_config.c checks this for every
 * key).
 */
#include "io/json.h"
#include "io/value.h"
#include "io/yaml.h"
#include "config/config_rows.h"

#include <math.h>

void *config_member(const struct config *c, enum config_key key) { return (char *)c + config_rows[key].offset; }

const char *config_leaf(const struct config_row *r) { return strrchr(r->path, '.') + 1; }

const char *config_key_name(enum config_key key) { return config_rows[key].path; }

/* --- what a row allows ------------------------------------------------------------ */

int config_word_index(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (int i = 0; n; i++) {
        size_t length = strcspn(words, "|");
        if (length == n && !memcmp(words, word, n)) return i;
        if (!words[length]) return -1;
        words += length + 1;
    }
    return -1;
}

const char *config_word_at(const char *words, int index, char out[32])
{
    for (; index > 0; index--) words += strcspn(words, "|") + 1;
    snprintf(out, 32, "%.*s", (int)strcspn(words, "|"), words);
    return out;
}

struct interval {
    double low, high;
    bool open; /* high itself is excluded */
};

static struct interval interval_of(const struct config_row *r)
{
    struct interval v;
    char high[32], end;
    CHECK(sscanf(r->allowed, "[%lf,%31[^])]%c", &v.low, high, &end) == 3, "the range of %s", r->path);
    v.high = strtod(high, NULL);
    v.open = end == ')';
    return v;
}

bool config_in_range(const struct config_row *r, double x)
{
    struct interval v = interval_of(r);
    return isfinite(x) && x >= v.low && (v.open ? x < v.high : x <= v.high);
}

int64_t config_auto(const struct config_row *r) { return config_in_range(r, 0) ? -1 : 0; }

static void expect_interval(const struct config_row *r, struct text *out)
{
    struct interval v = interval_of(r);
    /* 15 digits print every bound exactly: bounds of whole numbers have up to 13 digits, other
     * bounds fewer. */
    if (isinf(v.high)) text_printf(out, ", %.15g or more", v.low);
    else if (v.open) text_printf(out, ", at least %.15g and below %.15g", v.low, v.high);
    else text_printf(out, " from %.15g to %.15g", v.low, v.high);
}

/* Prints "a", "a or b", "a, b or c". */
static void expect_words(const struct config_row *r, struct text *out)
{
    for (const char *w = r->allowed; *w;) {
        size_t n = strcspn(w, "|");
        bool last = !w[n], first = w == r->allowed;
        text_printf(out, "%s%.*s", first ? "" : last ? " or " : ", ", (int)n, w);
        w += n + !last;
    }
}

void config_expect(const struct config_row *r, struct text *out)
{
    static const char *const nouns[] = {
        [ROW_STRING] = "a string",
        [ROW_LIST] = "a list of strings",
        [ROW_INT] = "a whole number",
        [ROW_INTS] = "a list of whole numbers",
        [ROW_AUTO_INT] = "auto or a whole number",
        [ROW_REAL] = "a number",
        [ROW_RANGE] = "two numbers, the smaller one first, each",
        [ROW_BOOL] = "true or false",
        [ROW_CHOICE] = "",
        [ROW_BUDGET] = "a size above 0 such as 8GiB, or ",
        [ROW_GROUPS] = "a list of maps",
        [ROW_MODULES] = "a list of maps",
        [ROW_FORMS] = "a list of maps",
        [ROW_SETTING] = "",
        [ROW_NAMES] = "a list of strings, or a string",
        [ROW_NUMBERS] = "a map from names to numbers",
        [ROW_MAP] = "a map",
    };
    if (r->type == ROW_SETTING && *r->allowed == '[') {
        text_printf(out, "auto or a whole number");
        expect_interval(r, out);
    } else if (r->type == ROW_SETTING) {
        text_printf(out, "%s", r->allowed);
    }
    text_printf(out, "%s", nouns[r->type]);
    if (r->type == ROW_INT || r->type == ROW_INTS || r->type == ROW_AUTO_INT || r->type == ROW_REAL ||
        r->type == ROW_RANGE || r->type == ROW_NUMBERS)
        expect_interval(r, out);
    else if (r->type == ROW_CHOICE || r->type == ROW_BUDGET) expect_words(r, out);
    if (r->type == ROW_LIST && *r->allowed) {
        text_printf(out, ", each ");
        expect_words(r, out);
    }
}

/* --- from member to value ------------------------------------------------------------ */

static struct value *list_value(struct bump *b, const struct config_list *list)
{
    struct value *v = value_new(b, VALUE_LIST);
    for (uint32_t i = 0; i < list->n; i++) value_append(b, v, value_string(b, list->at[i]));
    return v;
}

static struct value *ints_value(struct bump *b, const struct config_ints *ints)
{
    struct value *v = value_new(b, VALUE_LIST);
    for (uint32_t i = 0; i < ints->n; i++) value_append(b, v, value_int(b, ints->at[i]));
    return v;
}

static struct value *numbers_value(struct bump *b, const struct config_numbers *numbers)
{
    struct value *v = value_new(b, VALUE_MAP);
    for (uint32_t i = 0; i < numbers->n; i++)
        value_put(b, v, numbers->at[i].name, value_number(b, numbers->at[i].value));
    return v;
}

static struct value *map_value(struct bump *b, const char *json)
{
    struct value *v;
    struct error e;
    CHECK(!json_parse(json, strlen(json), b, &v, &e), "%s", e.text);
    return v;
}

static struct value *range_value(struct bump *b, const struct config_range *x)
{
    struct value *v = value_new(b, VALUE_LIST);
    value_append(b, v, value_number(b, x->low));
    value_append(b, v, value_number(b, x->high));
    return v;
}

static struct value *word_value(struct bump *b, const struct config_row *r, int index)
{
    char word[32];
    return value_string(b, config_word_at(r->allowed, index, word));
}

static struct value *setting_value(struct bump *b, const struct config_row *r, const struct config_setting *x)
{
    if (!x->chosen) return value_string(b, "auto");
    if (x->rules.n) return config_maps_value(b, ROW_FORMS, &x->rules);
    return techniques[technique_find(config_leaf(r))].type == TYPE_COUNT ? value_int(b, atoi(x->value))
                                                                         : value_string(b, x->value);
}

/* Reports whether the row is a list of any type: a list without a value is empty, not missing. */
static bool config_is_list(const struct config_row *r)
{
    return r->type == ROW_LIST || r->type == ROW_INTS || r->type == ROW_GROUPS || r->type == ROW_MODULES ||
           r->type == ROW_NAMES;
}

struct value *config_row_value(const struct config_row *r, const void *from, struct bump *b)
{
    switch (r->type) {
    case ROW_STRING:
        return value_string(b, *(char *const *)from);
    case ROW_LIST:
        return list_value(b, from);
    case ROW_INTS:
        return ints_value(b, from);
    case ROW_AUTO_INT:
        if (*(const int64_t *)from == config_auto(r)) return value_string(b, "auto");
        return value_int(b, *(const int64_t *)from);
    case ROW_INT:
        return value_int(b, *(const int64_t *)from);
    case ROW_REAL:
        return value_number(b, *(const double *)from);
    case ROW_RANGE:
        return range_value(b, from);
    case ROW_BOOL:
        return value_bool(b, *(const bool *)from);
    case ROW_CHOICE:
        return word_value(b, r, *(const int *)from);
    case ROW_BUDGET:
        return ((const struct config_budget *)from)->kind == BUDGET_BYTES
                   ? value_uint(b, ((const struct config_budget *)from)->bytes)
                   : word_value(b, r, (int)((const struct config_budget *)from)->kind);
    case ROW_SETTING:
        return setting_value(b, r, from);
    case ROW_NAMES:
        return ((const struct config_names *)from)->text ? value_string(b, ((const struct config_names *)from)->text)
                                                         : list_value(b, from);
    case ROW_NUMBERS:
        return numbers_value(b, from);
    case ROW_MAP:
        return map_value(b, *(char *const *)from);
    case ROW_GROUPS:
    case ROW_MODULES:
    case ROW_FORMS:
        return config_maps_value(b, r->type, from);
    }
    CHECK(false, "type of %s", r->path);
}

/* Returns the value of a key: null for one without a default that was not given, and for one whose
 * default loss.preset decides. */
static struct value *key_value(const struct config *c, enum config_key key, struct bump *b)
{
    const struct config_row *r = &config_rows[key];
    if (c->loss_preset == LOSS_EQUAL_WEIGHTS && key >= KEY_loss_focal && key <= KEY_loss_smooth &&
        !config_given(c, key))
        return value_new(b, VALUE_NULL);
    if (c->loss_preset == LOSS_SAM2 && key == KEY_loss_object && !config_given(c, key)) return value_new(b, VALUE_NULL);
    if (!*r->standard && !config_is_list(r) && !config_given(c, key)) return value_new(b, VALUE_NULL);
    return config_row_value(r, config_member(c, key), b);
}

/* --- printing -------------------------------------------------------------------------- */

static void write_keys(const struct config *c, bool defaults, struct text *out)
{
    struct bump b = {0};
    struct value *top = value_new(&b, VALUE_MAP), *section = NULL;
    for (int key = 0; key < CONFIG_KEYS; key++) {
        const struct config_row *r = &config_rows[key];
        if (!defaults && !config_given(c, (enum config_key)key)) continue;
        struct value *v = key_value(c, (enum config_key)key, &b);
        if (!value_get(top, r->section)) {
            section = value_new(&b, VALUE_MAP);
            value_put(&b, top, r->section, section);
        }
        if (v->kind != VALUE_NULL) value_put(&b, section, config_leaf(r), v);
    }
    yaml_write(top, out);
    bump_free(&b);
}

void config_write(const struct config *c, struct text *out) { write_keys(c, true, out); }
void config_write_given(const struct config *c, struct text *out) { write_keys(c, false, out); }

bool config_same(const struct config *a, const struct config *b, enum config_key key)
{
    struct bump values = {0};
    bool same = value_equal(key_value(a, key, &values), key_value(b, key, &values));
    bump_free(&values);
    return same;
}

void config_show(const struct config *c, enum config_key key, struct text *out)
{
    struct bump b = {0};
    const struct value *v = key_value(c, key, &b);
    size_t from = out->n;
    if (v->kind == VALUE_NULL) text_printf(out, "not given\n");
    else yaml_write(v, out);
    out->at[--out->n] = 0; /* the last newline; those of a list of maps become blanks */
    for (char *s = out->at + from; *s; s++)
        if (*s == '\n') *s = ' ';
    bump_free(&b);
}

/* Prints two lines for a row: name, default, doc; then the allowed values. tools/docs.sh reads
 * them. */
static void help_row(const struct config_row *r, struct text *out)
{
    const char *standard = *r->standard ? r->standard : config_is_list(r) ? "[]" : "-";
    text_printf(out, "  %-16s %-9s %s\n", config_leaf(r), standard, r->doc);
    text_printf(out, "  %-16s %-9s (", "", "");
    config_expect(r, out);
    text_printf(out, ")\n");
}

void config_help(struct text *out)
{
    for (int key = 0; key < CONFIG_KEYS; key++) {
        const struct config_row *r = &config_rows[key];
        if (!key || strcmp(r->section, r[-1].section)) text_printf(out, "%s%s:\n", key ? "\n" : "", r->section);
        help_row(r, out);
    }
    for (size_t i = 0; i < config_maps_count; i++) {
        text_printf(out, "\n%s:\n", config_maps[i].rows[0].section);
        for (int m = 0; m < config_maps[i].members; m++) help_row(&config_maps[i].rows[m], out);
    }
}
