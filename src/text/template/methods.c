/*
 * methods.c: methods of strings and dicts, and the functions of a template. Indexes and lengths
 * count code points.
 */
#include <time.h>

#include "text/template/jinja.h"

static void check_count(struct render *r, const char *name, const struct args *a, uint32_t least, uint32_t most)
{
    if (a->n < least || a->n > most)
        fail(r, "'%s' with %u arguments is not supported; expected %u to %u", name, a->n, least, most);
    for (uint32_t i = 0; i < a->n; i++)
        if (a->names[i]) fail(r, "'%s' takes no argument '%s'", name, a->names[i]);
}

static const struct str *string_argument(struct render *r, const char *method, struct var v)
{
    if (v.kind != VAR_STRING) fail(r, "'%s' of a %s is not supported; expected a string", method, var_type(v));
    return v.s;
}

/* ---- stripping ---- */

static bool strips(struct render *r, uint32_t c, const struct str *chars)
{
    step(r);
    if (!chars) return python_is_space(c);
    r->steps += chars->n / 16;
    uint32_t other;
    for (uint32_t i = 0; i < chars->n;) {
        i += (uint32_t)utf8_next(chars->at + i, &other);
        if (other == c) return true;
    }
    return false;
}

static uint32_t previous(const struct str *s, uint32_t at)
{
    do at--;
    while (at && ((unsigned char)s->at[at] & 0xc0) == 0x80);
    return at;
}

struct var string_strip(struct render *r, struct var v, struct var chars, enum strip_sides sides)
{
    const struct str *set = is_given(chars) && chars.kind != VAR_NONE ? string_argument(r, "strip", chars) : NULL;
    uint32_t from = 0, to = v.s->n, c;
    for (int n; sides & STRIP_LEFT && from < to; from += (uint32_t)n) {
        n = utf8_next(v.s->at + from, &c);
        if (!strips(r, c, set)) break;
    }
    for (; sides & STRIP_RIGHT && to > from; to = previous(v.s, to)) {
        utf8_next(v.s->at + previous(v.s, to), &c);
        if (!strips(r, c, set)) break;
    }
    return str_slice(r, v, from, to);
}

/* ---- case ---- */

/* Reports whether the next character before (by < 0) or after `at` that counts has a case. */
static bool is_cased_near(const struct str *s, uint32_t at, int by)
{
    while (by < 0 ? at > 0 : at < s->n) {
        uint32_t c;
        if (by < 0) at = previous(s, at);
        const int n = utf8_next(s->at + at, &c);
        if (by > 0) at += (uint32_t)n;
        const bool ignored = c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xad || c == 0x2019 ||
                             (c >= 0x300 && c < 0x370);
        if (!ignored) return python_is_cased(c);
    }
    return false;
}

struct var string_case(struct render *r, struct var v, enum case_kind kind)
{
    struct build b = {.r = r};
    const struct str *s = v.s;
    uint32_t hint = 0, c;
    bool inside = false; /* a word, behind a letter with a case */
    for (uint32_t i = 0, end; i < s->n; i = end) {
        uint32_t out[UNICODE_CASE] = {0x3c2};
        end = i + (uint32_t)utf8_next(s->at + i, &c);
        const bool lower = kind == CASE_LOWER || (kind == CASE_CAPITALIZE && i) || (kind == CASE_TITLE && inside);
        /* a small sigma at the end of a word has a form of its own */
        const bool sigma = lower && c == 0x3a3 && is_cased_near(s, i, -1) && !is_cased_near(s, end, 1);
        const int n = sigma                ? 1
                      : lower              ? unicode_lower(c, out)
                      : kind == CASE_UPPER ? python_upper(c, out)
                                           : python_title(c, out);
        if (!n) fail(r, "the title case of '%.*s' is not supported", (int)(end - i), s->at + i);
        const bool data = str_is_data(s, i, &hint);
        for (int k = 0; k < n; k++) {
            char bytes[4];
            build_bytes(&b, bytes, (size_t)utf8_encode(out[k], bytes), data);
        }
        inside = python_is_cased(c);
    }
    struct var out = build_done(&b);
    out.markup = v.markup;
    return out;
}

/* ---- finding, splitting, replacing ---- */

/* Finds the byte offset of `what` in [from, to), first or last; -1: none. */
static int64_t find_bytes(struct render *r, const struct str *s, const struct str *what, uint32_t from, uint32_t to,
                          bool last)
{
    if (from > to || to - from < what->n) return -1;
    r->steps += (to - from) / 64;
    if (!last) {
        const char *at = what->n ? memmem(s->at + from, to - from, what->at, what->n) : s->at + from;
        return at ? at - s->at : -1;
    }
    r->steps += (uint64_t)(to - from) * what->n / 1024;
    for (int64_t at = (int64_t)to - what->n; at >= from; at--)
        if (!memcmp(s->at + at, what->at, what->n)) return at;
    return -1;
}

static struct var string_find(struct render *r, struct var v, const char *name, const struct args *a)
{
    const int64_t at = find_bytes(r, v.s, string_argument(r, name, a->at[0]), 0, v.s->n, name[0] == 'r');
    return var_int(at < 0 ? -1 : (int64_t)str_length(&(struct str){.at = v.s->at, .n = (uint32_t)at}));
}

static struct var string_affix(struct render *r, struct var v, const char *name, const struct args *a)
{
    const struct str *affix = string_argument(r, name, a->at[0]);
    const bool fits = affix->n <= v.s->n;
    return var_bool(fits && !memcmp(v.s->at + (name[0] == 'e' ? v.s->n - affix->n : 0), affix->at, affix->n));
}

static struct var string_split(struct render *r, struct var v, const char *name, const struct args *a)
{
    struct seq *out = seq_new(r, 0);
    const struct str *by = string_argument(r, name, a->at[0]);
    if (!by->n) fail(r, "'%s': the separator is empty", name);
    if (a->n > 1 && !is_int(a->at[1])) fail(r, "the limit of a split is an integer, not a %s", var_type(a->at[1]));
    int64_t most = a->n > 1 ? var_integer(a->at[1]) : -1;
    uint32_t from = 0;
    for (int64_t at; most != 0 && (at = find_bytes(r, v.s, by, from, v.s->n, false)) >= 0; most--) {
        seq_push(r, out, str_slice(r, v, from, (uint32_t)at));
        from = (uint32_t)at + by->n;
    }
    seq_push(r, out, str_slice(r, v, from, v.s->n));
    return var_seq(VAR_LIST, out);
}

struct var string_replace(struct render *r, struct var v, const struct str *from, const struct str *to)
{
    struct build b = {.r = r};
    uint32_t at = 0;
    if (!from->n) fail(r, "'replace' of an empty string is not supported");
    if (v.markup) fail(r, "'replace' in a string that is marked safe is not supported");
    for (int64_t found; (found = find_bytes(r, v.s, from, at, v.s->n, false)) >= 0; step(r)) {
        build_slice(&b, v.s, at, (uint32_t)found);
        build_str(&b, to);
        at = (uint32_t)found + from->n;
    }
    if (!at) return v;
    build_slice(&b, v.s, at, v.s->n);
    return build_done(&b);
}

static struct var method_replace(struct render *r, struct var v, const char *name, const struct args *a)
{
    return string_replace(r, v, string_argument(r, name, a->at[0]), string_argument(r, name, a->at[1]));
}

struct var string_format(struct render *r, struct var format, const char *mark, const struct args *a)
{
    struct build b = {.r = r};
    const struct str *s = format.s;
    uint32_t next = 0;
    check_count(r, "format", a, 0, CALL_ARGS);
    if (format.markup) fail(r, "format of a string that is marked safe is not supported");
    for (uint32_t i = 0; i < s->n; i++) {
        if (s->at[i] != mark[0] && !(mark[0] == '{' && s->at[i] == '}')) {
            build_slice(&b, s, i, i + 1);
            continue;
        }
        if (s->at[i] != mark[0] || i + 1 == s->n || s->at[i + 1] != mark[1])
            fail(r, "format replaces only %s; other layouts are not supported", mark);
        if (next == a->n) fail(r, "format has too few values");
        build_var(&b, a->at[next++]);
        i++;
    }
    if (next < a->n) fail(r, "format has too many values");
    return build_done(&b);
}

static struct var method_format(struct render *r, struct var v, const char *name, const struct args *a)
{
    (void)name;
    return string_format(r, v, "{}", a);
}

static struct var method_strip(struct render *r, struct var v, const char *name, const struct args *a)
{
    return string_strip(r, v, a->n ? a->at[0] : var_none(),
                        name[0] == 'l' ? STRIP_LEFT : name[0] == 'r' ? STRIP_RIGHT : STRIP_BOTH);
}

static struct var method_case(struct render *r, struct var v, const char *name, const struct args *a)
{
    (void)a;
    return string_case(r, v,
                       name[0] == 'u'   ? CASE_UPPER
                       : name[0] == 'l' ? CASE_LOWER
                       : name[0] == 'c' ? CASE_CAPITALIZE
                                        : CASE_TITLE);
}

/* ---- dicts ---- */

static struct var dict_get_method(struct render *r, struct var v, const char *name, const struct args *a)
{
    (void)name;
    const struct var *found = dict_get(r, v.d, a->at[0]);
    return found ? *found : a->n > 1 ? a->at[1] : var_none();
}

static struct var dict_view(struct render *r, struct var v, const char *name, const struct args *a)
{
    (void)a;
    struct seq *q = seq_new(r, v.d->n);
    for (uint32_t i = 0; i < v.d->n; i++)
        seq_push(r, q,
                 name[0] == 'i'   ? var_pair(r, v.d->keys[i], v.d->values[i])
                 : name[0] == 'k' ? v.d->keys[i]
                                  : v.d->values[i]);
    return var_seq(VAR_ELEMENTS, q);
}

static const struct {
    const char *name;
    enum var_kind of;
    struct var (*run)(struct render *r, struct var v, const char *name, const struct args *a);
    uint32_t least, most; /* arguments */
} methods[] = {
    {"capitalize", VAR_STRING, method_case, 0, 0},  {"endswith", VAR_STRING, string_affix, 1, 1},
    {"find", VAR_STRING, string_find, 1, 1},        {"format", VAR_STRING, method_format, 0, CALL_ARGS},
    {"get", VAR_DICT, dict_get_method, 1, 2},       {"items", VAR_DICT, dict_view, 0, 0},
    {"keys", VAR_DICT, dict_view, 0, 0},            {"lower", VAR_STRING, method_case, 0, 0},
    {"lstrip", VAR_STRING, method_strip, 0, 1},     {"replace", VAR_STRING, method_replace, 2, 2},
    {"rfind", VAR_STRING, string_find, 1, 1},       {"rstrip", VAR_STRING, method_strip, 0, 1},
    {"split", VAR_STRING, string_split, 1, 2},      {"startswith", VAR_STRING, string_affix, 1, 1},
    {"strip", VAR_STRING, method_strip, 0, 1},      {"title", VAR_STRING, method_case, 0, 0},
    {"upper", VAR_STRING, method_case, 0, 0},       {"values", VAR_DICT, dict_view, 0, 0},
};

bool method_known(const char *name)
{
    for (size_t i = 0; i < COUNT(methods); i++)
        if (!strcmp(methods[i].name, name)) return true;
    struct var list = {.kind = VAR_LIST}, dict = {.kind = VAR_DICT}; /* a template may name them, but not reach them */
    return method_changes(list, name) || method_changes(dict, name);
}

struct var method_call(struct render *r, struct var v, const char *name, const struct args *a)
{
    if (v.kind == VAR_STRING) r->steps += v.s->n / 64;
    for (size_t i = 0; i < COUNT(methods); i++) {
        if (methods[i].of != v.kind || strcmp(methods[i].name, name)) continue;
        check_count(r, name, a, methods[i].least, methods[i].most);
        return methods[i].run(r, v, name, a);
    }
    fail(r, "the method '%s' of a %s is not supported", name, var_type(v));
}

/* ---- functions ---- */

static struct var call_range(struct render *r, const struct args *a)
{
    check_count(r, "range", a, 1, 3);
    for (uint32_t i = 0; i < a->n; i++)
        if (!is_int(a->at[i])) fail(r, "range takes integers, not a %s", var_type(a->at[i]));
    const int64_t by = a->n > 2 ? var_integer(a->at[2]) : 1, end = var_integer(a->at[a->n > 1]);
    if (!by) fail(r, "the step of range is zero");
    struct seq *q = seq_new(r, 0);
    q->begin = a->n > 1 ? var_integer(a->at[0]) : 0;
    q->by = by;
    const __int128 distance = ((__int128)end - q->begin) * (by < 0 ? -1 : 1), width = by < 0 ? -(__int128)by : by;
    const __int128 n = distance > 0 ? (distance + width - 1) / width : 0;
    if (n > RENDER_RANGE) fail(r, "a range has more than %d elements", RENDER_RANGE);
    q->n = (uint32_t)n;
    return var_seq(VAR_ELEMENTS, q);
}

static struct var call_namespace(struct render *r, const struct args *a)
{
    struct dict *d = dict_new(r, a->n);
    for (uint32_t i = 0; i < a->n; i++) {
        if (!a->names[i]) fail(r, "'namespace' of a value without a name is not supported");
        if (a->names[i][0] == '_') fail(r, "a namespace has no members that begin with _");
        dict_put(r, d, var_text(r, a->names[i], strlen(a->names[i])), a->at[i]);
    }
    return (struct var){.kind = VAR_NAMESPACE, .d = d};
}

static struct var call_raise(struct render *r, const struct args *a)
{
    if (a->n != 1 || (a->names[0] && strcmp(a->names[0], "message"))) fail(r, "raise_exception takes one argument");
    fail(r, "the template refuses this conversation: %.1000s", str_c(r, var_string(r, a->at[0]).s));
}

static struct var call_strftime(struct render *r, const struct args *a)
{
    if (a->n != 1 || (a->names[0] && strcmp(a->names[0], "format")) || a->at[0].kind != VAR_STRING)
        fail(r, "strftime_now takes a format");
    struct tm day = {0};
    if (!r->date) {
        const time_t now = time(NULL);
        localtime_r(&now, &day);
    } else {
        int year, month, date, n = 0, hour = 0, minute = 0, second = 0;
        if (sscanf(r->date, "%4d-%2d-%2d%n", &year, &month, &date, &n) != 3)
            fail(r, "strftime_now is \"%.40s\"; expected a date like 2026-01-31", r->date);
        if (r->date[n] && sscanf(r->date + n, " %2d:%2d:%2d", &hour, &minute, &second) != 3)
            fail(r, "strftime_now is \"%.40s\"; expected a time like 2026-01-31 12:00:00", r->date);
        day = (struct tm){.tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = date, .tm_hour = hour,
                          .tm_min = minute, .tm_sec = second, .tm_isdst = -1};
        mktime(&day); /* the day of the week */
    }
    char *format = str_c(r, a->at[0].s), *out = take(r, 4096);
    const size_t n = format[0] ? strftime(out, 4096, format, &day) : 0;
    return var_text(r, out, n);
}

bool function_known(const char *name)
{
    return text_has_word(" range namespace raise_exception strftime_now ", name);
}

struct var function_call(struct render *r, const char *name, const struct args *a)
{
    if (!strcmp(name, "range")) return call_range(r, a);
    if (!strcmp(name, "raise_exception")) return call_raise(r, a);
    if (!strcmp(name, "strftime_now")) return call_strftime(r, a);
    return call_namespace(r, a);
}
