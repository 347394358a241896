/*
 * template_filters.c: the filters, value | name(arguments), as Jinja defines them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template_call.h"
#include "text/template_unicode.h"

/* ---- arguments ---- */

const char *args_place(const char *params, uint32_t least, const char *const *names, uint32_t n, uint32_t place[CALL_ARGS])
{
    bool given[CALL_ARGS] = {false};
    uint32_t count = params[0] != 0;
    for (const char *c = params; *c; c++) count += *c == ',';
    for (uint32_t i = 0; i < n; i++) {
        place[i] = i;
        if (params[0] == '*') continue;
        if (!names[i] && i >= count) return "has too many arguments";
        if (names[i]) {
            const char *at = params;
            const size_t length = strlen(names[i]);
            for (place[i] = 0; place[i] < count; place[i]++) {
                if (!strncmp(at, names[i], length) && (at[length] == ',' || !at[length])) break;
                at += strcspn(at, ",");
                at += *at == ',';
            }
            if (place[i] == count) return "has no such argument";
        }
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
    if (f->params[0] == '*') return f->run(r, in, written);
    const char *wrong = args_place(f->params, f->least, written->names, written->n, place);
    if (wrong) fail(r, "'%s' %s", f->name, wrong);
    for (uint32_t i = 0; i < written->n; i++) a.at[place[i]] = written->at[i];
    return f->run(r, in, &a);
}

static int64_t integer(struct render *r, const char *name, struct var v, int64_t otherwise)
{
    if (!is_given(v)) return otherwise;
    if (!var_is_int(v)) fail(r, "'%s' takes an integer, not a %s", name, var_type(v));
    return v.kind == VAR_BOOL ? v.truth : v.i;
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
    return string_upper(r, var_string(r, in));
}
static struct var filter_lower(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return string_lower(r, var_string(r, in));
}
static struct var filter_capitalize(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    return string_capitalize(r, var_string(r, in));
}
static struct var filter_trim(struct render *r, struct var in, const struct args *a)
{
    return string_strip(r, var_string(r, in), a->at[0], STRIP_BOTH);
}

/* A word begins behind blanks, -, ( { [ and <. */
static struct var filter_title(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    struct var v = var_string(r, in);
    struct build b = {.r = r};
    for (uint32_t i = 0, begin = 0; i < v.s->n;) {
        int n;
        const uint32_t c = code_at(v.s->at + i, &n);
        struct var one = str_slice(r, v, i, i + (uint32_t)n);
        const bool border = code_is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
        build_str(&b, (i == begin ? string_upper(r, one) : string_lower(r, one)).s);
        i += (uint32_t)n;
        if (border) begin = i;
    }
    struct var out = build_done(&b);
    out.markup = v.markup;
    return out;
}

static struct var filter_replace(struct render *r, struct var in, const struct args *a)
{
    struct var text = var_string(r, in), from = var_string(r, a->at[0]), to = var_string(r, a->at[1]);
    text.markup = false;
    return string_replace(r, text, from.s, to.s, a->at[2].kind == VAR_NONE ? -1 : integer(r, "replace", a->at[2], -1));
}

static struct var filter_safe(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    struct var v = var_string(r, in);
    v.markup = true;
    return v;
}

static struct var filter_escape(struct render *r, struct var in, const struct args *a)
{
    struct build b = {.r = r};
    if (in.kind == VAR_STRING && in.markup) return in;
    build_escaped(&b, var_string(r, in).s);
    return filter_safe(r, build_done(&b), a);
}

/* Each line but the first is indented; empty ones only where `blank` says so. */
static struct var filter_indent(struct render *r, struct var in, const struct args *a)
{
    if (in.kind != VAR_STRING) fail(r, "'indent' takes a string, not a %s", var_type(in));
    const bool first = var_truth(a->at[1]), blank = var_truth(a->at[2]);
    struct build margin = {.r = r}, b = {.r = r};
    if (a->at[0].kind == VAR_STRING) build_str(&margin, a->at[0].s);
    else
        for (int64_t i = integer(r, "indent", a->at[0], 4); i > 0; i--, step(r)) build_text(&margin, " ");
    const struct str *by = build_done(&margin).s;
    struct seq *lines = string_lines(r, str_join(r, in, var_text(r, "\n", 1)), false);
    for (uint32_t i = 0; i < lines->n; i++) {
        if (i) build_text(&b, "\n");
        if (i ? blank || lines->at[i].s->n : first) build_str(&b, by);
        build_str(&b, lines->at[i].s);
    }
    struct var out = build_done(&b);
    out.markup = in.markup;
    return out;
}

static struct var filter_format(struct render *r, struct var in, const struct args *a)
{
    struct seq *values = seq_new(r, a->n);
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->names[i]) fail(r, "'format' by name is not supported");
        seq_push(r, values, a->at[i]);
    }
    return string_percent(r, var_string(r, in), var_seq(r, VAR_TUPLE, values));
}

/* ---- JSON ---- */

static const struct str *json_indent(struct render *r, struct var v)
{
    if (!is_given(v) || v.kind == VAR_NONE) return NULL;
    if (v.kind == VAR_STRING) return v.s;
    struct build b = {.r = r};
    for (int64_t i = integer(r, "tojson", v, 0); i > 0; i--, step(r)) build_text(&b, " ");
    return build_done(&b).s;
}

static struct var filter_tojson(struct render *r, struct var in, const struct args *a)
{
    static const struct str comma_blank = {.at = ", ", .n = 2}, comma = {.at = ",", .n = 1}, colon = {.at = ": ", .n = 2};
    struct json_style style = {.ascii = is_given(a->at[0]) && var_truth(a->at[0]), .sort = var_truth(a->at[3]), .indent = json_indent(r, a->at[1])};
    style.item = style.indent ? &comma : &comma_blank;
    style.key = &colon;
    if (is_given(a->at[2]) && a->at[2].kind != VAR_NONE) {
        struct seq *pair = var_elements(r, a->at[2]);
        if (pair->n != 2 || pair->at[0].kind != VAR_STRING || pair->at[1].kind != VAR_STRING) fail(r, "'tojson': separators are two strings");
        style.item = pair->at[0].s;
        style.key = pair->at[1].s;
    }
    struct build b = {.r = r};
    build_json(&b, in, &style);
    return build_done(&b);
}

/* Some templates name it, but the environment of transformers has no such filter: it fails where it is reached. */
static struct var filter_from_json(struct render *r, struct var in, const struct args *a)
{
    (void)in, (void)a;
    fail(r, "transformers has no filter from_json: give tool calls their arguments as objects, not as JSON text");
}

/* ---- numbers ---- */

/* Digits as Python's int and float read them: blanks around, single underscores between digits. */
static bool plain_number(struct render *r, const struct str *s, char **out)
{
    struct var text = string_strip(r, (struct var){.kind = VAR_STRING, .s = s}, (struct var){0}, STRIP_BOTH);
    char *digits = take(r, text.s->n + 1);
    uint32_t n = 0;
    for (uint32_t i = 0; i < text.s->n; i++) {
        const char c = text.s->at[i];
        const bool between = i && i + 1 < text.s->n && strchr("0123456789", text.s->at[i - 1]) && strchr("0123456789", text.s->at[i + 1]);
        if (c == '_' && between) continue;
        if (!c || !strchr("0123456789+-.eE", c)) return false;
        digits[n++] = c;
    }
    *out = digits;
    return n > 0;
}

static bool read_float(struct render *r, struct var v, double *out)
{
    char *digits, *end;
    if (var_is_number(v)) return *out = var_number(v), true;
    if (v.kind == VAR_UNDEFINED) fail(r, "'%s' is undefined", v.what);
    if (v.kind != VAR_STRING || !plain_number(r, v.s, &digits)) return false;
    *out = strtod(digits, &end);
    return !*end;
}

static struct var filter_int(struct render *r, struct var in, const struct args *a)
{
    struct var otherwise = is_given(a->at[0]) ? a->at[0] : var_int(0);
    const int64_t base = integer(r, "int", a->at[1], 10);
    char *digits, *end;
    double x;
    if (base != 10 && (base < 2 || base > 36 || in.kind == VAR_STRING)) fail(r, "'int' reads decimal digits only");
    if (var_is_int(in)) return var_int(integer(r, "int", in, 0));
    if (in.kind == VAR_BIG) return in;
    if (in.kind == VAR_STRING && plain_number(r, in.s, &digits) && !strpbrk(digits, ".eE")) {
        const long long whole = strtoll(digits, &end, 10);
        if (!*end && strlen(digits) <= 18) return var_int(whole);
    }
    if (!read_float(r, in, &x) || !isfinite(x)) return otherwise;
    if (fabs(x) >= 0x1p63) fail(r, "an integer grows beyond 64 bits");
    return var_int((int64_t)x);
}

static struct var filter_float(struct render *r, struct var in, const struct args *a)
{
    double x;
    return read_float(r, in, &x) ? var_float(x) : is_given(a->at[0]) ? a->at[0] : var_float(0);
}

static struct var filter_abs(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    if (!var_is_number(in)) fail(r, "'abs' takes a number, not a %s", var_type(in));
    if (in.kind == VAR_FLOAT) return var_float(fabs(in.f));
    return integer(r, "abs", in, 0) < 0 ? var_negated(r, in) : var_int(integer(r, "abs", in, 0));
}

static struct var filter_round(struct render *r, struct var in, const struct args *a)
{
    char digits[400];
    const int64_t places = integer(r, "round", a->at[0], 0);
    if (!var_is_number(in)) fail(r, "'round' takes a number, not a %s", var_type(in));
    if (places < 0 || places > 50) fail(r, "'round' takes 0 to 50 places");
    if (is_given(a->at[1]) && (a->at[1].kind != VAR_STRING || !str_is(a->at[1].s, "common"))) {
        const bool up = a->at[1].kind == VAR_STRING && str_is(a->at[1].s, "ceil");
        if (!up && !(a->at[1].kind == VAR_STRING && str_is(a->at[1].s, "floor"))) fail(r, "'round' knows common, ceil and floor");
        const double scale = pow(10, (double)places), x = var_number(in) * scale;
        return var_float((up ? ceil(x) : floor(x)) / scale);
    }
    if (in.kind != VAR_FLOAT) return var_int(integer(r, "round", in, 0));
    snprintf(digits, sizeof digits, "%.*f", (int)places, in.f);
    return var_float(strtod(digits, NULL));
}

/* ---- sequences ---- */

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
    return var_seq(r, VAR_LIST, var_elements(r, in));
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
    if (in.kind == VAR_ITERATOR) fail(r, "a generator has no last element");
    struct seq *q = var_elements(r, in);
    return q->n ? q->at[q->n - 1] : var_undefined("the last element");
}

static struct var filter_reverse(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    const struct var none = {0};
    if (in.kind == VAR_STRING) return var_slice(r, in, none, none, var_int(-1));
    struct seq *q = var_elements(r, in), *out = seq_new(r, q->n);
    for (uint32_t i = q->n; i > 0; i--) seq_push(r, out, q->at[i - 1]);
    return var_seq(r, in.kind == VAR_ITERATOR ? VAR_LIST : VAR_ITERATOR, out);
}

/* The value that "a.b.0" names inside an element. */
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
        build_var(&b, dotted(r, x, a->at[1]));
    }
    return build_done(&b);
}

static struct var filter_items(struct render *r, struct var in, const struct args *a)
{
    (void)a;
    struct seq *q = seq_new(r, 0);
    if (in.kind != VAR_DICT && in.kind != VAR_UNDEFINED) fail(r, "'items' takes a dict, not a %s", var_type(in));
    for (uint32_t i = 0; in.kind == VAR_DICT && i < in.d->n; i++) seq_push(r, q, var_pair(r, in.d->keys[i], in.d->values[i]));
    return var_iterator(r, q);
}

static struct var filter_default(struct render *r, struct var in, const struct args *a)
{
    if (in.kind != VAR_UNDEFINED && !(var_truth(a->at[1]) && !var_truth(in))) return in;
    return is_given(a->at[0]) ? a->at[0] : var_text(r, "", 0);
}

static struct var filter_sum(struct render *r, struct var in, const struct args *a)
{
    struct var sum = is_given(a->at[1]) ? a->at[1] : var_int(0);
    struct iter it = iter_of(r, in);
    if (sum.kind == VAR_STRING) fail(r, "'sum' does not join strings");
    for (struct var x; iter_next(r, &it, &x);) sum = var_arithmetic(r, '+', sum, dotted(r, x, a->at[0]));
    return sum;
}

/* ---- sorting ---- */

static struct var sort_key(struct render *r, struct var v, bool case_matters)
{
    return v.kind == VAR_STRING && !case_matters ? string_lower(r, v) : v;
}

/* "a,b.c": the values at several paths, as a list. */
static struct var sort_keys(struct render *r, struct var v, struct var paths, bool case_matters)
{
    struct seq *keys = seq_new(r, 1);
    if (paths.kind != VAR_STRING) {
        seq_push(r, keys, sort_key(r, dotted(r, v, paths), case_matters));
        return var_seq(r, VAR_LIST, keys);
    }
    for (uint32_t from = 0, to; from <= paths.s->n; from = to + 1) {
        const char *comma = from < paths.s->n ? memchr(paths.s->at + from, ',', paths.s->n - from) : NULL;
        to = comma ? (uint32_t)(comma - paths.s->at) : paths.s->n;
        seq_push(r, keys, sort_key(r, dotted(r, v, str_slice(r, paths, from, to)), case_matters));
    }
    return var_seq(r, VAR_LIST, keys);
}

/* A stable merge sort of `values` by `keys`. */
static void sort_by(struct render *r, struct seq *values, struct seq *keys, bool reverse)
{
    const uint32_t n = values->n;
    struct var *other[2] = {take(r, n * sizeof **other), take(r, n * sizeof **other)}, *at[2] = {values->at, keys->at};
    for (uint32_t width = 1; width < n; width *= 2) {
        for (uint32_t low = 0; low < n; low += 2 * width) {
            const uint32_t middle = low + width < n ? low + width : n, high = low + 2 * width < n ? low + 2 * width : n;
            for (uint32_t i = low, k = middle, out = low; out < high; out++) {
                step(r);
                const bool right = k < high && (i == middle || (reverse ? var_less(r, at[1][i], at[1][k]) : var_less(r, at[1][k], at[1][i])));
                const uint32_t from = right ? k++ : i++;
                other[0][out] = at[0][from];
                other[1][out] = at[1][from];
            }
        }
        for (int i = 0; i < 2; i++) {
            struct var *swapped = at[i];
            at[i] = other[i];
            other[i] = swapped;
        }
    }
    values->at = at[0];
    keys->at = at[1];
}

static struct var filter_sort(struct render *r, struct var in, const struct args *a)
{
    struct seq *values = var_elements(r, in), *keys = seq_new(r, values->n);
    for (uint32_t i = 0; i < values->n; i++) seq_push(r, keys, sort_keys(r, values->at[i], a->at[2], var_truth(a->at[1])));
    sort_by(r, values, keys, var_truth(a->at[0]));
    return var_seq(r, VAR_LIST, values);
}

static struct var filter_dictsort(struct render *r, struct var in, const struct args *a)
{
    if (in.kind != VAR_DICT) fail(r, "'dictsort' takes a dict, not a %s", var_type(in));
    const bool by_value = is_given(a->at[1]) && a->at[1].kind == VAR_STRING && str_is(a->at[1].s, "value");
    if (is_given(a->at[1]) && !by_value && !(a->at[1].kind == VAR_STRING && str_is(a->at[1].s, "key"))) fail(r, "'dictsort' sorts by key or value");
    struct seq *values = seq_new(r, in.d->n), *keys = seq_new(r, in.d->n);
    for (uint32_t i = 0; i < in.d->n; i++) {
        seq_push(r, values, var_pair(r, in.d->keys[i], in.d->values[i]));
        seq_push(r, keys, sort_key(r, by_value ? in.d->values[i] : in.d->keys[i], var_truth(a->at[0])));
    }
    sort_by(r, values, keys, var_truth(a->at[2]));
    return var_seq(r, VAR_LIST, values);
}

static struct var extreme(struct render *r, struct var in, const struct args *a, bool most)
{
    struct iter it = iter_of(r, in);
    struct var best = {0}, best_key = {0};
    for (struct var x; iter_next(r, &it, &x);) {
        struct var key = sort_key(r, dotted(r, x, a->at[1]), var_truth(a->at[0]));
        if (is_given(best) && !(most ? var_less(r, best_key, key) : var_less(r, key, best_key))) continue;
        best = x;
        best_key = key;
    }
    return is_given(best) ? best : var_undefined("the extreme of nothing");
}
static struct var filter_min(struct render *r, struct var in, const struct args *a)
{
    return extreme(r, in, a, false);
}
static struct var filter_max(struct render *r, struct var in, const struct args *a)
{
    return extreme(r, in, a, true);
}

static struct var filter_unique(struct render *r, struct var in, const struct args *a)
{
    struct seq *out = seq_new(r, 0);
    struct dict *seen = dict_new(r, 0);
    struct iter it = iter_of(r, in);
    for (struct var x; iter_next(r, &it, &x);) {
        struct var key = sort_key(r, dotted(r, x, a->at[1]), var_truth(a->at[0]));
        if (dict_get(r, seen, key)) continue;
        dict_put(r, seen, key, var_none());
        seq_push(r, out, x);
    }
    return var_iterator(r, out);
}

/* ---- filters that take filters and tests ---- */

/* The arguments behind the first `skip`. */
static struct args rest_of(const struct args *a, uint32_t skip)
{
    struct args rest = {.n = a->n - skip};
    memcpy(rest.at, a->at + skip, rest.n * sizeof *rest.at);
    memcpy(rest.names, a->names + skip, rest.n * sizeof *rest.names);
    return rest;
}

static const struct filter *named(struct render *r, struct var name, const struct filter *(*find)(const char *))
{
    const struct filter *f = name.kind == VAR_STRING ? find(str_c(r, name.s)) : NULL;
    if (!f) fail(r, "there is no such filter or test");
    return f;
}

static struct var filter_map(struct render *r, struct var in, const struct args *a)
{
    struct seq *out = seq_new(r, 0);
    if (!var_truth(in)) return var_iterator(r, out);
    struct iter it = iter_of(r, in);
    struct var path = {0}, otherwise = {0};
    for (uint32_t i = 0; i < a->n && a->names[0]; i++) {
        if (!strcmp(a->names[i], "attribute")) path = a->at[i];
        else if (!strcmp(a->names[i], "default")) otherwise = a->at[i];
        else fail(r, "'map' has no argument '%s'", a->names[i]);
    }
    if (!a->n || (a->names[0] && !is_given(path))) fail(r, "'map' needs a filter or an attribute");
    const struct filter *f = a->names[0] ? NULL : named(r, a->at[0], filter_find);
    const struct args rest = f ? rest_of(a, 1) : (struct args){0};
    for (struct var x; iter_next(r, &it, &x);) {
        x = f ? filter_call(r, f, x, &rest) : dotted(r, x, path);
        seq_push(r, out, x.kind == VAR_UNDEFINED && is_given(otherwise) && otherwise.kind != VAR_NONE ? otherwise : x);
    }
    return var_iterator(r, out);
}

/* select, reject, selectattr, rejectattr */
static struct var selected(struct render *r, struct var in, const struct args *a, bool keep, bool attribute)
{
    struct seq *out = seq_new(r, 0);
    if (!var_truth(in)) return var_iterator(r, out);
    if (attribute && (!a->n || a->names[0])) fail(r, "'%s' needs an attribute", keep ? "selectattr" : "rejectattr");
    struct iter it = iter_of(r, in);
    const struct filter *test = a->n > attribute ? named(r, a->at[attribute], test_find) : NULL;
    const struct args rest = test ? rest_of(a, attribute + 1u) : (struct args){0};
    for (struct var x; iter_next(r, &it, &x);) {
        struct var v = attribute ? dotted(r, x, a->at[0]) : x;
        if (var_truth(test ? filter_call(r, test, v, &rest) : v) == keep) seq_push(r, out, x);
    }
    return var_iterator(r, out);
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
    {"abs", filter_abs, ""},
    {"capitalize", filter_capitalize, ""},
    {"count", filter_length, ""},
    {"d", filter_default, "default_value,boolean"},
    {"default", filter_default, "default_value,boolean"},
    {"dictsort", filter_dictsort, "case_sensitive,by,reverse"},
    {"e", filter_escape, ""},
    {"escape", filter_escape, ""},
    {"first", filter_first, ""},
    {"float", filter_float, "default"},
    {"format", filter_format, "*"},
    {"from_json", filter_from_json, ""},
    {"indent", filter_indent, "width,first,blank"},
    {"int", filter_int, "default,base"},
    {"items", filter_items, ""},
    {"join", filter_join, "d,attribute"},
    {"last", filter_last, ""},
    {"length", filter_length, ""},
    {"list", filter_list, ""},
    {"lower", filter_lower, ""},
    {"map", filter_map, "*", .names_filter = true},
    {"max", filter_max, "case_sensitive,attribute"},
    {"min", filter_min, "case_sensitive,attribute"},
    {"reject", filter_reject, "*", .names_test = true},
    {"rejectattr", filter_rejectattr, "*", 1, .names_test = true},
    {"replace", filter_replace, "old,new,count", 2},
    {"reverse", filter_reverse, ""},
    {"round", filter_round, "precision,method"},
    {"safe", filter_safe, ""},
    {"select", filter_select, "*", .names_test = true},
    {"selectattr", filter_selectattr, "*", 1, .names_test = true},
    {"sort", filter_sort, "reverse,case_sensitive,attribute"},
    {"string", filter_string, ""},
    {"sum", filter_sum, "attribute,start"},
    {"title", filter_title, ""},
    {"tojson", filter_tojson, "ensure_ascii,indent,separators,sort_keys"},
    {"trim", filter_trim, "chars"},
    {"unique", filter_unique, "case_sensitive,attribute"},
    {"upper", filter_upper, ""},
};

const struct filter *filter_find(const char *name)
{
    for (size_t i = 0; i < COUNT(filters); i++)
        if (!strcmp(filters[i].name, name)) return &filters[i];
    return NULL;
}
