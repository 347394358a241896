/*
 * pairs.c: the format `pairs`: images and masks that are found by their names in two folders or in one (match.h,
 * layout.h). What it shares with tables (table.c) is in pairs.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/masks/label.h"
#include "data/formats/layout.h"
#include "data/formats/pairs.h"
#include "io/file.h"

uint32_t pairs_keep(struct pairs *p, const char *folder, const char *name)
{
    uint32_t at = (uint32_t)p->names.n;
    bool joined = folder && name[0] != '/';
    if (joined) text_printf(&p->names, "%s/", folder);
    text_append(&p->names, name, strlen(name) + 1);
    return at;
}

int pairs_start(struct dataset *d, const struct dataset_options *o, struct error *e)
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

void pairs_finish(struct dataset *d)
{
    struct pairs *p = d->state;
    d->total = p->items.n;
    d->fingerprint = hash_bytes(p->names.at, p->names.n, d->fingerprint);
}

void pairs_close(struct dataset *d)
{
    struct pairs *p = d->state;
    if (!p) return;
    vec_free(&p->items);
    vec_free(&p->groups);
    text_free(&p->names);
    mem_free(p->values);
    mem_free(p);
}

/* --- pairs: folders ------------------------------------------------------------------------- */

static void add_pair(struct pairs *p, const char *images, const char *masks, const struct image_file *i, const struct image_file *m, const char *key)
{
    struct item item = {.image = pairs_keep(p, images, i->path)};
    item.mask = pairs_keep(p, masks, m->path);
    item.key = item.name = pairs_keep(p, NULL, key);
    if (strlen(key) != i->stem || memcmp(key, i->path, i->stem)) {
        char name[512];
        snprintf(name, sizeof name, "%.*s", (int)(i->stem < sizeof name ? i->stem : sizeof name - 1), i->path);
        item.name = pairs_keep(p, NULL, name);
    }
    item.split = pairs_keep(p, NULL, "");
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
    if (pairs_start(d, o, e) || dataset_paths(o, &roots, e)) return e->code;
    int rc = PL_OK;
    for (uint32_t i = 0; i < roots.n && !rc; i++) rc = open_root(d, o, roots.at[i], e);
    if (!rc) dataset_warn_unpaired(d, o, roots.at[0]);
    names_free(&roots);
    pairs_finish(d);
    return rc;
}

/* --- a sample: for tables too --------------------------------------------------------------- */

void pairs_describe(const struct dataset *d, uint64_t i, char *name, size_t room, const char **key)
{
    const struct pairs *p = d->state;
    *key = p->names.at + p->items.at[i].key;
    snprintf(name, room, "%s", p->names.at + p->items.at[i].name);
}

enum data_fault pairs_image(const struct dataset *d, uint64_t i, void *to, size_t room, struct dataset_image *out,
                                  struct error *e)
{
    const struct pairs *p = d->state;
    return dataset_read_file(p->names.at + p->items.at[i].image, to, room, &out->n, e);
}

enum data_fault pairs_masks(const struct dataset *d, uint64_t i, void *scratch, size_t n, struct mask *masks,
                                  uint32_t room, struct dataset_masks *out, struct error *e)
{
    const struct pairs *p = d->state;
    return label_read(p->names.at + p->items.at[i].mask, &d->labels, scratch, n, masks, room, out, e);
}

const char *pairs_label_path(const struct dataset *d, uint64_t i)
{
    const struct pairs *p = d->state;
    return p->names.at + p->items.at[i].mask;
}

const char *pairs_image_path(const struct dataset *d, uint64_t i)
{
    const struct pairs *p = d->state;
    return p->names.at + p->items.at[i].image;
}

const struct dataset_format dataset_pairs = {
    .name = "pairs",
    .open = pairs_open,
    .close = pairs_close,
    .describe = pairs_describe,
    .image = pairs_image,
    .masks = pairs_masks,
    .label = pairs_label_path,
    .image_path = pairs_image_path,
};
