/*
 * render.c: walking the statements of a template.
 */
#include <string.h>

#include "text/template/call.h"
#include "text/template/eval.h"

/* ---- statements ---- */

static enum flow exec_for(struct render *r, struct scope *s, const struct node *n)
{
    struct loop *l = take(r, sizeof *l);
    *l = (struct loop){.node = n, .scope = s, .elements = iter_of(r, eval(r, s, n->b)), .index = -1, .length = -1};
    struct scope *inner = NULL;
    bool whole = false; /* Jinja runs `else` unless a body came to its end */
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
        if (flow == FLOW_NEXT) whole = true;
    }
    return n->n_bodies == 2 && !whole ? exec_body(r, scope_new(r, s), &n->bodies[1]) : FLOW_NEXT;
}

static enum flow exec_if(struct render *r, struct scope *s, const struct node *n)
{
    for (uint32_t i = 0; i < n->n; i++)
        if (var_truth(eval(r, s, n->items[i]))) return exec_body(r, s, &n->bodies[i]);
    return n->n_bodies > n->n ? exec_body(r, s, &n->bodies[n->n]) : FLOW_NEXT;
}

/* A block whose text is kept in a variable, or filtered. */
static enum flow exec_block(struct render *r, struct scope *s, const struct node *n)
{
    enum flow flow;
    const struct node *filters = n->kind == NODE_FILTER_BLOCK ? n->a : n->b;
    struct var text = captured(r, scope_new(r, s), &n->bodies[0], &flow);
    if (flow != FLOW_NEXT) return flow;
    if (filters) {
        r->body = text;
        text = eval(r, s, filters);
    }
    if (n->kind == NODE_FILTER_BLOCK) build_var(r->out, text);
    else assign(r, s, n->a, text);
    return FLOW_NEXT;
}

static void exec_macro(struct render *r, struct scope *s, const struct node *n)
{
    struct macro *m = take(r, sizeof *m);
    *m = (struct macro){n, s};
    for (struct scope *up = s; up; up = up->up) up->kept = true;
    scope_set(r, s, n->name, (struct var){.kind = VAR_MACRO, .macro = m});
}

static enum flow exec_with(struct render *r, struct scope *s, const struct node *n)
{
    struct scope *inner = scope_new(r, s);
    for (uint32_t i = 0; i < n->n; i += 2) assign(r, inner, n->items[i], eval(r, s, n->items[i + 1]));
    return exec_body(r, inner, &n->bodies[0]);
}

static void exec_generation(struct render *r, struct scope *s, const struct node *n)
{
    CHECK(r->out == r->root, "generation outside of the output");
    const uint32_t begin = r->root->n;
    exec_body(r, scope_new(r, s), &n->bodies[0]);
    const uint32_t end = r->root->n;
    if (begin == end) return;
    if (r->answers.n && r->answers.at[r->answers.n - 1].end == begin) r->answers.at[r->answers.n - 1].end = end;
    else vec_push(&r->answers, ((struct byte_range){begin, end}));
}

static enum flow exec(struct render *r, struct scope *s, const struct node *n)
{
    r->line = n->line;
    switch (n->kind) {
    case NODE_TEXT: build_str(r->out, n->value.s); break;
    case NODE_PRINT: build_var(r->out, eval(r, s, n->a)); break;
    case NODE_IF: return exec_if(r, s, n);
    case NODE_FOR: return exec_for(r, s, n);
    case NODE_SET: assign(r, s, n->a, eval(r, s, n->b)); break;
    case NODE_SET_BLOCK:
    case NODE_FILTER_BLOCK: return exec_block(r, s, n);
    case NODE_MACRO: exec_macro(r, s, n); break;
    case NODE_WITH: return exec_with(r, s, n);
    case NODE_GENERATION: exec_generation(r, s, n); break;
    case NODE_BREAK: return FLOW_BREAK;
    case NODE_CONTINUE: return FLOW_CONTINUE;
    default: CHECK(false, "node %d is no statement", n->kind);
    }
    return FLOW_NEXT;
}

enum flow exec_body(struct render *r, struct scope *s, const struct body *body)
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

/* A role is the name of a part in the conversation, and templates make control tokens of it: "<|" +
 * role + "|>". One that is an identifier is not data. */
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

/* Variables that the template does not mention are left alone. */
static struct scope *scope_of_variables(struct render *r, const struct value *variables)
{
    struct scope *s = scope_new(r, NULL);
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
    struct scope *s = scope_new(r, scope_of_variables(r, variables));
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
