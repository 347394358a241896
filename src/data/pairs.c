/*
 * pairs.c: the formats `pairs` and `csv`: an image file and a mask file per sample.
 *
 * They differ in how the files are found: by their names in two folders or in one (match.h,
 * layout.h), or by the rows of a table. After that a sample is two paths, a name, a key and the value
 * of its split column, all stored in one block of names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/csv.h"
#include "data/dataset.h"
#include "data/label.h"
#include "data/layout.h"
#include "io/file.h"

/* Offsets into the names. */
struct item {
    uint32_t image, mask, key, name, split;
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

/* --- pairs: folders ------------------------------------------------------------------------- */

static void add_pair(struct pairs *p, const char *images, const char *masks, const struct image_file *i, const struct image_file *m, const char *key)
{
    struct item item = {.image = keep(p, images, i->path)};
    item.mask = keep(p, masks, m->path);
    item.key = item.name = keep(p, NULL, key);
    if (strlen(key) != i->stem || memcmp(key, i->path, i->stem)) {
        char name[512];
        snprintf(name, sizeof name, "%.*s", (int)(i->stem < sizeof name ? i->stem : sizeof name - 1), i->path);
        item.name = keep(p, NULL, name);
    }
    item.split = keep(p, NULL, "");
    vec_push(&p->items, item);
}

/* Files of a format that is not read are an error where they are most of a folder. */
static int check_unread(const struct image_tree *t, const char *folder, struct text *out, struct error *e)
{
    if (!t->unread) return PL_OK;
    if (t->n_unread > t->files.n) return unread_refuse(t->unread, t->n_unread, folder, t->unread_example, e);
    text_printf(out, "%s%llu files are %s, which is not read (such as %s)", out->n ? ", " : "", (unsigned long long)t->n_unread, t->unread->name, t->unread_example);
    return PL_OK;
}

static int join_trees(struct dataset *d, const char *images, const char *masks, const struct image_tree *it, const struct image_tree *mt, const struct affixes *given,
                      struct error *e)
{
    struct affixes a;
    struct match m;
    uint64_t n;
    if (check_unread(it, images, &d->unpaired, e) || (mt != it && check_unread(mt, masks, &d->unpaired, e))) return e->code;
    if (given) a = *given;
    else if (match_find(it, mt, &a, &n, e)) return error_prepend(e, "%s", images);
    match_join(&m, it, mt, &a);
    match_print(&m, it, mt, &d->unpaired);
    for (uint32_t i = 0; i < m.pairs.n; i++)
        add_pair(d->state, images, masks, &it->files.at[m.pairs.at[i].image], &mt->files.at[m.pairs.at[i].mask], m.pairs.at[i].key);
    d->report.members += it->files.n + (it == mt ? 0 : mt->files.n);
    d->report.no_text += m.alone[0];
    d->report.no_image += m.alone[1];
    d->report.others += m.others[0] + m.others[1];
    d->report.duplicates += m.duplicates;
    int rc = m.pairs.n ? PL_OK : match_refuse(it, images, mt, masks, e);
    match_free(&m);
    return rc;
}

/* The folder of the masks, relative to that of the images, if it is inside; else NULL. */
static const char *inside(const char *folder, const char *outer)
{
    size_t n = strlen(outer);
    return !strncmp(folder, outer, n) && folder[n] == '/' ? folder + n + 1 : NULL;
}

static int join_folders(struct dataset *d, const char *images, const char *masks, const struct affixes *a, struct error *e)
{
    struct image_tree it, mt = {0};
    bool common = !strcmp(images, masks); /* two names of one folder: each image is its own mask, which the survey refuses */
    int rc = image_tree_read(&it, images, inside(masks, images), e);
    if (!rc && !common) rc = image_tree_read(&mt, masks, inside(images, masks), e);
    if (!rc) rc = join_trees(d, images, masks, &it, common ? &it : &mt, a, e);
    image_tree_free(&it);
    image_tree_free(&mt);
    return rc;
}

/* ROOT/NAME, or the given folder instead, relative to the root if it exists there. */
static char *folder_of(const char *root, const char *given, const char *usual)
{
    struct text path = {0};
    if (given && !strcmp(given, ".")) text_printf(&path, "%s", root);
    else text_printf(&path, "%s/%s", root, given ? given : usual);
    char *out = mem_string(given && (given[0] == '/' || !dir_exists(path.at)) ? given : path.at);
    text_free(&path);
    return out;
}

static int join_given(struct dataset *d, const struct dataset_options *o, const char *root, const struct affixes *a, struct error *e)
{
    char *images = folder_of(root, o->images, "images"), *masks = folder_of(root, o->masks, "masks");
    int rc = PL_OK;
    for (int k = 0; k < 2 && !rc; k++)
        if (!dir_exists(k ? masks : images))
            rc = error_set(e, PL_USAGE, "%s: there is no folder of %s: expected %s (data.%s sets another)", root, k ? "masks" : "images", k ? masks : images,
                           k ? "masks" : "images");
    if (!rc) rc = join_folders(d, images, masks, a, e);
    mem_free(images);
    mem_free(masks);
    return rc;
}

/* Searches the folders. Pascal VOC's masks hold classes, and 255 is the border between objects. */
static int join_found(struct dataset *d, const char *root, const struct affixes *a, struct error *e)
{
    struct layout l;
    int rc = layout_find(&l, root, a, e);
    if (!rc) {
        char *images = folder_of(l.root, l.train.images, ""), *masks = folder_of(l.root, l.train.masks, "");
        if (l.voc && d->labels.kind == LABELS_AUTO) d->labels.kind = LABELS_CLASSES;
        if (l.voc && d->labels.ignore < 1) d->labels.ignore = 255;
        rc = join_folders(d, images, masks, &l.train.affixes, e);
        mem_free(images);
        mem_free(masks);
    }
    layout_free(&l);
    return rc;
}

static int set_affixes(const struct dataset_options *o, struct affixes *a, bool *given, struct error *e)
{
    const char *const from[AFFIXES] = {o->image_prefix, o->image_suffix, o->mask_prefix, o->mask_suffix};
    *a = (struct affixes){0};
    *given = false;
    for (int i = 0; i < AFFIXES; i++) {
        if (!from[i]) continue;
        *given = true;
        if (strlen(from[i]) >= AFFIX_ROOM) return error_set(e, PL_USAGE, "a prefix or suffix has more than %d characters: %.40s...", AFFIX_ROOM - 1, from[i]);
        strcpy(a->at[i], from[i]);
    }
    return PL_OK;
}

static int open_root(struct dataset *d, const struct dataset_options *o, const char *root, struct error *e)
{
    struct affixes a;
    bool given;
    if (set_affixes(o, &a, &given, e)) return e->code;
    if (!dir_exists(root)) {
        const struct unread *u = unread_file(root);
        return u ? unread_refuse(u, 1, NULL, root, e) : error_set(e, PL_USAGE, "%s is a file; data.format pairs expects a folder with images and masks", root);
    }
    return o->images || o->masks ? join_given(d, o, root, given ? &a : NULL, e) : join_found(d, root, given ? &a : NULL, e);
}

static int pairs_open(struct dataset *d, const struct dataset_options *o, struct error *e)
{
    struct names roots;
    if (start(d, o, e) || dataset_paths(o, &roots, e)) return e->code;
    int rc = PL_OK;
    for (uint32_t i = 0; i < roots.n && !rc; i++) rc = open_root(d, o, roots.at[i], e);
    if (!rc) dataset_warn_unpaired(d, o, roots.at[0]);
    names_free(&roots);
    finish(d);
    return rc;
}

/* --- csv: a table ------------------------------------------------------------------------- */

struct columns {
    int image, mask, split;
};

static int find_column(const struct csv *c, const char *given, enum csv_usual what) { return given ? csv_column(c, given) : csv_usual_column(c, what); }

#define NO_RUN_LENGTHS "which are not read from a table: write each mask as a PNG and name the files"

/* The message names all columns. A first line of paths is a table without names. */
static int refuse_columns(const struct csv *c, const char *given, enum csv_usual what, struct error *e)
{
    static const char *const keys[] = {"image", "mask", "split"}, *const plural[] = {"images", "masks", "splits"};
    static const char *const usual[] = {"image, image_path, img, file", "mask, mask_path, label, seg", "split, subset, set"};
    struct text names = {0};
    bool paths = false;
    const char *runs = NULL;
    for (uint32_t i = 0; i < c->n && i < 20; i++) {
        text_printf(&names, "%s%s", i ? ", " : "", c->fields[i]);
        paths |= is_image_name(c->fields[i]);
        if (strcasestr(c->fields[i], "rle") || strcasestr(c->fields[i], "encodedpixels")) runs = c->fields[i];
    }
    if (given) error_set(e, PL_USAGE, "its first line has no column %s; its columns are %.400s", given, names.at);
    else if (runs) error_set(e, PL_USAGE, "its columns are %.400s: the masks in %s are run lengths, " NO_RUN_LENGTHS, names.at, runs);
    else if (paths) error_set(e, PL_USAGE, "its first line is %.400s, expected the names of the columns: add a line such as image%cmask", names.at, c->separator);
    else error_set(e, PL_USAGE, "its columns are %.400s; none has a usual name for %s (%s, ...): set data.%s_column", names.at, plural[what], usual[what], keys[what]);
    text_free(&names);
    return e->code;
}

static int find_columns(const struct csv *c, const struct dataset_options *o, struct columns *to, struct error *e)
{
    *to = (struct columns){find_column(c, o->image_column, CSV_IMAGE), find_column(c, o->mask_column, CSV_MASK), find_column(c, o->split_column, CSV_SPLIT)};
    if (to->image < 0) return refuse_columns(c, o->image_column, CSV_IMAGE, e);
    if (to->mask < 0) return refuse_columns(c, o->mask_column, CSV_MASK, e);
    if (to->split < 0 && (o->split_column || o->split.column)) return refuse_columns(c, o->split_column, CSV_SPLIT, e);
    if (to->image == to->mask) return error_set(e, PL_USAGE, "data.image_column and data.mask_column are the same column, %s", c->fields[to->image]);
    return PL_OK;
}

/* The folder that the paths of a column are relative to. Unless it is given, it is the first of
 * these that has a file of the table: the table's folder, the current directory, and images/ or
 * masks/ beside the table. */
struct base {
    const char *given, *dir, *sub;
    char path[2100];
    bool found;
};

static const char *base_of(struct base *b, const char *name)
{
    if (b->given) return b->given;
    for (int k = 0; k < 3 && !b->found; k++) {
        struct text full = {0};
        if (k == 0) snprintf(b->path, sizeof b->path, "%s", b->dir);
        else if (k == 1) snprintf(b->path, sizeof b->path, ".");
        else snprintf(b->path, sizeof b->path, "%s/%s", b->dir, b->sub);
        text_printf(&full, "%s/%s", b->path, name);
        b->found = file_exists(full.at);
        text_free(&full);
    }
    return b->found ? b->path : b->dir;
}

struct table {
    struct base images, masks;
    uint64_t rows, n_unread;
    const struct unread *unread;
    char example[256];
};

/* "1 3 10 5": starts and lengths. */
static bool is_run_lengths(const char *field) { return strchr(field, ' ') && field[strspn(field, "0123456789 ")] == 0; }

static int add_row(struct dataset *d, const struct csv *c, const struct columns *at, struct table *t, struct error *e)
{
    struct pairs *p = d->state;
    const char *image = c->fields[at->image], *mask = c->fields[at->mask];
    path_from_windows(c->fields[at->image]);
    path_from_windows(c->fields[at->mask]);
    d->report.members++;
    t->rows++;
    if (!*mask) d->report.no_text++;
    else if (!*image) d->report.no_image++;
    if (!*mask || !*image) return PL_OK;
    const struct unread *u = unread_by_name(image);
    if (!u) u = unread_by_name(mask);
    if (u && !t->unread) t->unread = u, snprintf(t->example, sizeof t->example, "%s", unread_by_name(image) ? image : mask);
    t->n_unread += u != NULL;
    if (is_run_lengths(mask)) return error_set(e, PL_USAGE, "line %u: the mask is given as run lengths (%.20s...), " NO_RUN_LENGTHS, c->line, mask);
    struct item item = {.image = keep(p, base_of(&t->images, image), image)};
    item.mask = keep(p, base_of(&t->masks, mask), mask);
    item.key = item.name = keep(p, NULL, image);
    item.split = keep(p, NULL, at->split >= 0 ? c->fields[at->split] : "");
    vec_push(&p->items, item);
    return PL_OK;
}

static int read_rows(struct dataset *d, struct csv *c, const struct columns *at, struct table *t, struct error *e)
{
    const struct pairs *p = d->state;
    bool more;
    uint32_t columns = c->n;
    while (!csv_next(c, &more, e) && more) {
        if (c->n != columns) return error_set(e, PL_USAGE, "line %u has %u fields; expected %u as in the first line", c->line, c->n, columns);
        if (p->names.n > 1u << 31) return error_set(e, PL_USAGE, "line %u: the table is too large", c->line);
        if (add_row(d, c, at, t, e)) return e->code;
    }
    if (more) return e->code;
    return 2 * t->n_unread > t->rows ? unread_refuse(t->unread, t->n_unread, NULL, t->example, e) : PL_OK;
}

static int read_table(struct dataset *d, const struct dataset_options *o, const char *path, struct error *e)
{
    char dir[2048], *text;
    size_t n;
    bool more;
    if (path_dir(path, dir, sizeof dir, e) || file_read(path, 1ull << 30, &text, &n, e)) return e->code;
    struct csv *c = mem_alloc(sizeof *c);
    struct columns at;
    struct table t = {.images = {.given = o->images, .dir = dir, .sub = "images"}, .masks = {.given = o->masks, .dir = dir, .sub = "masks"}};
    csv_begin(c, text, n);
    int rc = csv_next(c, &more, e);
    if (!rc && !more) rc = error_set(e, PL_USAGE, "it is empty; expected a line with the names of the columns");
    if (!rc) rc = find_columns(c, o, &at, e);
    if (!rc) rc = read_rows(d, c, &at, &t, e);
    mem_free(c);
    mem_free(text);
    return rc ? error_prepend(e, "%s", path) : PL_OK;
}

static void print_rows(struct text *out, uint64_t n, const char *what)
{
    if (n) text_printf(out, "%s%llu %s no %s", out->n ? ", " : "", (unsigned long long)n, n == 1 ? "row has" : "rows have", what);
}

static int csv_open(struct dataset *d, const struct dataset_options *o, struct error *e)
{
    struct names paths;
    if (start(d, o, e) || dataset_paths(o, &paths, e)) return e->code;
    int rc = PL_OK;
    for (uint32_t i = 0; i < paths.n && !rc; i++) rc = read_table(d, o, paths.at[i], e);
    print_rows(&d->unpaired, d->report.no_text, "mask");
    print_rows(&d->unpaired, d->report.no_image, "image");
    if (!rc) dataset_warn_unpaired(d, o, paths.at[0]);
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
    snprintf(name, room, "%s", p->names.at + p->items.at[i].name);
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
