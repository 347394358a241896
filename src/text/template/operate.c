/*
 * operate.c: operators on values, attributes, elements and slices.
 */
#include <math.h>
#include <string.h>

#include "text/template/call.h"
#include "text/template/parse.h"
#include "text/template/unicode.h"
#include "text/template/value.h"

/* ---- arithmetic ---- */

static int64_t var_integer(struct var v)
{
    return v.kind == VAR_BOOL ? v.truth : v.i;
}

static struct var overflow(struct render *r)
{
    fail(r, "an integer grows beyond 64 bits");
}

static struct var integer_power(struct render *r, int64_t base, int64_t exponent)
{
    if (exponent < 0) {
        if (!base) fail(r, "0 to a negative power");
        return var_float(pow((double)base, (double)exponent));
    }
    if (base == 0 || base == 1 || base == -1) return var_int(exponent % 2 == 0 && base ? 1 : exponent ? base : 1);
    int64_t x = 1;
    for (; exponent > 0; exponent--) /* overflows after at most 63 rounds */
        if (__builtin_mul_overflow(x, base, &x)) return overflow(r);
    return var_int(x);
}

/* Division rounds down and the remainder has the sign of b, as in Python. */
static struct var integer_arithmetic(struct render *r, char op, int64_t a, int64_t b)
{
    int64_t x;
    if ((op == '/' || op == 'd' || op == '%') && !b) fail(r, "division by zero");
    switch (op) {
    case '+': return __builtin_add_overflow(a, b, &x) ? overflow(r) : var_int(x);
    case '-': return __builtin_sub_overflow(a, b, &x) ? overflow(r) : var_int(x);
    case '*': return __builtin_mul_overflow(a, b, &x) ? overflow(r) : var_int(x);
    case '/': return var_float((double)a / (double)b);
    case 'p': return integer_power(r, a, b);
    default: break;
    }
    if (b == -1) return op == '%' ? var_int(0) : a == INT64_MIN ? overflow(r) : var_int(-a);
    const bool down = a % b && (a % b < 0) != (b < 0);
    return var_int(op == '%' ? a % b + (down ? b : 0) : a / b - down);
}

static struct var float_arithmetic(struct render *r, char op, double a, double b)
{
    if ((op == '/' || op == 'd' || op == '%') && b == 0) fail(r, "division by zero");
    switch (op) {
    case '+': return var_float(a + b);
    case '-': return var_float(a - b);
    case '*': return var_float(a * b);
    case '/': return var_float(a / b);
    case 'p':
        if ((a == 0 && b < 0) || (a < 0 && b != floor(b))) fail(r, "this power has no real value");
        return var_float(pow(a, b));
    default: break;
    }
    double rest = fmod(a, b);
    if (rest && (rest < 0) != (b < 0)) rest += b;
    else if (!rest) rest = copysign(0.0, b);
    if (op == '%') return var_float(rest);
    const double whole = (a - rest) / b, down = floor(whole);
    return var_float(whole ? (whole - down > 0.5 ? down + 1 : down) : copysign(0.0, a / b));
}

static struct var escaped(struct render *r, struct var v)
{
    struct build b = {.r = r};
    build_escaped(&b, v.s);
    struct var out = build_done(&b);
    out.markup = true;
    return out;
}

/* With a string that `safe` marked, the other one is escaped. */
static struct var string_sum(struct render *r, struct var a, struct var b)
{
    if (a.markup && !b.markup) b = escaped(r, b);
    if (b.markup && !a.markup) a = escaped(r, a);
    return str_join(r, a, b);
}

static struct var repeated(struct render *r, struct var v, struct var times)
{
    const int64_t n = var_integer(times);
    if (v.kind == VAR_STRING) {
        struct build b = {.r = r};
        if (v.s->n && n > RENDER_OUTPUT / v.s->n) fail(r, "the text grows beyond %d MiB", RENDER_OUTPUT >> 20);
        for (int64_t i = 0; i < n && v.s->n; i++, step(r)) build_str(&b, v.s);
        struct var out = build_done(&b);
        out.markup = v.markup;
        return out;
    }
    struct seq *q = seq_new(r, 0);
    for (int64_t i = 0; i < n && v.q->n; i++)
        for (uint32_t k = 0; k < v.q->n; k++) seq_push(r, q, v.q->at[k]);
    return var_seq(r, v.kind, q);
}

static struct var sum_of_lists(struct render *r, struct var a, struct var b)
{
    struct seq *q = seq_new(r, a.q->n + b.q->n);
    for (uint32_t i = 0; i < a.q->n; i++) seq_push(r, q, a.q->at[i]);
    for (uint32_t i = 0; i < b.q->n; i++) seq_push(r, q, b.q->at[i]);
    return var_seq(r, a.kind, q);
}

static bool is_repeatable(struct var v)
{
    return v.kind == VAR_STRING || v.kind == VAR_LIST || v.kind == VAR_TUPLE;
}

struct var var_arithmetic(struct render *r, char op, struct var a, struct var b)
{
    if (op == '%' && a.kind == VAR_STRING) return string_percent(r, a, b);
    if (a.kind == VAR_UNDEFINED || b.kind == VAR_UNDEFINED) {
        fail(r, "'%s' is undefined", a.kind == VAR_UNDEFINED ? a.what : b.what);
    }
    if (var_is_number(a) && var_is_number(b)) {
        if (a.kind == VAR_FLOAT || b.kind == VAR_FLOAT) return float_arithmetic(r, op, var_number(a), var_number(b));
        return integer_arithmetic(r, op, var_integer(a), var_integer(b));
    }
    if (op == '+' && a.kind == VAR_STRING && b.kind == VAR_STRING) return string_sum(r, a, b);
    if (op == '+' && a.kind == b.kind && (a.kind == VAR_LIST || a.kind == VAR_TUPLE)) return sum_of_lists(r, a, b);
    if (op == '*' && is_repeatable(a) && var_is_int(b)) return repeated(r, a, b);
    if (op == '*' && is_repeatable(b) && var_is_int(a)) return repeated(r, b, a);
    const char name[3] = {op == 'd' ? '/' : op == 'p' ? '*' : op, op == 'd' ? '/' : op == 'p' ? '*' : 0, 0};
    fail(r, "%s does not work for a %s and a %s", name, var_type(a), var_type(b));
}

struct var var_negated(struct render *r, struct var v)
{
    if (v.kind == VAR_FLOAT) return var_float(-v.f);
    if (var_is_int(v)) return integer_arithmetic(r, '-', 0, var_integer(v));
    fail(r, "a %s has no negative", var_type(v));
}

/* ---- attributes and elements ---- */

/* The attribute of Python's own types, or a missing value. */
static struct var own_attribute(struct render *r, struct var v, const char *name)
{
    if (v.kind == VAR_UNDEFINED) fail(r, "'%s' is undefined: it has no '%s'", v.what, name);
    if (v.kind == VAR_NAMESPACE) {
        const struct var *found = dict_get_name(v.d, name);
        if (found) return *found;
    } else if (v.kind == VAR_LOOP) {
        return loop_attribute(r, v.loop, name);
    } else if (v.kind == VAR_RANGE) {
        const int which = !strcmp(name, "start") ? 1 : !strcmp(name, "stop") ? 2 : !strcmp(name, "step") ? 3 : 0;
        if (which) return var_int(which == 1 ? v.range->begin : which == 2 ? v.range->end : v.range->step);
    } else if (type_has_method(v, name)) {
        if (method_changes(v, name)) return var_undefined(name); /* the sandbox hides it */
        struct var method = var_text(r, name, strlen(name));
        method.kind = VAR_METHOD;
        return method;
    }
    return (struct var){0};
}

/* Jinja looks for v.name before v["name"]: {"items": 1}.items is the method. */
struct var var_attribute(struct render *r, struct var v, const char *name)
{
    struct var own = own_attribute(r, v, name);
    if (is_given(own)) return own;
    const struct var *found = v.kind == VAR_DICT ? dict_get_name(v.d, name) : NULL;
    if (found) return *found;
    return var_undefined(name);
}

static struct var seq_item(struct render *r, struct var v, struct var key)
{
    int64_t n, i = var_integer(key);
    var_sized(v, &n);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return var_undefined("the element at this index");
    if (v.kind == VAR_RANGE) return var_int(span_at(v.range, i));
    if (v.kind != VAR_STRING) return v.q->at[i];
    int bytes;
    const uint32_t from = str_offset(v.s, (uint32_t)i);
    r->steps += v.s->n / 64;
    code_at(v.s->at + from, &bytes);
    return str_slice(r, v, from, from + (uint32_t)bytes);
}

struct var var_item(struct render *r, struct var v, struct var key)
{
    if (v.kind == VAR_UNDEFINED) fail(r, "'%s' is undefined: it has no elements", v.what);
    if (v.kind == VAR_DICT) {
        const bool hashable = key.kind != VAR_LIST && key.kind != VAR_DICT;
        const struct var *found = hashable ? dict_get(r, v.d, key) : NULL;
        if (found) return *found;
    } else if (var_is_int(key) && (is_repeatable(v) || v.kind == VAR_RANGE)) {
        return seq_item(r, v, key);
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
    if (!var_is_int(v)) fail(r, "the bounds of a slice are integers, not a %s", var_type(v));
    return var_integer(v);
}

/* Python's rule: bounds count from the end when negative, and are cut to the length. */
static struct span slice_span(struct render *r, int64_t n, struct var from, struct var to, struct var by)
{
    struct span s = {.step = slice_bound(r, by, 1)};
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

static struct var string_slice(struct render *r, struct var v, const struct span *s)
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
    if (!is_repeatable(v) && v.kind != VAR_RANGE) fail(r, "a %s has no slices", var_type(v));
    var_sized(v, &n);
    const struct span s = slice_span(r, n, from, to, by);
    if (v.kind == VAR_STRING) return string_slice(r, v, &s);
    if (v.kind == VAR_RANGE) {
        struct span *out = take(r, sizeof *out);
        const struct span *of = v.range;
        *out = (struct span){span_at(of, s.begin), span_at(of, s.end), (int64_t)((uint64_t)of->step * (uint64_t)s.step), s.n};
        return (struct var){.kind = VAR_RANGE, .range = out};
    }
    struct seq *q = seq_new(r, (uint32_t)s.n);
    for (int64_t i = 0; i < s.n; i++) seq_push(r, q, v.q->at[s.begin + s.step * i]);
    return var_seq(r, v.kind, q);
}
