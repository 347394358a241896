/*
 * objects.c: the values of a rendering: making, comparing and iterating over them, operators,
 * attributes, elements and slices.
 */
#include <math.h>
#include <stdarg.h>

#include "text/template/jinja.h"

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

struct var var_pair(struct render *r, struct var a, struct var b)
{
    struct seq *q = seq_new(r, 2);
    seq_push(r, q, a);
    seq_push(r, q, b);
    return var_seq(VAR_TUPLE, q);
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
    if (key.kind == VAR_LIST || key.kind == VAR_DICT || key.kind == VAR_ELEMENTS)
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
    if (strpbrk(v->text, ".eE")) return (struct var){.kind = VAR_FLOAT, .f = v->number};
    if (value_as_int(v, "", &i, &e)) fail(r, "the integer %.60s of the data is beyond 64 bits", v->text);
    return var_int(i);
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
        out = var_seq(VAR_LIST, q);
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
    static const char *const names[] =
        {"nothing", "undefined value", "None",      "bool", "int",   "float",    "str",   "list", "tuple",
         "dict",    "generator",       "namespace", "loop", "macro", "function", "method"};
    return names[v.kind];
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
    case VAR_TUPLE: return *n = v.q->n, true;
    case VAR_ELEMENTS: return *n = v.q->n, !v.q->once;
    case VAR_DICT: return *n = v.d->n, true;
    default: return false;
    }
}

bool var_iterable(struct var v)
{
    int64_t n;
    return v.kind == VAR_ELEMENTS || var_sized(v, &n);
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

/* Compares numbers: 1, 0, -1, or 2 for a NaN. Integers compare exactly with floats, as in
 * Python. */
static int number_compare(struct var a, struct var b)
{
    const long double x = a.kind == VAR_FLOAT ? (long double)a.f : (long double)var_integer(a);
    const long double y = b.kind == VAR_FLOAT ? (long double)b.f : (long double)var_integer(b);
    return x > y ? 1 : x < y ? -1 : x == y ? 0 : 2;
}

static bool same_kind_equal(struct render *r, struct var a, struct var b)
{
    switch (a.kind) {
    case VAR_UNDEFINED:
    case VAR_NONE: return true;
    case VAR_STRING:
        r->steps += a.s->n / 256;
        return a.s->n == b.s->n && !memcmp(a.s->at, b.s->at, a.s->n);
    case VAR_LIST:
    case VAR_TUPLE: return seq_equal(r, a.q, b.q);
    case VAR_ELEMENTS: fail(r, "generators and views of dicts cannot be compared: use | list");
    case VAR_DICT: return dict_equal(r, a.d, b.d);
    default: return a.s == b.s; /* identity */
    }
}

bool var_equal(struct render *r, struct var a, struct var b)
{
    if (is_number(a) && is_number(b)) return number_compare(a, b) == 0;
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
    if (is_number(a) && is_number(b)) return number_compare(a, b) == -1;
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
    if (v.kind == VAR_ELEMENTS && v.q->once) {
        if (v.q->used) fail(r, "the elements of a generator come once: use | list to use them again");
        v.q->used = true;
    }
    return (struct iter){v, 0};
}

static bool next_character(struct render *r, struct iter *it, struct var *out)
{
    const struct str *s = it->of.s;
    if (it->at >= s->n) return false;
    const int n = utf8_length(s->at[it->at]);
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
    case VAR_ELEMENTS:
        if (it->at >= it->of.q->n) return false;
        *out = it->of.q->at ? it->of.q->at[it->at] : var_int(it->of.q->begin + it->of.q->by * it->at);
        it->at++;
        return true;
    case VAR_DICT:
        if (it->at >= it->of.d->n) return false;
        *out = it->of.d->keys[it->at++];
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

/* ---- arithmetic ---- */

static struct var integer_arithmetic(struct render *r, char op, int64_t a, int64_t b)
{
    int64_t x = 0;
    if (op == '%' && !b) fail(r, "division by zero");
    if (op == '+'   ? __builtin_add_overflow(a, b, &x)
        : op == '-' ? __builtin_sub_overflow(a, b, &x)
        : op == '*' ? __builtin_mul_overflow(a, b, &x)
                    : false)
        fail(r, "an integer grows beyond 64 bits");
    if (op == '%' && b != -1) x = a % b + (a % b && (a % b < 0) != (b < 0) ? b : 0); /* the sign of b, as in Python */
    return var_int(x);
}

static struct var escaped(struct render *r, struct var v)
{
    struct build b = {.r = r};
    build_escaped(&b, v.s);
    struct var out = build_done(&b);
    out.markup = true;
    return out;
}

/* Joins two strings; beside one that `safe` marked, the other one is escaped. */
static struct var string_sum(struct render *r, struct var a, struct var b)
{
    if (a.markup && !b.markup) b = escaped(r, b);
    if (b.markup && !a.markup) a = escaped(r, a);
    return str_join(r, a, b);
}

static struct var repeated(struct render *r, struct var v, int64_t n)
{
    struct build b = {.r = r};
    if (v.s->n && n > RENDER_OUTPUT / v.s->n) fail(r, "the text grows beyond %d MiB", RENDER_OUTPUT >> 20);
    for (int64_t i = 0; i < n && v.s->n; i++, step(r)) build_str(&b, v.s);
    struct var out = build_done(&b);
    out.markup = v.markup;
    return out;
}

static struct var sum_of_lists(struct render *r, struct var a, struct var b)
{
    struct seq *q = seq_new(r, a.q->n + b.q->n);
    for (uint32_t i = 0; i < a.q->n; i++) seq_push(r, q, a.q->at[i]);
    for (uint32_t i = 0; i < b.q->n; i++) seq_push(r, q, b.q->at[i]);
    return var_seq(a.kind, q);
}

struct var var_arithmetic(struct render *r, char op, struct var a, struct var b)
{
    if (op == '%' && a.kind == VAR_STRING) fail(r, "a string %% values is not supported: use ~");
    if (a.kind == VAR_UNDEFINED || b.kind == VAR_UNDEFINED)
        fail(r, "'%s' is undefined", a.kind == VAR_UNDEFINED ? a.what : b.what);
    if (is_int(a) && is_int(b)) return integer_arithmetic(r, op, var_integer(a), var_integer(b));
    if (op == '+' && a.kind == VAR_STRING && b.kind == VAR_STRING) return string_sum(r, a, b);
    if (op == '+' && a.kind == b.kind && (a.kind == VAR_LIST || a.kind == VAR_TUPLE)) return sum_of_lists(r, a, b);
    if (op == '*' && a.kind == VAR_STRING && is_int(b)) return repeated(r, a, var_integer(b));
    if (op == '*' && b.kind == VAR_STRING && is_int(a)) return repeated(r, b, var_integer(a));
    fail(r, "%c of %s and %s is not supported", op, var_type(a), var_type(b));
}

/* ---- attributes and elements ---- */

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
/* Those that change a value. */
static const char list_changes[] = " append clear extend insert pop remove reverse sort ";
static const char dict_changes[] = " clear pop popitem setdefault update ";

bool text_has_word(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = strstr(words, word); at && n; at = strstr(at + 1, word))
        if (at[-1] == ' ' && at[n] == ' ') return true;
    return false;
}

bool type_has_method(struct var v, const char *name)
{
    switch (v.kind) {
    case VAR_STRING: return text_has_word(string_methods, name);
    case VAR_LIST: return text_has_word(list_methods, name);
    case VAR_TUPLE: return text_has_word(tuple_methods, name);
    case VAR_DICT: return text_has_word(dict_methods, name);
    default: return false;
    }
}

bool method_changes(struct var v, const char *name)
{
    return (v.kind == VAR_LIST && text_has_word(list_changes, name)) ||
           (v.kind == VAR_DICT && text_has_word(dict_changes, name));
}

/* Returns the attribute of Python's own types, or a missing value. */
static struct var own_attribute(struct render *r, struct var v, const char *name)
{
    if (v.kind == VAR_UNDEFINED) fail(r, "'%s' is undefined: it has no '%s'", v.what, name);
    if (v.kind == VAR_NAMESPACE) {
        const struct var *found = dict_get_name(v.d, name);
        if (found) return *found;
    } else if (type_has_method(v, name)) {
        if (method_changes(v, name)) return var_undefined(name); /* the sandbox hides it */
        struct var method = var_text(r, name, strlen(name));
        method.kind = VAR_METHOD;
        return method;
    }
    return (struct var){0};
}

/* Looks for v.name before v["name"], as Jinja does: {"items": 1}.items is the method. */
struct var var_attribute(struct render *r, struct var v, const char *name)
{
    struct var own = own_attribute(r, v, name);
    if (is_given(own)) return own;
    const struct var *found = v.kind == VAR_DICT ? dict_get_name(v.d, name) : NULL;
    if (found) return *found;
    return var_undefined(name);
}

static bool has_order(struct var v)
{
    return v.kind == VAR_STRING || v.kind == VAR_LIST || v.kind == VAR_TUPLE;
}

static struct var seq_item(struct render *r, struct var v, struct var key)
{
    int64_t n, i = var_integer(key);
    var_sized(v, &n);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return var_undefined("the element at this index");
    if (v.kind != VAR_STRING) return v.q->at[i];
    const uint32_t from = str_offset(v.s, (uint32_t)i);
    r->steps += v.s->n / 64;
    return str_slice(r, v, from, from + (uint32_t)utf8_length(v.s->at[from]));
}

struct var var_item(struct render *r, struct var v, struct var key)
{
    if (v.kind == VAR_UNDEFINED) fail(r, "'%s' is undefined: it has no elements", v.what);
    if (v.kind == VAR_DICT) {
        const bool hashable = key.kind != VAR_LIST && key.kind != VAR_DICT;
        const struct var *found = hashable ? dict_get(r, v.d, key) : NULL;
        if (found) return *found;
    } else if (is_int(key) && has_order(v)) {
        return seq_item(r, v, key);
    } else if (v.kind == VAR_ELEMENTS || v.kind == VAR_LOOP) {
        fail(r, "a %s has no elements by index: use | list", var_type(v));
    }
    if (key.kind != VAR_STRING) return var_undefined("the element");
    const char *name = str_c(r, key.s);
    struct var own = strlen(name) == key.s->n ? own_attribute(r, v, name) : (struct var){0};
    if (is_given(own)) return own;
    return var_undefined(name);
}

/* ---- slices ---- */

static int64_t slice_bound(struct render *r, struct var v, int64_t otherwise)
{
    if (v.kind == VAR_MISSING || v.kind == VAR_NONE) return otherwise;
    if (!is_int(v)) fail(r, "the bounds of a slice are integers, not a %s", var_type(v));
    return var_integer(v);
}

/* Where a slice begins, its step, and its number of elements. */
struct slice {
    int64_t begin, end, step, n;
};

/* Applies Python's rule: bounds count from the end when negative, and are cut to the length. */
static struct slice slice_of(struct render *r, int64_t n, struct var from, struct var to, struct var by)
{
    struct slice s = {.step = slice_bound(r, by, 1)};
    if (!s.step) fail(r, "the step of a slice is zero");
    if (s.step < -INT32_MAX) s.step = -INT32_MAX; /* longer than any sequence */
    if (s.step > INT32_MAX) s.step = INT32_MAX;
    const int64_t low = s.step < 0 ? -1 : 0, high = s.step < 0 ? n - 1 : n;
    int64_t bound[2] = {slice_bound(r, from, s.step < 0 ? INT64_MAX : INT64_MIN),
                        slice_bound(r, to, s.step < 0 ? INT64_MIN : INT64_MAX)};
    for (int i = 0; i < 2; i++) {
        if (bound[i] < 0) bound[i] = bound[i] < -n ? low : bound[i] + n;
        if (bound[i] > high) bound[i] = high;
        if (bound[i] < low) bound[i] = low;
    }
    s.begin = bound[0];
    s.end = bound[1];
    const int64_t distance = s.step < 0 ? s.begin - s.end : s.end - s.begin, width = s.step < 0 ? -s.step : s.step;
    s.n = distance > 0 ? (distance + width - 1) / width : 0;
    return s;
}

static struct var string_slice(struct render *r, struct var v, const struct slice *s)
{
    r->steps += v.s->n / 64;
    if (s->step == 1) {
        const uint32_t from = str_offset(v.s, (uint32_t)s->begin);
        return str_slice(r, v, from, s->n ? str_offset(v.s, (uint32_t)s->end) : from);
    }
    struct seq *characters = var_elements(r, v);
    struct build b = {.r = r};
    for (int64_t i = 0; i < s->n; i++) build_str(&b, characters->at[s->begin + s->step * i].s);
    struct var out = build_done(&b);
    out.markup = v.markup;
    return out;
}

struct var var_slice(struct render *r, struct var v, struct var from, struct var to, struct var by)
{
    int64_t n;
    if (v.kind == VAR_UNDEFINED) fail(r, "'%s' is undefined: it has no slices", v.what);
    if (!has_order(v)) fail(r, "a %s has no slices", var_type(v));
    var_sized(v, &n);
    const struct slice s = slice_of(r, n, from, to, by);
    if (v.kind == VAR_STRING) return string_slice(r, v, &s);
    struct seq *q = seq_new(r, (uint32_t)s.n);
    for (int64_t i = 0; i < s.n; i++) seq_push(r, q, v.q->at[s.begin + s.step * i]);
    return var_seq(v.kind, q);
}
