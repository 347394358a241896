/*
 * filters.c: the filters, value | name(arguments), as Jinja defines them: those of strings and
 * numbers. sequences.c has those of lists and dicts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template/call.h"
#include "text/template/unicode.h"

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
    if (in.kind == VAR_STRING) r->steps += in.s->n / 64;
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
    for (uint32_t from = 0, to, second; from < v.s->n; from = to) {
        int n;
        bool border = false;
        code_at(v.s->at + from, &n);
        second = from + (uint32_t)n;
        for (to = from; to < v.s->n && !border; to += (uint32_t)n) {
            const uint32_t c = code_at(v.s->at + to, &n);
            border = code_is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
        }
        build_str(&b, string_upper(r, str_slice(r, v, from, second)).s);
        build_str(&b, string_lower(r, str_slice(r, v, second, to)).s);
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
    static const struct str comma_blank = {.at = ", ", .n = 2}, comma = {.at = ",", .n = 1},
                            colon = {.at = ": ", .n = 2};
    struct json_style style = {.ascii = is_given(a->at[0]) && var_truth(a->at[0]),
                               .sort = var_truth(a->at[3]),
                               .indent = json_indent(r, a->at[1])};
    style.item = style.indent ? &comma : &comma_blank;
    style.key = &colon;
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

/* Some templates name it, but the environment of transformers has no such filter: it fails where it
 * is reached. */
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
        const bool between = i && i + 1 < text.s->n && strchr("0123456789", text.s->at[i - 1]) &&
                             strchr("0123456789", text.s->at[i + 1]);
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
        if (!up && !(a->at[1].kind == VAR_STRING && str_is(a->at[1].s, "floor")))
            fail(r, "'round' knows common, ceil and floor");
        const double scale = pow(10, (double)places), x = var_number(in) * scale;
        return var_float((up ? ceil(x) : floor(x)) / scale);
    }
    if (in.kind != VAR_FLOAT) return var_int(integer(r, "round", in, 0));
    snprintf(digits, sizeof digits, "%.*f", (int)places, in.f);
    return var_float(strtod(digits, NULL));
}

static const struct filter filters[] = {
    {"abs", filter_abs, ""},
    {"capitalize", filter_capitalize, ""},
    {"e", filter_escape, ""},
    {"escape", filter_escape, ""},
    {"float", filter_float, "default"},
    {"format", filter_format, "*"},
    {"from_json", filter_from_json, ""},
    {"indent", filter_indent, "width,first,blank"},
    {"int", filter_int, "default,base"},
    {"lower", filter_lower, ""},
    {"replace", filter_replace, "old,new,count", 2},
    {"round", filter_round, "precision,method"},
    {"safe", filter_safe, ""},
    {"string", filter_string, ""},
    {"title", filter_title, ""},
    {"tojson", filter_tojson, "ensure_ascii,indent,separators,sort_keys"},
    {"trim", filter_trim, "chars"},
    {"upper", filter_upper, ""},
};

const struct filter *filter_find(const char *name)
{
    for (size_t i = 0; i < COUNT(filters); i++)
        if (!strcmp(filters[i].name, name)) return &filters[i];
    return sequence_filter_find(name);
}
