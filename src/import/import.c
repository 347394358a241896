/*
 * import.c: from the keys of other programs to ours.
 *
 * Rows with one value become one key here; facts that belong together are combined in run_facts.c
 * and memory_facts.c. A key that is set has SOURCE_IMPORT, so that RUN.yaml and --set override it.
 */
#include "import/import.h"

#include "config/config_rows.h"
#include "import/import_rows.h"
#include "io/yaml.h"

/* --- rows with one value --------------------------------------------------------------------- */

/* Returns our word for theirs, by the pairs of the row. */
static struct value *translate(struct import_work *w, const struct import_entry *entry)
{
    const char *word = import_text(entry), *found = import_pair(w, entry->row->detail, word), *known = "";
    if (found) return import_word(w, found);
    for (const char *s = entry->row->detail; *s; s += strcspn(s, " "), s += *s == ' ')
        known = bump_format(w->b, "%s%s%.*s", known, *known ? ", " : "", (int)strcspn(s, "="), s);
    import_refuse(w, entry, "found %.100s, and Plimsoll has only %s", *word ? word : "no word", known);
    return value_new(w->b, VALUE_NULL);
}

static void put_one(struct import_work *w, const struct import_entry *entry)
{
    struct value *v = value_copy(w->b, entry->value);
    switch (entry->row->how) {
    case HOW_POSITIVE:
        if (import_number(w, entry) <= 0) return;
        break;
    case HOW_IF_TRUE:
        if (!import_true(w, entry)) return;
        v = yaml_scalar(w->b, entry->row->detail);
        break;
    case HOW_WORD:
        v = translate(w, entry);
        break;
    default:
        break;
    }
    import_put(w, entry->row->ours, v, entry, NULL);
}

/* Puts each key of ours once, whatever keys of theirs it has. */
static void put_values(struct import_work *w)
{
    for (uint32_t i = 0; i < w->f->entries.n && !import_failed(w); i++) {
        const struct import_entry *entry = &w->f->entries.at[i];
        if (entry->row->how > HOW_IF_TRUE) continue;
        bool before = false;
        for (uint32_t k = 0; k < i && !before; k++)
            before = w->f->entries.at[k].row->how <= HOW_IF_TRUE &&
                     !strcmp(w->f->entries.at[k].row->ours, entry->row->ours);
        const struct import_entry *found = before ? NULL : import_pick_for(w, entry->row->ours);
        if (found) put_one(w, found);
    }
}

/* Asks about a value that is not one of those without a question. */
static void ask(struct import_work *w, const struct import_entry *entry)
{
    const struct value *v = entry->value;
    const char *text = import_text(entry);
    if (v->kind == VALUE_NULL || (v->kind == VALUE_STRING && !*v->text)) return;
    if (*entry->row->standard && *text && config_word_index(entry->row->standard, text) >= 0) return;
    import_ask(w, entry, entry->row->ours, entry->row->detail);
}

int import_apply(struct import *f, struct config *c, struct error *e)
{
    struct import_work w = {f, c, &f->memory};
    e->code = PL_OK;
    f->error = e;
    for (uint32_t i = 0; i < f->entries.n; i++)
        if (f->entries.at[i].row->how == HOW_NONE)
            import_leave(&w, &f->entries.at[i], f->entries.at[i].row->detail);
        else if (f->entries.at[i].row->how == HOW_ASK) ask(&w, &f->entries.at[i]);
    import_add_defaults(f);
    put_values(&w);
    import_schedule(&w);
    import_run(&w);
    import_memory(&w);
    import_adapter(&w);
    import_data(&w);
    return e->code;
}

/* --- what other sources decide --------------------------------------------------------------- */

static bool is_theirs(const struct config *c, enum config_key key) { return c->origin[key].source == SOURCE_IMPORT; }

static void drop(struct import *f, struct config *c, enum config_key key, const char *what, const char *why)
{
    config_reset(c, key);
    vec_push(&f->left, ((struct import_left){what, why}));
}

/* Drops data.holdout where the run file or an option gives validation data, or a format without a
 * split. */
static void settle_holdout(struct import *f, struct config *c)
{
    const bool unsplit = config_tokens(c) && !config_text(c);
    if (!is_theirs(c, KEY_data_holdout) || !(c->data_validation.n || c->data_validation_images || unsplit)) return;
    drop(f, c, KEY_data_holdout, "a part of data.train to evaluate on",
         unsplit ? "data.format has no data.holdout" : "validation data are given otherwise");
}

/* Drops data.max_samples unless the data are conversations: only they have a number of samples;
 * otherwise the steps of the run must be given. */
static void settle_samples(struct import *f, struct config *c)
{
    if (!is_theirs(c, KEY_data_max_samples) || c->data_format == FORMAT_CONVERSATIONS) return;
    for (uint32_t i = 0; i < f->entries.n; i++) {
        const struct import_entry *x = &f->entries.at[i];
        if (x->row->how == HOW_MAX_SAMPLES && x->given)
            vec_push(&f->questions,
                     ((struct import_question){
                         x->file, x->line, x->key, x->value, KEY_train_steps,
                         "only conversations have data.max_samples: set train.steps, the length of the run"}));
    }
    config_reset(c, KEY_data_max_samples);
}

/* Drops the shape of a warmup that the run file or an option took away. */
static void settle_warmup(struct import *f, struct config *c)
{
    static const enum config_key keys[] = {KEY_train_warmup_shape, KEY_train_warmup_start};
    for (size_t i = 0; i < COUNT(keys) && !config_warms_up(c); i++)
        if (is_theirs(c, keys[i])) drop(f, c, keys[i], config_key_name(keys[i]), "there is no warmup");
}

/* Tells whether a question has an answer. Only the run file or an option says which model it is,
 * for the file itself names one of its parts, and which value a variable of the shell has. */
static bool is_answered(const struct config *c, const struct import_question *q)
{
    const bool model = q->ours == KEY_model_path;
    if (q->value && !model) return config_given(c, q->ours);
    return c->origin[q->ours].source > SOURCE_IMPORT || (model && config_given(c, KEY_model_preset));
}

/* Returns the variables of the shell behind question i that have no answer either: "; and so has
 * $OUT (output_dir, line 3)". */
static const char *other_variables(struct import *f, const struct config *c, uint32_t i)
{
    const char *all = "";
    while (++i < f->questions.n) {
        const struct import_question *q = &f->questions.at[i];
        if (q->value || is_answered(c, q)) continue;
        all = bump_format(&f->memory, "%s%s %s (%s, line %u)", all, *all ? "," : "; and so has", q->question, q->key,
                          q->line);
    }
    return all;
}

/* Lists questions with an answer; the first without one is an error. */
static int settle_questions(struct import *f, const struct config *c, struct error *e)
{
    char found[96];
    for (uint32_t i = 0; i < f->questions.n; i++) {
        const struct import_question *q = &f->questions.at[i];
        const bool preset = q->ours == KEY_model_path && config_given(c, KEY_model_preset);
        const char *ours = config_key_name(preset ? KEY_model_preset : q->ours);
        if (is_answered(c, q)) {
            vec_push(&f->left, ((struct import_left){q->key, bump_format(&f->memory, "%s decides it", ours)}));
            continue;
        }
        if (q->value && !f->asks) continue;
        if (q->value) error_set(e, PL_USAGE, "%s: found %s: %s", q->key, value_describe(q->value, found), q->question);
        else
            error_set(e, PL_USAGE, "%s: %.200s has no value in this file: write the value in its place, or set %s%s",
                      q->key, q->question, ours, other_variables(f, c, i));
        return error_prepend(e, "%s:%u", q->file, q->line);
    }
    return PL_OK;
}

int import_settle(struct import *f, struct config *c, struct error *e)
{
    settle_holdout(f, c);
    settle_samples(f, c);
    settle_warmup(f, c);
    if (is_theirs(c, KEY_train_eval_every) && !config_validates(c))
        drop(f, c, KEY_train_eval_every, "evaluation every few steps", "data.validation is not given");
    return settle_questions(f, c, e);
}

void import_drop_training(struct config *c)
{
    for (int key = 0; key < CONFIG_KEYS; key++) {
        const char *name = config_key_name((enum config_key)key);
        const bool stays = !strncmp(name, "data.", 5) || !strncmp(name, "device.", 7) || key == KEY_memory_precision ||
                           key == KEY_memory_quantize;
        if (is_theirs(c, (enum config_key)key) && !stays) config_reset(c, (enum config_key)key);
    }
}

/* --- the list -------------------------------------------------------------------------------- */

/* Shortens a line: a chat template may have thousands of characters. */
static void shorten(struct text *line)
{
    enum { MOST = 120 };
    if (line->n <= MOST) return;
    for (line->n = MOST; ((unsigned char)line->at[line->n] & 0xc0) == 0x80;) line->n--;
    text_printf(line, "...");
}

static void print_set(const struct import *f, const struct config *c, struct text *out)
{
    size_t width = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int key = 0; key < CONFIG_KEYS; key++)
            for (uint32_t i = 0; i < f->set.n; i++) {
                struct text line = {0};
                if (f->set.at[i].key != (enum config_key)key || c->origin[key].source != SOURCE_IMPORT) continue;
                text_printf(&line, "%s = ", config_key_name((enum config_key)key));
                config_show(c, (enum config_key)key, &line);
                shorten(&line);
                if (!pass && line.n > width && line.n < 48) width = line.n;
                if (pass) text_printf(out, "  %-*s  (%s)\n", (int)width, line.at, f->set.at[i].from);
                text_free(&line);
            }
}

/* Prints the keys that RUN.yaml or --set gave too. */
static void print_overridden(const struct import *f, const struct config *c, struct text *out)
{
    bool any = false;
    for (uint32_t i = 0; i < f->set.n; i++) {
        if (c->origin[f->set.at[i].key].source <= SOURCE_IMPORT) continue;
        text_printf(out, "%s %s",
                    any ? "," : "  set otherwise by the run file or an option:", config_key_name(f->set.at[i].key));
        any = true;
    }
    if (any) text_printf(out, "\n");
}

/* Prints the keys without effect; those with the same reason are one line. */
static void print_left(const struct import *f, struct text *out)
{
    if (f->left.n) text_printf(out, "no effect here:\n");
    for (uint32_t i = 0; i < f->left.n; i++) {
        bool before = false;
        for (uint32_t k = 0; k < i && !before; k++) before = !strcmp(f->left.at[k].why, f->left.at[i].why);
        if (before) continue;
        for (uint32_t k = i; k < f->left.n; k++)
            if (!strcmp(f->left.at[k].why, f->left.at[i].why))
                text_printf(out, "%s%s", k == i ? "  " : ", ", f->left.at[k].key);
        text_printf(out, ": %s\n", f->left.at[i].why);
    }
}

static void print_questions(const struct import *f, const struct config *c, struct text *out)
{
    bool any = false;
    for (uint32_t i = 0; i < f->questions.n; i++) {
        const struct import_question *q = &f->questions.at[i];
        if (is_answered(c, q)) continue;
        text_printf(out, "%s  %s, line %u: %s\n", any ? "" : "to be answered before training:\n", q->key, q->line,
                    q->question);
        any = true;
    }
}

void import_print(const struct import *f, const struct config *c, struct text *out)
{
    for (uint32_t i = 0; i < f->files.n; i++)
        text_printf(out, "%s: read as %s\n", f->files.at[i].name, f->files.at[i].program);
    print_set(f, c, out);
    print_overridden(f, c, out);
    print_questions(f, c, out);
    print_left(f, out);
}
