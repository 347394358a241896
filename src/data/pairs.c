/*
 * pairs.c: the formats `pairs` and `csv`: an image file and a mask file per sample.
 *
 * They differ in how the files are found: by equal names in two folders, or by the rows of a
 * table. After that a sample is two paths, a key and the value of its split column, all stored in
 * one block of names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "data/csv.h"
#include "data/dataset.h"
#include "data/label.h"
#include "io/file.h"

/* Offsets into the names. */
struct item {
    uint32_t image, mask, key, split;
};

struct pairs {
    VEC(struct item) items;
    struct text names;
    int64_t *values;
};

static uint32_t keep(struct pairs *p, const char *folder, const char *name)
{
    uint32_t at = (uint32_t)p->names.n;
    bool joined = folder && name[0] != '/';
    if (joined) text_printf(&p->names, "%s/", folder);
    text_append(&p->names, name, strlen(name) + 1);
    return at;
}

static int start(struct dataset *d, const struct dataset_options *o, struct error *e)
{
    struct pairs *p = d->state = mem_alloc(sizeof *p);
    d->labels.values = p->values = mem_alloc(o->n_categories * sizeof *p->values);
    d->labels.n_values = o->n_categories;
    for (uint32_t i = 0; i < o->n_categories; i++) {
        char *end;
        p->values[i] = strtoll(o->categories[i], &end, 10);
        if (*end || end == o->categories[i] || p->values[i] < 1 || p->values[i] > 65535)
            return error_set(e, PL_USAGE, "category %s: the categories of label images are numbers from 1 to 65535", o->categories[i]);
    }
    return PL_OK;
}

static void finish(struct dataset *d)
{
    struct pairs *p = d->state;
    d->total = p->items.n;
    d->fingerprint = hash_bytes(p->names.at, p->names.n, d->fingerprint);
}

static void pairs_close(struct dataset *d)
{
    struct pairs *p = d->state;
    if (!p) return;
    vec_free(&p->items);
    text_free(&p->names);
    mem_free(p->values);
    mem_free(p);
}

/* --- pairs: two folders ------------------------------------------------------------------- */

/* A file and its stem ("a" of a.png). */
struct stem {
    const char *name;
    size_t n;
};

static int compare_stems(const void *pa, const void *pb)
{
    const struct stem *a = pa, *b = pb;
    int c = memcmp(a->name, b->name, a->n < b->n ? a->n : b->n);
    if (c) return c;
    return a->n != b->n ? (a->n < b->n ? -1 : 1) : strcmp(a->name, b->name);
}

static bool has_extension(const char *dot, bool mask)
{
    if (!dot) return false;
    if (mask) return !strcasecmp(dot, ".png");
    return !strcasecmp(dot, ".jpg") || !strcasecmp(dot, ".jpeg") || !strcasecmp(dot, ".png");
}

/* The images or the masks of a folder, sorted by stem; the caller frees the list with mem_free. The
 * mask of a.jpg may have the name a_mask.png. */
static struct stem *stems(const struct names *l, bool mask, uint32_t *n)
{
    struct stem *out = mem_alloc(l->n * sizeof *out);
    *n = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        const char *dot = strrchr(l->at[i], '.');
        if (!has_extension(dot, mask) || dot == l->at[i]) continue;
        size_t length = (size_t)(dot - l->at[i]);
        if (mask && length > 5 && !memcmp(dot - 5, "_mask", 5)) length -= 5;
        out[(*n)++] = (struct stem){l->at[i], length};
    }
    if (*n) qsort(out, *n, sizeof *out, compare_stems);
    return out;
}

static int same_stem(const struct stem *a, const struct stem *b)
{
    int c = memcmp(a->name, b->name, a->n < b->n ? a->n : b->n);
    return c ? c : a->n < b->n ? -1 : a->n > b->n;
}

static void add_pair(struct pairs *p, const char *images, const char *masks, const struct stem *i, const struct stem *m)
{
    char key[512];
    snprintf(key, sizeof key, "%.*s", (int)(i->n < sizeof key ? i->n : sizeof key - 1), i->name);
    struct item item = {.image = keep(p, images, i->name)};
    item.mask = keep(p, masks, m->name);
    item.key = keep(p, NULL, key);
    item.split = keep(p, NULL, "");
    vec_push(&p->items, item);
}

/* Merges both sorted lists. */
static int pair_folders(struct dataset *d, const char *images, const char *masks, struct error *e)
{
    struct names il = {0}, ml = {0};
    int rc = dir_list(images, &il, e);
    if (!rc) rc = dir_list(masks, &ml, e);
    uint32_t ni = 0, nm = 0, i = 0, m = 0;
    struct stem *is = stems(&il, false, &ni), *ms = stems(&ml, true, &nm);
    while (!rc && (i < ni || m < nm)) {
        int c = i == ni ? 1 : m == nm ? -1 : same_stem(&is[i], &ms[m]);
        if (c < 0) i++, d->report.no_text++;
        else if (c > 0) m++, d->report.no_image++;
        else {
            add_pair(d->state, images, masks, &is[i], &ms[m]);
            const struct stem stem = is[i];
            for (i++; i < ni && !same_stem(&is[i], &stem); i++) d->report.duplicates++;
            for (m++; m < nm && !same_stem(&ms[m], &stem); m++) d->report.duplicates++;
        }
    }
    d->report.members += ni + nm;
    mem_free(is);
    mem_free(ms);
    names_free(&il);
    names_free(&ml);
    return rc;
}

/* ROOT/NAME, or the given folder instead, relative to the root if it exists there. */
static char *folder_of(const char *root, const char *given, const char *usual)
{
    struct text path = {0};
    text_printf(&path, "%s/%s", root, given ? given : usual);
    char *out = mem_string(given && (given[0] == '/' || !dir_exists(path.at)) ? given : path.at);
    text_free(&path);
    return out;
}

static int pairs_open(struct dataset *d, const struct dataset_options *o, struct error *e)
{
    struct names roots;
    if (start(d, o, e) || dataset_paths(o, &roots, e)) return e->code;
    int rc = PL_OK;
    for (uint32_t i = 0; i < roots.n && !rc; i++) {
        char *images = folder_of(roots.at[i], o->images, "images"), *masks = folder_of(roots.at[i], o->masks, "masks");
        for (int k = 0; k < 2 && !rc; k++)
            if (!dir_exists(k ? masks : images))
                rc = error_set(e, PL_USAGE, "%s: there is no folder of %s: expected %s (data.%s sets another)", roots.at[i],
                               k ? "masks" : "images", k ? masks : images, k ? "masks" : "images");
        if (!rc) rc = pair_folders(d, images, masks, e);
        mem_free(images);
        mem_free(masks);
    }
    char what[512];
    if (!rc && shard_report_print(&d->report, what, sizeof what)) log_warn("%s: %s", roots.at[0], what);
    names_free(&roots);
    finish(d);
    return rc;
}

/* --- csv: a table ------------------------------------------------------------------------- */

struct columns {
    int image, mask, split;
};

static int find_columns(const struct csv *c, const struct dataset_options *o, struct columns *to, struct error *e)
{
    const char *image = o->image_column ? o->image_column : "image", *mask = o->mask_column ? o->mask_column : "mask";
    const char *split = o->split_column ? o->split_column : "split";
    *to = (struct columns){csv_column(c, image), csv_column(c, mask), csv_column(c, split)};
    if (to->image < 0 || to->mask < 0) return error_set(e, PL_USAGE, "its first line has no column %s", to->image < 0 ? image : mask);
    if (to->split < 0 && (o->split_column || o->split.column)) return error_set(e, PL_USAGE, "its first line has no column %s", split);
    return PL_OK;
}

/* Reads the rows after the first. Paths are relative to the table's folder unless another is
 * given. */
static int read_rows(struct dataset *d, struct csv *c, const struct columns *at, const char *images, const char *masks,
                     struct error *e)
{
    struct pairs *p = d->state;
    bool more;
    uint32_t columns = c->n;
    while (!csv_next(c, &more, e) && more) {
        if (c->n != columns) return error_set(e, PL_USAGE, "line %u has %u fields; expected %u as in the first line", c->line, c->n, columns);
        if (p->names.n > 1u << 31) return error_set(e, PL_USAGE, "line %u: the table is too large", c->line);
        d->report.members++;
        if (!*c->fields[at->mask]) d->report.no_text++;
        else if (!*c->fields[at->image]) d->report.no_image++;
        else {
            struct item item = {.image = keep(p, images, c->fields[at->image])};
            item.mask = keep(p, masks, c->fields[at->mask]);
            item.key = keep(p, NULL, c->fields[at->image]);
            item.split = keep(p, NULL, at->split >= 0 ? c->fields[at->split] : "");
            vec_push(&p->items, item);
        }
    }
    return more ? e->code : PL_OK;
}

static int read_table(struct dataset *d, const struct dataset_options *o, const char *path, struct error *e)
{
    char dir[2048], *text;
    size_t n;
    bool more;
    if (path_dir(path, dir, sizeof dir, e) || file_read(path, 1ull << 30, &text, &n, e)) return e->code;
    struct csv *c = mem_alloc(sizeof *c);
    struct columns at;
    csv_begin(c, text, n);
    int rc = csv_next(c, &more, e);
    if (!rc && !more) rc = error_set(e, PL_USAGE, "it is empty; expected a line with the names of the columns");
    if (!rc) rc = find_columns(c, o, &at, e);
    if (!rc) rc = read_rows(d, c, &at, o->images ? o->images : dir, o->masks ? o->masks : dir, e);
    mem_free(c);
    mem_free(text);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}

static int csv_open(struct dataset *d, const struct dataset_options *o, struct error *e)
{
    struct names paths;
    if (start(d, o, e) || dataset_paths(o, &paths, e)) return e->code;
    int rc = PL_OK;
    for (uint32_t i = 0; i < paths.n && !rc; i++) rc = read_table(d, o, paths.at[i], e);
    names_free(&paths);
    finish(d);
    return rc;
}

static const char *csv_split(const struct dataset *d, uint64_t i)
{
    const struct pairs *p = d->state;
    return p->names.at + p->items.at[i].split;
}

/* --- both ------------------------------------------------------------------------------ */

static void describe(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key)
{
    const struct pairs *p = d->state;
    *key = p->names.at + p->items.at[i].key;
    snprintf(name, room, "%s", *key);
}

static enum data_fault read_image(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out,
                                  struct error *e)
{
    const struct pairs *p = d->state;
    return dataset_read_file(p->names.at + p->items.at[i].image, to, room, &out->n, e);
}

static enum data_fault read_masks(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks,
                                  uint32_t room, struct dataset_masks *out, struct error *e)
{
    const struct pairs *p = d->state;
    return label_read(p->names.at + p->items.at[i].mask, &d->labels, scratch, n, masks, room, out, e);
}

static const char *label_path(const struct dataset *d, uint64_t i)
{
    const struct pairs *p = d->state;
    return p->names.at + p->items.at[i].mask;
}

static const char *image_path(const struct dataset *d, uint64_t i)
{
    const struct pairs *p = d->state;
    return p->names.at + p->items.at[i].image;
}

const struct dataset_format dataset_pairs = {
    .name = "pairs",
    .open = pairs_open,
    .close = pairs_close,
    .describe = describe,
    .image = read_image,
    .masks = read_masks,
    .label = label_path,
    .image_path = image_path,
};

const struct dataset_format dataset_csv = {
    .name = "csv",
    .open = csv_open,
    .close = pairs_close,
    .describe = describe,
    .image = read_image,
    .masks = read_masks,
    .split = csv_split,
    .label = label_path,
    .image_path = image_path,
};
