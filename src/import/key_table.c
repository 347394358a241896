/*
 * key_table.c: the rows of import.def and ignored.def: finding a key, walking a document, and which
 * program a document belongs to.
 */
#include "config/config_rows.h"
#include "import/import_rows.h"
#include "io/yaml.h"

static const struct {
    const char *name;
    enum import_program parent;
    bool leaves;
    const char *refused;
} programs[IMPORT_PROGRAMS] = {
#define PROGRAM(id, name, parent, leaves, refused) {name, PROGRAM_##parent, leaves, refused},
#include "import/import.def"
};

/* The meanings of keys: the rows of both tables. */
static const struct meaning {
    const char *keys;
    enum import_how how;
    const char *ours, *detail;
} meanings[] = {
#define KEY(keys, how, ours, detail) {keys, HOW_##how, ours, detail},
#include "import/import.def"
#define IGNORED(class, text, keys) {keys, HOW_NONE, "", text},
#include "import/ignored.def"
};

static enum import_program program_of(const char *id, size_t n)
{
    static const char *const ids[IMPORT_PROGRAMS] = {
#define PROGRAM(id, ...) #id,
#include "import/import.def"
    };
    for (enum import_program p = 0; p < IMPORT_PROGRAMS; p++)
        if (strlen(ids[p]) == n && !memcmp(ids[p], id, n)) return p;
    CHECK(false, "there is no program %.*s", (int)n, id);
    return IMPORT_PROGRAMS;
}

/* Returns the keys a|b of "prefix/a|b", n characters, each with its prefix. */
static const char *with_prefix(struct bump *b, const char *s, size_t n)
{
    const size_t before = strcspn(s, "/=| ");
    if (s[before] != '/') return bump_format(b, "%.*s", (int)n, s);
    const char *keys = "";
    for (size_t at = before + 1, length; at < n; at += length + 1) {
        length = strcspn(s + at, "|= ");
        keys = bump_format(b, "%s%s%.*s%.*s", keys, *keys ? "|" : "", (int)before, s, (int)length, s + at);
    }
    return keys;
}

/* Reads "program,program:key|key=default ..." into a row for each program and default. */
static void read_meaning(const struct meaning *m, struct bump *b, import_rows *rows)
{
    for (const char *s = m->keys; *s; s += strspn(s, " ")) {
        const char *key = s + strcspn(s, ":") + 1, *end = key + strcspn(key, " ");
        const size_t n = strcspn(key, "= ");
        const char *keys = with_prefix(b, key, n),
                   *standard = key[n] == '=' ? bump_format(b, "%.*s", (int)(end - key - n - 1), key + n + 1) : "";
        for (size_t length; s < key; s += length + 1) {
            length = strcspn(s, ",:");
            vec_push(rows, ((struct import_row){program_of(s, length), keys, standard, m->how, m->ours, m->detail}));
        }
        s = end;
    }
}

const import_rows *import_all_rows(void)
{
    static import_rows rows;
    static struct bump memory; /* as long as the program runs */
    if (rows.n) return &rows;
    for (size_t i = 0; i < COUNT(meanings); i++) read_meaning(&meanings[i], &memory, &rows);
    return &rows;
}

const char *import_name(enum import_program p) { return programs[p].name; }
const char *import_refused(enum import_program p) { return programs[p].refused; }

/* Calls `visit` for each key of the program and its parent; stops at a true result. */
static bool each_key_of(enum import_program p, bool (*visit)(void *to, const char *key), void *to)
{
    char key[128];
    const import_rows *rows = import_all_rows();
    for (uint32_t i = 0; i < rows->n; i++) {
        const struct import_row *r = &rows->at[i];
        if (r->program != p && r->program != programs[p].parent) continue;
        for (const char *s = r->key; *s;) {
            const size_t n = strcspn(s, "|");
            snprintf(key, sizeof key, "%.*s", (int)n, s);
            if (visit(to, key)) return true;
            s += n + (s[n] != 0);
        }
    }
    return false;
}

/* Tells whether the list has the key; "swanlab_*" has all that begin with swanlab_. */
static bool has_key(const char *keys, const char *key)
{
    for (size_t n = strlen(key), length; n && *keys; keys += length + (keys[length] != 0)) {
        length = strcspn(keys, "|");
        const size_t same = length && keys[length - 1] == '*' ? length - 1 : length;
        if ((same < length ? n > same : n == same) && !memcmp(keys, key, same)) return true;
    }
    return false;
}

static const struct import_row *find_own(enum import_program p, const char *key)
{
    const import_rows *rows = import_all_rows();
    for (uint32_t i = 0; i < rows->n; i++)
        if (rows->at[i].program == p && has_key(rows->at[i].key, key)) return &rows->at[i];
    return NULL;
}

struct nearest {
    const char *key;
    char found[128];
    int distance;
};

static bool compare(void *to, const char *key)
{
    struct nearest *n = to;
    const int distance = edit_distance(n->key, key);
    if (distance < n->distance) n->distance = distance, snprintf(n->found, sizeof n->found, "%s", key);
    return false;
}

const char *import_nearest(enum import_program p, const char *key, struct bump *b)
{
    struct nearest n = {.key = key, .distance = INT32_MAX};
    if (strlen(key) > 256) return NULL;
    each_key_of(p, compare, &n);
    return config_near(key, n.distance) ? bump_string(b, n.found) : NULL;
}

static const struct import_row *find(enum import_program p, const char *key)
{
    const struct import_row *r = find_own(p, key);
    return r || programs[p].parent == p ? r : find_own(programs[p].parent, key);
}

/* Finds the row of a key. One of fsdp_config may be written with or without fsdp_ before it. The
 * key a.b.c of a script is found by its end: b.c, else c. */
const struct import_row *import_find(enum import_program p, const char *key)
{
    char plain[160];
    if (!strncmp(key, "fsdp_config.fsdp_", 17)) {
        snprintf(plain, sizeof plain, "fsdp_config.%s", key + 17);
        key = plain;
    }
    const char *last = strrchr(key, '.'), *both = last;
    if (!programs[p].leaves || !last) return find(p, key);
    while (both > key && both[-1] != '.') both--;
    const struct import_row *r = find(p, both);
    return r ? r : find(p, last + 1);
}

static bool begins_with(void *section, const char *key)
{
    const size_t n = strlen(section);
    return !strncmp(section, key, n) && key[n] == '.';
}

/* Reports whether keys of the program, or of its parent, begin with "section.". */
static bool has_section(enum import_program p, const char *section)
{
    return each_key_of(p, begins_with, (char *)section);
}

/* Reports whether the row takes a map as its value: fp16 is a switch of one program and a section
 * of another. */
static bool takes_map(const struct import_row *r)
{
    static const enum import_how hows[] = {HOW_NONE, HOW_ONLY, HOW_ASK, HOW_VALUE, HOW_SCHEDULE_OPTIONS, HOW_DEEPSPEED,
                                           HOW_AXOLOTL_DATASETS, HOW_AXOLOTL_TESTS, HOW_AXOLOTL_TOKENS};
    for (size_t i = 0; r && i < COUNT(hows); i++)
        if (r->how == hows[i]) return true;
    return false;
}

static int walk(enum import_program p, const struct value *map, const char *prefix, struct bump *b, import_visit *visit,
                void *to)
{
    int rc = 0;
    for (uint32_t i = 0; i < map->count && !rc; i++) {
        const struct value *v = map->items[i];
        const char *key = *prefix ? bump_format(b, "%s.%s", prefix, v->key) : v->key;
        const struct import_row *r = import_find(p, key);
        /* A script's section may have the name of a key of another section. */
        if (v->kind == VALUE_MAP && (!takes_map(r) || programs[p].leaves || has_section(p, key)))
            rc = walk(p, v, key, b, visit, to);
        else rc = visit(to, r, key, v);
    }
    return rc;
}

int import_walk(enum import_program p, const struct value *map, struct bump *b, import_visit *visit, void *to)
{
    return walk(p, map, "", b, visit, to);
}

bool import_in_section(enum import_program p, const char *key)
{
    char section[128];
    const size_t n = strcspn(key, ".");
    if (!key[n] || n >= sizeof section) return false;
    snprintf(section, sizeof section, "%.*s", (int)n, key);
    return has_section(p, section);
}

struct guess {
    enum import_program program;
    int known;
};

/* Counts a known key; a known section with a mistyped key counts, too. */
static int count_known(void *to, const struct import_row *row, const char *key, const struct value *v)
{
    struct guess *g = to;
    (void)v;
    g->known += row ? 2 : import_in_section(g->program, key);
    return 0;
}

enum import_program import_guess(const struct value *map, unsigned read)
{
    enum import_program found = IMPORT_PROGRAMS;
    int best = 0;
    for (enum import_program p = 0; p < IMPORT_PROGRAMS; p++) {
        struct bump b = {0};
        struct guess g = {.program = p};
        if (p != PROGRAM_launch) import_walk(p, map, &b, count_known, &g);
        if (g.known > best || (g.known && g.known == best && read >> p & 1 && !(read >> found & 1)))
            best = g.known, found = p;
        bump_free(&b);
    }
    return found;
}

static bool has(const struct import *f, enum import_program p) { return f->programs >> p & 1; }

static bool is_given(const struct import *f, const struct import_row *r, enum import_program p)
{
    for (uint32_t i = 0; i < f->entries.n; i++)
        if (f->entries.at[i].program == p && f->entries.at[i].row == r) return true;
    return false;
}

static void add_default(struct import *f, const struct import_row *r, enum import_program p)
{
    const char *file = "";
    if (is_given(f, r, p)) return;
    for (uint32_t i = 0; i < f->files.n && !*file; i++)
        if (!strcmp(f->files.at[i].program, programs[p].name)) file = f->files.at[i].name;
    vec_push(&f->entries,
             ((struct import_entry){
                 .row = r, .program = p, .key = r->key, .value = yaml_scalar(&f->memory, r->standard), .file = file}));
}

void import_add_defaults(struct import *f)
{
    const import_rows *rows = import_all_rows();
    for (enum import_program p = 0; p < IMPORT_PROGRAMS; p++)
        for (uint32_t i = 0; i < rows->n && has(f, p); i++) {
            const struct import_row *r = &rows->at[i];
            if (!*r->standard || r->how == HOW_ONLY || r->how == HOW_ASK || r->how == HOW_COMMUNICATION) continue;
            if (r->program == p || (r->program == programs[p].parent && !find_own(p, r->key))) add_default(f, r, p);
        }
}

bool import_off(const struct value *v)
{
    if (v->kind == VALUE_NULL) return true;
    if (v->kind == VALUE_BOOL) return !v->truth;
    if (v->kind == VALUE_NUMBER) return v->number == 0;
    if (v->kind == VALUE_MAP && value_get(v, "enabled")) return import_off(value_get(v, "enabled"));
    if (v->kind != VALUE_STRING) return !v->count;
    return !*v->text || config_word_index("none|None|no|off|false|null", v->text) >= 0;
}
