/*
 * eval.c: the values of names and expressions.
 */
#include <string.h>

#include "text/template/call.h"
#include "text/template/eval.h"

/* ---- scopes ---- */

struct scope *scope_new(struct render *r, struct scope *up)
{
    struct scope *s = take(r, sizeof *s);
    s->up = up;
    return s;
}

void scope_set(struct render *r, struct scope *s, const char *name, struct var v)
{
    r->steps += s->n / 8;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->names[i] == name) {
            s->values[i] = v;
            return;
        }
    if (s->n == s->cap) {
        const uint32_t cap = s->cap ? s->cap * 2 : 4;
        const char **names = take(r, cap * sizeof *names);
        struct var *values = take(r, cap * sizeof *values);
        if (s->n) memcpy(names, s->names, s->n * sizeof *names);
        if (s->n) memcpy(values, s->values, s->n * sizeof *values);
        s->names = names;
        s->values = values;
        s->cap = cap;
    }
    s->names[s->n] = name;
    s->values[s->n++] = v;
}

static struct var scope_get(struct render *r, const struct scope *s, const char *name)
{
    for (; s; s = s->up) {
        r->steps += s->n / 8;
        for (uint32_t i = 0; i < s->n; i++)
            if (s->names[i] == name) return s->values[i];
    }
    if (function_known(name)) return (struct var){.kind = VAR_FUNCTION, .what = name};
    return var_undefined(name);
}

void assign(struct render *r, struct scope *s, const struct node *target, struct var v)
{
    if (target->kind == NODE_NAME) {
        scope_set(r, s, target->name, v);
    } else if (target->kind == NODE_MEMBER) {
        struct var space = scope_get(r, s, target->a->name);
        if (space.kind != VAR_NAMESPACE) fail(r, "'%s' is no namespace: its members cannot be set", target->a->name);
        dict_put(r, space.d, var_text(r, target->name, strlen(target->name)), v);
    } else {
        enter(r);
        struct seq *parts = var_elements(r, v);
        if (parts->n != target->n) fail(r, "%u names for %u values", target->n, parts->n);
        for (uint32_t i = 0; i < parts->n; i++) assign(r, s, target->items[i], parts->at[i]);
        leave(r);
    }
}

/* ---- loops ---- */

/* The next element that passes the loop's condition. */
static bool loop_fetch(struct render *r, struct loop *l, struct var *out)
{
    if (l->ended) return false;
    for (struct var v; iter_next(r, &l->elements, &v);) {
        bool passes = !l->node->c || l->tested;
        if (!passes) {
            struct scope *s = scope_new(r, l->scope);
            assign(r, s, l->node->a, v);
            passes = var_truth(eval(r, s, l->node->c));
        }
        if (passes) return *out = v, true;
    }
    l->ended = true;
    return false;
}

static bool loop_peek(struct render *r, struct loop *l)
{
    return is_given(l->after) || loop_fetch(r, l, &l->after);
}

bool loop_next(struct render *r, struct loop *l)
{
    struct var v = l->after;
    if (!is_given(v) && !loop_fetch(r, l, &v)) return false;
    l->after = (struct var){0};
    l->before = l->current;
    l->current = v;
    l->index++;
    return true;
}

static int64_t loop_length(struct render *r, struct loop *l)
{
    if (l->length >= 0) return l->length;
    if (!l->node->c && var_sized(l->elements.of, &l->length)) return l->length;
    struct seq *rest = seq_new(r, 0); /* what comes is read ahead */
    for (struct var v; loop_fetch(r, l, &v);) seq_push(r, rest, v);
    l->length = rest->n + l->index + 1 + is_given(l->after);
    l->elements = (struct iter){var_seq(r, VAR_TUPLE, rest), 0};
    l->ended = false;
    l->tested = true;
    return l->length;
}

struct var loop_attribute(struct render *r, struct loop *l, const char *name)
{
    if (!strcmp(name, "index0")) return var_int(l->index);
    if (!strcmp(name, "index")) return var_int(l->index + 1);
    if (!strcmp(name, "first")) return var_bool(l->index == 0);
    if (!strcmp(name, "last")) return var_bool(!loop_peek(r, l));
    if (!strcmp(name, "previtem")) return l->index ? l->before : var_undefined("loop.previtem");
    if (!strcmp(name, "nextitem")) return loop_peek(r, l) ? l->after : var_undefined("loop.nextitem");
    if (!strcmp(name, "length")) return var_int(loop_length(r, l));
    if (!strcmp(name, "revindex")) return var_int(loop_length(r, l) - l->index);
    if (!strcmp(name, "revindex0")) return var_int(loop_length(r, l) - l->index - 1);
    if (!strcmp(name, "depth")) return var_int(1);
    if (!strcmp(name, "depth0")) return var_int(0);
    return (struct var){0};
}

static struct var loop_call(struct render *r, struct loop *l, const char *name, const struct args *a)
{
    if (!strcmp(name, "cycle") && a->n) return a->at[l->index % a->n];
    if (strcmp(name, "changed")) fail(r, "a loop has no method '%s'", name);
    struct seq *values = seq_new(r, a->n);
    for (uint32_t i = 0; i < a->n; i++) seq_push(r, values, a->at[i]);
    struct var now = var_seq(r, VAR_TUPLE, values);
    const bool changed = !is_given(l->changed) || !var_equal(r, now, l->changed);
    l->changed = now;
    return var_bool(changed);
}

/* ---- calls ---- */

static void eval_arguments(struct render *r, struct scope *s, const struct node *n, struct args *a)
{
    a->n = n->n;
    for (uint32_t i = 0; i < n->n; i++) {
        a->names[i] = n->names[i];
        a->at[i] = eval(r, s, n->items[i]);
    }
}

static const struct var *argument_named(const struct args *a, const char *name)
{
    for (uint32_t i = 0; i < a->n; i++)
        if (a->names[i] == name) return &a->at[i];
    return NULL;
}

static void bind_arguments(struct render *r, const struct macro *m, struct scope *s, const struct args *a)
{
    const struct node *n = m->node;
    uint32_t positional = 0, used = 0;
    while (positional < a->n && !a->names[positional]) positional++;
    if (positional > n->n) fail(r, "the macro '%s' takes %u arguments, not %u", n->name, n->n, positional);
    for (uint32_t i = 0; i < n->n; i++) {
        const struct var *named = i < positional ? NULL : argument_named(a, n->names[i]);
        used += named != NULL;
        if (i < positional || named) scope_set(r, s, n->names[i], named ? *named : a->at[i]);
        else scope_set(r, s, n->names[i], n->items[i] ? eval(r, s, n->items[i]) : var_undefined(n->names[i]));
    }
    if (positional + used < a->n) fail(r, "the macro '%s' has no such argument, or it is given twice", n->name);
}

struct var captured(struct render *r, struct scope *s, const struct body *body, enum flow *flow)
{
    struct build b = {.r = r}, *out = r->out;
    r->out = &b;
    *flow = exec_body(r, s, body);
    r->out = out;
    return build_done(&b);
}

static struct var macro_call(struct render *r, const struct macro *m, const struct args *a)
{
    struct scope *s = scope_new(r, m->scope);
    enum flow flow;
    bind_arguments(r, m, s, a);
    return captured(r, s, &m->node->bodies[0], &flow);
}

static struct var call_value(struct render *r, struct var f, const char *name, const struct args *a)
{
    if (f.kind == VAR_MACRO) return macro_call(r, f.macro, a);
    if (f.kind == VAR_FUNCTION) return function_call(r, f.what, a);
    if (f.kind == VAR_UNDEFINED) fail(r, "'%s' is undefined", name);
    fail(r, "'%s' is a %s and cannot be called", name, var_type(f));
}

static struct var eval_call(struct render *r, struct scope *s, const struct node *n)
{
    struct args a;
    const struct node *f = n->a;
    const struct var of = eval(r, s, f->kind == NODE_NAME ? f : f->a);
    eval_arguments(r, s, n, &a);
    r->line = n->line;
    if (f->kind == NODE_NAME) return call_value(r, of, f->name, &a);
    if (of.kind == VAR_LOOP) return loop_call(r, of.loop, f->name, &a);
    if (of.kind == VAR_UNDEFINED || of.kind == VAR_NAMESPACE || !type_has_method(of, f->name))
        return call_value(r, var_attribute(r, of, f->name), f->name, &a);
    if (method_changes(of, f->name)) fail(r, "'%s' would change a %s: a template may not", f->name, var_type(of));
    return method_call(r, of, f->name, &a);
}

static struct var eval_filter(struct render *r, struct scope *s, const struct node *n)
{
    struct args a;
    const struct var in = n->a ? eval(r, s, n->a) : r->body;
    eval_arguments(r, s, n, &a);
    r->line = n->line;
    return filter_call(r, n->filter, in, &a);
}

/* ---- expressions ---- */

static struct var eval_items(struct render *r, struct scope *s, const struct node *n)
{
    struct seq *q = seq_new(r, n->n);
    for (uint32_t i = 0; i < n->n; i++) seq_push(r, q, eval(r, s, n->items[i]));
    return var_seq(r, n->kind == NODE_LIST ? VAR_LIST : VAR_TUPLE, q);
}

static struct var eval_dict(struct render *r, struct scope *s, const struct node *n)
{
    struct dict *d = dict_new(r, n->n / 2);
    for (uint32_t i = 0; i < n->n; i += 2) {
        struct var key = eval(r, s, n->items[i]);
        dict_put(r, d, key, eval(r, s, n->items[i + 1]));
    }
    return (struct var){.kind = VAR_DICT, .d = d};
}

static struct var eval_slice(struct render *r, struct scope *s, const struct node *n)
{
    struct var of = eval(r, s, n->a), part[3];
    for (int i = 0; i < 3; i++) part[i] = n->items[i] ? eval(r, s, n->items[i]) : (struct var){0};
    return var_slice(r, of, part[0], part[1], part[2]);
}

static bool compare(struct render *r, const char *op, struct var a, struct var b)
{
    if (!strcmp(op, "==")) return var_equal(r, a, b);
    if (!strcmp(op, "!=")) return !var_equal(r, a, b);
    if (!strcmp(op, "in")) return var_in(r, a, b);
    if (!strcmp(op, "not in")) return !var_in(r, a, b);
    if (op[0] == '>') {
        const struct var swapped = a;
        a = b;
        b = swapped;
    }
    return var_less(r, a, b) || (op[1] == '=' && var_equal(r, a, b));
}

static struct var eval_compare(struct render *r, struct scope *s, const struct node *n)
{
    struct var a = eval(r, s, n->a);
    for (uint32_t i = 0; i < n->n; i++) {
        struct var b = eval(r, s, n->items[i]);
        if (!compare(r, n->names[i], a, b)) return var_bool(false);
        a = b;
    }
    return var_bool(true);
}

static struct var eval_concat(struct render *r, struct scope *s, const struct node *n)
{
    struct var first = var_string(r, eval(r, s, n->items[0])); /* often a text that grows: it is not copied */
    struct build rest = {.r = r};
    for (uint32_t i = 1; i < n->n; i++) build_var(&rest, eval(r, s, n->items[i]));
    struct var out = str_join(r, first, build_done(&rest));
    out.markup = false;
    return out;
}

static struct var eval_positive(struct render *r, struct var v)
{
    if (!var_is_number(v)) fail(r, "+ does not work for a %s", var_type(v));
    return v.kind == VAR_BOOL ? var_int(v.truth) : v;
}

static struct var eval_if_else(struct render *r, struct scope *s, const struct node *n)
{
    if (var_truth(eval(r, s, n->a))) return eval(r, s, n->b);
    return n->c ? eval(r, s, n->c) : var_undefined("the value without an else");
}

static struct var eval_kind(struct render *r, struct scope *s, const struct node *n)
{
    struct var a;
    switch (n->kind) {
    case NODE_CONST: return n->value;
    case NODE_NAME: return scope_get(r, s, n->name);
    case NODE_LIST:
    case NODE_TUPLE: return eval_items(r, s, n);
    case NODE_DICT: return eval_dict(r, s, n);
    case NODE_ATTRIBUTE: return var_attribute(r, eval(r, s, n->a), n->name);
    case NODE_ITEM: a = eval(r, s, n->a); return var_item(r, a, eval(r, s, n->b));
    case NODE_SLICE: return eval_slice(r, s, n);
    case NODE_CALL: return eval_call(r, s, n);
    case NODE_FILTER:
    case NODE_TEST: return eval_filter(r, s, n);
    case NODE_NOT: return var_bool(!var_truth(eval(r, s, n->a)));
    case NODE_AND: a = eval(r, s, n->a); return var_truth(a) ? eval(r, s, n->b) : a;
    case NODE_OR: a = eval(r, s, n->a); return var_truth(a) ? a : eval(r, s, n->b);
    case NODE_IF_ELSE: return eval_if_else(r, s, n);
    case NODE_COMPARE: return eval_compare(r, s, n);
    case NODE_BINARY: a = eval(r, s, n->a); return var_arithmetic(r, n->op, a, eval(r, s, n->b));
    case NODE_CONCAT: return eval_concat(r, s, n);
    case NODE_NEGATIVE: return var_negated(r, eval(r, s, n->a));
    case NODE_POSITIVE: return eval_positive(r, eval(r, s, n->a));
    default: CHECK(false, "node %d is no expression", n->kind);
    }
    return var_none();
}

struct var eval(struct render *r, struct scope *s, const struct node *n)
{
    enter(r);
    r->line = n->line;
    struct var v = eval_kind(r, s, n);
    leave(r);
    return v;
}
