/*
 * methods.c: methods of strings, lists and dicts, and the functions of a template.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/template/call.h"
#include "text/template/unicode.h"

/* Every method of Python's types: {"items": 1}.items is one of these, not the key. */
static const char string_methods[] = " capitalize casefold center count encode endswith expandtabs find format "
                                     "format_map index isalnum isalpha isascii isdecimal isdigit"
                                     " isidentifier islower isnumeric isprintable isspace istitle isupper join ljust "
                                     "lower lstrip maketrans partition removeprefix"
                                     " removesuffix replace rfind rindex rjust rpartition rsplit rstrip split "
                                     "splitlines startswith strip swapcase title translate upper zfill ";
static const char list_methods[] = " append clear copy count extend index insert pop remove reverse sort ";
static const char tuple_methods[] = " count index ";
static const char dict_methods[] = " clear copy fromkeys get items keys pop popitem setdefault update values ";
static const char list_changes[] = " append clear extend insert pop remove reverse sort ";
static const char dict_changes[] = " clear pop popitem setdefault update ";
/* Those that can be called here. */
static const char callable[] =
    " capitalize center count endswith find format index isspace join ljust lower lstrip partition removeprefix "
    "removesuffix replace rfind"
    " rindex rjust rpartition rsplit rstrip split splitlines startswith strip title upper zfill copy get items keys "
    "values"
    " append clear extend insert pop remove reverse sort popitem setdefault update cycle changed ";

static bool has_word(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = strstr(words, word); at && n; at = strstr(at + 1, word))
        if (at[-1] == ' ' && at[n] == ' ') return true;
    return false;
}

bool method_known(const char *name)
{
    return has_word(callable, name);
}

bool type_has_method(struct var v, const char *name)
{
    switch (v.kind) {
    case VAR_STRING: return has_word(string_methods, name);
    case VAR_LIST: return has_word(list_methods, name);
    case VAR_TUPLE:
    case VAR_RANGE: return has_word(tuple_methods, name);
    case VAR_DICT: return has_word(dict_methods, name);
    default: return false;
    }
}

bool method_changes(struct var v, const char *name)
{
    return (v.kind == VAR_LIST && has_word(list_changes, name)) || (v.kind == VAR_DICT && has_word(dict_changes, name));
}

/* ---- dicts and lists ---- */

static struct var dict_view(struct render *r, const struct dict *d, const char *name)
{
    struct seq *q = seq_new(r, d->n);
    for (uint32_t i = 0; i < d->n; i++)
        seq_push(r, q,
                 name[0] == 'i'   ? var_pair(r, d->keys[i], d->values[i])
                 : name[0] == 'k' ? d->keys[i]
                                  : d->values[i]);
    q->name = name;
    return var_seq(r, VAR_VIEW, q);
}

static void check_count(struct render *r, const char *name, const struct args *a, uint32_t least, uint32_t most)
{
    if (a->n < least || a->n > most) fail(r, "'%s' takes %u to %u arguments, not %u", name, least, most, a->n);
    for (uint32_t i = 0; i < a->n; i++)
        if (a->names[i]) fail(r, "'%s' takes no argument '%s'", name, a->names[i]);
}

static struct var dict_method(struct render *r, struct var v, const char *name, const struct args *a)
{
    if (!strcmp(name, "get")) {
        check_count(r, name, a, 1, 2);
        const struct var *found = dict_get(r, v.d, a->at[0]);
        return found ? *found : a->n > 1 ? a->at[1] : var_none();
    }
    check_count(r, name, a, 0, 0);
    if (!strcmp(name, "items")) return dict_view(r, v.d, "items");
    if (!strcmp(name, "keys")) return dict_view(r, v.d, "keys");
    if (!strcmp(name, "values")) return dict_view(r, v.d, "values");
    if (!strcmp(name, "copy")) return v; /* nothing changes it */
    fail(r, "a dict has no method '%s' here", name);
}

static struct var list_method(struct render *r, struct var v, const char *name, const struct args *a)
{
    if (!strcmp(name, "copy")) {
        check_count(r, name, a, 0, 0);
        return v;
    }
    check_count(r, name, a, 1, 1);
    struct iter it = iter_of(r, v);
    int64_t n = 0, i = 0;
    for (struct var x; iter_next(r, &it, &x); i++) {
        if (!var_equal(r, x, a->at[0])) continue;
        if (!strcmp(name, "index")) return var_int(i);
        n++;
    }
    if (!strcmp(name, "index")) fail(r, "the value is not in the %s", var_type(v));
    return var_int(n);
}

struct var method_call(struct render *r, struct var v, const char *name, const struct args *a)
{
    if (v.kind == VAR_STRING) return string_method(r, v, name, a);
    return v.kind == VAR_DICT ? dict_method(r, v, name, a) : list_method(r, v, name, a);
}

/* ---- functions ---- */

static int64_t integer_argument(struct render *r, struct var v)
{
    if (!var_is_int(v)) fail(r, "range takes integers, not a %s", var_type(v));
    return v.kind == VAR_BOOL ? v.truth : v.i;
}

static struct var call_range(struct render *r, const struct args *a)
{
    check_count(r, "range", a, 1, 3);
    struct span *s = take(r, sizeof *s);
    s->begin = a->n > 1 ? integer_argument(r, a->at[0]) : 0;
    s->end = integer_argument(r, a->at[a->n > 1]);
    s->step = a->n > 2 ? integer_argument(r, a->at[2]) : 1;
    if (!s->step) fail(r, "the step of range is zero");
    const __int128 width = s->step < 0 ? -(__int128)s->step : s->step;
    const __int128 distance = s->step < 0 ? (__int128)s->begin - s->end : (__int128)s->end - s->begin;
    const __int128 n = distance > 0 ? (distance + width - 1) / width : 0;
    if (n > RENDER_RANGE) fail(r, "a range has more than %d elements", RENDER_RANGE);
    s->n = (int64_t)n;
    return (struct var){.kind = VAR_RANGE, .range = s};
}

static void put_pairs(struct render *r, struct dict *d, struct var from)
{
    if (from.kind == VAR_DICT) {
        for (uint32_t i = 0; i < from.d->n; i++) dict_put(r, d, from.d->keys[i], from.d->values[i]);
        return;
    }
    struct iter it = iter_of(r, from);
    for (struct var x; iter_next(r, &it, &x);) {
        struct seq *pair = var_elements(r, x);
        if (pair->n != 2) fail(r, "a dict is made of pairs");
        dict_put(r, d, pair->at[0], pair->at[1]);
    }
}

/* dict(...) and namespace(...): one dict or list of pairs, and members by name. */
static struct var call_dict(struct render *r, const char *name, const struct args *a)
{
    struct dict *d = dict_new(r, a->n);
    const bool space = name[0] == 'n';
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->names[i]) dict_put(r, d, var_text(r, a->names[i], strlen(a->names[i])), a->at[i]);
        else if (i) fail(r, "'%s' takes one argument without a name", name);
        else put_pairs(r, d, a->at[i]);
    }
    for (uint32_t i = 0; space && i < d->n; i++)
        if (d->keys[i].kind == VAR_STRING && d->keys[i].s->n && d->keys[i].s->at[0] == '_')
            fail(r, "a namespace has no members that begin with _");
    return (struct var){.kind = space ? VAR_NAMESPACE : VAR_DICT, .d = d};
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
        day = (struct tm){.tm_year = year - 1900,
                          .tm_mon = month - 1,
                          .tm_mday = date,
                          .tm_hour = hour,
                          .tm_min = minute,
                          .tm_sec = second,
                          .tm_isdst = -1};
        mktime(&day); /* the day of the week */
    }
    char *format = str_c(r, a->at[0].s), *out = take(r, 4096);
    const size_t n = format[0] ? strftime(out, 4096, format, &day) : 0;
    return var_text(r, out, n);
}

bool function_known(const char *name)
{
    return has_word(" range namespace dict raise_exception strftime_now ", name);
}

struct var function_call(struct render *r, const char *name, const struct args *a)
{
    if (!strcmp(name, "range")) return call_range(r, a);
    if (!strcmp(name, "raise_exception")) return call_raise(r, a);
    if (!strcmp(name, "strftime_now")) return call_strftime(r, a);
    return call_dict(r, name, a);
}
