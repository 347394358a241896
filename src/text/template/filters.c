/*
 * filters.c: the filters, value | name(arguments), and the tests, value is name(arguments), that
 * published chat templates use (docs/notes/chat-templates.md), as Jinja defines them.
 */
#include <math.h>

#include "text/template/jinja.h"

/* ---- arguments ---- */

const char *args_place(const char *params, uint32_t least, const char *const *names, uint32_t n,
                       uint32_t place[CALL_ARGS])
{
    bool given[CALL_ARGS] = {false};
    uint32_t count = params[0] != 0;
    for (const char *c = params; *c; c++) count += *c == ',';
    for (uint32_t i = 0; i < n; i++) {
        place[i] = i;
        if (params[0] == '*') continue;
        if (!names[i] && i >= count) return "has too many arguments";
        const char *at = params;
        const size_t length = names[i] ? strlen(names[i]) : 0;
        for (place[i] = 0; place[i] < count; place[i]++) {
            const char *name = at + (*at == '!');
            if (names[i] ? !strncmp(name, names[i], length) && (name[length] == ',' || !name[length]) : place[i] == i)
                break;
            at += strcspn(at, ",");
            at += *at == ',';
        }
        if (place[i] == count) return "has no such argument";
        if (*at == '!') return "has an argument that is not supported";
        if (given[place[i]]) return "gets an argument twice";
        given[place[i]] = true;
    }
    for (uint32_t i = 0; i < least; i++)
        if (params[0] == '*' ? i >= n : !given[i]) return "needs more arguments";
    return NULL;
}

struct var filter_call(struct render *r, const struct filter *f, struct var in, const struct args *written)
{
    uint32_t place[CALL_ARGS];
    struct args a = {.n = written->n};
    if (in.kind == VAR_STRING) r->steps += in.s->n / 64;
    if (f->params[0] == '*') return f->run(r, in, written);
    const char *wrong = args_place(f->params, f->least, written->names, written->n, place);
    if (wrong) fail(r, "'%s' %s", f->name, wrong);
    for (uint32_t i = 0; i < written->n; i++) a.at[place[i]] = written->at[i];
    return f->run(r, in, &a);
}

/* ---- strings ---- */

static struct var filter_string(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return var_string(r, in);
}
static struct var filter_upper(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return string_case(r, var_string(r, in), CASE_UPPER);
}
static struct var filter_lower(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return string_case(r, var_string(r, in), CASE_LOWER);
}
static struct var filter_capitalize(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return string_case(r, var_string(r, in), CASE_CAPITALIZE);
}
static struct var filter_trim(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return string_strip(r, var_string(r, in), var_none(), STRIP_BOTH);
}
static struct var filter_replace(struct render *r, struct var in, const struct args *a)
{
    struct var text = var_string(r, in);
    text.markup = false;
    return string_replace(r, text, var_string(r, a->at[0]).s, var_string(r, a->at[1]).s);
}
static struct var filter_format(struct render *r, struct var in, const struct args *a)
{
    return string_format(r, var_string(r, in), "%s", a);
}
static struct var filter_safe(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    struct var v = var_string(r, in);
    v.markup = true;
    return v;
}

/* Begins a word behind blanks, -, ( { [ and <. */
static struct var filter_title(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    struct var v = var_string(r, in);
    struct build b = {.r = r};
    for (uint32_t from = 0, to, second; from < v.s->n; from = to) {
        bool border = false;
        uint32_t c;
        second = from + (uint32_t)utf8_length(v.s->at[from]);
        for (to = from; to < v.s->n && !border;) {
            to += (uint32_t)utf8_next(v.s->at + to, &c);
            border = python_is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
        }
        build_str(&b, string_case(r, str_slice(r, v, from, second), CASE_UPPER).s);
        build_str(&b, string_case(r, str_slice(r, v, second, to), CASE_LOWER).s);
    }
    struct var out = build_done(&b);
    out.markup = v.markup;
    return out;
}

/* Returns that many blanks. */
static const struct str *blanks(struct render *r, const char *name, struct var width)
{
    struct build b = {.r = r};
    if (!is_int(width)) fail(r, "'%s' takes an integer, not a %s", name, var_type(width));
    for (int64_t i = var_integer(width); i > 0; i--, step(r)) build_text(&b, " ");
    return build_done(&b).s;
}

/* Indents each line but the first, which `first` asks for; empty ones stay empty. */
static struct var filter_indent(struct render *r, struct var in, const struct args *a)
{
    if (in.kind != VAR_STRING || in.markup) fail(r, "'indent' takes a string, not a %s", var_type(in));
    const struct str *s = in.s, *by = blanks(r, "indent", is_given(a->at[0]) ? a->at[0] : var_int(4));
    struct build b = {.r = r};
    uint32_t c = 0;
    if (var_truth(a->at[1])) build_str(&b, by);
    for (uint32_t from = 0, at = 0, end;; from = at) {
        for (end = at; at < s->n; end = at) {
            at += (uint32_t)utf8_next(s->at + at, &c);
            if (python_is_line_end(c)) break;
        }
        if (from && end > from) build_str(&b, by);
        build_slice(&b, s, from, end);
        if (at == end) return build_done(&b); /* no line end behind it */
        if (c == '\r' && at < s->n && s->at[at] == '\n') at++;
        build_text(&b, "\n");
    }
}

static struct var filter_tojson(struct render *r, struct var in, const struct args *a)
{
    static const struct str comma_blank = {.at = ", ", .n = 2}, comma = {.at = ",", .n = 1},
                            colon = {.at = ": ", .n = 2};
    const bool lines = is_given(a->at[1]) && a->at[1].kind != VAR_NONE;
    struct json_style style = {.ascii = var_truth(a->at[0]), .indent = lines ? blanks(r, "tojson", a->at[1]) : NULL,
                               .item = lines ? &comma : &comma_blank, .key = &colon};
    if (is_given(a->at[2]) && a->at[2].kind != VAR_NONE) {
        struct seq *pair = var_elements(r, a->at[2]);
        if (pair->n != 2 || pair->at[0].kind != VAR_STRING || pair->at[1].kind != VAR_STRING)
            fail(r, "'tojson': separators are two strings");
        style.item = pair->at[0].s;
        style.key = pair->at[1].s;
    }
    struct build b = {.r = r};
    build_json(&b, in, &style);
    return build_done(&b);
}

/* Fails where it is reached: some templates name it, but the environment of transformers has no
 * such filter. */
static struct var filter_from_json(struct render *r, struct var in, const struct args *a)
{
    (void)in, (void)a;
    fail(r, "transformers has no filter from_json: give tool calls their arguments as objects, not as JSON text");
}

static struct var filter_int(struct render *r, struct var in, const struct args *a)
{
    const char *text = in.kind == VAR_STRING ? str_c(r, in.s) : "";
    const size_t digits = strspn(text + (*text == '-'), "0123456789");
    if (in.kind == VAR_UNDEFINED) fail(r, "'%s' is undefined", in.what);
    if (is_int(in)) return var_int(var_integer(in));
    if (in.kind == VAR_FLOAT && fabs(in.f) < 0x1p63) return var_int((int64_t)in.f);
    if (digits && digits < 18 && !text[digits + (*text == '-')]) return var_int(atoll(text));
    if (in.kind == VAR_FLOAT || strpbrk(text, "0123456789"))
        fail(r, "'int' of \"%.60s\" is not supported; expected an integer of at most 17 digits", text);
    return is_given(a->at[0]) ? a->at[0] : var_int(0);
}

/* ---- lists and dicts ---- */

static struct var filter_length(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    int64_t n;
    if (!var_sized(in, &n)) fail(r, "a %s has no length", var_type(in));
    return var_int(n);
}

static struct var filter_list(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return var_seq(VAR_LIST, var_elements(r, in));
}

static struct var filter_first(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    struct iter it = iter_of(r, in);
    struct var x;
    return iter_next(r, &it, &x) ? x : var_undefined("the first element");
}

static struct var filter_last(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    if (in.kind == VAR_ELEMENTS && in.q->once) fail(r, "a generator has no last element");
    struct seq *q = var_elements(r, in);
    return q->n ? q->at[q->n - 1] : var_undefined("the last element");
}

/* Returns the value that "a.b.0" names inside an element. */
static struct var dotted(struct render *r, struct var v, struct var path)
{
    if (!is_given(path) || path.kind == VAR_NONE) return v;
    if (path.kind != VAR_STRING) return var_item(r, v, path);
    for (uint32_t from = 0, to; from <= path.s->n; from = to + 1) {
        const char *dot = from < path.s->n ? memchr(path.s->at + from, '.', path.s->n - from) : NULL;
        to = dot ? (uint32_t)(dot - path.s->at) : path.s->n;
        struct var part = str_slice(r, path, from, to);
        const char *name = str_c(r, part.s);
        if (name[0] && strspn(name, "0123456789") == part.s->n && part.s->n < 18) part = var_int(atoll(name));
        v = var_item(r, v, part);
    }
    return v;
}

static struct var filter_join(struct render *r, struct var in, const struct args *a)
{
    struct build b = {.r = r};
    struct iter it = iter_of(r, in);
    const struct str *between = is_given(a->at[0]) ? var_string(r, a->at[0]).s : &(struct str){.at = ""};
    uint32_t i = 0;
    for (struct var x; iter_next(r, &it, &x); i++) {
        if (i) build_str(&b, between);
        build_var(&b, x);
    }
    return build_done(&b);
}

/* Returns elements that come once, as those of Python's generators. */
static struct var generator(struct seq *q)
{
    q->once = true;
    return var_seq(VAR_ELEMENTS, q);
}

static struct seq *items_of(struct render *r, const char *name, struct var in)
{
    if (in.kind != VAR_DICT) fail(r, "'%s' takes a dict, not a %s", name, var_type(in));
    struct seq *q = seq_new(r, in.d->n);
    for (uint32_t i = 0; i < in.d->n; i++) seq_push(r, q, var_pair(r, in.d->keys[i], in.d->values[i]));
    return q;
}

static struct var filter_items(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return generator(in.kind == VAR_UNDEFINED ? seq_new(r, 0) : items_of(r, "items", in));
}

static struct var filter_default(struct render *r, struct var in, const struct args *a)
{
    if (in.kind != VAR_UNDEFINED && !(var_truth(a->at[1]) && !var_truth(in))) return in;
    return is_given(a->at[0]) ? a->at[0] : var_text(r, "", 0);
}

/* Returns what elements are sorted by: strings without their case. */
static struct var sort_key(struct render *r, struct var v)
{
    return v.kind == VAR_STRING ? string_case(r, v, CASE_LOWER) : v;
}

/* Sorts by keys; what is equal keeps its order. */
static struct var sort_by(struct render *r, struct seq *values, struct seq *keys)
{
    for (uint32_t i = 1; i < values->n; i++) {
        const struct var value = values->at[i], key = keys->at[i];
        uint32_t at = i;
        for (; at > 0 && var_less(r, key, keys->at[at - 1]); at--, step(r)) {
            values->at[at] = values->at[at - 1];
            keys->at[at] = keys->at[at - 1];
        }
        values->at[at] = value;
        keys->at[at] = key;
    }
    return var_seq(VAR_LIST, values);
}

static struct var filter_sort(struct render *r, struct var in, const struct args *a)
{
    struct seq *values = var_elements(r, in), *keys = seq_new(r, values->n);
    if (a->at[2].kind == VAR_STRING && memchr(a->at[2].s->at, ',', a->at[2].s->n))
        fail(r, "'sort' by several attributes is not supported");
    for (uint32_t i = 0; i < values->n; i++) seq_push(r, keys, sort_key(r, dotted(r, values->at[i], a->at[2])));
    return sort_by(r, values, keys);
}

static struct var filter_dictsort(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    struct seq *values = items_of(r, "dictsort", in), *keys = seq_new(r, values->n);
    for (uint32_t i = 0; i < values->n; i++) seq_push(r, keys, sort_key(r, in.d->keys[i]));
    return sort_by(r, values, keys);
}

static struct var extreme(struct render *r, struct var in, bool most)
{
    struct iter it = iter_of(r, in);
    struct var best = {0}, best_key = {0};
    for (struct var x; iter_next(r, &it, &x);) {
        struct var key = sort_key(r, x);
        if (is_given(best) && !(most ? var_less(r, best_key, key) : var_less(r, key, best_key))) continue;
        best = x;
        best_key = key;
    }
    return is_given(best) ? best : var_undefined("the extreme of nothing");
}
static struct var filter_min(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return extreme(r, in, false);
}
static struct var filter_max(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return extreme(r, in, true);
}

static struct var filter_unique(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    struct seq *out = seq_new(r, 0);
    struct dict *seen = dict_new(r, 0);
    struct iter it = iter_of(r, in);
    for (struct var x; iter_next(r, &it, &x);) {
        struct var key = sort_key(r, x);
        if (dict_get(r, seen, key)) continue;
        dict_put(r, seen, key, var_none());
        seq_push(r, out, x);
    }
    return generator(out);
}

/* ---- filters that take filters and tests ---- */

/* Calls the filter or test that argument `at` names with the arguments behind it. */
static struct var call_named(struct render *r, const struct args *a, uint32_t at, struct var x,
                             const struct filter *(*find)(const char *))
{
    struct args rest = {.n = a->n - at - 1};
    memcpy(rest.at, a->at + at + 1, rest.n * sizeof *rest.at);
    memcpy(rest.names, a->names + at + 1, rest.n * sizeof *rest.names);
    const struct filter *f = a->at[at].kind == VAR_STRING ? find(str_c(r, a->at[at].s)) : NULL;
    if (!f) fail(r, "there is no such filter or test");
    enter(r);
    x = filter_call(r, f, x, &rest);
    leave(r);
    return x;
}

/* Applies a filter, or takes an attribute, for which `default` stands where it is missing. A value
 * that is false has no elements. Python computes the elements when they are asked for; here an
 * error is one even if nobody asks. */
static struct var filter_map(struct render *r, struct var in, const struct args *a)
{
    struct seq *out = seq_new(r, 0);
    const bool attribute = a->n && a->names[0], otherwise = attribute && a->n == 2;
    if (!a->n || (attribute && (a->n > 2 || strcmp(a->names[0], "attribute"))) ||
        (otherwise && (!a->names[1] || strcmp(a->names[1], "default"))))
        fail(r, "'map' takes a filter, or attribute='name' and perhaps default=; more is not supported");
    if (!var_truth(in)) return generator(out);
    struct iter it = iter_of(r, in);
    for (struct var x; iter_next(r, &it, &x);) {
        x = attribute ? dotted(r, x, a->at[0]) : call_named(r, a, 0, x, filter_find);
        if (otherwise && x.kind == VAR_UNDEFINED && a->at[1].kind != VAR_NONE) x = a->at[1];
        seq_push(r, out, x);
    }
    return generator(out);
}

static struct var selected(struct render *r, struct var in, const struct args *a, bool keep, bool attribute)
{
    struct seq *out = seq_new(r, 0);
    if (attribute && (!a->n || a->names[0])) fail(r, "'%s' needs an attribute", keep ? "selectattr" : "rejectattr");
    if (!var_truth(in)) return generator(out);
    struct iter it = iter_of(r, in);
    for (struct var x; iter_next(r, &it, &x);) {
        struct var v = attribute ? dotted(r, x, a->at[0]) : x;
        if (a->n > attribute) v = call_named(r, a, attribute, v, test_find);
        if (var_truth(v) == keep) seq_push(r, out, x);
    }
    return generator(out);
}
static struct var filter_select(struct render *r, struct var in, const struct args *a)
{
    return selected(r, in, a, true, false);
}
static struct var filter_reject(struct render *r, struct var in, const struct args *a)
{
    return selected(r, in, a, false, false);
}
static struct var filter_selectattr(struct render *r, struct var in, const struct args *a)
{
    return selected(r, in, a, true, true);
}
static struct var filter_rejectattr(struct render *r, struct var in, const struct args *a)
{
    return selected(r, in, a, false, true);
}

static const struct filter filters[] = {
    {"capitalize", filter_capitalize, ""},
    {"count", filter_length, ""},
    {"d", filter_default, "default_value,boolean"},
    {"default", filter_default, "default_value,boolean"},
    {"dictsort", filter_dictsort, "!case_sensitive,!by,!reverse"},
    {"first", filter_first, ""},
    {"format", filter_format, "*"},
    {"from_json", filter_from_json, ""},
    {"indent", filter_indent, "width,first,!blank"},
    {"int", filter_int, "default,!base"},
    {"items", filter_items, ""},
    {"join", filter_join, "d,!attribute"},
    {"last", filter_last, ""},
    {"length", filter_length, ""},
    {"list", filter_list, ""},
    {"lower", filter_lower, ""},
    {"map", filter_map, "*", .which = -1},
    {"max", filter_max, "!case_sensitive,!attribute"},
    {"min", filter_min, "!case_sensitive,!attribute"},
    {"reject", filter_reject, "*", .which = 1},
    {"rejectattr", filter_rejectattr, "*", 1, .which = 2},
    {"replace", filter_replace, "old,new,!count", 2},
    {"safe", filter_safe, ""},
    {"select", filter_select, "*", .which = 1},
    {"selectattr", filter_selectattr, "*", 1, .which = 2},
    {"sort", filter_sort, "!reverse,!case_sensitive,attribute"},
    {"string", filter_string, ""},
    {"title", filter_title, ""},
    {"tojson", filter_tojson, "ensure_ascii,indent,separators,!sort_keys"},
    {"trim", filter_trim, "!chars"},
    {"unique", filter_unique, "!case_sensitive,!attribute"},
    {"upper", filter_upper, ""},
};

const struct filter *filter_find(const char *name)
{
    for (size_t i = 0; i < COUNT(filters); i++)
        if (!strcmp(filters[i].name, name)) return &filters[i];
    return NULL;
}

/* ---- tests ---- */

#define TEST(name, holds)                                                                                              \
    static struct var test_##name(struct render *r, struct var in, const struct args *a)                               \
    {                                                                                                                  \
        (void)r, (void)a;                                                                                              \
        return var_bool(holds);                                                                                        \
    }
TEST(boolean, in.kind == VAR_BOOL)
TEST(defined, in.kind != VAR_UNDEFINED)
TEST(undefined, in.kind == VAR_UNDEFINED)
TEST(none, in.kind == VAR_NONE)
TEST(true, in.kind == VAR_BOOL && in.truth)
TEST(false, in.kind == VAR_BOOL && !in.truth)
TEST(integer, in.kind == VAR_INT)
TEST(float, in.kind == VAR_FLOAT)
TEST(number, is_number(in))
TEST(string, in.kind == VAR_STRING)
TEST(mapping, in.kind == VAR_DICT)
TEST(iterable, var_iterable(in) || in.kind == VAR_LOOP)
TEST(equal, var_equal(r, in, a->at[0]))
TEST(different, !var_equal(r, in, a->at[0]))
TEST(in, var_in(r, in, a->at[0]))

/* Holds for what has a length and elements by index or key; Jinja counts an undefined value too. */
static struct var test_sequence(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    int64_t n;
    if (in.kind == VAR_ELEMENTS) fail(r, "'sequence' of a %s is not supported: use | list", var_type(in));
    return var_bool(var_sized(in, &n));
}

static const struct filter tests[] = {
    {"boolean", test_boolean, ""},        {"defined", test_defined, ""},       {"eq", test_equal, "other", 1},
    {"equalto", test_equal, "other", 1},  {"==", test_equal, "other", 1},      {"false", test_false, ""},
    {"float", test_float, ""},            {"in", test_in, "seq", 1},           {"integer", test_integer, ""},
    {"iterable", test_iterable, ""},      {"mapping", test_mapping, ""},       {"ne", test_different, "other", 1},
    {"!=", test_different, "other", 1},   {"none", test_none, ""},             {"number", test_number, ""},
    {"sequence", test_sequence, ""},      {"string", test_string, ""},         {"true", test_true, ""},
    {"undefined", test_undefined, ""},
};

const struct filter *test_find(const char *name)
{
    for (size_t i = 0; i < COUNT(tests); i++)
        if (!strcmp(tests[i].name, name)) return &tests[i];
    return NULL;
}
