/*
 * lex.c: from the text of a template to tokens.
 *
 *   Hello {{ name -}}  \n {% if x %}\n   y
 *   TEXT  PRINT NAME END  BLOCK NAME NAME END TEXT        "-" eats blanks on its side; a block eats the
 *                                                        blanks before it on its line, and one line
 *                                                        end behind it
 */
#include <ctype.h>
#include <errno.h>

#include "text/template/jinja.h"

struct lexer {
    struct parser *p;
    const char *at, *end;
    uint32_t line;
    bool line_start; /* the last token ended a line */
};

static void push(struct lexer *x, enum token_kind kind, const char *at, size_t n)
{
    vec_push(&x->p->tokens, ((struct lexeme){.kind = kind, .line = x->line, .at = at, .n = (uint32_t)n}));
}

/* Moves to `to` and counts lines. */
static void advance(struct lexer *x, const char *to)
{
    for (; x->at < to; x->at++) x->line += *x->at == '\n';
    x->line_start = to[-1] == '\n';
}

static const char *skip_blanks(const char *at, const char *end)
{
    uint32_t code;
    for (int n; at < end && (n = utf8_next(at, &code), python_is_space(code)); at += n) {}
    return at;
}

static const char *trim_blanks(const char *from, const char *end)
{
    while (end > from) {
        const char *last = end - 1;
        uint32_t code;
        while (last > from && ((unsigned char)*last & 0xc0) == 0x80) last--;
        utf8_next(last, &code);
        if (!python_is_space(code)) break;
        end = last;
    }
    return end;
}

static bool starts(const struct lexer *x, const char *at, const char *with)
{
    const size_t n = strlen(with);
    return (size_t)(x->end - at) >= n && !memcmp(at, with, n);
}

/* Returns the text behind a tag that ends at `at` with `close`: "-" eats blanks, a block's end eats
 * one line end. NULL: the tag does not end here. */
static const char *tag_end(const struct lexer *x, const char *at, const char *close, bool block)
{
    if (starts(x, at, close)) return at + 2 + (block && at + 2 < x->end && at[2] == '\n');
    if (at < x->end && *at == '-' && starts(x, at + 1, close)) return skip_blanks(at + 3, x->end);
    if (block && at < x->end && *at == '+' && starts(x, at + 1, close)) return at + 3;
    return NULL;
}

/* Pushes the text before a tag, whose sign is '-', '+' or none. */
static void push_text(struct lexer *x, const char *tag, char sign, bool block)
{
    const char *end = tag;
    if (sign == '-') {
        end = trim_blanks(x->at, tag);
    } else if (sign != '+' && block) {
        const char *line = tag;
        while (line > x->at && line[-1] != '\n') line--;
        if ((line > x->at || x->line_start) && trim_blanks(line, tag) == line) end = line;
    }
    if (end > x->at) push(x, TOKEN_TEXT, x->at, (size_t)(end - x->at));
    if (tag > x->at) advance(x, tag);
}

/* Goes past a comment. Jinja accepts a comment, and raw text, that begins at the very end. */
static void lex_comment(struct lexer *x, const char *at)
{
    if (at == x->end) return;
    for (; at < x->end; at++) {
        const char *end = tag_end(x, at, "#}", true);
        if (end) {
            advance(x, end);
            return;
        }
    }
    parse_fail(x->p, x->line, "the comment {# has no end #}");
}

/* Returns the text behind {% raw %}, or NULL when the tag is another one. */
static const char *word_tag(const struct lexer *x, const char *at, const char *word, bool end_of_raw)
{
    at = skip_blanks(at, x->end);
    if (!starts(x, at, word)) return NULL;
    at = skip_blanks(at + strlen(word), x->end);
    if (!end_of_raw && starts(x, at, "%}")) return at + 2;
    if (!end_of_raw && starts(x, at, "+%}")) return NULL;
    return tag_end(x, at, "%}", end_of_raw);
}

static void lex_raw(struct lexer *x)
{
    if (x->at == x->end) return;
    for (const char *at = x->at; at < x->end; at++) {
        if (!starts(x, at, "{%")) continue;
        const char sign = at + 2 < x->end && (at[2] == '-' || at[2] == '+') ? at[2] : 0;
        const char *end = word_tag(x, at + 2 + (sign != 0), "endraw", true);
        if (!end) continue;
        push_text(x, at, sign, true);
        advance(x, end);
        return;
    }
    parse_fail(x->p, x->line, "{%% raw %%} has no {%% endraw %%}");
}

/* ---- inside a tag ---- */

/* Unescapes at the backslash; returns the text behind. Python's escapes that no published template
 * uses are refused. */
static const char *unescape(struct lexer *x, const char *at, const char *end, char *out, uint32_t *n)
{
    static const char from[] = "\\'\"nrt", to[] = "\\'\"\n\r\t";
    const char c = at[1], *simple = strchr(from, c);
    if (c && simple) return out[(*n)++] = to[simple - from], at + 2;
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
    uint32_t code = 0;
    if (c != 'x' && c != 'u' && c != 'U')
        parse_fail(x->p, x->line, "the escape \\%.*s in a string is not supported", c == '\n' ? 0 : utf8_length(c),
                   at + 1);
    for (int i = 0; i < digits; i++) {
        const char *d = at + 2 + i;
        if (d >= end || !isxdigit((unsigned char)*d))
            parse_fail(x->p, x->line, "an escape in a string needs %d hexadecimal digits", digits);
        code = code << 4 | (uint32_t)(*d <= '9' ? *d - '0' : tolower((unsigned char)*d) - 'a' + 10);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        parse_fail(x->p, x->line, "an escape in a string is no character");
    *n += (uint32_t)utf8_encode(code, out + *n);
    return at + 2 + digits;
}

static void lex_string(struct lexer *x)
{
    const char quote = *x->at, *end = x->at + 1;
    while (end < x->end && *end != quote) end += *end == '\\' && end + 1 < x->end ? 2 : 1;
    if (end >= x->end) parse_fail(x->p, x->line, "a string has no closing %c", quote);
    char *out = bump_alloc(&x->p->t->memory, (size_t)(end - x->at) + 8);
    uint32_t n = 0;
    for (const char *at = x->at + 1; at < end;) {
        if (*at == '\\') at = unescape(x, at, end, out, &n);
        else out[n++] = *at++;
    }
    push(x, TOKEN_STRING, out, n);
    advance(x, end + 1);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static void lex_number(struct lexer *x)
{
    const char *end = x->at;
    while (end < x->end && is_digit(*end)) end++;
    const bool more = end < x->end && (isalpha((unsigned char)*end) || *end == '_' ||
                                       (*end == '.' && end + 1 < x->end && is_digit(end[1])));
    if (more || (*x->at == '0' && end > x->at + 1))
        parse_fail(x->p, x->line, "the number %.*s is not supported; expected decimal digits",
                   (int)strspn(x->at, "0123456789abcdefABCDEFxXoO_."), x->at);
    push(x, TOKEN_INT, x->at, (size_t)(end - x->at));
    errno = 0;
    x->p->tokens.at[x->p->tokens.n - 1].i = strtoll(x->at, NULL, 10);
    if (errno) parse_fail(x->p, x->line, "the number %.40s is beyond 64 bits", x->at);
    advance(x, end);
}

static void lex_sign(struct lexer *x, char *open, uint32_t *n_open)
{
    static const char *const signs[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (size_t i = 0; i < COUNT(signs); i++) {
        if (!starts(x, x->at, signs[i])) continue;
        const char c = signs[i][0];
        if (c == '(' || c == '[' || c == '{') {
            if (*n_open == PARSE_DEPTH) parse_fail(x->p, x->line, "brackets are nested more than %d deep", PARSE_DEPTH);
            open[(*n_open)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (c == ')' || c == ']' || c == '}') {
            if (!*n_open || open[--*n_open] != c) parse_fail(x->p, x->line, "unexpected %c", c);
        }
        push(x, TOKEN_SIGN, x->at, strlen(signs[i]));
        advance(x, x->at + strlen(signs[i]));
        return;
    }
    parse_fail(x->p, x->line, "unexpected character in a tag");
}

/* Reads the tokens of a tag, from behind {{ or {% to behind its end, which counts only outside of
 * brackets. */
static void lex_tag(struct lexer *x, bool block)
{
    char open[PARSE_DEPTH];
    uint32_t n_open = 0;
    const uint32_t line = x->line;
    while (x->at < x->end) {
        const char *end = n_open ? NULL : tag_end(x, x->at, block ? "%}" : "}}", block),
                   *blanks = skip_blanks(x->at, x->end);
        if (end) {
            push(x, block ? TOKEN_BLOCK_END : TOKEN_PRINT_END, x->at, 2);
            advance(x, end);
            return;
        }
        if (blanks > x->at) {
            advance(x, blanks);
        } else if (is_digit(*x->at)) {
            lex_number(x);
        } else if (isalpha((unsigned char)*x->at) || *x->at == '_') {
            const char *to = x->at;
            while (to < x->end && (isalnum((unsigned char)*to) || *to == '_')) to++;
            push(x, TOKEN_NAME, intern(x->p, x->at, (size_t)(to - x->at)), (size_t)(to - x->at));
            advance(x, to);
        } else if (*x->at == '\'' || *x->at == '"') {
            lex_string(x);
        } else {
            lex_sign(x, open, &n_open);
        }
    }
    parse_fail(x->p, line, "the tag %s has no end", block ? "{%" : "{{");
}

void lex(struct parser *p, const char *source, size_t n)
{
    struct lexer x = {p, source, source + n, 1, true};
    for (const char *at = source; at + 1 < x.end;) {
        if (at[0] != '{' || !strchr("{%#", at[1]) || !at[1]) {
            at++;
            continue;
        }
        const char kind = at[1], sign = at + 2 < x.end && (at[2] == '-' || at[2] == '+') ? at[2] : 0;
        const char *inside = at + 2 + (sign != 0), *raw = kind == '%' ? word_tag(&x, inside, "raw", false) : NULL;
        push_text(&x, at, sign, kind != '{');
        if (raw || kind == '#') {
            advance(&x, raw ? raw : inside);
            if (raw) lex_raw(&x);
            else lex_comment(&x, x.at);
        } else {
            push(&x, kind == '%' ? TOKEN_BLOCK_BEGIN : TOKEN_PRINT_BEGIN, at, 2);
            advance(&x, inside);
            lex_tag(&x, kind == '%');
        }
        at = x.at;
    }
    if (x.at < x.end) push(&x, TOKEN_TEXT, x.at, (size_t)(x.end - x.at));
    push(&x, TOKEN_END, x.end, 0);
}
