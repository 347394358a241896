/*
 * entries.c: what other programs say: the entry that counts, its value, and a key of ours that is
 * set from it.
 */
#include <math.h>
#include <stdarg.h>

#include "config/config_rows.h"
#include "import/import.h"
#include "import/import_rows.h"

struct value *import_word(struct import_work *w, const char *text) { return value_string(w->b, text); }
bool import_failed(const struct import_work *w) { return w->f->error->code != PL_OK; }
bool import_has(const struct import_work *w, unsigned programs) { return w->f->programs & programs; }

const char *import_pair(struct import_work *w, const char *pairs, const char *word)
{
    const size_t n = strlen(word);
    for (const char *s = pairs; *s; s += strspn(s, " ")) {
        const size_t length = strcspn(s, " ");
        if (n && n < length && s[n] == '=' && !strncmp(s, word, n))
            return bump_format(w->b, "%.*s", (int)(length - n - 1), s + n + 1);
        s += length;
    }
    return NULL;
}

/* Prepends where an entry is to the error. */
static void prepend_place(struct import_work *w, const struct import_entry *entry)
{
    if (entry && entry->line) error_prepend(w->f->error, "%s:%u: %s", entry->file, entry->line, entry->key);
    else if (entry) error_prepend(w->f->error, "%s: %s", entry->file, entry->key);
}

void import_refuse(struct import_work *w, const struct import_entry *entry, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    if (import_failed(w)) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    error_set(w->f->error, PL_USAGE, "%s", text);
    prepend_place(w, entry);
}

/* Returns the rank of an entry's file: 0: the script and its files; 1: DeepSpeed; 2: Accelerate and
 * launchers. */
static int rank_of(const struct import_entry *entry)
{
    return entry->program == PROGRAM_ds                                               ? 1
           : entry->program == PROGRAM_accelerate || entry->program == PROGRAM_launch ? 2
                                                                                      : 0;
}

static bool same_value(const struct import_entry *a, const struct import_entry *b)
{
    const struct value *x = a->value, *y = b->value;
    return x->kind == VALUE_NUMBER && y->kind == VALUE_NUMBER ? x->number == y->number : value_equal(x, y);
}

static bool belongs(const struct import_entry *entry, enum import_how how, const char *ours)
{
    if (entry->automatic || (entry->given && entry->value->kind == VALUE_NULL))
        return false; /* as if it was not given */
    return ours ? entry->row->how <= HOW_IF_TRUE && !strcmp(entry->row->ours, ours) : entry->row->how == how;
}

/* Picks the entry of a fact, or of a key of ours for the rows with one value. */
static const struct import_entry *pick(struct import_work *w, enum import_how how, const char *ours)
{
    const struct import_entry *given[3] = {0}, *standard[3] = {0}, *found = NULL;
    char a[96], b[96];
    for (uint32_t i = 0; i < w->f->entries.n; i++) {
        const struct import_entry *entry = &w->f->entries.at[i];
        if (!belongs(entry, how, ours)) continue;
        (entry->given ? given : standard)[rank_of(entry)] = entry;
    }
    if (given[0] && given[1] && !same_value(given[0], given[1]))
        import_refuse(w, given[0], "it is %s, but in %s:%u %s is %s: they must be the same, or the DeepSpeed file says "
                      "\"auto\"", value_describe(given[0]->value, a), given[1]->file, given[1]->line, given[1]->key,
                      value_describe(given[1]->value, b));
    for (int i = 0; i < 6 && !found; i++) found = i < 3 ? given[i] : standard[i - 3];
    return found;
}

const struct import_entry *import_pick(struct import_work *w, enum import_how how) { return pick(w, how, NULL); }
const struct import_entry *import_pick_for(struct import_work *w, const char *ours) { return pick(w, HOW_VALUE, ours); }

const struct import_entry *import_given(struct import_work *w, enum import_how how)
{
    const struct import_entry *entry = pick(w, how, NULL);
    return entry && entry->given ? entry : NULL;
}

const struct import_entry *import_any(struct import_work *w, enum import_how how)
{
    for (uint32_t i = 0; i < w->f->entries.n; i++) {
        const struct import_entry *entry = &w->f->entries.at[i];
        if (entry->given && belongs(entry, how, NULL) && import_true(w, entry)) return entry;
    }
    return NULL;
}

bool import_automatic(const struct import_work *w, const char *key)
{
    for (uint32_t i = 0; i < w->f->entries.n; i++)
        if (w->f->entries.at[i].automatic && !strcmp(w->f->entries.at[i].key, key)) return true;
    return false;
}

/* Returns the number that a text begins with: "8x A100" is 8. */
static int64_t leading_number(struct import_work *w, const struct import_entry *entry)
{
    const char *text = import_text(entry);
    const size_t n = strspn(text, "0123456789");
    if (!n || n > 4 || !text[n]) return import_whole(w, entry, 1, 4096);
    return max_i64(1, strtol(text, NULL, 10));
}

int64_t import_ranks(struct import_work *w)
{
    const struct import_entry *ranks = import_pick(w, HOW_RANKS), *nodes = import_pick(w, HOW_NODES);
    if (!ranks && !nodes) return max_i64(1, w->f->ranks);
    return (ranks ? leading_number(w, ranks) : 1) * import_whole(w, nodes, 1, 4096);
}

const char *import_text(const struct import_entry *entry)
{
    if (!entry) return "";
    if (entry->value->kind == VALUE_BOOL) return entry->value->truth ? "true" : "false";
    return entry->value->text ? entry->value->text : "";
}

bool import_true(struct import_work *w, const struct import_entry *entry)
{
    char found[96];
    if (!entry || import_off(entry->value)) return false;
    if (entry->value->kind == VALUE_BOOL || (entry->value->kind == VALUE_NUMBER && entry->value->number == 1))
        return true;
    if (!strcmp(import_text(entry), "yes") || !strcmp(import_text(entry), "on")) return true;
    import_refuse(w, entry, "found %s, expected true or false", value_describe(entry->value, found));
    return false;
}

double import_number(struct import_work *w, const struct import_entry *entry)
{
    char found[96];
    if (!entry) return 0;
    if (entry->value->kind == VALUE_NUMBER && isfinite(entry->value->number)) return entry->value->number;
    import_refuse(w, entry, "found %s, expected a number", value_describe(entry->value, found));
    return 0;
}

int64_t import_whole(struct import_work *w, const struct import_entry *entry, int64_t low, int64_t high)
{
    char found[96];
    struct error ignored;
    int64_t x = low;
    if (!entry) return low;
    if (!value_as_int(entry->value, entry->key, &x, &ignored) && x >= low && x <= high) return x;
    import_refuse(w, entry, "found %s, expected a whole number from %lld to %lld", value_describe(entry->value, found),
                  (long long)low, (long long)high);
    return low;
}

/* --- what is set, and what is not ------------------------------------------------------------ */

/* Returns "learning_rate, line 7", with the file's name where there are several. */
static const char *describe(struct import_work *w, const struct import_entry *entry)
{
    const char *slash = strrchr(entry->file, '/'), *name = slash ? slash + 1 : entry->file;
    if (entry->given && w->f->files.n == 1) return bump_format(w->b, "%s, line %u", entry->key, entry->line);
    if (entry->given) return bump_format(w->b, "%s, %s:%u", entry->key, name, entry->line);
    return bump_format(w->b, "default of %s", entry->key);
}

void import_leave(struct import_work *w, const struct import_entry *entry, const char *why)
{
    if (!entry || !entry->given) return;
    for (uint32_t i = 0; i < w->f->left.n; i++)
        if (!strcmp(w->f->left.at[i].key, entry->key)) return;
    vec_push(&w->f->left, ((struct import_left){entry->key, why}));
}

void import_ask(struct import_work *w, const struct import_entry *entry, const char *ours, const char *question)
{
    const int key = config_find(ours);
    CHECK(key >= 0, "there is no key %s", ours);
    if (!entry->given) return;
    vec_push(&w->f->questions, ((struct import_question){entry->file, entry->line, entry->key, entry->value,
                                                         (enum config_key)key, question}));
}

void import_put(struct import_work *w, const char *ours, struct value *v, const struct import_entry *entry,
                const char *from)
{
    const int key = config_find(ours);
    CHECK(key >= 0, "there is no key %s", ours);
    if (import_failed(w)) return;
    v->line = entry->line;
    if (config_set_imported(w->c, (enum config_key)key, v, entry->file, w->f->error)) {
        prepend_place(w, entry);
        return;
    }
    if (!from) from = describe(w, entry);
    for (uint32_t i = 0; i < w->f->set.n; i++)
        if (w->f->set.at[i].key == (enum config_key)key) {
            w->f->set.at[i].from = from;
            return;
        }
    vec_push(&w->f->set, ((struct import_set){(enum config_key)key, from}));
}

void import_put_value(struct import_work *w, const char *ours, const struct import_entry *entry)
{
    if (entry) import_put(w, ours, value_copy(w->b, entry->value), entry, NULL);
}

void import_put_word(struct import_work *w, const char *ours, const char *word, const struct import_entry *entry)
{
    import_put(w, ours, import_word(w, word), entry, NULL);
}
