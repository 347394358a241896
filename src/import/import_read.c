/*
 * import_read.c: from the files of other programs to a list of their keys and values.
 *
 * JSON and YAML are both read as YAML, of which JSON is a part, so that every value has its line. A
 * DeepSpeed file is Hjson: comments with // and in slash-star are blanked out before. A Python
 * dictionary without names in it reads as YAML too; others are python.c's.
 */
#include <ctype.h>

#include "config/config_rows.h"
#include "import/import_rows.h"
#include "io/file.h"
#include "io/yaml.h"

enum { MAX_FILE = 16 << 20, MAX_DEPTH = 4, MAX_KEYS = 10000 };

/* --- documents ------------------------------------------------------------------------------- */

/* Returns the end of the comment at s, or s. A comment begins after a blank or a bracket: https://a
 * has none. */
static char *comment_end(char *s, char before)
{
    if (s[0] != '/' || (s[1] != '/' && s[1] != '*') || !(isspace((unsigned char)before) || strchr("{}[],:", before)))
        return s;
    if (s[1] == '/') return s + strcspn(s, "\n");
    char *end = strstr(s + 2, "*/");
    return end ? end + 2 : s + strlen(s);
}

/* Overwrites the comments of a document that begins with a brace by blanks; lines stay where they
 * are. */
static void blank_comments(char *s)
{
    char quote = 0, before = ' ';
    for (; *s; before = *s++) {
        if (quote) {
            if (*s == '\\' && s[1]) s++;
            else if (*s == quote) quote = 0;
            continue;
        }
        if (*s == '"' || *s == '\'') quote = *s;
        else if (*s == '#' && isspace((unsigned char)before)) s += strcspn(s, "\n") - (s[strcspn(s, "\n")] == 0);
        else
            for (char *end = comment_end(s, before); s < end; s++)
                if (*s != '\n') *s = ' ';
        if (!*s) break;
    }
}

/* Returns the first character that is not in a comment. */
static char first_character(const char *s)
{
    for (;;) {
        while (isspace((unsigned char)*s)) s++;
        if (s[0] == '/' && s[1] == '*' && strstr(s, "*/")) s = strstr(s, "*/") + 2;
        else if (*s == '#' || (s[0] == '/' && s[1] == '/')) s += strcspn(s, "\n");
        else return *s;
    }
}

/* --- keys ------------------------------------------------------------------------------------ */

struct adding {
    struct import *f;
    enum import_program program;
    const char *file;
    struct error *e;
};

/* Refuses an unknown key, as the programs do; DeepSpeed ignores keys that it does not know at the
 * top. */
static int unknown_key(struct adding *a, const char *key, const struct value *v)
{
    if (v->kind == VALUE_NULL && import_in_section(a->program, bump_format(&a->f->memory, "%s.", key)))
        return PL_OK; /* an empty section */
    const char *nearest = import_nearest(a->program, key, &a->f->memory), *name = import_name(a->program);
    if (a->program == PROGRAM_ds && !import_in_section(a->program, key) && !nearest) {
        vec_push(&a->f->left,
                 ((struct import_left){bump_string(&a->f->memory, key), "DeepSpeed does not know it and ignores it"}));
        return PL_OK;
    }
    if (nearest) error_set(a->e, PL_USAGE, "unknown key %.200s of %s; did you mean %s?", key, name, nearest);
    else
        error_set(a->e, PL_USAGE, "unknown key %.200s of %s; remove it, or set what it means with --set "
                  "(docs/reference/other-programs.md lists the keys that are read)", key, name);
    return error_prepend(a->e, "%s:%u", a->file, v->line);
}

static int refuse_value(const struct adding *a, const struct import_row *r, const char *key, const struct value *v)
{
    char found[96];
    error_set(a->e, PL_USAGE, "%s: found %s: %s", key, value_describe(v, found), r->detail);
    return error_prepend(a->e, "%s:%u", a->file, v->line);
}

static bool one_of(const char *words, const struct value *v)
{
    const char *text = v->kind == VALUE_BOOL ? (v->truth ? "true" : "false") : v->text;
    return *words && text && config_word_index(words, text) >= 0;
}

/* Asks for the value of a variable of a command line: our key is the answer. The ranks and the
 * parts of a batch have one answer. */
static int ask_variable(const struct adding *a, const struct import_row *r, const char *key, const struct value *v)
{
    const char *ours = r->how >= HOW_MICRO && r->how <= HOW_NODES ? "train.effective_batch" : r->ours;
    if (*ours) {
        vec_push(&a->f->questions, ((struct import_question){a->file, v->line, bump_string(&a->f->memory, key), NULL,
                                                             (enum config_key)config_find(ours), v->text}));
        return PL_OK;
    }
    return error_set(a->e, PL_USAGE, "%s:%u: %s: %.200s has no value in this file; write the value in its place",
                     a->file, v->line, key, v->text);
}

/* Adds a key of a file; "auto" of a DeepSpeed file is no value. */
static int add_key(void *to, const struct import_row *r, const char *key, const struct value *v)
{
    struct adding *a = to;
    struct import *f = a->f;
    if (!r) return unknown_key(a, key, v);
    if (v->kind == VALUE_NULL && v->text && r->how != HOW_NONE) return ask_variable(a, r, key, v);
    if (r->how == HOW_CONFIG_FILE) return PL_OK; /* follow_files */
    if (a->program == PROGRAM_ds && v->kind == VALUE_STRING && !strcmp(v->text, "auto")) {
        vec_push(&f->entries, ((struct import_entry){.row = r, .program = a->program,
                                                     .key = bump_string(&f->memory, key), .value = v, .file = a->file,
                                                     .automatic = true}));
        return PL_OK;
    }
    if (r->how == HOW_ONLY && !import_off(v) && !one_of(r->standard, v)) return refuse_value(a, r, key, v);
    if (r->how == HOW_ONLY_TRUE && v->kind != VALUE_NULL && !(v->kind == VALUE_BOOL && v->truth))
        return refuse_value(a, r, key, v);
    if (r->how == HOW_DEEPSPEED && v->kind == VALUE_MAP) return import_add(f, PROGRAM_ds, v, a->file, a->e);
    const bool named = r->how == HOW_SWIFT_DEEPSPEED && v->kind == VALUE_STRING &&
                       path_has_ending(v->text, ".json"); /* others are names of its own files */
    if ((r->how == HOW_DEEPSPEED || named) && v->kind == VALUE_STRING && *v->text) {
        if (import_follow(f, PROGRAM_ds, v->text, a->file, a->e))
            return error_prepend(a->e, "%s:%u: %s", a->file, v->line, key);
        return PL_OK;
    }
    struct value *copy = value_copy(&f->memory, v);
    if (copy->kind == VALUE_STRING && r->how != HOW_NONE) { /* "2e-5" and "true" in quotes */
        copy = yaml_scalar(&f->memory, v->text);
        copy->line = v->line;
    }
    vec_push(&f->entries, ((struct import_entry){.row = r, .program = a->program, .key = bump_string(&f->memory, key),
                                                 .value = copy, .file = a->file, .line = v->line, .given = true}));
    return PL_OK;
}

/* Reads the files of settings that a document names, before its own keys, which override them.
 * *others: it has such keys. */
static int follow_files(struct import *f, enum import_program p, const struct value *map, const char *file,
                        bool *others, struct error *e)
{
    *others = !map->count;
    for (uint32_t i = 0; i < map->count; i++) {
        const struct value *v = map->items[i];
        const struct import_row *r = import_find(p, v->key);
        if (!r || r->how != HOW_CONFIG_FILE || v->kind != VALUE_STRING) *others = true;
        else if (import_follow(f, IMPORT_PROGRAMS, v->text, file, e))
            return error_prepend(e, "%s:%u: %s", file, v->line, v->key);
    }
    return PL_OK;
}

/* Lists a file once for each program: it may have several documents. */
static void list_file(struct import *f, const char *name, const char *program)
{
    for (uint32_t i = 0; i < f->files.n; i++)
        if (!strcmp(f->files.at[i].name, name) && !strcmp(f->files.at[i].program, program)) return;
    vec_push(&f->files, ((struct import_file){name, program}));
}

/* Counts the keys of a map and of the maps in it. */
static uint64_t count_keys(const struct value *v)
{
    uint64_t n = v->kind == VALUE_MAP ? v->count : 0;
    for (uint32_t i = 0; i < v->count && (v->kind == VALUE_MAP || v->kind == VALUE_LIST); i++)
        n += count_keys(v->items[i]);
    return n;
}

int import_add(struct import *f, enum import_program p, const struct value *map, const char *file, struct error *e)
{
    bool others;
    if (count_keys(map) > MAX_KEYS)
        return error_set(e, PL_USAGE, "%s: it has more than %d keys, so it is no configuration", file, (int)MAX_KEYS);
    if (follow_files(f, p == IMPORT_PROGRAMS ? PROGRAM_script : p, map, file, &others, e)) return e->code;
    if (!others) return PL_OK;
    if (p == IMPORT_PROGRAMS) p = import_guess(map, f->programs);
    if (p == IMPORT_PROGRAMS)
        return error_set(e, PL_USAGE, "%s: no key of it is known; expected a configuration of Hugging Face "
                         "TrainingArguments, TRL, LLaMA-Factory, ms-swift, Axolotl, DeepSpeed or Accelerate, or the "
                         "command line of a training script", file);
    if (*import_refused(p))
        return error_set(e, PL_USAGE, "%s is a file of %s: %s", file, import_name(p), import_refused(p));
    struct adding a = {f, p, bump_string(&f->memory, file), e};
    f->programs |= 1u << p;
    if (p != PROGRAM_launch) list_file(f, a.file, import_name(p));
    return import_walk(p, map, &f->memory, add_key, &a);
}

/* --- files ----------------------------------------------------------------------------------- */

/* Refuses a run file of ours: it is no configuration of another program. */
static int refuse_ours(const char *bytes, const char *name, struct error *e)
{
    struct config c;
    struct error ignored;
    config_init(&c);
    bool ours = !config_read_text(&c, bytes, name, &ignored);
    config_free(&c);
    return ours ? error_set(e, PL_USAGE, "%s is a run file of Plimsoll: give it without --config-from", name) : PL_OK;
}

static int add_document(struct import *f, enum import_program p, const struct value *v, const char *bytes,
                        const char *name, struct error *e)
{
    char found[96];
    if (v->kind == VALUE_NULL) return error_set(e, PL_USAGE, "%s is empty, expected a map of keys", name);
    if (v->kind != VALUE_MAP)
        return error_set(e, PL_USAGE, "%s: found %s, expected a map of keys", name, value_describe(v, found));
    if (p == IMPORT_PROGRAMS && refuse_ours(bytes, name, e)) return e->code;
    return import_add(f, p, v, name, e);
}

static int check_text(const char *bytes, size_t n, const char *name, struct error *e)
{
    uint32_t code, line = 1;
    if (memchr(bytes, 0, n)) return error_set(e, PL_USAGE, "%s: it has NUL characters, so it is no text file", name);
    for (size_t i = 0; i < n;) {
        const int length = utf8_decode(bytes + i, n - i, &code);
        if (!length) return error_set(e, PL_USAGE, "%s:%u: the bytes are not UTF-8", name, line);
        line += bytes[i] == '\n';
        i += (size_t)length;
    }
    return PL_OK;
}

static int add_documents(struct import *f, const import_documents *all, const char *name, struct error *e)
{
    for (uint32_t i = 0; i < all->n; i++) {
        const struct import_document *x = &all->at[i];
        if (!x->file) TRY(import_add(f, x->program, x->map, name, e));
        else if (import_follow(f, IMPORT_PROGRAMS, x->file, name, e))
            return error_prepend(e, "%s:%u", name, x->line);
    }
    return PL_OK;
}

/* Reads the parts of a command line, or of Python's notation. */
static int read_parts(struct import *f, const char *text, const char *name, bool command, struct error *e)
{
    import_documents all = {0};
    int rc = (command ? import_read_command : import_read_python)(f, text, name, &all, e);
    if (!rc) rc = add_documents(f, &all, name, e);
    vec_free(&all);
    if (!rc && command && !f->entries.n && !f->left.n && !f->questions.n)
        rc = error_set(e, PL_USAGE, "%s: its command has no option that is known", name);
    return rc;
}

static int read_bytes(struct import *f, enum import_program p, const char *bytes, size_t n, const char *name,
                      struct error *e)
{
    struct value *v;
    char *text = bump_alloc(&f->memory, n + 1);
    if (check_text(bytes, n, name, e)) return e->code;
    memcpy(text, bytes, n);
    text[n] = 0;
    if (first_character(text) == '{') blank_comments(text);
    else if (import_is_command(text, name)) return read_parts(f, text, name, true, e);
    else if (path_has_ending(name, ".py") || import_is_python(text)) return read_parts(f, text, name, false, e);
    if (yaml_parse(text, n, &f->memory, &v, e)) return error_prepend(e, "%s", name);
    return add_document(f, p, v, text, name, e);
}

static int read_file(struct import *f, enum import_program p, const char *path, struct error *e)
{
    char *bytes;
    size_t n;
    if (f->depth >= MAX_DEPTH)
        return error_set(e, PL_USAGE, "%s: more than %d files name each other", path, (int)MAX_DEPTH);
    if (file_read(path, MAX_FILE, &bytes, &n, e)) return e->code;
    f->depth++;
    int rc = read_bytes(f, p, bytes, n, path, e);
    f->depth--;
    mem_free(bytes);
    return rc;
}

int import_read(struct import *f, const char *path, struct error *e) { return read_file(f, IMPORT_PROGRAMS, path, e); }

int import_read_text(struct import *f, const char *bytes, size_t n, const char *name, struct error *e)
{
    return read_bytes(f, IMPORT_PROGRAMS, bytes, n, name, e);
}

/* Tries the folders above the file that names another one too: programs are started in the folder
 * of their project, and name files from there. */
const char *import_locate(struct import *f, const char *path, const char *from)
{
    if (file_exists(path) || *path == '/') return file_exists(path) ? path : NULL;
    char *folder = bump_string(&f->memory, from);
    for (char *slash = strrchr(folder, '/'); slash; slash = strrchr(folder, '/')) {
        *slash = 0;
        const char *there = bump_format(&f->memory, "%s/%s", folder, path);
        if (file_exists(there)) return there;
    }
    return NULL;
}

int import_follow(struct import *f, enum import_program p, const char *path, const char *from, struct error *e)
{
    const char *there = import_locate(f, path, from);
    if (!there)
        return error_set(e, PL_USAGE, "there is no file %.500s, in this folder or in one of those above %s", path,
                         from);
    return read_file(f, p, there, e);
}

void import_free(struct import *f)
{
    vec_free(&f->entries);
    vec_free(&f->set);
    vec_free(&f->left);
    vec_free(&f->questions);
    vec_free(&f->files);
    bump_free(&f->memory);
}
