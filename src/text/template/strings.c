/*
 * strings.c: the methods of Python's str. Indexes and lengths count code points.
 */
#include <string.h>

#include "text/template/call.h"
#include "text/template/unicode.h"

/* ---- stripping ---- */

static bool strips(struct render *r, uint32_t c, const struct str *chars)
{
    step(r);
    if (!chars) return code_is_space(c);
    r->steps += chars->n / 16;
    for (uint32_t i = 0; i < chars->n;) {
        int n;
        if (code_at(chars->at + i, &n) == c) return true;
        i += (uint32_t)n;
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
    if (is_given(chars) && chars.kind != VAR_NONE && chars.kind != VAR_STRING)
        fail(r, "strip takes a string, not a %s", var_type(chars));
    const struct str *set = chars.kind == VAR_STRING ? chars.s : NULL;
    uint32_t from = 0, to = v.s->n;
    int n;
    if (sides & STRIP_LEFT)
        while (from < to && strips(r, code_at(v.s->at + from, &n), set)) from += (uint32_t)n;
    if (sides & STRIP_RIGHT)
        while (to > from && strips(r, code_at(v.s->at + previous(v.s, to), &n), set)) to = previous(v.s, to);
    return str_slice(r, v, from, to);
}

/* ---- case ---- */

static bool is_cased_near(const struct str *s, int64_t at, int by)
{
    while (by < 0 ? at > 0 : at < s->n) {
        int n;
        if (by < 0) at = previous(s, (uint32_t)at);
        const uint32_t c = code_at(s->at + at, &n);
        if (by > 0) at += n;
        const bool ignored = c == '\'' || c == '.' || c == ':' || c == '^' || c == '`' || c == 0xad || c == 0x2019 ||
                             (c >= 0x300 && c < 0x370);
        if (!ignored) return code_is_cased(c);
    }
    return false;
}

static void build_mapped(struct build *b, const struct str *s, uint32_t from, uint32_t to, int (*map)(uint32_t, char *))
{
    uint32_t hint = 0;
    for (uint32_t i = from; i < to;) {
        int n;
        char out[CASE_BYTES];
        const uint32_t c = code_at(s->at + i, &n);
        const bool data = str_is_data(s, i, &hint);
        /* a small sigma at the end of a word has a form of its own */
        if (map == code_lower && c == 0x3a3 && is_cased_near(s, i, -1) && !is_cased_near(s, (int64_t)i + n, 1))
            build_code(b, 0x3c2, data);
        else build_bytes(b, out, (size_t)map(c, out), data);
        i += (uint32_t)n;
    }
}

static struct var done_like(struct build *b, struct var v)
{
    struct var out = build_done(b);
    out.markup = v.markup;
    return out;
}

struct var string_upper(struct render *r, struct var v)
{
    struct build b = {.r = r};
    build_mapped(&b, v.s, 0, v.s->n, code_upper);
    return done_like(&b, v);
}

struct var string_lower(struct render *r, struct var v)
{
    struct build b = {.r = r};
    build_mapped(&b, v.s, 0, v.s->n, code_lower);
    return done_like(&b, v);
}

struct var string_capitalize(struct render *r, struct var v)
{
    struct build b = {.r = r};
    int n = 0;
    if (v.s->n) code_at(v.s->at, &n);
    build_mapped(&b, v.s, 0, (uint32_t)n, code_title);
    build_mapped(&b, v.s, (uint32_t)n, v.s->n, code_lower);
    return done_like(&b, v);
}

/* A letter behind one that has no case begins a word. */
static struct var string_title(struct render *r, struct var v)
{
    struct build b = {.r = r};
    bool inside = false;
    for (uint32_t i = 0; i < v.s->n;) {
        int n;
        const uint32_t c = code_at(v.s->at + i, &n);
        if (inside) build_mapped(&b, v.s, i, i + (uint32_t)n, code_lower);
        else build_mapped(&b, v.s, i, i + (uint32_t)n, code_title);
        inside = code_is_cased(c);
        i += (uint32_t)n;
    }
    return done_like(&b, v);
}

/* ---- finding ---- */

static const struct str *string_argument(struct render *r, const char *method, struct var v)
{
    if (v.kind != VAR_STRING) fail(r, "'%s' takes a string, not a %s", method, var_type(v));
    return v.s;
}

/* The byte offset of `what` in [from, to), first or last; -1: none. */
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

/* Optional begin and end, in code points, of the part of the string that a method looks at. */
static void window(struct render *r, struct var v, const struct args *a, uint32_t *from, uint32_t *to)
{
    const struct var none = {0};
    const struct var part = var_slice(r, v, a->n > 1 ? a->at[1] : none, a->n > 2 ? a->at[2] : none, none);
    *from = (uint32_t)(part.s->at - v.s->at);
    *to = *from + part.s->n;
}

static struct var string_find(struct render *r, struct var v, const char *name, const struct args *a)
{
    const struct str *what = string_argument(r, name, a->at[0]);
    uint32_t from, to;
    window(r, v, a, &from, &to);
    const int64_t at = find_bytes(r, v.s, what, from, to, name[0] == 'r');
    if (at < 0 && strstr(name, "index")) fail(r, "'%s': the substring is not in the string", name);
    return var_int(at < 0 ? -1 : (int64_t)str_length(&(struct str){.at = v.s->at, .n = (uint32_t)at}));
}

static struct var string_count(struct render *r, struct var v, const char *name, const struct args *a)
{
    const struct str *what = string_argument(r, name, a->at[0]);
    uint32_t from, to;
    int64_t n = 0;
    window(r, v, a, &from, &to);
    if (!what->n) return var_int((int64_t)str_length(&(struct str){.at = v.s->at + from, .n = to - from}) + 1);
    for (int64_t at; (at = find_bytes(r, v.s, what, from, to, false)) >= 0; n++, step(r)) from = (uint32_t)at + what->n;
    return var_int(n);
}

static bool has_affix(const struct str *s, uint32_t from, uint32_t to, const struct str *affix, bool end)
{
    if (to - from < affix->n) return false;
    return !affix->n || !memcmp(s->at + (end ? to - affix->n : from), affix->at, affix->n);
}

static struct var string_affix(struct render *r, struct var v, const char *name, const struct args *a)
{
    const bool end = name[0] == 'e';
    uint32_t from, to;
    window(r, v, a, &from, &to);
    if (a->at[0].kind != VAR_TUPLE) return var_bool(has_affix(v.s, from, to, string_argument(r, name, a->at[0]), end));
    for (uint32_t i = 0; i < a->at[0].q->n; i++)
        if (has_affix(v.s, from, to, string_argument(r, name, a->at[0].q->at[i]), end)) return var_bool(true);
    return var_bool(false);
}

static struct var string_remove(struct render *r, struct var v, const char *name, const struct args *a)
{
    const struct str *affix = string_argument(r, name, a->at[0]);
    const bool end = !strcmp(name, "removesuffix");
    if (!affix->n || !has_affix(v.s, 0, v.s->n, affix, end)) return v;
    return end ? str_slice(r, v, 0, v.s->n - affix->n) : str_slice(r, v, affix->n, v.s->n);
}

/* ---- splitting ---- */

static int64_t split_limit(struct render *r, struct var v)
{
    if (!is_given(v)) return -1;
    if (!var_is_int(v)) fail(r, "the limit of a split is an integer, not a %s", var_type(v));
    return v.kind == VAR_BOOL ? v.truth : v.i;
}

/* By blanks: none at the ends, and runs count once. */
static void split_blanks(struct render *r, struct var v, struct seq *out, int64_t most)
{
    uint32_t at = 0;
    int n;
    for (;;) {
        while (at < v.s->n && code_is_space(code_at(v.s->at + at, &n))) at += (uint32_t)n;
        if (at == v.s->n) return;
        uint32_t end = at;
        if (most == 0) { /* the rest in one piece, without blanks at its end only when split() meets them */
            seq_push(r, out, str_slice(r, v, at, v.s->n));
            return;
        }
        while (end < v.s->n && !code_is_space(code_at(v.s->at + end, &n))) end += (uint32_t)n;
        seq_push(r, out, str_slice(r, v, at, end));
        most--;
        at = end;
    }
}

static void split_text(struct render *r, struct var v, const struct str *by, struct seq *out, int64_t most)
{
    uint32_t from = 0;
    for (int64_t at; most != 0 && (at = find_bytes(r, v.s, by, from, v.s->n, false)) >= 0; most--) {
        seq_push(r, out, str_slice(r, v, from, (uint32_t)at));
        from = (uint32_t)at + by->n;
    }
    seq_push(r, out, str_slice(r, v, from, v.s->n));
}

static void reverse_seq(struct seq *q)
{
    for (uint32_t i = 0; i < q->n / 2; i++) {
        const struct var swapped = q->at[i];
        q->at[i] = q->at[q->n - 1 - i];
        q->at[q->n - 1 - i] = swapped;
    }
}

static void split_text_right(struct render *r, struct var v, const struct str *by, struct seq *out, int64_t most)
{
    uint32_t to = v.s->n;
    for (int64_t at; most != 0 && (at = find_bytes(r, v.s, by, 0, to, true)) >= 0; most--) {
        seq_push(r, out, str_slice(r, v, (uint32_t)at + by->n, to));
        to = (uint32_t)at;
    }
    seq_push(r, out, str_slice(r, v, 0, to));
    reverse_seq(out);
}

static struct var string_split(struct render *r, struct var v, const char *name, const struct args *a)
{
    struct seq *out = seq_new(r, 0);
    const int64_t most = split_limit(r, a->at[1]);
    const bool blanks = !is_given(a->at[0]) || a->at[0].kind == VAR_NONE;
    if (blanks && name[0] == 'r' && most >= 0) fail(r, "rsplit by blanks with a limit is not supported");
    if (blanks) {
        split_blanks(r, v, out, most);
        return var_seq(r, VAR_LIST, out);
    }
    const struct str *by = string_argument(r, name, a->at[0]);
    if (!by->n) fail(r, "'%s': the separator is empty", name);
    if (name[0] == 'r') split_text_right(r, v, by, out, most);
    else split_text(r, v, by, out, most);
    return var_seq(r, VAR_LIST, out);
}

struct seq *string_lines(struct render *r, struct var v, bool keep_ends)
{
    struct seq *out = seq_new(r, 0);
    uint32_t from = 0;
    for (uint32_t at = 0; at < v.s->n;) {
        int n;
        const uint32_t c = code_at(v.s->at + at, &n);
        const uint32_t end = at;
        at += (uint32_t)n;
        if (!code_is_line_end(c)) continue;
        if (c == '\r' && at < v.s->n && v.s->at[at] == '\n') at++;
        seq_push(r, out, str_slice(r, v, from, keep_ends ? at : end));
        from = at;
    }
    if (from < v.s->n) seq_push(r, out, str_slice(r, v, from, v.s->n));
    return out;
}

static struct var string_splitlines(struct render *r, struct var v, const char *name, const struct args *a)
{
    (void)name;
    return var_seq(r, VAR_LIST, string_lines(r, v, var_truth(a->at[0])));
}

static struct var string_partition(struct render *r, struct var v, const char *name, const struct args *a)
{
    const struct str *by = string_argument(r, name, a->at[0]);
    if (!by->n) fail(r, "'%s': the separator is empty", name);
    const bool last = name[0] == 'r';
    const int64_t at = find_bytes(r, v.s, by, 0, v.s->n, last);
    const uint32_t n = v.s->n, cut[4] = {0, at < 0 ? (last ? 0 : n) : (uint32_t)at,
                                         at < 0 ? (last ? 0 : n) : (uint32_t)at + by->n, n};
    struct seq *out = seq_new(r, 3);
    for (int i = 0; i < 3; i++) seq_push(r, out, str_slice(r, v, cut[i], cut[i + 1]));
    return var_seq(r, VAR_TUPLE, out);
}

/* ---- joining and replacing ---- */

static struct var string_join(struct render *r, struct var v, const char *name, const struct args *a)
{
    struct build b = {.r = r};
    struct iter it = iter_of(r, a->at[0]);
    uint32_t i = 0;
    for (struct var x; iter_next(r, &it, &x); i++) {
        string_argument(r, name, x);
        if (i) build_str(&b, v.s);
        if (v.markup && !x.markup) build_escaped(&b, x.s);
        else build_str(&b, x.s);
    }
    return done_like(&b, v);
}

/* Nothing is found before each character and at the end. */
static struct var replace_nothing(struct render *r, struct var v, const struct str *to, int64_t most)
{
    struct build b = {.r = r};
    for (uint32_t i = 0; i <= v.s->n;) {
        int n = 1;
        if (most != 0) build_str(&b, to), most--;
        if (i == v.s->n) break;
        code_at(v.s->at + i, &n);
        build_slice(&b, v.s, i, i + (uint32_t)n);
        i += (uint32_t)n;
    }
    return done_like(&b, v);
}

struct var string_replace(struct render *r, struct var v, const struct str *from, const struct str *to, int64_t most)
{
    if (!from->n) return replace_nothing(r, v, to, most);
    struct build b = {.r = r};
    uint32_t at = 0;
    for (int64_t found; most != 0 && (found = find_bytes(r, v.s, from, at, v.s->n, false)) >= 0; most--, step(r)) {
        build_slice(&b, v.s, at, (uint32_t)found);
        build_str(&b, to);
        at = (uint32_t)found + from->n;
    }
    if (!at) return v;
    build_slice(&b, v.s, at, v.s->n);
    return done_like(&b, v);
}

static struct var method_replace(struct render *r, struct var v, const char *name, const struct args *a)
{
    const struct str *from = string_argument(r, name, a->at[0]), *to = string_argument(r, name, a->at[1]);
    struct build b = {.r = r};
    if (v.markup && !a->at[1].markup) {
        build_escaped(&b, to);
        to = build_done(&b).s;
    }
    return string_replace(r, v, from, to, split_limit(r, a->at[2]));
}

/* ---- padding ---- */

static void build_fill(struct build *b, const struct str *fill, int64_t n)
{
    for (; n > 0; n--, step(b->r)) build_str(b, fill);
}

static struct var string_pad(struct render *r, struct var v, const char *name, const struct args *a)
{
    static const struct str blank = {.at = " ", .n = 1}, zero = {.at = "0", .n = 1};
    if (!var_is_int(a->at[0])) fail(r, "'%s' takes a width, not a %s", name, var_type(a->at[0]));
    const struct str *fill = name[0] == 'z' ? &zero : is_given(a->at[1]) ? string_argument(r, name, a->at[1]) : &blank;
    if (str_length(fill) != 1) fail(r, "'%s' fills with one character", name);
    const int64_t width = a->at[0].kind == VAR_BOOL ? a->at[0].truth : a->at[0].i, more = width - str_length(v.s);
    if (more <= 0) return v;
    const bool sign = name[0] == 'z' && v.s->n && (v.s->at[0] == '-' || v.s->at[0] == '+');
    const int64_t left = name[0] == 'l' ? 0 : name[0] == 'c' ? more / 2 + (more & width & 1) : more;
    struct build b = {.r = r};
    build_slice(&b, v.s, 0, sign);
    build_fill(&b, fill, left);
    build_slice(&b, v.s, sign, v.s->n);
    build_fill(&b, fill, more - left);
    return done_like(&b, v);
}

static struct var method_strip(struct render *r, struct var v, const char *name, const struct args *a)
{
    return string_strip(r, v, a->at[0], name[0] == 'l' ? STRIP_LEFT : name[0] == 'r' ? STRIP_RIGHT : STRIP_BOTH);
}

static struct var method_case(struct render *r, struct var v, const char *name, const struct args *a)
{
    (void)a;
    return name[0] == 'u'   ? string_upper(r, v)
           : name[0] == 'l' ? string_lower(r, v)
           : name[0] == 'c' ? string_capitalize(r, v)
                            : string_title(r, v);
}

static struct var string_isspace(struct render *r, struct var v, const char *name, const struct args *a)
{
    (void)name, (void)a;
    return var_bool(v.s->n && !string_strip(r, v, (struct var){0}, STRIP_BOTH).s->n);
}

static const struct {
    const char *name;
    struct var (*run)(struct render *r, struct var v, const char *name, const struct args *a);
    uint32_t least;
    bool keywords; /* arguments may be given by name */
    const char *params;
} methods[] = {
    {"strip", method_strip, 0, false, "chars"},
    {"lstrip", method_strip, 0, false, "chars"},
    {"rstrip", method_strip, 0, false, "chars"},
    {"split", string_split, 0, true, "sep,maxsplit"},
    {"rsplit", string_split, 0, true, "sep,maxsplit"},
    {"splitlines", string_splitlines, 0, true, "keepends"},
    {"partition", string_partition, 1, false, "sep"},
    {"rpartition", string_partition, 1, false, "sep"},
    {"join", string_join, 1, false, "parts"},
    {"replace", method_replace, 2, false, "old,new,count"},
    {"startswith", string_affix, 1, false, "prefix,start,end"},
    {"endswith", string_affix, 1, false, "suffix,start,end"},
    {"removeprefix", string_remove, 1, false, "prefix"},
    {"removesuffix", string_remove, 1, false, "suffix"},
    {"find", string_find, 1, false, "sub,start,end"},
    {"rfind", string_find, 1, false, "sub,start,end"},
    {"index", string_find, 1, false, "sub,start,end"},
    {"rindex", string_find, 1, false, "sub,start,end"},
    {"count", string_count, 1, false, "sub,start,end"},
    {"upper", method_case, 0, false, ""},
    {"lower", method_case, 0, false, ""},
    {"capitalize", method_case, 0, false, ""},
    {"title", method_case, 0, false, ""},
    {"isspace", string_isspace, 0, false, ""},
    {"ljust", string_pad, 1, false, "width,fill"},
    {"rjust", string_pad, 1, false, "width,fill"},
    {"center", string_pad, 1, false, "width,fill"},
    {"zfill", string_pad, 1, false, "width"},
};

struct var string_method(struct render *r, struct var v, const char *name, const struct args *written)
{
    r->steps += v.s->n / 64;
    if (!strcmp(name, "format")) return string_format(r, v, written);
    for (size_t i = 0; i < COUNT(methods); i++) {
        if (strcmp(methods[i].name, name)) continue;
        uint32_t place[CALL_ARGS];
        struct args a = {.n = written->n};
        const char *wrong = args_place(methods[i].params, methods[i].least, written->names, written->n, place);
        for (uint32_t k = 0; k < written->n && !wrong; k++) {
            if (written->names[k] && !methods[i].keywords) wrong = "takes no arguments by name";
            a.at[place[k]] = written->at[k];
        }
        if (wrong) fail(r, "the method '%s' %s", name, wrong);
        return methods[i].run(r, v, name, &a);
    }
    fail(r, "a str has no method '%s' here", name);
}
