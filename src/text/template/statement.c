/*
 * statement.c: parsing the tags of a template.
 */
#include <stdio.h>
#include <string.h>

#include "text/template/call.h"
#include "text/template/parse.h"

struct node *node_new(struct parser *p, enum node_kind kind, uint32_t line)
{
    struct node *n = bump_alloc(&p->t->memory, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    return n;
}

char *describe_lexeme(const struct lexeme *l, char out[80])
{
    static const char *const names[] = {[TOKEN_END] = "the end of the template",
                                        [TOKEN_TEXT] = "text",
                                        [TOKEN_PRINT_BEGIN] = "{{",
                                        [TOKEN_PRINT_END] = "}}",
                                        [TOKEN_BLOCK_BEGIN] = "{%",
                                        [TOKEN_BLOCK_END] = "%}",
                                        [TOKEN_STRING] = "a string"};
    if (l->kind < COUNT(names) && names[l->kind]) snprintf(out, 80, "%s", names[l->kind]);
    else snprintf(out, 80, "'%.*s'", (int)(l->n < 60 ? l->n : 60), l->at);
    return out;
}

bool at_sign(const struct parser *p, const char *sign)
{
    return p->at->kind == TOKEN_SIGN && p->at->n == strlen(sign) && !memcmp(p->at->at, sign, p->at->n);
}

bool at_name(const struct parser *p, const char *name)
{
    return p->at->kind == TOKEN_NAME && !strcmp(p->at->at, name);
}

bool skip_sign(struct parser *p, const char *sign)
{
    const bool at = at_sign(p, sign);
    p->at += at;
    return at;
}

bool skip_name(struct parser *p, const char *name)
{
    const bool at = at_name(p, name);
    p->at += at;
    return at;
}

void expect_sign(struct parser *p, const char *sign)
{
    char what[80];
    if (!skip_sign(p, sign)) parse_fail(p, p->at->line, "expected '%s' before %s", sign, describe_lexeme(p->at, what));
}

const char *expect_name(struct parser *p)
{
    char what[80];
    if (p->at->kind != TOKEN_NAME)
        parse_fail(p, p->at->line, "expected a name before %s", describe_lexeme(p->at, what));
    return (p->at++)->at;
}

void parse_enter(struct parser *p)
{
    if (++p->depth > PARSE_DEPTH) parse_fail(p, p->at->line, "nested more than %d deep", PARSE_DEPTH);
}

static void expect_block_end(struct parser *p)
{
    char what[80];
    if (p->at->kind != TOKEN_BLOCK_END)
        parse_fail(p, p->at->line, "expected %%} before %s", describe_lexeme(p->at, what));
    p->at++;
}

/* ---- bodies ---- */

static struct node *parse_statement(struct parser *p);

/* Statements until one of the tags in `ends` ("elif else endif"), whose name is the current token
 * then. */
static struct body parse_body(struct parser *p, const char *ends, uint32_t line)
{
    VEC(struct node *) list = {0};
    for (;;) {
        const struct lexeme *l = p->at;
        if (l->kind == TOKEN_TEXT || l->kind == TOKEN_PRINT_BEGIN) {
            struct node *n = node_new(p, l->kind == TOKEN_TEXT ? NODE_TEXT : NODE_PRINT, l->line);
            char what[80];
            p->at++;
            if (n->kind == NODE_TEXT) {
                struct str *s = bump_alloc(&p->t->memory, sizeof *s);
                *s = (struct str){.at = l->at, .n = l->n};
                n->value = (struct var){.kind = VAR_STRING, .s = s};
            } else {
                n->a = parse_tuple(p, true, false);
                if (p->at->kind != TOKEN_PRINT_END)
                    parse_fail(p, p->at->line, "expected }} before %s", describe_lexeme(p->at, what));
                p->at++;
            }
            parse_push(p, &list, n);
            continue;
        }
        if (l->kind == TOKEN_END) {
            if (ends)
                parse_fail(p, line, "this tag has no end: {%% %s %%} is missing",
                           strrchr(ends, ' ') ? strrchr(ends, ' ') + 1 : ends);
            break;
        }
        p->at++; /* {% */
        if (p->at->kind != TOKEN_NAME) parse_fail(p, p->at->line, "expected the name of a tag after {%%");
        const char *found = ends ? strstr(ends, p->at->at) : NULL;
        const size_t n = strlen(p->at->at);
        if (found && (found == ends || found[-1] == ' ') && (!found[n] || found[n] == ' ')) break;
        parse_push(p, &list, parse_statement(p));
        expect_block_end(p);
    }
    return (struct body){list.at, list.n};
}

/* The body of a statement whose opening tag ends here. */
static struct body parse_block(struct parser *p, const char *ends, uint32_t line)
{
    skip_sign(p, ":");
    expect_block_end(p);
    parse_enter(p);
    struct body body = parse_body(p, ends, line);
    p->depth--;
    return body;
}

static struct body *one_body(struct parser *p, struct node *n, const char *ends)
{
    n->bodies = bump_alloc(&p->t->memory, 2 * sizeof *n->bodies);
    n->bodies[0] = parse_block(p, ends, n->line);
    n->n_bodies = 1;
    return n->bodies;
}

/* ---- statements ---- */

static void parse_if(struct parser *p, struct node *n)
{
    VEC(struct node *) conditions = {0};
    VEC(struct body) bodies = {0};
    for (;;) {
        parse_push(p, &conditions, parse_tuple(p, false, false));
        parse_push(p, &bodies, parse_block(p, "elif else endif", n->line));
        if (skip_name(p, "elif")) continue;
        if (skip_name(p, "else")) parse_push(p, &bodies, parse_block(p, "endif", n->line));
        p->at++; /* endif */
        break;
    }
    n->n = conditions.n;
    n->items = conditions.at;
    n->n_bodies = bodies.n;
    n->bodies = bodies.at;
}

static void parse_for(struct parser *p, struct node *n)
{
    n->a = parse_target(p, false);
    if (!skip_name(p, "in")) parse_fail(p, n->line, "expected 'in' in {%% for %%}");
    n->b = parse_tuple(p, false, false);
    if (skip_name(p, "if")) n->c = parse_expression(p, true);
    if (at_name(p, "recursive")) parse_fail(p, n->line, "a recursive loop is not supported");
    p->loops++;
    one_body(p, n, "else endfor");
    p->loops--;
    if (skip_name(p, "else")) {
        n->bodies[1] = parse_block(p, "endfor", n->line);
        n->n_bodies = 2;
    }
    p->at++; /* endfor */
}

static void parse_set(struct parser *p, struct node *n)
{
    n->a = parse_target(p, true);
    if (skip_sign(p, "=")) {
        n->b = parse_tuple(p, true, false);
        return;
    }
    n->kind = NODE_SET_BLOCK;
    if (at_sign(p, "|")) n->b = parse_filters(p, NULL, false);
    p->blocks++;
    one_body(p, n, "endset");
    p->blocks--;
    p->at++;
}

static void parse_macro(struct parser *p, struct node *n)
{
    VEC(struct node *) defaults = {0};
    VEC(const char *) names = {0};
    n->name = expect_name(p);
    bind_name(n->name);
    expect_sign(p, "(");
    while (!at_sign(p, ")")) {
        if (names.n) expect_sign(p, ",");
        const char *name = expect_name(p);
        for (uint32_t i = 0; i < names.n; i++)
            if (names.at[i] == name) parse_fail(p, n->line, "the macro has two arguments '%s'", name);
        parse_push(p, &names, name);
        bind_name(name);
        if (skip_sign(p, "=")) parse_push(p, &defaults, parse_expression(p, true));
        else if (defaults.n && defaults.at[defaults.n - 1])
            parse_fail(p, n->line, "an argument without a default follows one with a default");
        else parse_push(p, &defaults, NULL);
    }
    expect_sign(p, ")");
    n->n = names.n;
    n->items = defaults.at;
    n->names = names.at;
    const uint32_t loops = p->loops;
    const struct node *around = p->macro;
    p->loops = 0;
    p->macro = n;
    one_body(p, n, "endmacro");
    p->loops = loops;
    p->macro = around;
    p->at++;
}

static void parse_with(struct parser *p, struct node *n)
{
    VEC(struct node *) list = {0};
    while (p->at->kind != TOKEN_BLOCK_END) {
        if (list.n) expect_sign(p, ",");
        parse_push(p, &list, parse_target(p, false));
        expect_sign(p, "=");
        parse_push(p, &list, parse_expression(p, true));
    }
    n->n = list.n;
    n->items = list.at;
    one_body(p, n, "endwith");
    p->at++;
}

/* Answers are ranges of the whole output, so that the tag may not be where text is collected for
 * another use. */
static void parse_generation(struct parser *p, struct node *n)
{
    if (p->macro || p->blocks || p->generation)
        parse_fail(p, n->line,
                   "{%% generation %%} inside a macro, a block or another {%% generation %%} is not supported");
    const uint32_t loops = p->loops;
    p->loops = 0;
    p->generation = p->t->marks_answers = true;
    one_body(p, n, "endgeneration");
    p->generation = false;
    p->loops = loops;
    p->at++;
}

static void parse_filter_block(struct parser *p, struct node *n)
{
    n->a = parse_filters(p, NULL, true);
    p->blocks++;
    one_body(p, n, "endfilter");
    p->blocks--;
    p->at++;
}

static void parse_loop_control(struct parser *p, struct node *n)
{
    if (!p->loops) parse_fail(p, n->line, "'%s' outside of a loop", n->kind == NODE_BREAK ? "break" : "continue");
}

static const struct {
    const char *name;
    enum node_kind kind;
    void (*parse)(struct parser *p, struct node *n);
} statements[] = {
    {"if", NODE_IF, parse_if},
    {"for", NODE_FOR, parse_for},
    {"set", NODE_SET, parse_set},
    {"macro", NODE_MACRO, parse_macro},
    {"with", NODE_WITH, parse_with},
    {"filter", NODE_FILTER_BLOCK, parse_filter_block},
    {"generation", NODE_GENERATION, parse_generation},
    {"break", NODE_BREAK, parse_loop_control},
    {"continue", NODE_CONTINUE, parse_loop_control},
};

static struct node *parse_statement(struct parser *p)
{
    const struct lexeme *l = p->at++;
    for (size_t i = 0; i < COUNT(statements); i++) {
        if (strcmp(statements[i].name, l->at)) continue;
        struct node *n = node_new(p, statements[i].kind, l->line);
        statements[i].parse(p, n);
        return n;
    }
    parse_fail(p, l->line, "unknown statement '%s'", l->at);
}

/* ---- a whole template ---- */

static void check_calls(struct parser *p)
{
    for (uint32_t i = 0; i < p->calls.n; i++) {
        const char *name = p->calls.at[i]->a->name;
        if (!function_known(name) && !name_is_bound(name))
            parse_fail(p, p->calls.at[i]->line, "unknown function '%s'", name);
    }
}

/* Names with a meaning in Jinja that we do not give them. */
static void check_names(struct parser *p)
{
    static const char *const words[] = {"self", "super", "caller", "varargs", "kwargs"};
    for (uint32_t i = 0; i < p->tokens.n; i++) {
        const struct lexeme *l = &p->tokens.at[i];
        if (l->kind != TOKEN_NAME || (i && p->tokens.at[i - 1].kind == TOKEN_SIGN && p->tokens.at[i - 1].at[0] == '.'))
            continue;
        for (size_t w = 0; w < COUNT(words); w++)
            if (!strcmp(words[w], l->at) && !name_is_bound(l->at))
                parse_fail(p, l->line, "'%s' is not supported", l->at);
    }
}

struct body parse_template(struct parser *p)
{
    struct body body = parse_body(p, NULL, 1);
    check_calls(p);
    check_names(p);
    return body;
}
