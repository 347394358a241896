/*
 * format.c: "%s" % values and "{}".format(values), with the layouts that Python and C share.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template/call.h"

/* ---- "..." % values ---- */

struct percent {
    struct render *r;
    struct build b;
    struct var values; /* a tuple, a dict or a single value */
    uint32_t next;
};

static struct var next_value(struct percent *p)
{
    if (p->values.kind != VAR_TUPLE) {
        if (p->next++) fail(p->r, "%% has too few values");
        return p->values;
    }
    if (p->next == p->values.q->n) fail(p->r, "%% has too few values");
    return p->values.q->at[p->next++];
}

/* Puts text of a width: on the right, or on the left for '-'. */
static void build_padded(struct build *b, const struct str *s, int width, bool left)
{
    const int more = width - (int)str_length(s);
    for (int i = 0; !left && i < more; i++) build_text(b, " ");
    build_str(b, s);
    for (int i = 0; left && i < more; i++) build_text(b, " ");
}

static void percent_number(struct percent *p, const char *flags, int width, int precision, char kind, struct var v)
{
    char format[64], digits[512];
    if (!var_is_number(v)) fail(p->r, "%%%c needs a number, not a %s", kind, var_type(v));
    const bool whole = strchr("diuxXo", kind) != NULL;
    if (whole && v.kind == VAR_FLOAT && (strchr("xXo", kind) || !(fabs(v.f) < 0x1p63)))
        fail(p->r, "%%%c needs an integer", kind);
    if (whole) {
        const long long x = v.kind == VAR_FLOAT ? (long long)v.f : v.kind == VAR_BOOL ? v.truth : v.i;
        if (strchr("xXo", kind) && x < 0) fail(p->r, "%%%c of a negative number is not supported", kind);
        if (precision < 0) snprintf(format, sizeof format, "%%%s*ll%c", flags, kind == 'u' ? 'd' : kind);
        else snprintf(format, sizeof format, "%%%s*.%dll%c", flags, precision, kind == 'u' ? 'd' : kind);
        snprintf(digits, sizeof digits, format, width, x);
    } else {
        snprintf(format, sizeof format, "%%%s*.*%c", flags, kind);
        snprintf(digits, sizeof digits, format, width, precision < 0 ? 6 : precision, var_number(v));
    }
    build_text(&p->b, digits);
}

/* One conversion behind its %; returns the text behind it. */
static const char *percent_one(struct percent *p, const char *at, const char *end)
{
    char flags[8];
    int n = 0, width = 0, precision = -1;
    struct var v = {0};
    if (at < end && *at == '(') { /* %(name)s */
        const char *close = memchr(at, ')', (size_t)(end - at));
        if (!close || p->values.kind != VAR_DICT) fail(p->r, "%%(name) needs a dict");
        const struct var *found = dict_get(p->r, p->values.d, var_text(p->r, at + 1, (size_t)(close - at - 1)));
        if (!found) fail(p->r, "%%(name) is not in the dict");
        v = *found;
        at = close + 1;
    }
    while (at < end && strchr("-+ 0#", *at) && *at && n < 5) flags[n++] = *at++;
    flags[n] = 0;
    for (; at < end && *at >= '0' && *at <= '9' && width < 400; at++) width = width * 10 + (*at - '0');
    if (at < end && *at == '.')
        for (at++, precision = 0; at < end && *at >= '0' && *at <= '9' && precision < 100; at++)
            precision = precision * 10 + (*at - '0');
    if (width > 400 || precision > 100) fail(p->r, "%%: a width beyond 400 or more than 100 digits");
    if (at == end) fail(p->r, "%% at the end of a format");
    const char kind = *at++;
    if (kind == '%') return build_text(&p->b, "%"), at;
    if (!kind || !strchr("srdiuxXofFeEgG", kind)) fail(p->r, "%%%c is not supported", kind);
    if (!is_given(v)) v = next_value(p);
    if (kind != 's' && kind != 'r') {
        percent_number(p, flags, width, precision, kind, v);
        return at;
    }
    struct build one = {.r = p->r};
    if (kind == 'r') build_repr(&one, v);
    else build_var(&one, v);
    struct var text = build_done(&one);
    if (precision >= 0) text = var_slice(p->r, text, var_int(0), var_int(precision), (struct var){0});
    build_padded(&p->b, text.s, width, strchr(flags, '-') != NULL);
    return at;
}

struct var string_percent(struct render *r, struct var format, struct var values)
{
    struct percent p = {.r = r, .b = {.r = r}, .values = values};
    const char *end = format.s->at + format.s->n;
    if (format.markup) fail(r, "%% with a string that is marked safe is not supported");
    for (const char *at = format.s->at; at < end;) {
        const char *sign = memchr(at, '%', (size_t)(end - at)), *to = sign ? sign : end;
        build_slice(&p.b, format.s, (uint32_t)(at - format.s->at), (uint32_t)(to - format.s->at));
        at = sign ? percent_one(&p, sign + 1, end) : end;
    }
    const bool used = values.kind == VAR_TUPLE ? p.next == values.q->n
                                               : p.next || values.kind == VAR_DICT || values.kind == VAR_LIST ||
                                                     values.kind == VAR_UNDEFINED;
    if (!used) fail(r, "%% has values that are not used");
    return build_done(&p.b);
}

/* ---- "{}".format(values) ---- */

static struct var format_value(struct render *r, const struct args *a, const char *name, size_t n, uint32_t *next)
{
    uint32_t positional = 0;
    while (positional < a->n && !a->names[positional]) positional++;
    const bool number = strspn(name, "0123456789") >= n;
    if (number) {
        const uint32_t at = n ? (uint32_t)atoi(name) : (*next)++;
        if (n > 4 || at >= positional) fail(r, "format has too few values");
        return a->at[at];
    }
    for (uint32_t i = positional; i < a->n; i++)
        if (strlen(a->names[i]) == n && !memcmp(a->names[i], name, n)) return a->at[i];
    fail(r, "format has no value '%.*s' (attributes and layouts after : are not supported)", (int)(n < 60 ? n : 60),
         name);
}

struct var string_format(struct render *r, struct var format, const struct args *a)
{
    struct build b = {.r = r};
    const struct str *s = format.s;
    uint32_t next = 0;
    if (format.markup) fail(r, "format of a string that is marked safe is not supported");
    for (uint32_t i = 0; i < s->n; i++) {
        const char c = s->at[i];
        if ((c == '{' || c == '}') && i + 1 < s->n && s->at[i + 1] == c) {
            build_slice(&b, s, i, i + 1);
            i++;
        } else if (c == '}') {
            fail(r, "a single } in a format");
        } else if (c == '{') {
            const char *close = memchr(s->at + i, '}', s->n - i);
            if (!close) fail(r, "a single { in a format");
            const char *name = str_c(r, str_slice(r, format, i + 1, (uint32_t)(close - s->at)).s);
            build_var(&b, format_value(r, a, name, strlen(name), &next));
            i = (uint32_t)(close - s->at);
        } else {
            build_slice(&b, s, i, i + 1);
        }
    }
    return build_done(&b);
}
