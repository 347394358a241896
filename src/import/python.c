/*
 * python.c: settings in Python's notation, as data:
 *
 *     batch_size = 2                                        a setting, or a name that is used below
 *     config = {'batch_size': 2, 'use_bf16': True}          a document of its own
 *     args = TrainingArguments(                             the same; the class says which program
 *         per_device_train_batch_size=batch_size,
 *         bf16=True,
 *     )
 *
 * Comments, docstrings and imports are skipped. Positional arguments have no effect. Nothing is
 * executed: an expression is refused with its line.
 */
#include <ctype.h>

#include "import/import_rows.h"
#include "io/yaml.h"

enum { MOST_DEPTH = 32, MOST_KEYS = 10000 };

struct python {
    struct import *f;
    const char *name, *at;
    uint32_t line;
    int depth;
    struct value *scalars; /* assigned at the top */
    struct value *used;    /* those that a value names */
    import_documents *documents;
    struct error *e;
};

/* --- words ----------------------------------------------------------------------------------- */

static int fail(struct python *p, const char *what)
{
    const int n = (int)strcspn(p->at, "\n");
    return error_set(p->e, PL_USAGE,
                     "%s:%u: %s: \"%.*s\"; only numbers, texts, True, False, None, lists, dictionaries and calls "
                     "Name(key=value) are read, and nothing is executed",
                     p->name, p->line, what, n > 40 ? 40 : n, p->at);
}

/* Skips blanks, comments and escaped ends of lines; with `lines` ends of lines too. */
static void skip(struct python *p, bool lines)
{
    for (;;) {
        if (*p->at == '#') p->at += strcspn(p->at, "\n");
        else if (p->at[0] == '\\' && p->at[1] == '\n') p->at += 2, p->line++;
        else if (*p->at == '\n' && lines) p->at++, p->line++;
        else if (*p->at != '\n' && isspace((unsigned char)*p->at)) p->at++;
        else return;
    }
}

static bool accept(struct python *p, char c)
{
    skip(p, true);
    if (*p->at != c) return false;
    p->at++;
    return true;
}

/* Returns the length of a name with dots: torch.bfloat16. */
static size_t name_length(const char *s)
{
    size_t n = 0;
    if (!isalpha((unsigned char)*s) && *s != '_') return 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '_' ||
           (s[n] == '.' && (isalpha((unsigned char)s[n + 1]) || s[n + 1] == '_')))
        n++;
    return n;
}

static const char *quote_of(const char *s)
{
    return !strncmp(s, "\"\"\"", 3) || !strncmp(s, "'''", 3) ? (*s == '"' ? "\"\"\"" : "'''") : *s == '"' ? "\"" : "'";
}

/* Reads a text in quotes; p->at is at its first quote. */
static int read_text(struct python *p, struct value **out)
{
    const char *quote = quote_of(p->at);
    struct text text = {0};
    for (p->at += strlen(quote); *p->at && strncmp(p->at, quote, strlen(quote)); p->at++) {
        if (*p->at == '\n' && !quote[1]) break;
        p->line += *p->at == '\n';
        if (*p->at == '\\' && p->at[1]) {
            const char c = *++p->at;
            text_append(&text, c == 'n' ? "\n" : c == 't' ? "\t" : p->at, 1);
        } else text_append(&text, p->at, 1);
    }
    const bool closed = *p->at && *p->at != '\n';
    if (closed) p->at += strlen(quote);
    *out = value_string(&p->f->memory, text.n ? text.at : "");
    text_free(&text);
    return closed ? PL_OK : fail(p, "a quote is not closed");
}

/* --- values ---------------------------------------------------------------------------------- */

static int read_value(struct python *p, struct value **out);

static int read_items(struct python *p, char end, struct value *list)
{
    while (!accept(p, end)) {
        struct value *item;
        if (read_value(p, &item)) return p->e->code;
        value_append(&p->f->memory, list, item);
        if (!accept(p, ',') && (skip(p, true), *p->at != end)) return fail(p, "expected a comma");
    }
    return PL_OK;
}

static int read_pairs(struct python *p, struct value *map)
{
    while (!accept(p, '}')) {
        struct value *key, *item;
        const uint32_t line = p->line;
        if (read_value(p, &key)) return p->e->code;
        if (key->kind != VALUE_STRING) return fail(p, "a key is no text");
        if (!accept(p, ':')) return fail(p, "expected a colon");
        if (read_value(p, &item)) return p->e->code;
        if (map->count >= MOST_KEYS) return fail(p, "too many keys");
        item->line = line;
        value_put(&p->f->memory, map, key->text, item);
        if (!accept(p, ',') && (skip(p, true), *p->at != '}')) return fail(p, "expected a comma");
    }
    return PL_OK;
}

/* Returns the program that a class belongs to; its keys tell where others have a class of this
 * name. */
static enum import_program class_program(const char *name)
{
    static const struct {
        const char *name;
        enum import_program program;
    } classes[] = {{"TrainingArguments", PROGRAM_hf}, {"Seq2SeqTrainingArguments", PROGRAM_hf},
                   {"SFTConfig", PROGRAM_trl},        {"ModelConfig", PROGRAM_trl},
                   {"ScriptArguments", PROGRAM_trl},  {"LoraConfig", PROGRAM_peft}};
    for (size_t i = 0; i < COUNT(classes); i++)
        if (!strcmp(name, classes[i].name)) return classes[i].program;
    return PROGRAM_script;
}

/* Adds what the name of a class says besides its arguments. */
static void add_class(struct python *p, const char *name, uint32_t line, struct value *map)
{
    static const char *const optimizers[] = {"AdamW",     "Adam",     "SGD",           "Adafactor",
                                             "AdamW8bit", "Adam8bit", "PagedAdamW8bit"};
    static const char *const rise[][2] = {{"start_factor", "0.3333333333333333"},
                                          {"total_iters", "5"}}; /* defaults of LinearLR */
    for (size_t i = 0; i < COUNT(optimizers); i++)
        if (!strcmp(name, optimizers[i])) value_put(&p->f->memory, map, "optimizer", value_string(&p->f->memory, name));
    for (size_t i = 0; i < COUNT(rise) && !strcmp(name, "LinearLR"); i++)
        if (!value_get(map, rise[i][0]))
            value_put(&p->f->memory, map, rise[i][0], yaml_scalar(&p->f->memory, rise[i][1]));
    for (uint32_t i = 0; i < map->count; i++)
        if (!map->items[i]->line) map->items[i]->line = line;
}

/* Reads the arguments of Name(...), whose bracket p->at is behind. Keyword arguments become a
 * document. Positional objects and texts are skipped; a positional number is refused, because only
 * the function's signature says what it sets. */
static int read_call(struct python *p, const char *full)
{
    const char *dot = strrchr(full, '.'), *name = dot ? dot + 1 : full;
    const uint32_t line = p->line;
    struct value *map = value_new(&p->f->memory, VALUE_MAP);
    while (!accept(p, ')')) {
        skip(p, true);
        const size_t n = name_length(p->at);
        const uint32_t at = p->line;
        const char *after = p->at + n + strspn(p->at + n, " \t");
        char *key = NULL;
        struct value *item;
        if (n && *after == '=' && after[1] != '=')
            key = bump_format(&p->f->memory, "%.*s", (int)n, p->at), p->at = after + 1;
        else if (*p->at == '*') p->at += 1 + (p->at[1] == '*');
        if (read_value(p, &item)) return p->e->code;
        if (map->count >= MOST_KEYS) return fail(p, "too many keys");
        item->line = at;
        if (!key && item->kind == VALUE_NUMBER)
            return fail(p, "a number without a name in a call: write it as name=value");
        if (key && item->kind != VALUE_MAP) value_put(&p->f->memory, map, key, item);
        else if (key && item->count) value_put(&p->f->memory, map, key, item);
        if (!accept(p, ',') && (skip(p, true), *p->at != ')')) return fail(p, "expected a comma");
    }
    const bool keys = map->count;
    add_class(p, name, line, map);
    if (keys || map->count) vec_push(p->documents, ((struct import_document){class_program(name), map}));
    return PL_OK;
}

/* Reads a name: True, False, None, a name that was assigned above, torch.bfloat16 as a text, or a
 * call, which is an empty map here. */
static int read_name(struct python *p, size_t n, struct value **out)
{
    const char *name = bump_format(&p->f->memory, "%.*s", (int)n, p->at);
    p->at += n;
    if (*p->at == '(') {
        p->at++;
        *out = value_new(&p->f->memory, VALUE_MAP);
        return read_call(p, name);
    }
    const struct value *assigned = value_get(p->scalars, name);
    if (assigned) value_put(&p->f->memory, p->used, name, value_bool(&p->f->memory, true));
    if (!strcmp(name, "True") || !strcmp(name, "False")) *out = value_bool(&p->f->memory, *name == 'T');
    else if (!strcmp(name, "None")) *out = value_new(&p->f->memory, VALUE_NULL);
    else *out = assigned ? value_copy(&p->f->memory, assigned) : value_string(&p->f->memory, name);
    return PL_OK;
}

static int read_number(struct python *p, struct value **out)
{
    char digits[64], *end;
    size_t n = 0, k = 0;
    while (p->at[n] && k + 1 < sizeof digits &&
           (isalnum((unsigned char)p->at[n]) || strchr("._", p->at[n]) ||
            ((p->at[n] == '-' || p->at[n] == '+') && (!n || p->at[n - 1] == 'e' || p->at[n - 1] == 'E')))) {
        if (p->at[n] != '_') digits[k++] = p->at[n];
        n++;
    }
    digits[k] = 0;
    strtod(digits, &end);
    if (!k || *end) return fail(p, "an expression");
    p->at += n;
    *out = yaml_scalar(&p->f->memory, digits);
    return PL_OK;
}

static int read_one(struct python *p, struct value **out)
{
    const size_t n = name_length(p->at);
    const bool prefixed = n == 1 && strchr("rRbBuU", *p->at) && (p->at[1] == '"' || p->at[1] == '\'');
    if (prefixed) p->at++;
    if (*p->at == '"' || *p->at == '\'') return read_text(p, out);
    if (n) return read_name(p, n, out);
    if (accept(p, '{')) return read_pairs(p, *out = value_new(&p->f->memory, VALUE_MAP));
    if (accept(p, '[')) return read_items(p, ']', *out = value_new(&p->f->memory, VALUE_LIST));
    if (accept(p, '(')) return read_items(p, ')', *out = value_new(&p->f->memory, VALUE_LIST));
    return read_number(p, out);
}

/* Reads a value, behind which its statement, list or call ends. */
static int read_value(struct python *p, struct value **out)
{
    skip(p, true);
    if (p->depth >= MOST_DEPTH) return fail(p, "brackets are too deep");
    p->depth++;
    int rc = read_one(p, out);
    p->depth--;
    if (rc) return rc;
    (*out)->line = p->line;
    skip(p, false);
    return !*p->at || strchr(",)]}:\n;", *p->at) ? PL_OK : fail(p, "an expression");
}

/* --- statements ------------------------------------------------------------------------------ */

static bool is_import(const char *s) { return !strncmp(s, "import ", 7) || !strncmp(s, "from ", 5); }

/* Reads [NAME =] VALUE, a docstring, or an import. */
static int read_statement(struct python *p)
{
    struct value *v;
    if (is_import(p->at)) {
        const char *open = strchr(p->at, '('), *end = p->at + strcspn(p->at, "\n");
        if (open && open < end) end = strchr(open, ')') ? strchr(open, ')') + 1 : end;
        for (; p->at < end; p->at++) p->line += *p->at == '\n';
        return PL_OK;
    }
    const size_t n = name_length(p->at);
    const char *after = p->at + n + strspn(p->at + n, " \t");
    const bool assigns = n && *after == '=' && after[1] != '=';
    const char *name = bump_format(&p->f->memory, "%.*s", (int)n, p->at);
    const uint32_t line = p->line;
    if (!assigns && *after != '(' && *p->at != '"' && *p->at != '\'')
        return fail(p, "a statement that is no assignment");
    if (assigns) p->at = after + 1;
    if (read_value(p, &v)) return p->e->code;
    v->line = line;
    if (!assigns) return PL_OK;
    if (p->scalars->count >= MOST_KEYS || p->documents->n >= MOST_KEYS) return fail(p, "too many statements");
    if (v->kind == VALUE_MAP && v->count) vec_push(p->documents, ((struct import_document){IMPORT_PROGRAMS, v}));
    else if (v->kind != VALUE_MAP) value_put(&p->f->memory, p->scalars, name, v);
    return PL_OK;
}

/* Returns the assigned names that no value uses: they are settings themselves. */
static struct value *settings_of(struct python *p)
{
    struct value *map = value_new(&p->f->memory, VALUE_MAP);
    for (uint32_t i = 0; i < p->scalars->count; i++) {
        const struct value *v = p->scalars->items[i];
        if (value_get(p->used, v->key)) continue;
        struct value *copy = value_copy(&p->f->memory, v);
        copy->line = v->line;
        value_put(&p->f->memory, map, v->key, copy);
    }
    return map;
}

bool import_is_python(const char *text)
{
    for (;;) {
        while (isspace((unsigned char)*text)) text++;
        if (*text == '#' && text[1] != '!') text += strcspn(text, "\n");
        else if (is_import(text)) text += strcspn(text, "\n");
        else break;
    }
    const size_t n = name_length(text);
    if (!n) return false;
    if (text[n] == '(') return text[n + 1] != ')'; /* main() begins a function of a shell */
    const char *equals = text + n + strspn(text + n, " \t");
    return *equals == '=' && equals > text + n; /* a shell has no blank there */
}

int import_read_python(struct import *f, const char *text, const char *name, import_documents *out, struct error *e)
{
    struct python p = {.f = f, .name = name, .at = text, .line = 1, .scalars = value_new(&f->memory, VALUE_MAP),
                       .used = value_new(&f->memory, VALUE_MAP), .documents = out, .e = e};
    int rc = PL_OK;
    for (skip(&p, true); *p.at && !rc; skip(&p, true)) {
        rc = read_statement(&p);
        if (!rc) skip(&p, false);
        if (!rc && *p.at == ';') p.at++;
        else if (!rc && *p.at && *p.at != '\n') rc = fail(&p, "an expression");
    }
    struct value *settings = settings_of(&p);
    if (!rc && settings->count) vec_push(out, ((struct import_document){PROGRAM_script, settings}));
    return rc || out->n ? rc : error_set(e, PL_USAGE, "%s: it has no settings", name);
}
