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
#include <stdlib.h>
#include <string.h>

#include "text/template/parse.h"
#include "text/template/unicode.h"

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
    for (int n; at < end && code_is_space(code_at(at, &n)); at += n) {}
    return at;
}

static const char *trim_blanks(const char *from, const char *end)
{
    while (end > from) {
        const char *last = end - 1;
        int n;
        while (last > from && ((unsigned char)*last & 0xc0) == 0x80) last--;
        if (!code_is_space(code_at(last, &n))) break;
        end = last;
    }
    return end;
}

static bool starts(const struct lexer *x, const char *at, const char *with)
{
    const size_t n = strlen(with);
    return (size_t)(x->end - at) >= n && !memcmp(at, with, n);
}

/* Behind a tag that ends at `at` with `close`: "-" eats blanks, a block's end eats one line end.
 * NULL: the tag does not end here. */
static const char *tag_end(const struct lexer *x, const char *at, const char *close, bool block)
{
    if (starts(x, at, close)) return at + 2 + (block && at + 2 < x->end && at[2] == '\n');
    if (at < x->end && *at == '-' && starts(x, at + 1, close)) return skip_blanks(at + 3, x->end);
    if (block && at < x->end && *at == '+' && starts(x, at + 1, close)) return at + 3;
    return NULL;
}

/* The text before a tag, whose sign is '-', '+' or none. */
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

/* Jinja accepts a comment, and raw text, that begins at the very end. */
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

/* {% raw %}: its length up to the text, or NULL when the tag is another one. */
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

static void put_code(struct parser *p, char *out, uint32_t *n, uint32_t line, uint32_t code)
{
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        parse_fail(p, line, "an escape in a string is no character");
    *n += (uint32_t)code_encode(code, out + *n);
}

static uint32_t escape_digits(struct lexer *x, const char *at, const char *end, int n)
{
    uint32_t code = 0;
    for (int i = 0; i < n; i++) {
        if (at + i >= end || !isxdigit((unsigned char)at[i]))
            parse_fail(x->p, x->line, "an escape in a string needs %d hexadecimal digits", n);
        const char c = (char)tolower((unsigned char)at[i]);
        code = code << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return code;
}

/* One escape of Python at the backslash; returns the text behind it. */
static const char *unescape(struct lexer *x, const char *at, const char *end, char *out, uint32_t *n)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char c = at[1];
    const char *simple = strchr(from, c);
    if (c == '\n') return at + 2;
    if (c && simple) return out[(*n)++] = to[simple - from], at + 2;
    if (c == 'x' || c == 'u' || c == 'U') {
        const int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        put_code(x->p, out, n, x->line, escape_digits(x, at + 2, end, digits));
        return at + 2 + digits;
    }
    if (c == 'N') parse_fail(x->p, x->line, "\\N in a string is not supported; write the character itself");
    if ((unsigned char)c >= 0x80) parse_fail(x->p, x->line, "a backslash before a character that is not ASCII");
    if (c < '0' || c > '7') return out[(*n)++] = '\\', at + 1; /* kept as it is */
    uint32_t code = 0;
    const char *most = at + 4 < end ? at + 4 : end;
    for (at++; at < most && *at >= '0' && *at <= '7'; at++) code = code * 8 + (uint32_t)(*at - '0');
    put_code(x->p, out, n, x->line, code);
    return at;
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

/* Digits with single underscores between them; returns their end. */
static const char *digits_end(const char *at, const char *end, bool (*is)(char))
{
    if (at >= end || !is(*at)) return at;
    for (at++; at < end; at++)
        if (!is(*at) && !(*at == '_' && at + 1 < end && is(at[1]))) break;
    return at;
}
static bool is_decimal(char c) { return c >= '0' && c <= '9'; }
static bool is_hex(char c) { return isxdigit((unsigned char)c); }
static bool is_octal(char c) { return c >= '0' && c <= '7'; }
static bool is_binary(char c) { return c == '0' || c == '1'; }
static bool is_zero(char c) { return c == '0'; }

/* The end of a float, or NULL when the digits are an integer. */
static const char *float_end(const struct lexer *x)
{
    const char *at = digits_end(x->at, x->end, is_decimal), *whole = at;
    /* a.0.1 */
    if (x->p->tokens.n && x->p->tokens.at[x->p->tokens.n - 1].kind == TOKEN_SIGN && x->at[-1] == '.') return NULL;
    if (at + 1 < x->end && *at == '.' && is_decimal(at[1])) at = digits_end(at + 1, x->end, is_decimal);
    if (at < x->end && (*at == 'e' || *at == 'E')) {
        const char *exponent = at + 1 + (at + 1 < x->end && (at[1] == '+' || at[1] == '-'));
        const char *end = digits_end(exponent, x->end, is_decimal);
        if (end > exponent) at = end;
    }
    return at > whole ? at : NULL;
}

static const char *integer_end(const struct lexer *x, int *base)
{
    const char c = x->at[0] == '0' && x->at + 1 < x->end ? (char)tolower((unsigned char)x->at[1]) : 0;
    bool (*is)(char) = c == 'x' ? is_hex : c == 'o' ? is_octal : c == 'b' ? is_binary : NULL;
    *base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
    if (is) {
        const char *from = x->at + 2 + (x->at + 2 < x->end && x->at[2] == '_'), *end = digits_end(from, x->end, is);
        if (end > from) return end;
        *base = 10;
    }
    return digits_end(x->at, x->end, x->at[0] == '0' ? is_zero : is_decimal);
}

static void lex_number(struct lexer *x)
{
    char text[80];
    uint32_t n = 0;
    int base = 10;
    const char *end = float_end(x);
    const bool whole = !end;
    if (whole) end = integer_end(x, &base);
    for (const char *at = x->at + (base == 10 ? 0 : 2); at < end && n + 1 < sizeof text; at++)
        if (*at != '_') text[n++] = *at;
    text[n] = 0;
    if (n + 1 == sizeof text) parse_fail(x->p, x->line, "a number has more than 78 digits");
    push(x, whole ? TOKEN_INT : TOKEN_FLOAT, x->at, (size_t)(end - x->at));
    struct lexeme *l = &x->p->tokens.at[x->p->tokens.n - 1];
    errno = 0;
    if (whole) l->i = strtoll(text, NULL, base);
    else l->f = strtod(text, NULL);
    if (errno && whole) parse_fail(x->p, x->line, "the number %.40s is beyond 64 bits", text);
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

/* From behind the opening of {{ or {% to behind its end. An end counts only outside of brackets. */
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
        } else if (is_decimal(*x->at)) {
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
