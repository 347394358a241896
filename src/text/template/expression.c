/*
 * expression.c: parsing expressions. Each function is one level of precedence, loosest first, in
 * Jinja's order:
 *
 *   x if c else y, or, and, not, comparisons with in, + -, ~, * / // %, **, - +, then .name [i]
 *   (...), then | and is
 *
 * A filter, test, method or function that is not known is an error here, not when a message meets
 * it.
 */
#include "text/template/jinja.h"

static struct syntax *parse_unary(struct parser *p, bool filters);
static struct syntax *parse_postfix(struct parser *p, struct syntax *a);
static struct syntax *parse_primary(struct parser *p);

/* ---- lists of nodes ---- */

struct list {
    VEC(struct syntax *) items;
    VEC(const char *) names;
};

static void list_push(struct parser *p, struct list *l, struct syntax *item, const char *name)
{
    parse_push(p, &l->items, item);
    parse_push(p, &l->names, name);
}

static void list_done(const struct list *l, struct syntax *to)
{
    to->n = l->items.n;
    to->items = l->items.at;
    to->names = l->names.at;
}

static struct syntax *binary(struct parser *p, enum node_kind kind, char op, struct syntax *a, struct syntax *b)
{
    struct syntax *n = node_new(p, kind, a->line);
    n->op = op;
    n->a = a;
    n->b = b;
    return n;
}

/* ---- literals ---- */

static struct syntax *constant(struct parser *p, uint32_t line, struct var v)
{
    struct syntax *n = node_new(p, NODE_CONST, line);
    n->value = v;
    return n;
}

/* Parses strings; side by side they are one. */
static struct syntax *parse_string(struct parser *p)
{
    const struct lexeme *first = p->at;
    uint32_t n = 0, at = 0;
    for (const struct lexeme *l = first; l->kind == TOKEN_STRING; l++) n += l->n;
    char *bytes = bump_alloc(&p->t->memory, n + 1);
    for (; p->at->kind == TOKEN_STRING; at += p->at->n, p->at++) memcpy(bytes + at, p->at->at, p->at->n);
    return node_text(p, NODE_CONST, first->line, bytes, n);
}

/* Parses [a, b] and {a: b, c: d}. */
static struct syntax *parse_brackets(struct parser *p)
{
    const bool dict = at_sign(p, "{");
    const char *end = dict ? "}" : "]";
    struct syntax *n = node_new(p, dict ? NODE_DICT : NODE_LIST, p->at++->line);
    struct list l = {0};
    while (!at_sign(p, end)) {
        if (l.items.n) expect_sign(p, ",");
        if (at_sign(p, end)) break;
        list_push(p, &l, parse_expression(p, true), NULL);
        if (!dict) continue;
        expect_sign(p, ":");
        list_push(p, &l, parse_expression(p, true), NULL);
    }
    p->at++;
    list_done(&l, n);
    return n;
}

static struct syntax *parse_name(struct parser *p)
{
    const struct lexeme *l = p->at++;
    const bool truth = !strcmp(l->at, "true") || !strcmp(l->at, "True");
    if (truth || !strcmp(l->at, "false") || !strcmp(l->at, "False")) return constant(p, l->line, var_bool(truth));
    if (!strcmp(l->at, "none") || !strcmp(l->at, "None")) return constant(p, l->line, var_none());
    struct syntax *n = node_new(p, NODE_NAME, l->line);
    n->name = l->at;
    return n;
}

static struct syntax *parse_primary(struct parser *p)
{
    const struct lexeme *l = p->at;
    if (l->kind == TOKEN_NAME) return parse_name(p);
    if (l->kind == TOKEN_STRING) return parse_string(p);
    if (l->kind == TOKEN_INT) return p->at++, constant(p, l->line, var_int(l->i));
    if (at_sign(p, "[") || at_sign(p, "{")) return parse_brackets(p);
    if (at_sign(p, "+")) parse_fail(p, l->line, "the operator + before a value is not supported");
    if (!skip_sign(p, "(")) parse_expected(p, "an expression");
    struct syntax *n = parse_tuple(p, true, true);
    expect_sign(p, ")");
    return n;
}

/* ---- what follows a value ---- */

static void parse_arguments(struct parser *p, struct syntax *to)
{
    struct list l = {0};
    bool named = false;
    expect_sign(p, "(");
    while (!at_sign(p, ")")) {
        if (l.items.n) expect_sign(p, ",");
        if (at_sign(p, ")")) break;
        if (at_sign(p, "*") || at_sign(p, "**"))
            parse_fail(p, p->at->line, "* in the arguments of a call is not supported");
        const bool name =
            p->at->kind == TOKEN_NAME && p->at[1].kind == TOKEN_SIGN && p->at[1].n == 1 && p->at[1].at[0] == '=';
        if (named && !name) parse_fail(p, p->at->line, "an argument without a name follows one with a name");
        named = name;
        const char *word = name ? p->at->at : NULL;
        if (name) p->at += 2;
        for (uint32_t i = 0; word && i < l.names.n; i++)
            if (l.names.at[i] == word) parse_fail(p, p->at->line, "the argument '%s' is given twice", word);
        list_push(p, &l, parse_expression(p, true), word);
    }
    expect_sign(p, ")");
    if (l.items.n > CALL_ARGS) parse_fail(p, to->line, "a call has more than %d arguments", CALL_ARGS);
    list_done(&l, to);
}

static struct syntax *parse_call(struct parser *p, struct syntax *callee)
{
    struct syntax *n = node_new(p, NODE_CALL, p->at->line);
    n->a = callee;
    parse_arguments(p, n);
    if (callee->kind == NODE_NAME) parse_push(p, &p->calls, n);
    else if (callee->kind == NODE_ATTRIBUTE) {
        if (!method_known(callee->name)) parse_fail(p, callee->line, "unknown method '%s'", callee->name);
    } else {
        parse_fail(p, callee->line, "only a function, a macro or a method can be called");
    }
    return n;
}

/* Parses one index or slice between brackets. */
static struct syntax *parse_subscript(struct parser *p, struct syntax *a)
{
    struct syntax *slice = node_new(p, NODE_SLICE, p->at->line), *part[3] = {0};
    if (at_sign(p, "]") || at_sign(p, ",")) parse_fail(p, p->at->line, "an index is missing in [ ]");
    if (!at_sign(p, ":")) part[0] = parse_expression(p, true);
    if (!at_sign(p, ":")) return binary(p, NODE_ITEM, 0, a, part[0]);
    for (int i = 1; i < 3 && skip_sign(p, ":"); i++)
        if (!at_sign(p, ":") && !at_sign(p, "]") && !at_sign(p, ",")) part[i] = parse_expression(p, true);
    slice->a = a;
    slice->n = 3;
    slice->items = bump_alloc(&p->t->memory, sizeof part);
    memcpy(slice->items, part, sizeof part);
    return slice;
}

static struct syntax *parse_attribute(struct parser *p, struct syntax *a)
{
    const struct lexeme *l = p->at;
    if (l->kind == TOKEN_INT) return p->at++, binary(p, NODE_ITEM, 0, a, constant(p, l->line, var_int(l->i)));
    static const char *const of_loop[] = {"index", "index0", "first", "last", "previtem", "nextitem"};
    struct syntax *n = node_new(p, NODE_ATTRIBUTE, l->line);
    bool known = a->kind != NODE_NAME || a->name != p->t->loop;
    n->a = a;
    n->name = expect_name(p);
    for (size_t i = 0; i < COUNT(of_loop); i++) known |= !strcmp(of_loop[i], n->name);
    if (!known) parse_fail(p, n->line, "loop.%s is not supported", n->name);
    if (n->name[0] == '_' && n->name[1] == '_')
        parse_fail(p, n->line, "the attribute '%s' is not for templates", n->name);
    return n;
}

static struct syntax *parse_postfix(struct parser *p, struct syntax *a)
{
    for (;;) {
        if (skip_sign(p, ".")) {
            a = parse_attribute(p, a);
        } else if (skip_sign(p, "[")) {
            a = parse_subscript(p, a);
            expect_sign(p, "]");
        } else if (at_sign(p, "(")) {
            a = parse_call(p, a);
        } else {
            return a;
        }
    }
}

/* Checks the arguments of a filter or test against its row; a test or filter that they name must be
 * known. */
static void check_call(struct parser *p, const struct syntax *n, const char *kind)
{
    uint32_t place[CALL_ARGS];
    const int which = n->filter->which;
    const char *wrong = args_place(n->filter->params, n->filter->least, n->names, n->n, place);
    if (wrong) parse_fail(p, n->line, "the %s '%s' %s", kind, n->name, wrong);
    const uint32_t at = which > 0 ? (uint32_t)which - 1 : 0;
    if (!which || n->n <= at || n->names[at]) return;
    if (n->items[at]->kind != NODE_CONST || n->items[at]->value.kind != VAR_STRING)
        parse_fail(p, n->line, "'%s' needs a name in quotes", n->name);
    const struct str *s = n->items[at]->value.s;
    const char *name = intern(p, s->at, s->n);
    if (which > 0 ? !test_find(name) : !filter_find(name))
        parse_fail(p, n->line, "unknown %s '%s'", which > 0 ? "test" : "filter", name);
}

struct syntax *parse_filters(struct parser *p, struct syntax *a)
{
    while (!a || skip_sign(p, "|")) {
        struct syntax *n = node_new(p, NODE_FILTER, p->at->line);
        n->a = a;
        n->name = expect_name(p);
        if (at_sign(p, "(")) parse_arguments(p, n);
        if (!(n->filter = filter_find(n->name))) parse_fail(p, n->line, "unknown filter '%s'", n->name);
        check_call(p, n, "filter");
        a = n;
    }
    return a;
}

static struct syntax *parse_test(struct parser *p, struct syntax *a)
{
    const bool negated = skip_name(p, "not");
    struct syntax *n = node_new(p, NODE_TEST, p->at->line);
    n->a = a;
    n->name = expect_name(p);
    const enum token_kind kind = p->at->kind;
    if (at_sign(p, "(")) {
        parse_arguments(p, n);
    } else if ((kind == TOKEN_NAME || kind == TOKEN_STRING || kind == TOKEN_INT || at_sign(p, "[") ||
                at_sign(p, "{")) &&
               !at_name(p, "else") && !at_name(p, "or") && !at_name(p, "and")) {
        if (at_name(p, "is")) parse_fail(p, p->at->line, "tests cannot be chained with is");
        struct list l = {0};
        list_push(p, &l, parse_postfix(p, parse_primary(p)), NULL);
        list_done(&l, n);
    }
    if (!(n->filter = test_find(n->name))) parse_fail(p, n->line, "unknown test '%s'", n->name);
    check_call(p, n, "test");
    return negated ? binary(p, NODE_NOT, 0, n, NULL) : n;
}

static struct syntax *parse_unary(struct parser *p, bool filters)
{
    const uint32_t line = p->at->line;
    parse_enter(p);
    struct syntax *n = skip_sign(p, "-")
                         ? binary(p, NODE_BINARY, '-', constant(p, line, var_int(0)), parse_unary(p, false))
                         : parse_primary(p);
    n = parse_postfix(p, n);
    while (filters && (at_sign(p, "|") || at_name(p, "is") || at_sign(p, "("))) {
        if (at_sign(p, "|")) n = parse_filters(p, n);
        else if (skip_name(p, "is")) n = parse_test(p, n);
        else n = parse_call(p, n);
    }
    p->depth--;
    return n;
}

/* ---- operators ---- */

static struct syntax *parse_product(struct parser *p)
{
    struct syntax *a = parse_unary(p, true);
    while (at_sign(p, "*") || at_sign(p, "%")) {
        const char op = p->at++->at[0];
        a = binary(p, NODE_BINARY, op, a, parse_unary(p, true));
    }
    if (at_sign(p, "/") || at_sign(p, "//") || at_sign(p, "**"))
        parse_fail(p, p->at->line, "the operator %.*s is not supported", (int)p->at->n, p->at->at);
    return a;
}

static struct syntax *parse_concat(struct parser *p)
{
    struct syntax *a = parse_product(p);
    if (!at_sign(p, "~")) return a;
    struct syntax *n = node_new(p, NODE_CONCAT, a->line);
    struct list l = {0};
    list_push(p, &l, a, NULL);
    while (skip_sign(p, "~")) list_push(p, &l, parse_product(p), NULL);
    list_done(&l, n);
    return n;
}

static struct syntax *parse_sum(struct parser *p)
{
    struct syntax *a = parse_concat(p);
    for (;;) {
        const char op = at_sign(p, "+") ? '+' : at_sign(p, "-") ? '-' : 0;
        if (!op) return a;
        p->at++;
        a = binary(p, NODE_BINARY, op, a, parse_concat(p));
    }
}

/* Skips the comparison at the current token and returns it, or NULL. */
static const char *comparison(struct parser *p)
{
    static const char *const signs[] = {"==", "!=", "<=", ">=", "<", ">"};
    for (size_t i = 0; i < COUNT(signs); i++)
        if (skip_sign(p, signs[i])) return signs[i];
    if (skip_name(p, "in")) return "in";
    if (!at_name(p, "not") || p->at[1].kind != TOKEN_NAME || strcmp(p->at[1].at, "in")) return NULL;
    p->at += 2;
    return "not in";
}

static struct syntax *parse_comparison(struct parser *p)
{
    struct syntax *a = parse_sum(p);
    const char *op = comparison(p);
    if (!op) return a;
    struct syntax *n = binary(p, NODE_COMPARE, 0, a, parse_sum(p));
    n->name = op;
    if (comparison(p)) parse_fail(p, n->line, "chained comparisons, a %s b %s c, are not supported", op, op);
    return n;
}

static struct syntax *parse_not(struct parser *p)
{
    const uint32_t line = p->at->line;
    if (!skip_name(p, "not")) return parse_comparison(p);
    struct syntax *n = node_new(p, NODE_NOT, line);
    parse_enter(p);
    n->a = parse_not(p);
    p->depth--;
    return n;
}

static struct syntax *parse_and(struct parser *p)
{
    struct syntax *a = parse_not(p);
    while (skip_name(p, "and")) a = binary(p, NODE_AND, 0, a, parse_not(p));
    return a;
}

static struct syntax *parse_or(struct parser *p)
{
    struct syntax *a = parse_and(p);
    while (skip_name(p, "or")) a = binary(p, NODE_OR, 0, a, parse_and(p));
    return a;
}

struct syntax *parse_expression(struct parser *p, bool if_else)
{
    parse_enter(p);
    struct syntax *a = parse_or(p);
    while (if_else && skip_name(p, "if")) {
        struct syntax *n = node_new(p, NODE_IF_ELSE, a->line);
        n->b = a;
        n->a = parse_or(p);
        if (skip_name(p, "else")) n->c = parse_expression(p, true);
        a = n;
    }
    p->depth--;
    return a;
}

static bool at_tuple_end(const struct parser *p)
{
    return p->at->kind == TOKEN_PRINT_END || p->at->kind == TOKEN_BLOCK_END || at_sign(p, ")");
}

struct syntax *parse_tuple(struct parser *p, bool if_else, bool in_parentheses)
{
    const struct lexeme *first = p->at;
    struct list l = {0};
    bool tuple = false;
    while (!at_tuple_end(p)) {
        list_push(p, &l, parse_expression(p, if_else), NULL);
        if (!skip_sign(p, ",")) break;
        tuple = true;
    }
    if (!tuple && !l.items.n && !in_parentheses) parse_expected(p, "an expression");
    struct syntax *n = node_new(p, NODE_TUPLE, first->line);
    list_done(&l, n);
    return tuple || !n->n ? n : n->items[0];
}

/* ---- targets of assignments ---- */

static struct syntax *target_name(struct parser *p)
{
    struct syntax *n = parse_primary(p);
    if (n->kind != NODE_NAME) parse_fail(p, n->line, "only names can be assigned to");
    return n;
}

struct syntax *parse_target(struct parser *p, bool set)
{
    struct list l = {0};
    struct syntax *n = target_name(p);
    if (set && at_sign(p, ",")) parse_fail(p, n->line, "{%% set %%} of several names is not supported");
    if (set && skip_sign(p, ".")) {
        n = parse_attribute(p, n);
        if (n->kind != NODE_ATTRIBUTE) parse_fail(p, n->line, "only names can be assigned to");
        if (n->name[0] == '_')
            parse_fail(p, n->line, "a namespace has no members that begin with _: '%s'", n->name);
        return n;
    }
    *name_bound(n->name) = true;
    if (!at_sign(p, ",")) return n;
    struct syntax *tuple = node_new(p, NODE_TUPLE, n->line);
    list_push(p, &l, n, NULL);
    while (skip_sign(p, ",") && !at_name(p, "in")) {
        list_push(p, &l, n = target_name(p), NULL);
        *name_bound(n->name) = true;
    }
    list_done(&l, tuple);
    return tuple;
}
