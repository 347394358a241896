/*
 * sequences.c: the filters of lists and dicts.
 */
#include <stdlib.h>
#include <string.h>

#include "text/template/call.h"

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
    for (uint32_t i = 0; in.kind == VAR_DICT && i < in.d->n; i++)
        seq_push(r, q, var_pair(r, in.d->keys[i], in.d->values[i]));
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
                const bool right =
                    k < high &&
                    (i == middle || (reverse ? var_less(r, at[1][i], at[1][k]) : var_less(r, at[1][k], at[1][i])));
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
    for (uint32_t i = 0; i < values->n; i++)
        seq_push(r, keys, sort_keys(r, values->at[i], a->at[2], var_truth(a->at[1])));
    sort_by(r, values, keys, var_truth(a->at[0]));
    return var_seq(r, VAR_LIST, values);
}

static struct var filter_dictsort(struct render *r, struct var in, const struct args *a)
{
    if (in.kind != VAR_DICT) fail(r, "'dictsort' takes a dict, not a %s", var_type(in));
    const bool by_value = is_given(a->at[1]) && a->at[1].kind == VAR_STRING && str_is(a->at[1].s, "value");
    if (is_given(a->at[1]) && !by_value && !(a->at[1].kind == VAR_STRING && str_is(a->at[1].s, "key")))
        fail(r, "'dictsort' sorts by key or value");
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

/* map, select, reject, selectattr, rejectattr: Python computes their elements when they are asked
 * for, so that an error in one that nobody asks for is none. */
struct lazy {
    struct iter from;
    const struct filter *call;  /* the filter, or the test; NULL: the element itself */
    struct args rest;           /* its arguments */
    struct var path, otherwise; /* map: an attribute and what replaces an undefined one. selectattr: the attribute */
    bool selects, keep;         /* a test decides which elements come, rather than changing them */
};

bool lazy_next(struct render *r, struct lazy *l, struct var *out)
{
    for (struct var x; iter_next(r, &l->from, &x);) {
        enter(r);
        struct var v = dotted(r, x, l->path);
        if (l->call) v = filter_call(r, l->call, v, &l->rest);
        leave(r);
        if (l->selects && var_truth(v) != l->keep) continue;
        *out = l->selects ? x : v.kind == VAR_UNDEFINED && is_given(l->otherwise) && l->otherwise.kind != VAR_NONE ? l->otherwise : v;
        return true;
    }
    return false;
}

/* Nothing comes from what is false, not even an error that it is no list. */
static struct var lazy_iterator(struct render *r, struct var in, struct lazy *l)
{
    struct seq *q = seq_new(r, 0);
    if (!var_truth(in)) return var_iterator(r, q);
    l->from = iter_of(r, in);
    q->lazy = l;
    return var_iterator(r, q);
}

static struct var filter_map(struct render *r, struct var in, const struct args *a)
{
    struct lazy *l = take(r, sizeof *l);
    for (uint32_t i = 0; i < a->n && a->names[0]; i++) {
        if (!strcmp(a->names[i], "attribute")) l->path = a->at[i];
        else if (!strcmp(a->names[i], "default")) l->otherwise = a->at[i];
        else fail(r, "'map' has no argument '%s'", a->names[i]);
    }
    if (!a->n || (a->names[0] && !is_given(l->path))) fail(r, "'map' needs a filter or an attribute");
    if (!a->names[0]) {
        l->call = named(r, a->at[0], filter_find);
        l->rest = rest_of(a, 1);
    }
    return lazy_iterator(r, in, l);
}

static struct var selected(struct render *r, struct var in, const struct args *a, bool keep, bool attribute)
{
    struct lazy *l = take(r, sizeof *l);
    if (attribute && (!a->n || a->names[0])) fail(r, "'%s' needs an attribute", keep ? "selectattr" : "rejectattr");
    l->selects = true;
    l->keep = keep;
    if (attribute) l->path = a->at[0];
    if (a->n > attribute) {
        l->call = named(r, a->at[attribute], test_find);
        l->rest = rest_of(a, attribute + 1u);
    }
    return lazy_iterator(r, in, l);
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
    {"count", filter_length, ""},
    {"d", filter_default, "default_value,boolean"},
    {"default", filter_default, "default_value,boolean"},
    {"dictsort", filter_dictsort, "case_sensitive,by,reverse"},
    {"first", filter_first, ""},
    {"items", filter_items, ""},
    {"join", filter_join, "d,attribute"},
    {"last", filter_last, ""},
    {"length", filter_length, ""},
    {"list", filter_list, ""},
    {"map", filter_map, "*", .names_filter = true},
    {"max", filter_max, "case_sensitive,attribute"},
    {"min", filter_min, "case_sensitive,attribute"},
    {"reject", filter_reject, "*", .names_test = true},
    {"rejectattr", filter_rejectattr, "*", 1, .names_test = true},
    {"reverse", filter_reverse, ""},
    {"select", filter_select, "*", .names_test = true},
    {"selectattr", filter_selectattr, "*", 1, .names_test = true},
    {"sort", filter_sort, "reverse,case_sensitive,attribute"},
    {"sum", filter_sum, "attribute,start"},
    {"unique", filter_unique, "case_sensitive,attribute"},
};

const struct filter *sequence_filter_find(const char *name)
{
    for (size_t i = 0; i < COUNT(filters); i++)
        if (!strcmp(filters[i].name, name)) return &filters[i];
    return NULL;
}
