/*
 * foreign_table.c: the rows of foreign.def: finding a key, walking a document, and which program a document belongs to.
 */
#include <string.h>

#include "config/config_rows.h"
#include "config/foreign_rows.h"
#include "io/yaml.h"

static const struct {
    const char *name;
    enum foreign_program parent;
    bool leaves;
} programs[FOREIGN_PROGRAMS] = {
#define PROGRAM(id, name, parent, leaves) {name, PROGRAM_##parent, leaves},
#define FOREIGN(...)
#include "config/foreign.def"
#undef PROGRAM
#undef FOREIGN
};

static const struct foreign_row rows[] = {
#define PROGRAM(...)
#define FOREIGN(program, key, standard, how, ours, detail) {PROGRAM_##program, key, standard, HOW_##how, ours, detail},
#include "config/foreign.def"
#undef PROGRAM
#undef FOREIGN
};

const char *foreign_name(enum foreign_program p) { return programs[p].name; }

static const struct foreign_row *find_own(enum foreign_program p, const char *key)
{
    for (size_t i = 0; i < COUNT(rows); i++)
        if (rows[i].program == p && !strcmp(rows[i].key, key)) return &rows[i];
    return NULL;
}

static const char *find_nearest(enum foreign_program p, const char *key)
{
    const char *found = NULL;
    int best = INT32_MAX;
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (rows[i].program != p && rows[i].program != programs[p].parent) continue;
        int distance = edit_distance(key, rows[i].key);
        if (distance < best) best = distance, found = rows[i].key;
    }
    return found && config_near(key, best) ? found : NULL;
}

const struct foreign_row *foreign_find(enum foreign_program p, const char *key, const char **nearest)
{
    const char *dot = strrchr(key, '.');
    if (programs[p].leaves && dot) key = dot + 1;
    const struct foreign_row *r = find_own(p, key);
    if (!r) r = find_own(programs[p].parent, key);
    if (nearest) *nearest = r || strlen(key) > 256 ? NULL : find_nearest(p, key);
    return r;
}

/* fp16 is a switch of one program and a section of another. */
static bool takes_map(const struct foreign_row *r) { return r && (r->how == HOW_NONE || r->how == HOW_ONLY || r->how == HOW_SCHEDULE_OPTIONS || r->how == HOW_DEEPSPEED); }

static int walk(enum foreign_program p, const struct value *map, const char *prefix, struct bump *b, foreign_visit *visit, void *to)
{
    int rc = 0;
    for (uint32_t i = 0; i < map->count && !rc; i++) {
        const struct value *v = map->items[i];
        const char *key = *prefix ? bump_format(b, "%s.%s", prefix, v->key) : v->key;
        const struct foreign_row *r = foreign_find(p, key, NULL);
        /* A script's section may have the name of a key of another section. */
        if (v->kind == VALUE_MAP && (!takes_map(r) || programs[p].leaves)) rc = walk(p, v, key, b, visit, to);
        else rc = visit(to, r, key, v);
    }
    return rc;
}

int foreign_walk(enum foreign_program p, const struct value *map, struct bump *b, foreign_visit *visit, void *to) { return walk(p, map, "", b, visit, to); }

/* Whether a key of the program begins with "section.": a known section with a mistyped key counts, too. */
static bool knows_section(enum foreign_program p, const char *key)
{
    const size_t n = strcspn(key, ".") + 1;
    for (size_t i = 0; key[n - 1] && i < COUNT(rows); i++)
        if (rows[i].program == p && !strncmp(rows[i].key, key, n)) return true;
    return false;
}

struct guess {
    enum foreign_program program;
    int known;
};

static int count_known(void *to, const struct foreign_row *row, const char *key, const struct value *v)
{
    struct guess *g = to;
    (void)v;
    g->known += row ? 2 : knows_section(g->program, key);
    return 0;
}

enum foreign_program foreign_guess(const struct value *map, unsigned read)
{
    enum foreign_program found = FOREIGN_PROGRAMS;
    int best = 0;
    for (enum foreign_program p = 0; p < FOREIGN_PROGRAMS; p++) {
        struct bump b = {0};
        struct guess g = {.program = p};
        if (p != PROGRAM_launch) foreign_walk(p, map, &b, count_known, &g);
        if (g.known > best || (g.known && g.known == best && read >> p & 1 && !(read >> found & 1))) best = g.known, found = p;
        bump_free(&b);
    }
    return found;
}

static bool has(const struct foreign *f, enum foreign_program p) { return f->programs >> p & 1; }

static bool is_given(const struct foreign *f, const struct foreign_row *r, enum foreign_program p)
{
    for (uint32_t i = 0; i < f->entries.n; i++)
        if (f->entries.at[i].program == p && !strcmp(f->entries.at[i].row->key, r->key)) return true;
    return false;
}

static void add_default(struct foreign *f, const struct foreign_row *r, enum foreign_program p)
{
    const char *file = "";
    if (is_given(f, r, p)) return;
    for (uint32_t i = 0; i < f->files.n && !*file; i++)
        if (!strcmp(f->files.at[i].program, programs[p].name)) file = f->files.at[i].name;
    vec_push(&f->entries, ((struct foreign_entry){.row = r, .program = p, .key = r->key, .value = yaml_scalar(&f->memory, r->standard), .file = file}));
}

void foreign_add_defaults(struct foreign *f)
{
    for (enum foreign_program p = 0; p < FOREIGN_PROGRAMS; p++)
        for (size_t i = 0; i < COUNT(rows) && has(f, p); i++) {
            const struct foreign_row *r = &rows[i];
            if (!*r->standard || r->how == HOW_ONLY) continue;
            if (r->program == p || (r->program == programs[p].parent && !find_own(p, r->key))) add_default(f, r, p);
        }
}

bool foreign_off(const struct value *v)
{
    static const char *const words[] = {"", "none", "None", "no", "off", "false", "null"};
    if (v->kind == VALUE_NULL) return true;
    if (v->kind == VALUE_BOOL) return !v->truth;
    if (v->kind == VALUE_NUMBER) return v->number == 0;
    if (v->kind == VALUE_MAP && value_get(v, "enabled")) return foreign_off(value_get(v, "enabled"));
    if (v->kind != VALUE_STRING) return !v->count;
    for (size_t i = 0; i < COUNT(words); i++)
        if (!strcmp(v->text, words[i])) return true;
    return false;
}
