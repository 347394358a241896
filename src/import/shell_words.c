/*
 * shell_words.c: see shell_words.h.
 */
#include "import/shell_words.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_EXPANDED = 1 << 18 };

static size_t name_length(const char *s)
{
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_') n++;
    return n;
}

/* Returns the end of the brackets that open at s. */
static const char *closing(const char *s)
{
    const char open = *s, close = open == '{' ? '}' : ')';
    for (int depth = 0; *s; s++) {
        depth += (*s == open) - (*s == close);
        if (!depth) return s + 1;
    }
    return s;
}

/* Returns the end of the $NAME, ${...}, $(...), $1 or `...` at s; s: there is none. */
static const char *variable_end(const char *s)
{
    if (*s == '`') return strchr(s + 1, '`') ? strchr(s + 1, '`') + 1 : s + strlen(s);
    if (*s != '$') return s;
    if (s[1] == '(' || s[1] == '{') return closing(s + 1);
    if (s[1] && strchr("@*#?$!-", s[1])) return s + 2;
    return name_length(s + 1) ? s + 1 + name_length(s + 1) : s;
}

static bool ends_command(char c) { return !c || strchr("\n;|&()<>", c); }

bool shell_is_assignment(const char *word)
{
    const size_t n = name_length(word);
    return n && !isdigit((unsigned char)*word) && (word[n] == '=' || (word[n] == '+' && word[n + 1] == '='));
}

/* The word that is being read. */
struct reading {
    struct text text;
    struct word word;
    bool some; /* it is a word even if it has no characters: '' */
};

static void end_word(struct shell *s, struct reading *r, words *out)
{
    if (!r->text.n && !r->some) return;
    r->word.text = bump_string(&s->f->memory, r->text.n ? r->text.at : "");
    vec_push(out, r->word);
    r->text.n = 0;
    r->some = false;
    r->word.unknown = NULL;
}

const char *shell_lacks(struct shell *s, const char *text)
{
    const char *from = strchr(text, '$'), *end = from ? variable_end(from) : NULL;
    return from == end ? NULL : bump_format(&s->f->memory, "%.*s", (int)(end - from), from);
}

/* Appends the value of the variable that ends at `end`, or its name. Outside of quotes a value may be several words:
 * ARGS="--batch_size 2". */
static void append_variable(struct shell *s, struct reading *r, const char *end, char quote, words *out)
{
    const char *from = s->at, *name = from + 1 + (from[1] == '{');
    const size_t n = name_length(name);
    const bool plain = *from == '$' && n && name + n + (from[1] == '{') == end;
    const struct value *v = plain ? value_get(s->variables, bump_format(&s->f->memory, "%.*s", (int)n, name)) : NULL;
    const bool whole = quote || (r->text.n && shell_is_assignment(r->text.at));
    for (; s->at < end; s->at++) s->line += *s->at == '\n';
    if (v) s->expanded += strlen(v->text);
    if (!v || s->expanded > MAX_EXPANDED) {
        text_append(&r->text, from, (size_t)(end - from));
        r->word.unknown = bump_format(&s->f->memory, "%.*s", (int)(end - from), from);
        return;
    }
    for (const char *value = v->text; *value;) {
        const size_t length = whole ? strlen(value) : strcspn(value, " \t\r\n\v\f");
        const char *lacks = shell_lacks(s, bump_format(&s->f->memory, "%.*s", (int)length, value));
        text_append(&r->text, value, length);
        if (lacks) r->word.unknown = lacks;
        value += length;
        if (*value) end_word(s, r, out), value++;
    }
}

/* Reads one word, or several from variables; s->at is at its first character. */
static int read_word(struct shell *s, words *out)
{
    struct reading r = {.word = {.line = s->line}};
    const uint32_t line = s->line;
    char quote = 0;
    while (*s->at && (quote || !(isspace((unsigned char)*s->at) || ends_command(*s->at)))) {
        const char *variable = quote == '\'' ? s->at : variable_end(s->at);
        if (variable > s->at) {
            append_variable(s, &r, variable, quote, out);
            continue;
        }
        const char c = *s->at++;
        s->line += c == '\n';
        if (c == '\\' && quote != '\'' && *s->at) {
            if (*s->at == '\n') s->line++;
            else text_append(&r.text, s->at, 1);
            s->at++;
        } else if (c == quote) quote = 0;
        else if (!quote && (c == '"' || c == '\'')) quote = c, r.some = true;
        else if (c == '~' && !r.text.n && !r.some && *s->at == '/' && getenv("HOME")) text_printf(&r.text, "%s", getenv("HOME"));
        else text_append(&r.text, &c, 1);
    }
    const bool redirect = *s->at == '>' && r.text.n && strspn(r.text.at, "0123456789") == r.text.n; /* 2>file */
    if (!redirect) end_word(s, &r, out);
    text_free(&r.text);
    return quote ? error_set(s->e, PL_USAGE, "%s:%u: a quote %c is not closed", s->name, line, quote) : PL_OK;
}

/* Skips blanks, escaped ends of lines and a comment. */
static void skip_blanks(struct shell *s)
{
    for (;; s->at++) {
        const char *next = s->at + 1 + (s->at[0] == '\\' && s->at[1] == '\r');
        if (*s->at == '\\' && *next == '\n') s->at = next, s->line++;
        else if (*s->at == '\n' || !isspace((unsigned char)*s->at)) break;
    }
    if (*s->at == '#') s->at += strcspn(s->at, "\n");
}

int shell_command(struct shell *s, words *out)
{
    out->n = 0;
    while (*s->at) {
        skip_blanks(s);
        if (!*s->at) break;
        if (ends_command(*s->at)) {
            s->line += *s->at++ == '\n';
            if (out->n) break;
            continue;
        }
        if (read_word(s, out)) return s->e->code;
        struct word *last = out->n ? &out->at[out->n - 1] : NULL;
        if (*s->at != '(' || !last || !shell_is_assignment(last->text) || !text_ends_with(last->text, "=")) continue;
        last->unknown = "a list"; /* NAME=(...) */
        for (const char *end = closing(s->at); s->at < end; s->at++) s->line += *s->at == '\n';
    }
    return PL_OK;
}

void shell_assign(struct shell *s, const struct word *w)
{
    const size_t n = strcspn(w->text, "+="), lacks = w->unknown ? strlen(w->unknown) : 0;
    const char *name = bump_format(&s->f->memory, "%.*s", (int)n, w->text), *value = w->text + n + 1;
    if (lacks && isdigit((unsigned char)w->unknown[strspn(w->unknown, "${")]) && value_get(s->variables, name)) return;
    if (w->text[n] == '+' || (lacks && 1 + name_length(w->unknown + 1) != lacks))
        value = bump_format(&s->f->memory, "$%s", name); /* it is computed */
    value_put(&s->f->memory, s->variables, name, value_string(&s->f->memory, value));
}
