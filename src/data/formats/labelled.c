/*
 * labelled.c: see labelled.h.
 */
#include "data/formats/labelled.h"

#include <inttypes.h>

#include "data/formats/csv.h"
#include "data/detect/match.h"
#include "data/order.h"
#include "data/text/conversation.h"
#include "data/text/records.h"
#include "data/text/tokenize.h"
#include "io/file.h"

/* --- samples ---------------------------------------------------------------------------------- */

static void add_bad(struct labelled *l, const char *file, uint64_t line, const char *why)
{
    if (!l->bad++) snprintf(l->first_bad, sizeof l->first_bad, "%.120s:%s: %s", file, record_place(line).text, why);
}

static void add_sample(struct labelled *l, const char *image, const char *text, const char *file, uint64_t line)
{
    l->read++;
    if (!image || !*image) add_bad(l, file, line, "no image");
    else if (!text || !*text) add_bad(l, file, line, "no text");
    else
        vec_push(&l->samples,
                 ((struct labelled_sample){bump_string(&l->memory, image), bump_string(&l->memory, text), file, line}));
}

/* --- folders ---------------------------------------------------------------------------------- */

/* Reads folders of classes: the first folder of an image's path is its class. */
static int read_folders(struct labelled *l, const char *folder, struct error *e)
{
    struct image_tree t;
    uint64_t beside = 0;
    int rc = image_tree_read(&t, folder, NULL, e);
    for (uint32_t i = 0; i < t.files.n && !rc; i++) {
        const char *path = t.files.at[i].path, *slash = strchr(path, '/');
        if (!slash) {
            beside++;
            continue;
        }
        add_sample(l, path, bump_format(&l->memory, "%.*s", (int)(slash - path), path), path, 0);
    }
    image_tree_free(&t);
    l->folders = true;
    if (beside)
        log_warn("%s: %" PRIu64 " image%s in no folder of a class, and left out", folder, beside,
                 beside == 1 ? " is" : "s are");
    return rc;
}

/* --- tables ----------------------------------------------------------------------------------- */

static int no_column(const char *path, const char *given, const char *what, const char *key, const char *usual,
                     const char *const *names, uint32_t n, struct error *e)
{
    struct text all = {0};
    for (uint32_t i = 0; i < n && i < 12; i++) text_printf(&all, "%s%.40s", i ? ", " : "", names[i]);
    if (given)
        error_set(e, PL_USAGE, "%s has no column %s (%s); its columns are %s", path, given, key,
                  all.at ? all.at : "none");
    else
        error_set(e, PL_USAGE, "%s has no column for the %s, such as %s: its columns are %s; name it with %s", path,
                  what, usual, all.at ? all.at : "none", key);
    text_free(&all);
    return e->code;
}

static int index_of(const char *const *names, uint32_t n, const char *given, enum csv_usual usual)
{
    for (uint32_t i = 0; i < n && given; i++)
        if (!strcmp(names[i], given)) return (int)i;
    return given ? -1 : usual_column(names, n, usual);
}

struct columns {
    int image, text;
};
static int find_columns(const struct labelled_options *o, const char *path, const char *const *names, uint32_t n,
                        struct columns *out, struct error *e)
{
    const enum csv_usual text = o->captions ? CSV_CAPTION : CSV_CLASS;
    out->image = index_of(names, n, o->image_column, CSV_IMAGE);
    out->text = index_of(names, n, o->text_column, text);
    if (out->image < 0)
        return no_column(path, o->image_column, "image", "data.image_column", "image or file_name", names, n, e);
    return out->text < 0 ? no_column(path, o->text_column, o->captions ? "text" : "class", "data.label_column",
                                     o->captions ? "text or caption" : "label or class", names, n, e)
                         : PL_OK;
}

static int read_csv(struct labelled *l, const struct labelled_options *o, const char *path, struct error *e)
{
    char *text;
    size_t n;
    struct csv c;
    struct columns at;
    bool more = true;
    TRY(file_read(path, 1ull << 30, &text, &n, e));
    csv_begin(&c, text, n);
    int rc = csv_next(&c, &more, e);
    if (!rc && !more) rc = error_set(e, PL_USAGE, "it is empty");
    if (rc) error_prepend(e, "%s", path);
    else rc = find_columns(o, path, (const char *const *)c.fields, c.n, &at, e);
    while (!rc && !(rc = csv_next(&c, &more, e) ? error_prepend(e, "%s", path) : PL_OK) && more)
        add_sample(l, at.image < (int)c.n ? c.fields[at.image] : "", at.text < (int)c.n ? c.fields[at.text] : "", path,
                   c.line);
    l->fingerprint = hash_bytes(&(uint64_t){n}, sizeof(uint64_t), l->fingerprint);
    mem_free(text);
    return rc;
}

/* Reads a text: a string or a whole number. or a whole number. */
static const char *text_of(struct bump *b, const struct value *v)
{
    int64_t number;
    struct error ignored;
    if (v && v->kind == VALUE_STRING) return v->text;
    return v && !value_as_int(v, "", &number, &ignored) ? bump_format(b, "%lld", (long long)number) : NULL;
}

static void add_object(struct labelled *l, struct bump *b, const struct value *image, const struct value *text,
                       const char *path, uint64_t line)
{
    const char *reference = media_path(image);
    if (text && text->kind == VALUE_LIST && text->count)
        for (uint32_t i = 0; i < text->count; i++) add_sample(l, reference, text_of(b, text->items[i]), path, line);
    else add_sample(l, reference, text_of(b, text), path, line);
}

static int read_object(struct labelled *l, const struct labelled_options *o, const char *path, const struct record *x,
                       struct error *e)
{
    struct bump b = {0};
    struct value *v;
    struct columns at;
    int rc = conversation_parse(x->text, x->n, o->room, &b, &v, e) ? PL_USAGE : PL_OK;
    if (rc) error_prepend(e, "%s:%s", path, record_place(x->line).text);
    else {
        const char **names = bump_alloc(&b, (v->count + 1) * sizeof *names);
        for (uint32_t i = 0; i < v->count; i++) names[i] = v->items[i]->key;
        rc = find_columns(o, bump_format(&b, "%s:%s", path, record_place(x->line).text), names, v->count, &at, e);
        if (!rc) add_object(l, &b, v->items[at.image], v->items[at.text], path, x->line);
        else if (l->samples.n) { /* the keys are known from other objects */
            add_bad(l, path, x->line, "no image or no text");
            l->bad += x->times - 1, l->read += x->times;
            rc = PL_OK;
        }
    }
    bump_free(&b);
    return rc;
}

static int read_records(struct labelled *l, const struct labelled_options *o, const char *path, struct error *e)
{
    struct records r;
    struct record x;
    bool more = true;
    int rc = records_open_any(&r, path, o->room, e);
    if (rc) return rc;
    while (!(rc = records_next(&r, &x, &more, e)) && more && !(rc = read_object(l, o, path, &x, e))) continue;
    l->fingerprint = hash_bytes(&r.size, sizeof r.size, l->fingerprint);
    records_close(&r);
    return rc;
}

static int read_table(struct labelled *l, const struct labelled_options *o, const char *path, struct error *e)
{
    path = bump_string(&l->memory, path);
    return path_has_ending(path, ".csv") || path_has_ending(path, ".tsv") ? read_csv(l, o, path, e)
                                                                          : read_records(l, o, path, e);
}

/* --- opening ---------------------------------------------------------------------------------- */

static int read_folder(struct labelled *l, const struct labelled_options *o, const char *folder, struct error *e)
{
    static const char *const tables[] = {"metadata.csv", "metadata.jsonl"};
    if (o->n_paths > 1)
        return error_set(e, PL_USAGE, "%s is a folder, and there are %u paths; expected one folder, or tables", folder,
                         o->n_paths);
    l->where = mem_string(folder);
    for (size_t i = 0; i < COUNT(tables); i++) {
        const char *path = bump_format(&l->memory, "%s/%s", folder, tables[i]);
        if (file_exists(path)) return read_table(l, o, path, e);
    }
    if (o->captions)
        return error_set(e, PL_USAGE,
                         "the folder %s has no metadata.csv or metadata.jsonl with the texts of its images; give a "
                         "table (CSV, JSON, Parquet), or add one", folder);
    return read_folders(l, folder, e);
}

static int read_tables(struct labelled *l, const struct labelled_options *o, struct error *e)
{
    struct names files;
    char folder[4096];
    int rc = tokenize_files(o->paths, o->n_paths, &files, e);
    if (!rc) rc = path_dir(files.at[0], folder, sizeof folder, e);
    if (!rc) l->where = mem_string(folder);
    for (uint32_t i = 0; i < files.n && !rc; i++) rc = read_table(l, o, files.at[i], e);
    names_free(&files);
    return rc;
}

/* Splits the samples. All samples of one image are on one side. */
static void split(struct labelled *l, const struct labelled_options *o)
{
    const uint32_t n = l->samples.n;
    struct group_member *members = mem_alloc((n + 1) * sizeof *members);
    for (uint32_t i = 0; i < n; i++)
        members[i] = (struct group_member){hash_bytes(l->samples.at[i].image, strlen(l->samples.at[i].image), 1), i};
    bool *held = holdout_mark(n, members, n, o->holdout, o->split_seed, &l->one_group);
    l->samples.n = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!held || held[i] == o->held) l->samples.at[l->samples.n++] = l->samples.at[i];
    mem_free(held);
    mem_free(members);
}

static int check(struct labelled *l, const struct labelled_options *o, struct error *e)
{
    if (!l->read)
        return error_set(e, PL_USAGE, "%s has no images%s", o->paths[0],
                         l->folders ? " in the folders of its classes" : "");
    if (l->bad == l->read || (double)l->bad > o->max_bad * (double)l->read)
        return error_set(e, PL_USAGE, "%" PRIu64 " of %" PRIu64 " rows cannot be used (data.max_bad is %g), such as %s",
                         l->bad, l->read, o->max_bad, l->first_bad);
    if (l->bad)
        log_warn("%" PRIu64 " of %" PRIu64 " rows cannot be used and are left out, such as %s", l->bad, l->read,
                 l->first_bad);
    if (o->holdout > 0) split(l, o);
    return l->samples.n ? PL_OK
                        : error_set(e, PL_USAGE, "data.holdout is %g of %" PRIu64 " images, which leaves none %s",
                                    o->holdout, l->read, o->held ? "to evaluate on" : "to train on");
}

int labelled_open(struct labelled *l, const struct labelled_options *o, struct error *e)
{
    *l = (struct labelled){0};
    int rc = o->n_paths && dir_exists(o->paths[0]) ? read_folder(l, o, o->paths[0], e) : read_tables(l, o, e);
    if (!rc) rc = check(l, o, e);
    for (uint32_t i = 0; i < l->samples.n; i++) {
        l->fingerprint = hash_bytes(l->samples.at[i].image, strlen(l->samples.at[i].image), l->fingerprint);
        l->fingerprint = hash_bytes(l->samples.at[i].text, strlen(l->samples.at[i].text), l->fingerprint);
    }
    if (!l->fingerprint) l->fingerprint = 1;
    return rc;
}

void labelled_close(struct labelled *l)
{
    vec_free(&l->samples);
    mem_free(l->where);
    bump_free(&l->memory);
    *l = (struct labelled){0};
}

void labelled_name(const struct labelled *l, uint64_t i, char *out, size_t room)
{
    const struct labelled_sample *x = &l->samples.at[i];
    if (x->line) snprintf(out, room, "%.200s:%s", x->file, record_place(x->line).text);
    else snprintf(out, room, "%.220s", x->image);
}
