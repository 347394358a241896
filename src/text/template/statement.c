/*
 * statement.c: parsing the tags of a template, and reading a whole one.
 */
#include <stdarg.h>

#include "io/json.h"
#include "text/template/jinja.h"

/* ---- what a parser does ---- */

void parse_fail(struct parser *p, uint32_t line, const char *fmt, ...)
{
    char message[800];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    error_set(p->e, PL_USAGE, "%s, line %u: %s", p->t->name, line, message);
    longjmp(p->stop, 1);
}

void parse_grow(struct parser *p, void **at, uint32_t *cap, uint32_t n, size_t size)
{
    if (n < *cap) return;
    *cap = *cap ? *cap * 2 : 4;
    void *grown = bump_alloc(&p->t->memory, *cap * size);
    if (n) memcpy(grown, *at, n * size);
    *at = grown;
}

static struct word **word_slot(const struct template *t, const char *name, size_t n)
{
    uint32_t at = (uint32_t)hash_bytes(name, n, 0) & (t->n_slots - 1);
    while (t->words[at] && (strncmp(t->words[at]->text, name, n) || t->words[at]->text[n]))
        at = (at + 1) & (t->n_slots - 1);
    return &t->words[at];
}

const char *word_find(const struct template *t, const char *name)
{
    struct word *word = *word_slot(t, name, strlen(name));
    return word ? word->text : NULL;
}

const char *intern(struct parser *p, const char *name, size_t n)
{
    struct template *t = p->t;
    if (t->n_words * 2 >= t->n_slots) {
        struct word **old = t->words;
        const uint32_t n_old = t->n_slots;
        t->n_slots = n_old ? n_old * 2 : 256;
        t->words = bump_alloc(&t->memory, t->n_slots * sizeof *t->words);
        for (uint32_t i = 0; i < n_old; i++)
            if (old[i]) *word_slot(t, old[i]->text, strlen(old[i]->text)) = old[i];
    }
    struct word **slot = word_slot(t, name, n);
    if (!*slot) {
        *slot = bump_alloc(&t->memory, sizeof **slot + n + 1);
        memcpy((*slot)->text, name, n);
        t->n_words++;
    }
    return (*slot)->text;
}

bool *name_bound(const char *name)
{
    return &((struct word *)(name - offsetof(struct word, text)))->bound;
}

struct syntax *node_new(struct parser *p, enum node_kind kind, uint32_t line)
{
    struct syntax *n = bump_alloc(&p->t->memory, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    return n;
}

struct syntax *node_text(struct parser *p, enum node_kind kind, uint32_t line, const char *at, uint32_t n)
{
    struct syntax *node = node_new(p, kind, line);
    struct str *s = bump_alloc(&p->t->memory, sizeof *s);
    *s = (struct str){.at = at, .n = n};
    node->value = (struct var){.kind = VAR_STRING, .s = s};
    return node;
}

void parse_expected(struct parser *p, const char *what)
{
    static const char *const names[] = {[TOKEN_END] = "the end of the template",
                                        [TOKEN_TEXT] = "text",
                                        [TOKEN_PRINT_BEGIN] = "{{",
                                        [TOKEN_PRINT_END] = "}}",
                                        [TOKEN_BLOCK_BEGIN] = "{%",
                                        [TOKEN_BLOCK_END] = "%}",
                                        [TOKEN_STRING] = "a string"};
    const struct lexeme *l = p->at;
    if (l->kind < COUNT(names) && names[l->kind])
        parse_fail(p, l->line, "expected %s before %s", what, names[l->kind]);
    parse_fail(p, l->line, "expected %s before '%.*s'", what, (int)(l->n < 60 ? l->n : 60), l->at);
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
    const char quoted[] = {'\'', sign[0], '\'', 0}; /* a sign of one character */
    if (!skip_sign(p, sign)) parse_expected(p, quoted);
}

const char *expect_name(struct parser *p)
{
    if (p->at->kind != TOKEN_NAME) parse_expected(p, "a name");
    return (p->at++)->at;
}

void parse_enter(struct parser *p)
{
    if (++p->depth > PARSE_DEPTH) parse_fail(p, p->at->line, "nested more than %d deep", PARSE_DEPTH);
}

static void expect_end(struct parser *p, enum token_kind kind)
{
    if (p->at->kind != kind) parse_expected(p, kind == TOKEN_BLOCK_END ? "%}" : "}}");
    p->at++;
}

/* ---- bodies ---- */

static struct syntax *parse_statement(struct parser *p);

/* Parses statements until one of the tags in `ends` ("elif else endif"), whose name is the current
 * token then. */
static struct body parse_body(struct parser *p, const char *ends, uint32_t line)
{
    VEC(struct syntax *) list = {0};
    for (;;) {
        const struct lexeme *l = p->at;
        if (l->kind == TOKEN_END && ends)
            parse_fail(p, line, "this tag has no end: {%% %s %%} is missing",
                       strrchr(ends, ' ') ? strrchr(ends, ' ') + 1 : ends);
        if (l->kind == TOKEN_END) break;
        p->at++;
        if (l->kind == TOKEN_TEXT) {
            parse_push(p, &list, node_text(p, NODE_TEXT, l->line, l->at, l->n));
            continue;
        }
        if (l->kind == TOKEN_PRINT_BEGIN) {
            struct syntax *n = node_new(p, NODE_PRINT, l->line);
            n->a = parse_tuple(p, true, false);
            expect_end(p, TOKEN_PRINT_END);
            parse_push(p, &list, n);
            continue;
        }
        if (p->at->kind != TOKEN_NAME) parse_fail(p, p->at->line, "expected the name of a tag after {%%");
        const char *found = ends ? strstr(ends, p->at->at) : NULL;
        const size_t n = strlen(p->at->at);
        if (found && (found == ends || found[-1] == ' ') && (!found[n] || found[n] == ' ')) break;
        parse_push(p, &list, parse_statement(p));
        expect_end(p, TOKEN_BLOCK_END);
    }
    return (struct body){list.at, list.n};
}

/* Parses the body of a statement whose opening tag ends here. */
static struct body parse_block(struct parser *p, const char *ends, uint32_t line)
{
    skip_sign(p, ":");
    expect_end(p, TOKEN_BLOCK_END);
    parse_enter(p);
    struct body body = parse_body(p, ends, line);
    p->depth--;
    return body;
}

/* Parses the only body of a statement, and goes past the name of its end. */
static void one_body(struct parser *p, struct syntax *n, const char *end)
{
    n->bodies = bump_alloc(&p->t->memory, sizeof *n->bodies);
    n->bodies[0] = parse_block(p, end, n->line);
    n->n_bodies = 1;
    p->at++;
}

/* ---- statements ---- */

static void parse_if(struct parser *p, struct syntax *n)
{
    VEC(struct syntax *) conditions = {0};
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

static void parse_for(struct parser *p, struct syntax *n)
{
    n->a = parse_target(p, false);
    if (!skip_name(p, "in")) parse_fail(p, n->line, "expected 'in' in {%% for %%}");
    n->b = parse_tuple(p, false, false);
    if (skip_name(p, "if")) n->c = parse_expression(p, true);
    if (at_name(p, "recursive")) parse_fail(p, n->line, "a recursive loop is not supported");
    p->loops++;
    one_body(p, n, "endfor");
    p->loops--;
}

static void parse_set(struct parser *p, struct syntax *n)
{
    n->a = parse_target(p, true);
    if (skip_sign(p, "=")) {
        n->b = parse_tuple(p, true, false);
        return;
    }
    n->kind = NODE_SET_BLOCK;
    if (at_sign(p, "|")) parse_fail(p, n->line, "a filter in {%% set %%} without = is not supported");
    p->blocks++;
    one_body(p, n, "endset");
    p->blocks--;
}

static void parse_macro(struct parser *p, struct syntax *n)
{
    VEC(struct syntax *) defaults = {0};
    VEC(const char *) names = {0};
    n->name = expect_name(p);
    *name_bound(n->name) = true;
    expect_sign(p, "(");
    while (!at_sign(p, ")")) {
        if (names.n) expect_sign(p, ",");
        const char *name = expect_name(p);
        for (uint32_t i = 0; i < names.n; i++)
            if (names.at[i] == name) parse_fail(p, n->line, "the macro has two arguments '%s'", name);
        parse_push(p, &names, name);
        *name_bound(name) = true;
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
    const struct syntax *around = p->macro;
    p->loops = 0;
    p->macro = n;
    one_body(p, n, "endmacro");
    p->loops = loops;
    p->macro = around;
}

/* Parses {% generation %}. Answers are ranges of the whole output, so that the tag may not be where
 * text is collected for another use. */
static void parse_generation(struct parser *p, struct syntax *n)
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
}

static void parse_filter_block(struct parser *p, struct syntax *n)
{
    n->a = parse_filters(p, NULL);
    p->blocks++;
    one_body(p, n, "endfilter");
    p->blocks--;
}

static void parse_loop_control(struct parser *p, struct syntax *n)
{
    if (!p->loops) parse_fail(p, n->line, "'%s' outside of a loop", n->kind == NODE_BREAK ? "break" : "continue");
}

static const struct {
    const char *name;
    enum node_kind kind;
    void (*parse)(struct parser *p, struct syntax *n);
} statements[] = {
    {"if", NODE_IF, parse_if},
    {"for", NODE_FOR, parse_for},
    {"set", NODE_SET, parse_set},
    {"macro", NODE_MACRO, parse_macro},
    {"filter", NODE_FILTER_BLOCK, parse_filter_block},
    {"generation", NODE_GENERATION, parse_generation},
    {"break", NODE_BREAK, parse_loop_control},
    {"continue", NODE_CONTINUE, parse_loop_control},
};

static struct syntax *parse_statement(struct parser *p)
{
    const struct lexeme *l = p->at++;
    for (size_t i = 0; i < COUNT(statements); i++) {
        if (strcmp(statements[i].name, l->at)) continue;
        struct syntax *n = node_new(p, statements[i].kind, l->line);
        statements[i].parse(p, n);
        return n;
    }
    if (!strcmp(l->at, "else")) parse_fail(p, l->line, "{%% else %%} outside of {%% if %%} is not supported");
    parse_fail(p, l->line, "unknown statement '%s'", l->at);
}

/* ---- a whole template ---- */

static void check_calls(struct parser *p)
{
    for (uint32_t i = 0; i < p->calls.n; i++) {
        const char *name = p->calls.at[i]->a->name;
        if (!function_known(name) && !*name_bound(name))
            parse_fail(p, p->calls.at[i]->line, "unknown function '%s'", name);
    }
}

/* Refuses names with a meaning in Jinja that we do not give them. */
static void check_names(struct parser *p)
{
    static const char *const words[] = {"self", "super", "caller", "varargs", "kwargs"};
    for (uint32_t i = 0; i < p->tokens.n; i++) {
        const struct lexeme *l = &p->tokens.at[i];
        if (l->kind != TOKEN_NAME || (i && p->tokens.at[i - 1].kind == TOKEN_SIGN && p->tokens.at[i - 1].at[0] == '.'))
            continue;
        for (size_t w = 0; w < COUNT(words); w++)
            if (!strcmp(words[w], l->at) && !*name_bound(l->at))
                parse_fail(p, l->line, "'%s' is not supported", l->at);
    }
}

/* Copies a text with line ends "\n" and without the last one, as Jinja does. Returns the length, or
 * n + 1 when the text is not UTF-8. */
static size_t normalize(const char *source, size_t n, char *out)
{
    size_t length = 0;
    for (size_t i = 0; i < n;) {
        uint32_t code;
        const int k = utf8_decode(source + i, n - i, &code);
        if (!k) return n + 1;
        if (code == '\r') {
            out[length++] = '\n';
            i += 1 + (i + 1 < n && source[i + 1] == '\n');
            continue;
        }
        memcpy(out + length, source + i, (size_t)k);
        length += (size_t)k;
        i += (size_t)k;
    }
    return length && out[length - 1] == '\n' ? length - 1 : length;
}

/* Parses the tokens. It is a function of its own, since setjmp leaves locals undefined. */
static int parse_source(struct parser *p, const char *source, size_t n)
{
    if (setjmp(p->stop)) return p->e->code;
    lex(p, source, n);
    p->at = p->tokens.at;
    p->t->body = parse_body(p, NULL, 1);
    check_calls(p);
    check_names(p);
    return PL_OK;
}

int template_read(struct template **out, const char *source, size_t n, const char *name, struct error *e)
{
    enum { SOURCE_LIMIT = 4 << 20 };
    *out = NULL;
    if (n > SOURCE_LIMIT)
        return error_set(e, PL_USAGE, "%s: the template has more than %d MiB", name, SOURCE_LIMIT >> 20);
    struct template *t = mem_alloc(sizeof *t);
    char *text = bump_alloc(&t->memory, n + 1);
    t->name = bump_string(&t->memory, name);
    const size_t length = normalize(source, n, text);
    struct parser p = {.t = t, .e = e};
    int rc = PL_OK;
    if (length > n) rc = error_set(e, PL_USAGE, "%s: the template is not UTF-8", name);
    if (!rc) {
        text[length] = 0;
        t->source = text;
        t->loop = intern(&p, "loop", 4);
        rc = parse_source(&p, text, length);
    }
    vec_free(&p.tokens);
    if (rc) template_close(t);
    else *out = t;
    return rc;
}

void template_close(struct template *t)
{
    if (!t) return;
    bump_free(&t->memory);
    mem_free(t);
}

/* Reports whether the template has the name. */
static bool has_word(const struct template *t, const char *name)
{
    for (uint32_t i = 0; i < t->n_slots; i++)
        if (t->words[i] && !strcmp(t->words[i]->text, name)) return true;
    return false;
}

int template_set_kwargs(struct template *t, const char *json, struct error *e)
{
    static const char *const own[] = {"messages", "tools", "add_generation_prompt"};
    t->kwargs = NULL;
    if (!json) return PL_OK;
    struct value *map;
    TRY(json_parse(json, strlen(json), &t->memory, &map, e));
    TRY(value_as_map(map, "chat_template_kwargs", e));
    for (uint32_t i = 0; i < map->count; i++) {
        const char *name = map->items[i]->key;
        bool decided = text_ends_with(name, "_token");
        for (size_t k = 0; k < COUNT(own); k++) decided |= !strcmp(own[k], name);
        if (decided) return error_set(e, PL_USAGE, "%s is decided by the conversation or the tokenizer", name);
        if (!has_word(t, name))
            return error_set(e, PL_USAGE, "%s has no variable %s: it would have no effect", t->name, name);
    }
    t->kwargs = map;
    return PL_OK;
}

const struct value *template_kwargs(const struct template *t) { return t->kwargs; }

uint64_t template_fingerprint(const struct template *t)
{
    struct text text = {0};
    uint64_t sum = hash_bytes(t->source, strlen(t->source), 1);
    if (t->kwargs) json_write(t->kwargs, 0, &text), sum = hash_bytes(text.at, text.n, sum);
    text_free(&text);
    return sum;
}

const char *template_source(const struct template *t)
{
    return t->source;
}

bool template_marks_answers(const struct template *t)
{
    return t->marks_answers;
}
