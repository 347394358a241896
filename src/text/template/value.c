/*
 * value.c: making, comparing and iterating over the values of a rendering.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/template/parse.h"
#include "text/template/unicode.h"
#include "text/template/value.h"

void fail(struct render *r, const char *fmt, ...)
{
    char message[1200];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    error_set(r->e, PL_USAGE, "%s, line %u: %s", r->t->name, r->line, message);
    longjmp(r->stop, 1);
}

void step(struct render *r)
{
    if (++r->steps > RENDER_STEPS) fail(r, "the template does not end: stopped after %d steps", RENDER_STEPS);
}

void enter(struct render *r)
{
    step(r);
    if (++r->depth > RENDER_DEPTH)
        fail(r, "nested more than %d deep: does a macro call itself without an end?", RENDER_DEPTH);
}

void leave(struct render *r)
{
    r->depth--;
}

void *take(struct render *r, size_t bytes)
{
    r->bytes += bytes + 16;
    if (bytes > RENDER_MEMORY || r->bytes > RENDER_MEMORY)
        fail(r, "the template needs more than %d MiB", RENDER_MEMORY >> 20);
    return bump_alloc(&r->memory, bytes);
}

/* ---- making values ---- */

struct var var_text(struct render *r, const char *at, size_t n)
{
    struct str *s = take(r, sizeof *s);
    s->at = at;
    s->n = (uint32_t)n;
    return (struct var){.kind = VAR_STRING, .s = s};
}

struct var var_seq(struct render *r, enum var_kind kind, struct seq *q)
{
    (void)r;
    return (struct var){.kind = (uint8_t)kind, .q = q};
}

struct var var_iterator(struct render *r, struct seq *q)
{
    return var_seq(r, VAR_ITERATOR, q);
}

struct var var_pair(struct render *r, struct var a, struct var b)
{
    struct seq *q = seq_new(r, 2);
    seq_push(r, q, a);
    seq_push(r, q, b);
    return var_seq(r, VAR_TUPLE, q);
}

struct seq *seq_new(struct render *r, uint32_t room)
{
    struct seq *q = take(r, sizeof *q);
    q->cap = room;
    if (room) q->at = take(r, room * sizeof *q->at);
    return q;
}

void seq_push(struct render *r, struct seq *q, struct var v)
{
    step(r);
    if (q->n == q->cap) {
        const uint32_t cap = q->cap ? q->cap * 2 : 4;
        struct var *at = take(r, cap * sizeof *at);
        if (q->n) memcpy(at, q->at, q->n * sizeof *at);
        q->at = at;
        q->cap = cap;
    }
    q->at[q->n++] = v;
}

struct dict *dict_new(struct render *r, uint32_t room)
{
    struct dict *d = take(r, sizeof *d);
    d->cap = room;
    if (room) {
        d->keys = take(r, room * sizeof *d->keys);
        d->values = take(r, room * sizeof *d->values);
    }
    return d;
}

static void check_hashable(struct render *r, struct var key)
{
    if (key.kind == VAR_LIST || key.kind == VAR_DICT || key.kind == VAR_VIEW)
        fail(r, "a %s cannot be a key", var_type(key));
    if (key.kind != VAR_TUPLE) return;
    enter(r);
    for (uint32_t i = 0; i < key.q->n; i++) check_hashable(r, key.q->at[i]);
    leave(r);
}

static uint32_t dict_find(struct render *r, const struct dict *d, struct var key)
{
    uint32_t i = 0;
    if (key.kind == VAR_STRING) { /* the usual case, and quick */
        while (i < d->n && !(d->keys[i].kind == VAR_STRING && d->keys[i].s->n == key.s->n &&
                             !memcmp(d->keys[i].s->at, key.s->at, key.s->n)))
            i++;
        r->steps += i / 8;
        return i;
    }
    while (i < d->n && !var_equal(r, d->keys[i], key)) i++;
    r->steps += i / 2;
    return i;
}

const struct var *dict_get(struct render *r, const struct dict *d, struct var key)
{
    check_hashable(r, key);
    const uint32_t i = dict_find(r, d, key);
    return i < d->n ? &d->values[i] : NULL;
}

const struct var *dict_get_name(const struct dict *d, const char *name)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (d->keys[i].kind == VAR_STRING && str_is(d->keys[i].s, name)) return &d->values[i];
    return NULL;
}

void dict_put(struct render *r, struct dict *d, struct var key, struct var v)
{
    step(r);
    check_hashable(r, key);
    const uint32_t i = dict_find(r, d, key);
    if (i == d->n) {
        if (d->n == d->cap) {
            const struct dict old = *d;
            const uint32_t cap = old.cap ? old.cap * 2 : 4;
            d->keys = take(r, cap * sizeof *d->keys);
            d->values = take(r, cap * sizeof *d->values);
            if (old.n) memcpy(d->keys, old.keys, old.n * sizeof *old.keys);
            if (old.n) memcpy(d->values, old.values, old.n * sizeof *old.values);
            d->cap = cap;
        }
        d->keys[d->n++] = key;
    }
    d->values[i] = v;
}

static struct var string_from_value(struct render *r, const char *text, bool control)
{
    const size_t n = strlen(text);
    if (n > RENDER_OUTPUT) fail(r, "a string of the data has more than %d MiB", RENDER_OUTPUT >> 20);
    for (size_t i = 0; i < n;) {
        uint32_t code;
        const int k = utf8_decode(text + i, n - i, &code);
        if (!k) fail(r, "a string of the data is not UTF-8");
        i += (size_t)k;
    }
    struct var v = var_text(r, text, n);
    if (control || !n) return v;
    struct byte_range *whole = take(r, sizeof *whole);
    *whole = (struct byte_range){0, (uint32_t)n};
    struct str *s = (struct str *)v.s;
    s->data = whole;
    s->n_data = 1;
    return v;
}

static struct var number_from_value(struct render *r, const struct value *v)
{
    struct error e;
    int64_t i;
    if (strpbrk(v->text, ".eE")) return var_float(v->number);
    if (!value_as_int(v, "", &i, &e)) return var_int(i);
    struct var big = var_text(r, v->text, strlen(v->text));
    big.kind = VAR_BIG;
    return big;
}

struct var var_from_value(struct render *r, const struct value *v, bool control)
{
    enter(r);
    struct var out = var_none();
    if (v->kind == VALUE_BOOL) out = var_bool(v->truth);
    else if (v->kind == VALUE_NUMBER) out = number_from_value(r, v);
    else if (v->kind == VALUE_STRING) out = string_from_value(r, v->text, control);
    else if (v->kind == VALUE_LIST) {
        struct seq *q = seq_new(r, v->count);
        for (uint32_t i = 0; i < v->count; i++) seq_push(r, q, var_from_value(r, v->items[i], control));
        out = var_seq(r, VAR_LIST, q);
    } else if (v->kind == VALUE_MAP) {
        struct dict *d = dict_new(r, v->count);
        for (uint32_t i = 0; i < v->count; i++) { /* keys of a map are distinct */
            d->keys[i] = string_from_value(r, v->items[i]->key, control);
            d->values[i] = var_from_value(r, v->items[i], control);
            d->n = i + 1;
        }
        out = (struct var){.kind = VAR_DICT, .d = d};
    }
    leave(r);
    return out;
}

/* ---- meaning ---- */

const char *var_type(struct var v)
{
    static const char *const names[] = {[VAR_MISSING] = "nothing",
                                        [VAR_UNDEFINED] = "undefined value",
                                        [VAR_NONE] = "None",
                                        [VAR_BOOL] = "bool",
                                        [VAR_INT] = "int",
                                        [VAR_BIG] = "int",
                                        [VAR_FLOAT] = "float",
                                        [VAR_STRING] = "str",
                                        [VAR_LIST] = "list",
                                        [VAR_TUPLE] = "tuple",
                                        [VAR_DICT] = "dict",
                                        [VAR_VIEW] = "view of a dict",
                                        [VAR_ITERATOR] = "generator",
                                        [VAR_RANGE] = "range",
                                        [VAR_NAMESPACE] = "namespace",
                                        [VAR_LOOP] = "loop",
                                        [VAR_MACRO] = "macro",
                                        [VAR_FUNCTION] = "function",
                                        [VAR_METHOD] = "method"};
    return names[v.kind];
}

bool var_is_int(struct var v)
{
    return v.kind == VAR_INT || v.kind == VAR_BOOL;
}

bool var_is_number(struct var v)
{
    return var_is_int(v) || v.kind == VAR_FLOAT;
}

double var_number(struct var v)
{
    return v.kind == VAR_FLOAT ? v.f : v.kind == VAR_BOOL ? v.truth : (double)v.i;
}

bool var_truth(struct var v)
{
    int64_t n;
    switch (v.kind) {
    case VAR_MISSING:
    case VAR_UNDEFINED:
    case VAR_NONE: return false;
    case VAR_BOOL: return v.truth;
    case VAR_INT: return v.i != 0;
    case VAR_FLOAT: return v.f != 0;
    case VAR_STRING: return v.s->n > 0;
    default: return var_sized(v, &n) ? n > 0 : true;
    }
}

bool var_sized(struct var v, int64_t *n)
{
    *n = 0;
    switch (v.kind) {
    case VAR_UNDEFINED: return true;
    case VAR_STRING: return *n = str_length(v.s), true;
    case VAR_LIST:
    case VAR_TUPLE:
    case VAR_VIEW: return *n = v.q->n, true;
    case VAR_DICT: return *n = v.d->n, true;
    case VAR_RANGE: return *n = v.range->n, true;
    default: return false;
    }
}

bool var_iterable(struct var v)
{
    int64_t n;
    return v.kind == VAR_ITERATOR || var_sized(v, &n);
}

static bool seq_equal(struct render *r, const struct seq *a, const struct seq *b)
{
    if (a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (!var_equal(r, a->at[i], b->at[i])) return false;
    return true;
}

static bool dict_equal(struct render *r, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++) {
        const struct var *other = dict_get(r, b, a->keys[i]);
        if (!other || !var_equal(r, a->values[i], *other)) return false;
    }
    return true;
}

static bool range_equal(const struct span *a, const struct span *b)
{
    return a->n == b->n && (!a->n || (a->begin == b->begin && (a->n == 1 || a->step == b->step)));
}

/* Integers compare exactly with floats, as in Python. */
static int number_compare(struct var a, struct var b)
{
    if (a.kind != VAR_FLOAT && b.kind != VAR_FLOAT) {
        const int64_t x = a.kind == VAR_BOOL ? a.truth : a.i, y = b.kind == VAR_BOOL ? b.truth : b.i;
        return (x > y) - (x < y);
    }
    const long double x = a.kind == VAR_FLOAT ? (long double)a.f : (long double)(a.kind == VAR_BOOL ? a.truth : a.i);
    const long double y = b.kind == VAR_FLOAT ? (long double)b.f : (long double)(b.kind == VAR_BOOL ? b.truth : b.i);
    return x > y ? 1 : x < y ? -1 : x == y ? 0 : 2; /* 2: a NaN */
}

static bool same_kind_equal(struct render *r, struct var a, struct var b)
{
    switch (a.kind) {
    case VAR_UNDEFINED:
    case VAR_NONE: return true;
    case VAR_BIG:
    case VAR_STRING:
        r->steps += a.s->n / 256;
        return a.s->n == b.s->n && !memcmp(a.s->at, b.s->at, a.s->n);
    case VAR_LIST:
    case VAR_TUPLE: return seq_equal(r, a.q, b.q);
    case VAR_VIEW:
        if (a.q->name[0] == 'v' || strcmp(a.q->name, b.q->name)) return a.q == b.q;
        fail(r, "views of dicts cannot be compared");
    case VAR_DICT: return dict_equal(r, a.d, b.d);
    case VAR_RANGE: return range_equal(a.range, b.range);
    default: return a.s == b.s; /* identity */
    }
}

bool var_equal(struct render *r, struct var a, struct var b)
{
    if (var_is_number(a) && var_is_number(b)) return number_compare(a, b) == 0;
    if (a.kind != b.kind) return false;
    enter(r);
    const bool equal = same_kind_equal(r, a, b);
    leave(r);
    return equal;
}

static int str_compare(const struct str *a, const struct str *b)
{
    const uint32_t n = a->n < b->n ? a->n : b->n;
    const int c = n ? memcmp(a->at, b->at, n) : 0; /* UTF-8 sorts like its code points */
    return c ? c : (a->n > b->n) - (a->n < b->n);
}

bool var_less(struct render *r, struct var a, struct var b)
{
    if (var_is_number(a) && var_is_number(b)) return number_compare(a, b) == -1;
    if (a.kind == VAR_STRING && b.kind == VAR_STRING) {
        r->steps += a.s->n / 256;
        return str_compare(a.s, b.s) < 0;
    }
    if (a.kind != b.kind || (a.kind != VAR_LIST && a.kind != VAR_TUPLE))
        fail(r, "a %s and a %s have no order", var_type(a), var_type(b));
    enter(r);
    uint32_t i = 0;
    while (i < a.q->n && i < b.q->n && var_equal(r, a.q->at[i], b.q->at[i])) i++;
    const bool less = i < a.q->n && i < b.q->n ? var_less(r, a.q->at[i], b.q->at[i]) : a.q->n < b.q->n;
    leave(r);
    return less;
}

bool var_in(struct render *r, struct var x, struct var container)
{
    if (container.kind == VAR_STRING) {
        if (x.kind != VAR_STRING) fail(r, "'in' a string needs a string, not a %s", var_type(x));
        r->steps += container.s->n / 256;
        return !x.s->n || memmem(container.s->at, container.s->n, x.s->at, x.s->n);
    }
    if (container.kind == VAR_DICT) return dict_get(r, container.d, x) != NULL;
    struct iter it = iter_of(r, container);
    for (struct var y; iter_next(r, &it, &y);)
        if (var_equal(r, x, y)) return true;
    return false;
}

/* ---- iteration ---- */

struct iter iter_of(struct render *r, struct var v)
{
    if (!var_iterable(v)) fail(r, "a %s cannot be iterated over", var_type(v));
    return (struct iter){v, 0};
}

static bool next_character(struct render *r, struct iter *it, struct var *out)
{
    const struct str *s = it->of.s;
    int n;
    if (it->at >= s->n) return false;
    code_at(s->at + it->at, &n);
    *out = str_slice(r, it->of, (uint32_t)it->at, (uint32_t)(it->at + n));
    out->markup = false;
    it->at += n;
    return true;
}

bool iter_next(struct render *r, struct iter *it, struct var *out)
{
    step(r);
    switch (it->of.kind) {
    case VAR_STRING: return next_character(r, it, out);
    case VAR_LIST:
    case VAR_TUPLE:
    case VAR_VIEW:
        if (it->at >= it->of.q->n) return false;
        *out = it->of.q->at[it->at++];
        return true;
    case VAR_ITERATOR:
        if (it->of.q->lazy) return lazy_next(r, it->of.q->lazy, out);
        if (it->of.q->next >= it->of.q->n) return false;
        *out = it->of.q->at[it->of.q->next++];
        return true;
    case VAR_DICT:
        if (it->at >= it->of.d->n) return false;
        *out = it->of.d->keys[it->at++];
        return true;
    case VAR_RANGE:
        if (it->at >= it->of.range->n) return false;
        *out = var_int(span_at(it->of.range, it->at++));
        return true;
    default: return false; /* undefined: empty */
    }
}

struct seq *var_elements(struct render *r, struct var v)
{
    struct seq *q = seq_new(r, 0);
    struct iter it = iter_of(r, v);
    for (struct var x; iter_next(r, &it, &x);) seq_push(r, q, x);
    return q;
}
