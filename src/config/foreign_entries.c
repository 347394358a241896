/*
 * foreign_entries.c: what other programs say: the entry that counts, its value, and a key of ours that is set from it.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_rows.h"
#include "config/foreign.h"
#include "config/foreign_rows.h"
#include "io/yaml.h"

struct value *foreign_word(struct foreign_work *w, const char *text) { return value_string(&w->f->memory, text); }
bool foreign_failed(const struct foreign_work *w) { return w->f->error->code != PL_OK; }
bool foreign_has(const struct foreign_work *w, enum foreign_program p) { return w->f->programs >> p & 1; }

bool foreign_is_hf(const struct foreign_work *w)
{
    static const enum foreign_program trainers[] = {PROGRAM_hf,    PROGRAM_trl,   PROGRAM_lf,
                                                    PROGRAM_llava, PROGRAM_swift, PROGRAM_axolotl};
    for (size_t i = 0; i < COUNT(trainers); i++)
        if (foreign_has(w, trainers[i])) return true;
    return false;
}

void foreign_refuse(struct foreign_work *w, const struct foreign_entry *entry, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    if (foreign_failed(w)) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    error_set(w->f->error, PL_USAGE, "%s", text);
    if (entry && entry->line) error_prepend(w->f->error, "%s:%u: %s", entry->file, entry->line, entry->key);
    else if (entry) error_prepend(w->f->error, "%s: %s", entry->file, entry->key);
}

/* 0: the script and its files; 1: DeepSpeed; 2: Accelerate and launchers. */
static int rank_of(const struct foreign_entry *entry)
{
    return entry->program == PROGRAM_ds ? 1 : entry->program == PROGRAM_accelerate || entry->program == PROGRAM_launch ? 2 : 0;
}

static bool same_value(const struct foreign_entry *a, const struct foreign_entry *b)
{
    const struct value *x = a->value, *y = b->value;
    return x->kind == VALUE_NUMBER && y->kind == VALUE_NUMBER ? x->number == y->number : value_equal(x, y);
}

static bool belongs(const struct foreign_entry *entry, enum foreign_how how, const char *ours)
{
    if (entry->automatic || (entry->given && entry->value->kind == VALUE_NULL))
        return false; /* as if it was not given */
    return ours ? entry->row->how <= HOW_IF_TRUE && !strcmp(entry->row->ours, ours) : entry->row->how == how;
}

/* By fact, or by key of ours for the rows with one value. */
static const struct foreign_entry *pick(struct foreign_work *w, enum foreign_how how, const char *ours)
{
    const struct foreign_entry *given[3] = {0}, *standard[3] = {0};
    char a[96], b[96];
    for (uint32_t i = 0; i < w->f->entries.n; i++) {
        const struct foreign_entry *entry = &w->f->entries.at[i];
        if (!belongs(entry, how, ours)) continue;
        (entry->given ? given : standard)[rank_of(entry)] = entry;
    }
    if (given[0] && given[1] && !same_value(given[0], given[1]))
        foreign_refuse(w, given[0], "it is %s, but in %s:%u %s is %s: they must be the same, or the DeepSpeed file says \"auto\"", value_describe(given[0]->value, a), given[1]->file,
                       given[1]->line, given[1]->key, value_describe(given[1]->value, b));
    for (int i = 0; i < 3; i++)
        if (given[i]) return given[i];
    return standard[0] ? standard[0] : standard[1] ? standard[1] : standard[2];
}

const struct foreign_entry *foreign_pick(struct foreign_work *w, enum foreign_how how) { return pick(w, how, NULL); }
const struct foreign_entry *foreign_pick_for(struct foreign_work *w, const char *ours) { return pick(w, HOW_VALUE, ours); }

const struct foreign_entry *foreign_given(struct foreign_work *w, enum foreign_how how)
{
    const struct foreign_entry *entry = pick(w, how, NULL);
    return entry && entry->given ? entry : NULL;
}

const struct foreign_entry *foreign_any(struct foreign_work *w, enum foreign_how how)
{
    for (uint32_t i = 0; i < w->f->entries.n; i++) {
        const struct foreign_entry *entry = &w->f->entries.at[i];
        if (entry->given && belongs(entry, how, NULL) && foreign_true(w, entry)) return entry;
    }
    return NULL;
}

bool foreign_automatic(const struct foreign_work *w, const char *key)
{
    for (uint32_t i = 0; i < w->f->entries.n; i++)
        if (w->f->entries.at[i].automatic && !strcmp(w->f->entries.at[i].key, key)) return true;
    return false;
}

/* "8x A100" is 8. */
static int64_t leading_number(struct foreign_work *w, const struct foreign_entry *entry)
{
    const char *text = foreign_text(entry);
    const size_t n = strspn(text, "0123456789");
    if (!n || n > 4 || !text[n]) return foreign_whole(w, entry, 1, 4096);
    return max_i64(1, strtol(text, NULL, 10));
}

int64_t foreign_ranks(struct foreign_work *w)
{
    const struct foreign_entry *ranks = foreign_pick(w, HOW_RANKS), *nodes = foreign_pick(w, HOW_NODES);
    if (!ranks && !nodes) return max_i64(1, w->f->ranks);
    return (ranks ? leading_number(w, ranks) : 1) * foreign_whole(w, nodes, 1, 4096);
}

const char *foreign_text(const struct foreign_entry *entry)
{
    if (!entry) return "";
    if (entry->value->kind == VALUE_BOOL) return entry->value->truth ? "true" : "false";
    return entry->value->text ? entry->value->text : "";
}

bool foreign_true(struct foreign_work *w, const struct foreign_entry *entry)
{
    char found[96];
    if (!entry || foreign_off(entry->value)) return false;
    if (entry->value->kind == VALUE_BOOL || (entry->value->kind == VALUE_NUMBER && entry->value->number == 1)) return true;
    if (!strcmp(foreign_text(entry), "yes") || !strcmp(foreign_text(entry), "on")) return true;
    foreign_refuse(w, entry, "found %s, expected true or false", value_describe(entry->value, found));
    return false;
}

double foreign_number(struct foreign_work *w, const struct foreign_entry *entry)
{
    char found[96];
    if (!entry) return 0;
    if (entry->value->kind == VALUE_NUMBER && isfinite(entry->value->number)) return entry->value->number;
    foreign_refuse(w, entry, "found %s, expected a number", value_describe(entry->value, found));
    return 0;
}

int64_t foreign_whole(struct foreign_work *w, const struct foreign_entry *entry, int64_t low, int64_t high)
{
    char found[96];
    struct error ignored;
    int64_t x = low;
    if (!entry) return low;
    if (!value_as_int(entry->value, entry->key, &x, &ignored) && x >= low && x <= high) return x;
    foreign_refuse(w, entry, "found %s, expected a whole number from %lld to %lld", value_describe(entry->value, found), (long long)low, (long long)high);
    return low;
}

/* --- what is set, and what is not ------------------------------------------------------------ */

/* "learning_rate, line 7", with the file's name where there are several. */
static const char *describe(struct foreign_work *w, const struct foreign_entry *entry)
{
    const char *slash = strrchr(entry->file, '/'), *name = slash ? slash + 1 : entry->file;
    if (entry->given && w->f->files.n == 1) return bump_format(&w->f->memory, "%s, line %u", entry->key, entry->line);
    if (entry->given) return bump_format(&w->f->memory, "%s, %s:%u", entry->key, name, entry->line);
    return bump_format(&w->f->memory, "default of %s", entry->key);
}

void foreign_leave(struct foreign_work *w, const struct foreign_entry *entry, const char *why)
{
    if (!entry || !entry->given) return;
    for (uint32_t i = 0; i < w->f->left.n; i++)
        if (!strcmp(w->f->left.at[i].key, entry->key)) return;
    vec_push(&w->f->left, ((struct foreign_left){entry->key, why}));
}

void foreign_ask(struct foreign_work *w, const struct foreign_entry *entry, const char *ours, const char *question)
{
    const int key = config_find(ours);
    CHECK(key >= 0, "there is no key %s", ours);
    if (!entry->given) return;
    vec_push(&w->f->questions, ((struct foreign_question){entry->file, entry->line, entry->key, entry->value,
                                                          (enum config_key)key, question}));
}

void foreign_put(struct foreign_work *w, const char *ours, struct value *v, const struct foreign_entry *entry, const char *from)
{
    const int key = config_find(ours);
    CHECK(key >= 0, "there is no key %s", ours);
    if (foreign_failed(w)) return;
    v->line = entry->line;
    if (config_set_foreign(w->c, (enum config_key)key, v, entry->file, w->f->error)) {
        if (entry->line) error_prepend(w->f->error, "%s:%u: %s", entry->file, entry->line, entry->key);
        else error_prepend(w->f->error, "%s: %s", entry->file, entry->key);
        return;
    }
    if (!from) from = describe(w, entry);
    for (uint32_t i = 0; i < w->f->set.n; i++)
        if (w->f->set.at[i].key == (enum config_key)key) {
            w->f->set.at[i].from = from;
            return;
        }
    vec_push(&w->f->set, ((struct foreign_set){(enum config_key)key, from}));
}
