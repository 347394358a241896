/*
 * read.c: reading a whole template, and the memory and names of a parser.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/template/parse.h"

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

static struct word *word_of(const char *name)
{
    return (struct word *)(name - offsetof(struct word, text));
}

void bind_name(const char *name)
{
    word_of(name)->bound = true;
}

bool name_is_bound(const char *name)
{
    return word_of(name)->bound;
}

/* ---- a whole template ---- */

/* Line ends become "\n", and the last one is dropped, as Jinja does. Returns the length, or n + 1
 * when the text is not UTF-8. */
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

/* In a function of its own, since setjmp leaves locals undefined. */
static int parse_source(struct parser *p, const char *source, size_t n)
{
    if (setjmp(p->stop)) return p->e->code;
    lex(p, source, n);
    p->at = p->tokens.at;
    p->t->body = parse_template(p);
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

const char *template_source(const struct template *t)
{
    return t->source;
}

bool template_marks_answers(const struct template *t)
{
    return t->marks_answers;
}
