/*
 * key_table.c: the rows of import.def and the lists of ignored.def: finding a key, walking a
 * document, and which program a document belongs to.
 */
#include <stdio.h>
#include <string.h>

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

static const struct import_row rows[] = {
#define KEY(program, key, standard, how, ours, detail) {PROGRAM_##program, key, standard, HOW_##how, ours, detail},
#include "import/import.def"
};

enum reason {
#define REASON(id, ...) REASON_##id,
#include "import/ignored.def"
    REASONS
};
static const char *const reasons[REASONS] = {
#define REASON(id, class, text) text,
#include "import/ignored.def"
};

/* A list of keys without effect; its row serves all of them. */
static const struct ignored {
    const char *prefix, *keys;
    enum reason reason; /* REASONS: the row's own detail */
    struct import_row row;
} ignored[] = {
#define IGNORED(program, reason, prefix, keys)                                                                         \
    {prefix, keys, REASON_##reason, {PROGRAM_##program, "", "", HOW_NONE, "", ""}},
#define IGNORED_OF(program, method, prefix, keys)                                                                      \
    {prefix, keys, REASONS, {PROGRAM_##program, "", "", HOW_NONE, "", "an option for other values of " method}},
#include "import/ignored.def"
};

const char *import_name(enum import_program p) { return programs[p].name; }
const char *import_refused(enum import_program p) { return programs[p].refused; }

/* Calls `visit` for each key of a list, with its prefix; stops at a true result. */
static bool each_key(const char *prefix, const char *keys, bool (*visit)(void *to, const char *key), void *to)
{
    char key[128];
    for (const char *s = keys; *s;) {
        const size_t n = strcspn(s, " |");
        snprintf(key, sizeof key, "%s%.*s", prefix, (int)n, s);
        if (visit(to, key)) return true;
        s += n + (s[n] != 0);
    }
    return false;
}

/* Calls `visit` for each key of the program and its parent. */
static bool each_key_of(enum import_program p, bool (*visit)(void *to, const char *key), void *to)
{
    for (size_t i = 0; i < COUNT(rows); i++)
        if ((rows[i].program == p || rows[i].program == programs[p].parent) && each_key("", rows[i].key, visit, to))
            return true;
    for (size_t i = 0; i < COUNT(ignored); i++)
        if ((ignored[i].row.program == p || ignored[i].row.program == programs[p].parent) &&
            each_key(ignored[i].prefix, ignored[i].keys, visit, to))
            return true;
    return false;
}

/* Tells whether the list has the key; "swanlab_*" has all that begin with swanlab_. */
static bool has_key(const char *prefix, const char *keys, const char *key)
{
    const size_t before = strlen(prefix);
    if (strncmp(key, prefix, before)) return false;
    key += before;
    for (size_t n = strlen(key), length; n && *keys; keys += length + (keys[length] != 0)) {
        length = strcspn(keys, " |");
        const size_t same = length && keys[length - 1] == '*' ? length - 1 : length;
        if ((same < length ? n > same : n == same) && !memcmp(keys, key, same)) return true;
    }
    return false;
}

const char *import_why(const struct import_row *r)
{
    for (size_t i = 0; i < COUNT(ignored); i++)
        if (r == &ignored[i].row && ignored[i].reason != REASONS) return reasons[ignored[i].reason];
    return r->detail;
}

static const struct import_row *find_own(enum import_program p, const char *key)
{
    for (size_t i = 0; i < COUNT(rows); i++)
        if (rows[i].program == p && has_key("", rows[i].key, key)) return &rows[i];
    for (size_t i = 0; i < COUNT(ignored); i++)
        if (ignored[i].row.program == p && has_key(ignored[i].prefix, ignored[i].keys, key)) return &ignored[i].row;
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
    for (enum import_program p = 0; p < IMPORT_PROGRAMS; p++)
        for (size_t i = 0; i < COUNT(rows) && has(f, p); i++) {
            const struct import_row *r = &rows[i];
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
