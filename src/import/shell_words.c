/*
 * shell_words.c: see shell_words.h.
 */
#include "import/shell_words.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_EXPANDED = 1 << 18 };

/* --- words ----------------------------------------------------------------------------------- */

/* The end of $(...) or `...`, at its first bracket or quote. */
static const char *expression_end(const char *s)
{
    int depth = 0;
    if (*s == '`') return strchr(s + 1, '`') ? strchr(s + 1, '`') + 1 : s + strlen(s);
    for (; *s; s++) {
        depth += (*s == '(') - (*s == ')');
        if (!depth) return s + 1;
    }
    return s;
}

/* A variable of the file, else one of the environment, as in a shell; NULL: it has no value. */
static const char *variable(struct shell *s, const char *name)
{
    const struct value *v = value_get(s->variables, name);
    if (v && v->text) return v->text;
    return isalpha((unsigned char)*name) || *name == '_' ? getenv(name) : NULL;
}

/* What stands in ${...}: NAME, NAME:-default, NAME[@]. */
static const char *braces(struct shell *s, char *inside, bool *list)
{
    const size_t n = strcspn(inside, ":-=[");
    const char *rest = inside + n, *word = rest + (*rest == ':') + 1;
    const bool has_default = (*rest == ':' && (rest[1] == '-' || rest[1] == '=')) || *rest == '-' || *rest == '=';
    *list = !strcmp(rest, "[@]") || !strcmp(rest, "[*]");
    if (*rest && !*list && !has_default) return NULL;
    const char *found = variable(s, bump_format(&s->f->memory, "%.*s", (int)n, inside));
    if (has_default && (!found || (!*found && *rest == ':'))) return strpbrk(word, "$`") ? NULL : word;
    return found;
}

/* What a variable without a value lacks: the variable that it was made of. */
static const char *cause(const struct shell *s, const char *unknown)
{
    const struct value *v = value_get(s->causes, unknown + 1);
    return v ? v->text : unknown;
}

/* The value of the variable or expression at s->at, which is behind its $; NULL: it has none, and *unknown names it. *list: it
 * is a list, with an element a line. */
static const char *expand(struct shell *s, bool *list, const char **unknown)
{
    const char *from = s->at, *found = NULL;
    *list = false;
    if (*from == '(' || *from == '`') s->at = expression_end(from);
    else if (*from == '{') s->at += strcspn(from, "}") + (strchr(from, '}') != NULL);
    else {
        while (isalnum((unsigned char)*s->at) || *s->at == '_') s->at++;
        if (s->at == from && *from && strchr("@*#?$!-", *from)) s->at++;
    }
    const int n = (int)(s->at - from);
    if (*from == '{' && n > 1) found = braces(s, bump_format(&s->f->memory, "%.*s", n - 2, from + 1), list);
    else if (*from != '(' && *from != '`') found = variable(s, bump_format(&s->f->memory, "%.*s", n, from));
    for (const char *c = from; c < s->at; c++) s->line += *c == '\n';
    if (!found) *unknown = cause(s, bump_format(&s->f->memory, "$%.*s", n, from));
    else s->expanded += strlen(found);
    return s->expanded > MAX_EXPANDED ? "" : found;
}

static bool ends_command(char c) { return !c || c == '\n' || c == ';' || c == '|' || c == '&' || c == '(' || c == ')' || c == '<' || c == '>'; }

bool shell_is_assignment(const char *word)
{
    size_t n = 0;
    while (isalnum((unsigned char)word[n]) || word[n] == '_') n++;
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
    if (!r->text.n && !r->some && !r->word.unknown) return;
    r->word.text = bump_string(&s->f->memory, r->text.n ? r->text.at : "");
    vec_push(out, r->word);
    r->text.n = 0;
    r->some = false;
    r->word.unknown = NULL;
}

/* Appends the value of a variable. Outside of quotes it may be several words: ARGS="--batch_size 2". */
static void append_value(struct shell *s, struct reading *r, char quote, words *out)
{
    bool list;
    const char *value = expand(s, &list, &r->word.unknown);
    const bool whole = (quote && !list) || (r->text.n && shell_is_assignment(r->text.at));
    while (value && *value) {
        const size_t n = whole ? strlen(value) : strcspn(value, list ? "\n" : " \t\r\n\v\f");
        text_append(&r->text, value, n);
        value += n;
        if (*value) end_word(s, r, out), value++;
    }
}

/* One word, or several from variables; s->at is at its first character. */
static int read_word(struct shell *s, words *out)
{
    struct reading r = {.word = {.line = s->line}};
    const uint32_t line = s->line;
    char quote = 0;
    while (*s->at && (quote || !(isspace((unsigned char)*s->at) || ends_command(*s->at)))) {
        const char c = *s->at++;
        s->line += c == '\n';
        if (c == '\\' && quote != '\'' && *s->at) {
            if (*s->at == '\n') s->line++;
            else text_append(&r.text, s->at, 1);
            s->at++;
        } else if (c == quote) quote = 0;
        else if (!quote && (c == '"' || c == '\'')) quote = c, r.some = true;
        else if (c == '$' && quote != '\'') append_value(s, &r, quote, out);
        else if (c == '`' && quote != '\'') s->at--, append_value(s, &r, quote, out);
        else if (c == '~' && !r.text.n && !r.some && *s->at == '/' && getenv("HOME")) text_printf(&r.text, "%s", getenv("HOME"));
        else text_append(&r.text, &c, 1);
    }
    const bool redirect = *s->at == '>' && r.text.n && strspn(r.text.at, "0123456789") == r.text.n; /* 2>file */
    if (!redirect) end_word(s, &r, out);
    text_free(&r.text);
    if (s->expanded > MAX_EXPANDED) return error_set(s->e, PL_USAGE, "%s:%u: its variables become more than %d bytes", s->name, line, (int)MAX_EXPANDED);
    return quote ? error_set(s->e, PL_USAGE, "%s:%u: a quote %c is not closed", s->name, line, quote) : PL_OK;
}

/* Blanks, escaped ends of lines and comments. */
static void skip_blanks(struct shell *s)
{
    for (;;) {
        if (s->at[0] == '\\' && s->at[1] == '\n') s->at += 2, s->line++;
        else if (s->at[0] == '\\' && s->at[1] == '\r' && s->at[2] == '\n') s->at += 3, s->line++;
        else if (*s->at != '\n' && isspace((unsigned char)*s->at)) s->at++;
        else break;
    }
    if (*s->at == '#') s->at += strcspn(s->at, "\n");
}

/* NAME=(a b): s->at is at the bracket. The elements become lines of the variable's value. */
static int read_list(struct shell *s, struct word *name)
{
    words elements = {0};
    struct text joined = {0};
    int rc = PL_OK;
    s->at++;
    while (*s->at && *s->at != ')' && !rc) {
        skip_blanks(s);
        if (*s->at == '\n') s->line++, s->at++;
        else if (*s->at && ends_command(*s->at) && *s->at != ')') s->at++;
        else if (*s->at && *s->at != ')') rc = read_word(s, &elements);
    }
    s->at += *s->at == ')';
    text_printf(&joined, "%s", name->text);
    for (uint32_t i = 0; i < elements.n; i++) {
        text_printf(&joined, "%s%s", i ? "\n" : "", elements.at[i].text);
        if (elements.at[i].unknown) name->unknown = elements.at[i].unknown;
    }
    name->text = bump_string(&s->f->memory, joined.at);
    name->list = true;
    text_free(&joined);
    vec_free(&elements);
    return rc;
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
        if (*s->at == '(' && last && shell_is_assignment(last->text) && text_ends_with(last->text, "=") && read_list(s, last)) return s->e->code;
    }
    return PL_OK;
}

/* --- variables ------------------------------------------------------------------------------- */

/* Whether a value is an argument of the script, $1, which it does not have here. */
static bool is_argument(const char *unknown) { return unknown[0] == '$' && (isdigit((unsigned char)unknown[1]) || unknown[1] == '@' || (unknown[1] == '{' && isdigit((unsigned char)unknown[2]))); }

void shell_assign(struct shell *s, const struct word *w)
{
    const size_t n = strcspn(w->text, "+=");
    const bool more = w->text[n] == '+';
    const char *name = bump_format(&s->f->memory, "%.*s", (int)n, w->text), *value = w->text + n + 1 + more;
    const struct value *before = value_get(s->variables, name);
    const char *old = before ? before->text : NULL;
    if (w->unknown && old && is_argument(w->unknown)) return;
    if (more && before && !old) return; /* what is added to an unknown value is unknown */
    if (more && !before) old = variable(s, name);
    if (more && old && *old) value = bump_format(&s->f->memory, "%s%s%s", old, w->list ? "\n" : "", value), s->expanded += strlen(value);
    value_put(&s->f->memory, s->variables, name, w->unknown ? value_new(&s->f->memory, VALUE_NULL) : value_string(&s->f->memory, value));
    if (w->unknown && strncmp(w->unknown, "$(", 2) && strncmp(w->unknown, "$`", 2) && !is_argument(w->unknown)) value_put(&s->f->memory, s->causes, name, value_string(&s->f->memory, w->unknown));
}
