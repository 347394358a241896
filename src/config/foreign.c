/*
 * foreign.c: from the keys of other programs to ours.
 *
 * Rows with one value become one key here; facts that belong together are combined in foreign_run.c and
 * foreign_memory.c. A key that is set has SOURCE_FOREIGN, so that RUN.yaml and --set override it.
 */
#include "config/foreign.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "config/config_rows.h"
#include "config/foreign_rows.h"
#include "io/yaml.h"

/* --- entries ----------------------------------------------------------------------------------------- */

bool foreign_failed(const struct foreign_work *w) { return w->f->error->code != PL_OK; }
bool foreign_has(const struct foreign_work *w, enum foreign_program p) { return w->f->programs >> p & 1; }
bool foreign_is_hf(const struct foreign_work *w) { return foreign_has(w, PROGRAM_hf) || foreign_has(w, PROGRAM_trl) || foreign_has(w, PROGRAM_lf); }

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
    if (entry->given && entry->value->kind == VALUE_NULL) return false; /* as if it was not given */
    return ours ? entry->row->how <= HOW_IF_TRUE && !strcmp(entry->row->ours, ours) : entry->row->how == how;
}

/* By fact, or by key of ours for the rows with one value. */
static const struct foreign_entry *pick(struct foreign_work *w, enum foreign_how how, const char *ours)
{
    const struct foreign_entry *given[3] = {0}, *standard = NULL;
    char a[96], b[96];
    for (uint32_t i = 0; i < w->f->entries.n; i++) {
        const struct foreign_entry *entry = &w->f->entries.at[i];
        if (!belongs(entry, how, ours)) continue;
        if (entry->given) given[rank_of(entry)] = entry;
        else standard = entry;
    }
    if (given[0] && given[1] && !same_value(given[0], given[1]))
        foreign_refuse(w, given[0], "it is %s, but in %s:%u %s is %s: they must be the same, or the DeepSpeed file says \"auto\"", value_describe(given[0]->value, a), given[1]->file,
                       given[1]->line, given[1]->key, value_describe(given[1]->value, b));
    return given[0] ? given[0] : given[1] ? given[1] : given[2] ? given[2] : standard;
}

const struct foreign_entry *foreign_pick(struct foreign_work *w, enum foreign_how how) { return pick(w, how, NULL); }

const struct foreign_entry *foreign_given(struct foreign_work *w, enum foreign_how how)
{
    const struct foreign_entry *entry = pick(w, how, NULL);
    return entry && entry->given ? entry : NULL;
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

/* --- what is set, and what is not ------------------------------------------------------------------------- */

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

/* --- rows with one value -------------------------------------------------------------------------------------- */

/* The word of ours for theirs: "adamw_torch=adamw sgd=sgd". */
static struct value *translate(struct foreign_work *w, const struct foreign_entry *entry)
{
    const char *word = foreign_text(entry);
    const size_t n = strlen(word);
    struct text known = {0};
    for (const char *s = entry->row->detail; *s;) {
        const char *equals = strchr(s, '='), *end = s + strcspn(s, " ");
        if (n == (size_t)(equals - s) && !strncmp(word, s, n)) {
            text_free(&known);
            return value_string(&w->f->memory, bump_format(&w->f->memory, "%.*s", (int)(end - equals - 1), equals + 1));
        }
        text_printf(&known, "%s%.*s", known.n ? ", " : "", (int)(equals - s), s);
        s = end + (*end == ' ');
    }
    foreign_refuse(w, entry, "found %.100s, and Plimsoll has only %s", *word ? word : "no word", known.at);
    text_free(&known);
    return value_new(&w->f->memory, VALUE_NULL);
}

static void put_one(struct foreign_work *w, const struct foreign_entry *entry)
{
    struct value *v = value_copy(&w->f->memory, entry->value);
    switch (entry->row->how) {
    case HOW_POSITIVE:
        if (foreign_number(w, entry) <= 0) return;
        break;
    case HOW_IF_TRUE:
        if (!foreign_true(w, entry)) return;
        v = yaml_scalar(&w->f->memory, entry->row->detail);
        break;
    case HOW_WORD:
        v = translate(w, entry);
        break;
    default:
        break;
    }
    foreign_put(w, entry->row->ours, v, entry, NULL);
}

/* Each key of ours once, whatever keys of theirs it has. */
static void put_values(struct foreign_work *w)
{
    for (uint32_t i = 0; i < w->f->entries.n && !foreign_failed(w); i++) {
        const struct foreign_entry *entry = &w->f->entries.at[i];
        if (entry->row->how > HOW_IF_TRUE) continue;
        bool before = false;
        for (uint32_t k = 0; k < i && !before; k++) before = w->f->entries.at[k].row->how <= HOW_IF_TRUE && !strcmp(w->f->entries.at[k].row->ours, entry->row->ours);
        const struct foreign_entry *found = before ? NULL : pick(w, HOW_VALUE, entry->row->ours);
        if (found) put_one(w, found);
    }
}

int foreign_apply(struct foreign *f, struct config *c, struct error *e)
{
    struct foreign_work w = {f, c};
    e->code = PL_OK;
    f->error = e;
    for (uint32_t i = 0; i < f->entries.n; i++)
        if (f->entries.at[i].row->how == HOW_NONE) foreign_leave(&w, &f->entries.at[i], f->entries.at[i].row->detail);
    foreign_add_defaults(f);
    put_values(&w);
    foreign_run(&w);
    foreign_memory(&w);
    return e->code;
}

/* Validation data of the run file or an option take the place of those of the other program, and so does a format without a split. */
static void settle_holdout(struct foreign *f, struct config *c)
{
    const bool unsplit = config_tokens(c) && c->data_format != FORMAT_CONVERSATIONS;
    if (c->origin[KEY_data_holdout].source != SOURCE_FOREIGN || !(c->data_validation.n || c->data_validation_images || unsplit)) return;
    config_reset(c, KEY_data_holdout);
    vec_push(&f->left, ((struct foreign_left){"a part of data.train to evaluate on", unsplit ? "data.format has no data.holdout" : "validation data are given otherwise"}));
}

void foreign_settle(struct foreign *f, struct config *c)
{
    settle_holdout(f, c);
    if (c->origin[KEY_train_eval_every].source != SOURCE_FOREIGN || config_validates(c)) return;
    config_reset(c, KEY_train_eval_every);
    for (uint32_t i = 0; i < f->set.n; i++)
        if (f->set.at[i].key == KEY_train_eval_every) vec_push(&f->left, ((struct foreign_left){"evaluation every few steps", "data.validation is not given"}));
}

/* --- the list ------------------------------------------------------------------------------------------------------ */

/* A chat template may have thousands of characters. */
static void shorten(struct text *line)
{
    enum { MOST = 120 };
    if (line->n <= MOST) return;
    for (line->n = MOST; ((unsigned char)line->at[line->n] & 0xc0) == 0x80;) line->n--;
    text_printf(line, "...");
}

static void print_set(const struct foreign *f, const struct config *c, struct text *out)
{
    size_t width = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int key = 0; key < CONFIG_KEYS; key++)
            for (uint32_t i = 0; i < f->set.n; i++) {
                struct text line = {0};
                if (f->set.at[i].key != (enum config_key)key || c->origin[key].source != SOURCE_FOREIGN) continue;
                text_printf(&line, "%s = ", config_key_name((enum config_key)key));
                config_show(c, (enum config_key)key, &line);
                shorten(&line);
                if (!pass && line.n > width && line.n < 48) width = line.n;
                if (pass) text_printf(out, "  %-*s  (%s)\n", (int)width, line.at, f->set.at[i].from);
                text_free(&line);
            }
}

/* Keys that RUN.yaml or --set gave too. */
static void print_overridden(const struct foreign *f, const struct config *c, struct text *out)
{
    bool any = false;
    for (uint32_t i = 0; i < f->set.n; i++) {
        if (c->origin[f->set.at[i].key].source <= SOURCE_FOREIGN) continue;
        text_printf(out, "%s %s", any ? "," : "  set otherwise by the run file or an option:", config_key_name(f->set.at[i].key));
        any = true;
    }
    if (any) text_printf(out, "\n");
}

/* Keys with the same reason are one line. */
static void print_left(const struct foreign *f, struct text *out)
{
    if (f->left.n) text_printf(out, "no effect here:\n");
    for (uint32_t i = 0; i < f->left.n; i++) {
        bool before = false;
        for (uint32_t k = 0; k < i && !before; k++) before = !strcmp(f->left.at[k].why, f->left.at[i].why);
        if (before) continue;
        for (uint32_t k = i; k < f->left.n; k++)
            if (!strcmp(f->left.at[k].why, f->left.at[i].why)) text_printf(out, "%s%s", k == i ? "  " : ", ", f->left.at[k].key);
        text_printf(out, ": %s\n", f->left.at[i].why);
    }
}

void foreign_print(const struct foreign *f, const struct config *c, struct text *out)
{
    for (uint32_t i = 0; i < f->files.n; i++) text_printf(out, "%s: read as %s\n", f->files.at[i].name, f->files.at[i].program);
    print_set(f, c, out);
    print_overridden(f, c, out);
    print_left(f, out);
}
