/*
 * render.c: walks the tree of a template: scopes, loops, expressions, statements.
 *
 * Names are looked up in scopes, innermost first. A loop's body, a macro's body and a block have a
 * scope of their own, and what is set there ends with it; `if` has none. A macro sees the scopes
 * around its definition, not those of its caller.
 *
 *   variables <- the template <- for <- block
 *                     ^--------- macro
 */
#include "text/template/jinja.h"

struct name_scope {
    struct name_scope *up;
    const char **names; /* interned */
    struct var *values;
    uint32_t n, cap;
    bool kept; /* a macro refers to it */
};

struct macro {
    const struct syntax *node;
    struct name_scope *scope;
};

struct for_loop {
    const struct syntax *node;
    struct name_scope *scope; /* around the loop */
    struct iter elements;
    struct var after; /* the next element, where somebody asked for it; else missing */
    struct var current, before;
    int64_t index; /* from 0 */
    bool ended;
};

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

static struct var eval(struct render *r, struct name_scope *s, const struct syntax *n);
static enum flow exec_body(struct render *r, struct name_scope *s, const struct body *body);

/* ---- scopes ---- */

static struct name_scope *scope_new(struct render *r, struct name_scope *up)
{
    struct name_scope *s = take(r, sizeof *s);
    s->up = up;
    return s;
}

static void scope_set(struct render *r, struct name_scope *s, const char *name, struct var v)
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

static struct var scope_get(struct render *r, const struct name_scope *s, const char *name)
{
    for (; s; s = s->up) {
        r->steps += s->n / 8;
        for (uint32_t i = 0; i < s->n; i++)
            if (s->names[i] == name) return s->values[i];
    }
    if (function_known(name)) return (struct var){.kind = VAR_FUNCTION, .what = name};
    return var_undefined(name);
}

/* Gives a name, the names of a loop's target or a namespace's member a value. */
static void assign(struct render *r, struct name_scope *s, const struct syntax *target, struct var v)
{
    if (target->kind == NODE_NAME) {
        scope_set(r, s, target->name, v);
    } else if (target->kind == NODE_ATTRIBUTE) {
        struct var space = scope_get(r, s, target->a->name);
        if (space.kind != VAR_NAMESPACE) fail(r, "'%s' is no namespace: its members cannot be set", target->a->name);
        dict_put(r, space.d, var_text(r, target->name, strlen(target->name)), v);
    } else {
        struct seq *parts = var_elements(r, v);
        if (parts->n != target->n) fail(r, "%u names for %u values", target->n, parts->n);
        for (uint32_t i = 0; i < parts->n; i++) scope_set(r, s, target->items[i]->name, parts->at[i]);
    }
}

/* ---- loops ---- */

/* Gets the next element that passes the loop's condition. */
static bool loop_fetch(struct render *r, struct for_loop *l, struct var *out)
{
    if (l->ended) return false;
    for (struct var v; iter_next(r, &l->elements, &v);) {
        bool passes = !l->node->c;
        if (!passes) {
            struct name_scope *s = scope_new(r, l->scope);
            assign(r, s, l->node->a, v);
            passes = var_truth(eval(r, s, l->node->c));
        }
        if (passes) return *out = v, true;
    }
    l->ended = true;
    return false;
}

static bool loop_peek(struct render *r, struct for_loop *l)
{
    return is_given(l->after) || loop_fetch(r, l, &l->after);
}

/* Moves to the loop's next element, loop->current; false: there is none. */
static bool loop_next(struct render *r, struct for_loop *l)
{
    struct var v = l->after;
    if (!is_given(v) && !loop_fetch(r, l, &v)) return false;
    l->after = (struct var){0};
    l->before = l->current;
    l->current = v;
    l->index++;
    return true;
}

static struct var loop_attribute(struct render *r, struct for_loop *l, const char *name)
{
    if (!strcmp(name, "index0")) return var_int(l->index);
    if (!strcmp(name, "index")) return var_int(l->index + 1);
    if (!strcmp(name, "first")) return var_bool(l->index == 0);
    if (!strcmp(name, "last")) return var_bool(!loop_peek(r, l));
    if (!strcmp(name, "previtem")) return l->index ? l->before : var_undefined("loop.previtem");
    if (!strcmp(name, "nextitem")) return loop_peek(r, l) ? l->after : var_undefined("loop.nextitem");
    fail(r, "loop.%s is not supported", name);
}

static struct var attribute(struct render *r, struct var v, const char *name)
{
    return v.kind == VAR_LOOP ? loop_attribute(r, v.loop, name) : var_attribute(r, v, name);
}

/* ---- calls ---- */

static void eval_arguments(struct render *r, struct name_scope *s, const struct syntax *n, struct args *a)
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

static void bind_arguments(struct render *r, const struct macro *m, struct name_scope *s, const struct args *a)
{
    const struct syntax *n = m->node;
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

/* Returns the text that a body prints. *flow: how it ended. */
static struct var captured(struct render *r, struct name_scope *s, const struct body *body, enum flow *flow)
{
    struct build b = {.r = r}, *out = r->out;
    r->out = &b;
    *flow = exec_body(r, s, body);
    r->out = out;
    return build_done(&b);
}

static struct var macro_call(struct render *r, const struct macro *m, const struct args *a)
{
    struct name_scope *s = scope_new(r, m->scope);
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

static struct var eval_call(struct render *r, struct name_scope *s, const struct syntax *n)
{
    struct args a;
    const struct syntax *f = n->a;
    const struct var of = eval(r, s, f->kind == NODE_NAME ? f : f->a);
    eval_arguments(r, s, n, &a);
    r->line = n->line;
    if (f->kind == NODE_NAME) return call_value(r, of, f->name, &a);
    if (of.kind == VAR_UNDEFINED || of.kind == VAR_NAMESPACE || !type_has_method(of, f->name))
        return call_value(r, attribute(r, of, f->name), f->name, &a);
    if (method_changes(of, f->name)) fail(r, "'%s' would change a %s: a template may not", f->name, var_type(of));
    return method_call(r, of, f->name, &a);
}

static struct var eval_filter(struct render *r, struct name_scope *s, const struct syntax *n)
{
    struct args a;
    const struct var in = n->a ? eval(r, s, n->a) : r->body;
    eval_arguments(r, s, n, &a);
    r->line = n->line;
    return filter_call(r, n->filter, in, &a);
}

/* ---- expressions ---- */

static struct var eval_items(struct render *r, struct name_scope *s, const struct syntax *n)
{
    struct seq *q = seq_new(r, n->n);
    for (uint32_t i = 0; i < n->n; i++) seq_push(r, q, eval(r, s, n->items[i]));
    return var_seq(n->kind == NODE_LIST ? VAR_LIST : VAR_TUPLE, q);
}

static struct var eval_dict(struct render *r, struct name_scope *s, const struct syntax *n)
{
    struct dict *d = dict_new(r, n->n / 2);
    for (uint32_t i = 0; i < n->n; i += 2) {
        struct var key = eval(r, s, n->items[i]);
        dict_put(r, d, key, eval(r, s, n->items[i + 1]));
    }
    return (struct var){.kind = VAR_DICT, .d = d};
}

static struct var eval_slice(struct render *r, struct name_scope *s, const struct syntax *n)
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

static struct var eval_concat(struct render *r, struct name_scope *s, const struct syntax *n)
{
    struct var first = var_string(r, eval(r, s, n->items[0])); /* often a text that grows: it is not copied */
    struct build rest = {.r = r};
    for (uint32_t i = 1; i < n->n; i++) build_var(&rest, eval(r, s, n->items[i]));
    struct var out = str_join(r, first, build_done(&rest));
    out.markup = false;
    return out;
}

static struct var eval_if_else(struct render *r, struct name_scope *s, const struct syntax *n)
{
    if (var_truth(eval(r, s, n->a))) return eval(r, s, n->b);
    return n->c ? eval(r, s, n->c) : var_undefined("the value without an else");
}

static struct var eval_kind(struct render *r, struct name_scope *s, const struct syntax *n)
{
    struct var a;
    switch (n->kind) {
    case NODE_CONST: return n->value;
    case NODE_NAME: return scope_get(r, s, n->name);
    case NODE_LIST:
    case NODE_TUPLE: return eval_items(r, s, n);
    case NODE_DICT: return eval_dict(r, s, n);
    case NODE_ATTRIBUTE: return attribute(r, eval(r, s, n->a), n->name);
    case NODE_ITEM: a = eval(r, s, n->a); return var_item(r, a, eval(r, s, n->b));
    case NODE_SLICE: return eval_slice(r, s, n);
    case NODE_CALL: return eval_call(r, s, n);
    case NODE_FILTER:
    case NODE_TEST: return eval_filter(r, s, n);
    case NODE_NOT: return var_bool(!var_truth(eval(r, s, n->a)));
    case NODE_AND: a = eval(r, s, n->a); return var_truth(a) ? eval(r, s, n->b) : a;
    case NODE_OR: a = eval(r, s, n->a); return var_truth(a) ? a : eval(r, s, n->b);
    case NODE_IF_ELSE: return eval_if_else(r, s, n);
    case NODE_COMPARE: a = eval(r, s, n->a); return var_bool(compare(r, n->name, a, eval(r, s, n->b)));
    case NODE_BINARY: a = eval(r, s, n->a); return var_arithmetic(r, n->op, a, eval(r, s, n->b));
    case NODE_CONCAT: return eval_concat(r, s, n);
    default: CHECK(false, "node %d is no expression", n->kind);
    }
    return var_none();
}

static struct var eval(struct render *r, struct name_scope *s, const struct syntax *n)
{
    enter(r);
    r->line = n->line;
    struct var v = eval_kind(r, s, n);
    leave(r);
    return v;
}

/* ---- statements ---- */

static void exec_for(struct render *r, struct name_scope *s, const struct syntax *n)
{
    struct for_loop *l = take(r, sizeof *l);
    *l = (struct for_loop){.node = n, .scope = s, .elements = iter_of(r, eval(r, s, n->b)), .index = -1};
    struct name_scope *inner = NULL;
    while (loop_next(r, l)) {
        if (!inner || inner->kept) inner = scope_new(r, s);
        inner->n = 0;
        scope_set(r, inner, r->t->loop, (struct var){.kind = VAR_LOOP, .loop = l});
        assign(r, inner, n->a, l->current);
        const uint32_t begin = r->root->n;
        const enum flow flow = exec_body(r, inner, &n->bodies[0]);
        if (l->current.kind == VAR_DICT && l->current.d->message && r->root->n > begin)
            r->turns.at[l->current.d->message - 1] = (struct byte_range){begin, r->root->n};
        if (flow == FLOW_BREAK) break;
    }
}

static enum flow exec_if(struct render *r, struct name_scope *s, const struct syntax *n)
{
    for (uint32_t i = 0; i < n->n; i++)
        if (var_truth(eval(r, s, n->items[i]))) return exec_body(r, s, &n->bodies[i]);
    return n->n_bodies > n->n ? exec_body(r, s, &n->bodies[n->n]) : FLOW_NEXT;
}

/* Runs a block whose text is kept in a variable, or filtered. */
static enum flow exec_block(struct render *r, struct name_scope *s, const struct syntax *n)
{
    enum flow flow;
    r->body = captured(r, scope_new(r, s), &n->bodies[0], &flow);
    if (flow != FLOW_NEXT) return flow;
    if (n->kind == NODE_FILTER_BLOCK) build_var(r->out, eval(r, s, n->a));
    else assign(r, s, n->a, r->body);
    return FLOW_NEXT;
}

static void exec_macro(struct render *r, struct name_scope *s, const struct syntax *n)
{
    struct macro *m = take(r, sizeof *m);
    *m = (struct macro){n, s};
    for (struct name_scope *up = s; up; up = up->up) up->kept = true;
    scope_set(r, s, n->name, (struct var){.kind = VAR_MACRO, .macro = m});
}

static void exec_generation(struct render *r, struct name_scope *s, const struct syntax *n)
{
    CHECK(r->out == r->root, "generation outside of the output");
    const uint32_t begin = r->root->n;
    exec_body(r, scope_new(r, s), &n->bodies[0]);
    const uint32_t end = r->root->n;
    if (begin == end) return;
    if (r->answers.n && r->answers.at[r->answers.n - 1].end == begin) r->answers.at[r->answers.n - 1].end = end;
    else vec_push(&r->answers, ((struct byte_range){begin, end}));
}

static enum flow exec(struct render *r, struct name_scope *s, const struct syntax *n)
{
    r->line = n->line;
    switch (n->kind) {
    case NODE_TEXT: build_str(r->out, n->value.s); break;
    case NODE_PRINT: build_var(r->out, eval(r, s, n->a)); break;
    case NODE_IF: return exec_if(r, s, n);
    case NODE_FOR: exec_for(r, s, n); break;
    case NODE_SET: assign(r, s, n->a, eval(r, s, n->b)); break;
    case NODE_SET_BLOCK:
    case NODE_FILTER_BLOCK: return exec_block(r, s, n);
    case NODE_MACRO: exec_macro(r, s, n); break;
    case NODE_GENERATION: exec_generation(r, s, n); break;
    case NODE_BREAK: return FLOW_BREAK;
    case NODE_CONTINUE: return FLOW_CONTINUE;
    default: CHECK(false, "node %d is no statement", n->kind);
    }
    return FLOW_NEXT;
}

static enum flow exec_body(struct render *r, struct name_scope *s, const struct body *body)
{
    enum flow flow = FLOW_NEXT;
    enter(r);
    for (uint32_t i = 0; i < body->n && flow == FLOW_NEXT; i++) {
        step(r);
        flow = exec(r, s, body->at[i]);
    }
    leave(r);
    return flow;
}

/* ---- a whole rendering ---- */

/* Counts the messages, and takes roles that are identifiers for the template's own text: templates
 * write control tokens with them, "<|" + role + "|>". */
static void read_messages(struct render *r, struct var messages)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    for (uint32_t i = 0; messages.kind == VAR_LIST && i < messages.q->n; i++) {
        const struct var m = messages.q->at[i], *role = m.kind == VAR_DICT ? dict_get_name(m.d, "role") : NULL;
        vec_push(&r->turns, ((struct byte_range){0, 0}));
        if (m.kind == VAR_DICT) m.d->message = i + 1;
        if (role && role->kind == VAR_STRING && strspn(role->s->at, word) == role->s->n)
            ((struct str *)role->s)->n_data = 0;
    }
}

/* Makes the outermost scope. Variables that the template does not mention are not converted. */
static struct name_scope *scope_of_variables(struct render *r, const struct value *variables)
{
    struct name_scope *s = scope_new(r, NULL);
    for (uint32_t i = 0; i < variables->count; i++) {
        const struct value *v = variables->items[i];
        const char *name = word_find(r->t, v->key);
        if (!strcmp(v->key, "strftime_now")) {
            r->date = v->kind == VALUE_STRING ? v->text : NULL;
        } else if (name) {
            struct var x = var_from_value(r, v, text_ends_with(v->key, "_token"));
            if (!strcmp(name, "messages")) read_messages(r, x);
            scope_set(r, s, name, x);
        }
    }
    return s;
}

static int render(struct render *r, const struct value *variables)
{
    if (setjmp(r->stop)) return r->e->code;
    struct name_scope *s = scope_new(r, scope_of_variables(r, variables));
    exec_body(r, s, &r->t->body);
    return PL_OK;
}

int template_render(const struct template *t, const struct value *variables, struct rendered *out, struct error *e)
{
    *out = (struct rendered){0};
    struct render r = {.t = t, .e = e, .line = 1};
    struct build root = {.r = &r};
    r.out = r.root = &root;
    int rc = value_as_map(variables, "the variables of a template", e);
    if (!rc) rc = render(&r, variables);
    if (!rc) {
        text_append(&out->text, root.n ? root.at : "", root.n);
        for (uint32_t i = 0; i < root.n_data; i++) vec_push(&out->data, root.data[i]);
        memcpy(&out->answers, &r.answers, sizeof out->answers);
        memcpy(&out->turns, &r.turns, sizeof out->turns);
    } else {
        vec_free(&r.answers);
        vec_free(&r.turns);
    }
    bump_free(&r.memory);
    return rc;
}

void rendered_free(struct rendered *r)
{
    text_free(&r->text);
    vec_free(&r->data);
    vec_free(&r->answers);
    vec_free(&r->turns);
}
